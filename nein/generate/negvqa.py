"""Makes NegVQA's questions (`nein negvqa generate`): a language model negates multiple-choice questions.

OUT/images/           copies of the images, once each
OUT/records.jsonl     one line per question of the source: its negation, or why there is none
OUT/questions.jsonl   NegVQA's layout, for `nein negvqa --data`; -original and -negated beside it
OUT/check.html        a sheet on which people check the negations (`negvqa_check`)

Parts: questions of the source, drawn questions, the stage that negates, files, wrong options and letters.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from nein.config.groups import start
from nein.datasets import negvqa as official
from nein.datasets.negvqa import VARIANTS
from nein.engine import atomic, images
from nein.engine.folder import COMPLETE, INCOMPLETE, Row, sample_seed
from nein.generate import maker
from nein.generate.config import ConversionConfig
from nein.generate.maker import Listing, ShardStage, llm_identity
from nein.generate.negvqa_check import write_sheet
from nein.loading.digests import json_digest
from nein.loading.errors import UserError, unknown
from nein.metrics.letters import LETTERS
from nein.models import llm
from nein.nano import data as nano
from nein.nano.scenes import CATEGORIES, PALETTE, Scene, render, rng_for
from nein.nano.sentences import Question, iter_questions

# --- the questions of the source -----------------------------------------------------------------
#: Fields besides the options A, B, ..., by VMCBench's names (https://huggingface.co/datasets/suyc21/VMCBench).
FIELDS = ("index", "image", "question", "answer", "category")
NEGATED_FIELD = "negated_question"  # a further field, which only drawn questions have


@dataclass(frozen=True, slots=True)
class Choice:
    """One multiple-choice question."""

    id: str
    subset: str
    picture: Path | None  # file of the image; None if the record names none
    question: str
    options: tuple[str, ...]  # texts of A, B, ...
    right: int  # index of the right option
    problem: str = ""  # why the record cannot be used; "" if it can
    negated: str = ""  # negation of a drawn question; "" for others

    @property
    def answer(self) -> str:
        return self.options[self.right]

    @property
    def wrong(self) -> list[str]:
        """The distinct options that differ from the right one; `_normalize` says what is no difference."""
        distinct: dict[str, str] = {}  # normalized text -> the first option with it
        for text in self.options:
            distinct.setdefault(_normalize(text), text)
        return [text for normalized, text in distinct.items() if normalized != _normalize(self.answer)]


def load(config: ConversionConfig) -> Listing[Choice]:
    """The questions of `--source`. Raises UserError for an unreadable source and for one of no use."""
    for key in config.columns:
        if key not in FIELDS and key not in LETTERS:
            raise unknown("field of --columns", key, [*FIELDS, "A", "B", "C", "D"])
    is_nano = config.source == "nano"
    source = str(_ensure_drawn(config.questions) / DRAWN_FILE) if is_nano else config.source
    rows, origin, folder = official.read_source(source, config.split)
    if config.images is not None:
        folder = maker.image_folder(config.images, Path())
    names = {name: config.columns.get(name, name) for name in (*FIELDS, *LETTERS)}  # our field -> the row's
    records, ids = list[Choice](), set[str]()  # ids: of the records
    for number, row in enumerate(rows, start=1):
        records.append(_read_choice(row, names, folder, number=number, taken=ids))
        ids.add(records[-1].id)
    if all(record.problem for record in records):
        why = f" ({records[0].problem} in the first record)" if records else ""
        example = "--columns.question prompt --columns.A option_a"
        raise UserError(f"'{config.source}' has no usable question{why}; map its columns: {example}.")
    return Listing(records, {"kind": "nano", "questions": config.questions} if is_nano else origin)


def _read_choice(row: Row, names: Row, folder: Path | None, *, number: int, taken: set[str]) -> Choice:
    """The question of a row. number: the id of a row without an index; taken: ids of the rows before."""
    cells = {key: _read_text(row.get(name)) for key, name in names.items() if key != "image"}
    options = tuple(itertools.takewhile(bool, (cells[letter] for letter in LETTERS)))  # up to an empty one
    index, answer = cells["index"] or str(number), cells["answer"].upper()
    right = LETTERS.find(answer) if len(answer) == 1 else -1  # -1: no letter
    picture = None
    try:
        picture = official.read_image(row.get(names["image"]), folder)
        problem = "" if picture.is_file() else "the picture is not there"
    except ValueError as error:
        problem = str(error).removeprefix("whose ")  # the message is about several records
    # A problem of the texts outranks one of the image.
    if not cells["question"]:
        problem = f"no {names['question']}"
    elif len(options) < 2:
        problem = "fewer than two options"
    elif not 0 <= right < len(options):
        problem = f"no letter of an option in {names['answer']}"
    elif index in taken:
        problem = f"an {names['index']} that occurs twice"
    choice = Choice(
        id=index, subset=cells["category"] or "all", picture=picture, question=cells["question"],
        options=options, right=max(right, 0), negated=_read_text(row.get(NEGATED_FIELD)),
    )  # fmt: skip
    if not problem and not choice.wrong:
        problem = "no wrong option differs from the right one"
    return replace(choice, problem=problem)


def _read_text(cell: Any) -> str:
    is_missing = cell is None or cell != cell  # NaN differs from itself
    return "" if is_missing else str(cell).strip()


def _normalize(text: str) -> str:
    """The text in lower case, with single spaces and without a final dot."""
    return " ".join(text.casefold().split()).rstrip(".")


# --- drawn questions -----------------------------------------------------------------------------
SPLIT = "build"  # scenes on which no model was trained or judged
DRAWN_FILE = "choices.jsonl"
NUMBERS = ("1", "2", "3", "4", "5", "6")  # answers to "how many"


def _ensure_drawn(count: int) -> Path:
    """A folder of the cache with `count` drawn questions of two to four options, in VMCBench's layout."""

    def draw(draft: Path) -> None:
        rows = []
        for number, (index, scene, question) in enumerate(iter_questions(SPLIT, count)):
            name = f"{index:05d}.png"
            if not (draft / name).exists():  # up to four questions are about one scene
                images.write_png(draft / name, render(scene))
            rng = rng_for(SPLIT, number, "choices")
            options = [question.right, question.wrong]  # and up to two further wrong ones
            others = _list_answers(scene, question) - set(options)
            options += rng.sample(sorted(others), min(2, len(others)))  # sorted: a set's order is random
            rng.shuffle(options)
            rows.append({
                "index": str(number), "image": name, "category": question.kind,
                "question": question.question, NEGATED_FIELD: question.negated,
                "answer": "ABCD"[options.index(question.right)], **dict(zip("ABCD", options, strict=False)),
            })  # fmt: skip
        atomic.write_lines(draft / DRAWN_FILE, rows)

    return nano.draw_once(f"choices-{count}", draw, proof=DRAWN_FILE)


