from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from nein.benchmarks.negvqa import figures, plots, scores, table1
from nein.datasets.negvqa.categories import AVERAGE

OPTIONS = ["cat", "dog"]


def answer(number: int, variant: str, text: str | None, right: str, **more: Any) -> dict[str, Any]:
    return {
        "id": str(number), "variant": variant, "subset": "VQAv2", "category": "General",
        "source": f"p{number // 2}", "options": OPTIONS, "answer": right, "text": text, "logprobs": None,
        "error": "", **more,
    }  # fmt: skip


def made(outcomes: list[tuple[str, str]], **more: Any) -> list[dict[str, Any]]:
    """Answers to pairs whose right letters are A, then B."""
    rows = []
    for number, (original, negated) in enumerate(outcomes):
        rows += [
            answer(number, "original", original, "A", **more),
            answer(number, "negated", negated, "B", **more),
        ]
    return rows


# --- the paper's table ---------------------------------------------------------------------


def test_our_intervals_reproduce_every_printed_bound_of_table_1_but_one() -> None:
    strange = []
    for cell in table1.cells():
        low, high = figures.normal_interval(cell.value, table1.SIZES[cell.category])
        if max(abs(100 * (low - cell.low)), abs(100 * (high - cell.high))) > 0.1 + 1e-9:
            strange.append((cell.model, cell.variant, cell.category))
    assert strange == list(table1.MISPRINTS)
    assert len(table1.cells()) == 200
    assert sum(n for name, n in table1.SIZES.items() if name != AVERAGE) == table1.SIZES[AVERAGE] == 7379


def test_the_misprint_fits_no_number_of_questions() -> None:
    cell = table1.cell("Qwen2-VL-72B", "original", "DocChart")
    assert cell is not None
    fits = [
        n
        for n in range(50, 9000)
        if abs(figures.normal_interval(cell.value, n)[0] - cell.low) <= 0.00101
        and abs(figures.normal_interval(cell.value, n)[1] - cell.high) <= 0.00101
    ]
    assert fits == []


def test_a_shorter_interval_would_not_reproduce_the_table() -> None:
    cell = table1.cell("VILA1.5-3B", "original", AVERAGE)
    assert cell is not None
    low, _ = figures.normal_interval(cell.value, 2 * 7379)
    assert abs(100 * (low - cell.low)) > 0.1


def test_known_models_are_found_by_how_they_are_referred_to() -> None:
    assert table1.known("llava-hf/llava-1.5-7b-hf@abc") == "LLaVA-1.5-7B"
    assert table1.known("openai:http://host:8000/v1#Qwen/Qwen2-VL-72B-Instruct") == "Qwen2-VL-72B"
    assert table1.known("models/InstructBLIP-Vicuna-7B/") == "InstructBLIP-7B"
    assert table1.known("nano:negvqa") is None
    assert table1.known("Qwen/Qwen2.5-VL-7B-Instruct") is None
    assert table1.family("Qwen/Qwen2.5-VL-7B-Instruct") == ("Qwen2.5-VL", 7.0)
    assert table1.family("DeepSeek-VL-1.3B") == ("DeepSeek-VL", 1.3)
    assert table1.family("nano:negvqa") is None


def test_scaling_has_a_line_per_family_and_leaves_out_what_the_paper_leaves_out() -> None:
    families = plots.points({})
    assert [m["size"] for m in families["VILA1.5"]] == [3, 8, 13, 40]
    assert [m["name"] for m in families["Molmo"]] == ["Molmo-1B", "Molmo-7B-O", "Molmo-72B"]
    assert families["Cambrian"][0]["shares"]["negated", "Reasoning"] == pytest.approx(0.506)
    # The U of the paper: the middle one is the worst on negated reasoning.
    shares = [m["shares"]["negated", "Reasoning"] for m in families["Cambrian"]]
    assert shares[1] < shares[0] < shares[2]


# --- pairs ---------------------------------------------------------------------------------


def test_outcomes_of_pairs_are_counted_and_tested() -> None:
    outcomes = [("A", "B")] * 5 + [("A", "A")] * 9 + [("B", "B")] * 2 + [("B", "A")] * 4 + [("A", "?!")]
    rows = scores.score(made(outcomes), ["generated"])
    fixed = [row for row in rows if row["protocol"] == "fixed"]
    found = figures.paired(fixed, AVERAGE)
    assert [found[k] for k in ("both", "only_original", "only_negated", "neither")] == [5, 9, 2, 4]
    assert (found["n"], found["n_unscored"]) == (20, 1)
    assert found["gap"] == pytest.approx((14 - 7) / 20)
    assert found["low"] < found["gap"] < found["high"]
    from scipy.stats import binomtest

    assert found["p_mcnemar"] == pytest.approx(binomtest(2, 11).pvalue)


def test_mcnemar_is_the_exact_binomial_test() -> None:
    from scipy.stats import binomtest

    rng = random.Random(0)
    for _ in range(40):
        first, second = rng.randrange(60), rng.randrange(60)
        if first + second:
            assert figures.mcnemar(first, second) == pytest.approx(binomtest(first, first + second).pvalue)
            assert figures.mcnemar(first, second) == figures.mcnemar(second, first)
    assert figures.mcnemar(0, 0) == 1.0


