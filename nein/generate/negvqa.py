"""`nein negvqa generate` and `check`: negates multiple-choice questions by a language model, and lets people
check the negations on a sheet.

OUT/images/           the images, as they were
OUT/records.jsonl     one line per question of the source: its negation, or why there is none
OUT/questions.jsonl   NegVQA's layout, for `nein negvqa --data`; -original and -negated beside it
OUT/check.html        the sheet
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nein.config.groups import start
from nein.datasets import negvqa as data
from nein.datasets.negvqa import VARIANTS
from nein.engine import atomic, images
from nein.engine.folder import COMPLETE, INCOMPLETE, Row, sample_seed
from nein.generate import maker
from nein.generate.config import CheckConfig, ConversionConfig
from nein.generate.maker import Listing, ShardStage, llm_identity, make
from nein.loading.digests import json_digest
from nein.loading.errors import UserError, unknown
from nein.metrics.letters import LETTERS
from nein.models import llm
from nein.nano import data as nano
from nein.nano.scenes import CATEGORIES, PALETTE, Scene, render, rng_for
from nein.nano.sentences import Question, iter_questions
from nein.reporting import cards, labels, tables
from nein.reporting import figures as frames
from nein.reporting.figures import Figure, figure
from nein.reporting.page import headline
from nein.reporting.tables import Column, Table, count, value
from nein.statistics import bounded_mean

#: As VMCBench's files name them. Source: https://huggingface.co/datasets/suyc21/VMCBench.
FIELDS = ("index", "image", "question", "answer", "category")
SPLIT = "build"  # scenes on which no model was trained or judged
FILE = "choices.jsonl"
NEGATED_FIELD = "negated_question"  # in drawn questions alone
NUMBERS = ("1", "2", "3", "4", "5", "6")


@dataclass(frozen=True, slots=True)
class Choice:
    """One multiple-choice question.

    options  Texts of A, B, ...; `right` is the index of the right one.
    problem  Why the record cannot be used; "" if it can.
    negated  The negated question of a drawn question.
    """

    id: str
    subset: str
    picture: Path | None
    question: str
    options: tuple[str, ...]
    right: int
    problem: str = ""
    negated: str = ""

    @property
    def answer(self) -> str:
        return self.options[self.right]

    @property
    def wrong(self) -> list[str]:
        """The options that differ from the right one, each once, case and white space aside."""
        first: dict[str, str] = {}
        for text in self.options:
            first.setdefault(_normalize(text), text)
        return [text for plain, text in first.items() if plain != _normalize(self.answer)]


def load(config: ConversionConfig) -> Listing[Choice]:
    """The questions of `--source`. Raises UserError for an unreadable source or without a usable record."""
    for key in config.columns:
        if key not in FIELDS and key not in LETTERS:
            raise unknown("field of --columns", key, [*FIELDS, "A", "B", "C", "D"])
    is_nano = config.source == "nano"
    source = str(_ensure_drawn(config.questions) / FILE) if is_nano else config.source
    rows, origin, folder = data.read_source(source, config.split)
    if config.images is not None:
        folder = maker.image_folder(config.images, Path())
    names = {name: config.columns.get(name, name) for name in (*FIELDS, *LETTERS)}
    records, ids = list[Choice](), set[str]()
    for number, row in enumerate(rows, start=1):
        records.append(_read_choice(row, names, folder, number, ids))
        ids.add(records[-1].id)
    if all(record.problem for record in records):
        why = f" ({records[0].problem} in the first record)" if records else ""
        raise UserError(
            f"'{config.source}' has no usable question{why}; map its columns, for example "
            "--columns.question prompt --columns.A option_a."
        )
    return Listing(records, {"kind": "nano", "questions": config.questions} if is_nano else origin)


def _read_choice(
    row: Row, names: Mapping[str, str], folder: Path | None, number: int, ids: Container[str]
) -> Choice:
    cells = {key: _read_text(row.get(name)) for key, name in names.items() if key != "image"}
    options = tuple(itertools.takewhile(bool, map(cells.__getitem__, LETTERS)))
    answer, index, picture, problem = cells["answer"].upper(), cells["index"] or str(number), None, ""
    right = LETTERS.find(answer) if len(answer) == 1 else -1
    try:
        picture = data.read_image(row.get(names["image"]), folder)
        problem = "" if picture.is_file() else "the picture is not there"
    except ValueError as error:
        problem = str(error).removeprefix("whose ")
    if not cells["question"]:
        problem = f"no {names['question']}"
    elif len(options) < 2:
        problem = "fewer than two options"
    elif not 0 <= right < len(options):
        problem = f"no letter of an option in {names['answer']}"
    elif index in ids:
        problem = f"an {names['index']} that occurs twice"
    choice = Choice(index, cells["category"] or "all", picture, cells["question"], options, max(right, 0))
    if not problem and not choice.wrong:
        problem = "no wrong option differs from the right one"
    return replace(choice, problem=problem, negated=_read_text(row.get(NEGATED_FIELD)))


def _read_text(cell: Any) -> str:
    return "" if cell is None or cell != cell else str(cell).strip()


def _normalize(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


def _ensure_drawn(count: int) -> Path:
    """A folder of the cache with `count` drawn questions in VMCBench's layout, of two to four options."""

    def draw(draft: Path) -> None:
        rows = []
        for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count)):
            name = f"{index:05d}.png"
            if not (draft / name).exists():  # up to four questions are about one scene
                images.write_png(draft / name, render(scene))
            rng = rng_for(SPLIT, number, "choices")
            options = [question.right, question.wrong]  # and up to two further wrong ones
            spare = sorted(
                _list_wrong_answers(scene, question) - set(options)
            )  # sorted: a set's order is random
            options += rng.sample(spare, min(2, len(spare)))
            rng.shuffle(options)
            facts = {"index": str(number), "image": name, "category": question.kind}
            facts |= {"question": question.question, NEGATED_FIELD: question.negated}
            facts["answer"] = "ABCD"[options.index(question.right)]
            rows.append({**facts, **dict(zip("ABCD", options, strict=False))})
        atomic.write_lines(draft / FILE, rows)

    return nano.draw_once(f"choices-{count}", draw, proof=FILE)


