"""The page on which people label, in a real browser; the files that it saves; how far raters agree."""

import re

import numpy as np
import pytest

from nein.loading.errors import UserError
from nein.reporting import cards, labels
from nein.reporting import figures as frames

QUESTIONS = [
    labels.Question(
        "gone", "Is it <b>gone</b>?", {"gone": "gone", "partly": "partly", labels.UNSURE: "cannot tell"}
    ),
    labels.Question("kept", "Is the rest kept?", {"kept": "kept", "changed": "changed"}),
]
LINE = "s,1,Ada,a,gone,kept,1,\n"
HEAD = "sheet,items,rater,item,gone,kept,seconds,note\n"
MARKUP = '</script><img src=x onerror=\'document.title="broken"\'> "cat", & co'


@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (["id,label\n1,2\n"], "has no column sheet; expected sheet, items"),
        ([""], "has no column sheet"),
        ([HEAD], "has no line"),
        ([HEAD + 's,2,Ada,a,gone,kept,1,"half'], "is not a CSV file"),
        ([HEAD + "s,2,Ada,a,gone,kept,1,\ns,2,Ada,b,go"], "line 3: the line is cut off"),
        ([HEAD + "s,2,Ada,a,gone,kept,1,\n"], "has 1 of 2 items: it was cut off"),
        ([HEAD + 2 * "s,2,Ada,a,gone,kept,1,\n"], "has 2 of 2 items: it was cut off or changed"),
        ([HEAD + LINE.replace("gone", "perhaps")], "gone is 'perhaps'; allowed are gone, partly, cannot"),
        ([HEAD + LINE.replace("Ada", " ")], "one sheet and one named rater"),
        ([HEAD + LINE.replace("gone,kept", ",")], "no label yet"),
        ([HEAD + LINE.replace("s,", "other,")], "of another sheet, 'other'"),
        ([HEAD + LINE, HEAD + LINE.replace("gone", "partly")], "both have labels of 'Ada' for item 'a'"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_trusted_is_refused_in_a_sentence(tmp_path, contents, sentence):
    files = [tmp_path / f"{k}.csv" for k in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_text(content)
    with pytest.raises(UserError, match=re.escape(sentence)):
        labels.read_answers(files, QUESTIONS, ["s"])


def test_agreement_in_three_categories_is_that_of_scikit_learn_and_unsure_is_no_label():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    first = rng.choice(["gone", "partly", "there"], 60)
    second = np.where(rng.random(60) < 0.6, first, rng.choice(["gone", "partly", "there"], 60))
    question = labels.Question("q", "?", dict.fromkeys(("gone", "partly", "there", labels.UNSURE), ""))
    rows = [
        {"rater": rater, "item": str(k), "q": answer}
        for rater, said in (("Ada", first), ("Bob", second))
        for k, answer in enumerate(said)
    ]
    rows += [{"rater": "Ada", "item": "x", "q": labels.UNSURE}, {"rater": "Bob", "item": "x", "q": "gone"}]
    frame = frames.frame(
        labels.measure_agreement(rows, [question], {row["item"]: row["item"] for row in rows})
    )
    same, kappa = (frames.pick(frame, statistic=name) for name in ("same", "kappa"))
    assert (same["value"], same["n"]) == (pytest.approx((first == second).mean()), 60)
    assert kappa["value"] == pytest.approx(metrics.cohen_kappa_score(first, second))
    assert kappa["low"] < kappa["value"] < kappa["high"]
    assert frames.pick(frame, statistic="alpha")["value"] == pytest.approx(kappa["value"], abs=0.02)


def test_a_rater_is_told_by_known_items_and_by_how_often_nothing_could_be_told():
    said = ("gone", "gone", "gone", labels.UNSURE)
    rows = [{"rater": "Bob", "item": f"{k}", "gone": gone, "kept": "kept"} for k, gone in enumerate(said)]
    found = frames.frame(labels.describe_raters(rows, QUESTIONS, {"0": "gone", "1": "partly"}))
    told = {one["statistic"]: (one["value"], one["n"]) for one in frames.records(found)}
    assert told == {"labelled": (4, None), "unsure": (0.125, 8), "gold": (0.5, 2)}


@pytest.fixture(scope="module")
def sheet(tmp_path_factory):
    path = tmp_path_factory.mktemp("labels") / "page.html"
    picture = cards.make_thumbnail(np.full((30, 40, 3), 99, np.uint8), 64)
    pictures = [("before", picture), ("after", {"none": "lost"})]
    items = [
        labels.Item(f"i{k}", title, pictures, ("", "A"), [["<i>", MARKUP]])
        for k, title in enumerate(("To be removed: cat", MARKUP, "third"))
    ]
    return path, labels.write_page(path, "Labels", "How.", QUESTIONS, items)


@pytest.fixture
def page(sheet, browser):
    from tests.reporting.test_browser import Page

    return Page(browser, sheet[0]).open()


def test_labels_are_given_from_the_keyboard_survive_a_reload_and_leave_as_a_file(sheet, page, tmp_path):
    page.driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    assert "To be removed: cat" in page.find("item").text
    page.press("14")  # gone, kept: on to the next item
    assert "Item 2 of 3" in page.find("item").text
    assert MARKUP in page.find("item").text
    assert page.script("return document.querySelectorAll('#item img[src=x]').length") == 0
    page.press("35")
    page.find("note").send_keys('14, "odd"')  # typed, not obeyed
    page.find("previous").click()
    page.press("2")  # corrected: partly
    assert "Item 2 of 3" in page.find("item").text
    page.find("save").click()
    assert "Write your name first" in page.find("message").text
    page.find("who").send_keys("Ada")

    def reloaded():  # the browser takes a moment to store them
        return page.open().find("progress").text == "2 of 3 labelled"

    page.until(reloaded)
    page.find("save").click()
    page.until(lambda: [*tmp_path.glob("labels-*-Ada.csv")])
    [file] = tmp_path.glob("labels-*-Ada.csv")
    assert not [entry for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    rows = labels.read_answers([file], QUESTIONS, [sheet[1]])
    assert [[row[key] for key in ("rater", "item", "gone", "kept", "note")] for row in rows] == [
        ["Ada", "i0", "gone", "kept", ""],
        ["Ada", "i1", "partly", "changed", ""],
        ["Ada", "i2", "", "", '14, "odd"'],
    ]
    page.script("localStorage.clear()")
    assert page.open().find("progress").text == "0 of 3 labelled"
    page.find("load").send_keys(str(file))
    page.until(lambda: page.find("progress").text == "2 of 3 labelled")
    assert page.script("return document.getElementById('who').value") == "Ada"
