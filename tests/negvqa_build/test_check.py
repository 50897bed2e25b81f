import html
import json
import time

import pytest
from scipy.stats import binom

from nein.engine.errors import UserError
from nein.generate.negvqa import check
from tests.helpers import commands
from tests.reporting.conftest import browser

__all__ = ["browser"]  # a fixture


def ticks(right, wrong, open_=0, sheet_name="abc"):
    marks = [{"verdict": "right", "error": None, "note": ""}] * right
    marks += [{"verdict": "wrong", "error": "unnatural", "note": "odd"}] * wrong
    marks += [{"verdict": None, "error": None, "note": ""}] * open_
    items = {str(number): mark for number, mark in enumerate(marks)}
    facts = {"format": check.FORMAT, "sheet": sheet_name, "population": 7379, "checker": "", "items": items}
    return facts


def test_the_paper_s_ninety_seven_of_a_hundred_have_their_exact_interval(tmp_path, capsys):
    path, out = tmp_path / "check.json", tmp_path / "figures.json"
    path.write_text(json.dumps(ticks(97, 3)))
    assert commands.exit_code("negvqa", "check", path, "--out", out) == 0
    said = capsys.readouterr().out
    assert "97 of 100 checked conversions are right: 97.0 % (95 % interval 91.5 to 99.4" in said
    assert "3 wrong: the negated question is unnatural" in said
    [found] = json.loads(out.read_text())
    assert (found["accuracy"], found["right"], found["errors"]) == (0.97, 97, {"unnatural": 3})
    # Clopper-Pearson by its definition: at either end, a tail of 2.5 %.
    assert binom.sf(96, 100, found["low"]) == pytest.approx(0.025, abs=1e-9)
    assert binom.cdf(97, 100, found["high"]) == pytest.approx(0.025, abs=1e-9)


def test_two_people_are_compared_and_two_sheets_are_not(tmp_path, capsys):
    first, second, other = (tmp_path / f"{name}.json" for name in "abc")
    one, two = ticks(80, 20), ticks(80, 20)
    two["items"] = dict(zip(reversed(two["items"]), two["items"].values(), strict=True))
    first.write_text(json.dumps(one))
    second.write_text(json.dumps(two))
    other.write_text(json.dumps(ticks(5, 5, sheet_name="other")))
    commands.exit_code("negvqa", "check", first, second)
    # Agreement 60 of 100, by chance 0.8^2 + 0.2^2 = 0.68: kappa = (0.6 - 0.68) / 0.32.
    assert "agree on 60; Cohen's kappa -0.25" in capsys.readouterr().out
    assert commands.exit_code("negvqa", "check", first, other) == 2
    assert "different check sheets" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ('{"format": "else"}', "not a check sheet"),
        ("{", "not valid JSON"),
        (json.dumps({**ticks(1, 0), "items": None}), "has no items"),
        (json.dumps({**ticks(1, 0), "items": {"7": {"verdict": "maybe"}}}), "item '7'"),
        (json.dumps({**ticks(1, 0), "items": {"7": {"verdict": "wrong", "error": None}}}), "item '7'"),
        (json.dumps({**ticks(1, 0), "items": {"7": {"verdict": "wrong", "error": {"a": 1}}}}), "item '7'"),
    ],
)
def test_a_file_that_is_no_check_is_refused(tmp_path, content, sentence):
    path = tmp_path / "check.json"
    path.write_text(content)
    with pytest.raises(UserError, match=sentence):
        check.read(path)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    import numpy as np

    from nein.engine import images

    folder = tmp_path_factory.mktemp("sheet")
    images.write_png(folder / "images" / "1.png", np.full((30, 40, 3), 99, np.uint8))
    row = {
        "index": "1", "image": "images/1.png", "category": "GQA",
        "original_question": "What is <b>on</b> it?", "negated_question": "What is not </script> on it?",
        "A": "a cat & a dog", "B": "<img src=x>",
        "original_answer": "A", "negated_answer": "B",
    }  # fmt: skip
    rows = [row, {**row, "index": "2"}, {**row, "index": "</script>", "image": "images/none.png"}]
    check.write_sheet(folder / "check.html", rows, population=50, negator="rules")
    return folder / "check.html"


def test_the_sheet_is_one_file_without_network_or_markup_from_data(page):
    text = page.read_text()
    assert "<b>on</b>" not in text
    assert "<img src=x>" not in text
    assert text.count("</script>") == 4  # its own: program, index, one chunk, facts
    assert "http" not in text.replace("http-equiv", "")
    assert "default-src 'none'" in html.unescape(text)
    assert text.count("the file is missing") == 1


def test_ticks_survive_a_reload_and_leave_the_page_as_a_file_that_is_read(page, tmp_path, browser):
    from selenium.webdriver.common.by import By

    driver, where = browser, {"behavior": "allow", "downloadPath": str(tmp_path)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    driver.get(page.as_uri())
    _until_ready(driver)
    radios = driver.find_elements(By.CSS_SELECTOR, ".card input[type=radio]")
    _press(driver, radios[0])
    second = driver.find_elements(By.CSS_SELECTOR, ".card")[1]
    _press(driver, second.find_element(By.CSS_SELECTOR, "input[value=twice]"))
    second.find_element(By.CSS_SELECTOR, ".words").send_keys("told twice")
    driver.find_element(By.ID, "who").send_keys("Ada")
    for _ in range(20):  # the browser takes a moment to store them
        driver.refresh()
        _until_ready(driver)
        progress = driver.find_element(By.ID, "progress").text
        if not progress.startswith("0"):
            break
        time.sleep(0.2)
    assert progress == "2 of 3 ticked, 1 right"
    driver.find_element(By.ID, "open-only").click()
    shown = [card.get_attribute("data-id") for card in driver.find_elements(By.CSS_SELECTOR, ".card")]
    assert shown == ["</script>"]
    driver.find_element(By.ID, "export").click()
    exported = _wait_for(tmp_path)
    assert not [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    found = check.read(exported)
    assert found["checker"] == "Ada"
    assert found["items"]["2"] == {"verdict": "wrong", "error": "twice", "note": "told twice"}
    figures = check.evaluate(found)
    assert [figures[key] for key in ("right", "wrong", "open", "population")] == [1, 1, 1, 50]


def _until_ready(driver):
    from selenium.webdriver.support.ui import WebDriverWait

    ready = "return document.documentElement.dataset.ready === 'yes'"
    WebDriverWait(driver, 20, poll_frequency=0.05).until(lambda one: one.execute_script(ready))


def _press(driver, button):
    """Clicks where the bar at the bottom of the window does not lie above it."""
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()


def _wait_for(folder):
    for _ in range(200):
        found = list(folder.glob("check-*.json"))
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("nothing was downloaded")