def _list_answers(scene: Scene, question: Question) -> set[str]:
    """Answers of the kind of the right one. All but the right one are wrong for the scene."""
    for answers in (PALETTE, NUMBERS):
        if question.right in answers:
            return set(answers)
    if question.right in CATEGORIES:  # an object: others in the scene may be right as well
        return set(CATEGORIES) - set(scene.categories)
    return set()  # left or right, top or bottom: the one wrong answer is an option already


# --- the stage that negates ----------------------------------------------------------------------
#: States of a question that the stage has read.
NEGATED = "negated"
NOT_NEGATABLE = "not negatable"  # in the model's judgment
FAILED = "failed"  # no negation from the model; `kind` and `reason` are counted
UNUSABLE = "unusable"  # the source's record has a problem
UNCHANGED = "unchanged question"  # a kind of failure; the others are `llm`'s

#: Prompt of NegVQA's notebook and paper (arXiv:2505.22946, appendix); the question follows.
PROMPT = (Path(__file__).parent / "negvqa_prompt.txt").read_text(encoding="utf-8")


class PrintedVerdict(BaseModel):  # the form that the prompt prints
    """What a language model has to answer."""

    model_config = ConfigDict(extra="forbid")  # the model reads the schema: docstring and descriptions

    negatable: bool = Field(alias="is_negatable", description="whether a negated question exists")
    negated_question: str = Field(description="the negated question; empty if not negatable")

    @model_validator(mode="after")
    def _consistent(self) -> PrintedVerdict:
        if self.negatable != bool(self.negated_question.strip()):
            raise ValueError("a question is negatable exactly if a negated question is given")
        return self


@dataclass(frozen=True, slots=True)
class Negation:
    """The outcome of one question: a line of work/negate/."""

    id: str
    state: str
    question: str = ""  # the negation, if NEGATED
    reason: str = ""  # why there is none
    kind: str = ""  # of failure, if FAILED

    @property
    def is_unanswered(self) -> bool:
        """Whether the model gave no answer, so that it is asked again."""
        return self.kind in llm.SILENT


