"""`nein stats`: how many sentences of a caption set are negative, as in the NeIn paper's Table 1.

A sentence counts when it has a word of a list. Two lists are built in: "core", 32 negative words, and "wide",
which adds implicit ones ("empty", "instead of", "rather than"); `--words paper` counts by the words of the
table's caption, too, and shows its rows; `--words FILE` by those of a file, one a line. Words alone
overcount: "things you cannot miss" denies nothing. Sentences with such turns are shown and counted apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nein import statistics
from nein.datasets import coco
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.generate.nein.config import StatsConfig
from nein.reporting import format
from nein.reporting.tables import pipes

#: 32 words and contractions that deny; "n't" stands for every verb that ends so ("doesn't", also "doesn t").
CORE: tuple[str, ...] = (
    "no", "not", "n't", "never", "none", "nobody", "nothing", "nowhere", "neither", "nor", "without",
    "cannot", "no one", "hardly", "barely", "scarcely", "rarely", "seldom", "lack", "lacks", "lacking",
    "lacked", "absent", "absence", "missing", "except", "excluding", "devoid", "non", "nope", "nay",
    "ain't",
)  # fmt: skip
#: Words that deny without a negative word, or only sometimes.
WIDE: tuple[str, ...] = (
    *CORE, "empty", "free of", "free from", "instead of", "rather than", "unlike", "fail", "fails",
    "failed", "refuse", "refuses", "deny", "denies", "avoid", "avoids", "exclude", "excludes", "omitted",
    "removed", "gone", "vacant", "void", "unable", "nonexistent", "invisible", "but for", "apart from",
    "other than", "no longer", "not any", "minus", "sans", "save for", "barring", "unless",
    "little or no", "few if any", "deserted", "bare", "uninhabited", "bereft", "zero",
)  # fmt: skip
#: Those of the caption of Table 1, which says 32, lists 31, and has isn't, aren't and can't twice.
PAPER: tuple[str, ...] = tuple(
    "no, not, without, don't, doesn't, never, none, neither, nothing, can't, isn't, aren't, didn't, did not, "
    "is not, are not, wasn't, was not, weren't, were not, won't, will not, hasn't, has not, have not, "
    "can not, couldn't, could not".split(", ")
)
#: Table 1 (Bui et al., CVPR Workshops 2025): captions, those with such a word, per cent as printed. Of
#: MagicBrush's validation part 6 of 528 are 1.14 %.
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
#: Turns in which a negative word denies nothing about what is to be seen.
IDIOMS: tuple[str, ...] = (
    r"can(?:not|n't|'t| not) (?:be )?miss\w*",
    r"no doubt|without (?:a )?doubt|undoubtedly not",
    r"not only",
    r"no (?:smoking|parking|entry|swimming|trespassing|littering|turns?|u-turn|left|right|stopping|standing)",
    r"(?:why|whether or|if) not",
    r"no matter|nothing but|none other than|no less than|no more than",
    r"not to mention|not to be missed|can't wait|cannot wait",
    r"could(?:n't| not) (?:be )?(?:better|happier|resist)",
    r"can(?:not|n't) (?:help|stop|get enough)",
    r"no \.?\s?\d+|no\. ?\d+",
    r"more often than not|last but not least|non-?stop|no problem|no wonder",
)
HEADERS = (
    "captions", "words", "sentences", "negative", "%", "of these idioms", "% without idioms", "commonest",
)  # fmt: skip


@dataclass
class Counts:
    """Of one caption set and list of words; per sentence its image, and whether it is negative."""

    images: list[str] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    idiomatic: int = 0
    words: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    idioms: list[str] = field(default_factory=list)

    @property
    def negative(self) -> int:
        return int(sum(self.hits))

    def share(self) -> statistics.Estimate:
        """Of negative sentences, with a 95 % interval, clustered by image."""
        estimate = statistics.bounded_mean(self.hits, self.images)
        assert estimate is not None, "there is a sentence"
        return estimate


def pattern(words: Iterable[str]) -> re.Pattern[str]:
    """One expression for whole words of any case; "n't": contractions, with either kind of apostrophe."""
    parts = [
        r"\w+n['’]t" if w == "n't" else re.escape(w).replace(r"\ ", r"\s+").replace("'", "['’]")
        for w in words
    ]
    either = "|".join(sorted(parts, key=len, reverse=True))
    return re.compile(rf"(?<![\w'’])(?:{either})(?![\w])", re.IGNORECASE)


def count(rows: Iterable[tuple[str, str]], words: Sequence[str], examples: int = 5) -> Counts:
    """Counts (image, sentence) pairs; keeps the first `examples` of each sort."""
    wanted, turns = pattern(words), re.compile("|".join(f"(?:{i})" for i in IDIOMS), re.IGNORECASE)
    counts = Counts()
    for image, sentence in rows:
        hits = [*dict.fromkeys(" ".join(hit.lower().split()) for hit in wanted.findall(sentence))]
        counts.images.append(image)
        counts.hits.append(float(bool(hits)))
        counts.words.update(hits)
        # Idiomatic only if nothing negative is left once the turns of phrase are taken out.
        idiomatic = bool(hits) and not wanted.search(turns.sub(" ", sentence))
        counts.idiomatic += idiomatic
        kept = counts.idioms if idiomatic else counts.examples
        if hits and len(kept) < examples:
            kept.append(sentence)
    return counts


def captions(path: Path) -> Iterator[tuple[str, str]]:
    """(image, sentence) of a COCO captions JSON, a JSONL as `nein generate` takes it, or lines of text.

    A NeIn annotation file counts with its captions, T_original; of LLaVA's data a conversation is a sentence.
    Raises UserError for anything else.
    """
    if path.suffix == ".json":
        content = atomic.read_json(path)
        rows: Any = content.get("annotations") if isinstance(content, dict) else content
        if not isinstance(rows, list):
            raise UserError(f"'{path}' has no list of captions ('annotations', or an array of samples).")
        for number, row in enumerate(rows):
            facts = row if isinstance(row, dict) else {"caption": row}
            text = facts.get("caption", facts.get("T_original"))
            if isinstance(turns := facts.get("conversations"), list):
                text = "\n".join(str(turn.get("value")) for turn in turns if isinstance(turn, dict))
            if not isinstance(text, str):
                raise UserError(f"'{path}': entry {number} has no caption.")
            yield (
                str(next((facts[key] for key in ("image_id", "COCO", "image") if key in facts), number)),
                text,
            )
        return
    if path.suffix == ".jsonl":
        for number, row in atomic.iter_lines(path):
            image = coco.image_of(row) or str(number)
            yield from ((image, text) for text in coco.captions_of(row, f"'{path}', line {number},"))
        return
    yield from (
        (str(number), line) for number, line in enumerate(atomic.read_text_lines(path), 1) if line.strip()
    )


def run(options: StatsConfig) -> None:
    """Prints the table and examples. Raises UserError."""
    lists = {"core": CORE, "wide": WIDE}
    for path in options.words:
        if str(path) == "paper":
            lists["paper"] = PAPER
            continue
        given = (line.strip().lower() for line in atomic.read_text_lines(path))
        words = tuple(dict.fromkeys(filter(None, given)))
        if not words:
            raise UserError(f"--words '{path}' holds no word; give one per line.")
        lists[path.name] = words
    rows, examples, whole = [], [], {}
    for path in options.captions:
        read = list(captions(path))
        if not read:
            raise UserError(f"'{path}' holds no caption.")
        for name, words in lists.items():
            counts = count(read, words, options.examples)
            rows.append([path.name, f"{name} ({len(words)})", *_cells(counts)])
            examples += [f"\n{path.name}, {name}:"] if counts.examples or counts.idioms else []
            examples += [f"  negative       {text}" for text in counts.examples]
            examples += [f"  false positive {text}" for text in counts.idioms]
            whole[f"{path.name}/{name}"] = {
                "words": list(words), "sentences": len(counts.hits), "negative": counts.negative,
                "idiomatic": counts.idiomatic, "by_word": dict(counts.words.most_common()),
            }  # fmt: skip
    if "paper" in lists:
        printed = [line.split() for line in TABLE_1.strip().splitlines()]
        rows += [[f"{name} (printed)", "paper", *counts] for name, *counts in printed]
    print(pipes(rows, HEADERS))
    print(*examples, sep="\n", end="\n" if examples else "")
    if options.json:
        atomic.write_json(options.json, whole)


def _cells(counts: Counts) -> list[str]:
    total, share = len(counts.hits), format.text({**asdict(counts.share()), "unit": "%"}, digits=2)
    commonest = ", ".join(f"{word} {n}" for word, n in counts.words.most_common(3))
    left = f"{100 * (counts.negative - counts.idiomatic) / total:.2f}"
    return [str(total), str(counts.negative), share, str(counts.idiomatic), left, commonest]
