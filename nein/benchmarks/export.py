"""`nein export`: finished runs of any benchmark for other programs, from their scores.csv and figures.csv.

nein export runs/nano                    the schema "every eval ever" 0.3.0, with a line per sample
nein export runs/nano --format csv       scores and figures of all runs as two tables

OUT/data/<collection>/<developer>/<model>/<uuid>.json (figures) and <uuid>_samples.jsonl, see
github.com/evaleval/every_eval_ever. The schema has no sample without a score: their figure counts them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os.path
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from nein.benchmarks import registry
from nein.benchmarks.config import ExportConfig
from nein.benchmarks.runner import FIGURES, SCORES, Benchmark, Finished
from nein.engine import atomic
from nein.loading.digests import file_sha256
from nein.metrics import METRICS
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable

#: Not of what a score is, but of the sample or the run.
_APART = ("id", "source", "reason", *frames.NUMBERS)


def run(config: ExportConfig) -> str:
    atomic.make_folder(config.out)
    folders = registry.finished(config.runs)
    if config.format == "csv":
        return "".join(f"{_write_table(folders, name, config.out)}\n" for name in (SCORES, FIGURES))
    text, unscored = "", 0
    for benchmark, members in registry.by_data(folders):
        gaps = benchmark.gaps(members)
        for finished in members:
            exported = _Exported(benchmark, finished, gaps)
            text += "".join(f"{path}\n" for path in exported.write(config.out))
            unscored += int(exported.figures["unscored"].fillna(0).sum())
    more = f"{unscored} unscored values have no line, since the schema has none; their figures count them.\n"
    return text + (more if unscored else "")


def _write_table(folders: Sequence[Path], name: str, out: Path) -> Path:
    """OUT/NAME: the files of that name of all runs below each other, with a column `run`."""
    top = os.path.commonpath([*folders]) if len(folders) > 1 else folders[0].parent
    tables = {
        Path(os.path.relpath(path, top)).as_posix(): pd.read_csv(
            path / name, dtype=str, keep_default_na=False
        )
        for path in folders
    }
    whole = pd.concat(tables, names=["run"]).reset_index("run").fillna("")
    atomic.write_text(out / name, whole.to_csv(index=False, lineterminator="\n"))
    return out / name


class _Exported:
    """A run in the schema: its figures of `Benchmark.exported`, its negation gaps, and a line per score.

    An export of the same run has the same names.
    """

    def __init__(self, benchmark: Benchmark, run: Finished, gaps: pd.DataFrame) -> None:
        self.run, self.about = run, run.about
        self.scores = ScoreTable.read(run.folder.path / SCORES)
        figures = frames.select(run.figures, **benchmark.exported)
        self.figures = figures[figures["value"].notna()]
        # Columns of text in both say which scores a figure is the mean of.
        both = [str(name) for name in figures if name in self.scores.frame and name not in _APART]
        self.shared = [name for name in both if (self.figures[name] != "").any()]
        self.rows = {self.key(row): row for row in frames.records(self.figures)}
        for measure in frames.values(own := frames.select(gaps, run=run.name), "measure"):
            affirmed, negated, gap = frames.records(own, measure=measure)
            ends = {"measure": measure, "affirmed": affirmed["value"], "negated": negated["value"]}
            self.rows[f"gap/{measure}"] = {**gap, "metric": "negation_gap", "ends": ends}
        nano = self.about["preset"] == "nano"
        self.collection = benchmark.name + "-nano" * nano
        self.data = {
            "dataset_name": benchmark.title + " nano (drawn scenes)" * nano,
            "source_type": "other",
            "additional_details": _texts(run.manifest.get("data", {})),
        }
        self.model = _model(self.about["reference"], run.name)
        identity = json.dumps([run.manifest.get("identity"), run.name], sort_keys=True)
        self.digest = hashlib.sha256(identity.encode()).digest()
        name = f"{benchmark.name}/{self.model['id']}/{self.digest.hex()[:16]}"
        self.same = {"schema_version": "0.3.0", "evaluation_id": name}

    def key(self, row: Mapping[str, Any]) -> str:
        return "/".join(filter(None, (row[name] for name in self.shared)))

    def name(self, key: str) -> str:
        return f"{self.collection}.{key.replace('/', '.')}"

    def write(self, out: Path) -> list[Path]:
        """Writes the two files; their paths."""
        places = self.collection, self.model["developer"], self.model["name"]
        folder, name = out.joinpath("data", *map(_slug, places)), uuid.UUID(bytes=self.digest[:16], version=4)
        samples, log = folder / f"{name}_samples.jsonl", folder / f"{name}.json"
        scored = (row for row in self.scores.rows() if row["value"] is not None)
        total = atomic.write_lines(samples, (self.line(row) for row in scored if self.key(row) in self.rows))
        source = {"source_type": "evaluation_run", "evaluator_relationship": "other"}
        lines = {"format": "jsonl", "file_path": samples.relative_to(out).as_posix(), "total_rows": total}
        content = {
            **self.same,
            "evaluation_timestamp": self.about["date"],
            "retrieved_timestamp": str(int(time.time())),
            "source_metadata": {**source, "source_organization_name": "unknown"},
            "eval_library": {"name": "nein", "version": version("nein")},
            "model_info": self.model,
            "evaluation_results": [self.result(key) for key in self.rows],
            "detailed_evaluation_results": {
                **lines,
                "hash_algorithm": "sha256",
                "checksum": file_sha256(samples),
            },
        }
        atomic.write_json(log, content)
        return [log, samples]

    def result(self, key: str) -> dict[str, Any]:
        row, known = self.rows[key], METRICS.get(self.rows[key]["metric"])
        gap = row["unit"] == "points"
        low, high = known.range if known else (-1.0 if gap else 0.0, 1.0)
        infinite = {math.inf: "Infinity", -math.inf: "-Infinity"}
        uncertainty: dict[str, Any] = {"num_samples": row["n"] or 0}
        if row["low"] is not None and row["high"] is not None:
            ends = {"lower": row["low"], "upper": row["high"], "confidence_level": 0.95}
            uncertainty["confidence_interval"] = {**ends, "method": "clustered by source image"}
        if row["standard_error"] is not None:
            uncertainty["standard_error"] = {"value": row["standard_error"], "method": "clustered"}
        details = {"unscored": row["unscored"] or 0, "reasons": frames.reasons(row), **row.get("ends", {})}
        details |= {"protocol": self.about["protocol"], "models": self.about["models"]}
        return {
            "evaluation_result_id": key,
            "evaluation_name": self.name(key),
            "source_data": self.data,
            "metric_config": {
                "metric_name": known.title if known else row["metric"],
                "metric_unit": "proportion" if row["unit"] else "points",
                "lower_is_better": known.better == "lower" if known else gap,
                "score_type": "continuous",
                "min_score": infinite.get(low, low),
                "max_score": infinite.get(high, high),
            },
            "score_details": {
                "score": row["value"],
                "uncertainty": uncertainty,
                "details": _texts(details),
            },
        }

    def line(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A score of a sample. What the sample shows and what was answered stay in the blocks of the run."""
        facts = {column: text for column, text in row.items() if text and column not in ("id", "value")}
        known = METRICS.get(row["metric"])
        binary = row["value"] in (0.0, 1.0) and (known is None or known.kind == "proportion")
        if not binary:
            facts["is_correct"] = "not defined for this score"
        value = row.get("letter") or f"{row['value']:g}"
        found = {"turn_idx": 0, "source": "output.raw", "extracted_value": value}
        return {
            **self.same,
            "model_id": self.model["id"],
            "evaluation_name": self.name(self.key(row)),
            "evaluation_result_id": self.key(row),
            "sample_id": row["id"],
            "interaction_type": "single_turn",
            "input": {"raw": row["id"], "reference": [row["answer"]] if row.get("answer") else []},
            "output": {"raw": [value]},
            "answer_attribution": [{**found, "extraction_method": row["metric"], "is_terminal": True}],
            "evaluation": {"score": row["value"], "is_correct": binary and row["value"] == 1},
            "metadata": facts,
        }


def _model(reference: str, name: str) -> dict[str, Any]:
    """What has no place on the hub gets "nein" or "unknown" as its developer."""
    where = reference.removeprefix("open_clip:hf-hub:")
    if reference.startswith("openai:"):
        where = reference.partition("#")[2]
    elif reference.startswith("nano:"):
        where = f"nein/{reference.replace(':', '-')}"
    elif where.count("/") != 1 or where.startswith((".", "/", "~")) or ":" in where:
        where = f"unknown/{_slug(name)}"
    where, _, revision = where.partition("@")
    developer, _, short = where.rpartition("/")
    named = {"name": short, "id": where, "developer": developer or "unknown"}
    details = {"deployment_type": "unknown", "model_availability": "unknown", "name_in_tables": name}
    return {**named, "additional_details": {**details, "revision": revision}}


def _texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The schema's details are texts: JSON of all that is none."""
    return {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
        for key, value in facts.items()
        if value is not None
    }


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "unknown"
