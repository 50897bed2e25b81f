"""What an image gives: captions that deny, questions; from templates, and in other words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from nein.datasets.negbench import official, sentences
from nein.datasets.negbench.concepts import Concepts
from nein.datasets.negbench.medical import CONDITIONS
from nein.datasets.negbench.official import RETRIEVAL, TRAINING_CAPTIONS
from nein.datasets.negbench.polarity import mentions, polarity
from nein.datasets.negbench.records import Question, RetrievalItem
from nein.generate.negbench.config import BuildConfig
from nein.generate.negbench.language import Sentence, claims

#: Stem of a file -> its layout: captions that negate and questions of evaluation (with the original captions
#: beside them), questions of the medical sets, captions and questions to train on.
FILES = {
    "negated_retrieval": RETRIEVAL,
    "retrieval": RETRIEVAL,
    "mcq": official.Form(4),
    "mcq_control": official.Form(4),
    "binary_mcq": official.Form(2),
    "binary_mcq_control": official.Form(2),
    "negcap": TRAINING_CAPTIONS,
    "negmcq": official.Form(4, training=True),
}
ORIGINALS = "retrieval"
#: Task of a medical question -> its file.
MEDICAL = {"mcq-control": "mcq_control", "binary": "binary_mcq", "binary-control": "binary_mcq_control"}
#: Files that are written in other words too, beside the templated ones.
REPHRASED = ("negated_retrieval", "mcq", "negcap", "negmcq")
#: Stem of a file -> its records of one image.
Tasks = dict[str, list[RetrievalItem | Question]]


def of_image(image: Concepts, config: BuildConfig) -> Tasks:
    """The templated items and questions of an image, by file; a file that it gives nothing is left out."""
    if image.problem:
        return {}
    seed, found = config.seed, Tasks()
    how: dict[str, Any] = {"thing": config.thing, "protocol": config.protocol}
    if config.form == "training":
        if item := sentences.training_captions(image, seed, order=config.order, **how):
            found["negcap"] = [item]
        if question := sentences.training_question(image, seed, wording=config.wording, **how):
            found["negmcq"] = [question]
        return found
    how |= {"captions": config.captions_per_image, "order": config.order}
    if items := sentences.retrieval_items(image, seed, **how):
        found = {ORIGINALS: [items[0]], "negated_retrieval": [items[1]]}
    asked: dict[str, Any] = {"count": config.asked, "wording": config.wording, "thing": config.thing}
    if config.mcq == "files":
        questions = sentences.questions_as_filed(image, seed, single=config.source == "voc", **asked)
    else:
        asked["protocol"] = config.protocol
        questions = sentences.evaluation_questions(image, seed, single=config.medical, **asked)
    if questions:
        found["mcq"] = [*questions]
    if config.medical:
        named = CONDITIONS if config.source == "chexpert" and config.protocol == "paper" else ()
        medical = sentences.medical_questions(image, seed, wording=config.wording, conditions=named)
        found |= {MEDICAL[task]: [question] for task, question in medical.items()}
    return found


def to_rephrase(image: Concepts, config: BuildConfig) -> Iterator[Sentence]:
    """The sentences of an image's tasks, with what each says is there and is not."""
    named, negations = (*image.positives, *image.negatives), list[sentences.Negation]()
    if config.form == "training" and not image.problem:
        how: dict[str, Any] = {"order": config.order, "protocol": config.protocol}
        negations = sentences.training_negations(image, config.seed, **how)
    tasks = of_image(image, config)
    for record in (record for stem in REPHRASED for record in tasks.get(stem, ())):
        for number, (name, text) in enumerate(parts(record)):
            others = tuple(other for other in named if not mentions(text, other))
            if isinstance(record, Question):
                yield Sentence(name, text, *claims(text, config.wording, config.thing), others)
                continue
            denied = [other for other in image.negatives if mentions(text, other)]
            affirmed = [other for other in image.positives if polarity(text, other) == "affirmed"]
            negation = negations[number] if negations else None
            yield Sentence(name, text, affirmed, denied, others, negation)


def parts(record: RetrievalItem | Question) -> list[tuple[str, str]]:
    """(id, text) of a record's captions or options."""
    if isinstance(record, RetrievalItem):
        return [(f"{record.id}/c{k}", text) for k, text in enumerate(record.captions)]
    return [(f"{record.id}/o{k}", option.text) for k, option in enumerate(record.options)]


def rephrased(tasks: Tasks, texts: Mapping[str, str | None]) -> Tasks:
    """The tasks in other words, by the ids of `parts`, without records that hold a refused sentence."""
    found: Tasks = {}
    for stem in REPHRASED:
        for record in tasks.get(stem, ()):
            words = [text for name, _ in parts(record) if (text := texts.get(name)) is not None]
            if len(words) < len(parts(record)):
                continue
            if isinstance(record, RetrievalItem):
                record = replace(record, captions=tuple(words))
            else:
                options = zip(record.options, words, strict=True)
                record = replace(record, options=tuple(replace(o, text=text) for o, text in options))
            found.setdefault(stem, []).append(record)
    return found
