"""The coverage study in small: the tables it prints, and that it tells a good interval from a bad one."""

from research import coverage


def test_every_kind_of_figure_has_a_row_per_method(capsys):
    coverage.main(["--repeats", "2", "--n", "24"])
    text = capsys.readouterr().out
    for kind in coverage.KINDS.values():
        assert f"### {kind.title}" in text
    assert text.count("| ours") == len(coverage.KINDS)
    assert "### FID" in text


def test_single_verdicts_are_held_and_a_bootstrap_of_eight_pictures_is_not():
    rows = coverage.study("shares", [8], 60, 0).splitlines()
    lowest = {cells[1].strip(): float(cells[2]) for row in rows[4:] if (cells := row.split("|"))}
    assert lowest["ours"] > 80 > 60 > lowest["bootstrap"]
