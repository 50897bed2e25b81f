"""What an image gives: captions that deny, questions; from templates, and in other words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nein.datasets.negbench import sentences
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.medical import CONDITIONS
from nein.datasets.negbench.polarity import mentions, polarity
from nein.datasets.negbench.records import Option, Question, RetrievalItem
from nein.generate.negbench.config import BuildConfig
from nein.generate.negbench.language import Sentence, claims


@dataclass(frozen=True)
class Tasks:
    """What one image gives; None and empty where it gives nothing."""

    original: RetrievalItem | None = None
    negated: RetrievalItem | None = None
    questions: tuple[Question, ...] = ()
    medical: Mapping[str, Question] = field(default_factory=dict)  # by the name of the task


def of_image(image: Concepts, config: BuildConfig) -> Tasks:
    """The templated items and questions of an image."""
    if image.problem:
        return Tasks()
    rules: Any = {"thing": config.thing, "protocol": config.protocol}
    how: Any = {"count": config.asked, "wording": config.wording}
    if config.form == "training":
        item = sentences.training_captions(image, config.seed, order=config.order, **rules)
        question = sentences.training_question(image, config.seed, wording=config.wording, **rules)
        return Tasks(None, item, (question,) if question else ())
    original, negated = sentences.retrieval_items(
        image, config.seed, captions=config.captions_per_image, order=config.order, **rules
    ) or (None, None)
    if config.mcq == "files":
        how |= {"thing": config.thing, "single": config.source == "voc"}
        questions = sentences.questions_as_filed(image, config.seed, **how)
    else:
        questions = sentences.evaluation_questions(image, config.seed, single=config.medical, **how, **rules)
    if not config.medical:
        return Tasks(original, negated, tuple(questions))
    named = CONDITIONS if config.source == "chexpert" and config.protocol == "paper" else ()
    medical = sentences.medical_questions(image, config.seed, wording=config.wording, conditions=named)
    return Tasks(original, negated, tuple(questions), medical)


def to_rephrase(image: Concepts, config: BuildConfig) -> list[Sentence]:
    """The sentences of an image's tasks, with what each says is there and is not."""
    tasks = of_image(image, config)
    captions = tasks.negated.captions if tasks.negated else ()
    negations: Sequence[sentences.Negation | None] = [None] * len(captions)
    if captions and config.form == "training":
        negations = sentences.training_negations(
            image, config.seed, order=config.order, protocol=config.protocol
        )
    found: list[Sentence] = []
    for number, (caption, negation) in enumerate(zip(captions, negations, strict=True)):
        denied = [name for name in image.negatives if mentions(caption, name)]
        affirmed = [name for name in image.positives if polarity(caption, name) == "affirmed"]
        others = _unnamed(image, caption)
        found.append(Sentence(f"{image.id}/c{number}", caption, affirmed, denied, others, negation))
    for question in tasks.questions:
        for number, option in enumerate(question.options):
            affirmed, denied = claims(option.text, config.wording, config.thing)
            others = _unnamed(image, option.text)
            found.append(Sentence(f"{question.id}/o{number}", option.text, affirmed, denied, others))
    return found


def _unnamed(image: Concepts, text: str) -> tuple[str, ...]:
    return tuple(name for name in (*image.positives, *image.negatives) if not mentions(text, name))


def rephrased(tasks: Tasks, texts: Mapping[str, str | None]) -> Tasks:
    """The tasks in other words, by the ids of `to_rephrase`; an item or question with a sentence that was
    refused is left out."""
    negated = tasks.negated
    if negated is not None:
        captions = [texts.get(f"{negated.id}/c{k}") for k in range(len(negated.captions))]
        negated = replace(negated, captions=tuple(map(str, captions))) if None not in captions else None
    questions = []
    for question in tasks.questions:
        words = [texts.get(f"{question.id}/o{k}") for k in range(len(question.options))]
        if None not in words:
            pairs = zip(words, question.options, strict=True)
            options = tuple(Option(str(text), option.template) for text, option in pairs)
            questions.append(replace(question, options=options))
    return Tasks(tasks.original if negated else None, negated, tuple(questions))
