"""The stages of `nein negbench generate`: they find out which objects images show and lack, and paraphrase.

Each class is a stage, in the order of a command. The last part builds the captions and questions of an image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nein import metrics
from nein.datasets.negbench import sentences
from nein.datasets.negbench.polarity import find_mentions, find_polarity
from nein.datasets.negbench.records import Question, RetrievalItem
from nein.datasets.negbench.sentences import Concepts
from nein.engine import images
from nein.engine.folder import Row
from nein.generate import maker
from nein.generate.config import NegbenchConfig
from nein.generate.maker import COCO_CATEGORIES, ShardStage
from nein.generate.negbench import language, pairs
from nein.generate.negbench.language import Sentence, parse_option
from nein.generate.negbench.pairs import LoadedImage, PairTools, Verifier
from nein.loading.references import is_served
from nein.models import editor_choice, llm, references


# --- stages --------------------------------------------------------------------------------------
class NegbenchStage(ShardStage):
    """A stage of the language model, unless it loads another. Requests without an answer are repeated."""

    kind = "llm"  # of the stage's model

    def load(self) -> Any:
        return self.maker.client(self.config.llm, self.device)

    def works_at(self) -> str:
        asks = self.kind in ("llm", "checker") and is_served(str(self.config.llm.model))
        return "remote" if asks else "device"

    def read(self, number: int) -> Any:
        """The images as the earlier stages left them."""
        return self.maker.concepts(number, before=self.name)

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        return not any(row.problem.startswith(language.NO_ANSWER) for row in rows)

    def load_verifier(self, protocol: Any) -> Verifier:
        config = self.config
        reference = references.resolve(config.detector)
        detector = metrics.load_judge("ovd", reference, device=self.device, dtype=config.dtype)
        return Verifier(detector, config.query, config.threshold, protocol, absent_count=config.absent)

    def load_image(self, image: Concepts) -> LoadedImage:
        try:
            return image, self.maker.media.frames(image.path)[0]
        except images.ImageError as error:
            return image, f"{maker.UNREADABLE}: {str(error).rpartition(': ')[2]}"  # without the path


class MakePairs(NegbenchStage):
    """Makes two images that differ in one object, by an editor or from text (HardNeg-Syn)."""

    name, kind = "pairs", "pairs"

    def load(self) -> PairTools:
        config = self.config
        options = {"device": self.device, "dtype": config.dtype}
        verifier = self.load_verifier("fixed")  # how the authors verified pairs is not released
        if pipeline := config.maker_for("text"):
            text_maker = pairs.TextMaker(pipeline, steps=config.steps, **options)
            return PairTools(text_maker, verifier, client=super().load())
        name = config.maker_for("editor")
        choice = editor_choice.choose_editor(name, config.preset, {"steps": config.steps})
        editor = choice.load(services=self.maker.services, batch_size=config.batch_size, **options)
        return PairTools(pairs.EditorMaker(editor), verifier)

    def read(self, number: int) -> list[LoadedImage]:
        from_text = self.config.maker_for("text")  # there is no image to read
        return [(image, "") if from_text else self.load_image(image) for image in super().read(number)]

    def make(self, model: PairTools, inputs: list[LoadedImage]) -> list[Concepts]:
        from nein.nano.scenes import CATEGORIES

        config, folder = self.config, self.maker.dataset
        vocabulary = CATEGORIES if config.preset == "nano" else COCO_CATEGORIES
        if model.client is None:
            plans = {loaded[0].id: pairs.plan_edit(loaded, vocabulary, config.seed) for loaded in inputs}
        else:
            plans = language.plan_scenes(model.client, [image.id for image, _ in inputs], config.seed)
        return pairs.make_pairs(plans, model, folder=folder, seed=config.seed, attempts=config.attempts)

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """Images that have vanished are made again."""
        paths = [self.maker.dataset / row.path for row in rows if row.path]
        return super().is_valid(output, number, rows) and all(path.exists() for path in paths)


class ExtractConcepts(NegbenchStage):
    """The language model lists objects that captions mention, and others that could be there but are not."""

    name = "concepts"

    def make(self, model: llm.Client, inputs: list[Concepts]) -> list[Concepts]:
        config = self.config
        return language.extract(
            model, inputs, config.seed, count=config.absent, thing=config.thing, protocol=config.protocol
        )


class Verify(NegbenchStage):
    """A detector drops absent objects that it finds; `--verify both`: also present ones that it misses."""

    name, kind = "verify", "detector"

    def load(self) -> Verifier:
        return self.load_verifier(self.config.protocol)

    def read(self, number: int) -> list[LoadedImage]:
        return [self.load_image(image) for image in super().read(number)]

    def make(self, model: Verifier, inputs: list[LoadedImage]) -> list[Concepts]:
        rows: list[Concepts] = []
        size = int(self.config.batch_size)
        for start in range(0, len(inputs), size):
            batch = inputs[start : start + size]
            rows += pairs.verify(model, batch, also_present=self.config.verify == "both")
        return rows


class Validate(NegbenchStage):
    """The language model says at temperature 0 whether both lists of an image hold nothing but objects."""

    name, kind = "validate", "checker"
    MAX_TOKENS = 64  # enough for an answer in JSON; the released code allows 10, for "Yes" or "No"

    def load(self) -> llm.Client:
        options = replace(self.config.llm, temperature=0.0, attempts=1, max_tokens=self.MAX_TOKENS)
        return self.maker.client(options, self.device)

    def make(self, model: llm.Client, inputs: list[Concepts]) -> list[Concepts]:
        return language.validate(model, inputs)


@dataclass(frozen=True)
class Reworded:
    """An image's captions and options in other words."""

    id: str
    texts: dict[str, str | None]  # id of the caption or option -> its paraphrase; None: refused
    refused: list[str]  # why, per refused one


