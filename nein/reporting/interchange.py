"""Finished runs for other programs, in the schema "every eval ever" (github.com/evaleval/every_eval_ever).

OUT/data/<collection>/<developer>/<model>/<uuid>.json (figures) and <uuid>_samples.jsonl. The schema has no
sample without a score: their figure counts them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import AliasPath, BaseModel, Field, ValidationError

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.loading.digests import file_sha256
from nein.reporting.figures import Figure, reasons

SCHEMA = "0.3.0"
#: The metric of results that say what is lost when what a model is told becomes a negation.
GAP = "negation_gap"
_INTERVAL = ("uncertainty", "confidence_interval")


@dataclass(frozen=True)
class Result:
    """One figure of a run, a row of the frame.

    key     Unique in its run: "results/removal_vqa/negative".     metric, title   In files and for readers.
    scale   What it is multiplied by for readers: 100 for percentages.
    bounds  Possible values; infinite ones too.
    judge   The model that decides a score, and its prompt, with `{object}` for what it is asked about.
    """

    key: str
    metric: str
    title: str
    figure: Figure
    better: str = "higher"
    bounds: tuple[float, float] = (0.0, 1.0)
    scale: float = 100.0
    binary: bool = False
    judge: tuple[str, str] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def gap(measure: str, affirmed: Figure, negated: Figure, difference: Figure) -> Result:
    """The negation gap of a run: figures of the frame. measure: what is told and denied, "Removal (VQA)"."""
    facts = {"measure": measure, "affirmed": affirmed["value"], "negated": negated["value"]}
    title = f"Negation gap, {measure}"
    return Result(f"gap/{measure}", GAP, title, difference, "lower", (-1.0, 1.0), facts=facts)


def share(key: str, row: Figure, title: str) -> Result:
    """A share of which more is better."""
    return Result(key, row["metric"], title, row, binary=True)


@dataclass(frozen=True)
class Sample:
    """What one sample gives to a figure (`Result.key`).

    output     What the model gave: a text, or the file of a picture in the run.
    extracted  What the score was read from, and `method` how.
    value      None: unscored, for the `reason`.
    """

    key: str
    id: str
    input: str
    output: str
    extracted: str
    method: str
    value: float | None
    reason: str = ""
    reference: tuple[str, ...] = ()
    choices: tuple[str, ...] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Exported:
    """A finished run.

    benchmark, title   "negvqa", "NegVQA". `name`: of the run in tables. `part`: of the benchmark: a track.
    reference  Of its model: a hub id, a folder, "nano:...", "openai:...".
    dataset    As in the manifest; `repository`: on the hub.
    manifest   Without command lines.
    beside     Folders of further runs that its figures are of: a control.
    """

    benchmark: str
    title: str
    name: str
    part: str
    reference: str
    dataset: Mapping[str, Any]
    repository: str | None
    preset: str
    protocol: str
    results: Sequence[Result]
    samples: Callable[[], Iterator[Sample]]
    manifest: Mapping[str, Any]
    folder: Path
    beside: Sequence[Path] = ()

    @property
    def nano(self) -> bool:
        return self.preset == "nano"

    @property
    def digest(self) -> str:
        """Of the records of its data."""
        return str(self.dataset.get("records_sha256") or self.dataset.get("sha256") or "")

    @property
    def when(self) -> str:
        """ISO 8601, of the latest command."""
        started = [item["started"] for item in self.manifest.get("invocations", []) if item.get("started")]
        return started[-1] if started else ""


def public(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest without command lines, which may hold more than the configuration does."""
    commands = manifest.get("invocations", [])
    kept = [{key: item[key] for key in item if key not in ("command", "directory")} for item in commands]
    return {**manifest, "invocations": kept}


def every_eval_ever(run: Exported, out: Path) -> list[Path]:
    """Writes the two files of a run; the files. A run that is exported again has the same names."""
    model = _model(run.reference, run.name)
    source = {"source_name": "nein", "source_type": "evaluation_run", "evaluator_relationship": "other"}
    identity = json.dumps([run.manifest.get("identity"), run.part, run.name], sort_keys=True)
    digest = hashlib.sha256(identity.encode()).digest()
    identifier = f"{run.benchmark}/{model['id']}/{digest.hex()[:16]}"
    name = str(uuid.UUID(bytes=digest[:16], version=4))
    folder = out / "data" / _slug(_collection(run)) / _slug(model["developer"]) / _slug(model["name"])
    results = {result.key: result for result in run.results}
    samples, log = folder / f"{name}_samples.jsonl", folder / f"{name}.json"
    content: dict[str, Any] = {
        "schema_version": SCHEMA,
        "evaluation_id": identifier,
        "evaluation_timestamp": run.when,
        "retrieved_timestamp": str(int(time.time())),
        "source_metadata": {**source, "source_organization_name": "unknown"},
        "eval_library": {"name": "nein", "version": version("nein")},
        "model_info": model,
        "evaluation_results": [_result(result, run) for result in run.results],
    }
    lines = (
        _line(sample, results[sample.key], run, identifier, model["id"])
        for sample in run.samples()
        if sample.value is not None and sample.key in results
    )
    if (first := next(lines, None)) is not None:
        total = atomic.write_lines(samples, itertools.chain([first], lines))
        content["detailed_evaluation_results"] = {
            "format": "jsonl",
            "file_path": samples.relative_to(out).as_posix(),
            "hash_algorithm": "sha256",
            "checksum": file_sha256(samples),
            "total_rows": total,
        }
    atomic.write_json(log, content)
    return [log, *([samples] if first is not None else [])]


