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
from tests.editors import tiny_pipelines

ROWS = [*BASIC.values(), *PRESETS.values()]


def row_of(place):
    """The first row of a class whose models, if it has any, are all embedded or can be built tiny."""
    for row in (row for row in ROWS if row.class_path == place):
        models = [row.checkpoint or "", *map(row.settings.get, row.models)] if row.preset else []
        if row.pipeline in tiny_pipelines.BUILDERS or all(model.startswith("nano:") for model in models):
            return row
    raise AssertionError(f"the contract needs a row of {place} with embedded models (nano:NAME)")


CLASSES = [row_of(place) for place in sorted({row.class_path for row in ROWS})]


@pytest.fixture(scope="module", params=CLASSES, ids=lambda row: row.name)
def build(request, tmp_path_factory):
    """An editor of every class, from the table alone: small, whatever the row says about size and steps."""
    row = request.param
    sizes = {"steps": 2, "resolution": 64, "points_per_side": 4}
    small = {name: value for name, value in sizes.items() if name in row.settings}
    if row.pipeline:
        small["checkpoint"] = str(tiny_pipelines.save(row.pipeline, tmp_path_factory.mktemp(row.name)))

    def make():
        return get_editor(row.name, **small)

    # Editors that cut masks at thresholds: there, a last bit may decide over a whole pixel, of few.
    make.thresholded = row.editor == "zone"
    return make


@pytest.fixture(scope="module")
def requests(requests_of):
    """Three, whose pictures cannot be written to."""
    three = requests_of(3)
    for one in three:
        one.image.setflags(write=False)
    return three


def random_states():
    legacy = np.random.get_state()[1].tolist()  # noqa: NPY002 - the global state is the thing under test
    return random.getstate(), torch.get_rng_state().tolist(), legacy


@pytest.fixture(scope="module")
def edited(build, requests):
    """(editor, its pictures of all requests): one batch, which the tests below compare with."""
    torch.manual_seed(5)
    before = random_states()
    editor = build()
    results = editor.edit(requests)
    assert random_states() == before
    assert [result.id for result in results] == ["s0", "s1", "s2"]
    return editor, images(results)


def check_close(build, one, other):
    """Equal to one level in every pixel; with masks, in all pixels but one in a hundred."""
    apart = np.abs(np.asarray(one).astype(int) - np.asarray(other)).max(-1) > 1
    assert apart.mean() <= (0.01 if build.thresholded else 0)


def images(results):
    assert [result.error for result in results] == [None] * len(results)
    assert {(result.image.dtype.name, result.image.shape) for result in results} == {("uint8", (64, 64, 3))}
    return np.stack([result.image for result in results])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_option_of_a_row_is_a_parameter_of_its_class(row):
    module, _, name = row.class_path.partition(":")
    module = importlib.import_module(module)
    kinds = getattr(module, name).__mro__
    taken = {option for kind in kinds for option in inspect.signature(kind.__init__).parameters}
    taken |= {*getattr(getattr(module, "Settings", None), "__dataclass_fields__", ())}
    assert set(row.settings) <= taken
    assert set(row.models) <= set(row.settings)


def test_another_editor_of_the_kind_gives_the_same_bytes_and_neither_changes_the_input(
    build, edited, requests, requests_of
):
    editor, pictures = edited
    description = json.loads(json.dumps(editor.describe()))
    assert description["editor"] == editor.name
    assert description["class"]
    again = build()
    assert again.fingerprint == editor.fingerprint
    results = again.edit(requests)
    np.testing.assert_array_equal(images(results), pictures)
    for result, request, untouched in zip(results, requests, requests_of(3), strict=True):
        assert not np.shares_memory(result.image, request.image)
        np.testing.assert_array_equal(request.image, untouched.image)


def test_a_picture_alone_in_any_order_in_several_threads_is_the_one_of_a_batch(build, edited, requests):
    editor, pictures = edited
    with ThreadPoolExecutor(4) as pool:
        found = images(list(pool.map(lambda request: editor.edit([request])[0], requests[::-1])))
    check_close(build, pictures[::-1], found)


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


def test_every_bad_sample_yields_an_error_of_its_own_and_the_rest_succeed(build, edited, requests):
    editor, pictures = edited
    first, _, last = requests
    bad = [replace(first, id=case, **change) for case, (change, _) in BAD.items()]
    results = editor.edit([first, *bad, last])
    assert [result.id for result in results] == ["s0", *BAD, "s2"]
    for result in results[1:-1]:
        assert result.image is None
        assert BAD[result.id][1] in result.error
    check_close(build, pictures[[0, -1]], images([results[0], results[-1]]))
