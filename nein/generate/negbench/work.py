"""The stages as functions of a shard; a record depends on shard, options and models alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.records import Media, Option, Question, RetrievalItem
from nein.datasets.negbench.wording import (
    evaluation_questions,
    retrieval_items,
    training_captions,
    training_question,
)
from nein.engine import images
from nein.generate.negbench import language, pairs
from nein.generate.negbench.config import STAGES, BuildConfig
from nein.generate.negbench.listing import Listing
from nein.generate.negbench.verify import Verifier, verify
from nein.generate.nein.ledger import Ledger

MODELS: dict[str, str | None] = {
    "pairs": "maker", "concepts": "llm", "verify": "detector", "paraphrase": "llm",
}  # fmt: skip
NEGCAP = 3  # captions per image of CC12M-NegCap


@dataclass(frozen=True)
class Tasks:
    """What one image gives; None and empty where it gives nothing."""

    original: RetrievalItem | None = None
    negated: RetrievalItem | None = None
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True)
class Job:
    """What all workers of a build share.

    media  Reads the pictures of the listing by their path. `made`: folder of the pictures of pairs.
    """

    config: BuildConfig
    listing: Listing
    media: Media
    made: Path
    ledger: Ledger

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that this configuration needs, in order."""
        needed = {
            "pairs": self.config.source == "pairs",
            "concepts": self.config.concepts == "llm" and self.config.source != "pairs",
            "verify": self.config.verify != "none" and self.config.source != "pairs",
            "paraphrase": self.config.paraphrase,
        }
        return tuple(stage for stage in STAGES if needed[stage])

    def concepts(self, shard: int, before: str | None = None) -> list[Concepts]:
        """The images of a shard as the stages before `before` (default: all) left them."""
        done = [s for s in self.stages if s != "paraphrase"]
        if before in done:
            done = done[: done.index(before)]
        if not done:
            return self.listing.members(shard)
        return [Concepts.of(row) for row in self.ledger.record(done[-1], shard)["rows"]]

    def tasks(self, image: Concepts) -> Tasks:
        """The templated items and questions of an image."""
        config = self.config
        if image.problem:
            return Tasks()
        if config.form == "training":
            item = training_captions(
                image, config.seed, count=config.captions_per_image or NEGCAP, thing=config.thing,
                order=config.order,
            )  # fmt: skip
            question = training_question(image, config.seed, wording=config.wording, thing=config.thing)
            return Tasks(None, item, (question,) if question else ())
        both = retrieval_items(
            image, config.seed, captions=config.captions_per_image, thing=config.thing, order=config.order
        )
        questions = evaluation_questions(
            image, config.seed, count=config.questions, wording=config.wording, thing=config.thing
        )
        return Tasks(both[0] if both else None, both[1] if both else None, tuple(questions))


def run_stage(job: Job, stage: str, shard: int, model: Any) -> list[dict[str, Any]]:
    """The rows of one stage of a shard."""
    return {"pairs": _pairs, "concepts": _concepts, "verify": _verify, "paraphrase": _paraphrase}[stage](
        job, shard, model
    )


def _pairs(job: Job, shard: int, model: Any) -> list[dict[str, Any]]:
    """`model`: (maker, verifier, vocabulary, language model or None)."""
    maker, verifier, vocabulary, client = model
    config, members = job.config, job.concepts(shard, "pairs")
    ids = [image.id for image in members]
    if config.edits:
        plans = [pairs.plan_edit(image, vocabulary, config.seed) for image in members]
    else:
        plans = [
            _planned(i, scene)
            for i, scene in zip(ids, language.imagine(client, ids, config.seed), strict=True)
        ]
    paths = {image.id: image.path for image in members}

    def source(name: str) -> np.ndarray | None:
        return job.media.frames(paths[name])[0] if config.edits else None

    def save(name: str, picture: np.ndarray) -> str:
        path = f"pictures/{name.replace('/', '_')}.png"
        images.write_png(job.made / path, picture)
        return path

    made = pairs.make_pairs(
        plans, ids, source, maker, verifier, save, seed=config.seed, attempts=config.attempts
    )
    return [image.row() for image in made]


