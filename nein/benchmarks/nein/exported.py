"""A finished run of NeIn for other programs: an editor on a track."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nein.benchmarks.nein import figures, records, runs
from nein.benchmarks.nein.records import Records
from nein.engine.folder import COMPLETE, Folder
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting import interchange
from nein.reporting.interchange import Exported, Judge, Result, Sample, public


def read(path: Path) -> Exported:
    """The run in a folder OUT/<editor>/<track>."""
    run = runs.of_folder(Folder(path))
    read = records.read(run)
    manifest = public(run.manifest())
    config, identity, data = manifest.get("config", {}), manifest["identity"], manifest.get("data", {})
    rows = frames.records(frames.select(figures.of_run(read), task="results"))
    questions: dict[str, str] = {}  # metric -> what its judge was asked, {object} for what it was asked about
    for row in run.scores():
        question, what = row["detail"].get("question"), row["detail"].get("object")
        if row["metric"] not in questions and question:
            questions[row["metric"]] = question.replace(what, "{object}") if what else question
    results = [_result(row, run.track, config, questions) for row in rows if row["value"] is not None]
    results += _gaps(read)
    shown = ("kind", "split", "records_sha256", "n", "selected", "revision")
    control = path.with_name("remove")
    given = str(config.get("data") or data.get("kind") or "")  # OWNER/NAME, "nano:WORLD", or a folder
    name = str(data.get("name") or (given if given.startswith("nano") else Path(given).name))
    return Exported(
        "nein", "NeIn", run.editor, run.track, str(identity.get("checkpoint") or identity.get("editor")),
        {"name": name, **{key: data.get(key) for key in shown}},
        data.get("name"), str(config.get("preset")),
        str(config.get("protocol")), results, lambda: _samples(read), manifest, path,
        [control] if control.is_dir() else (),
    )  # fmt: skip


def _key(metric: str, track: str) -> str:
    return f"{track}/{metric}"


def _result(row: dict[str, Any], track: str, config: dict[str, Any], questions: dict[str, str]) -> Result:
    metric = METRICS[row["metric"]]
    models = config.get("models", {})
    judge = (
        Judge(models["vqa"], questions[metric.name])
        if "vqa" in metric.models and models.get("vqa") and metric.name in questions
        else None
    )
    return Result(
        _key(metric.name, track), metric.name, metric.title, row["value"], row["low"], row["high"],
        row["standard_error"], int(row["n"] or 0), int(row["unscored"] or 0), frames.reasons(row),
        metric.better, metric.range, 100.0 if metric.unit == "per cent" else 1.0,
        metric.kind == "proportion", judge,
    )  # fmt: skip


def _gaps(denied: Records) -> Iterator[Result]:
    """Of the negative track, where its control is finished too."""
    control = runs.of_folder(Folder(denied.run.path.with_name("remove")))
    if denied.track != "negative" or control.manifest().get("status") != COMPLETE:
        return
    told = figures.gaps([denied, records.read(control)])
    for metric in frames.values(frames.select(told, task="gap"), "metric"):
        rows = frames.records(frames.select(told, task="gap", metric=metric))
        by = {row["statistic"]: row for row in rows}
        yield interchange.gap(METRICS[metric].title, by["remove"], by["negative"], by["gap"])


def _samples(run: Records) -> Iterator[Sample]:
    for row in run.run.scores():
        edit, detail = run.edits[run.place[row["id"]]], row["detail"]
        answer = detail.get("answer", "" if row["value"] is None else str(row["value"]))
        facts = {key: edit.get(key) for key in ("object", "source_id", "seed", "sha256", "template")}
        yield Sample(
            _key(row["metric"], run.track), row["id"], edit.get("instruction", ""), edit["image"] or "",
            str(answer), row["metric"], row["value"], row["reason"], facts=facts,
        )  # fmt: skip
