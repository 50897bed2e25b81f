"""`nein negvqa generate`: read, negate, convert, write.

Everything but a language model's answers is a function of the input, and those are on disk as they come.

OUT/manifest.json     configuration, negator, counts, status
OUT/answers.sqlite    what the language model said
OUT/images/           the pictures, as they were
OUT/records.jsonl     one line per question of the source: its negation, or why there is none
OUT/questions.jsonl   NegVQA's layout, for `nein negvqa --data`; -original and -negated beside it
OUT/check.html        the sheet for a person
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nein.engine import atomic, environment
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder
from nein.generate.negvqa import check, sources
from nein.generate.negvqa.config import ConversionConfig
from nein.generate.negvqa.sources import Choice, load
from nein.loading.references import is_served
from nein.models.llm import client as llm

#: First bytes of a picture -> the ending of its name.
ENDINGS = {
    rb"\x89PNG": ".png", rb"\xff\xd8\xff": ".jpg", rb"GIF8": ".gif", rb"BM": ".bmp",
    rb"(?s)RIFF....WEBP": ".webp",
}  # fmt: skip


def build(config: ConversionConfig) -> str:
    """Does what is left to do; a summary in words. Raises UserError or MetricError."""
    folder = Folder(config.out_dir, "questions")
    atomic.make_folder(folder.path)
    if config.negator == "llm":
        llm.check(str(config.llm.model))
    choices = load(
        config.source, pictures=config.images, split=config.split, columns=config.columns,
        questions=config.questions,
    )  # fmt: skip
    items = choices.items if config.limit is None else choices.items[: config.limit]
    wrong = {item.id: sources.wrong_option(item, config.seed) for item in items if not item.problem}
    negator = _identity(config)
    invocation = {
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": environment.command_line(),
    }
    folder.open(
        {"source": choices.sha256, "letters": config.letters, "seed": config.seed, **negator},
        {"source": choices.origin, "invocation": invocation},
        overwrite=config.overwrite,
    )
    usable = [item for item in items if not item.problem]
    if config.negator == "rules":
        answered = by_rules(usable)
    else:
        from nein.engine import processes
        from nein.engine.answers import AnswerCache
        from nein.models.cached import Services

        device = "cpu" if is_served(str(config.llm.model)) else processes.Processes().device(config.device)
        with AnswerCache(folder.answers) as cache:
            services = Services.of(config, cache)
            client = llm.load(config.llm, services=services, device=device)
            others = [wrong[item.id] for item in usable]
            answered = by_model(usable, others, client, config.instruction)
        folder.note({"stages": {}, "usage": {"llm": client.usage()}})
    rest = iter(answered)
    negations = [Negation(UNUSABLE, reason=item.problem) if item.problem else next(rest) for item in items]
    return _write(config, folder, items, wrong, negations, negator)


def _identity(config: ConversionConfig) -> dict[str, Any]:
    """What decides a negation, by name. Two commands that differ in it do not share a folder."""
    if config.negator == "rules":
        from nein.generate.negvqa import rules

        return rules.describe()
    model = str(config.llm.model)
    return {
        "negator": "llm",
        "model": model.rpartition("#")[2] if is_served(model) else model,
        "instruction": hashlib.sha256(INSTRUCTIONS[config.instruction].encode()).hexdigest()[:16],
        **{key: getattr(config.llm, key) for key in ("temperature", "max_tokens", "attempts")},
        **config.llm.thinking,
    }


def _write(
    config: ConversionConfig, folder: Folder, items: Sequence[Choice], wrong: Mapping[str, str],
    negations: Sequence[Negation], negator: Mapping[str, Any],
) -> str:  # fmt: skip
    """Pictures, records, questions, sheet; the manifest's status last."""
    negated = [(item, neg) for item, neg in zip(items, negations, strict=True) if neg.state == NEGATED]
    kept = [item for item, _ in negated]
    if config.letters == "notebook":
        drawn, letters = sources.notebook(kept, config.seed)
        wrong = {**wrong, **drawn}
    else:
        letters = sources.letters(kept, config.seed, config.letters)
    names: dict[str, str] = {}
    questions = folder.path / "questions.jsonl"
    converted = (
        sources.record(item, _keep(folder.path, item, names), neg.question, wrong[item.id], letter)
        for (item, neg), letter in zip(negated, letters, strict=True)
    )
    atomic.write_lines(questions, converted)
    for variant in ("original", "negated"):
        rows = (
            {key: row[key] for key in ("index", "image", "category", "A", "B")}
            | {"question": row[f"{variant}_question"], "answer": row[f"{variant}_answer"]}
            for row in atomic.checked_lines(questions)
        )
        atomic.write_lines(folder.path / f"questions-{variant}.jsonl", rows)
    records = (
        {
            "index": item.id, "category": item.subset, "question": item.question,
            "options": list(item.options), "right": item.answer if not item.problem else None,
            "wrong": wrong.get(item.id), "state": neg.state, "negated_question": neg.question or None,
            "reason": neg.reason or None, "kind": neg.kind or None,
        }
        for item, neg in zip(items, negations, strict=True)
    )  # fmt: skip
    atomic.write_lines(folder.path / "records.jsonl", records)
    if negated:
        chosen = sources.chosen([item.id for item in kept], config.sheet, config.seed)
        by_id = {row["index"]: row for row in atomic.checked_lines(questions) if row["index"] in chosen}
        negator_name = " ".join(str(negator[key]) for key in ("negator", "model") if negator.get(key))
        path = folder.path / "check.html"
        check.write_sheet(path, [by_id[key] for key in chosen], population=len(negated), negator=negator_name)
    again = sum(neg.again for neg in negations)
    counts = Counter(neg.state for neg in negations)
    reasons = Counter((neg.state, neg.kind or neg.reason) for neg in negations if neg.state != NEGATED)
    folder.update(
        status=INCOMPLETE if again else COMPLETE, counts=dict(counts), questions=len(negated),
        reasons=[{"state": state, "reason": why, "count": n} for (state, why), n in reasons.most_common()],
    )  # fmt: skip
    lines = [f"{len(kept)} of {len(items)} questions negated, {letters.count('A')} with A right."]
    lines += [f"  {count:6d} {state}: {why}" for (state, why), count in reasons.most_common(12)]
    if not kept:
        raise UserError(
            f"Not one of {len(items)} questions could be negated. " + " ".join(lines[1:3]).strip()
        )
    if len(reasons) > 12:
        lines.append(f"         and {len(reasons) - 12} further reasons, in records.jsonl")
    if again:
        lines.append(f"{again} got no answer; retry them with the same command.")
    lines += [f"Questions: {questions}", f"Check sheet: {folder.path / 'check.html'}"]
    return "\n".join(lines) + "\n"


