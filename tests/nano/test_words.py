"""The checks that other tests rely on: COCO's list and the pattern of negated words."""

from __future__ import annotations

import pytest

from nein.generate.nein.objects import COCO
from nein.wording.templates import NEGATIVE_TEMPLATES, negative_sentence
from tests.nano.words import NEGATED, negated


def test_the_list_of_coco_names_has_eighty_different_ones():
    assert len(COCO) == len(set(COCO)) == 80


@pytest.mark.parametrize("template", range(len(NEGATIVE_TEMPLATES)))
def test_every_negative_template_is_recognised_as_negated(template):
    assert NEGATED.search(negative_sentence(template, "dog"))


def test_affirmative_sentences_pass_even_when_letters_of_a_negation_occur_in_them():
    fine = [
        "A knot of notes is near the nose of an anorak.",
        "take away the dog",
        "A black lake at noon, nearly now.",
        "a snowy mountain in november",
    ]
    assert negated(fine) == []
