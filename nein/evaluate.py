"""The whole job: data, editors, images, scores, report. What `nein-eval` does once its options are known."""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nein import atomic, data, environment, images, models, report
from nein.blocks import Plan
from nein.cache import FeatureCache, RecordCache
from nein.config import EvalConfig
from nein.edit import finish_edits, run_edits
from nein.finish import begun, finish_scores, pending_scores
from nein.models import EditorChoice
from nein.runs import COMPLETE, EDITED, RunDir
from nein.samples import validate_images
from nein.world import World

if TYPE_CHECKING:
    from metrics.presence import Presence
    from metrics.similarity import ImageMetrics

log = logging.getLogger(__name__)
Runs = list[tuple[EditorChoice, RunDir]]


def evaluate(config: EvalConfig, world: World) -> str | None:
    """Runs the stages that `config` asks for; the table as text on the main process if "report" is among
    them.

    Everything that can be wrong with names, data and folders is found before a model is loaded. Raises
    UserError, EditorError or MetricError.
    """
    text = None
    if "edit" in config.stages or "score" in config.stages:
        choices = models.resolve_editors(config)
        if "score" in config.stages:
            models.check_references(config.metrics, config)
        atomic.check_writable(config.out_dir)
        plan = load_plan(config, check_images=world.is_main)
        world.barrier()
        device = world.device(config.device)
        runs = [
            (choice, RunDir(config.out_dir, choice.slug, track))
            for choice in choices
            for track in config.tracks
        ]
        with contextlib.ExitStack() as locks:
            if world.is_main:
                for _, run in runs:
                    locks.callback(run.lock().release)
                for choice, run in runs:
                    _open(config, choice, run, plan, device, world)
                    if "score" in config.stages:
                        identities = {m: models.score_identity(m, config, device) for m in config.metrics}
                        run.open_scores(identities, overwrite=config.overwrite)
            world.barrier()
            if "edit" in config.stages:
                edit_stage(config, runs, plan, device, world)
            if "score" in config.stages:
                score_stage(config, runs, plan, device, world)
            if world.is_main:
                for _, run in runs:
                    _close(config, run, plan)
    if "report" in config.stages and world.is_main:
        text = report.report(config.out_dir)
    world.barrier()
    return text


def load_plan(config: EvalConfig, *, check_images: bool = True) -> Plan:
    """The data set, the selection, and the blocks they need; every fault of the data is raised at once."""
    dataset = data.load(
        config.data,
        split=config.split,
        annotations=config.annotations,
        source_images=config.source_images,
        nein_images=config.nein_images,
        columns=config.columns,
    )
    plan = Plan(dataset, tuple(dataset.select(config.limit, config.samples)), config.batch_size)
    if check_images:
        validate_images(plan.all_members(), f"The data set '{config.data}'")
    return plan


def edit_stage(config: EvalConfig, runs: Runs, plan: Plan, device: str, world: World) -> None:
    """Makes the missing images; an editor is loaded once for all its tracks, and only if needed."""
    for choice in dict.fromkeys(choice.asked for choice, _ in runs):
        own = [(c, run) for c, run in runs if c.asked == choice]
        done = {run.track: run.edits() for _, run in own}
        pending = {track: [b for b in plan.blocks if b not in found] for track, found in done.items()}
        world.barrier()  # all have read the journals before one of them writes
        if any(pending.values()):
            editor = own[0][0].load(device=device, dtype=config.dtype, batch_size=config.batch_size)
            for _, run in own:
                if world.is_main:
                    run.check_description("editor", getattr(editor, "fingerprint", ""), editor.describe())
                if pending[run.track]:
                    run_edits(
                        editor,
                        run,
                        plan,
                        pending[run.track],
                        run_seed=config.seed,
                        world=world,
                        workers=world.workers(device),
                    )
            del editor
            _free(device)
        world.barrier()
        if world.is_main:
            for _, run in own:
                run.update(counts=finish_edits(run, plan))


