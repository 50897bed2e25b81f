"""`nein export`: finished runs of any benchmark for other programs, from their scores.csv and figures.csv.

nein export runs/nano                    the schema "every eval ever" 0.3.0, with a line per sample
nein export runs/nano --format csv       the rows, scores and figures of all runs as tables

OUT/data/<collection>/<developer>/<model>/<uuid>.json (figures) and <uuid>_samples.jsonl, see
github.com/evaleval/every_eval_ever. The schema has no sample without a score: their figure counts them.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import itertools
import json
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from nein.benchmarks import registry, runner
from nein.benchmarks.config import ExportConfig
from nein.benchmarks.runner import FIGURES, SCORES, Benchmark, Finished
from nein.engine import atomic
from nein.loading.digests import file_sha256
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable

#: Not of what a score is, but of the sample or the run.
_APART = ("id", "source", "reason")
#: What reads the rows of a run anew.
Read: TypeAlias = Callable[[], Iterable[Mapping[str, Any]]]


def run(config: ExportConfig) -> str:
    atomic.make_folder(config.out)
    folders = registry.finished(config.runs)
    if config.format == "csv":
        return "".join(f"{path}\n" for path in tables(folders, config.out))
    text, total = "", 0
    for benchmark, members in registry.by_data(folders):
        gaps = benchmark.gaps(members)
        for finished in members:
            files, unscored = every_eval_ever(benchmark, finished, gaps, config.out)
            text, total = text + "".join(f"{path}\n" for path in files), total + unscored
    more = f"{total} unscored values have no line, since the schema has none; their figures count them.\n"
    return text + (more if total else "")


# --- tables ----------------------------------------------------------------------------------------


def tables(folders: Sequence[Path], out: Path) -> list[Path]:
    """OUT/<name>.csv: rows of blocks, files of rows, scores and figures of all runs."""
    sources: dict[str, list[tuple[str, Read]]] = {}
    for path in folders:
        label = path.name if len(folders) == 1 else _label(path, folders)
        for file in sorted(path.glob("*.jsonl")):
            read: Read = functools.partial(atomic.checked_lines, file)
            name = file.name.removesuffix(".jsonl")
            sources.setdefault(name, []).append((label, functools.partial(_cells, read)))
        if (benchmark := registry.known(path)) is not None:
            own = benchmark.folder(path)
            for output in own.manifest()["selected"]:  # what was encoded is no sample
                if "/" not in output and "id" in own.row_shapes.get(output, ("id",)):
                    read = functools.partial(runner.selected, own, output)
                    sources.setdefault(output, []).append((label, functools.partial(_cells, read)))
        for file in (path / SCORES, path / FIGURES):
            if file.is_file():
                sources.setdefault(file.stem, []).append((label, functools.partial(_lines, file)))
    for name, several in sources.items():
        _write(several, out / f"{name}.csv")
    return [out / f"{name}.csv" for name in sources]


def _cells(read: Read) -> Iterator[dict[str, Any]]:
    for row in read():
        yield {
            key: json.dumps(value, ensure_ascii=False)
            if isinstance(value, list | dict)
            else frames.harmless(value)
            for key, value in row.items()
        }


def _lines(file: Path) -> Iterator[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """The end of a folder that tells it from the others: "ip2p/negative"."""
    lengths = range(1, len(folder.parts) + 1)
    own = (n for n in lengths if len({other.parts[-n:] for other in folders}) == len(folders))
    return "/".join(folder.parts[-next(own, 0) :])


def _write(sources: Sequence[tuple[str, Read]], path: Path) -> None:
    """The rows of all runs below each other. They are read twice, for the columns and for the rows, and never
    held."""
    columns = dict.fromkeys(itertools.chain.from_iterable(row for _, read in sources for row in read()))
    with atomic.writing(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        table = csv.DictWriter(text, ["run", *columns], lineterminator="\n")
        table.writeheader()
        for label, read in sources:
            table.writerows({"run": label, **row} for row in read())
        text.detach()  # which writes what it still holds, and leaves the file open


# --- every eval ever -------------------------------------------------------------------------------


def every_eval_ever(
    benchmark: Benchmark, run: Finished, gaps: pd.DataFrame, out: Path
) -> tuple[list[Path], int]:
    """Writes the two files of a run: its figures of `Benchmark.exported`, its negation gaps, and a line per
    score. The files, and how many scores have no line because they have no value. An export of the same run
    has the same names."""
    about, scores = run.about, ScoreTable.read(run.folder.path / SCORES)
    figures = frames.select(run.figures, **benchmark.exported)
    figures = figures[figures["value"].notna()]
    # Columns of text in both say which scores a figure is the mean of.
    both = [name for name in figures if name in scores.frame and name not in (*frames.NUMBERS, *_APART)]
    shared = [name for name in both if (figures[name] != "").any()]
    rows = {_key(row, shared): row for row in frames.records(figures)}
    for measure in frames.values(own := frames.select(gaps, run=run.name), "measure"):
        affirmed, negated, gap = frames.records(own, measure=measure)
        ends = {"measure": measure, "affirmed": affirmed["value"], "negated": negated["value"]}
        rows[f"gap/{measure}"] = {**gap, "metric": "negation_gap", "ends": ends}
    model, nano = _model(about["reference"], run.name), about["preset"] == "nano"
    identity = json.dumps([run.manifest.get("identity"), run.name], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).digest()
    name, collection = uuid.UUID(bytes=digest[:16], version=4), benchmark.name + "-nano" * nano
    folder = out / "data" / _slug(collection) / _slug(model["developer"]) / _slug(model["name"])
    samples, log = folder / f"{name}_samples.jsonl", folder / f"{name}.json"
    same = {
        "schema_version": "0.3.0",
        "evaluation_id": f"{benchmark.name}/{model['id']}/{digest.hex()[:16]}",
    }
    data_facts = {key: value for key, value in run.manifest.get("data", {}).items() if value is not None}
    data = {
        "dataset_name": benchmark.title + " nano (drawn scenes)" * nano,
        "source_type": "hf_dataset" if "/" in about["data"] else "other",
        **({"hf_repo": about["data"]} if "/" in about["data"] else {}),
        "additional_details": _texts(data_facts),
    }
    lines = (
        {**same, "model_id": model["id"], **_line(row, key, f"{collection}.{key.replace('/', '.')}")}
        for row in scores.rows()
        if row["value"] is not None and (key := _key(row, shared)) in rows
    )
    total = atomic.write_lines(samples, lines)
    results = [
        {
            "evaluation_result_id": key,
            "evaluation_name": f"{collection}.{key.replace('/', '.')}",
            "source_data": data,
            "evaluation_timestamp": about["date"],
            **_result(row, benchmark.name, about),
        }
        for key, row in rows.items()
    ]
    source = {"source_name": "nein", "source_type": "evaluation_run", "evaluator_relationship": "other"}
    content = {
        **same,
        "evaluation_timestamp": about["date"],
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {**source, "source_organization_name": "unknown"},
        "eval_library": {"name": "nein", "version": version("nein")},
        "model_info": model,
        "evaluation_results": results,
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": samples.relative_to(out).as_posix(),
            "hash_algorithm": "sha256",
            "checksum": file_sha256(samples),
            "total_rows": total,
        },
    }
    atomic.write_json(log, content)
    return [log, samples], int(figures["unscored"].fillna(0).sum())


def _key(row: Mapping[str, Any], shared: Sequence[str]) -> str:
    return "/".join(filter(None, (row[name] for name in shared)))


def _result(row: Mapping[str, Any], benchmark: str, about: Mapping[str, Any]) -> dict[str, Any]:
    known = METRICS.get(row["metric"])
    gap = row["unit"] == "points"
    low, high = known.range if known else (-1.0 if gap else 0.0, 1.0)
    infinite = {math.inf: "Infinity", -math.inf: "-Infinity"}
    title = known.title if known else row["metric"]
    uncertainty: dict[str, Any] = {"num_samples": row["n"] or 0}
    if row["low"] is not None and row["high"] is not None:
        ends = {"lower": row["low"], "upper": row["high"], "confidence_level": 0.95}
        uncertainty["confidence_interval"] = {**ends, "method": "clustered by source image"}
    if row["standard_error"] is not None:
        uncertainty["standard_error"] = {"value": row["standard_error"], "method": "clustered"}
    details = {"unscored": row["unscored"] or 0, "reasons": frames.reasons(row)}
    return {
        "metric_config": {
            "evaluation_description": f"{title}, protocol {about['protocol']}",
            "metric_id": "accuracy" if row["metric"] == "accuracy" else f"{benchmark}.{row['metric']}",
            "metric_name": title,
            "metric_unit": "proportion" if row["unit"] else "points",
            "lower_is_better": known.better == "lower" if known else gap,
            "score_type": "continuous",
            "min_score": infinite.get(low, low),
            "max_score": infinite.get(high, high),
        },
        "score_details": {
            "score": row["value"],
            "uncertainty": uncertainty,
            "details": _texts(
                {**details, "protocol": about["protocol"], "models": about["models"], **row.get("ends", {})}
            ),
        },
    }


def _line(row: Mapping[str, Any], key: str, name: str) -> dict[str, Any]:
    """A score of a sample. What the sample shows and what was answered stay in the blocks of the run."""
    facts = {column: text for column, text in row.items() if text and column not in ("id", "value")}
    known = METRICS.get(row["metric"])
    binary = row["value"] in (0.0, 1.0) and (known is None or known.kind == "proportion")
    value = row.get("letter") or f"{row['value']:g}"
    found = {"turn_idx": 0, "source": "output.raw", "extracted_value": value}
    return {
        "evaluation_name": name,
        "evaluation_result_id": key,
        "sample_id": row["id"],
        "sample_hash": hashlib.sha256(f"{row['id']} {row['source']}".encode()).hexdigest(),
        "interaction_type": "single_turn",
        "input": {"raw": row["id"], "reference": [row["answer"]] if row.get("answer") else []},
        "output": {"raw": [value]},
        "answer_attribution": [{**found, "extraction_method": row["metric"], "is_terminal": True}],
        "evaluation": {"score": row["value"], "is_correct": binary and row["value"] == 1},
        "metadata": {**facts, **({} if binary else {"is_correct": "not defined for this score"})},
    }


def _model(reference: str, name: str) -> dict[str, Any]:
    """What has no place on the hub gets "nein" or "unknown" as its developer."""
    where = reference.removeprefix("open_clip:hf-hub:")
    hub = where.count("/") == 1 and not where.startswith((".", "/", "~")) and ":" not in where
    served = reference.startswith("openai:")
    if served:
        where = reference.partition("#")[2]
    elif reference.startswith("nano:"):
        where = f"nein/{reference.replace(':', '-')}"
    elif not hub:
        where = f"unknown/{_slug(name)}"
    developer, _, short = where.partition("/") if "/" in where else ("unknown", "", where)
    open_weights = hub or reference.startswith(("nano:", "open_clip:"))
    return {
        "name": short.partition("@")[0],
        "id": where.partition("@")[0],
        "developer": developer,
        "additional_details": {
            "deployment_type": "unknown" if served else "self_deployed",
            "model_availability": "open_weights" if open_weights else "unknown",
            "name_in_tables": name,
            **({"revision": where.partition("@")[2]} if "@" in where else {}),
        },
    }


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The schema's details are texts: JSON of all that is none."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        for key, value in facts.items()
    }


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unknown"
