"""The two stages of a NeIn run: `Edit` makes an image per sample, `Score` a value per sample and metric.

A missing image or value has a reason in its place. Parts: the stage of edits; the stage of scores, with
`Scorer`, which holds the loaded models; the models and options of metrics, from the configuration.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.runs import EDIT, SCORES, EditRow, RunDir, ScoreRow, read_image, score_output
from nein.datasets.nein import Dataset, Sample
from nein.editors import EditRequest, EditResult
from nein.engine import atomic, images
from nein.engine.answers import BlockStore, FeatureCache, hash_scope
from nein.engine.folder import Blocks, sample_seed
from nein.engine.stages import Model, Stage, read_usage
from nein.loading.digests import Json, pixel_digest
from nein.loading.errors import UserError
from nein.loading.references import is_served, load_attribute, parse_reference
from nein.metrics import METRICS
from nein.metrics import models as metric_models
from nein.metrics.base import Score as MetricScore
from nein.metrics.chat.endpoint import check_options
from nein.metrics.letters import LETTERS, parse
from nein.metrics.metric import Batch, EditPair, SceneObject, Settings
from nein.metrics.metric import score as score_batch
from nein.models import judges
from nein.models.cached import Services
from nein.models.editor_choice import EditorChoice, ExternalEdits
from nein.models.references import digest_models, identify, resolve
from nein.wording.families import MINIMAL_PAIRS

ASPECT = 1.05  # aspect ratios up to this factor apart count as equal, since editors round sides
CHANGED = "the NeIn image is not the one that was edited; it was changed in between"  # in place of the image


# --- edits -----------------------------------------------------------------------------------
@dataclass(kw_only=True, eq=False)
class Edit(Stage):
    """The first stage: sample image and instruction -> edited image, by one editor.

    A block has one sample if the editor is behind an address: a failed request is repeated alone, and a kill
    loses only the requests in flight.
    """

    # Explained at `Stage`.
    name = EDIT
    outputs = (EDIT,)
    invalidates = (SCORES,)
    cut = True

    run: RunDir
    dataset: Dataset
    blocks: Blocks  # of samples
    model: Model  # the editor
    choice: EditorChoice
    config: EvalConfig

    def __post_init__(self) -> None:
        editor = self.choice.editor
        self.asks = {editor: self.choice.edits_per_sample} if is_served(editor) else {}

    def read(self, number: int) -> tuple[int, list[tuple[Sample, Any]]]:
        """The samples of a block, each with its image (H, W, 3) uint8, or the reason why there is none."""
        samples = self.dataset.members(self.blocks.needed(number))
        return number, [(sample, read_image(sample.sample_path, "NeIn")) for sample in samples]

    def work(self, editor: Any, inputs: Any, missing: tuple[str, ...]) -> dict[str, list[EditRow]]:
        number, members = inputs
        results = self._edit(editor, [pair for pair in members if not isinstance(pair[1], str)])
        rows: list[EditRow] = []
        images_made: list[tuple[Path, np.ndarray]] = []  # (file, (H, W, 3) uint8)
        for index, (sample, image) in zip(self.blocks.needed(number), members, strict=True):
            row = EditRow(sample.id, sample.source_id, sample.object, sample.instruction(self.run.track))
            row.template = sample.template if self.run.track == "negative" else None
            row.family, row.stays, row.difficulty = sample.family, sample.stays, dict(sample.difficulty)
            row.seed = sample_seed(self.config.seed, sample.id)
            rows.append(row)
            if isinstance(image, str):
                row.error = image
                continue
            result, row.orientation = results[sample.id]
            row.sample_sha256 = pixel_digest(image)
            row.note, row.rewritten = result.note, result.rewritten
            row.seed = row.seed if getattr(editor, "seeded", True) else None
            if result.image is None:
                row.error = result.error or "the editor gave no image and no reason"
                row.refused = result.refused
                row.again = result.transient and not result.refused  # another try may succeed
                continue
            row.image = self.run.image_name(index, sample.id)
            row.sha256 = pixel_digest(result.image)
            (height, width), (input_height, input_width) = result.image.shape[:2], image.shape[:2]
            row.reshaped = not 1 / ASPECT <= width * input_height / (height * input_width) <= ASPECT
            images_made.append((self.run.image_path(row), result.image))
        with ThreadPoolExecutor(8) as pool:  # compression and disk in parallel
            list(pool.map(lambda pair: images.write_png(*pair), images_made))
        return {EDIT: rows}

    def _edit(self, editor: Any, members: Sequence[Any]) -> dict[str, tuple[EditResult, int]]:
        """Edits samples with their images. Sample id -> (result, EXIF orientation of its image)."""
        if isinstance(editor, ExternalEdits):
            return {sample.id: editor.read(sample.id) for sample, _ in members}
        requests = []
        for sample, image in members:
            instruction, seed = sample.instruction(self.run.track), sample_seed(self.config.seed, sample.id)
            requests.append(EditRequest(sample.id, image, instruction, seed))
        results = editor.edit(requests) if requests else []
        if [result.id for result in results] != [request.id for request in requests]:
            raise AssertionError(f"editor {editor.name!r} did not answer every request, in order")
        return {result.id: (result, 1) for result in results}

    def is_valid(self, output: str, number: int, rows: list[EditRow]) -> bool:
        """False if an edit is to be tried again, or an image has vanished or is empty."""
        if any(row.again or (row.refused and self.config.retry_refused) for row in rows):
            return False
        paths = [self.run.image_path(row) for row in rows if row.image is not None]
        return all(map(atomic.is_nonempty_file, paths))

    def ids(self, records: range) -> list[str]:
        return [sample.id for sample in self.dataset.members(records)]

    def files(self, records: range) -> list[Path]:
        samples = self.dataset.members(records)
        external_files = self.choice.external.files if self.choice.external else {}  # images made elsewhere
        paths = [sample.sample_path for sample in samples]
        return paths + [external_files[sample.id] for sample in samples if sample.id in external_files]


# --- scores ----------------------------------------------------------------------------------
class Scorer:
    """The models and caches of all metrics of a command; models load on first use. Threads share it."""

    def __init__(self, config: EvalConfig, device: str) -> None:
        self.loaded: dict[str, Any] = {}  # kind -> encoder, judge or network
        self._config, self._device = config, device
        self._loading = threading.Lock()  # so that no two threads load a model
        self._services: Services | None = None  # None: no metric so far has a model

    def score(
        self, items: Sequence[EditPair], names: Sequence[str], run_metrics: Sequence[str]
    ) -> dict[str, list[MetricScore]]:
        """Metric -> a score per item of one block, for the metrics `names`. run_metrics: all metrics of the
        run, so that judges get the same questions in a block that is completed later."""
        with self._loading:
            if unloaded := [name for name in names if set(list_model_kinds([name])) - self.loaded.keys()]:
                self._services = self._services or make_services(self._config)
                new_models = load_models(unloaded, self._config, self._device, self._services)
                self.loaded = {**new_models, **self.loaded}
        batch = Batch(items, self.loaded, make_settings(self._config), tuple(run_metrics))
        metrics = [METRICS[name] for name in names]
        if self._services is None:  # metrics of pixels alone
            return score_batch(metrics, batch)
        # Features of targets, and replies of judges about unedited samples, are cached by block.
        scope = hash_scope(item.id for item in items)
        features = BlockStore(FeatureCache(self._config.cache_dir / "features"), scope)
        replies = BlockStore(self._services.cache, scope)
        scores = score_batch(metrics, dataclasses.replace(batch, features=features, records=replies))
        features.flush()
        replies.flush()
        return scores

    def describe(self) -> dict[str, tuple[str, Any]]:
        return {kind: (model.fingerprint, model.describe()) for kind, model in self.loaded.items()}

    def usage(self) -> dict[str, Any]:
        return read_usage(self.loaded)

    def stop(self) -> None:
        """Stops waiting for the answers of endpoints."""
        for model in self.loaded.values():
            if hasattr(model, "stop"):
                model.stop()


@dataclass(kw_only=True, eq=False)
class Score(Stage):
    """The second stage: edits of a run -> scores, by metrics in the order of the table.

    Under protocol "paper" the images of COCO and NeIn are read as by the released scripts (`images.decode`,
    plain), and detectors see them upright.
    """

    # Explained at `Stage`.
    name = "score"
    cut = True

    run: RunDir
    dataset: Dataset
    edited: Blocks  # of the stage edit
    metrics: Sequence[str]  # in the order of the table
    model: Model  # a `Scorer`
    config: EvalConfig
    answers: Mapping[str, str] | None = None  # of a log, by `runs.question_key`: they decide removal_vqa

    def __post_init__(self) -> None:
        self.judged = [name for name in self.metrics if self.answers is None or name != "removal_vqa"]
        self.plain = self.config.protocol == "paper"
        self.blocks = self.edited.units
        self.outputs = tuple(map(score_output, self.metrics))
        # Requests per sample to a served judge. Retention asks about every object of a caption: about six.
        asking = [name for name in self.judged if "vqa" in METRICS[name].models]
        count = sum(6 if name == "retention_vqa" else 1 for name in asking)
        judge = self.config.models.vqa
        self.asks = {judge: count} if count and is_served(judge) else {}

    def read(self, number: int) -> tuple[int, list[EditPair]]:
        needed = self.blocks.needed(number)
        # The blocks of edits with these samples: several, if edits are made one by one.
        numbers = Blocks(self.blocks.count, self.edited.size, needed).numbers
        edits = {row.id: row for row in self.run.rows(EDIT, numbers)}
        samples = self.dataset.members(needed)
        if not edits.keys() >= {sample.id for sample in samples}:
            raise UserError(
                f"'{self.run.block_path(EDIT, numbers[0])}' lacks samples; remove it and rerun the command."
            )
        # Several samples may share an image of the data: it is decoded once.
        read = functools.cache(self._read_with_digest)
        return number, [self._make_pair(sample, edits[sample.id], read) for sample in samples]

    def _read_with_digest(self, path: Path, role: str) -> tuple[np.ndarray | str, str]:
        """(image (H, W, 3) uint8, digest of its pixels), or (the reason why there is none, "")."""
        image = read_image(path, role, self.plain)
        return image, "" if isinstance(image, str) else pixel_digest(image)

    def _make_pair(self, sample: Sample, edit: EditRow, read: Callable[..., Any]) -> EditPair:
        """The images of a sample that the metrics need, or reasons. read: a cache of `_read_with_digest`."""
        if edit.image is None:
            return EditPair(sample.id, edit.why_not)
        needed = {image for name in self.metrics for image in METRICS[name].images}
        # The edited image.
        edited = read_image(self.run.image_path(edit), "edited")
        if not isinstance(edited, str) and pixel_digest(edited) != edit.sha256:
            edited = "the edited image on disk is not the one this run wrote; remove it and rerun the command"
        values: Json = {"object": sample.object, "caption": sample.caption}  # further fields of the EditPair
        if edit.orientation != 1 and not isinstance(edited, str):
            values["upright"] = images.turn_upright(edited, edit.orientation)
        # The images of the data: target, unedited sample, and the sample without each of its objects.
        if "target" in needed:
            values["target"], values["target_key"] = read(sample.source_path, "COCO")
        if "sample" in needed:
            unedited, digest = read(sample.sample_path, "NeIn")
            values |= {"sample": unedited, "sample_key": digest}
            if not isinstance(unedited, str):
                if self.plain and digest != edit.sample_sha256:  # editors get it without `plain`
                    digest = pixel_digest(images.decode(sample.sample_path))
                if digest != edit.sample_sha256:
                    values["sample"] = CHANGED
                elif self.plain and (orientation := images.read_orientation(sample.sample_path)) != 1:
                    values["sample_upright"] = images.turn_upright(unedited, orientation)
        if "things" in needed:
            values["things"] = _read_things(sample)
        return EditPair(sample.id, edited, **values)

    def work(self, model: Scorer, inputs: Any, missing: tuple[str, ...]) -> dict[str, list[ScoreRow]]:
        number, items = inputs
        names = [name for name in self.judged if score_output(name) in missing]
        rows: dict[str, list[ScoreRow]] = {}
        if self.judged != self.metrics:  # removal_vqa comes from the log
            rows[score_output("removal_vqa")] = [self._read_answer(item) for item in items]
        for name, scores in model.score(items, names, self.judged).items():
            if METRICS[name].kind == "corpus":
                _write_features(self.run, name, number, items, scores)
            metric_rows = rows.setdefault(score_output(name), [])
            for item, score in zip(items, scores, strict=True):
                value = None if score.value is None else float(score.value)
                metric_rows.append(ScoreRow(item.id, value, score.reason, dict(score.detail), score.again))
        return rows

    def _read_answer(self, item: EditPair) -> ScoreRow:
        """Removal (VQA) of an edit, by the answer in the log."""
        text = (self.answers or {}).get(runs.question_key(self.run, item.id))
        if isinstance(item.edited, str):
            return ScoreRow(item.id, None, item.edited)
        if not text:
            return ScoreRow(item.id, None, "the log has no answer")
        parsed = parse(text, runs.YES_NO)
        if parsed.letter is None:
            return ScoreRow(item.id, None, parsed.reason)
        answer = runs.YES_NO[LETTERS.index(parsed.letter)]
        detail = {"object": item.object, "protocol": self.config.protocol, "answer": answer}
        return ScoreRow(item.id, float(answer == "no"), f"the log answers {text!r}", detail)

    def is_valid(self, output: str, number: int, rows: list[ScoreRow]) -> bool:
        """False if an endpoint gave no answer, or the features of the block are missing."""
        metric = output.rpartition("/")[2]  # of `score_output`
        if METRICS[metric].kind == "corpus" and not self.run.feature_path(metric, number).exists():
            return False
        return not any(row.again for row in rows)

    def ids(self, records: range) -> list[str]:
        return [sample.id for sample in self.dataset.members(records)]

    def files(self, records: range) -> list[Path]:
        paths: list[Path] = []
        for sample in self.dataset.members(records):
            paths += [sample.source_path, sample.sample_path, *(thing.without for thing in sample.things)]
        return paths

    def state(self, records: range) -> list[int]:
        """The sizes of the edited images: their pixels are compared when they are read."""
        samples = zip(records, self.dataset.members(records), strict=True)
        names = (self.run.image_name(index, sample.id) for index, sample in samples)
        return [atomic.stamp(self.run.path / name)[1] for name in names]


def _read_things(sample: Sample) -> list[SceneObject] | str:
    """The objects of a sample, each with an image without it; or why such an image cannot be read."""
    objects = []
    for thing in sample.things:
        image = read_image(thing.without, "known")
        if isinstance(image, str):
            return image
        objects.append(SceneObject(thing.name, thing.stays, image))
    return objects


def _write_features(
    run: RunDir, metric: str, number: int, items: Sequence[EditPair], scores: Sequence[MetricScore]
) -> None:
    """Writes one file per block: (n, D) float32 features of edits and of targets, for samples with both."""
    pairs = zip(items, scores, strict=True)
    rows = [(item, *score.features) for item, score in pairs if score.features is not None]
    shape = len(rows), rows[0][1].shape[0] if rows else 0  # (n, D)
    edited = np.asarray([features for _, features, _ in rows], np.float32).reshape(shape)
    target = np.asarray([features for _, _, features in rows], np.float32).reshape(shape)
    ids = [item.id for item, _, _ in rows]
    facts = {"ids": ids, "images": run.pixels(number, ids), "targets": [row[0].target_key for row in rows]}
    # One key, since the format writes several keys in a random order.
    metadata = {"about": json.dumps(facts, sort_keys=True)}
    content = safetensors.numpy.save({"edited": edited, "target": target}, metadata=metadata)
    atomic.write_bytes(run.feature_path(metric, number), content)


# --- models and options of metrics -----------------------------------------------------------
def list_model_kinds(metrics: Iterable[str]) -> list[str]:
    """The kinds of models that these metrics need: of encoders and judges, or a network's "module:class"."""
    return list(dict.fromkeys(kind for name in metrics for kind in METRICS[name].models))


