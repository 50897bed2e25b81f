"""Writes NegBench's sentences about an image (`Concepts`) from templates: options of questions, and negated
captions; for evaluation and for training.

Sources: the paper (its section on templates and the appendix) and the released code
(github.com/m1k2zoo/negbench @ 2ac009b: create_mcq.py for evaluation and for fine-tuning,
process_video_tasks.py, generate_negative_captions.py). Where paper and files differ, `protocol` decides:
docs/reference/quirks.md. Sentences of evaluation files about images get no full stop; those of training files
have one."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nein.datasets.negbench import records
from nein.datasets.negbench.polarity import find_mentions
from nein.datasets.negbench.records import AFFIRMATION, HYBRID, NEGATION, Option, Question, RetrievalItem
from nein.engine.folder import sample_seed

Protocol = Literal["paper", "fixed"]

# --- wordings --------------------------------------------------------------------------------------

#: Forms of a wording: four make options of questions, the last two stand next to a caption.
PAIR, ABSENT, PRESENT = "pair", "absence", "presence"
FORMS = (PAIR, AFFIRMATION, NEGATION, HYBRID, ABSENT, PRESENT)


def _split_forms(text: str) -> dict[str, str]:
    """A wording: form -> sentence. text: the sentences in the order of `FORMS`, between bars."""
    return dict(zip(FORMS, text.split(" | "), strict=True))


def _conjugate(subject: str, third: str, plain: str, contrast: str = ", but not") -> dict[str, str]:
    """A wording with a verb, in the third person and in its plain form."""
    yes, no = f"{subject} {third}", f"{subject} does not {plain}"
    return _split_forms(
        f"{yes} {{A}} and {{B}} | {yes} {{A}} | {no} {{N}} | {yes} {{A}}{contrast} {{N}} | "
        f"{no} {{x}} | {yes} {{x}}"
    )


# Held out of every training:
UNSEEN = "includes"  # a new verb; its denying words, "does not" and "but not", are those of other wordings
NEGATOR = "lacks"  # a denying word that occurs nowhere else
#: For training, together with "code".
VARIED = {
    "shows": _conjugate("The picture", "shows", "show", " but not"),
    "contains": _conjugate("The photo", "contains", "contain"),
    "depicts": _conjugate("It", "depicts", "depict", ", not"),
    "there": _split_forms(
        "There is {A} and {B} here | There is {A} here | There is no {N} here | "
        "There is {A} here, but no {N} | There is no {x} here | There is {x} here"
    ),
    "has": _split_forms(
        "The scene has {A} and {B} | The scene has {A} | The scene has no {N} | "
        "The scene has {A} and no {N} | The scene has no {x} | The scene has {x}"
    ),
    "visible": _split_forms(
        "{A} and {B} are visible | {A} is visible | {N} is not visible | {A} is visible, {N} is not | "
        "{x} is not visible | {x} is visible"
    ),
    "see": _split_forms(
        "We see {A} and {B} | We see {A} | We see no {N} | We see {A} and no {N} | We see no {x} | We see {x}"
    ),
    "without": _split_forms(
        "A view with {A} and {B} | A view with {A} | A view without {N} | "
        "A view with {A} and without {N} | It is a view without {x} | It is a view with {x}"
    ),
    "any": _split_forms(
        "In this place are {A} and {B} | In this place is {A} | In this place is not any {N} | "
        "In this place is {A}, not any {N} | In this place is not any {x} | In this place is {x}"
    ),
}
#: Wording -> form -> sentence without full stop. {thing}: "image" or "video"; {A}, {B}: present objects;
#: {N}: an absent one; {x}: either.
WORDINGS: dict[str, dict[str, str]] = {
    "code": {
        **_conjugate("This {thing}", "features", "feature"),
        ABSENT: "There is no {x} in the {thing}",
        PRESENT: "There is {x} in the {thing}",
    },
    "paper": _conjugate("This {thing}", "includes", "include", " but not"),
    UNSEEN: _conjugate("This {thing}", "includes", "include", " but not"),
    NEGATOR: _split_forms(
        "This {thing} features {A} and {B} | This {thing} features {A} | This {thing} lacks {N} | "
        "This {thing} features {A}, but lacks {N} | The {thing} lacks {x} | The {thing} features {x}"
    ),
    **VARIED,
}
ABSENCE = f"{WORDINGS['code'][ABSENT]}."  # stands before or behind a caption, with equal chances


@dataclass(frozen=True)
class Rules:
    """Rules for making sentences; docs/reference/quirks.md lists the effects of `protocol`."""

    wording: str = "code"  # a key of WORDINGS
    thing: str = "image"  # or "video"
    order: str = "either"  # where the negation stands: "prefix", "suffix" of the caption, or "either", drawn
    protocol: Protocol = "fixed"


CODE = Rules()


def make_rng(run_seed: int, image_id: str, purpose: str) -> random.Random:
    """A stream of random numbers for one purpose and image."""
    return random.Random(sample_seed(run_seed, f"negbench/{purpose}/{image_id}"))


# --- images: present and absent objects -------------------------------------------------------------
NEGATIVES = 3  # absent objects kept per image, as published
IN_CAPTION = "object not annotated but in a caption, not taken for absent"


@dataclass(frozen=True)
class Concepts:
    """An image, with the objects that sentences affirm and deny."""

    id: str  # unique; the seed of everything drawn for the image
    path: str = ""  # as the CSV files will name it
    captions: tuple[str, ...] = ()  # affirmative; none in sets without any (VOC)
    positives: tuple[str, ...] = ()  # objects it shows, distinct, in order of first mention
    negatives: tuple[str, ...] = ()  # absent objects, the most plausible first
    unsure: tuple[str, ...] = ()  # objects that may be in the image: no sentence names them
    problem: str = ""  # why no sentence is made of it
    source_id: str = ""  # image it stems from, by which intervals are clustered; "": `id`
    notes: tuple[str, ...] = ()  # decisions about it, which the data set's card counts

    @property
    def cluster(self) -> str:
        return self.source_id or self.id

    def add_notes(self, *notes: str) -> Concepts:
        return replace(self, notes=(*self.notes, *notes))


def add_negatives(
    images: Sequence[Concepts], count: int = NEGATIVES, *, screened: bool = True
) -> Iterator[Concepts]:
    """Adds up to `count` absent objects per image: those most often seen with its present ones; ties: the
    more frequent, then the alphabet. screened: skips objects that a caption names (162 of 5,000 in COCO)."""
    image_counts: Counter[str] = Counter()  # object -> images that show it
    pair_counts: dict[str, Counter[str]] = {}  # object -> other object -> images that show both
    for image in images:
        distinct = set() if image.problem else set(image.positives)
        image_counts.update(distinct)
        for name in distinct:
            pair_counts.setdefault(name, Counter()).update(distinct - {name})
    for image in images:
        if image.problem:
            yield image
            continue
        counts: Counter[str] = Counter()  # other object -> how often it was seen with one of this image's
        for name in set(image.positives):
            counts.update(pair_counts[name])
        others = counts.keys() - {*image.positives, *image.unsure}
        captions = ". ".join(image.captions if screened else ())
        absent, notes = list[str](), list[str]()
        for name in sorted(others, key=lambda name: (-counts[name], -image_counts[name], name)):
            if len(absent) == count:
                break
            if find_mentions(captions, name):
                notes.append(IN_CAPTION)
            else:
                absent.append(name)
        yield replace(image.add_notes(*notes), negatives=tuple(absent))


# --- questions --------------------------------------------------------------------------------------
def make_options(
    present: Sequence[str], absent: str, template: str, rules: Rules = CODE, hybrid: str = "", stop: str = ""
) -> list[Option]:
    """The right option of `template`, then three wrong ones: "N, but not B", "N", "not A".

    present  One object A, or two, A and B.
    hybrid   The present object of the hybrid options; "": the last one.
    stop     The end of every sentence."""
    first, last = present[0], present[-1]
    in_hybrids = hybrid or last

    def fill(form: str, a: str = "", b: str = "", n: str = "") -> str:
        return WORDINGS[rules.wording][form].format(A=a, B=b, N=n, thing=rules.thing) + stop

    if template == AFFIRMATION:  # "features a dog and a cat"
        right = fill(PAIR, first, last) if len(present) > 1 else fill(AFFIRMATION, first)
    else:  # "does not feature a car", "features a cat, but not a car"
        right = fill(template, in_hybrids, n=absent)
    return [
        Option(right, template),
        Option(fill(HYBRID, absent, n=in_hybrids), HYBRID),
        Option(fill(AFFIRMATION, absent), AFFIRMATION),
        Option(fill(NEGATION, n=first), NEGATION),
    ]


def make_evaluation_questions(
    image: Concepts, seed: int, rules: Rules = CODE, *, count: int = 3, single: bool = False
) -> list[Question]:
    """Up to `count` questions, one per absent object, as in the released code. An image needs two positives,
    or one if `single` (medical images)."""
    if len(image.positives) < (1 if single else 2):
        return []
    rng = make_rng(seed, image.id, "mcq")
    # "paper": one pair of objects for all questions, of a video its first two; "fixed": a pair per question.
    pair = image.positives[:2] if rules.protocol == "paper" and rules.thing == "video" else ()
    questions = []
    for number, absent in enumerate(rng.sample(image.negatives, min(count, len(image.negatives)))):
        if not pair or rules.protocol == "fixed":
            pair = tuple(rng.sample(image.positives, min(2, len(image.positives))))
        options = make_options(pair, absent, rng.choice(records.TEMPLATES), rules)
        questions.append(make_question(image, f"{image.id}#{number}", options, (absent,)))
    return questions


def make_filed_questions(
    image: Concepts, seed: int, rules: Rules = CODE, *, count: int = 1, single: bool = False
) -> list[Question]:
    """`count` questions as in the released COCO and VOC files: all objects are drawn anew per question,
    hybrids name the object that the wrong negation denies. single: also VOC's questions about one object."""
    if len(image.positives) < (1 if single else 2) or not image.negatives:
        return []
    rng = make_rng(seed, image.id, "mcq-filed")
    questions = []
    for number in range(count):
        pair = rng.sample(image.positives, min(2, len(image.positives)))
        absent = rng.choice(image.negatives)
        template = rng.choice(records.TEMPLATES if len(pair) > 1 else (NEGATION, HYBRID))
        options = make_options(pair, absent, template, rules, hybrid=pair[0])
        questions.append(make_question(image, f"{image.id}#{number}", options, (absent,)))
    return questions


