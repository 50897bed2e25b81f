"""The page in a real browser: search, filter, links, markup in captions, keyboard, side-car files."""

from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from nein.reporting import cards, labels
from nein.reporting import page as pages
from tests.reporting.conftest import MARKUP, report

pytest.importorskip("selenium")
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait


class Page:
    def __init__(self, driver, path):
        self.driver = driver
        self.path = path

    def open(self, fragment=""):
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get(self.path.as_uri() + fragment)
        self.until(lambda: self.script("return document.documentElement.dataset.ready") == "yes")
        return self

    def until(self, condition):
        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(lambda _: condition())

    def script(self, text):
        return self.driver.execute_script(text)

    def find(self, name):
        return self.driver.find_element(By.ID, name)

    def ids(self):
        return self.script("return [...document.querySelectorAll('.card')].map(c => c.dataset.id)")

    def count(self):
        return self.find("count").text

    def hash(self):
        # The page's own account: the browser's (`current_url`) follows a moment later.
        return parse_qs(self.script("return location.hash.slice(1)"))

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def drawn(self):
        self.until(
            lambda: self.script(
                "return [...document.querySelectorAll('.card')].every(c => c.querySelector('.strip'))"
            )
        )

    def focused(self):
        return self.script("return document.activeElement.dataset.id || document.activeElement.id")


@pytest.fixture(scope="module")
def page(out):
    report([str(out), "-o", str(out / "seen.html"), "--formats", "html", "--protocols"])
    return out / "seen.html"


@pytest.fixture
def page_with_files(out):
    report([str(out), "-o", str(out / "beside.html"), "--formats", "html", "--embed", "0"])
    return out / "beside.html"


@pytest.fixture
def opened(browser, page):
    return Page(browser, page).open()


def test_all_samples_are_there_page_by_page_with_their_pictures(opened):
    assert opened.count() == "70 of 70 samples, page 1 of 6"
    opened.drawn()
    widths = opened.script(
        "return [...document.querySelectorAll('.card img')].map(i => i.complete && i.naturalWidth)"
    )
    assert len(widths) == 12 * 5 - 1  # sample, target and three runs; one edit failed
    assert all(widths)
    for _ in range(5):
        opened.find("next").click()
    assert len(opened.ids()) == 70 - 5 * 12
    assert opened.hash()["page"] == ["6"]


def test_search_finds_words_in_captions_instructions_and_ids(opened):
    opened.find("q").send_keys("penguin LONELY")
    opened.until(lambda: opened.count().startswith("1 of 70"))
    assert opened.ids() == ["NeIn_000000000004_1"]
    opened.find("q").clear()
    opened.find("q").send_keys("000000000002_")
    opened.until(lambda: opened.count().startswith("2 of 70"))
    opened.find("q").clear()
    opened.find("q").send_keys("no such thing")
    opened.until(lambda: opened.count() == "0 of 70 samples")
    assert opened.ids() == []


def test_filters_combine_and_reset_brings_everything_back(opened):
    Select(opened.find("object")).select_by_visible_text("cat")
    assert opened.count().startswith("14 of 70")
    Select(opened.find("member")).select_by_visible_text("ip2p/negative")
    Select(opened.find("verdict")).select_by_value("one")
    # cats are samples 0, 5, 10, ...; ip2p removed every fourth sample: 0, 20, 40, 60.
    assert opened.ids() == [f"NeIn_{i // 2 + 1:012d}_{i % 2 + 1}" for i in (0, 20, 40, 60)]
    Select(opened.find("verdict")).select_by_value("unscored")
    assert opened.ids() == []
    opened.find("reset").click()
    assert opened.hash() == {}


def test_a_filter_with_one_choice_is_not_shown(browser, tmp_path):
    facets = ({"Object": ["cat"], "Family": ["plain"]}, {"Object": ["dog"], "Family": ["plain"]})
    shown = [cards.Card(str(number), "No cat.", "", each) for number, each in enumerate(facets)]
    part = cards.make_browser(cards.Samples([], []), lambda: shown)
    (tmp_path / "page.html").write_text(pages.render(pages.Page("Data", parts=[part])))
    found = Page(browser, tmp_path / "page.html").open()
    names = ("object", "family", "member", "measure", "verdict")
    assert [found.find(name).is_displayed() for name in names] == [True, False, False, False, False]
    assert found.driver.get_log("browser") == []


