"""Finds and loads the models of `nein negbench`: the table `MODELS`, then a model by name or reference.

A model is a name of `MODELS`, NAME=REFERENCE (that row's published numbers with other weights), or a
reference as `metrics.load_dual`, `metrics.load_choices` or `metrics.load_judge` ("itm") takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nein import metrics
from nein.datasets.negbench.registry import CSV_FILES
from nein.loading.errors import UserError, near_match
from nein.loading.references import TEXTS, Need, is_local, is_served, load_attribute, parse_reference
from nein.metrics import choices
from nein.models import references
from nein.models.cached import Services
from nein.models.needs import model_needs
from nein.models.references import JUDGE
from nein.models.remedies import encoders


@dataclass(frozen=True)
class ModelRow:
    """A row of `MODELS`: a reference, or how to obtain the weights."""

    name: str
    reference: str | None = None
    file: str = ""  # the released checkpoint, to be converted
    published: Mapping[str, str] = field(default_factory=dict)  # source of paper_numbers.csv -> its row there
    text: tuple[str, ...] = ()  # repositories with configuration and tokenizer of its text tower
    at: str = ""  # where `file` is; "": with NegBench's. The others are converted with QuickGELU

    @property
    def obtain(self) -> str:
        """Where the weights are and how to convert them."""
        if self.name == "conch":
            return (
                "its weights are given out on request at huggingface.co/MahmoodLab/conch, its code is "
                "github.com/mahmoodlab/CONCH, both for non-commercial research; then in Python "
                "nein.negbench(OBJECT), OBJECT with encode_image and encode_text"
            )
        name = Path(self.file).name
        location, option = CSV_FILES.replace("the CSV files are at", f"{self.file} is at"), ""
        if self.at:
            location, option = f"{name} is at {self.at}", "--quick-gelu "
        convert = f"nein negbench convert --architecture ViT-B-32 {option}{name} FOLDER"
        return f"{location}; {convert}, then --model {self.name}=FOLDER"


#: Sources of paper_numbers.csv.
_TABLE_1, _FIGURES, _BASE, _SCALING = "paper_table1", "paper_figures", "repo_baseline", "repo_scaling"
_TUNED = "repo_finetuned"
# Published numbers of rows below.
_LAION = {_BASE: "CLIP-Laion400M", _SCALING: "CLIP-Laion400M-Base", _FIGURES: "CLIP-Laion400M"}
_DATACOMP = dict.fromkeys((_BASE, _FIGURES), "CLIP-datacomp")
_CLIP_NEGFULL = {_TABLE_1: "CLIP + CC12M-NegFull", _TUNED: "CLIP-OpenAI + CC12M-NegFull"}
_NEGCLIP_NEGFULL = dict.fromkeys((_TABLE_1, _TUNED), "NegCLIP + CC12M-NegFull")
_NEGFULL = "CLIP_CC12M_NegFull_ViT-B-32_lr1e-8_clw0.99_mlw0.01/checkpoint.pt"
_BIOMED = "open_clip:hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"
_BERT = "microsoft/BiomedNLP-BiomedBERT-base-uncased-abstract"
_ROWS = (
    ModelRow("clip", "open_clip:ViT-B-32/openai", "", {_TABLE_1: "CLIP", _BASE: "CLIP-OpenAI"}),
    # The paper does not say which of two epochs its figures show; the released script has e31.
    ModelRow("clip-laion400m", "open_clip:ViT-B-32/laion400m_e32", "", _LAION),
    # The released scripts build ViT-B-32 without QuickGELU for every tag but openai's.
    ModelRow("clip-laion400m-gelu", "open_clip:ViT-B-32/laion400m_e32#gelu", "", _LAION),
    ModelRow("clip-datacomp", "open_clip:ViT-B-32/datacomp_xl_s13b_b90k", "", _DATACOMP),
    ModelRow("clip-l", "open_clip:ViT-L-14/laion2b_s32b_b82k", "", {_SCALING: "CLIP-Laion2B-Large"}),
    ModelRow("clip-h", "open_clip:ViT-H-14/laion2b_s32b_b79k", "", {_SCALING: "CLIP-Laion2B-Huge"}),
    ModelRow("negclip", None, "negclip.pth", dict.fromkeys((_TABLE_1, _BASE, _FIGURES), "NegCLIP")),
    ModelRow("conclip", None, "conclip_b32_openclip_version.pt", dict.fromkeys((_BASE, _FIGURES), "ConCLIP")),
    ModelRow("clip-negfull", None, _NEGFULL, _CLIP_NEGFULL),
    ModelRow("negclip-negfull", None, f"Neg{_NEGFULL}", _NEGCLIP_NEGFULL),
    # ViT-B-32 of each; the authors give out ViT-B-16 and ViT-L-14, too, which convert in the same way.
    ModelRow("conclip-authors", None, "conclip_vit_b32.pt", at="a link of github.com/jaisidhsingh/CoN-CLIP"),
    ModelRow("negationclip", None, "ViT-B-32.pt", at="huggingface.co/jerryray/negationclip"),
    ModelRow("biomedclip", _BIOMED, "", {_FIGURES: "BioMedCLIP"}, text=(_BERT,)),
    ModelRow("conch", published={_FIGURES: "CONCH"}),
    ModelRow("siglip", "google/siglip-base-patch16-224"),
    ModelRow("siglip2", "google/siglip2-base-patch16-224"),
)
MODELS: dict[str, ModelRow] = {row.name: row for row in _ROWS}


@dataclass(frozen=True)
class Choice:
    """A model that the command names; nothing is loaded."""

    asked: str  # as the command gives it
    name: str  # as tables show it
    slug: str  # its folder
    reference: str  # for `metrics.load_dual` or `metrics.load_judge`
    kind: str = "dual"  # encodes; "vlm": answers; "itm": scores an image with a sentence; "log": has answered
    row: ModelRow | None = None  # of `MODELS`
    remedy: str = ""  # around it (`nein.models.remedies.encoders`)


def choose(model: str, kind: str = "dual") -> Choice:
    """The model behind a name or reference. Raises UserError for a name without weights, or neither."""
    if references.get_object(model) is not None:
        return Choice(model, name=model, slug=model, reference=model, kind=kind)
    label, reference = references.split_label(model)  # NAME=REFERENCE
    if kind == "log":
        name = label or Path(reference).stem
        return Choice(model, name, references.slugify(name), reference, kind)
    row = MODELS.get(label or model) if kind == "dual" else None
    if label is not None and row is None:
        return replace(choose(reference, kind), asked=model, name=label, slug=label)
    if label is not None:  # a row with other weights
        slug = f"{label}-{references.slugify(reference)}"
        return Choice(model, label, slug, _resolve(reference, kind), kind, row)
    if row is not None:
        if row.reference is None:
            raise UserError(f"The weights of '{model}' must be downloaded by hand: {row.obtain}.")
        return Choice(model, model, model, _resolve(row.reference, kind), kind, row)

    # A reference alone: a served model is named by its URL, a folder by its name.
    location = _resolve(model, kind)
    served_name = references.slugify_served(model) if kind == "vlm" else None
    if served_name is not None:
        return Choice(model, served_name, served_name, location, kind)
    name = Path(location).name if Path(location).is_dir() and not model.startswith("nano:") else model
    return Choice(model, name, references.slugify(model), location, kind)


def _resolve(reference: str, kind: str) -> str:
    """The reference with its path or weights found. Raises UserError for an unknown name."""
    if kind == "dual" and metrics.dual_prefix(reference) is not None:
        return reference
    form = parse_reference(reference).kind
    if kind == "dual" and not (form in ("embedded", "hub", "attribute") or is_local(reference)):
        near = near_match(reference, MODELS)
        hint = f"; did you mean '{near}'?" if near else "."
        forms = "a folder, a hub id owner/name, open_clip:ARCHITECTURE/TAG, nano:clip, random"
        raise UserError(f"Unknown model '{reference}'{hint} Allowed: {', '.join(MODELS)}, {forms}.")
    judge = JUDGE if kind == "vlm" and reference.startswith(JUDGE) else ""
    return judge + references.resolve(reference.removeprefix(judge))


def add_remedy(choice: Choice, remedy: str) -> Choice:
    """The model with a remedy around it, under a name of its own. Raises UserError."""
    if not remedy:
        return choice
    encoders.parse(remedy)
    name, slug = f"{choice.name}+{remedy}", f"{choice.slug}+{re.sub(r'[^A-Za-z0-9.]+', '-', remedy)}"
    return replace(choice, name=name, slug=slug, row=None, remedy=remedy)


def needs(model: str) -> list[Need]:
    """The downloads of a model of `--model`."""
    if model.startswith("sentence:"):
        return model_needs("text", model)
    choice = choose(model)
    towers = choice.row.text if choice.row is not None else ()
    return [*model_needs("dual", choice.reference), *(Need(name, files=TEXTS) for name in towers)]


def check(choice: Choice) -> None:
    """Checks a model's folder, file or tag before hours of work; loads nothing. Raises MetricError."""
    from nein.metrics.loading import check_folder

    if choice.kind == "log" or references.get_object(choice.asked) is not None:
        return
    location = choice.reference
    if choice.kind != "dual":
        return metrics.check_reference(location.removeprefix(JUDGE))
    prefix = metrics.dual_prefix(location)
    if prefix == "open_clip" or (prefix is None and Path(location, "open_clip_config.json").is_file()):
        from nein.metrics.dual import openclip

        openclip.check(location)
    elif parse_reference(location).kind == "attribute":
        load_attribute(location)
    elif prefix is None:
        check_folder(location)


def load(choice: Choice, config: Any, device: str) -> object:
    """Loads a model of the kind "dual", "vlm" or "itm". Raises MetricError."""
    if (model := references.get_object(choice.asked)) is not None:
        return model
    reference, options = choice.reference, dict[str, Any](device=device, dtype=config.dtype)
    if choice.kind == "itm":
        return metrics.load_judge("itm", reference, **options)
    if choice.kind == "dual":
        encoder = metrics.load_dual(reference, batch_size=config.batch_size, **options)
        if "image" not in getattr(encoder, "modalities", ("image",)):
            advice = "give it to nein negbench analyse instead"
            raise UserError(f"'{reference}' encodes sentences alone; {advice}.")
        return encoder
    # "vlm": judge:REFERENCE, and code, which only `load_judge` knows, is a judge that chooses.
    judge = reference.removeprefix(JUDGE)
    served = is_served(judge)
    services = Services.create(config, config.cache_dir / "answers.sqlite" if served else None)
    if served:
        options |= services.options
    if judge != reference or parse_reference(reference).is_code:
        return choices.JudgeChoices(services.keep(metrics.load_judge("vqa", judge, **options)))
    return services.keep(metrics.load_choices(reference, batch_size=config.batch_size, **options))
