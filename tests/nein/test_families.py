"""Families of negation: what is said of which sample, what the target is then, and results by family."""

import json
from pathlib import Path

import pytest

from nein import statistics
from nein.benchmarks.nein import estimates, report, sections
from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.run import NEIN
from nein.datasets import nein as loading
from nein.datasets.nein import Dataset, Sample, hash_records, rephrase_samples
from nein.loading.errors import UserError
from nein.reporting import figures as frames
from nein.statistics import two_way
from nein.wording.families import CELLS, FAMILIES, MINIMAL_PAIRS, OBJECT_STAYS, write_negative
from tests.helpers import commands, runs


def with_families(folder, families):
    rows = json.loads((folder / "val.json").read_text())
    for record, family in zip(rows, families, strict=True):
        record |= {"family": family} if family else {}
    (folder / "val.json").write_text(json.dumps(rows))
    return folder


VALUES = {
    "removal_vqa": {"a": 1.0, "b": 0.0, "c": 1.0, "d": None},
    "l1": {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4},
}

BY_ID = {"a": "plain", "b": "double_negation", "c": "implicit", "d": "implicit"}

SCORES = [
    {"id": key, "metric": metric, "value": value, "reason": "" if value is not None else "no answer"}
    for metric, column in VALUES.items()
    for key, value in column.items()
]

MUST_STAY = " (object must stay: Removal ↓)"

OTHERS, DEPTH = "other things", "denials above"


NAMED = {"object": "cat", "instruction": "No cat."}


def edits(families=BY_ID, levels=None):
    """levels: id -> (other things, denials above)."""
    rows = [{"id": key, "source_id": key, **NAMED, "family": families.get(key)} for key in "abcd"]
    for row in rows:
        row |= {"stays": True} if row["family"] == "double_negation" else {}
        row |= {"difficulty": dict(zip((OTHERS, DEPTH), levels[row["id"]], strict=True))} if levels else {}
    return rows


def figures_of(edits, scores=SCORES):
    return estimates.make_estimates(runs.table(edits, scores), {})


def values_of(frame, *columns, **where):
    rows = frames.records(frames.select(frame, **where))
    return [tuple(row[name] for name in columns) for row in rows]


def test_a_removal_that_should_not_be_is_left_out_of_the_whole():
    third = pytest.approx(2 / 3)
    for families, removal in ((BY_ID, (1.0, 2, 1)), ({}, (third, 3, 1))):
        found = values_of(figures_of(edits(families)), "metric", "value", "n", "unscored", task="results")
        assert found == [("l1", 0.25, 4, 0), ("removal_vqa", *removal)]


def test_every_family_has_its_own_figures_unscored_samples_counted():
    found = frames.select(figures_of(edits()), task="families")
    assert frames.list_entries(found, "group") == ["plain", f"double_negation{MUST_STAY}", "implicit"]
    rows = values_of(found, "group", "metric", "value", "n", "unscored")
    assert (f"double_negation{MUST_STAY}", "removal_vqa", 0.0, 1, 0) in rows
    assert ("implicit", "removal_vqa", 1.0, 1, 1) in rows
    assert ("implicit", "l1", pytest.approx(0.35), 2, 0) in rows
    assert values_of(figures_of(edits({})), "group", task="families") == []


def test_a_family_is_read_hashed_and_turns_the_target_round(make_data):
    plain = loading.load(str(make_data(2, 1)))
    folder = with_families(make_data(2, 1, name="other"), ["double_negation", "implicit"])
    found = loading.load(str(folder))
    first, second = found.samples
    assert [(s.family, s.stays) for s in found.samples] == [("double_negation", True), ("implicit", False)]
    assert first.source_path == first.sample_path
    assert second.source_path != second.sample_path
    assert found.records_sha256 != plain.records_sha256 == hash_records(plain.samples)
    assert plain.samples[0].family is None
    with pytest.raises(UserError, match=r"family 'implict'; did you mean 'implicit'"):
        loading.load(str(with_families(make_data(2, 1), ["implicit", "implict"])))


