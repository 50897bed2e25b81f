"""The sentences of NegBench: templated negated captions, and multiple-choice options with their distractors.

Sources: the paper (its section on templates and the appendix) and the released code
(github.com/m1k2zoo/negbench @ 2ac009b: create_mcq.py for evaluation and for fine-tuning,
process_video_tasks.py, generate_negative_captions.py). Both wordings are in `WORDINGS`.

Rules that a file shows go by `protocol`: docs/reference/quirks.md.

Options and negated captions of evaluation files about images get no full stop; training files have one.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from nein.datasets.negbench import records
from nein.datasets.negbench.polarity import mentions
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION, Option, Question, RetrievalItem
from nein.engine.folder import sample_seed

Protocol = Literal["paper", "fixed"]
#: Forms of a wording; the last two are of the sentence beside a caption, "There is no {x} in the {thing}".
PAIR, ABSENT, PRESENT = "pair", "absence", "presence"
FORMS = (PAIR, AFFIRMATION, NEGATION, HYBRID, ABSENT, PRESENT)


def _forms(text: str) -> dict[str, str]:
    return dict(zip(FORMS, text.split(" | "), strict=True))


def _verb(subject: str, third: str, plain: str, contrast: str = ", but not") -> dict[str, str]:
    yes, no = f"{subject} {third}", f"{subject} does not {plain}"
    return _forms(
        f"{yes} {{A}} and {{B}} | {yes} {{A}} | {no} {{N}} | {yes} {{A}}{contrast} {{N}} | "
        f"{no} {{x}} | {yes} {{x}}"
    )


#: Held out of every training: a new verb, with denying words that `VARIED` has in other sentences.
UNSEEN = "includes"
NEGATOR = "lacks"  # Held out of every training: "lacks" occurs nowhere else
HELD_OUT = {
    UNSEEN: _verb("This {thing}", "includes", "include", " but not"),
    NEGATOR: _forms(
        "This {thing} features {A} and {B} | This {thing} features {A} | This {thing} lacks {N} | "
        "This {thing} features {A}, but lacks {N} | The {thing} lacks {x} | The {thing} features {x}"
    ),
}
#: For training, beside "code".
VARIED = {
    "shows": _verb("The picture", "shows", "show", " but not"),
    "contains": _verb("The photo", "contains", "contain"),
    "depicts": _verb("It", "depicts", "depict", ", not"),
    "there": _forms(
        "There is {A} and {B} here | There is {A} here | There is no {N} here | "
        "There is {A} here, but no {N} | There is no {x} here | There is {x} here"
    ),
    "has": _forms(
        "The scene has {A} and {B} | The scene has {A} | The scene has no {N} | "
        "The scene has {A} and no {N} | The scene has no {x} | The scene has {x}"
    ),
    "visible": _forms(
        "{A} and {B} are visible | {A} is visible | {N} is not visible | {A} is visible, {N} is not | "
        "{x} is not visible | {x} is visible"
    ),
    "see": _forms(
        "We see {A} and {B} | We see {A} | We see no {N} | We see {A} and no {N} | We see no {x} | We see {x}"
    ),
    "without": _forms(
        "A view with {A} and {B} | A view with {A} | A view without {N} | "
        "A view with {A} and without {N} | It is a view without {x} | It is a view with {x}"
    ),
    "any": _forms(
        "In this place are {A} and {B} | In this place is {A} | In this place is not any {N} | "
        "In this place is {A}, not any {N} | In this place is not any {x} | In this place is {x}"
    ),
}
#: Wording -> template -> sentence without its end. {thing}: "image" or "video"; A, B: present; N: absent.
WORDINGS: dict[str, dict[str, str]] = {
    "code": {
        **_verb("This {thing}", "features", "feature"),
        ABSENT: "There is no {x} in the {thing}",
        PRESENT: "There is {x} in the {thing}",
    },
    "paper": _verb("This {thing}", "includes", "include", " but not"),
    **HELD_OUT,
    **VARIED,
}
#: "There is no {x} in the image. {caption}" and the other way round, with equal chances.
ABSENCE = f"{WORDINGS['code'][ABSENT]}."
STOP = "."  # at the end of the options of training files
NOTHING = "None"  # the released code's object of an image that shows none: Python's word for it
NEGCAP = 3  # captions per image of CC12M-NegCap


@dataclass(frozen=True)
class Rules:
    """Rules for making sentences; docs/reference/quirks.md lists the effects of `protocol`."""

    wording: str = "code"  # a key of WORDINGS
    thing: str = "image"  # or "video"
    order: str = "either"  # place of the negation: "either", "prefix", "suffix"
    protocol: Protocol = "fixed"


CODE = Rules()


def stream(run_seed: int, image_id: str, purpose: str) -> random.Random:
    return random.Random(sample_seed(run_seed, f"negbench/{purpose}/{image_id}"))


@dataclass(frozen=True)
class Negation:
    """A caption and the absent object that it is to deny, before what it says or behind it."""

    caption: str
    absent: str
    before: bool

    def text(self, thing: str, stop: Literal["as it is", "where missing", "always"]) -> str:
        """stop: whether the caption gets a full stop."""
        sentence = ABSENCE.format(x=self.absent, thing=thing)
        caption = self.caption.strip()
        if stop == "always" or (stop == "where missing" and not caption.endswith((".", "!", "?"))):
            caption += STOP
        return f"{sentence} {caption}" if self.before else f"{caption} {sentence}"


def place(captions: Sequence[str], absent: Sequence[str], rng: random.Random, order: str) -> list[Negation]:
    """Each caption with its absent object, and the place of the denial, drawn evenly for "either"."""
    return [
        Negation(text, name, rng.random() < 0.5 if order == "either" else order == "prefix")
        for text, name in zip(captions, absent, strict=True)
    ]


def options(
    present: Sequence[str],
    absent: str,
    template: str,
    rules: Rules = CODE,
    *,
    hybrid: str | None = None,
    stop: str = "",
) -> list[Option]:
    """The right option of `template`, then three wrong ones: N and not B, N, not A.

    present  One object or two.
    hybrid   The present object of the hybrid options, by default the last of them.
    """
    first, last = present[0], present[-1]
    other = hybrid or last

    def say(form: str, a: str = "", b: str = "", n: str = "") -> str:
        return WORDINGS[rules.wording][form].format(A=a, B=b, N=n, thing=rules.thing) + stop

    if template == AFFIRMATION:  # "features a dog and a cat"
        right = say(PAIR, first, last) if len(present) > 1 else say(AFFIRMATION, first)
    else:  # "does not feature a car", "features a cat, but not a car"
        right = say(template, other if template == HYBRID else "", n=absent)
    wrong = Option(say(HYBRID, absent, n=other), HYBRID), Option(say(AFFIRMATION, absent), AFFIRMATION)
    return [Option(right, template), *wrong, Option(say(NEGATION, n=first), NEGATION)]


def evaluation_questions(
    image: Concepts, seed: int, rules: Rules = CODE, *, count: int = 3, single: bool = False
) -> list[Question]:
    """Up to `count` questions, one per absent object, the right option first, as released. An image needs two
    positives, or one if `single` (medical images)."""
    if len(image.positives) < (1 if single else 2):
        return []
    rng = stream(seed, image.id, "mcq")
    pair = image.positives[:2] if rules.protocol == "paper" and rules.thing == "video" else ()
    questions = []
    for number, absent in enumerate(rng.sample(image.negatives, min(count, len(image.negatives)))):
        if not pair or rules.protocol == "fixed":
            pair = tuple(rng.sample(image.positives, min(2, len(image.positives))))
        choices = options(pair, absent, rng.choice(records.TEMPLATES), rules)
        questions.append(_question(image, f"{image.id}#{number}", choices, (absent,)))
    return questions


def questions_as_filed(
    image: Concepts, seed: int, rules: Rules = CODE, *, count: int = 1, single: bool = False
) -> list[Question]:
    """`count` questions as in the released COCO and VOC files: all objects are drawn anew per question,
    hybrids name the object that the wrong negation denies. single: also VOC's questions about one object."""
    if len(image.positives) < (1 if single else 2) or not image.negatives:
        return []
    rng, questions = stream(seed, image.id, "mcq-filed"), []
    for number in range(count):
        pair, absent = rng.sample(image.positives, min(2, len(image.positives))), rng.choice(image.negatives)
        template = rng.choice(records.TEMPLATES if len(pair) > 1 else (NEGATION, HYBRID))
        choices = options(pair, absent, template, rules, hybrid=pair[0])
        questions.append(_question(image, f"{image.id}#{number}", choices, (absent,)))
    return questions