class Paraphrase(NegbenchStage):
    """The language model writes the captions and options of an image in other words."""

    name = "paraphrase"

    def make(self, model: llm.Client, inputs: list[Concepts]) -> list[Reworded]:
        config = self.config
        owned = [(image.id, sentence) for image in inputs for sentence in iter_sentences(image, config)]
        every = [sentence for _, sentence in owned]
        outcomes = language.paraphrase(
            model, every, config.seed, keep_order=config.affneg, protocol=config.protocol
        )
        rows = {image.id: Reworded(image.id, texts={}, refused=[]) for image in inputs}
        for (owner, sentence), (text, why) in zip(owned, outcomes, strict=True):
            rows[owner].texts[sentence.id] = text
            if why:
                rows[owner].refused.append(why)
        return list(rows.values())

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        return not any(why.startswith(language.NO_ANSWER) for row in rows for why in row.refused)


# --- the captions and questions of an image ------------------------------------------------------
#: Stem of a file -> options of its `official.Table`. A control's questions and options have no negation.
FILES: dict[str, Row] = {
    "negated_retrieval": {}, "retrieval": {},
    "mcq": {"options": 4}, "mcq_control": {"options": 4},
    "binary_mcq": {"options": 2}, "binary_mcq_control": {"options": 2},
    "negcap": {"training": True}, "negmcq": {"options": 4, "training": True},
}  # fmt: skip
ORIGINALS = "retrieval"  # the file of the captions without a negation
#: Files of which `--paraphrase` writes a second one, in other words.
REPHRASED = ("negated_retrieval", "mcq", "negcap", "negmcq")
#: What the paper asks about in questions with two options: the commonest finding, and another one.
CONDITIONS = ("Lung Opacity", "Atelectasis")
Tasks = dict[str, list[RetrievalItem | Question]]  # stem of a file -> its records of one image


