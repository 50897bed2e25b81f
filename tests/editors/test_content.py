import functools

import numpy as np
import pytest
import torch

from nein.editors import as_editor
from nein.editors.function import content_of

MODEL = torch.nn.Linear(2, 2)
STRENGTH = 1


def closing_over(held):
    def edit(image, instruction):
        return image if held is None else held

    return edit


class Editing:
    def __init__(self, held):
        self.held = held

    def edit(self, image, instruction):
        return self.held

    def __call__(self, image, instruction):
        return self.held


def linear(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Linear(2, 2)


WAYS = {
    "closure": closing_over,
    "default": lambda held: lambda image, instruction, what=held: what,
    "keyword": lambda held: lambda image, instruction, *, what=held: what,
    "partial": lambda held: functools.partial(lambda held, image, instruction: held, held),
    "function": lambda held: (lambda inner: lambda image, instruction: inner(image, instruction))(
        closing_over(held)
    ),
    "method": lambda held: Editing(held).edit,
    "object": Editing,
}
HELD = [
    linear,
    lambda seed: linear(seed).weight,
    lambda seed: np.arange(seed, seed + 3),
    lambda seed: 0.5 + seed,
    lambda seed: (1, ("a", seed)),
    lambda seed: frozenset({"a", str(seed)}),
    lambda seed: [linear(seed)],
    lambda seed: {"model": linear(seed)},
    lambda seed: Editing(linear(seed)),
]


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_what_a_function_holds_tells_it_from_another(way, held):
    assert content_of(way(held(0))).sha256 == content_of(way(held(0))).sha256
    assert content_of(way(held(0))).sha256 != content_of(way(held(1))).sha256
    assert as_editor(way(held(0))).fingerprint != as_editor(way(held(1))).fingerprint


def test_a_global_counts_that_the_function_names(monkeypatch):
    def edit(image, instruction):
        return [MODEL(image) for _ in range(STRENGTH)]

    before = content_of(edit)
    assert before.by_type == ()
    monkeypatch.setitem(globals(), "STRENGTH", 2)
    other = content_of(edit)
    monkeypatch.setitem(globals(), "MODEL", linear(3))
    assert len({before, other, content_of(edit)}) == 3
    monkeypatch.setitem(globals(), "WAYS", [])
    assert content_of(edit) == content_of(edit)


def test_what_is_known_by_its_type_alone_is_said():
    calls = []
    editor = as_editor(closing_over(calls))
    before = editor.fingerprint
    calls.append(1)  # a call may do that
    assert as_editor(closing_over(calls)).fingerprint == before == editor.fingerprint
    assert editor.describe()["by_type"] == ["builtins.list"]
    assert "by_type" not in as_editor(closing_over(linear(0))).describe()


class WithState(torch.nn.Linear):
    def get_extra_state(self):
        return {"calls": 1}


@pytest.mark.parametrize(
    "held", [torch.nn.Linear(2, 2, device="meta"), torch.empty(2, device="meta"), WithState(2, 2)]
)
def test_weights_that_cannot_be_read_are_known_by_their_type(held):
    content = content_of(closing_over(held))
    assert content == content_of(closing_over(held))
    assert content.by_type == (f"{type(held).__module__}.{type(held).__qualname__}",)