def medical_questions(
    image: Concepts, seed: int, wording: str = "code", conditions: Sequence[str] = ()
) -> dict[str, Question]:
    """Further questions of the medical sets, by the stem of their file; one each, the right option first.

    mcq_control         Four affirmations, of a present object and of three absent ones.
    binary_mcq          An object affirmed and denied, a present or an absent one with equal chances.
    binary_mcq_control  Two affirmations, of a present object and of an absent one.

    The tasks are published, how the sentences were drawn is not. conditions: the two of the paper, with its
    verb: binary questions ask about the first, and controls tell the two apart where just one is there.
    """
    if not image.positives or not image.negatives:
        return {}
    rng = stream(seed, image.id, "medical")
    present, absent = rng.choice(image.positives), rng.sample(image.negatives, min(3, len(image.negatives)))
    is_shown = rng.random() < 0.5

    def say(form: str, name: str) -> str:
        return WORDINGS[wording][form].format(A=name, N=name, thing="image")

    def ask(texts: Sequence[str], template: str | None = None) -> Question:
        return _question(image, image.id, [Option(text, template) for text in texts], tuple(absent))

    affirmed = [say(AFFIRMATION, name) for name in (present, *absent)]
    finding = present if is_shown else absent[0]
    forms = (AFFIRMATION, NEGATION)[:: 1 if is_shown else -1]
    questions = {
        "binary_mcq": ask([say(form, finding) for form in forms]),
        "binary_mcq_control": ask(affirmed[:2]),
    }
    if conditions:
        questions, (first, second) = {}, conditions
        is_shown, is_other = (name.lower() in image.positives for name in conditions)
        is_known = [name.lower() not in image.unsure for name in conditions]
        yes, no = f"This image shows {first}", f"This image does not show {first}"
        if is_known[0]:
            questions["binary_mcq"] = ask([yes, no][:: 1 if is_shown else -1])
        if all(is_known) and is_shown != is_other:
            pair = [yes, f"This image shows {second}"]
            questions["binary_mcq_control"] = ask(pair[:: 1 if is_shown else -1])
    if len(absent) == 3:
        questions["mcq_control"] = ask(affirmed, AFFIRMATION)
    return questions


