"""Sends estimates, tables and images to tensorboard, wandb, trackio and the other trackers of accelerate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.engine import images
from nein.loading.errors import UserError, unknown
from nein.reporting import figures as frames
from nein.reporting import tables
from nein.reporting.tables import Sheet

FOLDER = "tracking"  # in a command's folder, for trackers that write files
#: Tracker that takes a batch of images -> the arguments that name its axes, if it has any.
_LAYOUT: Mapping[str, Mapping[str, str]] = {"tensorboard": {"dataformats": "NHWC"}, "wandb": {}}


def check(trackers: Sequence[str]) -> None:
    """Raises UserError for an unknown tracker, or one that is not installed."""
    if not trackers:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    # A name is a string, or a member of an enumeration.
    supported = [str(getattr(key, "value", key)) for key in LOGGER_TYPE_TO_CLASS]
    installed = [str(getattr(key, "value", key)) for key in get_available_trackers()]
    for name in trackers:
        if name not in supported:
            raise unknown("tracker", name, [*sorted(supported), "none"])
        if name not in installed:
            hint = "pip install -e '.[train]'" if name == "tensorboard" else f"pip install {name}"
            raise UserError(f"The tracker '{name}' is not installed: {hint}, or pass --trackers none.")


def select_plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a configuration that every tracker takes: numbers and strings."""
    return {key: value for key, value in config.items() if isinstance(value, int | float | str)}


def log(
    trackers: Sequence[str],
    out: Path,
    config: Mapping[str, Any],
    figures: pd.DataFrame,
    sheets: Sequence[Sheet] = (),
    pictures: Sequence[Path] = (),
) -> None:
    """Sends the estimates of a command to its trackers, and tables and images to those that take them. An
    estimate is NAME, NAME/low, NAME/high, NAME/unscored; NAME is like "nein/ip2p/results/fid/negative"."""
    from accelerate import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # trackers ask it which process this is
    values: dict[str, float] = {}
    dimensions = [str(name) for name in figures if name not in frames.TRAILING]
    for row in frames.records(figures[figures["value"].notna()]):
        name = "/".join(row[dimension] for dimension in dimensions if row[dimension])
        values[name] = row["value"]
        values |= {f"{name}/{end}": row[end] for end in ("low", "high", "unscored") if row[end] is not None}
    for tracker in trackers:
        tracker_class = LOGGER_TYPE_TO_CLASS[tracker]
        writes_files = tracker_class.requires_logging_directory  # then into OUT/tracking
        opened = tracker_class(FOLDER, str(out)) if writes_files else tracker_class(FOLDER)
        opened.start()
        opened.store_init_configuration(select_plain(config))
        opened.log(values, step=0)
        for sheet in sheets:
            if hasattr(opened, "log_table"):  # of Weights & Biases
                opened.log_table(sheet.title, columns=sheet.columns, data=sheet.rows)
            elif tracker == "tensorboard":
                opened.tracker.add_text(sheet.title, tables.format_markdown([sheet], out.name), 0)
        for path in pictures if tracker in _LAYOUT else ():  # a batch of one, NHWC
            name = path.relative_to(out).with_suffix("").as_posix()
            opened.log_images({name: images.decode(path)[None]}, step=0, **_LAYOUT[tracker])
        opened.finish()
