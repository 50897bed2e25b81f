"""What `nein generate` does once its options are known."""

from __future__ import annotations

import datetime
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import metrics
from nein.engine import environment, images
from nein.engine.errors import UserError
from nein.engine.world import World
from nein.generate.nein import clauses, finish, objects, sources
from nein.generate.nein.config import STAGES, BuildConfig
from nein.generate.nein.crew import Tools
from nein.generate.nein.folder import COMPLETE, INCOMPLETE, BuildDir
from nein.generate.nein.ledger import Ledger
from nein.generate.nein.work import Job, run
from nein.models import editor_choice, references

#: Part of the configuration that decides records; the rest may differ between commands on one folder.
DECIDES = (
    "queried", "kept", "absent_below", "image_format", "match_above", "protocol", "seed", "shard_size",
    "batch_size", "dtype", "judge_dtype",
)  # fmt: skip


def build(config: BuildConfig, world: World) -> str | None:
    """Does what is left of the stages that `config` asks for; a summary in words if the data set was
    finished.

    Everything that can be wrong with names, lists and folders is found before a model is loaded. Raises
    UserError, EditorError or MetricError.
    """
    rules = clauses.Rules(
        objects.load(config.objects, config.queried),
        config.queried,
        config.kept,
        config.absent_below,
        tuple(config.family_labels),
        config.protocol,
        config.seed,
    )
    choice = editor_choice.choose_editor(config.editor, config.preset, config.editor_overrides())
    if "finish" in config.stages and "parquet" in config.formats:
        from nein.generate.nein import hub

        hub.check()
    stages = [stage for stage in STAGES if stage in config.stages]
    for stage in stages:
        _check_model(config, stage)
    folder = BuildDir(config.out_dir)
    with folder.lock("sources"):
        found = sources.load(config.source or "", config.images, scenes=config.scenes, out=folder.path)
    device = world.device(config.device)
    threads = world.workers(device)
    folder.open(
        {
            **{key: getattr(config, key) for key in DECIDES},
            "objects": hashlib.sha256("\n".join(rules.objects).encode()).hexdigest()[:16],
            "families": config.family_labels,
            **choice.identity(),
            "itm": config.models.itm,
            "vqa": config.models.vqa,
            "vqa_quantization": config.models.vqa_quantization,
            "sources": found.sha256,
            "device": device.partition(":")[0],
            "image_rule": images.RULE,
        },
        {
            "source": found.origin,
            "invocations": [
                {
                    "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                    "command": list(sys.argv[1:]),
                    "environment": environment.describe(device),
                }
            ],
        },
        overwrite=config.overwrite,
    )
    with Ledger(folder.work) as ledger:
        job = Job(config, found, rules, folder, ledger)
        _forget_vanished(job)
        tools = Tools(_loader(config, choice, folder, device), one_at_a_time=device != "cpu")
        run(job, stages, tools, threads=threads, quiet=not world.is_main)
        finish.require_complete(job, stages)
        if "finish" not in config.stages or not world.is_main:
            return None
        with folder.lock("finish"):
            return _finish(job, choice, threads)


def _finish(job: Job, choice: editor_choice.EditorChoice, threads: int) -> str:
    """The data set from the records. Begins with the status, so that a kill half-way leaves it
    "incomplete"."""
    from nein.generate.nein import card, hub

    config = job.config
    finish.require_complete(job, STAGES)
    job.folder.update(status=INCOMPLETE)
    rows = list(finish.ways(job))
    found = finish.tally(job, rows)
    all_ways = [way for _, _, own in rows for way in own]
    splits: dict[str, list[finish.Way]] = {split: [] for split in finish.SPLITS}
    for way in all_ways:
        if way.accepted:
            splits[finish.split_of(way, config.seed, config.evaluation_share)].append(way)
    with_family = config.family_labels != ["plain"]
    digest = finish.dataset_hash(splits, with_family=with_family)
    finish.write_candidates(job, rows)
    truths = errors = None
    if job.sources.origin["kind"] == "nano":
        from nein.generate.nein import truths as truth

        truths = truth.report(job, rows, threads)
        errors = truth.own_errors(_autoencoder(choice))
    if "official" in config.formats:
        finish.write_official(job, splits, with_family=with_family)
    front = None
    if "parquet" in config.formats:
        hub.write(job, splits, with_family=with_family)
        front = hub.front_matter(splits, nano=truths is not None)
    facts = card.figures(job, found, splits, data_sha256=digest, truths=truths, errors=errors)
    card.write(job, facts, all_ways, front)
    job.folder.update(status=COMPLETE, data_sha256=digest, counts=facts["stages"], samples=facts["samples"])
    return _summary(facts, job.folder.path)


