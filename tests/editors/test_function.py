from __future__ import annotations

import asyncio
import base64
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nein.editors import EditorError, EditRequest, Refused, make_editor
from nein.editors.function import is_transient
from nein.loading.service import Pace, encode_png


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Waits are noted, and take no time."""
    waits = []
    monkeypatch.setattr(Pace, "wait", lambda self, seconds: waits.append(2 * seconds) if seconds else None)
    return waits


def of_status(status, **headers):
    error = RuntimeError(f"HTTP {status}")
    error.response = SimpleNamespace(status_code=status, headers=headers)
    return error


class RateLimitError(Exception):
    status_code = 429


def requests_of(count):
    image = np.zeros((4, 4, 3), np.uint8)
    return [EditRequest(f"s{k}", image + k, f"Remove {k}.", seed=100 + k) for k in range(count)]


@pytest.mark.parametrize("kind", ["function", "async", "object with async call"])
def test_calls_go_side_by_side_and_pictures_keep_their_order_and_seeds(kind):
    gate, loops = threading.Barrier(4), set()

    def edit(image, instruction, seed):
        gate.wait(10)
        return np.asarray(image) + np.uint8(seed)

    async def edit_async(image, instruction, seed):
        loops.add(asyncio.get_running_loop())
        together.append(seed)
        while len(together) < 4:
            await asyncio.sleep(0.001)
        return np.asarray(image) + np.uint8(seed)

    class Client:
        async def __call__(self, image, instruction, seed):
            return await edit_async(image, instruction, seed)

    together = []
    made = {"function": edit, "async": edit_async, "object with async call": Client()}[kind]
    editor = make_editor(made, name="edit", concurrency=4)
    results = editor.edit(requests_of(8))
    assert [result.id for result in results] == [f"s{k}" for k in range(8)]
    assert [int(result.image[0, 0, 0]) for result in results] == [100 + 2 * k for k in range(8)]
    assert len(loops) == (kind != "function")
    assert editor.fingerprint == make_editor(made, name="edit").fingerprint


@pytest.mark.parametrize(
    "error, again",
    [
        (TimeoutError(), True), (ConnectionResetError(), True), (asyncio.TimeoutError(), True),
        (of_status(429), True), (of_status(503), True), (RateLimitError(), True),
        (of_status(400), False), (ValueError("no"), False), (KeyError("x"), False), (SystemError(7), False),
    ],
)  # fmt: skip
def test_what_a_service_raises_for_a_while_is_tried_again(error, again, quick):
    failures = [error, error]

    def edit(image, instruction):
        if failures and instruction == "Remove 1.":
            raise failures.pop()
        return image

    assert is_transient(error) == again
    fine, other = make_editor(edit, retries=1).edit(requests_of(2))
    assert fine.image is not None
    assert other.image is None
    assert other.transient == again
    assert len(failures) == (0 if again else 1)
    assert quick == ([1] if again else [])
    if again:
        failures[:] = [error]
        assert all(result.image is not None for result in make_editor(edit, retries=1).edit(requests_of(2)))


def test_a_refusal_is_told_apart_and_a_function_that_always_fails_ends_the_command():
    def refuses(image, instruction):
        raise Refused("violence")

    [result] = make_editor(refuses).edit(requests_of(1))
    assert (result.refused, result.error) == (True, "violence")

    def fails(image, instruction):
        raise ConnectionError("down")

    with pytest.raises(EditorError, match="'fails' has made no image so far: fails raised"):
        make_editor(fails, retries=0, concurrency=2).edit(requests_of(3))


def test_other_options_of_a_function_are_refused():
    with pytest.raises(EditorError, match="its options are concurrency and retries; omit steps"):
        make_editor(lambda image, instruction: image, steps=3)
    with pytest.raises(EditorError, match="concurrency is 0"):
        make_editor(lambda image, instruction: image, concurrency=0)


PAGE = Path(__file__).resolve().parents[2] / "docs/howto/editors.md"


@pytest.fixture
def example(monkeypatch, server):
    """The function of an example, whose service is the stand-in."""

    def load(name):
        for variable in ("GEMINI_API_KEY", "BFL_API_KEY"):
            monkeypatch.setenv(variable, "key")
        [code] = re.findall(rf'^```python title="{name}"\n(.*?)^```$', PAGE.read_text(), re.M | re.S)
        names = {}
        exec(re.sub(r'"https://[^/]+', f'"{server.url}', code), names)  # noqa: S102 - of our own page
        return make_editor(names["edit"], concurrency=2)

    return load


def encoded(colour):
    return base64.b64encode(encode_png(np.full((4, 4, 3), colour, np.uint8))).decode()


def test_geminis_own_api_by_the_example_of_the_page(example, server):
    def rule(body, count):
        if "1" in body["contents"][0]["parts"][0]["text"]:
            return 200, {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}, {}
        parts = [{"text": "Here."}, {"inlineData": {"mimeType": "image/png", "data": encoded(9)}}]
        return (200, {"candidates": [{"content": {"parts": parts}}]}, {}) if count > 1 else (503, {}, {})

    server.rule = rule
    edited, refused = example("gemini.py").edit(requests_of(2))
    assert (edited.image == 9).all()
    assert (refused.refused, refused.error) == (True, "PROHIBITED_CONTENT")


def test_submit_and_poll_by_the_example_of_the_page(example, server, monkeypatch):
    async def at_once(seconds):
        pass

    monkeypatch.setattr(asyncio, "sleep", at_once)
    states = {"0": ["Pending", "Ready"], "1": ["Reasoning", "Request Moderated"], "2": ["Error"]}
    done = {"result": {"sample": f"{server.url}/picture"}}
    for name, left in states.items():
        server.pages[f"/v1/poll/{name}"] = lambda left=left: (200, {"status": left.pop(0), **done}, {})
    picture = encode_png(np.full((4, 4, 3), 7, np.uint8))
    server.pages["/v1/picture"] = lambda: (200, picture, {})
    server.rule = lambda body, count: (200, {"polling_url": f"{server.url}/poll/{body['prompt'][-2]}"}, {})
    edited, refused, failed = example("bfl.py").edit(requests_of(3))
    assert (edited.image == 7).all()
    assert (refused.refused, refused.error) == (True, "Request Moderated")
    assert failed.error == "edit raised RuntimeError: Error"
    assert {body["seed"] for body in server.requests} == {100, 101, 102}
