"""Lists what `nein fetch` has to download for the models, editors, remedies and data that a command names.

Every function maps references to `Need`s (downloads) and loads no model. A model that is on this machine,
embedded, or behind an endpoint has none.
"""

from __future__ import annotations

import itertools
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
    """Needs of one model. kind: "dual", "text", an encoder or a judge of `metrics`; or "llm" or "choices",
    for repositories of transformers."""
    if not reference or references.get_object(reference) is not None:
        return []
    return metrics.origins(kind, references.resolve(reference))


def metric_needs(names: Sequence[str], models: Any) -> list[Need]:
    """Needs of the models and networks of metrics. models: has an attribute per kind, its reference."""
    rows = [metrics.METRICS[name] for name in names]
    needs: list[Need] = []
    for kind in dict.fromkeys(kind for row in rows for kind in row.models):
        needs += model_needs(kind, getattr(models, kind, None))
    for row in rows:
        needs += row.origins
    return needs


def editor_needs(names: Sequence[str], preset: str, overrides: Json | None = None) -> list[Need]:
    """Needs of editors of `--editor`; "all": the paper's editors with a checkpoint to download."""
    if "all" in names:
        rows = [editors.PRESETS.get(DEFAULT_ROWS.get((editor, preset), "")) for editor in PAPER_EDITORS]
        published = [row.editor for row in rows if row is not None and row.checkpoint is not None]
        expanded = [published if name == "all" else [name] for name in names]
        names = list(itertools.chain(*expanded))
    needs: list[Need] = []
    for name in names:
        choice = choose_editor(name, preset, overrides or {})
        if choice.instance is None:  # not in memory, not a folder of edits
            needs += editors.find_needs(choice.editor, choice.checkpoint, choice.revision, **choice.options)
    return needs


def remedy_needs(names: Sequence[str], vqa: str) -> list[Need]:
    """Needs of remedies of editors: "rewrite:REWRITER", "best-of:N:removal", "best-of:N:JUDGE:MODEL".
    vqa: the run's judge, by which best-of:N:removal chooses."""
    needs: list[Need] = []
    for name in names:
        remedy, _, argument = name.partition(":")
        if remedy == "rewrite":
            needs += rewriter_needs(argument)
        elif remedy == "best-of":
            _, _, judge = argument.partition(":")  # N:removal or N:JUDGE:MODEL
            model = judge.partition(":")[2]
            needs += model_needs("vqa", vqa) if judge == "removal" else model_needs("choices", model)
    return needs


def rewriter_needs(reference: str) -> list[Need]:
    """Needs of the model that a rewriter asks: "llm:MODEL" by text, "flux2:MODEL" and "flux3:MODEL" with the
    image. Other rewriters need none."""
    rewriter, _, model = reference.partition(":")
    kinds = {"llm": "llm", "flux2": "choices", "flux3": "choices"}  # rewriter -> kind of its model
    return model_needs(kinds[rewriter], model) if rewriter in kinds else []


def data_needs(source: str | None) -> list[Need]:
    """Needs of `--data`: a data set of the hub ("hub:OWNER/NAME"), or none."""
    reference = hub.parse(source or "")
    if reference is None or is_local(reference.name):
        return []
    return [Need(reference.name, reference.revision, "dataset")]
