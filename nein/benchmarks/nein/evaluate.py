"""The whole job: data, editors, images, scores, report. What `nein eval` does once its options are known."""

from __future__ import annotations

import contextlib
import datetime
import gc
import logging
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nein.benchmarks.nein import models, report
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.edit import finish_edits, run_edits
from nein.benchmarks.nein.finish import begun, finish_scores, pending_scores
from nein.benchmarks.nein.plan import Plan
from nein.benchmarks.nein.runs import COMPLETE, EDITED, RunDir
from nein.datasets.nein import loading
from nein.datasets.nein.samples import validate_images
from nein.engine import atomic, environment, images, memory
from nein.engine.answers import AnswerCache, BlockAnswers
from nein.engine.errors import UserError
from nein.engine.features import FeatureCache
from nein.engine.world import World
from nein.models import editor_choice
from nein.models.editor_choice import EditorChoice
from nein.models.external_edits import check_names

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
        choices = editor_choice.resolve_editors(
            config.editor, config.preset, config.editor_overrides(), config.edited
        )
        if "edit" in config.stages:
            for choice in choices:
                choice.check_references()
        if config.debug_zone and not any(choice.has_maps for choice in choices):
            raise UserError(
                "--debug-zone draws ZONE's intermediate maps, and no editor here has any; add --editor zone."
            )
        if "score" in config.stages:
            models.check_references(config.metrics, config)
        atomic.check_writable(config.out_dir)
        plan = load_plan(config, check_images=world.is_main)
        world.barrier()
        device = world.device(config.device)
        runs = [
            (choice, RunDir(config.out_dir, choice.slug, track))
            for choice in choices
            for track in ([choice.published.track] if choice.published else config.tracks)
        ]
        if config.edited is not None and world.is_main:
            published = [choice.published for choice in choices if choice.published is not None]
            for warning in check_names(published, [sample.id for sample in plan.dataset.samples]):
                log.warning("%s", warning)
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
    dataset = loading.load(
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
        maps = config.debug_zone and own[0][0].has_maps
        if maps:
            done = {run.track: _drawn(run, done[run.track]) for _, run in own}
        pending = {track: [b for b in plan.blocks if b not in found] for track, found in done.items()}
        world.barrier()  # all have read the journals before one of them writes
        if any(pending.values()):
            memory.reset(device)
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
                        maps=maps,
                    )
            del editor
            note_peak("edit", [run for _, run in own if pending[run.track]], choice, device, world)
            _free(device)
        world.barrier()
        if world.is_main:
            for _, run in own:
                run.update(counts=finish_edits(run, plan))


def _drawn(run: RunDir, done: Mapping[int, Any]) -> dict[int, Any]:
    """The finished blocks whose every edited sample has its sheet of maps; the others are made once more, to
    the same bytes."""
    return {
        block: rows
        for block, rows in done.items()
        if all(row["image"] is None or run.sheet_path(row["id"]).exists() for row in rows)
    }


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
        from nein.benchmarks.nein.score import run_scores

        memory.reset(device)
        names = [m for m in config.metrics if m in needed]
        scorers, described = build_scorers(config, names, device, world.workers(device))
        for _, run in runs:
            if world.is_main:
                for kind, (fingerprint, description) in described.items():
                    run.check_description(kind, fingerprint, description)
            world.barrier()
            run_scores(scorers, run, plan, pending[run.label], world=world)
        del scorers
        note_peak("score", [run for _, run in runs if pending[run.label]], "scoring", device, world)
        _free(device)
    world.barrier()


def note_peak(stage: str, runs: Sequence[RunDir], label: str, device: str, world: World) -> None:
    """Peak memory of the main process in a stage that has just ended: into the manifests, and printed."""
    if not world.is_main:
        return
    found = memory.peak(device)
    if found is None:
        return
    for run in runs:
        known = (run.manifest() or {}).get("peak_memory", {})
        run.update(peak_memory={**known, stage: found})
    print(f"Peak memory, {memory.sentence(label, found)}.", file=sys.stderr, flush=True)


def build_scorers(
    config: EvalConfig, names: Sequence[str], device: str, count: int
) -> tuple[list[Any], dict[str, tuple[str, Any]]]:
    """`count` scorers for the metrics `names`, and kind -> (fingerprint, description) of their models.

    They share the models; each has its own view of the caches, so that several can work on different blocks.
    """
    loaded = models.load_models(names, config, device)
    described = {kind: (model.fingerprint, model.describe()) for kind, model in loaded.items()}
    from nein.benchmarks.nein.score import Scorer

    folder, settings = config.cache_dir, models.settings(config)
    answers = AnswerCache(folder / "answers.sqlite")
    return [
        Scorer(loaded, settings, FeatureCache(folder / "features"), BlockAnswers(answers))
        for _ in range(count)
    ], described


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