def _list_wrong_answers(scene: Scene, question: Question) -> set[str]:
    """Further answers of the same kind as the right one; all but that one are wrong."""
    if question.right in PALETTE:
        return set(PALETTE)
    if question.right in NUMBERS:
        return set(NUMBERS)
    if question.right in CATEGORIES:
        return set(CATEGORIES) - set(scene.categories)
    return set()  # left or right, top or bottom


NEGATED = "negated"
NOT_NEGATABLE = "not negatable"  # in the model's judgment
FAILED = "failed"  # no negation from the model; `kind` and `reason` are counted
UNUSABLE = "unusable"  # the source's record has a problem
UNCHANGED = "unchanged question"
LOCAL_SHARD_SIZE = 128  # questions that a local model gets at once

#: Prompt of NegVQA's notebook and paper (arXiv:2505.22946, appendix); the question follows.
PROMPT = (Path(__file__).parent / "negvqa_prompt.txt").read_text(encoding="utf-8")


class PrintedVerdict(BaseModel):
    """What a language model has to answer."""

    model_config = ConfigDict(extra="forbid")  # the texts here are in the schema, which is sent

    negatable: bool = Field(alias="is_negatable", description="whether a negated question exists")
    negated_question: str = Field(description="the negated question; empty if not negatable")

    @model_validator(mode="after")
    def _consistent(self) -> PrintedVerdict:
        if self.negatable != bool(self.negated_question.strip()):
            raise ValueError("a question is negatable exactly if a negated question is given")
        return self


@dataclass(frozen=True, slots=True)
class Negation:
    """The outcome of one question. question: the negation (NEGATED only); kind: of failure (FAILED only)."""

    id: str
    state: str
    question: str = ""
    reason: str = ""
    kind: str = ""

    @property
    def again(self) -> bool:
        return self.kind in llm.SILENT


