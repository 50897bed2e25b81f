"""Stage 2: the numbers. Every sample gets a value per metric, or a reason why it has none.

One decode per picture: a block is read once and handed to all metrics.
"""

from __future__ import annotations

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from nein import metrics
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.runs import AGAIN, EDIT, RunDir, scores_of, why_not
from nein.datasets.nein.samples import Dataset, Sample
from nein.engine import atomic, images
from nein.engine.answers import AnswerCache, BlockStore, FeatureCache, scope_of
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Row
from nein.engine.stages import Functions, Model, Stage, usage_of
from nein.loading.attributes import load_attribute
from nein.loading.references import parse_reference
from nein.metrics.chat.endpoint import check_options
from nein.models import judges
from nein.models.cached import Services
from nein.models.references import contents, identity, resolve
from nein.wording.families import MINIMAL_PAIRS

#: About how many questions a metric asks a VQA judge of a sample: on its object, or on the caption's twice.
QUESTIONS = {"removal_vqa": 1, "retention_vqa": 6}


class Scorer:
    """The models of a command, loaded when a metric first asks for them, and its caches; threads share it.
    load: metrics -> their models by kind."""

    def __init__(
        self, load: Callable[[Iterable[str]], Mapping[str, Any]], settings: metrics.Settings, cache: Path,
        answers: AnswerCache,
    ) -> None:  # fmt: skip
        self.loaded: dict[str, Any] = {}
        self._load, self._settings = load, settings
        self._loading = threading.Lock()
        self._features = FeatureCache(cache / "features")
        self._answers = answers

    def score(
        self, items: Sequence[metrics.EditPair], names: Sequence[str], among: Iterable[str]
    ) -> dict[str, list[metrics.Score]]:
        """Metric -> a score per item of one block, for the metrics `names` `among` all that are wanted of it:
        an interrupted block is asked about as a whole one is."""
        with self._loading:
            if lacking := [name for name in names if not self.loaded.keys() >= set(model_kinds([name]))]:
                self.loaded = {**self._load(lacking), **self.loaded}
        scope = scope_of(item.id for item in items)
        features, answers = BlockStore(self._features, scope), BlockStore(self._answers, scope)
        batch = metrics.Batch(
            items, self.loaded, self._settings, tuple(among), features=features, records=answers
        )
        scores = metrics.score([metrics.METRICS[name] for name in names], batch)
        features.flush()
        answers.flush()
        return scores

    def stop(self) -> None:
        """Ends waiting for the answers of endpoints."""
        for model in self.loaded.values():
            getattr(model, "stop", lambda: None)()


def scorer_model(config: EvalConfig, device: str) -> Model:
    """The scorer as the engine loads it."""

    def load() -> Scorer:
        answers = AnswerCache(config.cache_dir / "answers.sqlite")
        services = Services.of(config, answers)

        def load_these(wanted: Iterable[str]) -> dict[str, Any]:
            return load_models(wanted, config, device, services)

        return Scorer(load_these, settings(config), config.cache_dir, answers)

    return Model(
        "scoring",
        load,
        lambda scorer: {kind: (model.fingerprint, model.describe()) for kind, model in scorer.loaded.items()},
        place="device" if model_kinds(config.metrics) else "host",
        usage=lambda scorer: usage_of(scorer.loaded),
    )


