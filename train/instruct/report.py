"""Before and after fine-tuning: what was seen, what was held out, and affirmative instructions.

    python -m train.instruct.report --before nano:ip2p --after runs/finetune/nein-ip2p/model --out runs/report

Three tasks: the negative sentences of NeIn and "Remove the X." on the samples, and "Add a X." on the source
pictures, which have no X. The groups come from the record of the fine-tuned model (training.json): objects
and templates that no training sentence used. Every figure has a 95 % interval clustered by source picture;
every difference is paired by sample.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from metrics import METRICS, Metric
from nein import statistics
from nein.benchmarks.nein import figures, grid
from nein.benchmarks.nein.config import EvalConfig, GridConfig
from nein.benchmarks.nein.plan import Plan
from nein.benchmarks.nein.runs import RunDir
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Dataset, Sample, validate_images
from nein.engine import atomic, processes
from nein.engine.errors import UserError
from nein.models import editor_choice, references
from nein.models.editor_choice import EditorChoice
from nein.reporting import format
from nein.reporting.tables import pipes

PRESENCE = ("removal_vqa", "removal_ovd", "retention_vqa", "retention_ovd")
TASKS: dict[str, tuple[str, ...]] = {
    "negative": (*PRESENCE, "l1", "clip_i", "dino"),
    "remove": PRESENCE,
    "add": PRESENCE,
}
TASK_NAMES = {"negative": "negative sentence", "remove": '"Remove the X."', "add": '"Add a X." (source)'}


@dataclass(frozen=True)
class HeldOut:
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


def held_out(folder: Path) -> HeldOut:
    """From the `training.json` that the fine-tuning command writes; nothing held out where there is none."""
    file = folder / "training.json"
    if not file.is_file():
        return HeldOut()
    data = atomic.read_json(file).get("data", {})
    return HeldOut(frozenset(data.get("hold_out_objects", ())), frozenset(data.get("hold_out_templates", ())))


def values(runs: Mapping[str, RunDir], metric: str, task: str) -> dict[str, float | None]:
    """Sample id -> value on a task; of "Add a X." what counts is that X is there, not that it is gone."""
    scores = {row["id"]: row["value"] for row in runs[task].read_scores() if row["metric"] == metric}
    if task == "add" and metric.startswith("removal"):
        return {key: None if value is None else 1.0 - value for key, value in scores.items()}
    return scores


def rows(
    before: Mapping[str, RunDir], after: Mapping[str, RunDir], dataset: Dataset, held: HeldOut
) -> list[dict[str, Any]]:
    """One row per task, group and metric: n, before, after and difference as `statistics.Estimate`."""
    clusters = {sample.id: sample.source_id for sample in dataset.samples}
    made = []
    for task, metrics in TASKS.items():
        groups: dict[str, set[str]] = {}
        for sample in dataset.samples:
            groups.setdefault(held.group(sample, task), set()).add(sample.id)
        for group in (name for name in GROUPS if name in groups):
            for metric in metrics:
                first, second = (
                    {key: v for key, v in values(runs, metric, task).items() if key in groups[group]}
                    for runs in (before, after)
                )
                made.append(
                    {
                        "task": task,
                        "group": group,
                        "metric": metric,
                        "before": figures.estimate(metric, first, clusters),
                        "after": figures.estimate(metric, second, clusters),
                        "difference": statistics.paired_difference(
                            second, first, clusters, METRICS[metric].span
                        ),
                        "unscored": [sum(v is None for v in found.values()) for found in (first, second)],
                    }
                )
    return made


def markdown(compared: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table, metrics in their printed units."""
    table = []
    for row in compared:
        info = METRICS[row["metric"]]
        title = info.title
        if row["task"] == "add" and row["metric"].startswith("removal"):
            title = title.replace("Removal", "Added")
        table.append(
            [
                TASK_NAMES[row["task"]],
                row["group"],
                format.heading(title, info.higher_is_better),
                row["after"].n if row["after"] else 0,
                *(_figure(row[key], info) for key in ("before", "after")),
                _signed(row["difference"], info),
                "/".join(str(n) for n in row["unscored"]) if any(row["unscored"]) else "",
            ]
        )
    heads = ["instruction", "group", "metric", "n", "before", "after", "difference", "unscored"]
    return pipes(table, heads)


def _figure(estimate: statistics.Estimate | None, info: Metric) -> str:
    return format.text({**estimate.as_dict(), "unit": _unit(info)} if estimate else None)


def _signed(difference: statistics.Estimate | None, info: Metric) -> str:
    if difference is None:
        return format.DASH
    text = format.number(difference.value, _unit(info), sign=True)
    if difference.low is None or difference.high is None:
        return text
    return f"{text} ± {format.number((difference.high - difference.low) / 2, _unit(info))}"


