"""What `nein negbench generate` does once its options are known: folder, list, shards, models, data set.

OUT/manifest.json         configuration, environment, counts; OUT/notes: the models
OUT/list/                 the images, cut into shards once
OUT/work/<stage>/         the rows of every stage, a file per shard
OUT/answers.sqlite        every answer of the language model
OUT/dataset/              CSV files in the official layout, a card, and pictures that were drawn or made
OUT/unusable.jsonl        images that yield nothing, with the reason
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nein import metrics
from nein.benchmarks.runner import invocation
from nein.datasets.negbench.media import Drawn, Files
from nein.datasets.negbench.records import Media
from nein.datasets.negbench.sentences import Protocol
from nein.engine import images
from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError
from nein.engine.executors import Executor
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder
from nein.engine.stages import Model, Planned, Step, usage_of
from nein.generate.negbench import dataset, listing, sources, work
from nein.generate.negbench.config import DECIDES, BuildConfig
from nein.generate.negbench.listing import Listing
from nein.generate.negbench.published import Published
from nein.generate.negbench.work import MODELS, Job, PairTools
from nein.generate.shards import require
from nein.models import editor_choice, references

VERDICT = 64  # tokens of an answer whether a list is one; the released code asks for 10, of "Yes" or "No"
Described = dict[str, tuple[str, dict[str, Any]]]


def build(config: BuildConfig, executor: Executor) -> str | None:
    """Does what is left; a summary on the main process if the data set was finished. Raises UserError,
    EditorError or MetricError."""
    folder = Folder(config.out_dir, "a build")
    _media(config)
    prompts = _prompts(config)
    if config.asks_llm:  # models are looked at, not loaded: hours may pass before one is needed
        from nein.models.llm import client

        client.check(str(config.llm.model))
    if config.detects:
        metrics.check_reference(references.resolve(config.detector)[0])
    if config.source == "pairs" and config.edits:
        editor_choice.choose_editor(config.maker.partition(":")[2], config.preset, {})
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
            identity["llm"] = {key: value for key, value in asdict(config.llm).items() if key in decides}
        identity |= {"prompts": prompts.sha256} if prompts else {}
        folder.open(identity, facts, overwrite=config.overwrite)
        if listing.read(folder) != listed:  # --overwrite has removed it, or its source lies elsewhere now
            listing.write(folder, sources.load(config), config.shard_size, listed.origin)
    executor.barrier()
    job = _job(config)
    for place, stage in enumerate(job.stages):
        if stage in config.stages:
            missing = [before for before in job.stages[:place] if before not in config.stages]
            require(folder, job.blocks, missing)
    executor.compute(Planned(steps, config, steps(config, executor.device)))
    if "finish" not in config.stages or not executor.is_main:
        return None
    folder.update(status=INCOMPLETE)
    facts = dataset.write(job)
    folder.update(status=COMPLETE, facts=facts)
    where = sources.root(config)
    text = dataset.summary(facts, folder.path)
    if where is not None and config.source != "pairs":
        text += f"The files name images below '{where}': say --image-root {where} when you use them.\n"
    return text


def steps(config: BuildConfig, device: str) -> list[Step]:
    """What there is to compute, once the list is written; a worker elsewhere makes it again."""
    job = _job(config)
    return [
        Step(job.folder, work.stage(job, stage, _model(config, job.folder, device, MODELS[stage])))
        for stage in job.stages
        if stage in config.stages
    ]


def _job(config: BuildConfig) -> Job:
    folder = Folder(config.out_dir, "a build")
    listed_images = listing.read(folder)
    assert listed_images is not None, "the main process has written the list"
    return Job(config, listed_images, _media(config), folder, _prompts(config))


def _prompts(config: BuildConfig) -> Published | None:
    """What is published to be asked word by word, if it is to be asked."""
    return None if config.prompts is None else Published(config.prompts, config.form, config.thing)


def _listed(config: BuildConfig, folder: Folder) -> Listing:
    """The list of a build that goes on, else a new one; `origin`: what it is made from, files by size and
    time."""
    keys = "source protocol instances captions image_set scenes split concepts absent maker".split()
    given = [Path(name) for name in (config.instances, config.captions) if name is not None]
    stamps = [[path.stat().st_size, path.stat().st_mtime_ns] for path in given if path.exists()]
    origin = digest({**{key: getattr(config, key) for key in keys}, "stamps": stamps})
    before = listing.read(folder)
    if before is not None and (before.origin, before.shard_size) == (origin, config.shard_size):
        return before
    # Where a build was begun, nothing is written: its identity may make `open` refuse it.
    begun = before is not None and folder.manifest() and not config.overwrite
    return listing.write(None if begun else folder, sources.load(config), config.shard_size, origin)


def _media(config: BuildConfig) -> Media:
    where = sources.root(config)
    if where is not None:
        return Files(where)
    from nein.datasets.negbench import drawn

    return Drawn(drawn.picture)


def _model(config: BuildConfig, folder: Folder, device: str, kind: str) -> Model:
    """What a stage needs: "llm", "checker" (the same at temperature 0), "detector", or "maker", which is
    everything that makes pairs."""

    def describe_detector(verifier: Any) -> Described:
        return {"detector": (verifier.detector.fingerprint, verifier.detector.describe())}

    def describe_client(client: Any) -> Described:
        return {kind if kind != "maker" else "llm": (digest(client.describe()), client.describe())}

    if kind == "checker":
        config = replace(config, llm=replace(config.llm, temperature=0.0, attempts=1, max_tokens=VERDICT))
    if kind in ("llm", "checker"):
        return Model(
            kind,
            lambda: _client(config, folder, device),
            describe_client,
            references.place(str(config.llm.model)),
            lambda client: usage_of({kind: client}),
        )
    if kind == "detector":
        return Model(kind, lambda: _verifier(config, device, config.protocol), describe_detector)

    def load() -> PairTools:
        from nein.generate.nein.sources import COCO

        if config.preset == "nano":
            from nein.nano.draw import CATEGORIES as vocabulary
        else:
            vocabulary = COCO
        client = None if config.edits else _client(config, folder, device)
        # How the authors verified pairs is not released.
        return PairTools(_maker(config, device), _verifier(config, device, "fixed"), vocabulary, client)

    def describe(tools: PairTools) -> Described:
        client = {} if tools.client is None else describe_client(tools.client)
        maker = {"maker": (tools.maker.fingerprint, tools.maker.describe())}
        return {**maker, **describe_detector(tools.verifier), **client}

    return Model(kind, load, describe, usage=lambda tools: usage_of({"llm": tools.client}))


def _client(config: BuildConfig, folder: Folder, device: str) -> Any:
    from nein.models.llm import client as llm

    return llm.load(config.llm, cache=AnswerCache(folder.answers), device=device)


def _verifier(config: BuildConfig, device: str, protocol: Protocol) -> Any:
    from nein.generate.negbench.pairs import Verifier

    where, revision = references.resolve(config.detector)
    detector = metrics.load_judge("ovd", where, revision=revision, device=device, dtype=config.dtype)
    return Verifier(detector, config.query, float(config.threshold), protocol, config.absent)


def _maker(config: BuildConfig, device: str) -> Any:
    from nein.generate.negbench.pairs import EditorMaker, TextMaker

    name = config.maker.partition(":")[2]
    if config.edits:
        choice = editor_choice.choose_editor(name, config.preset, {"steps": config.steps})
        return EditorMaker(choice.load(device=device, dtype=config.dtype, batch_size=config.block_size))
    pipeline, identity = text_pipeline(name, device, config.dtype)
    return TextMaker(pipeline, identity, resolution=int(config.resolution), steps=int(config.steps))


def text_pipeline(name: str, device: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    """A text-to-image pipeline of diffusers from a folder or the hub (safetensors only), and what it is."""
    import torch
    from diffusers import AutoPipelineForText2Image

    from nein.loading.digests import folder_digest, torch_dtype
    from nein.metrics.loading import split_reference

    where, revision = split_reference(name, None)
    try:
        pipeline = AutoPipelineForText2Image.from_pretrained(
            where, revision=revision, use_safetensors=True, torch_dtype=torch_dtype(dtype)
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"Cannot load a text-to-image pipeline from '{name}': {first}") from None
    pipeline.set_progress_bar_config(disable=True)
    if getattr(pipeline, "safety_checker", None) is not None:
        # It would put a black picture in the place of one it refuses, which the detector would then judge.
        pipeline.safety_checker = None
    weights = folder_digest(Path(where)) if Path(where).is_dir() else f"{where}@{revision or 'main'}"
    identity = {"class": type(pipeline).__name__, "weights": weights, "dtype": dtype}
    return pipeline.to(torch.device(device)), identity


def digest(value: Any) -> str:
    """16 hex digits over JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
