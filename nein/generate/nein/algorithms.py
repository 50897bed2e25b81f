"""The paper's two algorithms: which objects are not in an image, sentences that say so, and the filters.

Source: github.com/tanbuinhat/NeIn @ 22fafb0, generation_phase/ and filtering_phase/. "paper" does as that
code does, "fixed" mends captions, article, joining and answers: docs/reference/quirks.md.

With fewer absent objects than `kept`, where that code fails, both make what they can and count what is
missing. An answer that is neither yes nor no is never kept, and counted apart.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nein.engine.blocks import sample_seed
from nein.generate.nein.config import BuildConfig
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

# --- stage 1: clauses ------------------------------------------------------------------------


def stream(seed: int, source_id: str, purpose: str) -> random.Random:
    """The random stream of one image and purpose: SHA-256 over (run seed, id, purpose)."""
    digest = hashlib.sha256(f"nein-build/{seed}/{source_id}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def queried(objects: Sequence[str], config: BuildConfig, source_id: str) -> list[str]:
    """The random categories asked for about an image, in the order drawn."""
    return stream(config.seed, source_id, "objects").sample(list(objects), config.queried)


def clauses(
    source: Source, cosines: np.ndarray, objects: Sequence[str], config: BuildConfig
) -> dict[str, Any]:
    """The record of one image: every object asked for with its fate, the candidates, and what is missing.

    Those of the `queried` categories whose cosine is below `absent_below` count as absent, and the `kept`
    lowest become one candidate each, the i-th with the i-th caption.
    """
    categories = queried(objects, config, source.id)
    below = [(float(c), k) for k, c in enumerate(cosines) if float(c) < config.absent_below]
    absent = [categories[k] for _, k in sorted(below)]  # equal ones in the order asked
    chosen = absent[: config.kept]
    rng = stream(config.seed, source.id, "templates")
    present = nouns.named_in(source.captions, objects)
    needs = {label: families.FAMILIES[label].needs for label in config.family_labels}
    candidates: list[dict[str, Any]] = []
    lost = [NO_OBJECT] * (config.kept - len(chosen))
    for k, noun in enumerate(chosen):
        if config.protocol == "paper" and k >= len(source.captions):
            lost.append(NO_CAPTION_LEFT)
            continue
        second = next((other for other in absent[::-1] if other != noun), "")
        others = {"": "", "T": second, "A": rng.choice([a for a in present if a != noun] or [""])}
        possible = [label for label, need in needs.items() if not need or others[need]]
        if not possible:
            lost.append(NO_FAMILY)
            continue
        label = rng.choice(possible)
        index = rng.choice(families.choices(label, noun, config.protocol))
        named = {"second": second, "present": others["A"], "protocol": config.protocol}
        sample_id = f"NeIn_{source.id.removeprefix('COCO_')}_{k + 1}"
        # A stream of its own: an editor that is evaluated on the sample starts from other noise.
        noise = f"{NOISE}/{source.id if config.protocol == 'paper' else sample_id}"
        candidates.append(
            {
                "id": sample_id,
                "source": source.id,
                "object": noun,
                "caption": source.captions[k % len(source.captions)],
                "negative": families.sentence(label, index, noun, **named),
                "family": label,
                "template": index,
                "other": others[needs[label]] or None,
                "generated": f"Add {named_object(noun, config.protocol)}.",
                "seed": sample_seed(config.seed, noise),
            }
        )
    fate = {noun: KEPT if noun in chosen else NOT_LOWEST for noun in absent}
    rows = [
        {"object": noun, "cosine": round(float(cosine), 6), "fate": fate.get(noun, TOO_SIMILAR)}
        for noun, cosine in zip(categories, cosines, strict=True)
    ]
    return {"id": source.id, "problem": "", "queried": rows, "candidates": candidates, "lost": lost}


def unusable(source: Source, problem: str) -> dict[str, Any]:
    """The record of an image that gives no candidates."""
    return {"id": source.id, "problem": problem, "queried": [], "candidates": [], "lost": []}


def named_object(noun: str, protocol: str) -> str:
    """The object as it is added and asked for: "a cat"; "a skis" (paper) or "some skis" (fixed)."""
    return families.indefinite(noun) if protocol == "paper" else nouns.with_article(noun, some=True)


def cosines(matcher: Any, images: Sequence[Any], texts: Sequence[Sequence[str]]) -> list[Any]:
    """Per image the cosine of each of its texts, or why there is none."""
    return isolated_answers(lambda some, words: matcher.match(some, words, head="itc"), images, texts)


# --- stages 3 and 4: filters -----------------------------------------------------------------

Candidates = Sequence[Mapping[str, Any]]


def match(
    candidates: Candidates, images: Sequence[np.ndarray], matcher: Any, *, above: float, protocol: str
) -> list[dict[str, Any]]:
    """Filter 1: a row per candidate with the cosine of the image and a text, that the caption holds and the
    object is there (algorithm 2), accepted if it is above `above`."""
    texts = []
    for item in candidates:
        caption = item["caption"]
        ended = "." in caption if protocol == "paper" else caption.rstrip().endswith((".", "!", "?"))
        has = f"This image has {named_object(item['object'], protocol)}."
        texts.append(f"{caption}{' ' if ended else '. '}{has}")
    rows = []
    found = cosines(matcher, images, [[text] for text in texts])
    for item, text, value in zip(candidates, texts, found, strict=True):
        row = {"id": item["id"], "text": text, "cosine": None}
        if isinstance(value, str):
            rows.append({**row, "verdict": FAILED, "error": value})
        else:
            verdict = ACCEPTED if float(value[0]) > above else LOW_MATCH
            rows.append({**row, "cosine": round(float(value[0]), 6), "verdict": verdict})
    return rows


def ask(
    candidates: Candidates, images: Sequence[np.ndarray], judge: Any, *, protocol: str
) -> list[dict[str, Any]]:
    """Filter 2: a row per candidate with both answers and the verdict; questions share an image's prefix."""
    form, rows, prompts = template(judge.template), [], []
    for item in candidates:
        noun = named_object(item["object"], protocol)
        prompts.append([form.ask_caption(item["caption"]), form.ask_presence(noun)])
    for item, value in zip(candidates, isolated_answers(judge.ask, images, prompts), strict=True):
        if isinstance(value, str):
            rows.append({"id": item["id"], "verdict": FAILED, "error": value})
        else:
            answers = {"caption_answer": _answer(value[0]), "object_answer": _answer(value[1])}
            decided = verdict(value[0].text, value[1].text, protocol)
            rows.append({"id": item["id"], **answers, "verdict": decided})
    return rows


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