def test_a_link_keeps_the_filter_and_the_order(browser, page):
    first = Page(browser, page).open("#object=dog&member=magicbrush/negative&measure=l1&sort=worst")
    ids = first.ids()
    assert first.count().startswith("14 of 70")
    # magicbrush's L1 falls with the index, lower is better: the worst dog is the first one, sample 3.
    assert ids[0] == "NeIn_000000000002_2"
    assert Select(first.find("object")).first_selected_option.text == "dog"
    again = Page(browser, page).open("#" + urlsplit(browser.current_url).fragment)
    assert again.ids() == ids
    last = Page(browser, page).open("#object=dog&member=magicbrush/negative&measure=l1&sort=worst&page=2")
    best = last.ids()[-1]
    assert (
        Page(browser, page).open("#object=dog&member=magicbrush/negative&measure=l1&sort=best").ids()[0]
        == best
    )


def test_markup_in_a_caption_is_shown_as_text_and_never_runs(browser, page):
    found = Page(browser, page).open("#q=zebra&sample=NeIn_000000000003_2")
    found.until(lambda: found.find("dialog").is_displayed())
    assert MARKUP in found.find("dialog").text
    assert MARKUP in found.driver.find_element(By.CSS_SELECTOR, ".card .sub").get_attribute("textContent")
    assert found.script("return document.querySelectorAll('.card img[src=x], dialog img[src=x]').length") == 0
    assert found.driver.title == "NeIn: ip2p, magicbrush"
    assert found.driver.get_log("browser") == []  # no script error, nothing the policy had to block


def test_everything_works_from_the_keyboard(opened):
    opened.press("j")
    first = opened.focused()
    assert first == opened.ids()[0]
    opened.press("j")
    assert opened.focused() == opened.ids()[1]
    opened.press("k")
    assert opened.focused() == first
    opened.press(Keys.ENTER)
    opened.until(lambda: opened.find("dialog").is_displayed())
    assert opened.hash()["sample"] == [first]
    opened.press(Keys.ESCAPE)
    opened.until(lambda: not opened.find("dialog").is_displayed())
    opened.until(lambda: opened.focused() == first)
    opened.until(lambda: "sample" not in opened.hash())
    opened.press("n")
    opened.until(lambda: "page 2 of 6" in opened.count())
    opened.press("p")
    opened.until(lambda: "page 1 of 6" in opened.count())
    opened.press("/")
    assert opened.focused() == "q"
    opened.press("jn/")  # typed, not obeyed
    opened.until(lambda: opened.count().startswith("0 of 70"))
    opened.press(Keys.ESCAPE)
    assert opened.focused() != "q"


def test_side_car_files_open_from_disk_and_a_missing_one_is_said(browser, page_with_files):
    found = Page(browser, page_with_files).open()
    found.drawn()
    assert found.script("return document.querySelectorAll('script[id^=chunk]').length") == 0
    assert len(list((page_with_files.parent / "beside-data").glob("*.js"))) == 3
    widths = found.script(
        "return [...document.querySelectorAll('.card img')].map(i => i.complete && i.naturalWidth)"
    )
    assert len(widths) == 12 * 5 - 1
    assert all(widths)
    assert found.driver.get_log("browser") == []
    lost = page_with_files.parent / "beside-data" / "00002.js"
    kept = lost.read_bytes()
    lost.unlink()
    try:
        gone = Page(browser, page_with_files).open("#page=6")
        gone.drawn()
        assert "the file with this picture is missing" in gone.find("deck").text
    finally:
        lost.write_bytes(kept)


def test_pictures_are_enlarged_side_by_side_or_one_by_one_with_the_boxes_of_the_detector(browser, page):
    found = Page(browser, page).open("#sample=NeIn_000000000001_1&picture=1")
    enlarged = "return [...document.querySelectorAll('#zoom img')].map((image) => image.alt)"
    sides = "return [...document.querySelectorAll('#zoom img')].map((image) => image.clientWidth)"
    found.until(lambda: found.find("zoom").is_displayed())
    assert found.script(enlarged) == ["target of NeIn_000000000001_1"]
    assert min(found.script(sides)) > 500  # a thumbnail is 131
    found.press(Keys.ARROW_RIGHT)
    found.until(lambda: found.script(enlarged) == ["ip2p/negative of NeIn_000000000001_1"])
    assert found.hash()["picture"] == ["2"]
    found.press(Keys.ESCAPE)
    found.until(lambda: not found.find("zoom").is_displayed())
    assert found.find("dialog").is_displayed()
    found.until(lambda: "picture" not in found.hash())
    found.press("j")  # the next sample
    found.until(lambda: found.hash()["sample"] == ["NeIn_000000000001_2"])
    found.press("z")
    names = ("sample", "target", "ip2p/negative", "ip2p/remove", "magicbrush/negative")
    found.until(lambda: found.script(enlarged) == [f"{name} of NeIn_000000000001_2" for name in names])
    assert min(found.script(sides)) > 250
    box = "document.querySelector('#zoom rect')"
    assert found.script(f"return getComputedStyle({box}.parentElement).display") == "none"
    found.press("b")
    [left, right] = found.script(
        f"const box = {box}.getBoundingClientRect(), image = {box}.closest('button').getBoundingClientRect();"
        "return [box.left - image.left, box.right - image.left].map((x) => x / image.width)"
    )
    assert [left, right] == pytest.approx([0, 9 / 32], abs=0.02)  # of 32 pixels


