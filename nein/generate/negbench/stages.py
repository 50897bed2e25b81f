"""The up to five stages of `nein negbench generate`, from images to sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nein import metrics
from nein.datasets.negbench import sentences
from nein.datasets.negbench.polarity import mentions, polarity
from nein.datasets.negbench.records import Question, RetrievalItem
from nein.datasets.negbench.sentences import Concepts
from nein.engine import images
from nein.engine.folder import Row
from nein.generate import maker
from nein.generate.config import NegbenchConfig
from nein.generate.maker import COCO, ShardStage
from nein.generate.negbench import language, pairs
from nein.generate.negbench.language import Sentence, claims
from nein.generate.negbench.pairs import Looked, PairTools, Verifier
from nein.loading.references import is_served
from nein.models import editor_choice, llm, references

VERDICT = 64  # tokens of an answer whether a list is one; the released code asks for 10, of "Yes" or "No"


class NegbenchStage(ShardStage):
    """Redoes a shard and all stages after it if the language model gave no answer (timeout, refusal)."""

    kind = "llm"

    def load(self) -> Any:
        return self.maker.client(self.config.llm, self.device)

    def works_at(self) -> str:
        asks = self.kind in ("llm", "checker") and is_served(str(self.config.llm.model))
        return "remote" if asks else "device"

    def read(self, number: int) -> Any:
        """The images as the stages before left them."""
        return self.maker.concepts(number, before=self.name)

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        return not any(row.problem.startswith(language.NO_ANSWER) for row in rows)

    def verifier(self, protocol: Any) -> Verifier:
        config, reference = self.config, references.resolve(self.config.detector)
        detector = metrics.load_judge("ovd", reference, device=self.device, dtype=config.dtype)
        return Verifier(detector, config.query, config.threshold, protocol, config.absent)

    def look(self, image: Concepts) -> Looked:
        try:
            return image, self.maker.media.frames(image.path)[0]
        except images.ImageError as error:
            return image, f"{maker.UNREADABLE}: {str(error).rpartition(': ')[2]}"  # without the path


class MakePairs(NegbenchStage):
    """Two images that differ in one object, by an editor or from text (HardNeg-Syn)."""

    name, kind = "pairs", "pairs"

    def load(self) -> PairTools:
        config, how = self.config, {"device": self.device, "dtype": self.config.dtype}
        verifier = self.verifier("fixed")  # how the authors verified pairs is not released
        if pipeline := config.maker_for("text"):
            maker = pairs.TextMaker(pipeline, steps=config.steps, **how)
            return PairTools(maker, verifier, super().load())
        name, options = config.maker_for("editor"), {"steps": config.steps}
        choice = editor_choice.choose_editor(name, config.preset, options)
        editor = choice.load(services=self.maker.services, batch_size=config.batch_size, **how)
        return PairTools(pairs.EditorMaker(editor), verifier)

    def read(self, number: int) -> list[Looked]:
        from_text = self.config.maker_for("text")
        return [(image, "") if from_text else self.look(image) for image in super().read(number)]

    def make(self, model: PairTools, inputs: list[Looked]) -> list[Concepts]:
        from nein.nano.scenes import CATEGORIES

        config, vocabulary = self.config, CATEGORIES if self.config.preset == "nano" else COCO
        if model.client is None:
            plans = {looked[0].id: pairs.plan_edit(looked, vocabulary, config.seed) for looked in inputs}
        else:
            plans = language.imagine(model.client, [image.id for image, _ in inputs], config.seed)
        how: Any = {"folder": self.maker.dataset, "seed": config.seed, "attempts": config.attempts}
        return pairs.make_pairs(plans, model, **how)

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """Images that have vanished are made again."""
        paths = [self.maker.dataset / row.path for row in rows if row.path]
        return super().is_valid(output, number, rows) and all(path.exists() for path in paths)


class ExtractConcepts(NegbenchStage):
    """Captions -> objects that are there and that are not."""

    name = "concepts"

    def make(self, model: llm.Client, inputs: list[Concepts]) -> list[Concepts]:
        config = self.config
        how: Any = {"count": config.absent, "thing": config.thing, "protocol": config.protocol}
        return language.extract(model, inputs, config.seed, **how)


class Verify(NegbenchStage):
    """A detector drops absent objects that are there after all; `--verify both`: present ones not found."""

    name, kind = "verify", "detector"

    def load(self) -> Verifier:
        return self.verifier(self.config.protocol)

    def read(self, number: int) -> list[Looked]:
        return [self.look(image) for image in super().read(number)]

    def make(self, model: Verifier, inputs: list[Looked]) -> list[Concepts]:
        rows, size = list[Concepts](), int(self.config.batch_size)
        for start in range(0, len(inputs), size):
            batch = inputs[start : start + size]
            rows += pairs.verify(model, batch, positives=self.config.verify == "both")
        return rows


class Validate(NegbenchStage):
    """The language model says at temperature 0 whether both lists of objects are such."""

    name, kind = "validate", "checker"

    def load(self) -> llm.Client:
        options = replace(self.config.llm, temperature=0.0, attempts=1, max_tokens=VERDICT)
        return self.maker.client(options, self.device)

    def make(self, model: llm.Client, inputs: list[Concepts]) -> list[Concepts]:
        return language.validate(model, inputs)


@dataclass(frozen=True)
class Reworded:
    """An image's captions and options in other words by id, None where one was refused, and why."""

    id: str
    texts: dict[str, str | None]
    refused: list[str]


