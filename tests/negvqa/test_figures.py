import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from nein.benchmarks.negvqa import estimates, paper, scores, sections
from nein.benchmarks.negvqa import report as own
from nein.benchmarks.negvqa.data import Answer
from nein.datasets.negvqa import AVERAGE
from nein.reporting import figures as frames
from nein.reporting import plots
from nein.statistics import Estimate


def answer(number, variant, text, right, **more):
    facts = ("VQAv2", "General", f"p{number // 2}", f"{variant} {number}?", ("cat", "dog"), right, text)
    return Answer(str(number), variant, *facts, **more)


def made(outcomes, **more):
    """Answers to pairs whose right letters are A, then B."""
    rows = []
    for number, (original, negated) in enumerate(outcomes):
        rows += [
            answer(number, "original", original, "A", **more),
            answer(number, "negated", negated, "B", **more),
        ]
    return rows


def test_our_intervals_are_the_printed_bounds_of_table_1_but_one_after_rounding():
    strange = []
    for cell in frames.records(paper.read_table_1()):
        ours = estimates.use_paper_interval(Estimate(cell["value"], None, None, None, cell["n"], 1))
        if any(round(100 * getattr(ours, end), 1) != round(100 * cell[end], 1) for end in ("low", "high")):
            strange.append((cell["model"], cell["variant"], cell["category"]))
    assert strange == [("Qwen2-VL-72B", "original", "DocChart")]  # 94.8 [93.2, 95.7] is not symmetric
    assert len(paper.read_table_1()) == 200


def test_only_the_published_questions_are_negvqa_whatever_the_preset():
    assert paper.is_negvqa({"kind": "hub", "name": "yuhuizhang/NegVQA", "subsets": {}})
    assert paper.is_negvqa({"kind": "file", "file": "x.jsonl", "subsets": paper.SUBSETS})
    assert not paper.is_negvqa({"kind": "nano", "questions": 7379, "subsets": {"presence": 7379}})
    assert not paper.is_negvqa({"kind": "hub", "name": "a/b", "subsets": {"GQA": 448}})


def test_known_models_are_found_by_how_they_are_referred_to():
    assert paper.find_paper_name("llava-hf/llava-1.5-7b-hf@abc") == "LLaVA-1.5-7B"
    assert paper.find_paper_name("openai:http://host:8000/v1#Qwen/Qwen2-VL-72B-Instruct") == "Qwen2-VL-72B"
    assert paper.find_paper_name("models/InstructBLIP-Vicuna-7B/") == "InstructBLIP-7B"
    assert paper.find_paper_name("nano:negvqa") is None
    assert paper.find_paper_name("Qwen/Qwen2.5-VL-7B-Instruct") is None
    assert paper.parse_size("Qwen/Qwen2.5-VL-7B-Instruct") == ("Qwen2.5-VL", 7.0)
    assert paper.parse_size("DeepSeek-VL-1.3B") == ("DeepSeek-VL", 1.3)
    assert paper.parse_size("nano:negvqa") is None


def test_scaling_has_a_line_per_family_and_leaves_out_what_the_paper_leaves_out():
    negated = frames.select(paper.scale_paper_models(), variant="negated", category="Reasoning")
    assert list(frames.select(negated, family="VILA1.5")["size"]) == ["3", "8", "13", "40"]
    assert list(frames.select(negated, family="Molmo")["model"]) == ["Molmo-1B", "Molmo-7B-O", "Molmo-72B"]
    # The U of the paper: the middle one is the worst on negated reasoning.
    first, second, third = frames.select(negated, family="Cambrian")["value"]
    assert first == pytest.approx(0.506)
    assert second < first < third


def test_the_notebooks_subsets_are_those_of_table_1():
    """Doc & Chart is the unweighted mean of five subsets, all of which the notebook prints."""
    subsets = frames.records(paper.read_notebook())
    by = {(c["model"], c["variant"], c["subset"]): c["value"] for c in subsets}
    assert len(by) == 22 * 2 * 14
    assert round(by["VILA1.5-8B", "original", "A-OKVQA"], 6) == 0.886022
    assert round(by["Chameleon-30B", "negated", "VizWiz"], 6) == 0.057692
    docs = ("DocVQA", "ChartQA", "InfoVQA", "TableVQABench", "AI2D")
    for cell in frames.records(paper.read_table_1()):
        if cell["category"] == "DocChart":
            mean = sum(by[cell["model"], cell["variant"], subset] for subset in docs) / 5
            assert round(100 * mean, 1) == round(100 * cell["value"], 1)
    drawn = frames.select(paper.scale_paper_models(), task="subset scaling", subset="GQA")
    assert len(drawn) == 2 * 19