def check_references(metrics: Iterable[str], config: EvalConfig) -> None:
    """Checks the models of these metrics without loading one, hours before their use. Raises UserError."""
    for kind in list_model_kinds(metrics):
        if ":" in kind:  # the network of one metric
            load_attribute(kind)
            continue
        location = resolve(getattr(config.models, kind))
        if parse_reference(location).kind != "name":
            metric_models.check_reference(location)  # a "name" is known to a library ("alex")
        if kind == "vqa":
            check_options(location, config.models.vqa_options)


def make_services(config: EvalConfig) -> Services:
    """The clients of served models, with the command's cache of answers."""
    return Services.create(config, config.cache_dir / "answers.sqlite")


def load_models(names: Iterable[str], config: EvalConfig, device: str, services: Services) -> dict[str, Any]:
    """Kind -> loaded encoder, judge or network, for these metrics. Encoders always run in float32."""
    loaded = {}
    for kind in list_model_kinds(names):
        if ":" in kind:
            loaded[kind] = load_attribute(kind)(device=device)
            continue
        reference = getattr(config.models, kind)
        if kind in metric_models.ENCODERS:
            location = resolve(reference)
            loaded[kind] = metric_models.load_encoder(kind, location, device=device, dtype="float32")
        else:
            options: dict[str, Any] = {"dtype": config.judge_dtype, **select_judge_options(kind, config)}
            loaded[kind] = judges.load(kind, reference, services=services, device=device, **options)
    return loaded


