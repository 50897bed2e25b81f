from __future__ import annotations

import base64
import io
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from nein import cli, editors
from nein.benchmarks.nein.runs import RunDir
from nein.editors import EditorError, get_editor
from nein.editors.served import megapixel, nearest_of_three, round_size
from nein.engine.folder import find_runs
from nein.loading import service
from tests.helpers import killing
from tests.loopback import HANG_UP

KEY = "sk-a-key-of-many-letters"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for name in ("OPENAI_BASE_URL", "AZURE_OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def file_of(image, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format=kind)
    return buffer.getvalue()


def reply_with(image, **more):
    content = base64.b64encode(file_of(image)).decode()
    return 200, {"created": 1, "data": [{"b64_json": content}], **more}, {}


def inverted(body, count):
    """The picture that was sent, its colours inverted."""
    return reply_with(255 - np.asarray(Image.open(io.BytesIO(body["image"]))))


@pytest.fixture
def build(server):
    server.rule = inverted
    server.models = (200, {"data": [{"id": "edit-1"}]}, {})
    return lambda **options: get_editor(f"openai:{server.url}#edit-1", **{"retries": 0, **options})


def refusal(code, status=400):
    error = {"message": f"safety_violations=[violence] {KEY}", "type": "image_generation_user_error"}
    return status, {"error": {**error, "param": "", "code": code}}, {}


def test_a_request_has_picture_sentence_size_and_every_option_and_the_reply_is_the_edit(
    build, server, requests_of, picture
):
    [request] = requests_of(1)
    request = replace(request, image=picture(0, 40, 60), negative_prompt="a cat")
    editor = build(quality="high", guidance_scale=4.5, num_inference_steps=20, lora={"name": "a"})
    used = {"input_tokens": 20, "output_tokens": 30, "input_tokens_details": {"image_tokens": 7}}
    server.rule = lambda body, count: (*reply_with(255 - request.image, usage=used)[:2], {})
    [result] = editor.edit([request])
    np.testing.assert_array_equal(result.image, 255 - request.image)
    assert result.note == "size wanted 64x48, returned 60x40"
    sent = server.requests[0]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(sent.pop("image")))), request.image)
    assert sent == {
        "model": "edit-1", "prompt": request.instruction, "size": "64x48", "quality": "high",
        "guidance_scale": "4.5", "num_inference_steps": "20", "negative_prompt": "a cat", "lora[name]": "a",
        "seed": str(request.seed % 2**31),
    }  # fmt: skip
    assert editor.usage() == {
        "requests": 1, "images": 1, "input_tokens": 20, "output_tokens": 30, "image_tokens": 7,
    }  # fmt: skip
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_what_decides_a_picture_is_in_the_fingerprint_and_the_address_is_not(build, server):
    plain = build()
    assert plain.paid
    assert plain.seeded
    assert server.url not in json.dumps(plain.describe())
    assert build(concurrency=3, timeout=9.0).fingerprint == plain.fingerprint
    changes = ({"quality": "low"}, {"size": "auto"}, {"seed": 7}, {"top": 1})
    assert len({plain.fingerprint, *(build(**one).fingerprint for one in changes)}) == 5
    assert not build(seed=7).seeded
    assert editors.supports(f"openai:{server.url}#edit-1", "negative_prompt")
    assert not editors.supports("openai:gpt-image-2", "negative_prompt")
    with pytest.raises(EditorError, match="'mask' is set by the benchmark"):
        build(mask="x.png")


@pytest.mark.parametrize("size", [(640, 480), (427, 640), (64, 64), (3000, 500), (100, 1000)])
def test_sizes_keep_the_aspect_ratio_as_far_as_the_model_can(size):
    ratio = size[0] / size[1]
    for rule, sides in ((megapixel, megapixel(size)), (round_size, round_size(size))):
        assert sides[0] % 16 == sides[1] % 16 == 0
        held = min(3, max(1 / 3, ratio)) if rule is megapixel else ratio
        assert sides[0] / sides[1] == pytest.approx(held, rel=0.05)
    width, height = megapixel(size)
    assert max(width, height) <= 3 * min(width, height)
    assert 0.8 < width * height / 2**20 < 1.2
    three = nearest_of_three(size)
    assert three == ((1024, 1024) if size == (64, 64) else (1536, 1024) if ratio > 1 else (1024, 1536))


def test_a_hosted_service_gets_no_seed_and_a_size_that_its_model_has(monkeypatch, server, requests_of):
    server.rule = inverted
    server.models = (200, {"data": [{"id": "gpt-image-1.5"}, {"id": "gpt-image-2"}]}, {})
    monkeypatch.setattr(service, "KEYS", {"127.0.0.1": "OPENAI_API_KEY"})
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    for model, size in (("gpt-image-1.5", "1024x1024"), ("gpt-image-2", "1024x1024")):
        editor = get_editor(f"openai:{model}", retries=0)
        editor.edit([replace(requests_of(1)[0], image=np.zeros((64, 60, 3), np.uint8))])
        assert "seed" not in server.requests[-1]
        assert editor.describe()["seed"] is None
        assert server.requests[-1]["size"] == (size if model == "gpt-image-1.5" else "992x1056")


