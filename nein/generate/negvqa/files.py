"""From negations to the files that the evaluation reads, and `nein negvqa generate`.

OUT/images/           the images, as they were
OUT/records.jsonl     one line per question of the source: its negation, or why there is none
OUT/questions.jsonl   NegVQA's layout, for `nein negvqa --data`; -original and -negated beside it
OUT/check.html        a sheet for people
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nein.config.groups import start
from nein.datasets.negvqa.questions import VARIANTS
from nein.engine import atomic
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, INCOMPLETE
from nein.generate.maker import make
from nein.generate.negvqa import check
from nein.generate.negvqa.config import ConversionConfig
from nein.generate.negvqa.sources import Choice
from nein.generate.negvqa.stages import NEGATED, Negation, NegvqaMaker
from nein.models import llm

SHOWN = 12  # reasons in the summary
#: First bytes of an image -> the ending of its name.
ENDINGS = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}


def build(config: ConversionConfig) -> str | None:
    """`nein negvqa generate`. Only a local model needs the device."""
    if config.llm.model:
        llm.check(config.llm.model)
    on = config if config.place == "device" else replace(config, device="cpu")
    return make(NegvqaMaker, config, start(on), finish)


def finish(maker: NegvqaMaker) -> tuple[str, dict[str, Any]]:
    """Writes files and sheet: a summary in words, and what the manifest says. Raises UserError where nothing
    could be negated."""
    out, found = maker.folder.path, maker.negations()
    rows = write(maker, found)
    reasons = Counter((n.state, n.kind or n.reason) for _, n in found if n.state != NEGATED).most_common()
    letters = [row["original_answer"] for row in rows]
    lines = [f"{len(rows)} of {len(found)} questions negated, {letters.count('A')} with A right."]
    lines += [f"  {count:6d} {state}: {why}" for (state, why), count in reasons[:SHOWN]]
    if not rows:
        what = " ".join(lines[1:3]).strip()
        raise UserError(f"Not one of {len(found)} questions could be negated. {what}")
    if len(reasons) > SHOWN:
        lines.append(f"         and {len(reasons) - SHOWN} further reasons, in records.jsonl")
    if again := sum(negation.again for _, negation in found):
        lines.append(f"{again} got no answer; retry them with the same command.")
    picked = chosen(rows, maker.config.sheet, maker.config.seed)
    negator = str(maker.identity("cpu").get("model", "as drawn"))
    check.write_sheet(out / "check.html", picked, population=len(rows), negator=negator)
    lines += [f"Questions: {out / 'questions.jsonl'}", f"Check sheet: {out / 'check.html'}"]
    return "\n".join(lines) + "\n", {
        "status": INCOMPLETE if again else COMPLETE,
        "counts": dict(Counter(negation.state for _, negation in found)),
        "questions": len(rows),
        "reasons": [{"state": state, "reason": why, "count": n} for (state, why), n in reasons],
    }


def write(maker: NegvqaMaker, found: Sequence[tuple[Choice, Negation]]) -> list[dict[str, Any]]:
    """Writes images, questions and records; the questions, in NegVQA's layout: two options, and both
    questions with the letters that are right."""
    seed, out = maker.config.seed, maker.folder.path
    kept = [item for item, negation in found if negation.state == NEGATED]
    wrong = {item.id: wrong_option(item, seed) for item, _ in found if not item.problem}
    if maker.config.letters == "notebook":
        drawn, right = notebook(kept, seed)
        wrong |= drawn
    else:
        right = balanced(kept, seed)
    letters = dict(zip((item.id for item in kept), right, strict=True))
    questions, records, names = [], [], dict[str, str]()
    for item, negation in found:
        facts: dict[str, Any] = {"index": item.id, "category": item.subset, "question": item.question}
        facts |= {"options": list(item.options), "right": None if item.problem else item.answer}
        facts |= {"wrong": wrong.get(item.id), "state": negation.state}
        facts |= {"negated_question": negation.question or None, "reason": negation.reason or None}
        records.append({**facts, "kind": negation.kind or None})
        if letter := letters.get(item.id):
            options = [item.answer, wrong[item.id]]
            facts = {"index": item.id, "image": _keep(out, item, names), "category": item.subset}
            facts |= {"original_question": item.question, "negated_question": negation.question}
            facts |= dict(zip("AB", options if letter == "A" else options[::-1], strict=True))
            questions.append({**facts, "original_answer": letter, "negated_answer": "AB"[letter == "A"]})
    atomic.write_lines(out / "questions.jsonl", questions)
    for variant in VARIANTS:
        one = {"question": f"{variant}_question", "answer": f"{variant}_answer"}
        one = {**{key: key for key in ("index", "image", "category", "A", "B")}, **one}
        rows = ({key: row[name] for key, name in one.items()} for row in questions)
        atomic.write_lines(out / f"questions-{variant}.jsonl", rows)
    atomic.write_lines(out / "records.jsonl", records)
    return questions


def _keep(out: Path, item: Choice, names: dict[str, str]) -> str:
    """Name below `out` of an item's image, copied unless it is there; equal images are one file.

    names  Hash -> name of the images kept so far. Raises UserError for a file that cannot be read.
    """
    assert item.picture is not None, "an item without an image is not usable"
    try:
        data = item.picture.read_bytes()
    except OSError as error:
        raise UserError(f"'{item.picture}' cannot be read: {error.strerror or error}.") from None
    digest = hashlib.sha256(data).hexdigest()
    if digest not in names:
        stem = item.id if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,60}", item.id) else digest[:20]
        ending = next((ending for start, ending in ENDINGS.items() if data.startswith(start)), ".img")
        names[digest] = f"images/{stem}{ending}"
        path = out / names[digest]
        if not path.is_file() or path.stat().st_size != len(data):
            atomic.write_bytes(path, data)
    return names[digest]


def wrong_option(item: Choice, seed: int) -> str:
    """One of the wrong options that differ from the right one, drawn with the item's own seed."""
    rng = np.random.default_rng(sample_seed(seed, f"wrong/{item.id}"))
    return item.wrong[int(rng.integers(len(item.wrong)))]