class Negate(ShardStage):
    """Negates questions by the language model; without one, drawn questions keep their drawn negations."""

    name, kind = "negate", "negator"  # of the stage; of its model in the manifest

    def works_at(self) -> str:
        return str(self.config.place)

    def load(self) -> llm.Client:
        return self.maker.client(self.config.llm, self.device)

    def read(self, number: int) -> list[Choice]:
        return self.maker.members(number)

    def make(self, model: llm.Client | None, inputs: list[Choice]) -> list[Negation]:
        usable = [item for item in inputs if not item.problem]
        requests = [llm.Request(f"{PROMPT}\nQuestion: {item.question}") for item in usable]
        outcomes: list[Any] = model.complete(requests, PrintedVerdict) if model else [None] * len(usable)
        outcome_of = {item.id: outcome for item, outcome in zip(usable, outcomes, strict=True)}
        negations = []
        for item in inputs:
            if item.problem:
                negations.append(Negation(item.id, UNUSABLE, reason=item.problem))
            elif model is None:
                negations.append(Negation(item.id, NEGATED, item.negated))
            else:
                negations.append(_read_outcome(item, outcome_of[item.id]))
        return negations

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """A question that got no answer is asked again."""
        return not any(row.is_unanswered for row in rows)


def _read_outcome(item: Choice, outcome: llm.Outcome[PrintedVerdict]) -> Negation:
    if (verdict := outcome.value) is None:
        return Negation(item.id, FAILED, reason=outcome.reason, kind=outcome.failure)
    if not verdict.negatable:
        return Negation(item.id, NOT_NEGATABLE, reason="the language model finds no negation")
    question = verdict.negated_question.strip()
    if question.casefold().split() == item.question.casefold().split():
        reason = "the language model returned the question unchanged"
        return Negation(item.id, FAILED, reason=reason, kind=UNCHANGED)
    return Negation(item.id, NEGATED, question)


# --- the files -----------------------------------------------------------------------------------
class NegvqaFolder(maker.BuildFolder):
    row_types: ClassVar[Any] = {"work/negate": Negation}


LOCAL_SHARD_SIZE = 128  # questions that a local model gets at once
#: First bytes of an image file -> suffix of its name.
SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}


