"""Before and after fine-tuning: what was seen, what was held out, and affirmative instructions.

    python -m nein.train.editor_finetuning.report nano:ip2p runs/finetune/nein-ip2p/model --out runs/report

Negative sentences and "Remove the X." on the samples, "Add a X." on the source pictures, which have no X.
What no training sentence used is read from training.json. Intervals are clustered by source, differences
paired.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from nein import statistics
from nein.benchmarks.nein import figures as run_figures
from nein.benchmarks.nein.config import EvalConfig, GridConfig
from nein.benchmarks.nein.reporting import grid, sections
from nein.benchmarks.nein.runs import RunDir
from nein.config.commands import Command
from nein.config.launch import launch
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Dataset, Plan, Sample, validate_images
from nein.engine import atomic
from nein.engine.errors import UserError, exit_with
from nein.engine.executors import Executor
from nein.metrics import METRICS
from nein.models import editor_choice, references
from nein.models.editor_choice import EditorChoice
from nein.reporting import figures as frames
from nein.reporting import report as reporting
from nein.reporting import tables
from nein.reporting.page import Page, Section
from nein.reporting.scores import ScoreTable
from nein.reporting.tables import Column, Row, Table
from nein.train.editor_finetuning.options import ReportConfig

COMMAND = Command(
    "compare an editor before and after fine-tuning: in distribution, held out, and affirmative instructions",
    "nein.train.editor_finetuning.options:ReportConfig",
    "nein.train.editor_finetuning.report:report",
    shared=True,
)
PRESENCE = ("removal_vqa", "removal_ovd", "retention_vqa", "retention_ovd")
TASKS: dict[str, tuple[str, ...]] = {
    "negative": (*PRESENCE, "l1", "clip_i", "dino"),
    "remove": PRESENCE,
    "add": PRESENCE,
}
#: What counts when a thing was to be added: that it is there.
ADDED = "added"
TASK_NAMES = {"negative": "negative sentence", "remove": '"Remove the X."', "add": '"Add a X." (source)'}


class HeldOut(NamedTuple):
    """What no training sentence used."""

    objects: frozenset[str] = frozenset()
    templates: frozenset[int] = frozenset()

    def group(self, sample: Sample, task: str) -> str:
        """The row of the report that a sample counts in."""
        new_object = sample.object in self.objects
        if task != "negative":
            return "unseen objects" if new_object else "seen objects"
        new_template = sample.template in self.templates
        if new_object and new_template:
            return "both unseen"
        return "unseen objects" if new_object else "unseen templates" if new_template else "in distribution"


GROUPS = ("in distribution", "unseen objects", "unseen templates", "both unseen", "seen objects")
_TRAINING = {"data?": {"hold_out_objects?": [str], "hold_out_templates?": [int]}}


def held_out(folder: Path) -> HeldOut:
    """From the `training.json` that the fine-tuning command writes; nothing held out where there is none."""
    file = folder / "training.json"
    if not file.is_file():
        return HeldOut()
    data = atomic.read_json(file, _TRAINING).get("data", {})
    return HeldOut(frozenset(data.get("hold_out_objects", ())), frozenset(data.get("hold_out_templates", ())))


def values(runs: Mapping[str, RunDir], metric: str, task: str) -> dict[str, float | None]:
    """Sample id -> value; of "Add a X." what counts is that X is there."""
    scores = {row["id"]: row["value"] for row in runs[task].scores() if row["metric"] == metric}
    if task == "add" and metric.startswith("removal"):
        return {key: None if value is None else 1.0 - value for key, value in scores.items()}
    return scores


def figures(
    name: str, before: Mapping[str, RunDir], after: Mapping[str, RunDir], dataset: Dataset, held: HeldOut
) -> pd.DataFrame:
    """The figures of the editor `name`: of every task, group and metric "before", "after" and their paired
    "difference", in `statistic`."""
    clusters = {sample.id: sample.source_id for sample in dataset.samples}
    rows: list[dict[str, Any]] = []
    for task, metrics in TASKS.items():
        groups: dict[str, set[str]] = {}
        for sample in dataset.samples:
            groups.setdefault(held.group(sample, task), set()).add(sample.id)
        for group, metric in itertools.product((name for name in GROUPS if name in groups), metrics):
            first, second = (
                {key: v for key, v in values(runs, metric, task).items() if key in groups[group]}
                for runs in (before, after)
            )
            unit = run_figures.unit(metric)
            named = metric.replace("removal", ADDED) if task == "add" else metric
            what: dict[str, Any] = {"model": name, "task": task, "group": group, "metric": named}
            for statistic, column in (("before", first), ("after", second)):
                unscored = sum(value is None for value in column.values())
                rows_of = ({"id": k, "source": clusters[k], "value": v} for k, v in column.items())
                estimate = run_figures.estimate(ScoreTable.of(rows_of), metric)
                rows.append(
                    frames.figure(estimate, unit=unit, unscored=unscored, statistic=statistic, **what)
                )
            difference = statistics.paired_difference(second, first, clusters, METRICS[metric].span)
            unit = "points" if unit == "%" else unit
            rows.append(frames.figure(difference, unit=unit, statistic="difference", **what))
    return frames.label(frames.frame(rows), benchmark="nein")


def _heading(metric: str) -> str:
    title = sections.heading(metric.replace(ADDED, "removal"))
    return title.replace("Removal", "Added") if metric.startswith(ADDED) else title


def table(name: str, before: str, held: HeldOut) -> Table:
    """The specification of the table of one editor; `before` is what it was made from."""
    objects = ", ".join(sorted(held.objects)) or "none"
    templates = ", ".join(str(t) for t in sorted(held.templates)) or "none"
    return Table(
        name,
        f"{name}, before: {before}",
        (Row("task", "instruction", TASK_NAMES), Row("group"), Row("metric", names=_heading)),
        (
            Column("n", {"statistic": "after"}, tables.count()),
            Column("before", {"statistic": "before"}),
            Column("after", {"statistic": "after"}),
            Column("difference", {"statistic": "difference"}, tables.estimate("reach")),
            Column("unscored", {"statistic": ("before", "after")}, tables.sum_of("unscored")),
        ),
        {"model": name},
        f"Held out of training: objects {objects}; templates {templates}. Difference: after minus before, "
        "paired by sample. Unscored: before + after.",
    )


def evaluate(
    choice: EditorChoice, dataset: Dataset, out: Path, config: EvalConfig, executor: Executor
) -> dict[str, RunDir]:
    """Edits and scores all tasks with the benchmark's stages; task -> run. Resumes what is there."""
    from nein.train.editor_finetuning.validate import assess, swapped

    device = executor.device
    editor = choice.load(device=device, dtype=config.dtype, batch_size=config.block_size)
    runs = {}
    for task, names in TASKS.items():
        chosen = swapped(dataset) if task == "add" else dataset
        plan = Plan(chosen, tuple(range(len(chosen.samples))), config.block_size)
        runs[task] = RunDir(out / "swapped" if task == "add" else out, choice.slug, task)
        assess(editor, runs[task], plan, names, config, executor)
    return runs