def test_edits_have_a_figure_for_every_difficulty_by_family_and_of_all_together():
    frame = figures_of(edits(levels={"a": (0, 0), "b": (0, 0), "c": (0, 0), "d": (2, 1)}))
    made = values_of(frame, "group", "axis", "level", "value", task="difficulty", metric="l1")
    assert made == [
        (group, axis, level, pytest.approx(value))
        for group, axis, level, value in (
            ("all families", OTHERS, "0", 0.2), ("plain", OTHERS, "0", 0.1),
            ("double_negation", OTHERS, "0", 0.2), ("implicit", OTHERS, "0", 0.3),
            ("all families", DEPTH, "0", 0.2), ("all families", DEPTH, "1", 0.4), ("plain", DEPTH, "0", 0.1),
            ("double_negation", DEPTH, "0", 0.2), ("implicit", DEPTH, "0", 0.3),
            ("implicit", DEPTH, "1", 0.4),
        )
    ]  # fmt: skip
    assert values_of(figures_of(edits()), "group", task="difficulty") == []
    # Removal is that of objects that must go.
    same = figures_of(edits(levels=dict.fromkeys("abcd", (0, 0))))
    rows = values_of(
        same, "group", "value", "n", "unscored", task="difficulty", metric="removal_vqa", axis=DEPTH
    )
    assert [group for group, *_ in rows] == ["all families", "plain", "implicit"]
    assert rows[0] == ("all families", 1.0, 2, 1)


def test_below_a_denial_a_family_has_figures_of_its_own():
    levels = {"a": (0, 0), "b": (0, 1), "c": (0, 0), "d": (0, 1)}
    rows = edits(dict.fromkeys("abcd", "neither_nor"), levels)
    rows[3]["stays"] = True
    assert values_of(figures_of(rows), "group", "n", task="families", metric="l1") == [
        ("neither_nor", 2), ("neither_nor below a denial", 1), (f"neither_nor below a denial{MUST_STAY}", 1),
    ]  # fmt: skip


def sample(number, noun, source="s", caption="A cat sleeps.", template=0, family=None):
    return Sample(
        f"n{number}", source, caption, write_negative(template, noun), f"Add a {noun}.", noun, template,
        Path(f"{source}.png"), Path(f"n{number}.png"), family,
    )  # fmt: skip


def dataset(*samples):
    return Dataset(samples, {"kind": "folder"})


def test_a_sample_becomes_four_with_the_picture_and_the_target_that_the_sentence_says():
    given = sample(1, "owl", "s1", template=8), sample(2, "owl", "s2", family="double_negation")
    made = rephrase_samples(dataset(*given), [MINIMAL_PAIRS])
    found = [(s.id, s.family, s.negative, s.sample_path.stem, s.source_path.stem) for s in made.samples]
    assert found == [
        ("n1_affirmed_there", "affirmed, there", "The image has an owl.", "n1", "n1"),
        ("n1_affirmed_absent", "affirmed, absent", "The image has an owl.", "s1", "n1"),
        ("n1_denied_there", "denied, there", "The image lacks owl.", "n1", "s1"),
        ("n1_denied_absent", "denied, absent", "The image lacks owl.", "s1", "s1"),
    ]
    assert {one.source_id for one in made.samples} == {"s1"}
    assert made.origin["not said"] == 1


#: An editor -> whether the object is there afterwards, by (affirmed, there); its parts; share of four obeyed.
EDITORS = {
    "obeys": (lambda affirmed, there: affirmed, (1, -1, 0), 1.0),
    "does nothing": (lambda affirmed, there: there, (0, 0, 0), 0.0),
    "removes": (lambda affirmed, there: False, (0, -1, 0), 0.0),
    "adds": (lambda affirmed, there: True, (0, -1, 0), 0.0),
    "removes what is denied": (lambda affirmed, there: there and affirmed, (0.5, -0.5, 0.5), 0.0),
}


