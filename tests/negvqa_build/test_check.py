import json
import re

import numpy as np
import pytest
from scipy.stats import binom

from nein.engine import images
from nein.generate import negvqa_check as check
from nein.reporting import figures as frames
from tests.helpers import commands


def write(path, verdicts, rater="Ada"):
    lines = ["sheet,items,rater,item,verdict,seconds,note"]
    lines += [f"abc,{len(verdicts)},{rater},{k},{verdict},2," for k, verdict in enumerate(verdicts)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_paper_s_ninety_seven_of_a_hundred_have_their_exact_interval(tmp_path, capsys):
    out = tmp_path / "figures.csv"
    path = write(tmp_path / "check.csv", ["right"] * 97 + ["unnatural"] * 3 + [""])
    assert commands.exit_code("negvqa", "check", path, "--out", out) == 0
    assert re.search(r"Ada +97\.0 \[91\.5, 99\.4\] +100 +1 +3 +0 ", capsys.readouterr().out)
    found = frames.pick(frames.read(out), statistic="right")
    # Clopper-Pearson by its definition: at either end, a tail of 2.5 %.
    assert binom.sf(96, 100, found["low"]) == pytest.approx(0.025, abs=1e-9)
    assert binom.cdf(97, 100, found["high"]) == pytest.approx(0.025, abs=1e-9)


def test_two_people_are_compared(tmp_path, capsys):
    first = write(tmp_path / "a.csv", ["right"] * 80 + ["answer"] * 20)
    second = write(tmp_path / "b.csv", ["other"] * 20 + ["right"] * 80, "Bob")
    commands.exit_code("negvqa", "check", first, second)
    # Agreement 60 of 100, by chance 0.8^2 + 0.2^2 = 0.68: kappa = (0.6 - 0.68) / 0.32.
    assert re.search(r"Ada, Bob +60\.0 .* -0\.25 ", capsys.readouterr().out)


def test_the_sheet_shows_both_questions_and_marks_the_right_options(tmp_path):
    images.write_png(tmp_path / "images" / "1.png", np.full((30, 40, 3), 99, np.uint8))
    row = {
        "index": "1", "image": "images/1.png", "category": "GQA",
        "original_question": "What is <b>on</b> it?", "negated_question": "What is not </script> on it?",
        "A": "a cat & a dog", "B": "<img src=x>",
        "original_answer": "A", "negated_answer": "B",
    }  # fmt: skip
    check.write_sheet(tmp_path / "check.html", [row], population=50, negator="rules")
    text = (tmp_path / "check.html").read_text()
    assert "1 random items out of 50 (negated by: rules)" in text
    assert "<b>on</b>" not in text
    facts = json.loads(re.search(r'id="facts">(.*?)</script>', text, re.DOTALL)[1])
    assert facts["items"][0]["rows"] == [
        ["original", "What is <b>on</b> it?", "✓ a cat & a dog", "<img src=x>"],
        ["negated", "What is not </script> on it?", "a cat & a dog", "✓ <img src=x>"],
    ]
