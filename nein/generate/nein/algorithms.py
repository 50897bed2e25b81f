"""The paper's two algorithms: which objects are not in an image, sentences that say so, and the filters.

Source: github.com/tanbuinhat/NeIn @ 22fafb0, generation_phase/ and filtering_phase/. "paper" does as that
code does, "fixed" mends captions, article, joining and answers: docs/reference/quirks.md.

With fewer absent objects than `kept`, where that code fails, both make what they can and count what is
missing. An answer that is neither yes nor no is never kept, and counted apart.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nein.engine.blocks import sample_seed
from nein.generate.nein.sources import Source
from nein.loading.errors import isolated_answers
from nein.metrics.base import parse_yes_no
from nein.metrics.judges.base import Answer, template
from nein.wording import families, nouns

#: Fates of the objects asked for, and why an image gave fewer candidates than `kept`.
TOO_SIMILAR, NOT_LOWEST, KEPT = "cosine not below the threshold", "not among the lowest", "kept"
NO_OBJECT, NO_CAPTION_LEFT = "no absent object left", "no caption left"
NOISE = "generation"  # the stream of its seeds; data made before say none, and took that of evaluation
NO_FAMILY = "no family of negation fits"
#: Verdicts of the filters.
ACCEPTED, LOW_MATCH, FAILED = "accepted", "match at or below the threshold", "the judge failed"
NO_CAPTION, NO_BOTH = 'answered "no" to the caption', 'answered "no" to both'
REJECTED_OBJECT, UNPARSABLE = 'answered "no" to the object', "unparsable answer"


@dataclass(frozen=True)
class Rules:
    """What decides the clauses, given the cosines."""

    objects: tuple[str, ...]
    queried: int
    kept: int
    absent_below: float
    families: tuple[str, ...]
    protocol: str
    seed: int


# --- stage 1: clauses ------------------------------------------------------------------------


def stream(seed: int, source_id: str, purpose: str) -> random.Random:
    """The random stream of one image and purpose: SHA-256 over (run seed, id, purpose)."""
    digest = hashlib.sha256(f"nein-build/{seed}/{source_id}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def queried(rules: Rules, source_id: str) -> list[str]:
    """The random categories asked for about an image, in the order drawn."""
    return stream(rules.seed, source_id, "objects").sample(list(rules.objects), rules.queried)


def clauses(source: Source, cosines: np.ndarray, rules: Rules) -> dict[str, Any]:
    """The record of one image: every object asked for with its fate, the candidates, and what is missing.

    Those of the `queried` categories whose cosine is below `absent_below` count as absent, and the `kept`
    lowest become one candidate each, the i-th with the i-th caption.
    """
    categories = queried(rules, source.id)
    below = [(float(c), k) for k, c in enumerate(cosines) if float(c) < rules.absent_below]
    absent = [categories[k] for _, k in sorted(below)]  # equal ones in the order asked
    chosen = absent[: rules.kept]
    rng = stream(rules.seed, source.id, "templates")
    present = nouns.named_in(source.captions, rules.objects)
    candidates: list[dict[str, Any]] = []
    lost = [NO_OBJECT] * (rules.kept - len(chosen))
    for k, noun in enumerate(chosen):
        if rules.protocol == "paper" and k >= len(source.captions):
            lost.append(NO_CAPTION_LEFT)
            continue
        others = {
            "T": next((other for other in absent[::-1] if other != noun), ""),
            "A": rng.choice([a for a in present if a != noun] or [""]),
        }
        needs = {label: families.FAMILIES[label].needs for label in rules.families}
        possible = [label for label, need in needs.items() if not need or others[need]]
        if not possible:
            lost.append(NO_FAMILY)
            continue
        label = rng.choice(possible)
        index = rng.choice(families.choices(label, noun, rules.protocol))
        named = {"second": others["T"], "present": others["A"], "protocol": rules.protocol}
        sample_id = f"{source.sample_stem}_{k + 1}"
        # A stream of its own: an editor that is evaluated on the sample starts from other noise.
        seed = sample_seed(rules.seed, f"{NOISE}/{source.id if rules.protocol == 'paper' else sample_id}")
        candidates.append({
            "id": sample_id, "source": source.id, "object": noun,
            "caption": source.captions[k % len(source.captions)],
            "negative": families.sentence(label, index, noun, **named), "family": label, "template": index,
            "other": others.get(needs[label]), "generated": addition(noun, rules.protocol), "seed": seed,
        })  # fmt: skip
    fate = {noun: KEPT if noun in chosen else NOT_LOWEST for noun in absent}
    rows = [
        {"object": noun, "cosine": round(float(cosine), 6), "fate": fate.get(noun, TOO_SIMILAR)}
        for noun, cosine in zip(categories, cosines, strict=True)
    ]
    return {"id": source.id, "problem": "", "queried": rows, "candidates": candidates, "lost": lost}


def cosines(matcher: Any, pictures: Sequence[Any], texts: Sequence[Sequence[str]]) -> list[Any]:
    """Per picture the cosine of each of its texts, or why there is none."""
    return isolated_answers(functools.partial(matcher.match, head="itc"), pictures, texts)


def unusable(source: Source, problem: str) -> dict[str, Any]:
    """The record of an image that gives no candidates."""
    return {"id": source.id, "problem": problem, "queried": [], "candidates": [], "lost": []}


def named(noun: str, protocol: str) -> str:
    """The object as it is added and asked for: "a cat"; "a skis" (paper) or "some skis" (fixed)."""
    return families.indefinite(noun) if protocol == "paper" else nouns.with_article(noun, some=True)


def addition(noun: str, protocol: str) -> str:
    """The instruction that makes the sample: "Add a cat."."""
    return f"Add {named(noun, protocol)}."


# --- stages 3 and 4: filters -----------------------------------------------------------------


def match(
    candidates: Sequence[Mapping[str, Any]], pictures: Sequence[np.ndarray], matcher: Any, *,
    above: float, protocol: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Filter 1: a row per candidate with the cosine of the picture and a text, that the caption holds and the
    object is there (algorithm 2), accepted if it is above `above`."""
    texts = []
    for item in candidates:
        caption = item["caption"]
        ended = "." in caption if protocol == "paper" else caption.rstrip().endswith((".", "!", "?"))
        texts.append(f"{caption}{' ' if ended else '. '}This image has {named(item['object'], protocol)}.")
    found = cosines(matcher, pictures, [[text] for text in texts])
    matches = []
    for item, text, value in zip(candidates, texts, found, strict=True):
        row: dict[str, Any] = {"id": item["id"], "text": text, "cosine": None}
        if isinstance(value, str):
            row |= {"verdict": FAILED, "error": value}
        else:
            passed = float(value[0]) > above
            row |= {"cosine": round(float(value[0]), 6), "verdict": ACCEPTED if passed else LOW_MATCH}
        matches.append(row)
    return matches


