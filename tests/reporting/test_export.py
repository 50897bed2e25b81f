"""`nein export` of finished runs of every benchmark; and `nein leaderboard`, which reads both."""

import re
import shutil

import pandas as pd
import pytest

from nein.benchmarks import finished, registry
from nein.reporting import figures as frames
from tests.helpers.commands import exit_code, outcome


@pytest.fixture(scope="module")
def runs(out, tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    folders = {"nein": out, "negbench": root / "b", "negvqa": root / "v"}
    assert exit_code(*COMMANDS["negbench"], folders["negbench"]) == 0
    assert exit_code(*COMMANDS["negvqa"], folders["negvqa"]) == 0
    return folders


#: What computes the runs, or finds them finished, but for its folder.
COMMANDS = {
    "nein": ("eval", "--stages", "report", "--out"),
    "negbench": ("negbench", "eval", "--model", "random", "--scenes", 64, "--limit", 12, "--out"),
    "negvqa": ("negvqa", "--model", "nano:negvqa", "--questions", 32, "--limit", 8, "--out"),
}  # fmt: skip


@pytest.mark.parametrize("benchmark", COMMANDS)
def test_what_a_command_prints_when_it_ends_fits_on_a_screen(runs, benchmark, tmp_path, capsys):
    page = tmp_path / "page.html"
    evaluated = outcome(capsys, *COMMANDS[benchmark], runs[benchmark])
    reported = outcome(capsys, "report", runs[benchmark], "-o", page)
    for done in (evaluated, reported):
        lines = done.stdout.splitlines()
        assert len([*lines, *done.stderr.splitlines()]) <= 25
        assert lines[1].endswith(("scored", "pairs"))
        assert any(name in done.stdout for name in ("figures.csv", "page.csv"))
    assert f"Report: {page} (" in reported.stdout
    finding = next(line for line in page.with_suffix(".md").read_text().splitlines() if line[:2] == "- ")
    for done in (evaluated, reported):
        assert finding[2:] in " ".join(done.stdout.split())
    assert f"nein report {runs[benchmark]} -o report.html" in evaluated.stdout
    [named] = re.findall(r"Plots \(\.pdf, \.svg, \.png\): (.*)", evaluated.stdout)
    plots = {f"{name}.{kind}" for name in named.split(", ") for kind in ("pdf", "svg", "png")}
    assert {"table.md", "figures.csv", *plots} <= {path.name for path in runs[benchmark].iterdir()}


def test_a_report_of_several_benchmarks_is_a_page_of_gaps_that_links_to_a_page_of_each(
    runs, tmp_path, capsys
):
    done = outcome(capsys, "report", *runs.values(), "-o", tmp_path / "all.html", "--shown", 3)
    assert done.code == 0
    html = (tmp_path / "all.html").read_text()
    assert re.findall(r'href="(all-\w+\.html)"', html) == [f"all-{name}.html" for name in runs]
    for name in runs:
        assert 'id="answer-' in (tmp_path / f"all-{name}.html").read_text()
        assert f"all-{name}.html" in done.stdout
    board = frames.read(tmp_path / "all.csv")
    assert set(board["benchmark"]) == set(runs)
    assert (tmp_path / "all-negvqa.html").read_text().count('"pictures":[[') == 3
    odd = outcome(capsys, "report", runs["negvqa"], "-o", tmp_path / "x.html", "--protocols")
    assert (odd.code, "--protocols does not apply to runs of NegVQA" in odd.stderr) == (2, True)


@pytest.mark.parametrize(
    ("benchmark", "samples", "said"),
    [
        ("nein", 566, "Object,cat,25"),
        ("negbench", 4271, "Kind,hybrid,761"),
        ("negvqa", 640, "Category,General,320"),
    ],
)
def test_data_are_shown_before_anything_is_evaluated(tmp_path, capsys, benchmark, samples, said):
    page = tmp_path / "data.html"
    done = outcome(capsys, "data", "show", "nano", "--benchmark", benchmark, "--shown", 7, "-o", page)
    assert (done.code, f"{samples:,} samples, 7 of them shown." in done.stdout) == (0, True)
    html = page.read_text()
    assert html.count('"pictures":[[') == 7
    assert html.count("data:image/webp;base64,") >= 7
    rows = re.findall(r'<th scope="row">(\w+)</th><td>(\w*)</td><td class="number">(\d+)</td>', html)
    assert tuple(said.split(",")) in rows
    assert ("all", "", str(samples)) in rows


@pytest.mark.parametrize("benchmark", COMMANDS)
def test_tables_have_every_row_of_every_run(runs, benchmark, tmp_path):
    folders = registry.find_finished([runs[benchmark]])
    assert exit_code("export", runs[benchmark], "--out", tmp_path) == 0
    for name in ("scores.csv", "figures.csv"):
        frame = pd.read_csv(tmp_path / name, dtype=str)
        assert frame["run"].nunique() == len(folders)
        expected = pd.concat([pd.read_csv(path / name, dtype=str) for path in folders])
        pd.testing.assert_frame_equal(frame[expected.columns], expected.reset_index(drop=True))


@pytest.fixture(scope="module")
def written(runs, tmp_path_factory):
    out = tmp_path_factory.mktemp("board")
    assert exit_code("leaderboard", *runs.values(), "--out", out) == 0
    return out


def test_a_board_has_every_gap_of_every_run(runs, written):
    board = frames.read(written / "index.csv")
    ours = board[board["source"] == finished.MEASURED]
    names = ("value", "low", "high", "n", "unscored")
    expected = {
        (row["model"], row["measure"]): tuple(row[name] for name in names)
        for benchmark, members in registry.group_by_data(registry.find_finished(list(runs.values())))
        for row in frames.records(benchmark.gaps(members), statistic="gap")
    }
    gaps = frames.records(ours[ours["statistic"] == "gap"])
    shown = {
        (row["model"], row["test"].partition(": ")[2]): tuple(row[name] for name in names) for row in gaps
    }
    assert shown == expected
    assert {row["benchmark"] for row in gaps} == set(COMMANDS)
    for row in gaps:
        what = {"model": row["model"], "test": row["test"], "source": row["source"]}
        told, denied = (frames.pick(board, statistic=name, **what) for name in ("affirmed", "negated"))
        assert told is not None
        assert denied is not None
        # A gap is paired: where one of a pair has no score, the shares are over a few more samples than it.
        assert told["value"] - denied["value"] == pytest.approx(row["value"], abs=0.1)


def test_published_gaps_stand_below_and_are_marked(written):
    board = frames.read(written / "index.csv")
    printed = frames.pick(board, source=finished.PUBLISHED, model="Qwen2-VL-7B", statistic="gap")
    # NegVQA, Table 1: 83.9 and 52.3 on average.
    assert printed is not None
    assert printed["value"] == pytest.approx(0.316, abs=1e-9)
    assert (printed["low"], printed["benchmark"]) == (None, "negvqa")
    sources = board["source"].tolist()
    assert sources[sources.index(finished.PUBLISHED) :].count(finished.MEASURED) == 0


def test_of_what_others_measured_three_files_are_enough(runs, written, tmp_path, capsys):
    copied = [tmp_path / name / "theirs" for name in ("nein", "negvqa")]
    for out in copied:
        for path in registry.find_finished([runs[out.parent.name]]):
            copy = out / path.relative_to(runs[out.parent.name])
            copy.mkdir(parents=True)
            for name in ("manifest.json", "figures.csv", "scores.csv"):
                shutil.copy(path / name, copy)
    said = outcome(capsys, "leaderboard", *copied, "--out", tmp_path / "board")
    assert said.code == 0
    theirs, ours = (frames.read(folder / "index.csv") for folder in (tmp_path / "board", written))
    ours = frames.select(ours, benchmark=("nein", "negvqa"))
    assert set(theirs["benchmark"]) == {"nein", "negvqa"}
    assert all(model in said.stdout for model in ours["model"][ours["source"] == finished.MEASURED])
    columns = ["test", "model", "statistic", "value", "low", "high", "n", "unscored"]
    keys = ["test", "model", "statistic"]
    first = theirs[theirs["source"] == "theirs"][columns].sort_values(keys, ignore_index=True)
    second = ours[ours["source"] == finished.MEASURED][columns].sort_values(keys, ignore_index=True)
    pd.testing.assert_frame_equal(first, second)
    assert len(first) > 0


def test_what_has_no_gap_is_said(runs, written, tmp_path, capsys):
    without = outcome(capsys, "leaderboard", runs["nein"] / "magicbrush", "--out", tmp_path)
    assert (without.code, "None of these runs has a negation gap" in without.stderr) == (2, True)
    assert "Without a gap, and so not here: magicbrush" in (written / "index.md").read_text()