class NegvqaMaker(maker.Maker):
    """Makes a data set in NegVQA's layout."""

    config: ConversionConfig
    stages = (Negate,)
    folder_type = NegvqaFolder
    decides = "letters seed"  # options

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
        out, config = self.folder.path, self.config
        choices = [self.listing.records[index] for index in self.blocks.indices]
        negations: list[Negation] = []
        for shard in self.blocks.numbers:
            negations += self.rows("negate", shard)
        negations = negations[: len(choices)]  # the last shard is whole: it may go beyond `--limit`
        questions = self.write(list(zip(choices, negations, strict=True)))

        # The summary: how many are negated, and why the others are not.
        failed = [negation for negation in negations if negation.state != NEGATED]
        reasons = Counter((row.state, row.kind or row.reason) for row in failed).most_common()
        right_a = sum(row["original_answer"] == "A" for row in questions)
        lines = [f"{len(questions)} of {len(choices)} questions negated, {right_a} with A right."]
        lines += [f"  {count:6d} {state}: {why}" for (state, why), count in reasons]
        if not questions:
            commonest = " ".join(lines[1:3]).strip()  # the two commonest reasons
            raise UserError(f"None of the {len(choices)} questions could be negated. {commonest}")
        if unanswered := sum(negation.is_unanswered for negation in negations):
            lines.append(f"{unanswered} got no answer; rerun the command to retry them.")

        # The sheet is in random order: a rater who stops early has checked a random sample, too.
        shuffled = sorted(questions, key=lambda row: sample_seed(config.seed, f"sheet/{row['index']}"))
        model = str(self.identity("cpu").get("model", "as drawn"))
        write_sheet(out / "check.html", shuffled[: config.sheet], population=len(questions), negator=model)
        lines += [f"Questions: {out / 'questions.jsonl'}", f"Check sheet: {out / 'check.html'}"]
        return "\n".join(lines) + "\n", {
            "status": INCOMPLETE if unanswered else COMPLETE,
            "counts": dict(Counter(negation.state for negation in negations)),
            "questions": len(questions),
            "reasons": [{"state": state, "reason": why, "count": count} for (state, why), count in reasons],
        }

    def write(self, outcomes: Sequence[tuple[Choice, Negation]]) -> list[Row]:
        """Writes images, questions and records; returns the questions in NegVQA's layout."""
        seed, out = self.config.seed, self.folder.path
        negated = [item for item, negation in outcomes if negation.state == NEGATED]
        wrong = {item.id: wrong_option(item, seed) for item, _ in outcomes if not item.problem}
        if self.config.letters == "notebook":
            notebook_wrong, letters = draw_as_notebook(negated, seed)
            wrong |= notebook_wrong
        else:
            letters = balance_letters(negated, seed)
        questions, records = list[Row](), list[Row]()
        copies: dict[str, str] = {}  # SHA-256 of an image -> its name below OUT
        for item, negation in outcomes:
            records.append({
                "index": item.id, "category": item.subset, "question": item.question,
                "options": list(item.options), "right": None if item.problem else item.answer,
                "wrong": wrong.get(item.id), "state": negation.state,
                "negated_question": negation.question or None,
                "reason": negation.reason or None, "kind": negation.kind or None,
            })  # fmt: skip
            if negation.state == NEGATED:
                row = {"index": item.id, "image": self.copy_image(item, copies), "category": item.subset}
                answers = {"right": item.answer, "wrong": wrong[item.id], "letter": letters[item.id]}
                questions.append(row | official.format_record(item.question, negation.question, **answers))
        atomic.write_lines(out / "questions.jsonl", questions)
        for variant in VARIANTS:
            rows = []  # one question each, in the fields `question` and `answer`
            for row in questions:
                shared = {key: row[key] for key in ("index", "image", "category", "A", "B")}
                rows.append(shared | {key: row[f"{variant}_{key}"] for key in ("question", "answer")})
            atomic.write_lines(out / f"questions-{variant}.jsonl", rows)
        atomic.write_lines(out / "records.jsonl", records)
        return questions

    def copy_image(self, item: Choice, copies: dict[str, str]) -> str:
        """Copies an item's image below OUT, once per content; returns the copy's name. copies: so far."""
        assert item.picture is not None, "a usable question has an image"
        content = item.picture.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest not in copies:
            stem = item.id if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}", item.id) else digest[:20]
            suffix = next((end for first, end in SUFFIXES.items() if content.startswith(first)), ".img")
            path = self.folder.path / "images" / f"{stem}{suffix}"
            copies[digest] = f"images/{path.name}"
            if not path.is_file() or path.stat().st_size != len(content):
                atomic.write_bytes(path, content)
        return copies[digest]


def build(config: ConversionConfig) -> str | None:
    """Runs `nein negvqa generate`. Only a local model needs the device."""
    if config.llm.model:
        llm.check(config.llm.model)
    placed = config if config.place == "device" else replace(config, device="cpu")
    return maker.make(NegvqaMaker, config, start(placed))


# --- wrong options and letters -------------------------------------------------------------------
def wrong_option(item: Choice, seed: int) -> str:
    """One of the wrong options that differ from the right one, drawn with the item's own seed."""
    rng = np.random.default_rng(sample_seed(seed, f"wrong/{item.id}"))
    return item.wrong[int(rng.integers(len(item.wrong)))]


def balance_letters(items: Sequence[Choice], seed: int) -> dict[str, str]:
    """Id -> right letter of the original question: as many A as B in every subset (or one more of either)."""
    subsets: dict[str, list[str]] = defaultdict(list)  # subset -> ids
    for item in items:
        subsets[item.subset].append(item.id)
    letters: dict[str, str] = {}
    for subset, ids in subsets.items():
        ids.sort(key=lambda name: sample_seed(seed, f"letter/{name}"))  # random, whatever the file's order
        first = sample_seed(seed, f"letters/{subset}") >> 62  # the first of 63 random bits: 0 is "A"
        for rank, name in enumerate(ids):
            letters[name] = "AB"[(first + rank) % 2]
    return letters


def draw_as_notebook(items: Sequence[Choice], seed: int) -> tuple[dict[str, str], dict[str, str]]:
    """(id -> wrong option, id -> right letter), drawn in file order as the authors' notebook does.
    Source: https://github.com/yuhui-zh15/NegVQA (0e4218b), add_negation.ipynb."""
    rng = random.Random(seed)
    wrong, letters = {}, {}
    for item in items:
        others = [text for number, text in enumerate(item.options) if number != item.right]
        wrong[item.id] = rng.sample(others, 1)[0]  # the notebook's call
        order = [0, 1]  # 0: the right option, 1: the wrong one
        rng.shuffle(order)
        letters[item.id] = "AB"[order.index(0)]
    return wrong, letters
