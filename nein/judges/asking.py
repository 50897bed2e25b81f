"""What the judges' commands share: the run that says which judges are asked, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from nein.benchmarks.nein.config import EvalConfig, ModelsConfig
from nein.benchmarks.nein.runs import RunDir
from nein.engine.errors import UserError
from nein.engine.folder import runs_below
from nein.engine.images import ImageError
from nein.loading.references import Need
from nein.models import needs

Item = TypeVar("Item")


def read_config(path: Path, judges: Mapping[str, str] | None = None) -> tuple[RunDir, EvalConfig]:
    """The first run at or below `path`, and the configuration it was scored with.

    judges  Kind -> reference, in place of the run's own.
    """
    below = runs_below(path)
    if not below:
        raise UserError(f"'{path}' holds no run (no manifest.json); give the folder passed to --out.")
    run = RunDir(below[0])
    fields = {item.name for item in dataclasses.fields(EvalConfig)}
    given = dict(run.manifest().get("config", {}))
    named = {item.name for item in dataclasses.fields(ModelsConfig)}
    models = {key: value for key, value in given.pop("models", {}).items() if key in named}
    values = {**{k: v for k, v in given.items() if k in fields}, "models": models | dict(judges or {})}
    return run, pydantic.TypeAdapter(EvalConfig).validate_python(values)


def needs_of(kind: str, path: Path) -> list[Need]:
    """Of the judge of a kind that the run has."""
    _, config = read_config(path)
    return needs.of_metrics([f"removal_{kind}"], config.models)


def decoded(make: Callable[[], Item]) -> Item:
    """Raises UserError for a picture that cannot be read."""
    try:
        return make()
    except ImageError as error:
        raise UserError(f"A picture cannot be read: {error}") from None


def shown(name: str, entry: Mapping[str, Any] | None, unit: str = "%") -> str:
    """A figure as a person reads it; `entry` as `Estimate.as_dict` gives it."""
    if entry is None:
        return f"{name} –"
    ends = "" if entry["low"] is None else f" [{100 * entry['low']:.1f}, {100 * entry['high']:.1f}]"
    return f"{name} {100 * entry['value']:.1f} {unit}{ends} of {entry['n']}"
