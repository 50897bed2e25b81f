"""What a command reads from elsewhere, by the tables that load it: for `nein fetch`.

Every function gives `Need`s of references as they stand in options, and none for what is on
this machine, embedded, or behind an endpoint. Nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nein import editors, metrics
from nein.datasets import hub
from nein.editors.presets import DEFAULT_ROWS, PAPER_EDITORS
from nein.loading.digests import Json
from nein.loading.references import Need, is_local
from nein.models import references
from nein.models.editor_choice import choose_editor


def of_model(kind: str, reference: str | None) -> list[Need]:
    """Of a model of `metrics`: an encoder or judge by its kind, "dual", "text", or "llm" and "choices", which
    are repositories of transformers."""
    if not reference or references.offered(reference) is not None:
        return []
    return metrics.origins(kind, references.resolve(reference))


def of_metrics(names: Sequence[str], models: Any) -> list[Need]:
    """Of the encoders, judges and own networks that metrics ask; `models` has a reference per kind."""
    kinds = dict.fromkeys(kind for name in names for kind in metrics.METRICS[name].models)
    needs = [need for kind in kinds for need in of_model(kind, getattr(models, kind, None))]
    return needs + [need for name in names for need in metrics.METRICS[name].origins]


def of_editors(names: Sequence[str], preset: str, overrides: Json | None = None) -> list[Need]:
    """Of editors as `--editor` names them; `all`: the paper's that have a checkpoint to download."""
    rows = [editors.PRESETS.get(DEFAULT_ROWS.get((editor, preset), "")) for editor in PAPER_EDITORS]
    published = [row.editor for row in rows if row is not None and row.checkpoint is not None]
    needs: list[Need] = []
    for name in (one for asked in names for one in (published if asked == "all" else [asked])):
        choice = choose_editor(name, preset, overrides or {})
        if choice.made is None:
            needs += editors.origins(choice.row, choice.checkpoint, choice.revision, **choice.options)
    return needs


def of_remedies(names: Sequence[str], vqa: str) -> list[Need]:
    """Of arms before and behind editors; `vqa`: the run's judge, by which best-of:N:removal chooses."""
    needs: list[Need] = []
    for name in names:
        kind, _, model = name.split(":", 2) if name.count(":") > 1 else (name, "", "")
        if kind == "rewrite":
            needs += of_model("llm", model)
        elif kind == "best-of" and model == "removal":
            needs += of_model("vqa", vqa)
        elif kind == "best-of":
            needs += of_model("choices", model.partition(":")[2])
    return needs


def of_data(source: str | None) -> list[Need]:
    """Of what `--data` names."""
    reference = hub.reference(source or "")
    if reference is None or is_local(reference.name):
        return []
    return [Need(reference.name, reference.revision, "dataset")]
