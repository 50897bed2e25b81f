"""What `nein negbench generate` does once its options are known: folder, list, shards, models, data set.

OUT/build.json            manifest: configuration, models, environment, counts
OUT/list/                 the images, cut into shards once
OUT/work/journal/*.jsonl  append-only: one line per shard, stage and worker; OUT/work/claims: who is at work
OUT/work/answers.sqlite   every answer of the language model
OUT/dataset/              CSV files in the official layout, a card, and pictures that were drawn or made
OUT/unusable.jsonl        images that yield nothing, with the reason
"""

from __future__ import annotations

import dataclasses
import datetime
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import metrics
from nein.datasets.negbench.media import Drawn, Files
from nein.datasets.negbench.records import Media
from nein.engine import environment, images
from nein.engine.errors import UserError
from nein.engine.world import World
from nein.generate.negbench import finish, listing, sources
from nein.generate.negbench.config import DECIDES, BuildConfig
from nein.generate.negbench.listing import Listing
from nein.generate.negbench.work import MODELS, Job, run_stage, unanswered
from nein.generate.nein import crew
from nein.generate.nein.folder import COMPLETE, INCOMPLETE, BuildDir
from nein.generate.nein.ledger import Ledger
from nein.models import editor_choice, references


@dataclass(frozen=True)
class NegBuildDir(BuildDir):
    """The folder of a build."""

    @property
    def parts(self) -> tuple[str, ...]:
        return ("work", "dataset", "unusable.jsonl", "card.json")


def build(config: BuildConfig, world: World) -> str | None:
    """Does what is left; a summary in words on the main process if the data set was finished.

    Raises UserError, EditorError or MetricError.
    """
    folder = NegBuildDir(config.out_dir)
    media = _media(config)
    _check_models(config)
    with folder.lock("list"):
        found = _listed(config, folder)
    device = world.device(config.device)
    threads = world.workers(device)
    identity: dict[str, Any] = {key: getattr(config, key) for key in DECIDES}
    identity |= {
        "list of images": found.sha256,
        "device": device.partition(":")[0],
        "image_rule": images.RULE,
    }
    if config.asks_llm:
        kept = ("model", "temperature", "max_tokens", "attempts", "dtype")
        identity["llm"] = {key: value for key, value in asdict(config.llm).items() if key in kept}
    folder.open(
        identity,
        {
            "invocations": [
                {
                    "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                    "command": list(sys.argv[1:]),
                    "environment": environment.describe(device),
                }
            ]
        },
        overwrite=config.overwrite,
    )
    shards = found.shards(config.limit)
    with Ledger(folder.work) as ledger:
        job = Job(config, found, media, folder.path / "dataset", ledger)
        _ask_again(job, shards)

        def function(stage: str, shard: int, model: Any) -> list[dict[str, Any]]:
            return run_stage(job, stage, shard, model)

        work = crew.Work(job.stages, shards, MODELS, function, ledger)
        tools = crew.Tools(lambda kind: _load(config, folder, device, kind), one_at_a_time=device != "cpu")
        stages = [stage for stage in job.stages if stage in config.stages]
        crew.run(work, stages, tools, threads=threads, quiet=not world.is_main)
        if "finish" not in config.stages or not world.is_main:
            return None
        with folder.lock("finish"):
            folder.update(status=INCOMPLETE)
            facts = finish.finish(job, shards, folder.path, config.limit)
            folder.update(status=COMPLETE, facts=facts)
    where = sources.root(config)
    text = finish.summary(facts, folder.path)
    if where is not None and config.source != "pairs":
        text += f"The files name images below '{where}': say --image-root {where} when you use them.\n"
    return text


def _listed(config: BuildConfig, folder: NegBuildDir) -> Listing:
    """The list of a build that goes on, else a new one; whoever comes second finds it made.

    A list that differs from the one a build was begun with stays a draft: its hash makes `open` refuse it.
    """
    target, origin = folder.path / "list", finish.digest_of(_origin(config))
    known = listing.read(target)
    if known is not None and (known.origin, known.shard_size) == (origin, config.shard_size):
        return known
    draft = folder.path / ".list"
    made = listing.write(draft, sources.load(config), config.shard_size, origin)
    if known is not None and folder.manifest() and not config.overwrite and known.sha256 != made.sha256:
        return made
    shutil.rmtree(target, ignore_errors=True)
    draft.replace(target)
    return dataclasses.replace(made, folder=target)


