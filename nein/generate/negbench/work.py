"""The stages of a build as functions of a shard, and the models that they need."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from nein import metrics
from nein.datasets.negbench import sentences
from nein.datasets.negbench.concepts import ROW, Concepts
from nein.datasets.negbench.medical import CONDITIONS
from nein.datasets.negbench.records import Media, Option, Question, RetrievalItem
from nein.engine import images
from nein.engine.blocks import Blocks
from nein.engine.folder import Folder, Row
from nein.engine.stages import Model, usage_of
from nein.generate import job
from nein.generate.negbench import language, pairs, sources
from nein.generate.negbench.config import STAGES, BuildConfig
from nein.generate.negbench.pairs import EditorMaker, TextMaker, Verifier, verify
from nein.generate.negbench.sources import Listing
from nein.generate.nein.sources import COCO
from nein.loading.digests import folder_digest, json_digest
from nein.models import editor_choice, references
from nein.models.cached import Services
from nein.models.llm import client as llm


@dataclass(frozen=True)
class Tasks:
    """What one image gives; None and empty where it gives nothing."""

    original: RetrievalItem | None = None
    negated: RetrievalItem | None = None
    questions: tuple[Question, ...] = ()
    medical: Mapping[str, Question] = field(default_factory=dict)  # by the name of the task


@dataclass(frozen=True)
class Job(job.Job):
    """A build of NegBench. media: reads pictures by their path."""

    listing: Listing
    media: Media

    @property
    def blocks(self) -> Blocks:
        return Blocks.first(self.listing.count, self.listing.shard_size, self.config.limit)

    @property
    def dataset(self) -> Path:
        """The finished files, and the pictures of pairs."""
        return self.folder.path / "dataset"

    @property
    def stages(self) -> Sequence[str]:
        config, pairs = self.config, self.config.source == "pairs"
        needed = {
            "pairs": pairs, "concepts": config.concepts == "llm" and not pairs,
            "verify": config.verify != "none" and not pairs, "validate": config.validate,
            "paraphrase": config.paraphrase,
        }  # fmt: skip
        return [stage for stage in STAGES if needed[stage]]

    def validity(self, stage: str) -> Callable[[list[Row]], bool] | None:
        """A shard whose language model gave no answer (a timeout, a refusal) is done again, and with it what
        was made of it; so is one whose pictures have vanished."""

        def valid(rows: list[Row]) -> bool:
            paths = [row["path"] for row in rows if stage == "pairs" and row.get("path")]
            return not unanswered(rows) and all((self.dataset / path).exists() for path in paths)

        return None if stage == "verify" else valid

    def model(self, stage: str, device: str) -> Model:
        """What a stage needs, not loaded. To validate, the language model answers at temperature 0."""
        config, folder = self.config, self.folder
        if stage == "pairs":
            return Model(
                "maker", lambda: _tools(config, folder, device),
                lambda t: _described(maker=t.maker, detector=t.verifier.detector, llm=t.client),
                usage=lambda t: usage_of({"llm": t.client}),
            )  # fmt: skip
        if stage == "verify":
            load = functools.partial(_verifier, config, device, config.protocol)
            return Model("detector", load, lambda verifier: _described(detector=verifier.detector))
        kind = "llm"
        if stage == "validate":
            kind = "checker"
            config = replace(config, llm=replace(config.llm, temperature=0.0, attempts=1, max_tokens=VERDICT))
        return Model(
            kind, lambda: _client(config, folder, device), lambda client: _described(**{kind: client}),
            references.place(str(config.llm.model)), lambda client: usage_of({kind: client}),
        )  # fmt: skip

    def concepts(self, shard: int, before: str | None = None) -> list[Concepts]:
        """The images of a shard as the stages before `before` (default: all) left them."""
        done = [s for s in self.stages if s != "paraphrase"]
        if before in done:
            done = done[: done.index(before)]
        if not done:
            return sources.members(self.folder, shard)
        return [Concepts.of(row) for row in self.rows(done[-1], shard, ROW)]

    def tasks(self, image: Concepts) -> Tasks:
        """The templated items and questions of an image."""
        config = self.config
        rules: Any = {"thing": config.thing, "protocol": config.protocol}
        if image.problem:
            return Tasks()
        if config.form == "training":
            item = sentences.training_captions(image, config.seed, order=config.order, **rules)
            question = sentences.training_question(image, config.seed, wording=config.wording, **rules)
            return Tasks(None, item, (question,) if question else ())
        both = sentences.retrieval_items(
            image, config.seed, captions=config.captions_per_image, order=config.order, **rules
        )
        how: Any = {"count": config.asked, "wording": config.wording}
        if config.mcq == "files":
            single = config.source == "voc"
            questions = sentences.questions_as_filed(
                image, config.seed, thing=config.thing, single=single, **how
            )
        else:
            questions = sentences.evaluation_questions(
                image, config.seed, single=config.medical, **how, **rules
            )
        medical: dict[str, Question] = {}
        if config.medical:
            named = CONDITIONS if config.source == "chexpert" and config.protocol == "paper" else ()
            medical = sentences.medical_questions(
                image, config.seed, wording=config.wording, conditions=named
            )
        return Tasks(both[0] if both else None, both[1] if both else None, tuple(questions), medical)

    def make_pairs(self, shard: int, tools: PairTools) -> list[Row]:
        config, members = self.config, self.concepts(shard, "pairs")
        ids = [image.id for image in members]
        if tools.client is None:
            plans = [pairs.plan_edit(image, tools.vocabulary, config.seed) for image in members]
        else:
            plans = language.imagine(tools.client, ids, config.seed)
        paths = {image.id: image.path for image in members}

        def source(name: str) -> np.ndarray | None:
            return self.media.frames(paths[name])[0] if config.edits else None

        def save(name: str, picture: np.ndarray) -> str:
            path = f"pictures/{name.replace('/', '_')}.png"
            images.write_png(self.dataset / path, picture)
            return path

        results = pairs.make_pairs(
            plans, ids, source, tools.maker, tools.verifier, save, seed=config.seed, attempts=config.attempts
        )
        return [image.row() for image in results]

    def make_concepts(self, shard: int, client: llm.Client) -> list[Row]:
        config, members = self.config, self.concepts(shard, "concepts")
        arguments = (members, config.seed, config.absent, config.thing)
        extracted = language.extract(client, *arguments, protocol=config.protocol)
        return [image.row() for image in extracted]

    def make_validate(self, shard: int, client: llm.Client) -> list[Row]:
        members = self.concepts(shard, "validate")
        return [image.row() for image in language.validate(client, members)]

    def make_verify(self, shard: int, verifier: Verifier) -> list[Row]:
        members, size = self.concepts(shard, "verify"), int(self.config.batch_size)
        both = self.config.verify == "both"
        rows: list[Row] = []
        for start in range(0, len(members), size):  # memory holds the pictures of a batch, not of a shard
            batch = members[start : start + size]
            done = verify(verifier, batch, lambda image: self.media.frames(image.path)[0], positives=both)
            rows += [image.row() for image in done]
        return rows

    def make_paraphrase(self, shard: int, client: llm.Client) -> list[Row]:
        """Per image: the rephrased captions and options, None where one was refused, and why."""
        config = self.config
        members = self.concepts(shard)
        owned = [
            (image.id, text) for image in members for text in _sentences(image, self.tasks(image), config)
        ]
        sentences = [sentence for _, sentence in owned]
        paraphrases = language.paraphrase(
            client, sentences, config.seed, keep_order=config.affneg, protocol=config.protocol
        )
        rows: dict[str, Row] = {image.id: {"id": image.id, "texts": {}, "refused": []} for image in members}
        for (owner, sentence), (text, why) in zip(owned, paraphrases, strict=True):
            rows[owner]["texts"][sentence.id] = text
            if why:
                rows[owner]["refused"].append(why)
        return list(rows.values())


def _sentences(image: Concepts, tasks: Tasks, config: BuildConfig) -> list[language.Sentence]:
    from nein.datasets.negbench.polarity import mentions, polarity

    def unnamed(text: str) -> tuple[str, ...]:
        return tuple(n for n in (*image.positives, *image.negatives) if not mentions(text, n))

    negations: Sequence[sentences.Negation | None] = ()
    if tasks.negated is not None:
        negations = [None] * len(tasks.negated.captions)
        if config.form == "training":
            negations = sentences.training_negations(
                image, config.seed, order=config.order, protocol=config.protocol
            )
    found: list[language.Sentence] = []
    captions = tasks.negated.captions if tasks.negated else ()
    for number, (caption, negation) in enumerate(zip(captions, negations, strict=True)):
        denied = [name for name in image.negatives if mentions(caption, name)]
        affirmed = [name for name in image.positives if polarity(caption, name) == "affirmed"]
        name = f"{image.id}/c{number}"
        found.append(language.Sentence(name, caption, affirmed, denied, unnamed(caption), negation=negation))
    for question in tasks.questions:
        for number, option in enumerate(question.options):
            affirmed, denied = language.claims(option.text, config.wording, config.thing)
            name, text = f"{question.id}/o{number}", option.text
            found.append(language.Sentence(name, text, affirmed, denied, unnamed(text)))
    return found


def rephrased(tasks: Tasks, image: Concepts, row: dict[str, Any]) -> Tasks:
    """The tasks in other words; an item or question with a sentence that was refused is left out."""
    texts: dict[str, str | None] = row["texts"]

    def words(prefix: str, count: int) -> list[str] | None:
        said_anew = [texts.get(f"{prefix}{k}") for k in range(count)]
        return None if any(text is None for text in said_anew) else [str(text) for text in said_anew]

    negated = None
    if tasks.negated is not None:
        captions = words(f"{image.id}/c", len(tasks.negated.captions))
        negated = replace(tasks.negated, captions=tuple(captions)) if captions else None
    questions = []
    for question in tasks.questions:
        rewordings = words(f"{question.id}/o", len(question.options))
        if rewordings:
            options = tuple(Option(t, o.template) for t, o in zip(rewordings, question.options, strict=True))
            questions.append(replace(question, options=options))
    return Tasks(tasks.original if negated else None, negated, tuple(questions))


def unanswered(rows: Sequence[Row]) -> bool:
    """Whether there is a row that only lacks an answer, so that its shard is worth another try."""
    reasons = [str(row.get("problem", "")) for row in rows]
    reasons += [why for row in rows for why in row.get("refused", ())]
    return any(reason.startswith(language.NO_ANSWER) for reason in reasons)


VERDICT = 64  # tokens of an answer whether a list is one; the released code asks for 10, of "Yes" or "No"


@dataclass(frozen=True)
class PairTools:
    """What making pairs needs. `client`: thinks of scenes; None where an editor starts from pictures."""

    maker: EditorMaker | TextMaker
    verifier: Verifier
    vocabulary: Sequence[str]
    client: llm.Client | None

    def stop(self) -> None:
        """Ends waiting for answers."""
        if self.client is not None:
            self.client.stop()


def _described(**parts: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Kind -> fingerprint and description; nothing of None."""
    described = {kind: (part, part.describe()) for kind, part in parts.items() if part is not None}
    return {
        kind: (getattr(part, "fingerprint", None) or json_digest(facts)[:16], facts)
        for kind, (part, facts) in described.items()
    }


