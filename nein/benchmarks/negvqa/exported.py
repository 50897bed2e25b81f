"""A finished run of NegVQA for other programs: a model under both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nein.benchmarks.baselines import BASELINES
from nein.benchmarks.negvqa import scores
from nein.benchmarks.negvqa.folder import AnswersDir
from nein.datasets import hub
from nein.datasets.negvqa.categories import AVERAGE
from nein.engine.folder import Folder
from nein.reporting import figures as frames
from nein.reporting import interchange
from nein.reporting.interchange import Exported, Sample, public


def read(path: Path) -> Exported:
    """The run in a folder OUT/<model>."""
    manifest = public(Folder(path, "answers").manifest())
    data = manifest.get("data", {})
    figures = frames.read(path / "figures.csv")
    rows = frames.records(frames.select(figures, task="accuracy", metric="accuracy", interval="clustered"))
    rows += frames.records(frames.select(figures, task="blind", metric=BASELINES))
    results = [
        interchange.share(_key(row), row, f"{row['metric'].capitalize()}, {row['variant']} questions, "
                          f"{row['scoring']}, {row['category']}")
        for row in rows if row["value"] is not None
    ]  # fmt: skip
    told = frames.select(figures, task="gap", category=AVERAGE, protocol="fixed", headline="yes")
    by = {row["metric"]: row for row in frames.records(told)}
    if by.get("gap", {}).get("value") is not None:
        measure = f"accuracy ({by['gap']['scoring']})"
        results.append(interchange.gap(measure, by["original"], by["negated"], by["gap"]))
    shown = ("kind", "questions", "sha256", "split", "revision")
    reference = hub.reference(str(data.get("source") or ""))
    # OWNER/NAME of the hub, "nano:WORLD", or a file.
    name = data.get("name") or data.get("world") or data.get("file") or data.get("kind")
    return Exported(
        "negvqa", "NegVQA", path.name, "", str(manifest["reference"]),
        {"name": str(name), **{key: data.get(key) for key in shown}},
        data.get("name") or (reference.name if reference else None), str(manifest.get("preset")),
        str(manifest.get("protocol")), results, lambda: _samples(path), manifest, path,
    )  # fmt: skip


def _key(row: dict[str, Any]) -> str:
    baseline = row.get("metric", "") if row.get("metric") in BASELINES else ""
    return "/".join(
        filter(None, (row["variant"], row["scoring"], row["protocol"], row["category"], baseline))
    )


def _samples(path: Path) -> Iterator[Sample]:
    for row in scores.of_folder(AnswersDir(path)):
        if row["metric"] in BASELINES:
            continue
        asked = row["asked"]
        facts = {"subset": row["subset"], "source": row["source"], "variant": row["variant"]}
        yield Sample(
            _key(row), f"{row['id']}.{row['variant']}", asked["question"], asked["text"] or "",
            row["letter"] or "", f"{row['scoring']}, {row['protocol']}", row["value"], row["reason"] or "",
            (asked["answer"],), tuple(asked["options"]), facts,
        )  # fmt: skip