def make_medical_questions(
    image: Concepts, seed: int, wording: str = "code", conditions: Sequence[str] = ()
) -> dict[str, Question]:
    """Further questions of the medical sets, by the stem of their file; one each, the right option first.

    mcq_control         Four affirmations, of a present object and of three absent ones.
    binary_mcq          An object affirmed and denied, a present or an absent one with equal chances.
    binary_mcq_control  Two affirmations, of a present object and of an absent one.

    The tasks are published, how the sentences were drawn is not. conditions: the two that the paper asks
    about. Binary questions are then about the first; controls are made of images with just one of them."""
    if not image.positives or not image.negatives:
        return {}
    rng = make_rng(seed, image.id, "medical")
    present = rng.choice(image.positives)
    absent = rng.sample(image.negatives, min(3, len(image.negatives)))

    def fill(form: str, name: str) -> str:
        return WORDINGS[wording][form].format(A=name, N=name, thing="image")

    def ask(*texts: str, template: str | None = None) -> Question:
        return make_question(image, image.id, [Option(text, template) for text in texts], tuple(absent))

    affirmed = [fill(AFFIRMATION, name) for name in (present, *absent)]
    questions: dict[str, Question] = {}
    if conditions:
        first, second = conditions
        is_first, is_second = (name.lower() in image.positives for name in conditions)
        knows_first, knows_second = (name.lower() not in image.unsure for name in conditions)
        yes, no = f"This image shows {first}", f"This image does not show {first}"
        if knows_first:
            questions["binary_mcq"] = ask(yes, no) if is_first else ask(no, yes)
        if knows_first and knows_second and is_first != is_second:
            other = f"This image shows {second}"
            questions["binary_mcq_control"] = ask(yes, other) if is_first else ask(other, yes)
    else:
        asks_present = rng.random() < 0.5
        finding = present if asks_present else absent[0]
        yes, no = fill(AFFIRMATION, finding), fill(NEGATION, finding)
        questions["binary_mcq"] = ask(yes, no) if asks_present else ask(no, yes)
        questions["binary_mcq_control"] = ask(*affirmed[:2])
    if len(absent) == 3:
        questions["mcq_control"] = ask(*affirmed, template=AFFIRMATION)
    return questions