def _summary(facts: dict[str, Any], out: Path) -> str:
    stages, samples = facts["stages"], facts["samples"]
    lines = [
        f"{facts['images']} images, {stages.get('candidates', 0)} candidates, "
        f"{stages.get('generated', 0)} generated, {stages.get('passed filter 1', 0)} through filter 1, "
        f"{stages.get('accepted', 0)} accepted "
        f"({', '.join(f'{n} {split}' for split, n in samples.items())}).",
        *(f"  {count:6d} rejected: {reason}" for reason, count in facts["rejected"].items()),
        *(f"  {count:6d} images unusable: {reason}" for reason, count in facts["image_problems"].items()),
        *(f"  {count:6d} candidates lacking: {r}" for r, count in facts["slots_without_candidate"].items()),
        f"Data set: {out / 'dataset'}",
    ]
    return "\n".join(lines) + "\n"


def _loader(
    config: BuildConfig, choice: editor_choice.EditorChoice, folder: BuildDir, device: str
) -> Callable[[str], Any]:
    """Loads the editor or a judge by its kind, and writes down in the manifest what it is."""

    def load(kind: str) -> Any:
        if kind == "editor":
            model: Any = choice.load(device=device, dtype=config.dtype, batch_size=config.batch_size)
        else:
            where, revision = references.resolve(getattr(config.models, kind))
            options: dict[str, Any] = {}
            if metrics.special_reference(where) is None:
                options["batch_size"] = config.batch_size
                if kind == "vqa":
                    options["quantization"] = config.models.vqa_quantization
            model = metrics.load_judge(
                kind, where, revision=revision, device=device, dtype=config.judge_dtype, **options
            )
        folder.note_model(kind, getattr(model, "fingerprint", ""), model.describe())
        return model

    return load


def _check_model(config: BuildConfig, stage: str) -> None:
    """Looks at the model of a filter without loading it: hours may pass before it is needed."""
    kind = {"clauses": "itm", "match": "itm", "ask": "vqa"}.get(stage)
    if kind is None:
        return
    where, _ = references.resolve(getattr(config.models, kind))
    if metrics.special_reference(where):
        return
    if "/" not in where and not Path(where).exists():
        raise UserError(f"--models.{kind} '{where}' is neither a folder, a hub id owner/name, nor nano:NAME.")
    from metrics.loading import check_folder

    check_folder(where)


def _forget_vanished(job: Job) -> None:
    """Shards whose generated pictures are no longer on disk count as open again."""
    there = {path.name for path in job.folder.image("").glob("*")}
    for shard in sorted(job.ledger.done("generate")):
        rows = job.ledger.record("generate", shard)["rows"]
        if any(row["image"] is not None and row["image"] not in there for row in rows):
            job.ledger.forget("generate", shard)


def _autoencoder(choice: editor_choice.EditorChoice) -> Callable[[np.ndarray], np.ndarray] | None:
    """The editor's own encoder and decoder as a function of a picture, or None where it has none at hand."""
    if choice.checkpoint is None:
        return None
    folder = Path(references.resolve(choice.checkpoint)[0]) / "vae"
    if not folder.is_dir():
        return None
    import torch
    from diffusers import AutoencoderKL

    vae = AutoencoderKL.from_pretrained(folder).eval()

    @torch.no_grad()
    def rebuild(picture: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        back = vae.decode(vae.encode(pixels).latent_dist.mode()).sample[0].permute(1, 2, 0)
        return ((back.clamp(-1, 1) + 1) * 127.5).round().byte().numpy()

    return rebuild