def training_question(image: Concepts, seed: int, rules: Rules = CODE) -> Question | None:
    """One question with shuffled options, or None without a present or an absent object. With one positive,
    "features {A}." replaces "features {A} and {B}." (`modified_positive`)."""
    present = image.positives or ((NOTHING,) if rules.protocol == "paper" else ())
    if not present or not image.negatives:
        return None
    rng = stream(seed, image.id, "train-mcq")
    absent = rng.choice(image.negatives)
    pair = rng.sample(present, min(2, len(present)))
    template, hybrid = rng.choice(records.TEMPLATES), pair[0] if rules.protocol == "paper" else None
    choices = options(pair, absent, template, rules, hybrid=hybrid, stop=STOP)
    return _question(image, image.id, choices, (absent,), shuffle_order(len(choices), rng))


def shuffle_order(count: int, rng: random.Random) -> list[int]:
    order = list(range(count))
    rng.shuffle(order)
    return order


def _question(
    image: Concepts, name: str, choices: Sequence[Option], absent: tuple[str, ...], order: Sequence[int] = ()
) -> Question:
    """The first option is right; order: of the options."""
    order = order or range(len(choices))
    ordered, template = tuple(choices[i] for i in order), choices[0].template
    return Question(
        name, image.path, ordered, order.index(0), template, image.positives, absent, image.cluster
    )


