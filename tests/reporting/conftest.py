"""A report of a few runs, and a Chromium to look at it with."""

import shutil

import pytest

from nein.benchmarks.finished import report as write_report
from nein.benchmarks.nein.config import ReportConfig
from tests.reporting import made

MARKUP = (
    '</script><script>document.title="broken"</script>'
    '<img src=x onerror=\'document.title="broken"\'> A zebra & "co"'
)


def report(words):
    return write_report(ReportConfig.parse(words))


@pytest.fixture(scope="session")
def rows():
    """70 samples: more than two pages and more than two chunks; sample 5 has markup for a caption."""
    return made.records(35, 2, {5: MARKUP, 6: "A lonely penguin."})


@pytest.fixture(scope="session")
def out(tmp_path_factory, rows):
    root = tmp_path_factory.mktemp("report")
    data = made.write_data(root / "data", rows)
    values = {
        "l1": lambda i: 0.01 * (i % 17) + 0.001,
        "removal_vqa": lambda i: None if i == 3 else float(i % 4 == 0),
        "removal_ovd": lambda i: float(i % 4 == 0 or i == 9),
        "retention_vqa": lambda i: (i % 3) / 2,
        "auc_removal": lambda i: (i % 5) / 4,
    }
    judged = {"removal_vqa": lambda i: float(i % 3 != 0), "removal_ovd": lambda i: float(i % 5 != 0)}
    remove = {**values, **judged}
    out = root / "runs"
    made.write_run(out, data, "ip2p", "negative", rows, values, failed=[7], features=6)
    made.write_run(out, data, "ip2p", "remove", rows, remove, features=6)
    other = {**values, "removal_vqa": lambda i: float(i % 2 == 0), "l1": lambda i: 0.5 - 0.005 * i}
    made.write_run(out, data, "magicbrush", "negative", rows, other, features=6)
    return out


@pytest.fixture(scope="session")
def page(out):
    assert "Report: " in str(report([str(out), "-o", str(out / "report.html"), "--protocols"]))
    return out / "report.html"


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium; without one (or without selenium) the tests that need it are skipped."""
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))),
        None,
    )
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no chromium with chromedriver on this machine")
    options = selenium.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    found.set_page_load_timeout(120)
    yield found
    found.quit()
