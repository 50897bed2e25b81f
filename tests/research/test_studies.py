"""The studies: their search for negation, tables and sentences, and one of them as a whole."""

from collections import Counter

import numpy as np
import pytest

from nein.config.launch import launch
from nein.datasets.nein.samples import load_folder
from nein.engine import errors, images
from nein.nano import data
from nein.nano.scenes import WORLDS
from nein.reporting import figures as frames
from research import generalise, negvqa_nano, nein_nano
from research import negbench_nano as study
from research.nein_nano import nearer


def test_denials_are_found_in_every_spelling_and_nowhere_else():
    found, count = study.search(
        ["There is no cat.", "It isn\u2019t here, WITHOUT a hat", "A knot, a note, another"]
    )
    assert count == 3
    assert found == Counter({"no": 1, "n\u2019t": 1, "without": 1})
    assert "contain negation: 'no' (1)" in study.affirmative(Counter(no=1), 3)
    assert study.affirmative(Counter(), 3).startswith("None of the 3 texts")


def test_the_nano_clip_has_learned_from_affirmative_text_only(monkeypatch):
    from research.nano import vision

    monkeypatch.setattr(vision, "POOL", 300)
    found, count = study.search(study.training_texts())
    assert not found
    assert count > 1500


def figure(recipe, seed, world, value, **about):
    return {"recipe": recipe, "seed": seed, "world": world, "value": value, "unit": "%", "n": 4, **about}


def test_a_cell_is_the_mean_over_seeds_with_the_lowest_and_the_highest(tmp_path):
    choice = study.METRICS["choices right"]
    parts = [
        frames.frame([figure("before", "", "nano:taught", 0.4, **choice)]),
        frames.frame([figure("nano", s, "nano:taught", v, **choice) for s, v in (("0", 0.6), ("1", 0.9))]),
        frames.frame([figure("nano", s, "nano:unlike", v, **choice) for s, v in (("0", 0.1), ("1", 0.2))]),
    ]
    text = generalise.write(tmp_path, "Title", parts, study.METRICS, command="nein x", sentences=["One."])
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "|" in line]
    assert lines[0][3:5] == ["as taught", "wording, objects and style"]
    assert lines[2][1:5] == ["before", "choices right", "40.0", "\u2013"]
    assert lines[3][1:5] == ["nano", "choices right", "75.0 (60.0 to 90.0)", "15.0 (10.0 to 20.0)"]
    assert "seeds 0, 1 " in text
    assert "`nein x`" in text
    assert "- One." in text
    assert (tmp_path / "generalise.md").read_text() == text
    assert len(frames.read(tmp_path / "generalise.csv")) == 5
    assert (tmp_path / "generalise.png").read_bytes().startswith(b"\x89PNG")
    bars = generalise.bars(frames.concat(parts), study.METRICS)
    shown = [(r["recipe"], r["title"], r["value"], r["low"], r["high"]) for r in frames.records(bars)]
    assert shown == [
        ("before", "as taught", 0.4, None, None),
        ("nano", "as taught", pytest.approx(0.75), 0.6, 0.9),
        ("nano", "wording, objects and style", pytest.approx(0.15), 0.1, 0.2),
    ]


@pytest.mark.slow
def test_the_study_writes_its_tables_and_goes_on_where_it_stopped(tmp_path, monkeypatch, capfd):
    from research.nano import vision

    monkeypatch.setattr(vision, "POOL", 50)
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))

    words = ["--seed", "0,1", "--recipe", "nano", "--scenes", "8", "--steps", "2"]
    words += ["--out", str(tmp_path / "out")]

    def run():
        with pytest.raises(SystemExit) as ended:
            errors.exit_with(lambda: launch("python -m research.negbench_nano", study.COMMAND, words))
        out, err = capfd.readouterr()
        assert not ended.value.code, err
        return out

    first = run()
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "study.md", "generalise.md", "generalise.csv", "nano", "evaluation",
    }  # fmt: skip
    assert run().split("\nStudy:")[0] == str(first).split("\nStudy:")[0]


def test_an_edit_counts_where_sample_and_target_differ_and_nowhere_else(tmp_path):
    folder = data.ensure("dev", 3, tmp_path, WORLDS["nano:style"])
    for sample in load_folder(folder, split="dev").samples:
        before, after = images.decode(sample.sample_path), images.decode(sample.source_path)
        assert (nearer(after, sample), nearer(before, sample)) == (1.0, 0.0)
        apart = (before != after).any(-1)
        noisy = np.where(apart[..., None], after, 255 - after)  # all else is ruined, the thing is gone
        assert nearer(noisy.astype(np.uint8), sample) == 1.0
        assert nearer((0.4 * after + 0.6 * before).astype(np.uint8), sample) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "script, words",
    [
        (negvqa_nano, ["--seed", "0", "--scale", "0.001", "--questions", "4"]),
        (nein_nano, ["--seed", "0", "--recipe", "nano", "--samples", "2"]),  # which ships: nothing is trained
    ],
)
def test_the_other_studies_write_their_tables(script, words, tmp_path, monkeypatch):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    script.main([*words, "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "generalise.md").read_text()
    assert "| before " in text
    assert "wording, objects and style" in text
