"""A model behind a real endpoint answers as the same model does beside us."""

from __future__ import annotations

import base64
import io
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from nein.nano import zoo
from tests.loopback import Reply, Server, say
from tests.negvqa.tiny import answers, run

QUESTIONS = 12


class Served:
    """The nano VLM behind the protocol, by plain calls of transformers."""

    def __init__(self) -> None:
        from transformers import AutoProcessor, LlavaNextForConditionalGeneration

        folder = zoo.path("negvqa")
        self.model = LlavaNextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(folder)
        self.lock = threading.Lock()

    def __call__(self, body: dict[str, Any], count: int) -> Reply:
        content: list[dict[str, Any]] = []
        for part in body["messages"][0]["content"]:
            if part["type"] == "image_url":
                data = part["image_url"]["url"].partition("base64,")[2]
                content.append({"type": "image", "image": Image.open(io.BytesIO(base64.b64decode(data)))})
            else:
                content.append(part)
        with self.lock, torch.inference_mode():
            inputs = self.processor.apply_chat_template(
                [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=True,
                return_dict=True, return_tensors="pt",
            )  # fmt: skip
            found = self.model.generate(
                **inputs, do_sample=False, max_new_tokens=body["max_tokens"], output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
            words = self.processor.tokenizer
            answer = found.sequences[0, -len(found.logits) :]
            best = found.logits[0][0].float().log_softmax(-1).topk(body["top_logprobs"])
            top = {
                words.decode([int(token)]): math.exp(float(value)) for value, token in zip(*best, strict=True)
            }
            return 200, say(words.decode(answer, skip_special_tokens=True), top), {}


@pytest.fixture
def served() -> Iterator[Server]:
    server = Server()
    server.rule = Served()
    server.models = (200, {"data": [{"id": "tiny"}]}, {})
    yield server
    server.close()


def test_a_model_behind_an_endpoint_answers_as_it_does_beside_us(served: Server, tmp_path: Path) -> None:
    # In this prompt the picture comes first, so that the server's template has nothing to join.
    common = ("--prompt", "vlmevalkit", "--questions", QUESTIONS, "--device", "cpu", "--formats", "md")
    common += ("--blind", 0)
    assert run("--model", "nano:negvqa", "--out", tmp_path / "here", *common) == 0
    assert run("--model", f"openai:{served.url}#tiny", "--data", "nano", "--concurrency", 3,
               "--out", tmp_path / "there", *common) == 0  # fmt: skip
    (here,), (there,) = ([*(tmp_path / name).glob("*/scores.csv")] for name in ("here", "there"))
    mine, theirs = answers(here.parent), answers(there.parent)
    assert len(served.requests) == len(mine) == 2 * QUESTIONS
    assert served.most > 1
    assert {row["text"] for row in mine} == {"A", "B"}
    assert [row["text"] for row in mine] == [row["text"] for row in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one["id"] == other["id"]
        for a, b in zip(one["logprobs"], other["logprobs"], strict=True):
            if b is not None:  # an unlikely letter may not be among the 20 alternatives
                assert math.exp(a) == pytest.approx(math.exp(b), abs=1e-5)
    assert all(any(value is not None for value in row["logprobs"]) for row in theirs)
