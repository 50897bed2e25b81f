"""What every editor owes: order, reproducibility, isolation of a bad sample, and no side effects."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from editors import EditRequest, get_editor
from tests.editors import tiny_pipelines

OPTIONS = {
    "identity": {},
    "solid": {"color": "#0a141e"},
    "instruct-pix2pix": {"batch_size": 8},
    "pipeline": {"batch_size": 8, "steps": 2, "resolution": 64},
    "zone": {"batch_size": 8},
}
# Editors that cut masks at thresholds: there, a last bit may decide over a whole pixel, of few.
THRESHOLDED = ("zone",)


@pytest.fixture(scope="module")
def pipeline_folder(tmp_path_factory):
    return tiny_pipelines.save("StableDiffusionXLInstructPix2PixPipeline", tmp_path_factory.mktemp("sdxl"))


@pytest.fixture(params=sorted(OPTIONS))
def build(request, tiny_editor, zone_editor, pipeline_folder):
    name = request.param
    builders = {"instruct-pix2pix": tiny_editor, "zone": zone_editor}

    def make(**options):
        if name in builders:
            return builders[name](**{**OPTIONS[name], **options})
        if name == "pipeline":
            return get_editor(str(pipeline_folder), **{**OPTIONS[name], **options})
        return get_editor(name, **OPTIONS[name])

    make.thresholded = name in THRESHOLDED
    make.name = name
    return make


@pytest.fixture(scope="module")
def built():
    """Kind -> an editor that is there already."""
    return {}


@pytest.fixture
def editor(build, built):
    """One for all tests that a past of its own would not help; that it has none, others test."""
    if build.name not in built:
        built[build.name] = build()
    return built[build.name]


def check_close(build, one, other):
    """Equal to one level in every pixel; with masks, in all pixels but one in a hundred."""
    apart = np.abs(np.asarray(one).astype(int) - np.asarray(other)).max(-1) > 1
    assert apart.mean() <= (0.01 if build.thresholded else 0)


def images(results):
    assert [result.error for result in results] == [None] * len(results)
    return np.stack([result.image for result in results])


def test_every_kind_of_editor_is_under_contract():
    import editors

    assert set(editors._KINDS) == set(OPTIONS)


def test_results_come_in_request_order_with_their_ids_and_are_uint8_rgb(build, editor, requests_of):
    requests = requests_of(5)[::-1]
    results = editor.edit(requests)
    assert [result.id for result in results] == ["s4", "s3", "s2", "s1", "s0"]
    for result in results:
        assert isinstance(result.image, np.ndarray)
        assert result.image.dtype == np.uint8
        assert result.image.shape == (64, 64, 3)
    again = editor.edit([requests[3]])
    check_close(build, results[3].image, again[0].image)


def test_the_same_request_gives_the_same_bytes(build, requests_of):
    requests = requests_of(3)
    editor = build()
    first = images(editor.edit(requests))
    np.testing.assert_array_equal(first, images(editor.edit(requests)))
    np.testing.assert_array_equal(first, images(build().edit(requests)))


def test_batch_size_and_order_change_a_picture_by_at_most_one_level(build, requests_of):
    requests = requests_of(8)
    together = images(build(batch_size=8).edit(requests))
    check_close(build, together, images(build(batch_size=1).edit(requests)))
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    check_close(build, together[order], images(build(batch_size=8).edit([requests[i] for i in order])))


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


def test_no_requests_give_no_results(editor):
    assert editor.edit([]) == []


def test_description_is_json_and_names_the_editor(build, editor):
    description = json.loads(json.dumps(editor.describe()))
    assert description["editor"] == editor.name
    assert description["class"]
    assert len(editor.fingerprint) == 64
    assert editor.fingerprint == build().fingerprint


@pytest.mark.parametrize("seed", [0, 2**63 - 1, np.int64(7)])
def test_any_seed_in_range_is_accepted(seed, editor, requests_of):
    assert editor.edit([replace(requests_of(1)[0], seed=seed)])[0].error is None


def test_a_request_keeps_its_fields():
    with pytest.raises(AttributeError):
        EditRequest("a", np.zeros((1, 1, 3), np.uint8), "x", 0).seed = 1
