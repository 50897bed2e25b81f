"""Human preferences: the published formats, and judges of edits measured against them."""

import json

import numpy as np
import pytest

from nein.datasets import preferences
from nein.engine.errors import UserError
from nein.engine.images import decode, write_png
from nein.judges import known
from nein.judges import preferences as asked
from nein.metrics import Score
from nein.models import rewards
from nein.nano import data as nano_data
from nein.reporting import figures as frames
from tests.helpers import commands

SIZE = (16, 16, 3)
BETTER, WORSE, SOURCE = 200, 40, 100  # grey levels


@pytest.fixture
def folder(tmp_path):
    for place, grey in {"good": BETTER, "same": BETTER, "bad": WORSE, "input": SOURCE}.items():
        for key in "xyz":
            level = grey + "xyz".index(key)
            write_png(tmp_path / place / f"{key}.png", np.full(SIZE, level, np.uint8))
    return tmp_path


def row(kind, key, first, told="Remove the cat."):
    """A record of a published format in which people prefer the good edit, or (first: None) neither."""
    good, bad, source = f"good/{key}.png", f"bad/{key}.png", f"input/{key}.png"
    one, other = (good, bad) if first in (True, None) else (bad, good)
    vote = {True: 0, False: 1, None: 2}[first]
    if kind == "tiger":
        return {"id": f"{key}_1", "instruction": told, "source_image": source, "candidate_1": one,
                "candidate_2": other, "comparison_type": "BvsD",
                "ranking": ("B>D", "D>B", "B=D")[vote]}  # fmt: skip
    if kind == "editscore":
        return {"key": [key, key], "instruction": told, "input_image": source, "output_images": [good, bad],
                "dimension": "consistency"}  # fmt: skip
    if kind == "gedit":
        far = "s3://somewhere/else"
        return {"key": key, "instruction": told, "source_image_path": f"{far}/{source}",
                "edited_image_paths": [f"{far}/{one}", f"{far}/{other}"],
                "winner": ("Image A", "Image B", "Tie")[vote]}  # fmt: skip
    if kind == "genai":
        return {"instruct_prompt": told, "source_image": source, "left_output_image": one,
                "right_output_image": other,
                "vote_type": ("leftvote", "rightvote", "bothbad_vote")[vote]}  # fmt: skip
    return {"instruction": told, "source": source, "a": one, "b": other, "winner": ("a", "b", "tie")[vote]}


TITLES = {
    "tiger": "EditReward-Bench (TIGER)", "editscore": "EditReward-Bench (EditScore), consistency",
    "gedit": "GEditBench v2", "genai": "GenAI-Bench", "ours": "preferences",
}  # fmt: skip


@pytest.mark.parametrize("kind", TITLES)
def test_the_preferred_edit_is_found_in_every_published_format(kind, folder):
    file = folder / "set.jsonl"
    rows = [row(kind, "x", True), row(kind, "y", False), row(kind, "z", None)]
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    found, undecided = preferences.load(str(file), folder if kind == "gedit" else None)
    assert (len(found), undecided) == ((3, 0) if kind == "editscore" else (2, 1))
    for key, one in zip("xyz", found, strict=False):
        assert (one.set, one.instruction) == (TITLES[kind], "Remove the cat.")
        levels = [decode(path)[0, 0, 0] for path in (one.source, one.better, one.worse)]
        assert levels == [level + "xyz".index(key) for level in (SOURCE, BETTER, WORSE)]
    assert len({one.cluster for one in found}) == len(found)


def test_pictures_of_a_hub_data_set_lie_in_its_rows_also_in_lists(folder):
    datasets = pytest.importorskip("datasets")
    cell = {
        place: {"bytes": (folder / place / "x.png").read_bytes(), "path": None}
        for place in ("good", "bad", "input")
    }
    rows = [{"key": ["1", "2"], "instruction": "No cat.", "input_image": cell["input"],
             "output_images": [cell["good"], cell["bad"]]}]  # fmt: skip
    picture = datasets.Image()
    features = datasets.Features({
        "key": datasets.Sequence(datasets.Value("string")), "instruction": datasets.Value("string"),
        "input_image": picture, "output_images": datasets.Sequence(picture),
    })  # fmt: skip
    (folder / "hub").mkdir()
    for split in ("train", "test"):
        datasets.Dataset.from_list(rows, features=features).to_parquet(folder / "hub" / f"{split}.parquet")
    assert len(preferences.load(f"hub:{folder / 'hub'}")[0]) == 2
    [one], _ = preferences.load(f"hub:{folder / 'hub'}#/test")
    assert [decode(path)[0, 0, 0] for path in (one.better, one.worse)] == [BETTER, WORSE]
    assert known.preferred(one).sentences == {"negated": "No cat."}