def test_a_constant_letter_has_no_pair_right_and_a_share_of_a_of_one() -> None:
    rows = [r for r in scores.score(made([("A", "A")] * 8), ["generated"]) if r["protocol"] == "fixed"]
    assert figures.paired(rows, AVERAGE)["both"] == 0
    found = figures.position([row for row in rows if row["variant"] == "negated"])
    assert (found["share_a"], found["right_a"]) == (1.0, 0.0)


def test_pictures_shared_by_questions_widen_the_clustered_interval_only() -> None:
    outcomes = [("A", "B")] * 20 + [("B", "A")] * 20
    together = made(outcomes)
    apart = [{**row, "source": f"p{row['id']}"} for row in together]
    clumped = [{**row, "source": f"p{int(row['id']) // 10}"} for row in together]
    entries = [
        figures.accuracy([r for r in scores.score(rows, ["generated"]) if r["protocol"] == "fixed"
                          and r["variant"] == "original"], AVERAGE, "fixed")
        for rows in (apart, clumped)
    ]  # fmt: skip
    assert entries[0]["value"] == entries[1]["value"] == 0.5
    assert entries[1]["high"] - entries[1]["low"] > 1.5 * (entries[0]["high"] - entries[0]["low"])
    assert (
        entries[0]["normal_low"]
        == entries[1]["normal_low"]
        == pytest.approx(0.5 - 1.96 * math.sqrt(0.25 / 40))
    )


# --- protocols -----------------------------------------------------------------------------


def test_the_protocols_differ_where_a_letter_cannot_be_read() -> None:
    rows = scores.score(made([("A", "A dog, of course, is what is not there.")]), ["generated"])
    values = {(row["protocol"], row["variant"]): row["value"] for row in rows}
    assert values["fixed", "original"] == values["paper", "original"] == 1.0
    assert values["fixed", "negated"] == 1.0  # the text names option B
    assert values["paper", "negated"] == 0.0  # the published rule finds no letter near the end: wrong
    rows = scores.score(made([("A", "Neither of them.")]), ["generated"])
    values = {(row["protocol"], row["variant"]): row["value"] for row in rows}
    assert values["fixed", "negated"] is None
    assert values["paper", "negated"] == 0.0
    assert all(row["reason"] for row in rows if row["variant"] == "negated")


def test_a_failed_answer_is_unscored_and_counted_or_wrong_as_published() -> None:
    rows = made([("A", "B"), ("A", "B")])
    rows[0] |= {"text": None, "error": "the endpoint gave no answer after 6 attempts: HTTP 503"}
    scored = scores.score(rows, ["generated"])
    fixed = [r for r in scored if r["protocol"] == "fixed" and r["variant"] == "original"]
    entry = figures.accuracy(fixed, AVERAGE, "fixed")
    assert (entry["value"], entry["n"], entry["n_unscored"]) == (1.0, 1, 1)
    paper = [r for r in scored if r["protocol"] == "paper" and r["variant"] == "original"]
    assert figures.accuracy(paper, AVERAGE, "paper")["value"] == 0.5
    assert "HTTP 503" in fixed[0]["reason"]


def test_a_category_is_the_mean_of_its_subsets_as_published_and_pooled_when_fixed() -> None:
    rows = made([("A", "B")] * 9)  # nine right answers of one subset, one wrong of another
    rows += [{**row, "id": "x", "subset": "VizWiz", "source": "q"} for row in made([("B", "A")])]
    scored = [r for r in scores.score(rows, ["generated"]) if r["variant"] == "original"]
    fixed = figures.accuracy([r for r in scored if r["protocol"] == "fixed"], "General", "fixed")
    paper_rows = [r for r in scored if r["protocol"] == "paper"]
    paper = figures.accuracy(paper_rows, "General", "paper")
    assert fixed["value"] == pytest.approx(0.9)
    assert paper["value"] == pytest.approx(0.5)
    assert figures.accuracy(paper_rows, AVERAGE, "paper")["value"] == pytest.approx(0.9)  # over all questions


def test_probabilities_give_a_letter_of_their_own() -> None:
    rows = made([("A", "A")])
    rows[0] |= {"logprobs": [-2.0, -0.1]}
    rows[1] |= {"logprobs": [-0.2, None]}
    scored = [r for r in scores.score(rows, ["generated", "logprob"]) if r["protocol"] == "fixed"]
    letters = {(r["scoring"], r["variant"]): r["letter"] for r in scored}
    assert letters == {
        ("generated", "original"): "A", ("generated", "negated"): "A",
        ("logprob", "original"): "B", ("logprob", "negated"): "A",
    }  # fmt: skip
    assert figures.agreement(scored) == {"same": 1, "n": 2, "share": 0.5}
    missing = scores.score(made([("A", "A")]), ["logprob"])
    assert all(row["value"] is None for row in missing)
    assert Counter(row["reason"] for row in missing) == {"no probabilities of letters": 4}