class Negate(ShardStage):
    """Negates questions by the language model; drawn questions come with their negations."""

    name, kind = "negate", "negator"

    def works_at(self) -> str:
        return str(self.config.place)

    def load(self) -> llm.Client:
        return self.maker.client(self.config.llm, self.device)

    def read(self, number: int) -> list[Choice]:
        return self.maker.members(number)

    def make(self, model: llm.Client | None, inputs: list[Choice]) -> list[Negation]:
        usable = [item for item in inputs if not item.problem]
        requests = [llm.Request(f"{PROMPT}\nQuestion: {item.question}") for item in usable]
        outcomes = iter(model.complete(requests, PrintedVerdict) if model else ())
        negations = []
        for item in inputs:
            if item.problem:
                negations.append(Negation(item.id, UNUSABLE, reason=item.problem))
            elif model is None:
                negations.append(Negation(item.id, NEGATED, item.negated))
            else:
                negations.append(_read_outcome(item, next(outcomes)))
        return negations

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """A question that got no answer is asked again."""
        return not any(row.again for row in rows)


def _read_outcome(item: Choice, outcome: llm.Outcome[PrintedVerdict]) -> Negation:
    if (verdict := outcome.value) is None:
        return Negation(item.id, FAILED, "", outcome.reason, outcome.failure)
    if not verdict.negatable:
        return Negation(item.id, NOT_NEGATABLE, "", "the language model finds no negation")
    question = verdict.negated_question.strip()
    if question.casefold().split() == item.question.casefold().split():
        return Negation(item.id, FAILED, "", "the language model returned the question unchanged", UNCHANGED)
    return Negation(item.id, NEGATED, question)


class NegvqaFolder(maker.BuildFolder):
    row_types: ClassVar[Any] = {"work/negate": Negation}


#: First bytes of an image file -> suffix of its name.
SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}


class NegvqaMaker(maker.Maker):
    config: ConversionConfig
    stages, folder_type, decides = (Negate,), NegvqaFolder, "letters seed"

    def __init__(self, config: ConversionConfig) -> None:
        # A served model gets shards of one question, so that --limit N pays for N questions.
        super().__init__(config, 1 if config.place == "remote" else LOCAL_SHARD_SIZE)
        self.listing = load(config)

    def identity(self, device: str) -> Row:
        if self.config.llm.model is None:
            return {**super().identity(device), "negator": "drawn"}
        prompt = json_digest({"prompt": PROMPT})[:16]
        return {**super().identity(device), "prompt": prompt, **llm_identity(self.config.llm)}

    def finish(self) -> tuple[str, Row]:
        """Writes the data set and its check sheet. Raises UserError if no question could be negated."""
        out, seed, config = self.folder.path, self.config.seed, self.config
        rows = (row for shard in self.blocks.numbers for row in self.rows("negate", shard))
        choices = (self.listing.records[index] for index in self.blocks.indices)
        outcomes = list(zip(choices, rows, strict=False))  # of every selected question
        questions = self.write(outcomes)
        negations = [negation for _, negation in outcomes]
        failures = Counter((n.state, n.kind or n.reason) for n in negations if n.state != NEGATED)
        reasons = failures.most_common()
        right_a = sum(row["original_answer"] == "A" for row in questions)
        lines = [f"{len(questions)} of {len(outcomes)} questions negated, {right_a} with A right."]
        lines += [f"  {count:6d} {state}: {why}" for (state, why), count in reasons]
        if not questions:
            reason = " ".join(lines[1:3]).strip()
            raise UserError(f"None of the {len(outcomes)} questions could be negated. {reason}")
        if again := sum(negation.again for negation in negations):
            lines.append(f"{again} got no answer; rerun the command to retry them.")
        # In random order, so that a rater who stops early has checked a random sample too.
        shuffled = sorted(questions, key=lambda row: sample_seed(seed, f"sheet/{row['index']}"))
        model = str(self.identity("cpu").get("model", "as drawn"))
        write_sheet(out / "check.html", shuffled[: config.sheet], population=len(questions), negator=model)
        lines += [f"Questions: {out / 'questions.jsonl'}", f"Check sheet: {out / 'check.html'}"]
        return "\n".join(lines) + "\n", {
            "status": INCOMPLETE if again else COMPLETE,
            "counts": dict(Counter(negation.state for negation in negations)),
            "questions": len(questions),
            "reasons": [{"state": state, "reason": why, "count": n} for (state, why), n in reasons],
        }

    def write(self, outcomes: Sequence[tuple[Choice, Negation]]) -> list[Row]:
        """Writes images, questions and records; returns the questions in NegVQA's layout."""
        seed, out = self.config.seed, self.folder.path
        negatable = [item for item, negation in outcomes if negation.state == NEGATED]
        wrong = {item.id: wrong_option(item, seed) for item, _ in outcomes if not item.problem}
        if self.config.letters == "notebook":
            notebook_wrong, letters = draw_as_notebook(negatable, seed)
            wrong |= notebook_wrong
        else:
            letters = balance_letters(negatable, seed)
        questions, records, images = [], [], dict[str, str]()
        for item, negation in outcomes:
            facts: Row = {"index": item.id, "category": item.subset, "question": item.question}
            facts |= {"options": list(item.options), "right": None if item.problem else item.answer}
            facts |= {"wrong": wrong.get(item.id), "state": negation.state}
            facts |= {"negated_question": negation.question or None, "reason": negation.reason or None}
            records.append({**facts, "kind": negation.kind or None})
            if negation.state == NEGATED:
                row = {"index": item.id, "image": self.copy_image(item, images), "category": item.subset}
                texts = item.question, negation.question, item.answer, wrong[item.id]
                questions.append(row | data.format_record(*texts, letters[item.id]))
        atomic.write_lines(out / "questions.jsonl", questions)
        for variant in VARIANTS:
            names = {key: key for key in ("index", "image", "category", "A", "B")}
            names |= {"question": f"{variant}_question", "answer": f"{variant}_answer"}
            parts = ({key: row[name] for key, name in names.items()} for row in questions)
            atomic.write_lines(out / f"questions-{variant}.jsonl", parts)
        atomic.write_lines(out / "records.jsonl", records)
        return questions

    def copy_image(self, item: Choice, copies: dict[str, str]) -> str:
        """Copies an item's image below OUT once per content (copies: hash -> name); returns its name."""
        assert item.picture is not None, "an item without an image is not usable"
        content = item.picture.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in copies:
            stem = item.id if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}", item.id) else digest[:20]
            suffix = next((end for start, end in SUFFIXES.items() if content.startswith(start)), ".img")
            path = self.folder.path / "images" / f"{stem}{suffix}"
            copies[digest] = f"images/{path.name}"
            if not path.is_file() or path.stat().st_size != len(content):
                atomic.write_bytes(path, content)
        return copies[digest]