def retrieval_items(
    image: Concepts, seed: int, rules: Rules = CODE, captions: int | None = None
) -> tuple[RetrievalItem, RetrievalItem] | None:
    """The original and the negated item of the first `captions`; None without captions or absent objects."""
    chosen = image.captions[:captions]
    if not chosen or not image.negatives:
        return None
    rng = stream(seed, image.id, "retrieval")
    absent = [rng.choice(image.negatives) for _ in chosen]
    stop: Any = "always" if rules.protocol == "paper" else "where missing"
    if rules.thing == "image":  # "A dog There is no car in the image.", as released
        stop = "as it is"
    negated = tuple(negation.text(rules.thing, stop) for negation in place(chosen, absent, rng, rules.order))
    present, denied, source = image.positives, tuple(dict.fromkeys(absent)), image.cluster
    return (
        RetrievalItem(image.id, image.path, tuple(chosen), records.ORIGINAL, present, source=source),
        RetrievalItem(image.id, image.path, negated, records.NEGATED, present, denied, source),
    )


def training_captions(image: Concepts, seed: int, rules: Rules = CODE) -> RetrievalItem | None:
    """Three negated captions, as CC12M-NegCap; None without an absent object."""
    negations = training_negations(image, seed, rules)
    if not negations:
        return None
    captions = tuple(negation.text(rules.thing, "where missing") for negation in negations)
    absent, present = tuple(dict.fromkeys(negation.absent for negation in negations)), image.positives
    return RetrievalItem(image.id, image.path, captions, records.NEGATED, present, absent, image.cluster)


def training_negations(image: Concepts, seed: int, rules: Rules = CODE) -> list[Negation]:
    """NEGCAP captions of an image, reused if it has fewer, with the objects that they deny."""
    if not image.captions or not image.negatives:
        return []
    rng = stream(seed, image.id, "negcap")
    chosen = list(itertools.islice(itertools.cycle(image.captions), NEGCAP))
    absent = image.negatives
    if len(absent) >= NEGCAP:
        denied = rng.sample(absent, NEGCAP)
    elif rules.protocol == "paper":
        denied = rng.choices(absent, k=NEGCAP)
    else:  # of two objects both are denied, and one of them twice
        rounds = itertools.chain.from_iterable(rng.sample(absent, len(absent)) for _ in range(NEGCAP))
        denied = list(itertools.islice(rounds, NEGCAP))
    return place(chosen, denied, rng, rules.order)


NEGATIVES = 3  # absent objects kept per image, as published
IN_CAPTION = "object not annotated but in a caption, not taken for absent"


@dataclass(frozen=True)
class Concepts:
    """One image on its way to the data set."""

    id: str  # unique; the seed of everything drawn for the image
    path: str = ""  # as the CSV files will name it
    captions: tuple[str, ...] = ()  # affirmative; none in sets without any (VOC)
    positives: tuple[str, ...] = ()  # objects it shows, distinct, in order of first mention
    negatives: tuple[str, ...] = ()  # absent objects, the most plausible first
    unsure: tuple[str, ...] = ()  # may be there: asked about neither as present nor as absent
    problem: str = ""  # why it yields nothing
    source_id: str = ""  # image it stems from, what intervals are clustered by; "": `id`
    notes: tuple[str, ...] = ()  # what happened to it on the way: counted in the card

    @property
    def cluster(self) -> str:
        return self.source_id or self.id

    def add_notes(self, *notes: str) -> Concepts:
        return replace(self, notes=(*self.notes, *notes))


def add_negatives(
    images: Sequence[Concepts], count: int = NEGATIVES, *, screened: bool = True
) -> Iterator[Concepts]:
    """Adds up to `count` absent objects per image: those most often seen with its present ones; ties: the
    more frequent, then the alphabet. screened: skips objects that a caption names (162 of COCO's 5,000)."""
    showing: Counter[str] = Counter()  # in how many images an object is
    together: dict[str, Counter[str]] = {}  # object -> in how many of its images each other one is
    for image in images:
        distinct = set() if image.problem else set(image.positives)
        showing.update(distinct)
        for name in distinct:
            together.setdefault(name, Counter()).update(distinct - {name})
    for image in images:
        if image.problem:
            yield image
            continue
        counts: Counter[str] = Counter()
        for name in set(image.positives):
            counts.update(together[name])
        others = counts.keys() - {*image.positives, *image.unsure}
        text = ". ".join(image.captions if screened else ())
        absent, passed = list[str](), 0
        for name in sorted(others, key=lambda name: (-counts[name], -showing[name], name)):
            if len(absent) == count:
                break
            if mentions(text, name):
                passed += 1
            else:
                absent.append(name)
        yield replace(image.add_notes(*[IN_CAPTION] * passed), negatives=tuple(absent))