def test_imagenhubs_ratings_become_pairs_of_editors(folder):
    ratings = folder / "ratings"
    ratings.mkdir()
    (folder / "dataset_lookup.json").write_text(json.dumps({"x.png": {"instruction": "no cat"}}))
    for rater, cells in enumerate((("[1, 1]", "[0.5,0.5]"), ("[0.5 , 1]", "[1, 0]")), start=1):
        text = "uid\tgood\tbad\tsame\nx.png\t{}\t{}\t{}\n".format(*cells, cells[0])
        (ratings / f"Text-Guided_IE_rater{rater}.tsv").write_text(text)
    found, undecided = preferences.load(str(ratings), folder)
    assert undecided == 1  # good and same
    assert [(one.better.parent.name, one.worse.parent.name) for one in found][:1] == [("good", "bad")]
    with pytest.raises(UserError, match=r"need --preference-images: the folder with dataset_lookup"):
        preferences.load(str(ratings))


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"winner": "c"}, "record 1: winner is 'c', which names no edit"),
        ({"winner": "tie"}, "no pair of which people prefer one"),
        ({"a": "good/none.png"}, "The picture 'good/none.png' is not below"),
        ({"a": "elsewhere/good/none.png"}, "is not below"),
        (None, "record 1 has x; expected one of: instruction, source_image"),
    ],
)
def test_a_record_that_is_none_is_refused_in_a_sentence(record, sentence, folder):
    file = folder / "set.jsonl"
    file.write_text(json.dumps({**row("ours", "x", True), **record} if record else {"x": 1}) + "\n")
    with pytest.raises(UserError, match=sentence):
        preferences.load(str(file))


class Bright(rewards.RewardJudge):
    """Prefers the brighter edit, unless the sentence denies: then whatever stands first."""

    fingerprint = "bright"

    def describe(self):
        return {"kind": "bright"}

    def score(self, *pictures):
        raise AssertionError("it compares")

    def prefer(self, sources, first, second, instructions):
        return [
            Score(1.0 if "no " in told else float(one.mean() > other.mean()))
            for one, other, told in zip(first, second, instructions, strict=True)
        ]


def test_accuracy_is_split_by_negation_and_a_liking_for_the_first_place_is_no_merit(folder, tmp_path):
    rows = [row("editscore", "x", True)] * 20 + [row("editscore", "y", True, "There is no cat.")] * 40
    file = folder / "set.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))
    pairs = [known.preferred(one) for one in preferences.load(str(file))[0]]
    [rates] = json.loads(asked.calibrate("bright:", Bright(None), pairs, tmp_path / "out").read_text())[
        "sets"
    ].values()
    assert rates["affirmed"]["value"] == 1
    assert 0.25 < rates["negated"]["value"] < 0.75  # always the first: half, although the set has it first
    assert rates["all"]["value"] == pytest.approx((20 + 40 * rates["negated"]["value"]) / 60)
    assert rates["gap"]["value"] == pytest.approx(1 - rates["negated"]["value"])
    assert (rates["all"]["n"], rates["all"]["clusters"]) == (60, 2)


def test_the_command_measures_the_judge_that_chose_and_the_report_shows_it_on_people_and_on_known_truth(
    folder, tmp_path, evaluate, capsys
):
    out, target = tmp_path / "run", tmp_path / "report.html"
    data = nano_data.ensure("val", 6, tmp_path / "six")
    words = ("--metrics", "removal_vqa", "--models.vqa", "tests.rehearsal:no", "--control", "none")
    chosen = ("--editor", "identity", "--mend", "best-of:2:removal", "--data", data, "--limit", 4)
    assert evaluate(*chosen, *words, "--device", "cpu", "--out", out).code == 0
    file = folder / "set.jsonl"
    rows = [
        row("genai", key, True, told) for key in "xyz" for told in ("Remove the cat.", "There is no cat.")
    ]
    file.write_text("".join(json.dumps(one) + "\n" for one in [*rows, row("genai", "x", None)]))
    given = ("--preferences", file, "--device", "cpu")
    assert commands.exit_code("calibrate", out, *given) == 2
    assert "say --judges reward" in capsys.readouterr().err
    assert commands.exit_code("calibrate", out, *given, "--judges", "reward") == 0
    said = capsys.readouterr()
    assert "6 preferences, 1 ties" in said.err
    assert (
        "removal, GenAI-Bench: all 50.0 %" in said.out
    )  # the run's own judge, which says "No" to everything
    given = ("--judges", "reward", "--limit", "4", "--device", "cpu", "--data", data)
    assert commands.exit_code("calibrate", out, *given) == 0  # other sets: the first stays
    assert "removal, unedited: affirmed 50.0 %" in capsys.readouterr().out
    assert commands.exit_code("report", out, "-o", target, "--formats", "html,csv") == 0
    figures = frames.records(frames.read(target.with_suffix(".csv")))
    people = {one["metric"]: one for one in figures if one["task"] == "preferences"}
    assert people["all"]["value"] == people["negated"]["value"] == 0.5
    assert (people["all"]["n"], people["negated"]["n"]) == (6, 3)
    truth = {(one["group"], one["metric"]): one for one in figures if one["task"] == "rewards"}
    assert {family for family, _ in truth} == {"unedited", "other", "along"}
    assert truth["other", "negated"]["value"] == 0.5
    best = {(one["metric"], one["group"]): one["value"] for one in figures if one["task"] == "best-of"}
    sets = ("unedited", "other", "along", "GenAI-Bench")
    assert best == {("removal_vqa", ""): 0, **{("preferred", name): 0.5 for name in sets}}
    for title in ("against human preferences", "on known truth", "The best of several edits, and the judge"):
        assert title in target.read_text()