def _planned(name: str, scene: language.Scene | str) -> pairs.Plan | str:
    if isinstance(scene, str):
        return scene
    return pairs.Plan(name, scene.caption, scene.caption_with_extra, tuple(scene.objects), scene.extra)


def _concepts(job: Job, shard: int, client: Any) -> list[dict[str, Any]]:
    config, members = job.config, job.concepts(shard, "concepts")
    found = language.extract(client, members, config.seed, config.negatives, config.thing)
    return [image.row() for image in found]


def _verify(job: Job, shard: int, verifier: Verifier) -> list[dict[str, Any]]:
    members, size = job.concepts(shard, "verify"), int(job.config.batch_size)
    found = [
        image
        for start in range(0, len(members), size)  # memory holds the pictures of a batch, not of a shard
        for image in verify(
            verifier,
            members[start : start + size],
            lambda image: job.media.frames(image.path)[0],
            positives=job.config.verify == "both",
        )
    ]
    return [image.row() for image in found]


def _paraphrase(job: Job, shard: int, client: Any) -> list[dict[str, Any]]:
    """Per image: the rephrased captions and options, None where one was refused, and why."""
    config = job.config
    sentences: list[language.Sentence] = []
    owners: list[str] = []
    members = job.concepts(shard)
    for image in members:
        tasks = job.tasks(image)
        for sentence in _sentences(image, tasks, config):
            sentences.append(sentence)
            owners.append(image.id)
    found = language.paraphrase(client, sentences, config.seed, keep_order=config.affneg)
    rows: dict[str, dict[str, Any]] = {
        image.id: {"id": image.id, "texts": {}, "refused": []} for image in members
    }
    for owner, sentence, (text, why) in zip(owners, sentences, found, strict=True):
        rows[owner]["texts"][sentence.id] = text
        if why:
            rows[owner]["refused"].append(why)
    return list(rows.values())


def _sentences(image: Concepts, tasks: Tasks, config: BuildConfig) -> list[language.Sentence]:
    from nein.datasets.negbench.polarity import mentions, polarity

    found: list[language.Sentence] = []

    def add(name: str, text: str, affirmed: list[str], denied: list[str]) -> None:
        others = [n for n in (*image.positives, *image.negatives) if not mentions(text, n)]
        found.append(language.Sentence(id=name, text=text, affirmed=affirmed, denied=denied, others=others))

    for number, caption in enumerate(tasks.negated.captions if tasks.negated else ()):
        denied = [name for name in image.negatives if mentions(caption, name)]
        affirmed = [name for name in image.positives if polarity(caption, name) == "affirmed"]
        add(f"{image.id}/c{number}", caption, affirmed, denied)
    for question in tasks.questions:
        for number, option in enumerate(question.options):
            affirmed, denied = language.claims(option.text, config.wording, config.thing)
            add(f"{question.id}/o{number}", option.text, affirmed, denied)
    return found


def rephrased(tasks: Tasks, image: Concepts, row: dict[str, Any]) -> Tasks:
    """The tasks in other words; an item or question with a sentence that was refused is left out."""
    from dataclasses import replace

    texts: dict[str, str | None] = row["texts"]

    def words(prefix: str, count: int) -> list[str] | None:
        found = [texts.get(f"{prefix}{k}") for k in range(count)]
        return None if any(text is None for text in found) else [str(text) for text in found]

    negated = None
    if tasks.negated is not None:
        captions = words(f"{image.id}/c", len(tasks.negated.captions))
        negated = replace(tasks.negated, captions=tuple(captions)) if captions else None
    questions = []
    for question in tasks.questions:
        said = words(f"{question.id}/o", len(question.options))
        if said:
            options = tuple(Option(t, o.template) for t, o in zip(said, question.options, strict=True))
            questions.append(replace(question, options=options))
    return Tasks(tasks.original if negated else None, negated, tuple(questions))


def unanswered(rows: Sequence[dict[str, Any]]) -> bool:
    """Whether a record has a row that only lacks an answer, so that its shard is worth another try."""
    reasons = [str(row.get("problem", "")) for row in rows]
    reasons += [why for row in rows for why in row.get("refused", ())]
    return any(reason.startswith(language.NO_ANSWER) for reason in reasons)


def describe(config: BuildConfig) -> dict[str, Any]:
    """The configuration as JSON."""
    return asdict(config)
