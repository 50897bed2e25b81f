"""The encoders and judges of an evaluation on NeIn: looked for, loaded, and what of them decides a score."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nein import metrics
from nein.benchmarks.nein.config import EvalConfig
from nein.metrics.backends import is_served
from nein.metrics.judges.plugin import attribute, is_attribute
from nein.models import judges
from nein.models.references import identity, resolve
from nein.wording.families import MINIMAL_PAIRS


def model_kinds(wanted: Iterable[str]) -> list[str]:
    """What the metrics `wanted` ask, each once: kinds of encoders and judges, and networks of their own."""
    return list(dict.fromkeys(kind for name in wanted for kind in metrics.METRICS[name].models))


def check_references(wanted: Iterable[str], config: EvalConfig) -> None:
    """Looks at the models of the metrics `wanted` without loading one: it may be hours before they are.
    Raises UserError or MetricError."""
    for kind in model_kinds(wanted):
        if is_attribute(kind):
            attribute(kind)
            continue
        where, _ = resolve(getattr(config.models, kind))
        if metrics.special_reference(where) or "/" in where or Path(where).exists():
            metrics.check_reference(where)  # else a name of the library behind the metric ("alex")


def load_models(wanted: Iterable[str], config: EvalConfig, device: str) -> dict[str, Any]:
    """Kind -> loaded encoder, judge or network, for the metrics `wanted`. Encoders measure: in float32."""
    loaded = {}
    for kind in model_kinds(wanted):
        if is_attribute(kind):
            loaded[kind] = attribute(kind)(device=device)
            continue
        reference = getattr(config.models, kind)
        if kind in metrics.ENCODERS:
            where, revision = resolve(reference)
            how: dict[str, Any] = {"revision": revision, "dtype": "float32"}
            loaded[kind] = metrics.load_encoder(kind, where, device=device, **how)
        else:
            how = {"dtype": config.judge_dtype, **judge_options(kind, config)}
            loaded[kind] = judges.load(kind, reference, cache=config.cache_dir, device=device, **how)
    return loaded


def served_kinds(wanted: Iterable[str], config: EvalConfig) -> list[str]:
    """The kinds of judges that are behind an endpoint."""
    kinds = [kind for kind in model_kinds(wanted) if kind in metrics.JUDGES]
    return [kind for kind in kinds if is_served(resolve(getattr(config.models, kind))[0])]


def judge_options(kind: str, config: EvalConfig) -> dict[str, Any]:
    """The options of a judge that are not the default, as `metrics.load_judge` takes them."""
    if kind == "vqa" and config.models.vqa_quantization != "none":
        return {"quantization": config.models.vqa_quantization}
    if kind == "ovd":
        return {"pad": config.models.ovd_pad, "backend": config.models.ovd_backend}
    return {}


def settings(config: EvalConfig) -> metrics.Settings:
    """How metrics score, as the configuration says."""
    return metrics.Settings(
        align=config.align, resolution=config.align_resolution, protocol=config.protocol,
        threshold=config.threshold, article=config.article, evidence=config.evidence,
        before=MINIMAL_PAIRS in config.families, batch_size=config.block_size,
    )  # fmt: skip


def score_identity(metric: str, config: EvalConfig, device: str) -> dict[str, Any]:
    """Everything in the configuration that decides a metric's values, given the images."""
    row, facts = metrics.METRICS[metric], {"device": device.partition(":")[0]}
    for kind in row.models:
        facts[kind] = kind if is_attribute(kind) else identity(getattr(config.models, kind))
        if kind in metrics.JUDGES:
            facts |= {"dtype": config.judge_dtype, **judge_options(kind, config)}
    return facts | {name: settings(config).identity(name) for name in row.settings}
