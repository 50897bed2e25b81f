"""The page of answers, and the plots, from made-up answers."""

from __future__ import annotations

from functools import partial

import pytest

from nein.benchmarks.negvqa import paper_numbers, scores, sections
from nein.benchmarks.negvqa import report as own
from nein.reporting import cards, plots, report
from nein.reporting import figures as frames
from nein.reporting.page import Page

MARKUP = '</script><script>document.title="broken"</script><img src=x> & "co"'


def answers(letters):
    return [
        {
            "id": str(number), "variant": variant, "subset": "VQAv2", "category": "General",
            "source": f"p{number}", "question": MARKUP if number == 1 else f"{variant} {number}?",
            "options": ["cat", "dog"], "answer": right, "text": letter, "logprobs": [-0.1, None], "error": "",
        }
        for number in range(9)
        for variant, right, letter in zip(("original", "negated"), "AB", letters, strict=True)
    ]  # fmt: skip


BOTH = ["generated", "logprob"]


def figured(rows, asking=None):
    return scores.figures(scores.table(scores.score(rows, BOTH)), asking)


def frame(said, asking=None):
    made = {name: figured(rows, asking) for name, rows in said.items()}
    beside = [paper_numbers.beside(found, name, name) for name, found in made.items()]
    return frames.concat([*(frames.label(found, model=name) for name, found in made.items()), *beside])


def test_the_page_shows_pairs_by_outcome_and_text_stays_text(tmp_path):
    said = {"good": answers(("A", "B")), "flat": answers(("A", "A")), "mute": answers(("A", "?"))}
    asked = {name: (partial(iter, rows), BOTH) for name, rows in said.items()}
    questions = own.questions(asked, None, 100, {})
    shown = questions.described()
    assert len(shown.ids) == 9
    assert shown.facets["Pair"][0] == ["both right", "only original", "unscored"]
    first = next(questions.details())
    assert [cell.mark for cell in first.said[1].cells] == ["right", "wrong"]
    assert first.said[0].cells[0].aside == "generated A, logprob A"
    assert first.said[0].rows[0] == ("original 0?", "A", "generated A, logprob A", "-0.10 / –")
    assert [value[0] for value in shown.values[2]] == [1.0, None]
    chosen = own.questions(asked, None, 100, {"flat": "logprob", "mute": "logprob"})
    assert chosen.described().facets["Pair"][0] == ["both right", "only original"]
    some = list(own.questions(asked, None, 4, {}).asked)
    assert len(some) == 4
    assert some == sorted(some) != ["0", "1", "2", "3"]  # drawn, in data order
    parts = [cards.browser(lambda: (questions.described(), questions.details()))]
    report.write(tmp_path / "x.html", frame(said), Page("t", sections=sections.SECTIONS[-1:], parts=parts))
    html = (tmp_path / "x.html").read_text()
    assert html.count("<script>") == 1
    assert "\\u003c/script\\u003e\\u003cscript\\u003e" in html
    assert "<img src=x>" not in html
    assert "default-src &#39;none&#39;" in html


def test_a_known_model_stands_beside_table_1_and_on_its_familys_line():
    name = "openai:http://host/v1#Qwen/Qwen2-VL-7B-Instruct"
    found = frame({name: answers(("A", "A"))})
    beside = frames.select(found, task="beside", variant="negated", category="Average")
    assert list(beside["source"]) == ["here", "printed"]
    assert list(beside["value"]) == pytest.approx([0.0, 0.572])
    sheet = sections.BESIDE.sheet(found)
    assert sheet.rows[-1][-2:] == ["-57.2", "no"]
    family = frames.concat([paper_numbers.by_size(), frames.select(found, task="scaling")])
    own = frames.select(family, family="Qwen2-VL", variant="original", category="Average")
    assert sorted(zip(own["size"], own["source"], strict=True)) == [
        ("2", "printed"), ("7", "here"), ("7", "printed"), ("72", "printed"),
    ]  # fmt: skip
    assert frames.pick(own, source="here")["value"] == 1.0  # type: ignore[index]
    drawn = sections.SUBSET_SCALING.shown(found)
    assert list(drawn["line"]) == ["Qwen2-VL, original", "Qwen2-VL, negated"]
    assert list(drawn["value"]) == [1.0, 0.0]
    assert plots.drawings([sections.SUBSET_SCALING], found)[0].png.startswith(b"\x89PNG")
    assert not sections.BESIDE.sheet(frame({"a/b": answers(("A", "B"))})).rows


def test_table_1_is_a_table_with_own_rows_below_the_models_they_repeat():
    printed = sections.TABLE_1.sheet(paper_numbers.table_1({}))
    assert printed.columns == [
        "model", "figures", "questions", "General", "Reasoning", "OCR", "Doc & Chart", "Average", "n",
        "unscored",
    ]  # fmt: skip
    assert len(printed.rows) == 40
    assert printed.rows[0] == [
        "Cambrian-8B", "printed", "original", "87.6 [86.3, 88.9]", "74.0 [72.1, 75.9]", "93.4 [91.5, 95.3]",
        "80.9 [79.2, 82.6]", "83.8 [83.0, 84.6]", "7379", "",
    ]  # fmt: skip
    own = {name: figured(answers(("A", "A"))) for name in ("new", "again")}
    runs = {"new": (own["new"], "a/b"), "again": (own["again"], "Qwen/Qwen2-VL-7B-Instruct")}
    rows = sections.TABLE_1.sheet(paper_numbers.table_1(runs)).rows
    assert len(rows) == 44
    place = next(k for k, row in enumerate(rows) if row[0] == "again")
    assert [row[:2] for row in (rows[place - 1], rows[place])] == [
        ["Qwen2-VL-7B", "printed"], ["again", "measured here"],
    ]  # fmt: skip
    assert [row[0] for row in rows[-2:]] == ["new", "new"]


def test_the_best_model_and_the_mean_drop_over_models_are_figures():
    own = {name: figured(answers(letters)) for name, letters in {"a": ("A", "A"), "b": ("A", "B")}.items()}
    found = paper_numbers.over_models(own)
    drops = {row["source"]: row for row in frames.records(frames.select(found, metric="mean drop"))}
    assert drops["printed"]["value"] == pytest.approx(0.2972, abs=5e-5)
    assert (drops["here"]["value"], drops["here"]["n"]) == (0.5, 2)
    assert sections.OVER_MODELS.sheet(found).rows[1][2] == "b, 100.0"
    assert not len(frames.select(paper_numbers.over_models({"a": own["a"]}), source="here"))


def test_plots_are_drawn_also_where_nothing_could_be_read():
    found = frame({"good": answers(("A", "B")), "mute": answers(("?", "?"))})
    drawings = plots.drawings((sections.BARS, sections.OUTCOMES_OF_PAIRS, sections.SCALING), found)
    assert [one.png[:4] for one in drawings] == [b"\x89PNG"] * 3
    chief = frames.select(found, headline="yes").drop_duplicates("model")
    assert dict(zip(chief["model"], chief["scoring"], strict=True)) == {
        "good": "generated",
        "mute": "logprob",
    }
    for asking, scoring in {"options": "logprob", "letters": "generated"}.items():
        found = frame({"good": answers(("A", "B"))}, asking)
        assert set(frames.select(found, headline="yes")["scoring"]) == {scoring}