@pytest.fixture(params=["report", "labels"])
def any_page(request, page, tmp_path_factory):
    if request.param == "report":
        return page
    path = tmp_path_factory.mktemp("labels") / "page.html"
    picture = cards.make_thumbnail(np.full((30, 40, 3), 99, np.uint8), 64)
    items = [labels.Item("i", "To be removed: cat", [("before", picture)], ("", "A"), [])]
    question = labels.Question("gone", "Is it gone?", {"gone": "gone", "partly": "partly"})
    labels.write_page(path, "Labels", "How.", [question], items)
    return path


@pytest.mark.parametrize(("scheme", "level"), [("light", 255), ("dark", 19)])
def test_a_page_follows_the_scheme_and_fits_a_telephone(browser, any_page, scheme, level):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    screen = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        found = Page(browser, any_page).open()
        assert found.script("return getComputedStyle(document.body).backgroundColor") == (
            f"rgb({level}, {level}, {level})"
        )
        assert found.script("return document.documentElement.scrollWidth") <= 390
        if heights := found.script(
            "return [...document.querySelectorAll('#item button')].map((b) => b.offsetHeight)"
        ):
            assert min(heights) >= 44  # wide enough for a thumb
        else:
            found.drawn()
            shade = found.script("return getComputedStyle(document.querySelector('figure img')).filter")
            assert shade == ("none" if scheme == "light" else "invert(0.925) hue-rotate(180deg)")
            figure = "const i = document.querySelector('figure img'); return [i.naturalWidth, i.clientWidth]"
            natural, shown = found.script(figure)
            assert 8 / 0.75 * shown / natural > 10  # pixels of the letters, 8 points; wide figures scroll
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_head_sorts_its_table_and_turns_the_order(opened):
    table = "document.querySelector('#results table')"
    opened.script(f"{table}.closest('details').open = true")

    def column(at):
        return opened.script(f"return [...{table}.tBodies[0].rows].map(r => r.cells[{at}].textContent)")

    numbers = opened.script(
        f"return [...{table}.tHead.rows[0].cells].findIndex(c => c.classList.contains('number'))"
    )
    head = opened.driver.find_elements(By.CSS_SELECTOR, "#results table thead button")[numbers]
    for order in ("ascending", "descending"):
        head.send_keys(Keys.ENTER)
        shown = [float(cell.split()[0]) for cell in column(numbers) if cell != "–"]
        assert shown == sorted(shown, reverse=order == "descending")
        assert len(set(shown)) > 1
        assert column(numbers)[len(shown) :] == ["–"] * (len(column(numbers)) - len(shown))
        assert head.find_element(By.XPATH, "..").get_attribute("aria-sort") == order


def test_what_a_judge_said_is_said_in_words(browser, page):
    found = Page(browser, page).open("#sample=NeIn_000000000001_1")
    found.until(lambda: found.find("dialog").is_displayed())
    rows = (
        "return [...document.querySelectorAll('#dialog-body tbody tr')]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )
    found.until(lambda: len(found.script(rows)) == 3 * 6 - 3)  # FID is of no sample
    said = {tuple(cells) for cells in found.script(rows)}
    assert {
        ("L1", "0.1", "", ""),
        ("Removal (VQA)", "100.0", "", 'answer: "No" · P(yes) 0.250 · P(no) 0.500 · asked: is it?'),
        ("Removal (OVD)", "100.0", "", "box score 0.050 (threshold 0.1)"),
        ("Retention (VQA)", "0.0", "", 'in the sample: man "Yes", car no time · in the edit: man "No"'),
    } <= said
    lost = Page(browser, page).open("#sample=NeIn_000000000002_2")  # without an answer
    lost.until(lambda: lost.find("dialog").is_displayed())
    words = 'answer: "Perhaps" · P(yes) 0.250 · P(no) 0.500 · asked: is it?'
    lost.until(lambda: ["Removal (VQA)", "unscored", "no answer", words] in lost.script(rows))