def _keep(root: Path, item: Choice, names: dict[str, str]) -> str:
    """Name below `root` of an item's picture, copied unless it is there; equal pictures are one file.

    names  Hash -> name of the pictures kept so far. Raises UserError for a file that cannot be read.
    """
    assert item.picture is not None, "an item without a picture is not usable"
    try:
        data = item.picture.read_bytes()
    except OSError as error:
        raise UserError(f"'{item.picture}' cannot be read: {error.strerror or error}.") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest not in names:
        stem = item.id if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}", item.id) else digest[:20]
        ending = next((ending for start, ending in ENDINGS.items() if re.match(start, data)), ".img")
        names[digest] = f"images/{stem}{ending}"
        path = root / names[digest]
        if not path.is_file() or path.stat().st_size != len(data):
            atomic.write_bytes(path, data)
    return names[digest]


#: What became of a question: it has a negation; the model says that it has none; the rules do not cover it;
#: nobody could say, for a reason that is counted; its record was of no use to begin with.
NEGATED, NOT_NEGATABLE, REFUSED, FAILED, UNUSABLE = (
    "negated", "not negatable", "refused", "failed", "unusable",
)  # fmt: skip
UNCHANGED = "unchanged question"

INSTRUCTION = """\
Below is a question about a picture, with its right answer and a wrong one. Rewrite the question so that it
asks for the opposite: with the new question the wrong answer becomes right, and the right answer wrong.

Rules:
1. Change as few words as possible; as a rule, insert one "not" or swap one verb for its negation.
2. The new question is grammatical, natural English and still has one clear answer among the two.
3. Negate only what is asked. Sentences of background, given facts and conditions ("If ...", "Given that ...")
   are repeated unchanged, never negated.
4. Negate once. Do not negate a question that is negative already by adding a second negation.
5. If no such question exists, the question is not negatable: then say so and leave the new question empty.

Examples:
Question: What is the woman holding? Right: umbrella. Wrong: phone.
-> negatable, "What is the woman not holding?"
Question: A ball is dropped on the Moon. Which force pulls it down? Right: gravity. Wrong: friction.
-> negatable, "A ball is dropped on the Moon. Which force does not pull it down?"
Question: How would you describe your feelings about this painting? Right: calm. Wrong: tense.
-> not negatable, ""

Question: {question}
Right answer: {right}
Wrong answer: {wrong}"""
#: As NegVQA's notebook and paper print it (arXiv:2505.22946, appendix); the question follows.
PRINTED = (Path(__file__).parent / "paper_prompt.txt").read_text(encoding="utf-8")
INSTRUCTIONS = {"ours": INSTRUCTION, "paper": PRINTED}


