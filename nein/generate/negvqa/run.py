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
from pathlib import Path
from typing import Any

from nein.engine import atomic, environment
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, INCOMPLETE, Folder
from nein.generate.negvqa import check, convert, negators
from nein.generate.negvqa.config import ConversionConfig
from nein.generate.negvqa.negators import NEGATED, UNUSABLE, Negation
from nein.generate.negvqa.sources import Choice, load
from nein.metrics.backends.endpoint import is_endpoint

#: First bytes of a picture -> the ending of its name.
ENDINGS = {
    rb"\x89PNG": ".png", rb"\xff\xd8\xff": ".jpg", rb"GIF8": ".gif", rb"BM": ".bmp",
    rb"(?s)RIFF....WEBP": ".webp",
}  # fmt: skip


def build(config: ConversionConfig) -> str:
    """Does what is left to do; a summary in words. Raises UserError or MetricError."""
    folder = Folder(config.out_dir, "questions")
    atomic.check_writable(folder.path)
    if config.negator == "llm":
        from nein.models.llm.loading import check

        check(config.llm.model)
    choices = load(
        config.source, pictures=config.images, split=config.split, columns=config.columns,
        questions=config.questions,
    )  # fmt: skip
    items = choices.items if config.limit is None else choices.items[: config.limit]
    wrong = {item.id: convert.wrong_option(item, config.seed) for item in items if not item.problem}
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
        made = negators.by_rules(usable)
    else:
        from nein.engine import processes
        from nein.engine.answers import AnswerCache
        from nein.models import llm

        device = "cpu" if is_endpoint(str(config.llm.model)) else processes.Processes().device(config.device)
        with AnswerCache(folder.answers) as cache:
            client = llm.load(config.llm, cache=cache, device=device)
            made = negators.by_model(usable, [wrong[item.id] for item in usable], client, config.instruction)
    rest = iter(made)
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
        "model": model.rpartition("#")[2] if is_endpoint(model) else model,
        "instruction": hashlib.sha256(negators.INSTRUCTIONS[config.instruction].encode()).hexdigest()[:16],
        **{key: getattr(config.llm, key) for key in ("temperature", "max_tokens", "attempts")},
    }


def _write(
    config: ConversionConfig,
    folder: Folder,
    items: Sequence[Choice],
    wrong: Mapping[str, str],
    negations: Sequence[Negation],
    negator: Mapping[str, Any],
) -> str:
    """Pictures, records, questions, sheet; the manifest's status last."""
    negated = [(item, made) for item, made in zip(items, negations, strict=True) if made.state == NEGATED]
    kept = [item for item, _ in negated]
    if config.letters == "notebook":
        drawn, letters = convert.notebook(kept, config.seed)
        wrong = {**wrong, **drawn}
    else:
        letters = convert.letters(kept, config.seed, config.letters)
    names: dict[str, str] = {}
    questions = folder.path / "questions.jsonl"
    atomic.write_lines(
        questions,
        (
            convert.record(item, _keep(folder.path, item, names), made.question, wrong[item.id], letter)
            for (item, made), letter in zip(negated, letters, strict=True)
        ),
    )
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
            "wrong": wrong.get(item.id), "state": made.state, "negated_question": made.question or None,
            "reason": made.reason or None, "kind": made.kind or None,
        }
        for item, made in zip(items, negations, strict=True)
    )  # fmt: skip
    atomic.write_lines(folder.path / "records.jsonl", records)
    if negated:
        chosen = convert.chosen([item.id for item, _ in negated], int(config.sheet), config.seed)
        by_id = {row["index"]: row for row in atomic.checked_lines(questions) if row["index"] in chosen}
        check.write_sheet(
            folder.path / "check.html",
            [by_id[key] for key in chosen],
            population=len(negated),
            negator=" ".join(str(negator[key]) for key in ("negator", "model") if negator.get(key)),
        )
    again = sum(made.again for made in negations)
    counts = Counter(made.state for made in negations)
    reasons = Counter((made.state, made.kind or made.reason) for made in negations if made.state != NEGATED)
    folder.update(
        status=INCOMPLETE if again else COMPLETE,
        counts=dict(counts),
        reasons=[{"state": state, "reason": why, "count": n} for (state, why), n in reasons.most_common()],
        questions=len(negated),
    )
    return _summary(folder, counts, reasons, again, letters)


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


def _summary(
    folder: Folder,
    counts: Mapping[str, int],
    reasons: Counter[tuple[str, str]],
    again: int,
    letters: Sequence[str],
) -> str:
    total = sum(counts.values())
    lines = [f"{counts.get(NEGATED, 0)} of {total} questions negated, {letters.count('A')} with A right."]
    for (state, why), count in reasons.most_common(12):
        lines.append(f"  {count:6d} {state}: {why}")
    if len(reasons) > 12:
        lines.append(f"         and {len(reasons) - 12} further reasons, in records.jsonl")
    if again:
        lines.append(f"{again} got no answer; run the same command again to ask for these alone.")
    if counts.get(NEGATED):
        lines.append(f"Questions: {folder.path / 'questions.jsonl'}")
        lines.append(f"To be checked by a person: {folder.path / 'check.html'}")
    else:
        raise UserError(f"Not one of {total} questions could be negated. " + " ".join(lines[1:3]).strip())
    return "\n".join(lines) + "\n"
