"""Counts the negative sentences of caption sets (`nein stats`), as in the NeIn paper's Table 1.

A sentence counts when it has a word of a list: the paper's, or a file with one word per line. Words alone
overcount: "things you cannot miss" denies nothing, so examples are shown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nein import statistics
from nein.datasets import coco
from nein.engine import atomic
from nein.engine.folder import Row
from nein.generate.config import StatsConfig
from nein.loading.errors import UserError
from nein.reporting import tables
from nein.reporting.tables import format_rows

#: Negative words in the caption of Table 1, which says 32, lists 31, and has isn't, aren't and can't twice.
PAPER_WORDS: tuple[str, ...] = tuple(
    "no, not, without, don't, doesn't, never, none, neither, nothing, can't, isn't, aren't, didn't, did not, "
    "is not, are not, wasn't, was not, weren't, were not, won't, will not, hasn't, has not, have not, "
    "can not, couldn't, could not".split(", ")
)
#: Table 1 (Bui et al., CVPR Workshops 2025): data set, captions, those with such a word, per cent as printed.
#: (MagicBrush-val: 6 of 528 are in fact 1.14 %.)
TABLE_1 = """
CC12M 12423374 314181 2.53
LAION-400M 413862224 2404784 0.58
COCO'14-train 414113 1761 0.43
COCO'14-val 202654 886 0.44
SBU 1000000 26222 2.62
CC3M-train 3318333 54219 1.63
CIRR-train 28225 868 3.08
CIRR-val 4181 130 3.11
InstructPix2Pix-train 313010 77 0.02
MagicBrush-train 8807 54 0.61
MagicBrush-val 528 6 1.17
"""


@dataclass
class Counts:
    """Counts of one caption set and word list."""

    images: list[str] = field(default_factory=list)  # of every sentence
    hits: list[float] = field(default_factory=list)  # of every sentence: 1.0 if it has a word, else 0.0
    words: Counter[str] = field(default_factory=Counter)  # word -> sentences with it
    examples: list[str] = field(default_factory=list)  # the first negative sentences


def count(rows: Sequence[tuple[str, str]], words: Sequence[str], example_count: int = 5) -> Counts:
    """Counts the (image, sentence) rows with one of the words, in any case; the first ones are examples."""
    longest_first = sorted(map(re.escape, words), key=len, reverse=True)  # "did not" before "not"
    either = "|".join(longest_first).replace(r"\ ", r"\s+").replace("'", "['’]")  # any space and apostrophe
    pattern = re.compile(rf"(?<![\w'’])(?:{either})(?![\w])", re.IGNORECASE)
    counts = Counts()
    for image, sentence in rows:
        found = list(dict.fromkeys(" ".join(match.lower().split()) for match in pattern.findall(sentence)))
        counts.images.append(image)
        counts.hits.append(float(bool(found)))
        counts.words.update(found)
        if found and len(counts.examples) < example_count:
            counts.examples.append(sentence)
    return counts


def iter_captions(path: Path) -> Iterator[tuple[str, str]]:
    """Yields (image, sentence) of COCO captions or NeIn annotations (.json), .jsonl, or text lines."""
    if path.suffix == ".jsonl":
        for entry in coco.iter_images(path):
            yield from ((entry.file_name, text) for text in entry.captions)
    elif path.suffix == ".json":
        content = atomic.read_json(path)
        rows: Any = content.get("annotations") if isinstance(content, dict) else content
        atomic.parse(rows, list[Row], f"'{path}' has no list of captions")
        for number, row in enumerate(rows):
            text = row.get("caption", row.get("T_original"))
            if not isinstance(text, str):
                raise UserError(f"'{path}': entry {number} has no caption.")
            yield str(row.get("image_id", row.get("COCO", number))), text
    else:
        lines = enumerate(atomic.read_text_lines(path), 1)
        yield from ((str(number), line) for number, line in lines if line.strip())  # one image per line


def run(options: StatsConfig) -> None:
    """Prints the table and examples. Raises UserError."""
    lists = {}  # name of the list -> its words
    for path in options.words:
        lines = PAPER_WORDS if str(path) == "paper" else atomic.read_text_lines(path)
        lists[path.name] = tuple(dict.fromkeys(line.strip().lower() for line in lines if line.strip()))
        if not lists[path.name]:
            raise UserError(f"--words '{path}' has no words; write one per line.")

    rows, example_lines = list[Sequence[str]](), list[str]()  # of the table; below it
    report: Row = {}  # content of --json
    for path in options.captions:
        sentences = list(iter_captions(path))
        if not sentences:
            raise UserError(f"'{path}' has no captions.")
        for name, words in lists.items():
            counts = count(sentences, words, options.examples)
            negative = int(sum(counts.hits))
            share = statistics.bounded_mean(counts.hits, counts.images)  # clustered by image
            assert share is not None, "there is a sentence"
            commonest = ", ".join(f"{word} {n}" for word, n in counts.words.most_common(3))
            percent = tables.format_estimate({**asdict(share), "unit": "%"}, digits=2)
            counted = [str(len(sentences)), str(negative)]
            rows.append([path.name, f"{name} ({len(words)})", *counted, percent, commonest])
            if counts.examples:
                example_lines += [f"\n{path.name}, {name}:", *counts.examples]
            facts = {"words": words, "sentences": len(sentences), "negative": negative}
            report[f"{path.name}/{name}"] = {**facts, "by_word": dict(counts.words.most_common())}
    if "paper" in lists:
        printed = [line.split() for line in TABLE_1.strip().splitlines()]
        rows += [[f"{name} (printed)", "paper", *numbers] for name, *numbers in printed]
    print(format_rows(rows, ("captions", "words", "sentences", "negative", "%", "commonest")))
    print(*example_lines, sep="\n", end="\n" if example_lines else "")
    if options.json:
        atomic.write_json(options.json, report)