def _unit(info: Metric) -> str:
    return "" if info.scale == 1 else "%"


def frame(name: str, compared: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rows with every estimate in three columns, not scaled; `name` of the editor first."""
    lines = []
    for row in compared:
        line = {"editor": name, **{key: row[key] for key in ("task", "group", "metric")}}
        line["n"] = row["after"].n if row["after"] else 0
        for key in ("before", "after", "difference"):
            for field, end in (("value", ""), ("low", "_low"), ("high", "_high")):
                line[f"{key}{end}"] = getattr(row[key], field, None)
        lines.append(line)
    return pd.DataFrame(lines)


def evaluate(
    choice: EditorChoice, dataset: Dataset, out: Path, config: EvalConfig, place: processes.Processes
) -> dict[str, RunDir]:
    """Edits and scores all tasks with the benchmark's stages; task -> run. Resumes what is there."""
    from train.instruct.validate import assess, swapped

    device = place.device(config.device)
    editor = choice.load(device=device, dtype=config.dtype, batch_size=config.batch_size)
    runs = {}
    for task, names in TASKS.items():
        chosen = swapped(dataset) if task == "add" else dataset
        plan = Plan(chosen, tuple(range(len(chosen.samples))), config.batch_size)
        runs[task] = RunDir(out / "swapped" if task == "add" else out, choice.slug, task)
        assess(editor, runs[task], plan, names, config, place, device, workers=place.workers(device))
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(sys.argv[1:] if argv is None else argv)
    line = ["--preset", options.preset, "--editor", ",".join([options.before, *options.after])]
    line += ["--data", options.data, "--split", options.split, "--device", options.device]
    config = EvalConfig.parse(line)
    choices = editor_choice.resolve_editors(config.editor, config.preset, config.editor_overrides())
    if len(choices) < 2:
        raise UserError("--before and --after are the same editor; name two.")
    dataset = loading.load(config.data, split=config.split)
    samples = dataset.samples[: options.limit]
    dataset = Dataset(samples, dataset.origin, dataset.records_sha256)
    place = processes.from_environment()
    try:
        if place.is_main:
            validate_images(samples, f"The data set '{config.data}'")
        first, *others = [evaluate(choice, dataset, options.out, config, place) for choice in choices]
        if place.is_main:
            write(choices, first, others, dataset, options.out)
    finally:
        place.close()
    return 0


def write(
    choices: Sequence[EditorChoice],
    first: Mapping[str, RunDir],
    others: Sequence[Mapping[str, RunDir]],
    dataset: Dataset,
    out: Path,
) -> None:
    """Writes report.md, report.csv and grid.png below `out`, and prints the report."""
    text, parts = [], []
    for choice, runs in zip(choices[1:], others, strict=True):
        held = held_out(Path(references.resolve(choice.checkpoint or choice.asked)[0]))
        compared = rows(first, runs, dataset, held)
        names = ", ".join(sorted(held.objects)) or "none"
        templates = ", ".join(str(t) for t in sorted(held.templates)) or "none"
        text += [f"## {choice.slug}, before: {choices[0].slug}", ""]
        text += [f"Held out of training: objects {names}; templates {templates}.", "", markdown(compared), ""]
        parts.append(frame(choice.slug, compared))
    atomic.write_text(out / "report.md", "\n".join(text))
    atomic.write_text(out / "report.csv", pd.concat(parts).to_csv(index=False))
    ids = [s.id for s in dataset.samples[:: max(1, len(dataset.samples) // 6)]][:6]
    shown = [runs["negative"].path for runs in (first, *others)]
    grid.grid(GridConfig(runs=shown, ids=ids, out=out / "grid.png"))
    print("\n".join(text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m train.instruct.report",
        description="Before and after fine-tuning: in distribution, held out, and affirmative instructions.",
    )
    parser.add_argument("--before", required=True, help="the editor as it was: name, folder or hub id")
    parser.add_argument(
        "--after", required=True, nargs="+", help="what became of it, by one recipe or several"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/finetune-report"), help="folder of the report")
    parser.add_argument(
        "--preset", default="nano", help="judges and sampler, as in nein eval (default: nano)"
    )
    parser.add_argument("--data", default="nano", help="as in nein eval (default: nano)")
    parser.add_argument("--split", default="val", help="which split (default: val)")
    parser.add_argument("--limit", type=int, default=None, help="only the first N samples")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    return parser


if __name__ == "__main__":
    from nein.engine.exits import exit_with

    exit_with(main)