class _Gap(BaseModel):
    """A result of a log that is a negation gap, as far as it is read."""

    measure: str = Field(validation_alias=AliasPath("details", "measure"))
    affirmed: float = Field(validation_alias=AliasPath("details", "affirmed"))
    negated: float = Field(validation_alias=AliasPath("details", "negated"))
    value: float = Field(validation_alias="score")
    low: float | None = Field(None, validation_alias=AliasPath(*_INTERVAL, "lower"))
    high: float | None = Field(None, validation_alias=AliasPath(*_INTERVAL, "upper"))
    standard_error: float | None = Field(
        None, validation_alias=AliasPath("uncertainty", "standard_error", "value")
    )
    n: int | None = Field(None, validation_alias=AliasPath("uncertainty", "num_samples"))
    unscored: float = Field(0, validation_alias=AliasPath("details", "unscored"))


def read_gaps(path: Path) -> Iterator[dict[str, Any]]:
    """The negation gaps in a file that `every_eval_ever` wrote: benchmark, model, date, data, facts (as of
    `gap`) and figure (of the frame). Raises UserError."""
    log, fact_names = atomic.read_json(path, dict), {"measure", "affirmed", "negated"}
    try:
        model, when = log["model_info"], log.get("evaluation_timestamp") or ""
        for result in log["evaluation_results"]:
            benchmark, _, metric = (result["metric_config"].get("metric_id") or "").partition(".")
            if metric != GAP:
                continue
            gap = _Gap.model_validate(result["score_details"])
            yield {
                "benchmark": benchmark,
                "model": model.get("additional_details", {}).get("name_in_tables") or model["name"],
                "date": when[:10],
                "data": result["source_data"].get("additional_details", {}),
                "facts": gap.model_dump(include=fact_names),
                "figure": gap.model_dump(exclude=fact_names),
            }
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r:.60}"
        raise UserError(f"'{path}': {why}; export the run again with nein export.") from None


def _collection(run: Exported) -> str:
    return f"{run.benchmark}-nano" if run.nano else run.benchmark


def _result(result: Result, run: Exported) -> dict[str, Any]:
    infinite = {math.inf: "Infinity", -math.inf: "-Infinity"}
    low, high = (infinite.get(bound, bound) for bound in result.bounds)
    config: dict[str, Any] = {
        "evaluation_description": f"{result.title}, protocol {run.protocol}",
        "metric_id": result.metric if result.metric == "accuracy" else f"{run.benchmark}.{result.metric}",
        "metric_name": result.title,
        "metric_unit": "proportion" if result.scale == 100 else "points",
        "lower_is_better": result.better == "lower",
        "score_type": "continuous",
        "min_score": low,
        "max_score": high,
    }
    if result.judge is not None:
        reference, prompt = result.judge
        judge = {"model_info": _model(reference, reference)}
        config["llm_scoring"] = {"judges": [judge], "input_prompt": prompt}
    row = result.figure
    uncertainty: dict[str, Any] = {"num_samples": row["n"] or 0}
    if row["low"] is not None and row["high"] is not None:
        ends = {"lower": row["low"], "upper": row["high"], "confidence_level": 0.95}
        uncertainty["confidence_interval"] = {**ends, "method": "clustered by source picture"}
    if row["standard_error"] is not None:
        uncertainty["standard_error"] = {"value": row["standard_error"], "method": "clustered"}
    details = {"unscored": row["unscored"] or 0, "reasons": reasons(row), "protocol": run.protocol}
    return {
        "evaluation_result_id": result.key,
        "evaluation_name": f"{_collection(run)}.{result.key.replace('/', '.')}",
        "source_data": {
            "dataset_name": f"{run.title} nano (drawn scenes)" if run.nano else run.title,
            "source_type": "hf_dataset" if run.repository else "other",
            **({"hf_repo": run.repository} if run.repository else {}),
            "additional_details": _texts({key: v for key, v in run.dataset.items() if v is not None}),
        },
        "evaluation_timestamp": run.when,
        "metric_config": config,
        "score_details": {
            "score": row["value"],
            "uncertainty": uncertainty,
            "details": _texts({**details, **result.facts}),
        },
    }


def _line(sample: Sample, result: Result, run: Exported, identifier: str, model: str) -> dict[str, Any]:
    given = {"raw": sample.input, "reference": list(sample.reference)}
    packed = json.dumps(given, sort_keys=True, separators=(",", ":"))
    facts = {**sample.facts, "reason": sample.reason, "part": run.part}
    if not result.binary:
        facts["is_correct"] = "not defined for this metric"
    return {
        "schema_version": SCHEMA,
        "evaluation_id": identifier,
        "model_id": model,
        "evaluation_name": f"{_collection(run)}.{result.key.replace('/', '.')}",
        "evaluation_result_id": result.key,
        "sample_id": sample.id,
        "sample_hash": hashlib.sha256(packed.encode()).hexdigest(),
        "interaction_type": "single_turn",
        "input": {**given, "choices": None if sample.choices is None else list(sample.choices)},
        "output": {"raw": [sample.output]},
        "answer_attribution": [
            {"turn_idx": 0, "source": "output.raw", "extracted_value": sample.extracted,
             "extraction_method": sample.method, "is_terminal": True}
        ],
        "evaluation": {"score": sample.value, "is_correct": bool(result.binary and sample.value == 1)},
        "metadata": _texts({name: value for name, value in facts.items() if value not in ("", None)}),
    }  # fmt: skip


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