def make_training_question(image: Concepts, seed: int, rules: Rules = CODE) -> Question | None:
    """One question with shuffled options, or None without a present or an absent object. With one positive,
    "features {A}." replaces "features {A} and {B}." (`modified_positive`)."""
    # The released code writes Python's None for the object of an image without any.
    present = image.positives or (("None",) if rules.protocol == "paper" else ())
    if not present or not image.negatives:
        return None
    rng = make_rng(seed, image.id, "train-mcq")
    absent = rng.choice(image.negatives)
    pair = rng.sample(present, min(2, len(present)))
    template = rng.choice(records.TEMPLATES)
    hybrid = pair[0] if rules.protocol == "paper" else ""
    options = make_options(pair, absent, template, rules, hybrid=hybrid, stop=".")
    return make_question(image, image.id, options, (absent,), shuffle_order(len(options), rng))


def shuffle_order(count: int, rng: random.Random) -> list[int]:
    order = list(range(count))
    rng.shuffle(order)
    return order


def make_question(
    image: Concepts, name: str, options: Sequence[Option], absent: tuple[str, ...], order: Sequence[int] = ()
) -> Question:
    """A question whose right option is the first of `options`. order: of writing them; (): as given."""
    order = order or range(len(options))
    return Question(
        name,
        image.path,
        tuple(options[k] for k in order),
        correct=order.index(0),
        type=options[0].template,
        positives=image.positives,
        negatives=absent,
        source=image.cluster,
    )