def build(config: ConversionConfig) -> str | None:
    """`nein negvqa generate`. Only a local model needs the device."""
    if config.llm.model:
        llm.check(config.llm.model)
    placed = config if config.place == "device" else replace(config, device="cpu")
    return make(NegvqaMaker, config, start(placed))


def wrong_option(item: Choice, seed: int) -> str:
    """One of the wrong options that differ from the right one, drawn with the item's own seed."""
    rng = np.random.default_rng(sample_seed(seed, f"wrong/{item.id}"))
    return item.wrong[int(rng.integers(len(item.wrong)))]


def balance_letters(items: Sequence[Choice], seed: int) -> dict[str, str]:
    """Id -> right letter of the original question: as many A as B in every subset (or one more of either),
    independent of the order of the items."""
    subsets: dict[str, list[str]] = defaultdict(list)
    for item in items:
        subsets[item.subset].append(item.id)
    letters: dict[str, str] = {}
    for subset, ids in subsets.items():
        first = sample_seed(seed, f"letters/{subset}") >> 62  # even: the first item's letter is A
        ids.sort(key=lambda id: sample_seed(seed, f"letter/{id}"))  # random, whatever the file's order
        letters |= {id: "AB"[(rank + first) % 2] for rank, id in enumerate(ids)}
    return letters