def measured(rule, count=5, lost="", before=lambda n, there: there):
    edits, scores = [], []
    for number in range(count):
        for label, (caption, picture) in CELLS.items():
            name = f"n{number}_{label.replace(', ', '_')}"
            edits.append({"id": name, "source_id": f"s{number}", **NAMED, "family": label})
            gone = None if name == lost else 1.0 - float(rule(caption == 0, picture == 0))
            detail = {"present_before": before(number, picture == 0)}
            row = {"id": name, "metric": "removal_vqa", "value": gone, "reason": "", "detail": detail}
            scores.append(row)
    return estimates.make_estimates(runs.table(edits, scores), {})


def pick(frame, statistic, group=None):
    where = {"group": group} if group else {}
    return frames.pick(frame, task="minimal_pairs", metric="removal_vqa", statistic=statistic, **where)


def parts(frame):
    return [pick(frame, "part", part)["value"] for part in two_way.PARTS]


@pytest.mark.parametrize("name", EDITORS)
def test_an_editor_of_one_kind_has_the_parts_that_theory_demands(name):
    rule, expected, obeyed = EDITORS[name]
    frame = measured(rule)
    by_name = dict(zip(("text", "picture", "interaction"), expected, strict=True))
    assert parts(frame) == pytest.approx([by_name[part] for part in two_way.PARTS])
    for part in two_way.PARTS:
        assert pick(frame, "part", part)["low"] <= by_name[part] <= pick(frame, "part", part)["high"]
    ends = statistics.bounded_mean([by_name["picture"]] * 5, range(5), -2, 2)  # changes are from -1 to 1
    assert [pick(frame, "part", "picture")[end] for end in ("low", "high")] == [ends.low, ends.high]
    four = pick(frame, "obeyed", "all four")
    assert (four["value"], four["n"]) == (obeyed, 5)
    assert pick(frame, "change", "denied, there")["value"] == float(rule(False, True)) - 1
    removal = frames.pick(frame, task="results", metric="removal_vqa")  # of the cell "denied, there" alone
    assert (removal["value"], removal["n"]) == (1.0 - float(rule(False, True)), 5)


def test_a_pair_without_a_verdict_before_or_after_is_unscored():
    frame = measured(EDITORS["obeys"][0], lost="n2_denied_absent")
    unseen = measured(EDITORS["obeys"][0], before=lambda number, there: None if number == 1 else there)
    for figure in (pick(frame, "part", "text"), pick(unseen, "change", "denied, there")):
        assert (figure["n"], figure["unscored"]) == (4, 1)


def test_what_is_seen_before_decides_the_picture_part_alone():
    """Of an editor that does nothing a judge that errs alike before and after sees no change."""
    missed = measured(lambda affirmed, there: False, count=1, before=lambda number, there: False)
    assert (parts(missed), pick(missed, "agrees")["value"]) == ([0, 0, 0], 0.5)
    sure = measured(EDITORS["obeys"][0])
    erring = measured(EDITORS["obeys"][0], before=lambda number, there: there and number > 1)
    for part, values in {"text": (1, 1), "picture": (-1, -0.6), "interaction": (0, 0)}.items():
        assert [pick(f, "part", part)["value"] for f in (sure, erring)] == pytest.approx(values)
    assert [pick(f, "agrees")["value"] for f in (sure, erring)] == pytest.approx([1.0, 0.8])


