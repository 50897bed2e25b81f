"""What `nein generate` does once its options are known; its files: docs/benchmarks/nein-data.md."""

from __future__ import annotations

import hashlib
import importlib.util

from nein import metrics
from nein.benchmarks.runner import invocation
from nein.engine import images
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder
from nein.engine.run import Executor
from nein.generate.nein import algorithms, dataset, sources
from nein.generate.nein.config import STAGES, BuildConfig
from nein.generate.nein.work import MODEL_OF, Job
from nein.loading.references import parse_reference
from nein.models import editor_choice, references

#: Part of the configuration that decides records; the rest may differ between commands on one folder.
DECIDES = (
    "queried", "kept", "absent_below", "image_format", "match_above", "protocol", "seed", "shard_size",
    "batch_size", "dtype", "judge_dtype",
)  # fmt: skip


def build(config: BuildConfig, executor: Executor) -> str | None:
    """Does what is left of the stages that `config` asks for; a summary if the data set was finished. What
    can be wrong with names, lists and folders is found first. Raises UserError, EditorError, MetricError."""
    if "finish" in config.stages and "parquet" in config.formats:
        if importlib.util.find_spec("datasets") is None:
            raise UserError(
                "--formats parquet needs 'datasets': pip install 'nein[hub]', or use --formats official."
            )
    for kind in ("itm", "vqa"):
        if any(MODEL_OF.get(stage) == kind for stage in config.stages):  # looked at; loaded maybe in hours
            where = references.resolve(getattr(config.models, kind))
            if parse_reference(where).kind == "name":
                raise UserError(
                    f"--models.{kind} '{where}' is neither a folder, a hub id owner/name, nor nano:NAME."
                )
            metrics.check_reference(where)
    job = _job(config)
    identity = {
        **{key: getattr(config, key) for key in DECIDES},
        "objects": hashlib.sha256("\n".join(job.rules.objects).encode()).hexdigest()[:16],
        "families": config.family_labels, "noise": algorithms.NOISE, **job.editor.identity(),
        **{key: getattr(config.models, key) for key in ("itm", "vqa", "vqa_quantization")},
        "sources": job.sources.sha256, "device": executor.device.partition(":")[0], "image_rule": images.RULE,
    }  # fmt: skip
    with executor.locked([job.folder]):
        if executor.is_main:
            facts = {"source": job.sources.origin, "invocation": invocation(executor)}
            job.folder.open(identity, facts, overwrite=config.overwrite)
        executor.barrier()
        job.compute(_job, executor)
        return _assemble(job) if "finish" in config.stages and executor.concludes else None


def _job(config: BuildConfig) -> Job:
    found = sources.load(config.source or "", config.images, config.scenes)
    rules = algorithms.Rules(
        objects=sources.categories(config.objects, config.queried),
        families=tuple(config.family_labels),
        **{key: getattr(config, key) for key in ("queried", "kept", "absent_below", "protocol", "seed")},
    )
    choice = editor_choice.choose_editor(config.editor, config.preset, config.editor_overrides())
    return Job(config, Folder(config.out_dir, "a build"), found, rules, choice)


def _assemble(job: Job) -> str:
    """The data set from the rows. Begins with the status, so that a kill half-way leaves it "incomplete"."""
    from nein.generate.nein import card

    config = job.config
    job.require(STAGES)
    job.folder.update(status=INCOMPLETE)
    rows = list(dataset.ways(job))
    all_ways = [way for _, _, candidates in rows for way in candidates]
    splits: dict[str, list[dataset.Way]] = {split: [] for split in dataset.SPLITS}
    for way in filter(lambda way: way.accepted, all_ways):
        splits[dataset.split_of(way, config.seed, config.evaluation_share)].append(way)
    digest = dataset.dataset_hash(job, splits)
    dataset.write_candidates(job, rows)
    drawn = job.sources.origin["kind"] == "nano"
    if "official" in config.formats:
        dataset.write_official(job, splits)
    front = None
    if "parquet" in config.formats:
        dataset.write_parquet(job, splits)
        front = dataset.front_matter(splits, nano=drawn)
    facts = {
        "data_sha256": digest, "images": len(rows), "drawn": drawn,
        **card.figures(job, rows, splits),
    }  # fmt: skip
    card.write(job, facts, all_ways, front)
    stages, samples = facts["stages"], facts["samples"]
    job.folder.update(status=COMPLETE, data_sha256=digest, counts=stages, samples=samples)
    came = ", ".join(f"{n} {stage.replace('passed', 'through')}" for stage, n in stages.items())
    lines = [
        f"{facts['images']} images, {came} ({', '.join(f'{n} {split}' for split, n in samples.items())}).",
        *(f"  {count:6d} rejected: {reason}" for reason, count in facts["rejected"].items()),
        *(f"  {count:6d} images unusable: {reason}" for reason, count in facts["image_problems"].items()),
        *(f"  {count:6d} candidates lacking: {r}" for r, count in facts["slots_without_candidate"].items()),
        f"Data set: {job.folder.path / 'dataset'}",
    ]
    return "\n".join(lines) + "\n"