def balanced(items: Sequence[Choice], seed: int) -> list[str]:
    """The letter, A or B, that is right for each original question (the other is right for the negated one):
    in every subset as many A as B, or one more of either, whatever the order of the items."""
    subsets: dict[str, list[str]] = defaultdict(list)
    for item in items:
        subsets[item.subset].append(item.id)
    drawn: dict[str, str] = {}
    for subset, names in subsets.items():
        first = sample_seed(seed, f"letters/{subset}") >> 62
        names.sort(key=lambda name: sample_seed(seed, f"letter/{name}"))
        drawn |= {name: "AB"[(rank + first) % 2] for rank, name in enumerate(names)}
    return [drawn[item.id] for item in items]


def notebook(items: Sequence[Choice], seed: int) -> tuple[dict[str, str], list[str]]:
    """(id -> wrong option, letters) of negated questions in file order, by the one random sequence of the
    authors' notebook. Source: https://github.com/yuhui-zh15/NegVQA (0e4218b), add_negation.ipynb."""
    rng = random.Random(seed)
    wrong, drawn = {}, []
    for item in items:
        others = [text for number, text in enumerate(item.options) if number != item.right]
        [wrong[item.id]] = rng.sample(others, 1)
        order = [0, 1]
        rng.shuffle(order)
        drawn.append("AB"[order.index(0)])
    return wrong, drawn


def chosen(rows: Sequence[dict[str, Any]], count: int, seed: int) -> list[dict[str, Any]]:
    """`count` of the questions at random for the check sheet (all, if fewer), whatever their order.

    In random order, so that whoever stops early has checked a random sample too.
    """
    return sorted(rows, key=lambda row: sample_seed(seed, f"sheet/{row['index']}"))[:count]
