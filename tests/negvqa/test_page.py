"""The page of answers, and the plots, from made-up answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nein.benchmarks.negvqa import figures, page, plots, scores, tables

MARKUP = '</script><script>document.title="broken"</script><img src=x> & "co"'


def answers(letters: tuple[str, str]) -> list[dict[str, Any]]:
    return [
        {
            "id": str(number), "variant": variant, "subset": "VQAv2", "category": "General",
            "source": f"p{number}", "question": MARKUP if number == 1 else f"{variant} {number}?",
            "options": ["cat", "dog"], "answer": right, "text": letter, "logprobs": [-0.1, None], "error": "",
        }
        for number in range(9)
        for variant, right, letter in zip(("original", "negated"), "AB", letters, strict=True)
    ]  # fmt: skip


def summaries(said: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, dict[str, Any]]:
    manifest = {"preset": "paper", "protocol": "fixed", "identity": {"prompt": "paper"}, "data": {}, **more}
    return {
        name: figures.summary(scores.score(rows, ["generated", "logprob"]), {"reference": name, **manifest})
        for name, rows in said.items()
    }


def test_the_page_shows_pairs_by_outcome_and_text_stays_text(tmp_path: Path) -> None:
    said = {"good": answers(("A", "B")), "flat": answers(("A", "A")), "mute": answers(("A", "?"))}
    scored = {name: scores.score(rows, ["generated", "logprob"]) for name, rows in said.items()}
    shown = page.samples(said, scored, None, 100)
    assert len(shown) == 9
    assert [model["outcome"] for model in shown[0]["models"]] == ["both", "original", "unscored"]
    assert shown[0]["models"][0]["said"][0]["letters"] == "generated A, logprob A; log p -0.10 / –"
    chosen = page.samples(said, scored, None, 100, {"flat": "logprob", "mute": "logprob"})
    assert [model["outcome"] for model in chosen[0]["models"]] == ["both", "original", "original"]
    some = [sample["id"] for sample in page.samples(said, scored, None, 4)]
    assert len(some) == 4
    assert some == sorted(some) != ["0", "1", "2", "3"]  # drawn, in data order
    assert page.samples(said, scored, None, 0) == []
    made = tables.all_tables(summaries(said))
    page.write(tmp_path / "x.html", title="t", notes=["n"], tables=made, plots=[], samples=shown)
    html = (tmp_path / "x.html").read_text()
    assert html.count("<script>") == 1
    assert "&lt;/script&gt;&lt;script&gt;" in html
    assert "<img src=x>" not in html
    assert "default-src &#39;none&#39;" in html


def test_a_known_model_stands_beside_table_1_and_on_its_familys_line() -> None:
    name = "openai:http://host/v1#Qwen/Qwen2-VL-7B-Instruct"
    found = summaries({name: answers(("A", "A"))})
    table = next(table for table in tables.all_tables(found) if table.key == "table1")
    average = next(row for row in table.data if row["variant"] == "negated" and row["category"] == "Average")
    assert (average["value"], round(average["printed"], 4)) == (0.0, 0.572)
    family = plots.points(found)["Qwen2-VL"]
    assert [(m["size"], m["own"]) for m in family] == [(2, False), (7, False), (7, True), (72, False)]
    assert family[2]["shares"]["original", "Average"] == 1.0
    assert not any(t.key == "table1" for t in tables.all_tables(summaries({"a/b": answers(("A", "B"))})))


def test_plots_are_drawn_also_where_nothing_could_be_read() -> None:
    found = summaries({"good": answers(("A", "B")), "mute": answers(("?", "?"))})
    for plot in (plots.bars(found), plots.pairs(found)):
        assert plot.encode("png").startswith(b"\x89PNG")
        assert plot.encode("png") is plot.encode("png")  # a page and a file are one drawing
    assert plots.headline(found["good"]) == "generated"
    assert plots.headline(found["mute"]) == "logprob"
    assert plots.headline({**found["good"], "asking": "options"}) == "logprob"
    assert plots.headline({**found["good"], "asking": "letters"}) == "generated"
