"""What counts as a negated word; scenes without a place in any split."""

import re

from nein.nano.scenes import sample_scene

NEGATED = re.compile(
    r"\b(?:no|not|cannot|without|never|none|nothing|nobody|neither|nor|nowhere|missing|absent|absence|devoid"
    r"|empty|lack\w*|minus|except|exclud\w*)\b|n['’]t\b|\bfree of\b|\binstead of\b",
    re.IGNORECASE,
)


def negated(lines):
    return [line for line in lines if NEGATED.search(line)]


def random_scene(rng, max_objects=4):
    return sample_scene(rng, rng.randint(1, max_objects))
