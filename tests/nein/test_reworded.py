"""NeIn's own pictures under harder negation: what is said of which sample, and what the target is then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nein.benchmarks.nein import evaluate
from nein.benchmarks.nein.config import EvalConfig
from nein.datasets.nein import loading
from nein.datasets.nein.families import in_families
from nein.datasets.nein.samples import Dataset, Sample, records_hash
from nein.engine.errors import UserError
from nein.wording.families import FAMILIES, STAYS

HARDER = [label for label in FAMILIES if label != "plain"]


def sample(number, noun, source="s", caption="A cat sleeps."):
    return Sample(
        f"n{number}", source, caption, f"The image doesn't have any {noun}.", f"Add a {noun}.", noun, 0,
        Path(f"{source}.png"), Path(f"n{number}.png"),
    )  # fmt: skip


def dataset(*samples):
    return Dataset(samples, {"kind": "folder"}, records_hash(samples))


DATA = dataset(sample(1, "dog"), sample(2, "cup"), sample(3, "cat", "t", "A dog on a sofa."))


@pytest.mark.parametrize("label", HARDER)
def test_a_family_is_said_with_what_the_data_know(label):
    said = {one.id: one for one in in_families(DATA, [label]).samples}
    # Of "n3" nothing else is known to be absent; its caption names a dog.
    assert set(said) == ({"n1", "n2"} if FAMILIES[label].needs == "T" else {"n1", "n2", "n3"})
    for one in said.values():
        assert one.object in one.negative.lower()
        assert (one.family, one.template) == (label, None)
        assert one.source_path == (one.sample_path if label in STAYS else Path(f"{one.source_id}.png"))
    named = {"T": ("cup", "dog"), "A": ("cat", "cat")}.get(FAMILIES[label].needs, ("", ""))
    assert all(name in said[i].negative for name, i in zip(named, ("n1", "n2"), strict=True))


def test_the_sentence_belongs_to_the_sample_and_not_to_its_company():
    whole = {one.id: one.negative for one in in_families(DATA, HARDER).samples}
    two = {one.id: one.negative for one in in_families(dataset(*DATA.samples[:2]), HARDER).samples}
    assert two.keys() < whole.keys()
    assert in_families(DATA, HARDER).records_sha256 != DATA.records_sha256
    assert in_families(DATA, HARDER) == in_families(DATA, HARDER)


def test_samples_of_which_nothing_can_be_said_are_counted():
    assert in_families(DATA, ["neither_nor"]).origin["not said"] == 1
    alone = dataset(sample(1, "dog", caption="A street."))
    with pytest.raises(UserError, match="No sentence of neither_nor can be said of any sample"):
        in_families(alone, ["neither_nor"])
    with pytest.raises(UserError, match="family of negation"):
        in_families(DATA, ["sarcasm"])
    with pytest.raises(UserError, match="'not_all' names a colour"):
        in_families(DATA, ["not_all"])


def test_an_evaluation_in_families_is_another_run_that_can_be_read_again(tmp_path):
    words = [
        "--editor",
        "identity",
        "--families",
        "implicit,double_negation",
        "--metrics",
        "l1",
        "--limit",
        "4",
    ]
    options = EvalConfig.parse([*words, "--device", "cpu", "--out", str(tmp_path / "run")])
    plan = evaluate.load_plan(options)
    assert {one.family for one in plan.dataset.samples} == {"implicit", "double_negation"}
    origin = json.loads(json.dumps(plan.dataset.origin))
    assert loading.reload(origin).records_sha256 == plan.dataset.records_sha256
    assert loading.reload(origin, "nano").records_sha256 == plan.dataset.records_sha256