def ask(
    candidates: Sequence[Mapping[str, Any]], pictures: Sequence[np.ndarray], judge: Any, *, protocol: str
) -> list[dict[str, Any]]:
    """Filter 2: a row per candidate with both answers and the verdict; questions share a picture's prefix."""
    form = template(judge.template)
    prompts = [
        [form.ask_caption(c["caption"]), form.ask_presence(named(c["object"], protocol))] for c in candidates
    ]
    found = isolated_answers(judge.ask, pictures, prompts)
    verdicts = []
    for item, value in zip(candidates, found, strict=True):
        row: dict[str, Any] = {"id": item["id"]}
        if isinstance(value, str):
            row |= {"verdict": FAILED, "error": value}
        else:
            row |= {"caption_answer": _answer(value[0]), "object_answer": _answer(value[1])}
            row |= {"verdict": verdict(value[0].text, value[1].text, protocol)}
        verdicts.append(row)
    return verdicts


def verdict(about_caption: str, about_object: str, protocol: str) -> str:
    """What becomes of a sample after both answers; a "no" weighs more than an answer that cannot be read."""
    if protocol == "paper":
        read = [{"Yes": True, "No": False}.get(text.strip()) for text in (about_caption, about_object)]
    else:
        read = [parse_yes_no(about_caption), parse_yes_no(about_object)]
    if read == [True, True]:
        return ACCEPTED
    if False not in read:
        return UNPARSABLE
    if read == [False, False]:
        return NO_BOTH
    return NO_CAPTION if read[0] is False else REJECTED_OBJECT


def _answer(answer: Answer) -> dict[str, Any]:
    chances = {"p_yes": answer.p_yes, "p_no": answer.p_no}
    return {"text": answer.text, **{k: None if v is None else round(v, 6) for k, v in chances.items()}}