class Verdict(BaseModel):
    """What a language model has to answer."""

    model_config = ConfigDict(extra="forbid")

    negatable: bool = Field(description="whether a negated question exists")
    negated_question: str = Field(description="the negated question; empty if not negatable")

    @model_validator(mode="after")
    def _consistent(self) -> Verdict:
        if self.negatable != bool(self.negated_question.strip()):
            raise ValueError("a question is negatable exactly if a negated question is given")
        return self


class PrintedVerdict(Verdict):
    """What a language model has to answer."""

    negatable: bool = Field(alias="is_negatable", description="whether a negated question exists")


@dataclass(frozen=True, slots=True)
class Negation:
    """`state` is one of the words above; `question` the negation (NEGATED only); `reason` says why not.

    kind   For FAILED, what kind of failure, for counting; again: whether the same command asks once more.
    """

    state: str
    question: str = ""
    reason: str = ""
    kind: str = ""

    @property
    def again(self) -> bool:
        return self.kind in llm.SILENT


def by_rules(items: Sequence[Choice]) -> list[Negation]:
    from nein.generate.negvqa.rules import Refusal, negate

    return [
        Negation(REFUSED, reason=str(result)) if isinstance(result, Refusal) else Negation(NEGATED, result)
        for result in negate([item.question for item in items])
    ]


def by_model(
    items: Sequence[Choice], wrong: Sequence[str], client: llm.Client, instruction: str = "ours"
) -> list[Negation]:
    """Negations by a language model, told one of `INSTRUCTIONS`; `wrong` is the option that each item keeps
    beside the right one."""
    schema: type[Verdict] = Verdict
    if instruction == "paper":
        prompts, schema = [f"{PRINTED}\nQuestion: {item.question}" for item in items], PrintedVerdict
    else:
        prompts = [
            INSTRUCTION.format(question=item.question, right=item.answer, wrong=other)
            for item, other in zip(items, wrong, strict=True)
        ]
    outcomes = client.complete([*map(llm.Request, prompts)], schema, progress="negations")
    return [_negation(item, outcome) for item, outcome in zip(items, outcomes, strict=True)]


def _negation(item: Choice, outcome: Any) -> Negation:
    if outcome.value is None:
        return Negation(FAILED, reason=outcome.reason, kind=outcome.failure)
    if not outcome.value.negatable:
        return Negation(NOT_NEGATABLE, reason="the language model finds no negation")
    question = outcome.value.negated_question.strip()
    if " ".join(question.casefold().split()) == " ".join(item.question.casefold().split()):
        return Negation(FAILED, reason="the language model returned the question unchanged", kind=UNCHANGED)
    return Negation(NEGATED, question)