def scoring(
    run: RunDir,
    dataset: Dataset,
    edited: Blocks,
    names: Sequence[str],
    scorer: Model,
    served: bool = False,
    plain: bool = False,
) -> Stage:
    """The stage that scores the edits of a run, by metrics in the order of the table.

    edited  The blocks of the edits; scores are made of their units.
    served  Whether a judge is behind an endpoint: what that did not answer is asked again, and nothing else.
    plain   COCO's and NeIn's images are read as by the released scripts: `images.decode`, and detectors see
            them upright.
    """
    blocks = edited.units
    corpus = [name for name in names if metrics.METRICS[name].kind == "corpus"]
    for name in corpus:  # blocks whose features have vanished are scored again
        for number in run.done(scores_of(name)):
            if not run.feature_path(name, number).exists():
                run.block_path(scores_of(name), number).unlink(missing_ok=True)
    needed = {picture for name in names for picture in metrics.METRICS[name].pictures}

    def members(number: int) -> Sequence[Sample]:
        return dataset.members(blocks.needed(number))

    def edits_of(number: int) -> list[Row]:
        """Of the samples of a block; those of a larger selection are left out."""
        numbers = Blocks(blocks.count, edited.size, blocks.needed(number)).numbers
        rows = list(run.rows(EDIT, numbers))[: len(blocks.needed(number))]
        if [row["id"] for row in rows] != [sample.id for sample in members(number)]:
            raise UserError(
                f"'{run.block_path(EDIT, numbers[0])}' does not hold the samples of its block; remove it and "
                "give the same command again."
            )
        return rows

    def read(number: int) -> tuple[int, list[metrics.EditPair]]:
        edits = {row["id"]: row for row in edits_of(number)}

        @functools.cache  # of a block: several samples share a picture
        def original(path: Path, role: str) -> tuple[np.ndarray | str, str]:
            """The picture and its `pixel_hash`; a sentence, and nothing, where it cannot be read."""
            picture = _read(path, role, plain)
            return picture, "" if isinstance(picture, str) else images.pixel_hash(picture)

        return number, [
            _item(run, sample, edits[sample.id], needed, original, plain) for sample in members(number)
        ]

    def work(loaded: Scorer, block: Any, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        number, items = block
        wanted = [name for name in names if scores_of(name) in missing]
        found = {}
        for name, scores in loaded.score(items, wanted, names).items():
            if name in corpus:
                _write_features(run, name, number, items, scores)
            found[scores_of(name)] = [
                {"id": item.id, "value": None if mark.value is None else float(mark.value),
                 "reason": mark.reason, "detail": dict(mark.detail), **({AGAIN: True} if mark.again else {})}
                for item, mark in zip(items, scores, strict=True)
            ]  # fmt: skip
        return found

    outputs = tuple(map(scores_of, names))

    def usable(output: str, number: int, rows: Sequence[Row]) -> bool:
        """Whether nothing is worth another try: an endpoint's answer, a picture that is there now."""
        roles = {
            row["id"]: role for row in rows
            if row["value"] is None
            and (role := row["reason"].removeprefix("the ").partition(" image is unusable")[0])
            in ("edited", "COCO", "NeIn")
        }  # fmt: skip
        edits = {row["id"]: row for row in edits_of(number)} if roles else {}
        for sample in members(number) if roles else ():
            if (role := roles.get(sample.id)) is not None:
                paths = {"COCO": sample.source_path, "NeIn": sample.sample_path}
                path = paths.get(role) or run.image_path(edits[sample.id])
                if not isinstance(_read(path, role, plain), str):
                    return False
        return not (served and any(row.get(AGAIN) for row in rows))

    def ids(records: range) -> list[str]:
        return [sample.id for sample in dataset.members(records)]

    def files(records: range) -> list[Path]:
        return [path for s in dataset.members(records) for path in (s.source_path, s.sample_path)]

    def state(records: range) -> list[int | None]:
        """Of our own images the sizes are enough: their pixels are compared where they are read."""
        samples = zip(records, dataset.members(records), strict=True)
        return atomic.sizes(run.path / run.image_name(index, sample.id) for index, sample in samples)

    return Functions(
        "score", outputs, blocks, read, work, scorer, usable, ids=ids, files=files, state=state, cut=True
    )


def _item(
    run: RunDir, sample: Sample, edit: Row, needed: set[str],
    original: Callable[[Path, str], tuple[np.ndarray | str, str]], plain: bool,
) -> metrics.EditPair:  # fmt: skip
    """The pictures of a sample that are `needed`; a sentence for every other."""
    if edit["image"] is None:
        return metrics.EditPair(sample.id, why_not(edit))
    edited = _read(run.image_path(edit), "edited")
    if not isinstance(edited, str) and images.pixel_hash(edited) != edit["sha256"]:
        edited = "the edited image on disk is not the one this run wrote; remove it and run again"
    absent = "not read", ""
    target, target_key = original(sample.source_path, "COCO") if "target" in needed else absent
    unedited, sample_key = original(sample.sample_path, "NeIn") if "sample" in needed else absent
    upright = sample_upright = None
    if not isinstance(unedited, str):
        if plain and sample_key != edit["sample_sha256"]:  # editors are given what `decode` says otherwise
            same = images.pixel_hash(images.decode(sample.sample_path)) == edit["sample_sha256"]
        else:
            same = sample_key == edit["sample_sha256"]
        if not same:
            unedited = "the NeIn image is not the one that was edited; it was changed in between"
        elif plain and (turned := images.orientation(sample.sample_path)) != 1:
            sample_upright = images.upright(unedited, turned)
    things: list[metrics.SceneObject] | str = "not read"
    if "things" in needed:
        things = []
        for thing in sample.things:
            without = _read(thing.without, "known")
            if isinstance(without, str):
                things = without
                break
            things.append(metrics.SceneObject(thing.name, thing.stays, without))
    if "orientation" in edit and not isinstance(edited, str):
        upright = images.upright(edited, edit["orientation"])
    return metrics.EditPair(
        sample.id, edited, target, unedited, sample.object, sample.caption, target_key, sample_key, things,
        upright, sample_upright,
    )  # fmt: skip


def _read(path: Path, role: str, plain: bool = False) -> np.ndarray | str:
    try:
        return images.decode(path, plain=plain)
    except images.ImageError as error:
        return f"the {role} image is unusable: {error}"


def _write_features(
    run: RunDir, metric: str, number: int, items: Sequence[metrics.EditPair], scores: Sequence[metrics.Score]
) -> None:
    """One file per block: rows of edited pictures and of targets, for the samples that have both."""
    rows = [(item, s.features) for item, s in zip(items, scores, strict=True) if s.features is not None]
    width = rows[0][1][0].shape[0] if rows else 0
    tensors = {
        name: np.asarray([features[side] for _, features in rows], np.float32).reshape(len(rows), width)
        for side, name in enumerate(("edited", "target"))
    }
    ids = [item.id for item, _ in rows]
    about = {
        "block": number, "track": run.track, "ids": ids, "images": run.pixels(number, ids),
        "target_keys": [item.target_key for item, _ in rows],
        "edited_sha256": hashlib.sha256(tensors["edited"].tobytes()).hexdigest(),
    }  # fmt: skip
    # One key: the format writes several in a random order.
    content = safetensors.numpy.save(tensors, metadata={"about": json.dumps(about, sort_keys=True)})
    atomic.write_bytes(run.feature_path(metric, number), content)


def model_kinds(wanted: Iterable[str]) -> list[str]:
    """What the metrics `wanted` ask, each once: kinds of encoders and judges, and networks of their own."""
    return list(dict.fromkeys(kind for name in wanted for kind in metrics.METRICS[name].models))


def check_references(wanted: Iterable[str], config: EvalConfig) -> None:
    """Looks at the models of the metrics `wanted` without loading one: it may be hours before they are.
    Raises UserError or MetricError."""
    for kind in model_kinds(wanted):
        if ":" in kind:  # a network of the metric's own
            load_attribute(kind)
            continue
        where = resolve(getattr(config.models, kind))
        if parse_reference(where).kind != "name":
            metrics.check_reference(where)  # else a name of the library behind the metric ("alex")
        if kind == "vqa":
            check_options(where, config.models.vqa_options)


def load_models(
    wanted: Iterable[str], config: EvalConfig, device: str, services: Services
) -> dict[str, Any]:  # fmt: skip
    """Kind -> loaded encoder, judge or network, for the metrics `wanted`. Encoders measure: in float32."""
    loaded = {}
    for kind in model_kinds(wanted):
        if ":" in kind:
            loaded[kind] = load_attribute(kind)(device=device)
            continue
        reference = getattr(config.models, kind)
        if kind in metrics.ENCODERS:
            loaded[kind] = metrics.load_encoder(kind, resolve(reference), device=device, dtype="float32")
        else:
            how: dict[str, Any] = {"dtype": config.judge_dtype, **judge_options(kind, config)}
            loaded[kind] = judges.load(kind, reference, services=services, device=device, **how)
    return loaded


def judge_options(kind: str, config: EvalConfig) -> dict[str, Any]:
    """The options of a judge that are not the default, as `metrics.load_judge` takes them."""
    if kind == "vqa":
        weights = config.models.vqa_quantization
        return {**config.models.vqa_options, **({"quantization": weights} if weights != "none" else {})}
    if kind == "ovd":
        return {"pad": config.models.ovd_pad, "backend": config.models.ovd_backend}
    return {}


def settings(config: EvalConfig) -> metrics.Settings:
    """How metrics score, as the configuration says."""
    return metrics.Settings(
        align=config.align, resolution=config.align_resolution, protocol=config.protocol,
        threshold=config.threshold, article=config.article, evidence=config.evidence,
        before=MINIMAL_PAIRS in config.families, batch_size=config.batch_size,
    )  # fmt: skip


def score_identity(metric: str, config: EvalConfig, device: str) -> dict[str, Any]:
    """Everything in the configuration that decides a metric's values, given the images."""
    row, facts = metrics.METRICS[metric], {"device": device.partition(":")[0]}
    for kind in row.models:
        facts[kind] = kind if ":" in kind else identity(getattr(config.models, kind))
        if kind in metrics.JUDGES:
            facts |= {"dtype": config.judge_dtype, **judge_options(kind, config)}
    models = {kind: getattr(config.models, kind) for kind in row.models if ":" not in kind}
    return facts | contents(models) | {name: settings(config).identity(name) for name in row.settings}
