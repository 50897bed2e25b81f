"""NegBench's models by name, and how `--model` is read.

A model is a name of `MODELS`, NAME=REFERENCE (that name's label and published figures with other weights), or
a reference as `metrics.load_dual` takes it, or `nano:clip`. `--vlm` takes what `vlm.load` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import metrics
from nein.datasets.negbench.registry import CSV_FILES
from nein.engine.errors import UserError, near_match
from nein.models import references

_CONVERT = "nein negbench convert --architecture ViT-B-32 {file} FOLDER, then --model {name}=FOLDER"


@dataclass(frozen=True)
class Model:
    """A row: a reference, or how to get one.

    published  Which rows of `paper_numbers.csv` are this model's: source -> (model, data of fine-tuning).
    """

    name: str
    reference: str | None = None
    file: str = ""
    published: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def obtain(self) -> str:
        if self.name == "conch":
            return (
                "its weights are given out on request at huggingface.co/MahmoodLab/conch, its code is "
                "github.com/mahmoodlab/CONCH, both for non-commercial research; then --model conch=conch:FILE"
            )
        where = CSV_FILES.replace("the CSV files are at", f"{self.file} is at")
        return f"{where}; {_CONVERT.format(file=Path(self.file).name, name=self.name)}"


def _row(paper: str | None, repository: str | None, data: str = "none") -> dict[str, tuple[str, str]]:
    rows = {"paper_table1": paper, "repo_corrected": repository, "repo_corrected_type": repository}
    return {source: (model, data) for source, model in rows.items() if model}


MODELS: dict[str, Model] = {
    row.name: row
    for row in (
        Model("clip", "open_clip:ViT-B-32/openai", "", _row("CLIP", "CLIP-OpenAI")),
        Model("clip-laion400m", "open_clip:ViT-B-32/laion400m_e32", "", _row(None, "CLIP-Laion400M")),
        # The released scripts build ViT-B-32 without QuickGELU for every tag but openai's.
        Model(
            "clip-laion400m-gelu", "open_clip:ViT-B-32/laion400m_e32#gelu", "", _row(None, "CLIP-Laion400M")
        ),
        Model("clip-datacomp", "open_clip:ViT-B-32/datacomp_xl_s13b_b90k", "", _row(None, "CLIP-datacomp")),
        Model("clip-l", "open_clip:ViT-L-14/laion2b_s32b_b82k", "", _row(None, "CLIP-Laion2B-Large")),
        Model("clip-h", "open_clip:ViT-H-14/laion2b_s32b_b79k", "", _row(None, "CLIP-Laion2B-Huge")),
        Model("negclip", None, "negclip.pth", _row("NegCLIP", "NegCLIP")),
        Model("conclip", None, "conclip_b32_openclip_version.pt", _row(None, "ConCLIP")),
        Model(
            "clip-negfull",
            None,
            "CLIP_CC12M_NegFull_ViT-B-32_lr1e-8_clw0.99_mlw0.01/checkpoint.pt",
            _row("CLIP", "CLIP-OpenAI", "CC12M-NegFull"),
        ),
        Model(
            "negclip-negfull",
            None,
            "NegCLIP_CC12M_NegFull_ViT-B-32_lr1e-8_clw0.99_mlw0.01/checkpoint.pt",
            _row("NegCLIP", "NegCLIP", "CC12M-NegFull"),
        ),
        Model("biomedclip", "open_clip:hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224"),
        Model("conch"),
        Model("siglip", "google/siglip-base-patch16-224"),
        Model("siglip2", "google/siglip2-base-patch16-224"),
    )
}


@dataclass(frozen=True)
class Choice:
    """A model as asked for: nothing is loaded.

    name       As tables show it.
    slug       Its folder.
    reference  What `metrics.load_dual` or `metrics.load_judge` gets.
    kind       "dual" or "vlm".
    row        Its row of `MODELS`, if it has one.
    """

    asked: str
    name: str
    slug: str
    reference: str
    revision: str | None
    kind: str = "dual"
    row: Model | None = None

    @property
    def identity(self) -> str:
        """What decides its results: of an endpoint not where it is."""
        return references.without_address(self.asked)


def choose(asked: str, kind: str = "dual") -> Choice:
    """Raises UserError for a name without weights (with where they are) or a reference that is none."""
    name, equals, given = asked.partition("=")
    row = MODELS.get(name) if kind == "dual" and (equals or name == asked) else None
    if equals and row is None and kind == "dual" and "/" not in name and ":" not in name:
        near = near_match(name, MODELS)
        hint = f"did you mean '{near}'? " if near else ""
        raise UserError(f"There is no model '{name}'; {hint}Names: {', '.join(MODELS)}.")
    if row is None:
        where, revision = _resolve(asked, kind)
        if kind == "vlm" and asked.startswith("openai:"):  # known by its own name: servers move
            label = references.slug(f"openai-{asked.partition('#')[2]}")
            return Choice(asked, label, label, where, revision, kind)
        shown = Path(where).name if Path(where).is_dir() and not asked.startswith("nano:") else asked
        return Choice(asked, shown, references.slug(asked), where, revision, kind)
    if not equals:
        if row.reference is None:
            raise UserError(f"The weights of '{name}' have to be fetched by hand: {row.obtain}.")
        where, revision = _resolve(row.reference, kind)
        return Choice(asked, name, name, where, revision, kind, row)
    where, revision = _resolve(given, kind)
    return Choice(asked, name, f"{name}-{references.slug(given)}", where, revision, kind, row)


def _resolve(reference: str, kind: str) -> tuple[str, str | None]:
    if kind == "dual" and metrics.dual_prefix(reference) is not None:
        return reference, None
    if not reference.startswith("nano:") and kind == "dual":
        path = Path(reference).expanduser()
        if not path.exists() and ("/" not in reference or reference.startswith((".", "/", "~"))):
            near = near_match(reference, MODELS)
            hint = f"did you mean '{near}'? " if near else ""
            raise UserError(
                f"There is no model '{reference}'; {hint}Names: {', '.join(MODELS)}; else give a folder, a "
                "hub id owner/name, open_clip:ARCHITECTURE/TAG, nano:clip, or random."
            )
    return references.resolve(reference)


def check(choice: Choice) -> None:
    """Looks at a model's folder, file or tag and loads nothing: a command with several models must not find
    out about the last of them once it has worked for hours. Hub ids are not asked for.

    Raises MetricError, one sentence.
    """
    from metrics.loading import check_folder, split_reference

    where = choice.reference
    if choice.kind == "vlm":
        if metrics.special_reference(where) is None:
            check_folder(split_reference(where, choice.revision)[0])
        return
    prefix = metrics.dual_prefix(where)
    if prefix == "open_clip" or (prefix is None and Path(where, "open_clip_config.json").is_file()):
        from metrics.dual import openclip

        openclip.check(where)
    elif prefix is None:
        check_folder(split_reference(where, choice.revision)[0])


def weights(reference: str) -> str | None:
    """The digest of a model folder, None for any other reference: a finished run loads nothing that would
    notice replaced weights."""
    from metrics.loading import folder_digest

    folder = Path(reference)
    return folder_digest(folder)[:16] if folder.is_dir() else None


def load(choice: Choice, *, device: str, dtype: str, batch_size: int) -> object:
    """The model, with its weights in memory. Raises MetricError."""
    if choice.kind == "vlm":
        from nein.benchmarks.negbench import vlm

        return vlm.load(
            choice.reference, revision=choice.revision, device=device, dtype=dtype, batch_size=batch_size
        )
    return metrics.load_dual(
        choice.reference, revision=choice.revision, device=device, dtype=dtype, batch_size=batch_size
    )
