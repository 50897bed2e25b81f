"""NegBench's models by name, and how `--model`, `--vlm` and `--match` are read.

A model is a name of `MODELS`, NAME=REFERENCE (that row's published figures with other weights), or a
reference as `metrics.load_dual`, `metrics.load_choices` or `metrics.load_judge` ("itm") takes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nein import metrics
from nein.datasets.negbench.registry import CSV_FILES
from nein.engine.errors import UserError, near_match
from nein.loading.references import TEXTS, Need, is_local, is_served, parse_reference
from nein.models import references
from nein.models.cached import Services
from nein.models.needs import of_model
from nein.models.references import JUDGE
from nein.models.remedies import encoders

_CONVERT = "nein negbench convert --architecture ViT-B-32 {file} FOLDER, then --model {name}=FOLDER"
_CONVERT_OPENAI = _CONVERT.replace("{file}", "--quick-gelu {file}")


@dataclass(frozen=True)
class Model:
    """A row: a reference, or how to get one."""

    name: str
    reference: str | None = None
    file: str = ""
    published: Mapping[str, tuple[str, str]] = field(
        default_factory=dict
    )  # source -> rows of paper_numbers.csv
    quick_gelu: bool = False  # as these were computed: "ViT-B-32" has QuickGELU with OpenAI's weights only
    same: tuple[str, ...] = ()  # other references to the weights, as `_weights` writes them
    text: tuple[str, ...] = ()  # repositories whose configuration and tokenizer its text tower is built from
    at: str = ""  # where `file` is, if not with NegBench's; it is converted with QuickGELU

    @property
    def obtain(self) -> str:
        if self.name == "conch":
            return (
                "its weights are given out on request at huggingface.co/MahmoodLab/conch, its code is "
                "github.com/mahmoodlab/CONCH, both for non-commercial research; then in Python "
                "nein.negbench(OBJECT), OBJECT with encode_image and encode_text"
            )
        if self.at:
            name = Path(self.file).name
            return f"{name} is at {self.at}; {_CONVERT_OPENAI.format(file=name, name=self.name)}"
        where = CSV_FILES.replace("the CSV files are at", f"{self.file} is at")
        return f"{where}; {_CONVERT.format(file=Path(self.file).name, name=self.name)}"


_NEGFULL = "CC12M-NegFull"
_SOURCES = ("paper_table1", "repo_baseline", "repo_scaling", "repo_finetuned")


def _printed(*models: str, data: str = "none", drop: str = "") -> dict[str, tuple[str, str]]:
    """Its name in each of `_SOURCES`, "" where it is not; data: of fine-tuning; drop: in figures 3 and 4c."""
    names = {**dict(zip(_SOURCES, models, strict=False)), "paper_figures": drop}
    return {source: (model, data) for source, model in names.items() if model}


MODELS: dict[str, Model] = {
    row.name: row
    for row in (
        Model(
            "clip", "open_clip:ViT-B-32/openai", "", _printed("CLIP", "CLIP-OpenAI"), True,
            ("ViT-B-32/openai", "openai/clip-vit-base-patch32", "timm/vit_base_patch32_clip_224.openai"),
        ),
        Model(
            "clip-laion400m", "open_clip:ViT-B-32/laion400m_e32", "",
            _printed("", "CLIP-Laion400M", "CLIP-Laion400M-Base", drop="CLIP-Laion400M"), False,
            # Which of the two epochs the figures are of is not said; the released script has the first.
            (
                "ViT-B-32/laion400m_e31", "ViT-B-32/laion400m_e32",
                "timm/vit_base_patch32_clip_224.laion400m_e31",
                "timm/vit_base_patch32_clip_224.laion400m_e32",
            ),
        ),
        # The released scripts build ViT-B-32 without QuickGELU for every tag but openai's.
        Model(
            "clip-laion400m-gelu", "open_clip:ViT-B-32/laion400m_e32#gelu", "",
            _printed("", "CLIP-Laion400M", "CLIP-Laion400M-Base", drop="CLIP-Laion400M"),
        ),
        Model(
            "clip-datacomp", "open_clip:ViT-B-32/datacomp_xl_s13b_b90k", "",
            _printed("", "CLIP-datacomp", drop="CLIP-datacomp"), False,
            ("ViT-B-32/datacomp_xl_s13b_b90k", "laion/CLIP-ViT-B-32-DataComp.XL-s13B-b90K"),
        ),
        Model(
            "clip-l", "open_clip:ViT-L-14/laion2b_s32b_b82k", "",
            _printed("", "", "CLIP-Laion2B-Large"), False,
            ("ViT-L-14/laion2b_s32b_b82k", "laion/CLIP-ViT-L-14-laion2B-s32B-b82K"),
        ),
        Model(
            "clip-h", "open_clip:ViT-H-14/laion2b_s32b_b79k", "",
            _printed("", "", "CLIP-Laion2B-Huge"), False,
            ("ViT-H-14/laion2b_s32b_b79k", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"),
        ),
        Model("negclip", None, "negclip.pth", _printed("NegCLIP", "NegCLIP", drop="NegCLIP")),
        Model("conclip", None, "conclip_b32_openclip_version.pt", _printed("", "ConCLIP", drop="ConCLIP")),
        Model(
            "clip-negfull", None, "CLIP_CC12M_NegFull_ViT-B-32_lr1e-8_clw0.99_mlw0.01/checkpoint.pt",
            _printed("CLIP", "", "", "CLIP-OpenAI", data=_NEGFULL),
        ),
        Model(
            "negclip-negfull", None, "NegCLIP_CC12M_NegFull_ViT-B-32_lr1e-8_clw0.99_mlw0.01/checkpoint.pt",
            _printed("NegCLIP", "", "", "NegCLIP", data=_NEGFULL),
        ),
        # ViT-B-32 of each; the authors give out ViT-B-16 and ViT-L-14, too, which convert in the same way.
        Model("conclip-authors", None, "conclip_vit_b32.pt", at="a link of github.com/jaisidhsingh/CoN-CLIP"),
        Model("negationclip", None, "ViT-B-32.pt", at="huggingface.co/jerryray/negationclip"),
        Model(
            "biomedclip", "open_clip:hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224", "",
            _printed(drop="BioMedCLIP"), text=("microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract",),
        ),
        Model("conch", None, "", _printed(drop="CONCH")),
        Model("siglip", "google/siglip-base-patch16-224"),
        Model("siglip2", "google/siglip2-base-patch16-224"),
    )
}  # fmt: skip


def _weights(reference: str) -> str:
    """Weights, however a reference spells them: architecture/tag without the activation, or a hub id."""
    text = reference.removeprefix("open_clip:").removeprefix("hf-hub:").partition("#")[0]
    return text.replace("-quickgelu/", "/")


@dataclass(frozen=True)
class Choice:
    """A model as asked for: nothing is loaded."""

    asked: str
    name: str  # as tables show it
    slug: str  # its folder
    reference: str  # for `metrics.load_dual` or `metrics.load_judge`
    kind: str = "dual"  # "dual", "vlm" or "itm": encodes, answers, or scores a picture with a sentence
    row: Model | None = None  # of `MODELS`
    remedy: str = ""  # around it (`nein.models.remedies.encoders`)


def choose(asked: str, kind: str = "dual") -> Choice:
    """Raises UserError for a name without weights or a reference that is none."""
    if references.offered(asked) is not None:
        return Choice(asked, asked, asked, asked, kind)
    given, reference = references.named(asked)
    if given is None:
        return _of_reference(asked, kind)
    row = MODELS.get(given) if kind == "dual" else None
    if row is None:
        return replace(choose(reference, kind), asked=asked, name=given, slug=given)
    where = _resolve(reference, kind)
    return Choice(asked, given, f"{given}-{references.slug(reference)}", where, kind, row)


def with_remedy(choice: Choice, remedy: str) -> Choice:
    """The model with a remedy around it, under a name of its own. Raises UserError."""
    if not remedy:
        return choice
    encoders.parse(remedy)
    name, slug = f"{choice.name}+{remedy}", f"{choice.slug}+{re.sub(r'[^A-Za-z0-9.]+', '-', remedy)}"
    return replace(choice, name=name, slug=slug, row=None, remedy=remedy)


def _of_reference(asked: str, kind: str) -> Choice:
    """Of a reference, or a row's name, without a name of the user's."""
    if kind == "dual" and (row := MODELS.get(asked)) is not None:
        if row.reference is None:
            raise UserError(f"The weights of '{asked}' have to be fetched by hand: {row.obtain}.")
        where = _resolve(row.reference, kind)
        return Choice(asked, asked, asked, where, kind, row)
    where = _resolve(asked, kind)
    if kind == "vlm" and (label := references.moved(asked)) is not None:
        return Choice(asked, label, label, where, kind)
    same = (row for row in MODELS.values() if kind == "dual" and _weights(asked) in row.same)
    name = Path(where).name if Path(where).is_dir() and not asked.startswith("nano:") else asked
    return Choice(asked, name, references.slug(asked), where, kind, next(same, None))


def _resolve(reference: str, kind: str) -> str:
    if kind == "dual" and metrics.dual_prefix(reference) is not None:
        return reference
    form = parse_reference(reference).kind
    if kind == "dual" and not (form in ("embedded", "hub") or is_local(reference)):
        near = near_match(reference, MODELS)
        hint = f"; did you mean '{near}'?" if near else "."
        raise UserError(
            f"Unknown model '{reference}'{hint} Allowed: {', '.join(MODELS)}, a folder, a hub id owner/name, "
            "open_clip:ARCHITECTURE/TAG, nano:clip, random."
        )
    if kind == "vlm" and reference.startswith(JUDGE):
        return f"{JUDGE}{references.resolve(reference.removeprefix(JUDGE))}"
    return references.resolve(reference)


def needs(asked: str) -> list[Need]:
    """What to download for a model of `--model`."""
    if asked.startswith("sentence:"):
        return of_model("text", asked)
    choice = choose(asked)
    towers = choice.row.text if choice.row is not None else ()
    return [*of_model("dual", choice.reference), *(Need(name, files=TEXTS) for name in towers)]


def check(choice: Choice) -> None:
    """Looks at a model's folder, file or tag before hours of work; loads nothing. Raises MetricError."""
    from nein.metrics.loading import check_folder

    if references.offered(choice.asked) is not None:
        return
    where = choice.reference
    if choice.kind != "dual":
        return metrics.check_reference(where.removeprefix(JUDGE))
    prefix = metrics.dual_prefix(where)
    if prefix == "open_clip" or (prefix is None and Path(where, "open_clip_config.json").is_file()):
        from nein.metrics.dual import openclip

        openclip.check(where)
    elif prefix is None:
        check_folder(where)


def load(choice: Choice, config: Any, *, device: str, dtype: str, batch_size: int) -> object:
    """Raises MetricError."""
    if (model := references.offered(choice.asked)) is not None:
        return model
    how: dict[str, Any] = {"device": device, "dtype": dtype}
    if choice.kind == "itm":
        return metrics.load_judge("itm", choice.reference, **how)
    if choice.kind == "vlm":  # judge:REFERENCE, or what only `load_judge` knows, is a judge
        from nein.metrics import choices

        where = choice.reference
        judge = where.removeprefix(JUDGE)
        served = is_served(judge)
        services = Services.of(config, config.cache_dir / "answers.sqlite" if served else None)
        how |= services.options if served else {}
        if judge != where or parse_reference(where).is_code:
            return choices.JudgeChoices(services.keep(metrics.load_judge("vqa", judge, **how)))
        return services.keep(metrics.load_choices(where, batch_size=batch_size, **how))
    return metrics.load_dual(choice.reference, batch_size=batch_size, **how)