def report(config: ReportConfig, executor: Executor) -> str | None:
    """Writes table.md, figures.csv and grid.png; the main process returns the tables. Raises UserError."""
    settings = EvalConfig.of(
        preset=config.preset, editor=[config.before, *config.after], data=config.data, split=config.split,
        device=config.device,
    )  # fmt: skip
    choices = editor_choice.resolve_editors(settings.editor, settings.preset, settings.editor_overrides())
    if len(choices) < 2:
        raise UserError("BEFORE and AFTER are the same editor; name two.")
    dataset = loading.load(settings.data, split=settings.split)
    samples = dataset.samples[: config.limit]
    dataset = Dataset(samples, dataset.origin, dataset.records_sha256)
    if executor.is_main:
        validate_images(samples, f"The data set '{config.data}'")
    out = config.out_dir
    first, *others = [evaluate(choice, dataset, out, settings, executor) for choice in choices]
    if not executor.is_main:
        return None
    parts, shown = [], []
    for choice, runs in zip(choices[1:], others, strict=True):
        held = held_out(Path(references.resolve(choice.checkpoint or choice.asked)[0]))
        parts.append(figures(choice.slug, first, runs, dataset, held))
        shown.append(Section(choice.slug, choice.slug, (table(choice.slug, choices[0].slug, held),)))
    page = Page("Before and after fine-tuning", sections=shown)
    reporting.write(out, frames.concat(parts), page, ("md", "csv"))
    ids = [s.id for s in dataset.samples[:: max(1, len(dataset.samples) // 6)]][:6]
    pictured = [runs["negative"].path for runs in (first, *others)]
    grid.grid(GridConfig(runs=pictured, ids=ids, out=out / "grid.png"))
    return (out / "table.md").read_text(encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    return launch("python -m nein.train.editor_finetuning.report", COMMAND, argv)


if __name__ == "__main__":
    exit_with(main)
