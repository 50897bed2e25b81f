"""vLLM's server, as far as a judge sees it: chat completions with log-probabilities, and what it tells of
itself.

Written from vLLM 0.33:
vllm/entrypoints/openai/chat_completion/protocol.py and vllm/entrypoints/serve/instrumentator/server_info.py.
"""

import base64
import io

import numpy as np
from PIL import Image

from tests.loopback import Server

VERSION = "0.33.0"


def serve(brain, name="nano-judge", *, tells=True):
    """A server of `brain` under a name.

    tells  Whether it runs with VLLM_SERVER_DEV_MODE=1, here with VLLM_BATCH_INVARIANT=1.
    """
    server = Server()

    def rule(body, count):
        top = body.get("top_logprobs", 0) if body.get("logprobs") else 0
        [message] = body["messages"]
        turn = [part.get("text") for part in message["content"]]
        [part] = [part for part in message["content"] if part["type"] == "image_url"]
        made = brain.complete(turn, _pixels(part), body["max_tokens"], top)
        return 200, _completion(made, name, top), {}

    server.rule = rule
    server.models = (200, {"object": "list", "data": [{"id": name, "object": "model"}]}, {})
    server.pages = {
        "/version": lambda: (200, {"version": VERSION}, {}),
        "/server_info": lambda: (
            (200, {"vllm_env": {"VLLM_BATCH_INVARIANT": True}}, {}) if tells else (404, {}, {})
        ),
    }
    return server


def _pixels(part):
    data = part["image_url"]["url"].partition("base64,")[2]
    return np.array(Image.open(io.BytesIO(base64.b64decode(data))))


def _completion(made, name, top):
    likely = [{"token": token, "logprob": value, "bytes": None} for _, token, value in made.first]
    content = [{**likely[0], "top_logprobs": likely}] if top else None
    return {
        "id": "chatcmpl-0", "object": "chat.completion", "created": 0, "model": name,
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": made.text},
            "logprobs": {"content": content} if top else None,
            "finish_reason": "stop" if made.finished else "length", "stop_reason": None,
        }],
        "system_fingerprint": f"vllm-{VERSION}-cpu-tp1-fp32-0a1b2c3d",
        "usage": {"completion_tokens": len(made.token_ids)},
    }  # fmt: skip