def sentence_rules(config: NegbenchConfig) -> sentences.Rules:
    return sentences.Rules(config.wording, config.thing, config.order, config.protocol)


def build_tasks(image: Concepts, config: NegbenchConfig) -> Tasks:
    """The templated items and questions of an image, by file; a file that it gives nothing is left out."""
    if image.problem:
        return {}
    seed, rules = config.seed, sentence_rules(config)
    tasks: Tasks = {}
    if config.form == "training":
        if item := sentences.make_training_captions(image, seed, rules):
            tasks["negcap"] = [item]  # three of "A dog runs. There is no car in the image."
        if question := sentences.make_training_question(image, seed, rules):
            tasks["negmcq"] = [question]  # "This image features dog, but not car." and three others
        return tasks
    if items := sentences.make_retrieval_items(image, seed, rules, config.captions_per_image):
        tasks = {ORIGINALS: [items[0]], "negated_retrieval": [items[1]]}
    # single: whether an image of one object gets a question, too.
    draw, single = sentences.make_evaluation_questions, config.medical
    if config.mcq == "files":
        draw, single = sentences.make_filed_questions, config.source == "voc"
    if questions := draw(image, seed, rules, count=config.asked, single=single):
        tasks["mcq"] = [*questions]
    if config.medical:
        conditions = CONDITIONS if config.source == "chexpert" and config.protocol == "paper" else ()
        medical = sentences.make_medical_questions(image, seed, config.wording, conditions)
        tasks |= {stem: [question] for stem, question in medical.items()}
    return tasks


def iter_sentences(image: Concepts, config: NegbenchConfig) -> Iterator[Sentence]:
    """Yields the sentences of an image's tasks, with the objects that each affirms, denies and leaves out."""
    named = (*image.positives, *image.negatives)
    negations: list[sentences.Negation] = []  # of the training captions
    if config.form == "training" and not image.problem:
        negations = sentences.make_training_negations(image, config.seed, sentence_rules(config))
    tasks = build_tasks(image, config)
    records = [record for stem in REPHRASED for record in tasks.get(stem, ())]
    for record in records:
        for number, (name, text) in enumerate(list_texts(record)):
            others = tuple(noun for noun in named if not find_mentions(text, noun))  # may not be added
            if isinstance(record, Question):
                affirmed, denied = parse_option(text, config.wording, config.thing)
                yield Sentence(name, text, affirmed, denied, others=others)
                continue
            denied = [noun for noun in image.negatives if find_mentions(text, noun)]
            affirmed = [noun for noun in image.positives if find_polarity(text, noun) == "affirmed"]
            negation = negations[number] if negations else None
            yield Sentence(name, text, affirmed, denied, others=others, negation=negation)


def list_texts(record: RetrievalItem | Question) -> list[tuple[str, str]]:
    """(id, text) of a record's captions or options."""
    if isinstance(record, RetrievalItem):
        return [(f"{record.id}/c{k}", text) for k, text in enumerate(record.captions)]
    return [(f"{record.id}/o{k}", option.text) for k, option in enumerate(record.options)]


def apply_paraphrases(tasks: Tasks, texts: Mapping[str, str | None]) -> Tasks:
    """The tasks in other words, without records of refused texts. texts: by the ids of `list_texts`."""
    reworded: Tasks = {}
    for stem in REPHRASED:
        for record in tasks.get(stem, ()):
            new_texts = [texts.get(name) for name, _ in list_texts(record)]
            paraphrases = [text for text in new_texts if text is not None]
            if len(paraphrases) < len(new_texts):
                continue
            if isinstance(record, RetrievalItem):
                record = replace(record, captions=tuple(paraphrases))
            else:
                pairs_of = zip(record.options, paraphrases, strict=True)
                options = [replace(option, text=text) for option, text in pairs_of]
                record = replace(record, options=tuple(options))
            reworded.setdefault(f"{stem}_rephrased", []).append(record)
    return reworded
