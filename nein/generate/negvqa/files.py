"""From negations to the files that the evaluation reads: two options each, letters, pictures.

OUT/images/           the pictures, as they were
OUT/records.jsonl     one line per question of the source: its negation, or why there is none
OUT/questions.jsonl   NegVQA's layout, for `nein negvqa --data`; -original and -negated beside it
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nein.datasets.negvqa.questions import VARIANTS
from nein.engine import atomic
from nein.engine.blocks import sample_seed
from nein.engine.errors import UserError
from nein.generate.negvqa.sources import Choice
from nein.generate.negvqa.stages import NEGATED, Negation, NegvqaMaker

#: First bytes of a picture -> the ending of its name.
ENDINGS = {
    rb"\x89PNG": ".png", rb"\xff\xd8\xff": ".jpg", rb"GIF8": ".gif", rb"BM": ".bmp",
    rb"(?s)RIFF....WEBP": ".webp",
}  # fmt: skip


def read(maker: NegvqaMaker) -> list[tuple[Choice, Negation]]:
    """Every wanted question, and what became of it."""
    found = []
    for shard in maker.blocks.numbers:
        for item, row in zip(maker.members(shard), maker.rows("negate", shard), strict=True):
            found.append((item, Negation(*(row[key] for key in ("state", "question", "reason", "kind")))))
    return found[: len(maker.blocks.wanted)]


def write(maker: NegvqaMaker, found: Sequence[tuple[Choice, Negation]]) -> list[str]:
    """Writes pictures, questions and records; the right letters of the originals of negated questions."""
    config, out = maker.config, maker.folder.path
    kept = [item for item, negation in found if negation.state == NEGATED]
    wrong = {item.id: wrong_option(item, config.seed) for item, _ in found if not item.problem}
    if config.letters == "notebook":
        drawn, right = notebook(kept, config.seed)
        wrong |= drawn
    else:
        right = balanced(kept, config.seed)
    atomic.write_lines(out / "questions.jsonl", _questions(out, found, wrong, right))
    for variant in VARIANTS:
        rows = (
            {key: row[key] for key in ("index", "image", "category", "A", "B")}
            | {"question": row[f"{variant}_question"], "answer": row[f"{variant}_answer"]}
            for row in atomic.checked_lines(out / "questions.jsonl")
        )
        atomic.write_lines(out / f"questions-{variant}.jsonl", rows)
    records = (
        {
            "index": item.id, "category": item.subset, "question": item.question,
            "options": list(item.options), "right": item.answer if not item.problem else None,
            "wrong": wrong.get(item.id), "state": negation.state,
            "negated_question": negation.question or None, "reason": negation.reason or None,
            "kind": negation.kind or None,
        }
        for item, negation in found
    )  # fmt: skip
    atomic.write_lines(out / "records.jsonl", records)
    return right


def _questions(
    out: Path, found: Sequence[tuple[Choice, Negation]], wrong: Mapping[str, str], right: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """NegVQA's layout: two options, and both questions with the letters that are right."""
    names: dict[str, str] = {}
    letters_left = iter(right)
    for item, negation in found:
        if negation.state != NEGATED:
            continue
        letter = next(letters_left)
        options = (item.answer, wrong[item.id]) if letter == "A" else (wrong[item.id], item.answer)
        yield {
            "index": item.id, "image": _keep(out, item, names), "category": item.subset,
            "original_question": item.question, "negated_question": negation.question,
            "A": options[0], "B": options[1],
            "original_answer": letter, "negated_answer": "B" if letter == "A" else "A",
        }  # fmt: skip


def _keep(out: Path, item: Choice, names: dict[str, str]) -> str:
    """Name below `out` of an item's picture, copied unless it is there; equal pictures are one file.

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
    subsets: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        subsets[item.subset].append(index)
    drawn = [""] * len(items)
    for subset, places in subsets.items():
        first = sample_seed(seed, f"letters/{subset}") >> 62
        ranked = sorted(places, key=lambda index: sample_seed(seed, f"letter/{items[index].id}"))
        for rank, index in enumerate(ranked):
            drawn[index] = "AB"[(rank + first) % 2]
    return drawn


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