def test_outcomes_of_pairs_are_counted_and_tested():
    outcomes = [("A", "B")] * 5 + [("A", "A")] * 9 + [("B", "B")] * 2 + [("B", "A")] * 4 + [("A", "?!")]
    rows = scores.score_answers(made(outcomes), ["generated"])
    fixed = [row for row in rows if row["protocol"] == "fixed"]
    found = {row["metric"]: row for row in estimates.compare_pairs(scores.make_table(fixed), AVERAGE)}
    counts = [round(20 * found[k]["value"]) for k in ("both", "only_original", "only_negated", "neither")]
    assert counts == [5, 9, 2, 4]
    gap = found["gap"]
    assert (gap["n"], gap["unscored"]) == (20, 1)
    assert gap["value"] == pytest.approx((14 - 7) / 20)
    assert gap["low"] < gap["value"] < gap["high"]
    assert (found["original"]["value"], found["negated"]["value"]) == (14 / 20, 7 / 20)
    tail = sum(math.comb(11, k) for k in range(3)) / 2**11  # of 2 among 11 that differ
    assert found["mcnemar"]["p"] == pytest.approx(2 * tail)
    assert estimates.mcnemar(0, 0) == 1.0


def test_the_protocols_differ_where_a_letter_cannot_be_read():
    rows = scores.score_answers(made([("A", "A dog, of course, is what is not there.")]), ["generated"])
    values = {(row["protocol"], row["variant"]): row["value"] for row in rows}
    assert values["fixed", "original"] == values["paper", "original"] == 1.0
    assert values["fixed", "negated"] == 1.0  # the text names option B
    assert values["paper", "negated"] == 0.0  # the published rule takes the article for the letter: wrong
    rows = list(scores.score_answers(made([("A", "Neither of them.")]), ["generated"]))
    values = {(row["protocol"], row["variant"]): row["value"] for row in rows}
    assert values["fixed", "negated"] is None
    assert values["paper", "negated"] == 0.0
    assert all(row["reason"] for row in rows if row["variant"] == "negated")


def test_a_category_is_the_mean_of_its_subsets_as_published_and_pooled_when_fixed():
    rows = made([("A", "B")] * 9)  # nine right answers of one subset, one wrong of another
    rows += [replace(row, id="x", subset="VizWiz", source="q") for row in made([("B", "A")])]
    scored = scores.make_table(scores.score_answers(rows, ["generated"])).where(variant="original")
    fixed = estimates.estimate_accuracy(scored.where(protocol="fixed"), "General", "fixed")
    paper_rows = scored.where(protocol="paper")
    paper = estimates.estimate_accuracy(paper_rows, "General", "paper")
    assert fixed.value == pytest.approx(0.9)
    assert paper.value == pytest.approx(0.5)
    assert estimates.estimate_accuracy(paper_rows, AVERAGE, "paper").value == pytest.approx(
        0.9
    )  # over all questions


def test_probabilities_give_a_letter_of_their_own():
    rows = made([("A", "A")])
    rows = [replace(rows[0], logprobs=(-2.0, -0.1)), replace(rows[1], logprobs=(-0.2, None))]
    scored = [r for r in scores.score_answers(rows, ["generated", "logprob"]) if r["protocol"] == "fixed"]
    letters = {(r["scoring"], r["variant"]): r["letter"] for r in scored}
    assert letters == {
        ("generated", "original"): "A", ("generated", "negated"): "A",
        ("logprob", "original"): "B", ("logprob", "negated"): "A",
    }  # fmt: skip
    [same] = estimates.measure_agreement(scores.make_table(scored))
    assert same is not None
    assert (same["value"], same["n"]) == (0.5, 2)
    assert [*estimates.measure_agreement(scores.make_table(scored).where(scoring="generated"))] == []
    missing = list(scores.score_answers(made([("A", "A")]), ["logprob"]))
    assert all(row["value"] is None for row in missing)
    assert Counter(row["reason"] for row in missing) == {"no probabilities of letters": 4}


BOTH = ["generated", "logprob"]
PERFECT, FLAT, MUTE = (
    made([letters] * 9, logprobs=(-0.1, None)) for letters in (("A", "B"), ("A", "A"), ("A", "?"))
)


def figured(rows, asking=None):
    return estimates.make_estimates(scores.make_table(scores.score_answers(rows, BOTH)), asking)


def frame(said, asking=None):
    made = {name: figured(rows, asking) for name, rows in said.items()}
    sized = [part for name, found in made.items() for part in paper.scale_model(name, found, name)]
    return frames.concat([*(frames.with_columns(found, model=name) for name, found in made.items()), *sized])