FIRST_FAILS = [
    ((500, {"detail": "out of memory"}, {}), "transient", "no answer after 1 attempts: HTTP 500"),
    ((429, {"error": {"message": "slow down"}}, {}), "transient", "HTTP 429"),
    ((HANG_UP, "", {}), "transient", "the connection failed"),
    (refusal("moderation_blocked"), "refused", "safety_violations=[violence] ..."),
    (refusal("content_filter"), "refused", "HTTP 400"),
    ((200, {"created": 1, "data": []}, {}), "", "the reply has no readable image"),
    ((200, {"data": [{"b64_json": "no picture"}]}, {}), "", "the reply has no readable image"),
    ((200, {"data": [{"b64_json": base64.b64encode(b"nothing").decode()}]}, {}), "", "no readable image"),
    ((200, {"data": [{"url": "/a.png"}]}, {}), "", "pass --editor-options.response_format b64_json"),
]  # fmt: skip


@pytest.mark.parametrize("reply, kind, sentence", FIRST_FAILS)
def test_a_request_without_a_picture_is_refused_worth_another_try_or_an_error(
    reply, kind, sentence, build, server, requests_of
):
    server.rule = lambda body, count: inverted(body, count) if "cat" in body["prompt"] else reply
    good, bad = build(concurrency=1).edit(requests_of(2))
    assert good.image is not None
    assert bad.image is None
    assert sentence in bad.error
    assert (bad.refused, bad.transient) == (kind == "refused", kind == "transient")
    assert KEY not in bad.error


def test_what_is_transparent_is_white(build, server, requests_of):
    buffer = io.BytesIO()
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(buffer, format="WEBP", lossless=True)
    content = base64.b64encode(buffer.getvalue()).decode()
    server.rule = lambda body, count: (200, {"data": [{"b64_json": content}]}, {})
    assert (build().edit(requests_of(1))[0].image == 255).all()


@pytest.mark.parametrize(
    "reference, sentence",
    [
        ("openai:gpt-image-2", "'https://api.openai.com/v1' needs a key; set OPENAI_API_KEY"),
        ("openai:https://me.openai.azure.com/openai/v1#gpt-image-2", "needs a key; set AZURE_OPENAI_API_KEY"),
        ("openai:http://127.0.0.1:9/v1#edit-1", "Nobody answers at 'http://127.0.0.1:9/v1'"),
        ("openai:URL#edit-2", "Unknown model of 'URL' 'edit-2'; did you mean 'edit-1'?"),
        ("openai:http://user:password@host:port/v1#edit-1", "'openai:http://host:port/v1#edit-1' is no"),
        ("openai:", "'openai:' is not a served editor; expected openai:"),
    ],
)
def test_a_mistake_is_one_sentence(reference, sentence, build, server, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(EditorError) as caught:
        get_editor(reference.replace("URL", server.url))
    assert sentence.replace("URL", server.url) in str(caught.value)
    assert server.requests == []


def test_a_key_that_is_refused_ends_the_command(build, server, requests_of):
    editor = build()
    server.rule = lambda body, count: (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, {})
    with pytest.raises(EditorError, match=r"'openai:#edit-1' has made no image .*401") as caught:
        editor.edit(requests_of(3))
    assert KEY not in str(caught.value)


def test_a_kill_loses_at_most_what_is_on_its_way(server, tmp_path):
    server.models = (200, {"data": [{"id": "edit-1"}]}, {})
    server.rule = inverted
    line = ["eval", "--editor", f"openai:{server.url}#edit-1", "--limit", "12", "--control", "none"]
    line += ["--editor-options.concurrency", "4", "--metrics", "l1", "--device", "cpu"]
    line += ["--out", str(tmp_path / "out")]
    assert killing.run(cli.main, line, killing.File("*.png", 5, "after")) == killing.KILLED
    paid = len(server.requests)
    assert 5 <= paid < 12
    assert killing.run(cli.main, line) == 0
    assert 12 <= len(server.requests) <= 12 + 4
    assert max(Counter((body["image"], body["prompt"]) for body in server.requests).values()) <= 2


def test_a_command_that_is_killed_pays_every_picture_once_and_asks_again_for_those_that_failed(
    server, tmp_path
):
    server.models = (200, {"data": [{"id": "edit-1"}]}, {})
    times = Counter()

    def rule(body, count):
        """Of what is asked for the third is busy the first time, and the fifth is always refused."""
        times[body["image"], body["prompt"]] += 1
        place = [*times].index((body["image"], body["prompt"])) + 1
        busy = place == 3 and times[body["image"], body["prompt"]] == 1
        return (500, {}, {}) if busy else refusal("content_filter") if place == 5 else inverted(body, count)

    server.rule = rule
    line = ["eval", "--editor", f"openai:{server.url}#edit-1", "--limit", "6", "--control", "none"]
    line += ["--editor-options.concurrency", "1", "--editor-options.retries", "0", "--mend", "rewrite"]
    line += ["--metrics", "l1", "--device", "cpu", "--out", str(tmp_path / "out")]
    assert killing.run(cli.main, line, killing.File("*.png", 3, "after")) == killing.KILLED
    assert killing.run(cli.main, line) == 0
    asked = Counter((body["image"], body["prompt"]) for body in server.requests)
    runs = find_runs(tmp_path / "out")
    rows = [row for run in runs for row in RunDir(run).rows("edit", range(6))]
    assert len(runs) == 2
    assert [row.image for row in rows].count(None) == [row.refused for row in rows].count(True) == 1
    assert all(row.seed and "size wanted 64x64, returned" in row.note for row in rows if row.image)
    assert len(asked) == len(rows)
    # Again what was busy, and the one of each run that was being written, or waited for, at the kill.
    assert len(server.requests) <= len(asked) + 1 + len(runs)
    assert KEY not in "".join(p.read_text("latin-1") for p in (tmp_path / "out").rglob("*") if p.is_file())
