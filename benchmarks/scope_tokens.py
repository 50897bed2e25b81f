"""What of the sentences of negation in scope reaches a model: how many tokens they are, how many are cut at
its longest text, and of how many pairs nothing is left by which a sentence differs from its twin.

    python -m benchmarks.scope_tokens [--model nano:magicbrush,nano:clip] [--pairs 176]

Prints a table in Markdown. Results: research/notes/other-tests.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nein.models.references import resolve
from nein.nano import scope
from nein.wording.languages.base import Language
from nein.wording.languages.table import LANGUAGES

MODELS = "nano:magicbrush,nano:clip,nano:blip,nano:llava,nano:negvqa"
_UNBOUNDED = 10**6  # transformers says 10**30 where a tokenizer has no longest text


def tokenizer(reference: str) -> Any:
    """Of a folder of transformers, or of diffusers, which has it in a folder of its own."""
    from transformers import AutoTokenizer

    folder = Path(resolve(reference))
    inner = folder / "tokenizer"
    return AutoTokenizer.from_pretrained(inner if inner.is_dir() else folder)


def measured(words: Any, language: Language, pairs: Sequence[scope.Pair]) -> tuple[float, float, float]:
    """(mean number of tokens, share of sentences that are cut, share of pairs that are one text to it)."""
    longest = min(words.model_max_length, _UNBOUNDED)
    lengths, alike = [], 0
    for pair in pairs:
        both = language.pair(pair.construction, pair.named, pair.depth)
        lengths += [len(words(text)["input_ids"]) for text in both]
        first, second = (words(text, truncation=True, max_length=longest)["input_ids"] for text in both)
        alike += first == second
    cut = sum(length > longest for length in lengths)
    return sum(lengths) / len(lengths), cut / len(lengths), alike / len(pairs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=MODELS)
    parser.add_argument("--pairs", type=int, default=176)
    options = parser.parse_args()
    pairs = list(scope.pairs("val", options.pairs))
    print("| model | language | denials above | tokens, mean | cut, % | twins alike, % |")
    print("|---|---|---|---|---|---|")
    for reference in options.model.split(","):
        words = tokenizer(reference)
        for language in LANGUAGES.values():
            for depth in scope.DEPTHS:
                these = [pair for pair in pairs if pair.depth == depth]
                tokens, cut, same = measured(words, language, these)
                shown = f"{depth} | {tokens:.1f} | {100 * cut:.1f} | {100 * same:.1f}"
                print(f"| {reference} | {language.title} | {shown} |")


if __name__ == "__main__":
    main()
