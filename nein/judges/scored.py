"""The run that says which judges are asked, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.config import EvalConfig, ModelsConfig
from nein.benchmarks.nein.runs import RunDir
from nein.engine.errors import UserError
from nein.engine.store import Need
from nein.models import needs


def read_config(path: Path, judges: Mapping[str, str] | None = None) -> tuple[RunDir, EvalConfig]:
    """The first run at or below `path`, and the configuration it was scored with.

    judges  Kind -> reference, in place of the run's own.
    """
    below = runs.find(path)
    if not below:
        raise UserError(f"'{path}' holds no run (no manifest.json); give the folder passed to --out.")
    fields = {item.name for item in dataclasses.fields(EvalConfig)}
    given = dict((below[0].manifest() or {}).get("config", {}))
    named = {item.name for item in dataclasses.fields(ModelsConfig)}
    models = {key: value for key, value in given.pop("models", {}).items() if key in named}
    config = EvalConfig(
        **{k: v for k, v in given.items() if k in fields}, models=ModelsConfig(**models | dict(judges or {}))
    )
    return below[0], config


def needs_of(kind: str, path: Path) -> list[Need]:
    """Of the judge of a kind that the run has."""
    _, config = read_config(path)
    return needs.of_metrics([f"removal_{kind}"], config.models)