def test_the_whole_command_measures_what_a_judge_says_that_sees_everything(make_data, tmp_path):
    out = tmp_path / "out"
    code = commands.exit_code(
        "eval", "--editor", "identity", "--families", MINIMAL_PAIRS, "--data", make_data(3, 1),
        "--metrics", "removal_vqa", "--models.vqa", "tests.rehearsal:yes", "--device", "cpu",
        "--out", out,
    )  # fmt: skip
    assert code == 0
    [run] = (out / "identity").iterdir()  # one track
    frame = frames.read(run / "figures.csv")
    assert parts(frame) == [0, 0, 0]  # it sees everything before as well
    assert (pick(frame, "part", "text")["n"], pick(frame, "agrees")["value"]) == (3, 0.5)
    table = sections.make_minimal_pairs().tables[0].sheet(frames.with_columns(frame, model="identity"))
    assert {"denied, absent (change)", "text part", "judge right before %"} <= set(table.columns)
    loaded = of_runs.load_complete([out])
    for card in report.make_cards(loaded, {}, loaded[0].metrics, 0):
        [[metric, number, reason, said]] = card.said[0].rows
        [[value]] = card.values  # of one run by one metric
        assert value == (0 if card.facets["Family"] == ["denied, there"] else "no removal asked")
        assert (metric, number, reason) == (0, 0.0, "the judge answered 'Yes'")
        assert said["before"]


HARDER = [label for label in FAMILIES if label != "plain"]

DATA = dataset(sample(1, "dog"), sample(2, "cup"), sample(3, "cat", "t", "A dog on a sofa."))


@pytest.mark.parametrize("label", HARDER)
def test_a_family_is_said_with_what_the_data_know(label):
    said = {one.id: one for one in rephrase_samples(DATA, [label]).samples}
    # Of "n3" nothing else is known to be absent; its caption names a dog.
    assert set(said) == ({"n1", "n2"} if FAMILIES[label].needs == "T" else {"n1", "n2", "n3"})
    for one in said.values():
        assert one.object in one.negative.lower()
        assert (one.family, one.template) == (label, None)
        assert one.source_path == (one.sample_path if label in OBJECT_STAYS else Path(f"{one.source_id}.png"))
    named = {"T": ("cup", "dog"), "A": ("cat", "cat")}.get(FAMILIES[label].needs, ("", ""))
    assert all(name in said[i].negative for name, i in zip(named, ("n1", "n2"), strict=True))


def test_the_sentence_belongs_to_the_sample_and_not_to_its_company():
    whole = {one.id: one.negative for one in rephrase_samples(DATA, HARDER).samples}
    two = {one.id: one.negative for one in rephrase_samples(dataset(*DATA.samples[:2]), HARDER).samples}
    assert two.keys() < whole.keys()
    assert rephrase_samples(DATA, HARDER).records_sha256 != DATA.records_sha256
    assert rephrase_samples(DATA, HARDER) == rephrase_samples(DATA, HARDER)
    assert rephrase_samples(DATA, ["neither_nor"]).origin["not said"] == 1


@pytest.mark.parametrize(("samples", "families", "said"), [
    ([sample(1, "dog", caption="A street.")], ["neither_nor"], "No sentence of neither_nor fits"),
    ([sample(1, "dog")], ["sarcasm"], "family of negation"),
    ([sample(1, "dog")], ["not_all"], "'not_all' names a color"),
    ([sample(1, "dog")], [MINIMAL_PAIRS, "implicit"], "minimal_pairs excludes all other"),
    ([sample(1, "owl", family="double_negation")], [MINIMAL_PAIRS], "a sentence that only denies its object"),
])  # fmt: skip
def test_families_that_cannot_be_said_are_a_sentence(samples, families, said):
    with pytest.raises(UserError, match=said):
        rephrase_samples(dataset(*samples), families)


def test_an_evaluation_in_families_is_another_run_that_can_be_read_again(tmp_path):
    words = "--editor identity --families implicit,double_negation --metrics l1 --limit 4 --device cpu --out"
    run, *_ = NEIN.runs(EvalConfig.parse([*words.split(), str(tmp_path / "run")]), "cpu")
    origin = json.loads(json.dumps(run.facts["data"]))
    assert {one.family for one in loading.reload(origin).samples} == {"implicit", "double_negation"}
    assert loading.reload(origin).records_sha256 == origin["records_sha256"]
    assert loading.reload(origin, "nano").records_sha256 == origin["records_sha256"]
