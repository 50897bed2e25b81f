from __future__ import annotations

import math
from collections import Counter

import pytest

from nein.benchmarks.negvqa import paper_numbers, scores
from nein.datasets.negvqa.questions import AVERAGE, CATEGORIES, category_of
from nein.reporting import figures as frames
from nein.statistics import Estimate

OPTIONS = ["cat", "dog"]


def answer(number, variant, text, right, **more):
    return {
        "id": str(number), "variant": variant, "subset": "VQAv2", "category": "General",
        "source": f"p{number // 2}", "options": OPTIONS, "answer": right, "text": text, "logprobs": None,
        "error": "", **more,
    }  # fmt: skip


def made(outcomes, **more):
    """Answers to pairs whose right letters are A, then B."""
    rows = []
    for number, (original, negated) in enumerate(outcomes):
        rows += [
            answer(number, "original", original, "A", **more),
            answer(number, "negated", negated, "B", **more),
        ]
    return rows


# --- the paper's table ---------------------------------------------------------------------


def test_our_intervals_are_the_printed_bounds_of_table_1_but_one_after_rounding():
    strange = []
    for cell in paper_numbers.cells():
        ours = scores.normal(Estimate(cell["value"], None, None, None, cell["n"], 1))
        if any(round(100 * getattr(ours, end), 1) != round(100 * cell[end], 1) for end in ("low", "high")):
            strange.append((cell["model"], cell["variant"], cell["category"]))
    assert strange == list(paper_numbers.MISPRINTS)
    assert len(paper_numbers.cells()) == 200


def test_the_sizes_of_categories_are_those_of_the_released_notebook():
    assert paper_numbers.SIZES == {
        "General": 2647, "Reasoning": 1990, "OCR": 629, "DocChart": 2113, AVERAGE: 7379,
    }  # fmt: skip
    assert {category_of(subset) for subset in paper_numbers.SUBSETS} == set(CATEGORIES)


def test_only_the_published_questions_are_negvqa_whatever_the_preset():
    assert paper_numbers.is_negvqa({"kind": "hub", "name": "yuhuizhang/NegVQA", "subsets": {}})
    assert paper_numbers.is_negvqa({"kind": "file", "file": "x.jsonl", "subsets": paper_numbers.SUBSETS})
    assert not paper_numbers.is_negvqa({"kind": "nano", "questions": 7379, "subsets": {"presence": 7379}})
    assert not paper_numbers.is_negvqa({"kind": "hub", "name": "a/b", "subsets": {"GQA": 448}})


def test_known_models_are_found_by_how_they_are_referred_to():
    assert paper_numbers.printed_as("llava-hf/llava-1.5-7b-hf@abc") == "LLaVA-1.5-7B"
    assert paper_numbers.printed_as("openai:http://host:8000/v1#Qwen/Qwen2-VL-72B-Instruct") == "Qwen2-VL-72B"
    assert paper_numbers.printed_as("models/InstructBLIP-Vicuna-7B/") == "InstructBLIP-7B"
    assert paper_numbers.printed_as("nano:negvqa") is None
    assert paper_numbers.printed_as("Qwen/Qwen2.5-VL-7B-Instruct") is None
    assert paper_numbers.family("Qwen/Qwen2.5-VL-7B-Instruct") == ("Qwen2.5-VL", 7.0)
    assert paper_numbers.family("DeepSeek-VL-1.3B") == ("DeepSeek-VL", 1.3)
    assert paper_numbers.family("nano:negvqa") is None


def test_scaling_has_a_line_per_family_and_leaves_out_what_the_paper_leaves_out():
    negated = frames.select(paper_numbers.by_size(), variant="negated", category="Reasoning")
    assert list(frames.select(negated, family="VILA1.5")["size"]) == ["3", "8", "13", "40"]
    assert list(frames.select(negated, family="Molmo")["model"]) == ["Molmo-1B", "Molmo-7B-O", "Molmo-72B"]
    # The U of the paper: the middle one is the worst on negated reasoning.
    first, second, third = frames.select(negated, family="Cambrian")["value"]
    assert first == pytest.approx(0.506)
    assert second < first < third


# --- pairs ---------------------------------------------------------------------------------


def test_outcomes_of_pairs_are_counted_and_tested():
    outcomes = [("A", "B")] * 5 + [("A", "A")] * 9 + [("B", "B")] * 2 + [("B", "A")] * 4 + [("A", "?!")]
    rows = scores.score(made(outcomes), ["generated"])
    fixed = [row for row in rows if row["protocol"] == "fixed"]
    found = {row["metric"]: row for row in scores.paired(scores.table(fixed), AVERAGE)}
    counts = [round(20 * found[k]["value"]) for k in ("both", "only_original", "only_negated", "neither")]
    assert counts == [5, 9, 2, 4]
    gap = found["gap"]
    assert (gap["n"], gap["unscored"]) == (20, 1)
    assert gap["value"] == pytest.approx((14 - 7) / 20)
    assert gap["low"] < gap["value"] < gap["high"]
    assert (found["original"]["value"], found["negated"]["value"]) == (14 / 20, 7 / 20)
    tail = sum(math.comb(11, k) for k in range(3)) / 2**11  # of 2 among 11 that differ
    assert found["mcnemar"]["p"] == pytest.approx(2 * tail)
    assert scores.mcnemar(0, 0) == 1.0


