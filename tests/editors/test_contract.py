"""What every editor owes: order, reproducibility, isolation of a bad sample, and no side effects."""

import importlib
import inspect
import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from nein.editors import PRESETS, get_editor
from nein.editors.presets import BASIC
from nein.editors.runtime import RuntimeOptions
from tests.editors import tiny_pipelines

ROWS = [*BASIC.values(), *PRESETS.values()]


def row_of(place):
    """The first row of a class whose models, if it has any, are all embedded or can be built tiny."""
    for row in (row for row in ROWS if row.place == place):
        models = [row.checkpoint or "", *row.models.values()] if row.needs_checkpoint else []
        if row.pipeline in tiny_pipelines.BUILDERS or all(model.startswith("nano:") for model in models):
            return row
    raise AssertionError(f"the contract needs a row of {place} with embedded models (nano:NAME)")


CLASSES = [row_of(place) for place in sorted({row.place for row in ROWS})]


@pytest.fixture(scope="module", params=CLASSES, ids=lambda row: row.name)
def build(request, tmp_path_factory):
    """An editor of every class, from the table alone: small, whatever the row says about size and steps."""
    row = request.param
    small = {name: value for name, value in {"steps": 2, "resolution": 64}.items() if name in row.values}
    if row.pipeline:
        small["checkpoint"] = str(tiny_pipelines.save(row.pipeline, tmp_path_factory.mktemp(row.name)))

    def make(**options):
        return get_editor(row.name, **small, **{"batch_size": 8, **options})

    # Editors that cut masks at thresholds: there, a last bit may decide over a whole pixel, of few.
    make.thresholded = "maps" in row.can
    return make


@pytest.fixture(scope="module")
def editor(build):
    """One for all tests that a past of its own would not help; that it has none, others test."""
    return build()


def check_close(build, one, other):
    """Equal to one level in every pixel; with masks, in all pixels but one in a hundred."""
    apart = np.abs(np.asarray(one).astype(int) - np.asarray(other)).max(-1) > 1
    assert apart.mean() <= (0.01 if build.thresholded else 0)


def images(results):
    assert [result.error for result in results] == [None] * len(results)
    return np.stack([result.image for result in results])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_option_of_a_row_is_a_parameter_of_its_class(row):
    module, _, name = row.place.partition(":")
    module = importlib.import_module(module)
    settings = getattr(module, "Settings", RuntimeOptions)
    taken = {*inspect.signature(getattr(module, name)).parameters}
    taken |= {*settings.__dataclass_fields__, *RuntimeOptions.__dataclass_fields__}
    assert set(row.values) <= taken
    assert set(row.layouts) <= set(row.values)


def test_results_come_in_request_order_with_their_ids_and_are_the_same_bytes_again(build, requests_of):
    requests = requests_of(3)[::-1]
    editor = build()
    description = json.loads(json.dumps(editor.describe()))
    assert description["editor"] == editor.name
    assert description["class"]
    assert editor.fingerprint == build().fingerprint
    results = editor.edit(requests)
    assert [result.id for result in results] == ["s2", "s1", "s0"]
    assert [(result.image.dtype, result.image.shape) for result in results] == [(np.uint8, (64, 64, 3))] * 3
    np.testing.assert_array_equal(images(results), images(editor.edit(requests)))
    np.testing.assert_array_equal(images(results), images(build().edit(requests)))


def test_batch_size_and_order_change_a_picture_by_at_most_one_level(build, requests_of):
    requests = requests_of(5)
    together = images(build(batch_size=8).edit(requests))
    check_close(build, together, images(build(batch_size=1).edit(requests)))
    order = [4, 2, 0, 3, 1]
    check_close(build, together[order], images(build(batch_size=8).edit([requests[i] for i in order])))


def test_several_threads_edit_as_one_would(build, requests_of):
    requests = requests_of(4)
    expected = images([build(batch_size=1).edit([request])[0] for request in requests])
    editor = build(batch_size=1)
    with ThreadPoolExecutor(4) as pool:
        found = images(list(pool.map(lambda request: editor.edit([request])[0], requests)))
    check_close(build, expected, found)


def test_the_input_is_not_modified_nor_aliased(editor, requests_of):
    requests = requests_of(2)
    before = [request.image.copy() for request in requests]
    for request in requests:
        request.image.setflags(write=False)
    results = editor.edit(requests)
    for result, request, copy in zip(results, requests, before, strict=True):
        assert not np.shares_memory(result.image, request.image)
        result.image[:] = 0
        np.testing.assert_array_equal(request.image, copy)


def test_global_random_states_are_untouched_by_building_and_editing(build, requests_of):
    torch.manual_seed(5)
    legacy = np.random.get_state()[1].copy()  # noqa: NPY002 - the global state is the thing under test
    python, tensor = random.getstate(), torch.get_rng_state()
    build().edit(requests_of(2))
    assert random.getstate() == python
    assert torch.equal(torch.get_rng_state(), tensor)
    np.testing.assert_array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002


BAD = {
    "a grey picture": ({"image": np.zeros((64, 64), np.uint8)}, "(64, 64)"),
    "a float picture": ({"image": np.zeros((64, 64, 3), np.float32)}, "float32"),
    "a channels-first picture": ({"image": np.zeros((3, 64, 64), np.uint8)}, "(3, 64, 64)"),
    "an empty picture": ({"image": np.zeros((0, 64, 3), np.uint8)}, "(0, 64, 3)"),
    "no picture": ({"image": None}, "NoneType"),
    "an empty instruction": ({"instruction": "  "}, "instruction"),
    "no instruction": ({"instruction": None}, "instruction"),
    "a negative seed": ({"seed": -1}, "-1"),
    "a seed of 64 bits": ({"seed": 2**63}, "9223372036854775808"),
}


def test_every_bad_sample_yields_an_error_of_its_own_and_the_rest_succeed(build, editor, requests_of):
    first, last = requests_of(2)
    bad = [replace(first, id=case, **change) for case, (change, _) in BAD.items()]
    results = editor.edit([first, *bad, last])
    assert [result.id for result in results] == ["s0", *BAD, "s1"]
    for result in results[1:-1]:
        assert result.image is None
        assert BAD[result.id][1] in result.error
    good = editor.edit([first, last])
    check_close(build, results[0].image, good[0].image)
    check_close(build, results[-1].image, good[1].image)