# --- captions ---------------------------------------------------------------------------------------
Stop = Literal["never", "if missing", "always"]  # whether a caption gets a full stop


@dataclass(frozen=True)
class Negation:
    """A caption, and the absent object that a sentence before or behind it denies."""

    caption: str
    absent: str
    before: bool

    def text(self, thing: str, stop: Stop) -> str:
        """The negated caption."""
        denial = ABSENCE.format(x=self.absent, thing=thing)
        caption = self.caption.strip()
        if stop == "always" or (stop == "if missing" and not caption.endswith((".", "!", "?"))):
            caption += "."
        return f"{denial} {caption}" if self.before else f"{caption} {denial}"


def place_negations(
    captions: Sequence[str], absent: Sequence[str], rng: random.Random, order: str
) -> list[Negation]:
    """Each caption with its absent object; order: of `Rules`, drawn evenly for "either"."""
    return [
        Negation(text, name, rng.random() < 0.5 if order == "either" else order == "prefix")
        for text, name in zip(captions, absent, strict=True)
    ]


def make_retrieval_items(
    image: Concepts, seed: int, rules: Rules = CODE, captions: int | None = None
) -> tuple[RetrievalItem, RetrievalItem] | None:
    """The original and the negated item of the first `captions`; None without captions or absent objects."""
    chosen = image.captions[:captions]
    if not chosen or not image.negatives:
        return None
    rng = make_rng(seed, image.id, "retrieval")
    absent = [rng.choice(image.negatives) for _ in chosen]
    negations = place_negations(chosen, absent, rng, rules.order)
    stop: Stop = "never"  # "A dog There is no car in the image.", as released
    if rules.thing == "video":
        stop = "always" if rules.protocol == "paper" else "if missing"
    original = RetrievalItem(image.id, image.path, chosen, positives=image.positives, source=image.cluster)
    return original, _negate_item(original, negations, rules, stop)


def _negate_item(
    original: RetrievalItem, negations: Sequence[Negation], rules: Rules, stop: Stop
) -> RetrievalItem:
    """The item of an image with its negated captions."""
    captions = tuple(negation.text(rules.thing, stop) for negation in negations)
    denied = tuple(dict.fromkeys(negation.absent for negation in negations))
    return replace(original, captions=captions, kind=records.NEGATED, negatives=denied)


def make_training_captions(image: Concepts, seed: int, rules: Rules = CODE) -> RetrievalItem | None:
    """Three negated captions, as CC12M-NegCap; None without an absent object."""
    negations = make_training_negations(image, seed, rules)
    original = RetrievalItem(image.id, image.path, (), positives=image.positives, source=image.cluster)
    return _negate_item(original, negations, rules, "if missing") if negations else None


NEGCAP = 3  # captions per image of CC12M-NegCap


def make_training_negations(image: Concepts, seed: int, rules: Rules = CODE) -> list[Negation]:
    """NEGCAP captions of an image, reused if it has fewer, with the objects that they deny."""
    if not image.captions or not image.negatives:
        return []
    rng = make_rng(seed, image.id, "negcap")
    chosen = list(itertools.islice(itertools.cycle(image.captions), NEGCAP))
    absent = image.negatives
    if len(absent) >= NEGCAP:
        denied = rng.sample(absent, NEGCAP)
    elif rules.protocol == "paper":
        denied = rng.choices(absent, k=NEGCAP)
    else:  # of two objects both are denied, and one of them twice
        rounds = itertools.chain.from_iterable(rng.sample(absent, len(absent)) for _ in range(NEGCAP))
        denied = list(itertools.islice(rounds, NEGCAP))
    return place_negations(chosen, denied, rng, rules.order)