def draw_as_notebook(items: Sequence[Choice], seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """(id -> wrong option, id -> right letter), drawn in file order as the authors' notebook does.
    Source: https://github.com/yuhui-zh15/NegVQA (0e4218b), add_negation.ipynb."""
    rng = random.Random(seed)
    wrong, letters = {}, {}
    for item in items:
        others = [text for number, text in enumerate(item.options) if number != item.right]
        [wrong[item.id]] = rng.sample(others, 1)
        order = [0, 1]  # of the right and the wrong option
        rng.shuffle(order)
        letters[item.id] = "AB"[order.index(0)]
    return wrong, letters


# --- the check sheet ---
RATER_INSTRUCTIONS = (
    "A conversion is right when the negated question is good English, asks for the opposite of the original "
    "with little changed, and the option marked for each question is right for the picture."
)
IMAGE_SIDE = 320  # pixels of the longer side, enough to read text in an image
RIGHT = "right"
#: What can be wrong with a conversion: the paper names the first two (NegVQA, section 3).
ERRORS = {
    "unnatural": "the negated question is unnatural or ungrammatical",
    "twice": "a condition or a negation is negated as well",
    "answer": "the letter of the negated question is not right",
    "original": "the original question or its letter is wrong already",
    "other": "something else (see the note)",
}
ANSWERS = {RIGHT: RIGHT} | {kind: f"wrong: {text}" for kind, text in ERRORS.items()}
QUESTION = labels.Question("verdict", "Is the conversion right?", ANSWERS)
COLUMNS = [
    Column("right %", {"statistic": RIGHT}),
    Column("of", {"statistic": RIGHT}, count()),
    Column("without a label", {"statistic": RIGHT}, count("unscored")),
    *(Column(kind, {"statistic": kind}, value()) for kind in ERRORS),
]
CHECK = Table(
    "check", "Accuracy of the conversion", (tables.Row("rater"),), tuple(COLUMNS), {"task": "check"}
)


def check_figures(rows: Sequence[labels.Label]) -> Iterator[Figure]:
    """Per rater the share of right conversions with its exact 95 % interval and the counts of errors by kind
    (task "check"); and the raters' agreement on right or wrong."""
    for rater in dict.fromkeys(row["rater"] for row in rows):
        verdicts = Counter(row[QUESTION.key] for row in rows if row["rater"] == rater)
        hits = [1.0] * verdicts[RIGHT] + [0.0] * sum(verdicts[kind] for kind in ERRORS)
        fields: Row = {"task": "check", "metric": "right", "rater": rater}
        share = bounded_mean(hits, range(len(hits)))
        yield figure(share, unit="%", unscored=verdicts[""], statistic=RIGHT, **fields)
        for kind in ERRORS:
            yield frames.number(verdicts[kind], unit="count", statistic=kind, **fields)
    verdict = replace(QUESTION, answers=dict.fromkeys((RIGHT, "wrong"), ""))
    plain = [row | {"verdict": row["verdict"] and ("wrong", RIGHT)[row["verdict"] == RIGHT]} for row in rows]
    yield from labels.measure_agreement(plain, [verdict], {row["item"]: row["item"] for row in rows})


def check(options: CheckConfig) -> str:
    """The accuracy of a conversion with its interval, as tables. Raises UserError."""
    frame = frames.frame(check_figures(labels.read_answers(options.files, [QUESTION])))
    if options.out is not None:
        frames.write(options.out, frame)
    kinds = [f"{kind}: {text}" for kind, text in ERRORS.items()]
    return headline(frame, [CHECK, labels.AGREEMENT], ["Intervals are exact. Wrong, by kind:", *kinds])


def write_sheet(path: Path, rows: Sequence[Row], *, population: int, negator: str) -> None:
    """Writes the sheet of `rows` of questions.jsonl; their images are relative to the folder of `path`.

    population  How many conversions the rows were drawn from.
    """
    introduction = (
        f"{len(rows)} random items out of {population} (negated by: {negator}). {RATER_INSTRUCTIONS}"
    )
    items = []
    for row in rows:
        cells = []
        for variant in VARIANTS:
            options = [f"✓ {row[k]}" if k == row[f"{variant}_answer"] else row[k] for k in "AB"]
            cells.append([variant, row[f"{variant}_question"], *options])
        image = cards.read_thumbnail(path.parent / row["image"], IMAGE_SIDE)
        heads = ("", "question", "A", "B")
        items.append(labels.Item(str(row["index"]), row["category"], [("", image)], heads, cells))
    labels.write_page(path, "Are these negated questions right?", introduction, [QUESTION], items)
