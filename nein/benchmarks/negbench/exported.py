"""A finished run of NegBench for other programs: a model on a data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negbench.folder import Asked, ResultsDir, sets_of
from nein.benchmarks.negbench.retrieval import KS
from nein.benchmarks.negbench.scores import TEXT_TO_IMAGE
from nein.datasets.negbench.records import AFFIRMATION, NEGATED, NEGATION, ORIGINAL, ChoiceTask
from nein.engine.folder import Folder
from nein.reporting import figures as frames
from nein.reporting import interchange
from nein.reporting.interchange import Exported, Result, Sample, public

LETTERS = "ABCDEFGH"
_SHARES = ("accuracy", "recall", "satisfied", *BASELINES)


def read(path: Path) -> Exported:
    """The run in a folder OUT/<model>/<data set>."""
    manifest = public(Folder(path, "answers").manifest())
    summary, config = manifest.get("summary", {}), manifest.get("config", {})
    figures = frames.read(path / "figures.csv")
    results = []
    for row in frames.records(figures):
        if row["value"] is not None and row["metric"].partition("@")[0] in _SHARES:
            words = [row.get(name) for name in ("kind", "direction", "type", "template")]
            shown = "".join(f", {str(word).replace('_', ' ')}" for word in words if word)
            title = f"{row['metric'].capitalize()}, {row['task']} ({row['variant']}){shown}"
            results.append(interchange.share(_key(row), row, title))
    data = {key: manifest["data"].get(key) for key in ("name", "records_sha256")}
    return Exported(
        "negbench", f"NegBench {summary.get('title', '')}", str(manifest["name"]), str(data["name"]),
        str(manifest["identity"]["model"]), data, None, str(config.get("preset")),
        str(summary.get("protocol")),
        [*results, *_gaps(figures)],
        lambda: _samples(path), manifest, path,
    )  # fmt: skip


def _key(row: Mapping[str, Any]) -> str:
    parts = (
        row.get(name, "") for name in ("task", "variant", "metric", "kind", "direction", "type", "template")
    )
    return "/".join(str(part) for part in parts if part)


def _gaps(figures: pd.DataFrame) -> Iterator[Result]:
    """What is lost in retrieval and in multiple choice, by the wording of the captions."""
    recall = {"metric": "recall@5", "direction": TEXT_TO_IMAGE}
    choice = {"metric": "accuracy"}
    parts = {
        "recall@5": (
            {**recall, "kind": ORIGINAL},
            {**recall, "kind": NEGATED},
            {**recall, "metric": "gap@5"},
        ),
        "choices": ({**choice, "type": AFFIRMATION}, {**choice, "type": NEGATION}, {"metric": "gap"}),
    }
    for task in frames.values(figures, "task"):
        for variant in frames.values(frames.select(figures, task=task), "variant"):
            for name, wanted in parts.items():
                told, denied, gap = (
                    frames.pick(figures, task=task, variant=variant, **where) for where in wanted
                )
                if told and denied and gap and gap["value"] is not None:
                    yield interchange.gap(f"{name}, {task} ({variant})", told, denied, gap)


def _samples(path: Path) -> Iterator[Sample]:
    folder = ResultsDir(path)
    run = Asked.of_folder(folder, sets_of([folder]))
    if run is None:  # its data have gone, which is said
        return
    for task in run.tasks:
        of_task = {"task": task.name.rpartition("/")[2], "variant": task.variant}
        texts: dict[Any, Any] = {}  # id of a question -> its options; (kind, id of a caption) -> the caption
        if isinstance(task, ChoiceTask):
            texts = {one.id: tuple(option.text for option in one.options) for one in task.questions}
        else:
            for item in (*task.original, *task.negated):
                texts |= {(item.kind, f"{item.id}#{k}"): text for k, text in enumerate(item.captions)}
        for row in run.rows(task):
            yield from _of_row(row, of_task, texts)


def _of_row(row: Mapping[str, Any], task: dict[str, str], texts: Mapping[Any, Any]) -> Iterator[Sample]:
    if "correct" in row:
        shares = row.get("shares") or []
        best = ", ".join(LETTERS[n] for n, share in enumerate(shares) if share == max(shares) and share > 0)
        facts = {"source": row["source"], "type": row.get("type"), "scores": row.get("scores")}
        yield Sample(
            _key({**task, "metric": "accuracy", "type": "all"}), row["id"],
            "Which of the captions describes the picture?", best, best, "highest score", row.get("credit"),
            row["reason"], (LETTERS[row["correct"]],), texts.get(row["id"]), facts,
        )  # fmt: skip
    elif "absent" in row:
        facts = {key: row[key] for key in ("source", "thing", "gallery")}
        text = str(texts.get((NEGATED, row["id"].partition("/")[0]), row["id"]))
        for k in (k for k in KS if row["rank"] < k):
            yield Sample(
                _key({**task, "metric": f"satisfied@{k}", "kind": row["kind"]}),
                f"{row['id']}.{row['kind']}.{row['rank']}", text, row["image"], row["image"],
                "what the judge sees in the picture found", row["absent"], row["reason"], facts=facts,
            )  # fmt: skip
    else:
        rank = "" if row.get("rank") is None else str(row["rank"])
        facts = {key: row.get(key) for key in ("source", "item", "tied", "score")}
        text = str(texts.get((row["kind"], row["id"]), row["id"]))
        where = {"kind": row["kind"], "direction": row["direction"]}
        for metric in (key for key in row if key.startswith("recall@")):
            yield Sample(
                _key({**task, "metric": metric, **where}), f"{row['id']}.{row['kind']}.{row['direction']}",
                text, rank, rank, "rank of the first right one", row[metric], row["reason"], facts=facts,
            )  # fmt: skip