def test_the_page_shows_pairs_by_outcome(monkeypatch):
    monkeypatch.setattr(own, "select_rows", lambda rows, output: iter(rows))
    runs = [
        SimpleNamespace(name=name, folder=rows, manifest={"scoring": BOTH})
        for name, rows in {"good": PERFECT, "flat": FLAT, "mute": MUTE}.items()
    ]
    shown = [*own.make_cards(runs, (), 100, {})]
    assert len(shown) == 9
    first = shown[0]
    assert first.facets["Pair"] == ["both right", "only original", "unscored"]
    assert [cell.mark for cell in first.said[1].cells] == ["right", "wrong"]
    assert first.said[0].cells[0].aside == "generated A, logprob A"
    assert first.said[0].rows[0] == ("original 0?", "A", "generated A, logprob A", "-0.10 / –")
    assert first.values == [[1.0, 1.0], [1.0, 0.0], [1.0, None]]
    chosen = next(own.make_cards(runs, (), 100, {"flat": "logprob", "mute": "logprob"}))
    assert chosen.facets["Pair"] == ["both right", "only original"]
    some = [card.id for card in own.make_cards(runs, (), 4, {})]
    assert len(some) == 4
    assert some == sorted(some) != ["0", "1", "2", "3"]  # drawn, in data order


def test_a_known_model_stands_beside_table_1_and_on_its_familys_line():
    name = "openai:http://host/v1#Qwen/Qwen2-VL-7B-Instruct"
    found = frame({name: FLAT})
    family = frames.concat([paper.scale_paper_models(), frames.select(found, task="scaling")])
    lines = frames.select(family, family="Qwen2-VL", variant="original", category="Average")
    assert sorted(zip(lines["size"], lines["source"], strict=True)) == [
        ("2", "printed"), ("7", "here"), ("7", "printed"), ("72", "printed"),
    ]  # fmt: skip
    assert frames.pick(lines, source="here")["value"] == 1.0
    drawn = frames.select(found, **sections.SUBSET_SCALING.where).dropna(subset="value")
    assert list(drawn["line"]) == ["Qwen2-VL, original", "Qwen2-VL, negated"]
    assert list(drawn["value"]) == [1.0, 0.0]


def test_table_1_is_a_table_with_own_rows_below_the_models_they_repeat():
    printed = sections.TABLE_1.sheet(paper.compare_with_table_1({}))
    assert printed.columns == [
        "model", "figures", "questions", "General", "Reasoning", "OCR", "Doc & Chart", "Average", "scored",
    ]  # fmt: skip
    assert len(printed.rows) == 40
    assert printed.rows[0] == [
        "Cambrian-8B", "printed", "original", "87.6 [86.3, 88.9]", "74.0 [72.1, 75.9]", "93.4 [91.5, 95.3]",
        "80.9 [79.2, 82.6]", "83.8 [83.0, 84.6]", "7379",
    ]  # fmt: skip
    runs = {"new": (figured(FLAT), "a/b"), "again": (figured(FLAT), "Qwen/Qwen2-VL-7B-Instruct")}
    rows = sections.TABLE_1.sheet(paper.compare_with_table_1(runs)).rows
    assert len(rows) == 44
    place = next(k for k, row in enumerate(rows) if row[0] == "again")
    assert [row[:2] for row in (rows[place - 1], rows[place])] == [
        ["Qwen2-VL-7B", "printed"], ["again", "measured here"],
    ]  # fmt: skip
    assert [row[0] for row in rows[-2:]] == ["new", "new"]


def test_the_best_model_and_the_mean_drop_over_models_are_figures():
    runs = {"a": figured(FLAT), "b": figured(PERFECT)}
    found = paper.summarize_models(runs)
    drops = {row["source"]: row for row in frames.records(frames.select(found, metric="mean drop"))}
    assert drops["printed"]["value"] == pytest.approx(0.2972, abs=5e-5)
    assert (drops["here"]["value"], drops["here"]["n"]) == (0.5, 2)
    assert sections.OVER_MODELS.sheet(found).rows[1][2] == "b, 100.0"
    assert not len(frames.select(paper.summarize_models({"a": runs["a"]}), source="here"))


def test_plots_are_drawn_also_where_nothing_could_be_read():
    found = frame({"good": PERFECT, "mute": made([("?", "?")] * 9, logprobs=(-0.1, None))})
    one = frames.select(paper.scale_paper_models(), category=AVERAGE, variant="negated")
    drawn = (sections.ORIGINAL_AND_NEGATED, sections.OUTCOMES_OF_PAIRS, sections.SCALING)
    drawings = plots.draw_all(drawn, frames.concat([found, one]), kinds=("png",))
    assert [files["png"][:4] for _, files in drawings] == [b"\x89PNG"] * 3
    chief = frames.select(found, headline="yes").drop_duplicates("model")
    assert dict(zip(chief["model"], chief["scoring"], strict=True)) == {
        "good": "generated",
        "mute": "logprob",
    }
    for asking, scoring in {"options": "logprob", "letters": "generated"}.items():
        found = frame({"good": PERFECT}, asking)
        assert set(frames.select(found, headline="yes")["scoring"]) == {scoring}