def _tools(config: BuildConfig, folder: Folder, device: str) -> PairTools:
    from nein.nano.draw import CATEGORIES

    client = None if config.edits else _client(config, folder, device)
    vocabulary = CATEGORIES if config.preset == "nano" else COCO
    # How the authors verified pairs is not released.
    return PairTools(_maker(config, folder, device), _verifier(config, device, "fixed"), vocabulary, client)


def _client(config: BuildConfig, folder: Folder, device: str) -> llm.Client:
    return llm.load(config.llm, services=Services.of(config, folder.answers), device=device)


def _verifier(config: BuildConfig, device: str, protocol: Any) -> Verifier:
    where = references.resolve(config.detector)
    detector = metrics.load_judge("ovd", where, device=device, dtype=config.dtype)
    return Verifier(detector, config.query, config.threshold, protocol, config.absent)


def _maker(config: BuildConfig, folder: Folder, device: str) -> EditorMaker | TextMaker:
    name = config.maker.partition(":")[2]
    if config.edits:
        choice = editor_choice.choose_editor(name, config.preset, {"steps": config.steps})
        how: dict[str, Any] = {"device": device, "dtype": config.dtype, "batch_size": config.batch_size}
        return EditorMaker(choice.load(services=lambda: Services.of(config, folder.answers), **how))
    pipeline, identity = text_pipeline(name, device, config.dtype)
    return TextMaker(pipeline, identity, resolution=config.resolution, steps=config.steps)


def text_pipeline(name: str, device: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    """A text-to-image pipeline of diffusers from a folder or the hub (safetensors only), and what it is."""
    import torch
    from diffusers import AutoPipelineForText2Image, DiffusionPipeline

    from nein.editors.checkpoint import check_parts, check_tokenizers, explained, locate
    from nein.loading.digests import torch_dtype

    where, revision = locate(name)
    with explained(name):
        check_parts(DiffusionPipeline.load_config(where, revision=revision), name, where, revision)
        pipeline = AutoPipelineForText2Image.from_pretrained(
            where, revision=revision, use_safetensors=True, torch_dtype=torch_dtype(dtype)
        )
    check_tokenizers(pipeline, name)
    pipeline.set_progress_bar_config(disable=True)
    if getattr(pipeline, "safety_checker", None) is not None:
        # It would put a black picture in the place of one it refuses, which the detector would then judge.
        pipeline.safety_checker = None
    weights = folder_digest(Path(where)) if Path(where).is_dir() else f"{where}@{revision or 'main'}"
    identity = {"class": type(pipeline).__name__, "weights": weights, "dtype": dtype}
    return pipeline.to(torch.device(device)), identity