def test_a_constant_letter_has_no_pair_right_and_a_share_of_a_of_one():
    rows = [r for r in scores.score(made([("A", "A")] * 8), ["generated"]) if r["protocol"] == "fixed"]
    found = scores.figures(scores.table(rows))
    assert frames.pick(found, metric="both", category=AVERAGE)["value"] == 0  # type: ignore[index]
    answered, right = frames.select(found, task="position", variant="negated")["value"]
    assert (answered, right) == (1.0, 0.0)


def test_pictures_shared_by_questions_widen_the_clustered_interval_only():
    outcomes = [("A", "B")] * 20 + [("B", "A")] * 20
    together = made(outcomes)
    apart = [{**row, "source": f"p{row['id']}"} for row in together]
    clumped = [{**row, "source": f"p{int(row['id']) // 10}"} for row in together]
    entries = [
        scores.accuracy(
            scores.table(scores.score(rows, ["generated"])).where(protocol="fixed", variant="original"),
            AVERAGE, "fixed",
        )
        for rows in (apart, clumped)
    ]  # fmt: skip
    apart_, clumped_ = entries
    assert apart_.value == clumped_.value == 0.5
    assert clumped_.high - clumped_.low > 1.5 * (apart_.high - apart_.low)
    lows = [scores.normal(entry).low for entry in entries]
    assert lows == pytest.approx([0.5 - 1.96 * math.sqrt(0.25 / 40)] * 2)


# --- protocols -----------------------------------------------------------------------------


def test_the_protocols_differ_where_a_letter_cannot_be_read():
    rows = scores.score(made([("A", "A dog, of course, is what is not there.")]), ["generated"])
    values = {(row["protocol"], row["variant"]): row["value"] for row in rows}
    assert values["fixed", "original"] == values["paper", "original"] == 1.0
    assert values["fixed", "negated"] == 1.0  # the text names option B
    assert values["paper", "negated"] == 0.0  # the published rule takes the article for the letter: wrong
    rows = list(scores.score(made([("A", "Neither of them.")]), ["generated"]))
    values = {(row["protocol"], row["variant"]): row["value"] for row in rows}
    assert values["fixed", "negated"] is None
    assert values["paper", "negated"] == 0.0
    assert all(row["reason"] for row in rows if row["variant"] == "negated")


def test_a_failed_answer_is_unscored_and_counted_under_both_protocols():
    rows = made([("A", "B"), ("A", "B")])
    rows[0] |= {"text": None, "error": "the endpoint gave no answer after 6 attempts: HTTP 503"}
    scored = list(scores.score(rows, ["generated"]))
    fixed = [r for r in scored if r["protocol"] == "fixed" and r["variant"] == "original"]
    found = scores.figures(scores.table(fixed))
    entry = frames.pick(found, task="accuracy", category=AVERAGE)
    assert entry is not None
    assert (entry["value"], entry["n"], entry["unscored"]) == (1.0, 1, 1)
    assert list(frames.select(found, task="unread")["value"]) == [1]
    paper = [r for r in scored if r["protocol"] == "paper" and r["variant"] == "original"]
    assert [row["value"] for row in paper] == [None, 1.0]
    assert "HTTP 503" in fixed[0]["reason"]


def test_a_category_is_the_mean_of_its_subsets_as_published_and_pooled_when_fixed():
    rows = made([("A", "B")] * 9)  # nine right answers of one subset, one wrong of another
    rows += [{**row, "id": "x", "subset": "VizWiz", "source": "q"} for row in made([("B", "A")])]
    scored = scores.table(scores.score(rows, ["generated"])).where(variant="original")
    fixed = scores.accuracy(scored.where(protocol="fixed"), "General", "fixed")
    paper_rows = scored.where(protocol="paper")
    paper = scores.accuracy(paper_rows, "General", "paper")
    assert fixed.value == pytest.approx(0.9)
    assert paper.value == pytest.approx(0.5)
    assert scores.accuracy(paper_rows, AVERAGE, "paper").value == pytest.approx(0.9)  # over all questions


def test_probabilities_give_a_letter_of_their_own():
    rows = made([("A", "A")])
    rows[0] |= {"logprobs": [-2.0, -0.1]}
    rows[1] |= {"logprobs": [-0.2, None]}
    scored = [r for r in scores.score(rows, ["generated", "logprob"]) if r["protocol"] == "fixed"]
    letters = {(r["scoring"], r["variant"]): r["letter"] for r in scored}
    assert letters == {
        ("generated", "original"): "A", ("generated", "negated"): "A",
        ("logprob", "original"): "B", ("logprob", "negated"): "A",
    }  # fmt: skip
    same = scores.agreement(scores.table(scored))
    assert same is not None
    assert (same["value"], same["n"]) == (0.5, 2)
    assert scores.agreement(scores.table(scored).where(scoring="generated")) is None
    missing = list(scores.score(made([("A", "A")]), ["logprob"]))
    assert all(row["value"] is None for row in missing)
    assert Counter(row["reason"] for row in missing) == {"no probabilities of letters": 4}