class Paraphrase(NegbenchStage):
    name = "paraphrase"

    def make(self, model: llm.Client, inputs: list[Concepts]) -> list[Reworded]:
        config = self.config
        owned = [(image.id, sentence) for image in inputs for sentence in iter_sentences(image, config)]
        how: Any = {"keep_order": config.affneg, "protocol": config.protocol}
        outcomes = language.paraphrase(model, [sentence for _, sentence in owned], config.seed, **how)
        rows = {image.id: Reworded(image.id, {}, []) for image in inputs}
        for (owner, sentence), (text, why) in zip(owned, outcomes, strict=True):
            rows[owner].texts[sentence.id] = text
            rows[owner].refused.extend([why] if why else [])
        return [*rows.values()]

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        return not any(why.startswith(language.NO_ANSWER) for row in rows for why in row.refused)


#: What the paper asks about in questions with two options: the commonest finding, and another one.
CONDITIONS = ("Lung Opacity", "Atelectasis")
#: Stem of a file -> its layout: captions that negate and questions of evaluation (with the original captions
#: beside them), questions of the medical sets, captions and questions to train on.
FILES: dict[str, Row] = {
    "negated_retrieval": {},
    "retrieval": {},
    "mcq": {"options": 4},
    "mcq_control": {"options": 4},
    "binary_mcq": {"options": 2},
    "binary_mcq_control": {"options": 2},
    "negcap": {"training": True},
    "negmcq": {"options": 4, "training": True},
}
ORIGINALS = "retrieval"
#: Files that are written in other words too, beside the templated ones.
REPHRASED = ("negated_retrieval", "mcq", "negcap", "negmcq")
Tasks = dict[str, list[RetrievalItem | Question]]  # stem of a file -> its records of one image


def sentence_rules(config: NegbenchConfig) -> sentences.Rules:
    return sentences.Rules(config.wording, config.thing, config.order, config.protocol)


def build_tasks(image: Concepts, config: NegbenchConfig) -> Tasks:
    """The templated items and questions of an image, by file; a file that it gives nothing is left out."""
    if image.problem:
        return {}
    seed, rules, tasks = config.seed, sentence_rules(config), Tasks()
    if config.form == "training":
        if item := sentences.training_captions(image, seed, rules):
            tasks["negcap"] = [item]  # three of "A dog runs. There is no car in the image."
        if question := sentences.training_question(image, seed, rules):
            tasks["negmcq"] = [question]  # "This image features dog, but not car." and three others
        return tasks
    if items := sentences.retrieval_items(image, seed, rules, config.captions_per_image):
        tasks = {ORIGINALS: [items[0]], "negated_retrieval": [items[1]]}
    draw, single = sentences.evaluation_questions, config.medical
    if config.mcq == "files":
        draw, single = sentences.questions_as_filed, config.source == "voc"
    if questions := draw(image, seed, rules, count=config.asked, single=single):
        tasks["mcq"] = [*questions]
    if config.medical:
        conditions = CONDITIONS if config.source == "chexpert" and config.protocol == "paper" else ()
        medical = sentences.medical_questions(image, seed, config.wording, conditions)
        tasks |= {stem: [question] for stem, question in medical.items()}
    return tasks


def iter_sentences(image: Concepts, config: NegbenchConfig) -> Iterator[Sentence]:
    """The sentences of an image's tasks, with what each says is there and is not."""
    named, negations = (*image.positives, *image.negatives), list[sentences.Negation]()
    if config.form == "training" and not image.problem:
        negations = sentences.training_negations(image, config.seed, sentence_rules(config))
    tasks = build_tasks(image, config)
    for record in (record for stem in REPHRASED for record in tasks.get(stem, ())):
        for number, (name, text) in enumerate(parts(record)):
            others = tuple(other for other in named if not mentions(text, other))  # may not be added
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


def apply_paraphrases(tasks: Tasks, texts: Mapping[str, str | None]) -> Tasks:
    """The paraphrased tasks, by the ids of `parts`; records with a refused sentence are dropped."""
    reworded: Tasks = {}
    for stem in REPHRASED:
        for record in tasks.get(stem, ()):
            words = [text for name, _ in parts(record) if (text := texts.get(name)) is not None]
            if len(words) < len(parts(record)):  # a sentence was refused
                continue
            if isinstance(record, RetrievalItem):
                record = replace(record, captions=tuple(words))
            else:
                options = zip(record.options, words, strict=True)
                record = replace(record, options=tuple(replace(o, text=text) for o, text in options))
            reworded.setdefault(f"{stem}_rephrased", []).append(record)
    return reworded
