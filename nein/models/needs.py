"""Downloads of a command, for `nein fetch`, by the tables that load them.

Every function gives the `Need`s of references in options: none for models that are on this machine, embedded,
or behind an endpoint. Loads nothing.
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


def model_needs(kind: str, reference: str | None) -> list[Need]:
    """Needs of a model of `metrics`: of an encoder or judge by its kind, "dual" or "text"; of "llm" and
    "choices", which are repositories of transformers."""
    if not reference or references.get_object(reference) is not None:
        return []
    return metrics.origins(kind, references.resolve(reference))


def metric_needs(names: Sequence[str], models: Any) -> list[Need]:
    """Needs of the models and networks of metrics; `models` has a reference per kind."""
    kinds = dict.fromkeys(kind for name in names for kind in metrics.METRICS[name].models)
    needs = [need for kind in kinds for need in model_needs(kind, getattr(models, kind, None))]
    return needs + [need for name in names for need in metrics.METRICS[name].origins]


def editor_needs(names: Sequence[str], preset: str, overrides: Json | None = None) -> list[Need]:
    """Needs of editors of `--editor`; `all`: the paper's editors with a checkpoint to download."""
    rows = [editors.PRESETS.get(DEFAULT_ROWS.get((editor, preset), "")) for editor in PAPER_EDITORS]
    published = [row.editor for row in rows if row is not None and row.checkpoint is not None]
    needs: list[Need] = []
    for text in names:
        for name in published if text == "all" else [text]:
            choice = choose_editor(name, preset, overrides or {})
            if choice.made is None:
                needs += editors.origins(choice.row, choice.checkpoint, choice.revision, **choice.options)
    return needs


def remedy_needs(names: Sequence[str], vqa: str) -> list[Need]:
    """Needs of remedies of editors; vqa: the run's judge, by which best-of:N:removal chooses."""
    needs: list[Need] = []
    for name in names:
        kind, _, model = name.split(":", 2) if name.count(":") > 1 else (name, "", "")
        if kind == "rewrite":
            needs += rewriter_needs(name.partition(":")[2])
        elif kind == "best-of" and model == "removal":
            needs += model_needs("vqa", vqa)
        elif kind == "best-of":
            needs += model_needs("choices", model.partition(":")[2])
    return needs


def rewriter_needs(reference: str) -> list[Need]:
    """Needs of the model that a rewriter asks, by text or with the image."""
    kind, _, model = reference.partition(":")
    kinds = {"llm": "llm", "flux2": "choices", "flux3": "choices"}
    return model_needs(kinds[kind], model) if kind in kinds else []


def data_needs(source: str | None) -> list[Need]:
    reference = hub.reference(source or "")
    if reference is None or is_local(reference.name):
        return []
    return [Need(reference.name, reference.revision, "dataset")]
