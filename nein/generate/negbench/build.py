"""What `nein negbench generate` does once its options are known: folder, list, shards, models, data set.

OUT/manifest.json         configuration, environment, counts; OUT/notes: the models
OUT/list/                 the images, cut into shards once
OUT/work/<stage>/         the rows of every stage, a file per shard
OUT/answers.sqlite        every answer of the language model
OUT/dataset/              CSV files in the official layout, a card, and pictures that were drawn or made
OUT/unusable.jsonl        images that yield nothing, with the reason
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nein import metrics
from nein.benchmarks.runner import invocation
from nein.datasets.negbench.media import Drawn, Files
from nein.datasets.negbench.records import Media
from nein.engine import images
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder
from nein.engine.run import Executor
from nein.generate.negbench import dataset, sources
from nein.generate.negbench.config import DECIDES, BuildConfig
from nein.generate.negbench.sources import Listing
from nein.generate.negbench.work import Job
from nein.loading.digests import json_digest
from nein.models import editor_choice, references
from nein.models.llm import client as llm


def build(config: BuildConfig, executor: Executor) -> str | None:
    """Does what is left; a summary on the main process if the data set was finished. Raises UserError,
    EditorError or MetricError."""
    folder = Folder(config.out_dir, "a build")
    _media(config)
    if config.asks_llm:  # models are looked at, not loaded: hours may pass before one is needed
        llm.check(str(config.llm.model))
    if config.detects:
        metrics.check_reference(references.resolve(config.detector))
    if config.source == "pairs" and config.edits:
        editor_choice.choose_editor(config.maker.partition(":")[2], config.preset, {})
    with executor.locked([folder]):
        return _build(config, executor, folder)


def _build(config: BuildConfig, executor: Executor, folder: Folder) -> str | None:
    if executor.is_main:
        listed = _listed(config, folder)
        facts = {"invocation": invocation(executor)}
        identity: dict[str, Any] = {
            **{key: getattr(config, key) for key in DECIDES}, "list of images": listed.sha256,
            "device": executor.device.partition(":")[0], "image_rule": images.RULE,
        }  # fmt: skip
        identity |= {"mcq": config.mcq} if config.mcq != "script" else {}
        if config.asks_llm:
            decides = ("model", "temperature", "max_tokens", "attempts", "dtype")
            identity["llm"] = {key: getattr(config.llm, key) for key in decides} | config.llm.thinking
        folder.open(identity, facts, overwrite=config.overwrite)
        if sources.read_list(folder) != listed:  # removed by --overwrite, or from elsewhere now
            sources.write_list(folder, sources.load(config), config.shard_size, listed.origin)
    executor.barrier()
    job = _job(config)
    job.compute(_job, executor)
    if "finish" not in config.stages or not executor.concludes:
        return None
    folder.update(status=INCOMPLETE)
    facts = dataset.write(job)
    folder.update(status=COMPLETE, facts=facts)
    where = sources.root(config)
    text = dataset.summary(facts, folder.path)
    if where is not None and config.source != "pairs":
        text += f"Image paths are relative to '{where}': evaluate with --image-root {where}.\n"
    return text


def _job(config: BuildConfig) -> Job:
    folder = Folder(config.out_dir, "a build")
    listed_images = sources.read_list(folder)
    assert listed_images is not None, "the main process has written the list"
    return Job(config, folder, listed_images, _media(config))


def _listed(config: BuildConfig, folder: Folder) -> Listing:
    """The list of a build that goes on, else a new one; `origin`: what it is made from, files by size and
    time."""
    keys = "source protocol instances captions image_set scenes split concepts absent maker".split()
    given = [Path(name) for name in (config.instances, config.captions) if name is not None]
    stamps = [[path.stat().st_size, path.stat().st_mtime_ns] for path in given if path.exists()]
    origin = json_digest({**{key: getattr(config, key) for key in keys}, "stamps": stamps})[:16]
    before = sources.read_list(folder)
    if before is not None and (before.origin, before.shard_size) == (origin, config.shard_size):
        return before
    # Where a build was begun, nothing is written: its identity may make `open` refuse it.
    begun = before is not None and folder.manifest() and not config.overwrite
    return sources.write_list(None if begun else folder, sources.load(config), config.shard_size, origin)


def _media(config: BuildConfig) -> Media:
    where = sources.root(config)
    if where is not None:
        return Files(where)
    from nein.datasets.negbench import drawn

    return Drawn(drawn.picture)
