"""A finished run of NegVQA for other programs: a model under both protocols."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nein.datasets import hub
from nein.engine import atomic
from nein.engine.folder import Folder
from nein.reporting import figures as frames
from nein.reporting.interchange import Exported, Result, Sample, public


def read(path: Path) -> Exported:
    """The run in a folder OUT/<model>."""
    manifest = public(Folder(path, "answers").manifest())
    data = manifest.get("data", {})
    rows = frames.records(frames.select(frames.read(path / "figures.csv"), task="accuracy"))
    rows = [row for row in rows if row["metric"] == "accuracy" and row["interval"] == "clustered"]
    results = [_result(row) for row in rows if row["value"] is not None]
    source = str(data.get("source") or "")
    reference = hub.reference(source)
    return Exported(
        "negvqa", "NegVQA", path.name, "", str(manifest["reference"]),
        {key: data.get(key) for key in ("kind", "questions", "sha256", "split", "revision")},
        data.get("name") or (reference.name if reference else None), str(manifest.get("preset")),
        str(manifest.get("protocol")), results, lambda: _samples(path), manifest, path,
    )  # fmt: skip


def _key(row: dict[str, Any]) -> str:
    return "/".join((row["variant"], row["scoring"], row["protocol"], row["category"]))


def _result(row: dict[str, Any]) -> Result:
    title = f"Accuracy, {row['variant']} questions, {row['scoring']}, {row['category']}"
    return Result(
        _key(row), "accuracy", title, row["value"], row["low"], row["high"], row["standard_error"],
        int(row["n"] or 0), int(row["unscored"] or 0), frames.reasons(row), "higher", (0.0, 1.0), 100.0, True,
    )  # fmt: skip


def _samples(path: Path) -> Iterator[Sample]:
    answers = {(row["id"], row["variant"]): row for row in atomic.read_lines(path / "answers.jsonl")}
    for row in atomic.read_lines(path / "scores.jsonl"):
        asked = answers[row["id"], row["variant"]]
        facts = {"subset": row["subset"], "source": row["source"], "variant": row["variant"]}
        yield Sample(
            _key(row), f"{row['id']}.{row['variant']}", asked["question"], asked["text"] or "",
            row["letter"] or "", f"{row['scoring']}, {row['protocol']}", row["value"], row["reason"],
            (asked["answer"],), tuple(asked["options"]), facts,
        )  # fmt: skip