def score_stage(config: EvalConfig, runs: Runs, plan: Plan, device: str, world: World) -> None:
    """Computes the scores that are missing; encoders and judges are loaded once, and only those needed."""
    if world.is_main:
        for _, run in runs:
            run.update(counts=finish_edits(run, plan))
    world.barrier()
    pending = {run.label: pending_scores(run, plan, config.metrics) for _, run in runs}
    world.barrier()
    needed = {name for blocks in pending.values() for names in blocks.values() for name in names}
    if needed:
        from nein.score import run_scores

        names = [m for m in config.metrics if m in needed]
        scorers, described = build_scorers(config, names, device, world.workers(device))
        for _, run in runs:
            if world.is_main:
                for kind, (fingerprint, description) in described.items():
                    run.check_description(kind, fingerprint, description)
            world.barrier()
            run_scores(scorers, run, plan, pending[run.label], world=world)
        del scorers
        _free(device)
    world.barrier()


def build_scorers(
    config: EvalConfig, names: Sequence[str], device: str, count: int
) -> tuple[list[Any], dict[str, tuple[str, Any]]]:
    """`count` scorers for the metrics `names`, and kind -> (fingerprint, description) of their models.

    They share the models; each has its own view of the caches, so that several can work on different blocks.
    """
    encoders = models.load_encoders(names, config, device)
    judges = models.load_judges(names, config, device)
    loaded = {**encoders, **judges}
    described = {kind: (model.fingerprint, model.describe()) for kind, model in loaded.items()}
    return [_scorer(config, encoders, judges) for _ in range(count)], described


def _scorer(config: EvalConfig, encoders: Mapping[str, Any], judges: Mapping[str, Any]) -> Any:
    from nein.score import Scorer

    features, records = FeatureCache(config.cache_dir / "features"), RecordCache(config.cache_dir / "answers")

    @functools.cache
    def image_metrics(chosen: tuple[str, ...]) -> ImageMetrics:
        from metrics.similarity import ImageMetrics

        return ImageMetrics(
            chosen,
            encoders=encoders,
            align=config.align,
            resolution=config.align_resolution,
            store=features,
            batch_size=config.batch_size,
        )

    @functools.cache
    def presence(chosen: tuple[str, ...]) -> Presence:
        from metrics.presence import Presence

        return Presence(
            chosen,
            vqa=judges.get("vqa"),
            detector=judges.get("ovd"),
            protocol=config.protocol,
            threshold=config.threshold,
            article=config.article,
            evidence=config.evidence,
            store=records,
        )

    return Scorer(
        lambda chosen: image_metrics(tuple(chosen)), lambda chosen: presence(tuple(chosen)), features, records
    )


def _open(
    config: EvalConfig, choice: EditorChoice, run: RunDir, plan: Plan, device: str, world: World
) -> None:
    identity: Mapping[str, Any] = {
        **choice.identity(),
        "track": run.track,
        "seed": config.seed,
        "dtype": config.dtype,
        "device": device.partition(":")[0],
        "batch_size": config.batch_size,
        "data": plan.dataset.records_sha256,
        "image_rule": images.RULE,
    }
    entries = {
        "config": config.as_dict(),
        "data": {
            **plan.dataset.origin,
            "records_sha256": plan.dataset.records_sha256,
            "n": len(plan.dataset.samples),
            "selected": len(plan.selected),
        },
        "invocations": [
            {
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "command": list(sys.argv[1:]),
                "processes": world.size,
                "environment": environment.describe(device),
            }
        ],
    }
    run.open(identity, entries, overwrite=config.overwrite)


def _close(config: EvalConfig, run: RunDir, plan: Plan) -> None:
    """Writes the canonical scores for the selection and, if nothing is missing, the word "complete"."""
    metrics = begun(run)
    if "score" not in config.stages and (not metrics or pending_scores(run, plan, metrics)):
        run.update(status=EDITED)
        return
    wanted = config.metrics if "score" in config.stages else metrics
    unscored = finish_scores(run, plan, wanted, config.protocol)
    counts = {**(run.manifest() or {}).get("counts", {}), "unscored": unscored}
    run.update(counts=counts, status=COMPLETE)


def _free(device: str) -> None:
    """Gives an unused model's memory back before the next one is loaded."""
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()
