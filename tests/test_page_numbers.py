"""Numbers that the pages state about this code are computed: each fragment has to stand on its page."""

import re
from dataclasses import fields
from pathlib import Path

from nein.benchmarks.negbench import analysis
from nein.config import groups
from nein.engine import images
from nein.generate.nein import stats
from nein.judges import calibrate
from nein.loading import service
from nein.metrics import choice_prompts
from nein.models.remedies import encoders
from nein.nano import scope, zoo
from nein.statistics import calibration, estimates
from nein.wording import families

ROOT = Path(__file__).resolve().parents[1]


def text_of(page):
    """The page in one line, without the joints of Markdown that a line break moves."""
    return re.sub(r"\s+", " ", (ROOT / page).read_text(encoding="utf-8"))


def interval(agreeing, per_image):
    found = estimates.bounded_mean(
        [1.0] * agreeing + [0.0] * (16 - agreeing), [i // per_image for i in range(16)]
    )
    return f"[{100 * found.low:.1f}, {100 * found.high:.3g}]"


def idle_obeys(depth):
    """Per cent of the edits of `nano:scope` at this depth in which nothing must go."""
    edits = [edit for edit in scope.iter_edits("val", scope.EDITS) if edit.depth == depth]
    return 100 * sum(all(edit.stays) for edit in edits) / len(edits)


def default(group, name):
    return next(field.default for field in fields(group) if field.name == name)


GROUPS = {name: len(templates) for name, templates in analysis.TEMPLATES.items()}
SHIPPED = sum(path.stat().st_size for path in zoo.ZOO.rglob("*.safetensors"))
STATISTICS, OTHER, NEGVQA = "explanation/statistics.md", "benchmarks/other-tests.md", "benchmarks/negvqa.md"


def claims():
    yield STATISTICS, f"16 of 16 single samples give {interval(16, 1)}, 15 of 16 {interval(15, 1)}"
    yield STATISTICS, f"in four images of four {interval(16, 4)} and {interval(15, 4)}"
    yield STATISTICS, f"an intraclass correlation of {estimates.PRIOR_CORRELATION} is **assumed**"
    yield STATISTICS, f"from {estimates.GRADED_CLUSTERS} source images on"
    yield STATISTICS, f"a power of {100 * estimates.POWER:.0f} % at the 5 % level"
    assert 2 / 2**estimates.TEST_CLUSTERS < 0.05 < 2 / 2 ** (estimates.TEST_CLUSTERS - 1)
    yield STATISTICS, "with fewer than six images"
    assert estimates.TEST_CLUSTERS == 6
    yield OTHER, f"{scope.EDITS} samples, ten per family and difficulty"
    yield OTHER, f"obeys in {idle_obeys(0):.1f} % of the samples"
    yield OTHER, f"and in {idle_obeys(1):.1f} % of the others"
    yield "benchmarks/negbench.md", f"fills {sum(GROUPS.values())} templates"
    yield (
        "benchmarks/negbench.md",
        f"({GROUPS[analysis.AFFIRMED]} affirmed and {GROUPS[analysis.DENIED]} negated",
    )
    yield "benchmarks/nein-data.md", f"the {len(stats.PAPER_WORDS)} of the paper's Table 1"
    yield "howto/judges.md", f"{calibrate.CONTROLLED} of the pictures are used"
    yield "explanation/judges.md", f"Se + Sp - 1 may be as low as {calibration.MIN_YOUDEN}"
    yield "howto/editors.md", f"`concurrency` ({service.AT_ONCE})"
    yield "howto/mend-models.md", f"with the default of {encoders.LAMBDA}"
    yield "howto/mend-models.md", f"THRESHOLD is a cosine, {encoders.THRESHOLD}"
    yield "explanation/numbers.md", f"`--blind` questions more ({default(groups.Blind, 'blind')}"
    yield "reference/files.md", f"more than {images.MAX_PIXELS // 10**6} million pixels"
    yield "reference/files.md", f"more than {images.MAX_RATIO} times as long as wide"
    yield "explanation/nano.md", f"{SHIPPED / 1e6:.0f} MB of safetensors"
    yield "reference/wording.md", "NeIn's thirteen sentences"
    assert len(families.NEGATIVE_TEMPLATES) == 13
    yield NEGVQA, f"others {choice_prompts.DEFAULT_FORMAT.max_new_tokens:,}; nano 16"


def test_a_number_that_a_page_states_about_this_code_is_the_codes():
    stated = list(claims())
    assert len(stated) > 20
    assert [(page, words) for page, words in stated if words not in text_of(f"docs/{page}")] == []


def test_the_hours_of_the_papers_samples_are_those_of_the_table():
    table = (ROOT / "docs/explanation/speed.md").read_text(encoding="utf-8")
    seconds = re.findall(r"^\| [^|]+, (?:b?float16|LPIPS) \| ([\d.]+) \|", table, re.MULTILINE)
    assert len(seconds) == 4
    hours = f"about {24_182 * sum(map(float, seconds)) / 3600:.0f} hours"
    assert all(hours in text_of(page) for page in ("README.md", "docs/explanation/speed.md"))