def select_judge_options(kind: str, config: EvalConfig) -> dict[str, Any]:
    """The options of a judge, as `metrics.load_judge` takes them."""
    if kind == "vqa":
        options, weights = config.models.vqa_options, config.models.vqa_quantization
        return dict(options) if weights == "none" else {**options, "quantization": weights}
    if kind == "ovd":
        return {"pad": config.models.ovd_pad, "backend": config.models.ovd_backend}
    return {}


def make_settings(config: EvalConfig) -> Settings:
    """The settings of metrics, from the configuration."""
    # Fields with the same name in both.
    shared = ("align", "protocol", "threshold", "article", "evidence", "batch_size")
    return Settings(
        resolution=config.align_resolution,
        asks_sample=MINIMAL_PAIRS in config.families,
        **{name: getattr(config, name) for name in shared},
    )


def collect_score_facts(metric: str, config: EvalConfig, device: str) -> dict[str, Any]:
    """Everything in the configuration that decides a metric's values, given the images."""
    facts: Json = {"device": device.partition(":")[0]}
    models = {}  # kind -> reference
    for kind in METRICS[metric].models:
        if ":" in kind:  # the network of one metric
            facts[kind] = kind
            continue
        models[kind] = getattr(config.models, kind)
        facts[kind] = identify(models[kind])
        if kind in metric_models.JUDGES:
            facts |= {"dtype": config.judge_dtype, **select_judge_options(kind, config)}
    facts |= digest_models(models)
    settings = make_settings(config)
    return facts | {name: settings.identity(name) for name in METRICS[metric].settings}
