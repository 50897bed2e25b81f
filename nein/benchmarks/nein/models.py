"""The encoders and judges of an evaluation on NeIn: looked for, loaded, and what of them decides a score."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import metrics
from nein.benchmarks.nein.config import EvalConfig
from nein.models.references import resolve

ENCODER_OF = {metric: kind for metric, kind in metrics.NEEDS.items() if kind in metrics.ENCODERS}


JUDGE_OF = {metric: kind for metric, kind in metrics.NEEDS.items() if kind in metrics.JUDGES}


def check_references(wanted: Iterable[str], config: EvalConfig) -> None:
    """Looks at the models of the metrics `wanted` without loading one: it may be hours before they are.

    Raises UserError or MetricError for an unknown name, a missing folder, or a folder without safetensors.
    """
    kinds = dict.fromkeys(metrics.NEEDS[name] for name in wanted if name in metrics.NEEDS)
    for kind in kinds:
        where, _ = resolve(getattr(config.models, kind))
        if metrics.special_reference(where) or ("/" not in where and not Path(where).exists()):
            continue  # a name of the library behind the metric ("alex", "inception", "scripted:No")
        from metrics.loading import check_folder

        check_folder(where)


def load_encoders(wanted: Iterable[str], config: EvalConfig, device: str) -> dict[str, Any]:
    """Encoder kind -> loaded encoder, for the metrics `wanted`. Always float32: encoders measure."""
    kinds = dict.fromkeys(ENCODER_OF[name] for name in wanted if name in ENCODER_OF)
    loaded = {}
    for kind in kinds:
        where, revision = resolve(getattr(config.models, kind))
        loaded[kind] = metrics.load_encoder(kind, where, revision=revision, device=device, dtype="float32")
    return loaded


def load_judges(wanted: Iterable[str], config: EvalConfig, device: str) -> dict[str, Any]:
    """Judge kind ("vqa", "ovd") -> loaded judge, for the metrics `wanted`."""
    kinds = dict.fromkeys(JUDGE_OF[name] for name in wanted if name in JUDGE_OF)
    loaded = {}
    for kind in kinds:
        where, revision = resolve(getattr(config.models, kind))
        loaded[kind] = metrics.load_judge(
            kind,
            where,
            revision=revision,
            device=device,
            dtype=config.judge_dtype,
            **judge_options(kind, config),
        )
    return loaded


def judge_options(kind: str, config: EvalConfig) -> dict[str, Any]:
    """The options of a judge that are not the default, as `metrics.load_judge` takes them."""
    if kind == "vqa" and config.models.vqa_quantization != "none":
        return {"quantization": config.models.vqa_quantization}
    if kind == "ovd":
        return {"pad": config.models.ovd_pad, "backend": config.models.ovd_backend}
    return {}


def score_identity(metric: str, config: EvalConfig, device: str) -> dict[str, Any]:
    """Everything in the configuration that decides a metric's values, given the images."""
    facts: dict[str, Any] = {"device": device.partition(":")[0]}
    if metric in JUDGE_OF:
        kind = JUDGE_OF[metric]
        facts |= {
            "protocol": config.protocol,
            "model": getattr(config.models, kind),
            "dtype": config.judge_dtype,
        }
        facts |= judge_options(kind, config)
        facts |= {"article": config.article} if kind == "vqa" else {"threshold": config.threshold}
        return facts
    if metric in ENCODER_OF:
        facts["model"] = getattr(config.models, ENCODER_OF[metric])
    if metric == "fid":
        facts["protocol"] = config.protocol
    if metric != "clip_t":
        facts["align"] = config.align if config.align == "stretch" else f"crop at {config.align_resolution}"
    return facts