def _origin(config: BuildConfig) -> dict[str, Any]:
    """What the list is made from; of files also size and time."""
    keys = (
        "source", "instances", "captions", "image_set", "scenes", "split", "concepts", "negatives", "maker",
    )  # fmt: skip
    stamps = []
    for name in (config.instances, config.captions):
        if name is not None and Path(name).exists():
            found = Path(name).stat()
            stamps.append([found.st_size, found.st_mtime_ns])
    return {**{key: getattr(config, key) for key in keys}, "stamps": stamps}


def _ask_again(job: Job, shards: Sequence[int]) -> None:
    """Shards in which the language model gave no answer (a timeout, a refusal) count as open again, and with
    them what was made of them before."""
    done = {stage: job.ledger.done(stage) for stage in job.stages}
    for shard in shards:
        stale, before = False, 0.0
        for stage in job.stages:
            if shard not in done[stage]:
                break
            stale = stale or job.ledger.when(stage, shard) < before
            before = job.ledger.when(stage, shard)
            if stale or (MODELS[stage] != "detector" and unanswered(job.ledger.record(stage, shard)["rows"])):
                stale = True
                job.ledger.forget(stage, shard)


def _media(config: BuildConfig) -> Media:
    where = sources.root(config)
    if where is not None:
        return Files(where)
    from nein.datasets.negbench import drawn

    return Drawn(drawn.picture)


def _check_models(config: BuildConfig) -> None:
    """Looks at models without loading them: hours may pass before one is needed."""
    if config.asks_llm:
        from nein.models.llm import loading

        loading.check(config.llm.model)
    if config.detects:
        where, _ = references.resolve(config.detector)
        if metrics.special_reference(where) is None:
            from metrics.loading import check_folder

            check_folder(where)
    if config.source == "pairs" and config.edits:
        editor_choice.choose_editor(config.maker.partition(":")[2], config.preset, {})


def _load(config: BuildConfig, folder: NegBuildDir, device: str, kind: str) -> Any:
    """A model by its kind, noted in the manifest."""
    if kind == "llm":
        return _client(config, folder, device)
    if kind == "detector":
        return _verifier(config, folder, device)
    from nein.generate.nein.objects import COCO

    if config.preset == "nano":
        from nein.nano.draw import CATEGORIES as vocabulary
    else:
        vocabulary = COCO
    client = None if config.edits else _client(config, folder, device)
    return _maker(config, folder, device), _verifier(config, folder, device), vocabulary, client


def _client(config: BuildConfig, folder: NegBuildDir, device: str) -> Any:
    from nein.engine.answers import AnswerCache
    from nein.models import llm

    client = llm.load(config.llm, cache=AnswerCache(folder.work / "answers.sqlite"), device=device)
    folder.note_model("llm", finish.digest_of(client.describe()), client.describe())
    return client


def _verifier(config: BuildConfig, folder: NegBuildDir, device: str) -> Any:
    from nein.generate.negbench.verify import Verifier

    where, revision = references.resolve(config.detector)
    detector = metrics.load_judge("ovd", where, revision=revision, device=device, dtype=config.dtype)
    folder.note_model("detector", detector.fingerprint, detector.describe())
    return Verifier(detector, config.query, float(config.threshold))


def _maker(config: BuildConfig, folder: NegBuildDir, device: str) -> Any:
    from nein.generate.negbench.pairs import EditorMaker, TextMaker

    name = config.maker.partition(":")[2]
    if config.edits:
        choice = editor_choice.choose_editor(name, config.preset, {"steps": config.steps})
        maker: Any = EditorMaker(choice.load(device=device, dtype=config.dtype, batch_size=config.batch_size))
    else:
        pipeline, identity = text_pipeline(name, device, config.dtype)
        maker = TextMaker(pipeline, identity, resolution=int(config.resolution), steps=int(config.steps))
    folder.note_model("maker", maker.fingerprint, maker.describe())
    return maker


def text_pipeline(name: str, device: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    """A text-to-image pipeline of diffusers from a folder or the hub (safetensors only), and what it is."""
    import torch
    from diffusers import AutoPipelineForText2Image

    from metrics.loading import DTYPES, folder_digest, split_reference

    where, revision = split_reference(name, None)
    try:
        pipeline = AutoPipelineForText2Image.from_pretrained(
            where, revision=revision, use_safetensors=True, torch_dtype=DTYPES[dtype]
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"Cannot load a text-to-image pipeline from '{name}': {first}") from None
    pipeline.set_progress_bar_config(disable=True)
    if getattr(pipeline, "safety_checker", None) is not None:
        # It would put a black picture in the place of one it refuses, which the detector would then judge.
        pipeline.safety_checker = None
    weights = folder_digest(Path(where)) if Path(where).is_dir() else f"{where}@{revision or 'main'}"
    return pipeline.to(torch.device(device)), {
        "class": type(pipeline).__name__,
        "weights": weights,
        "dtype": dtype,
    }
