"""Models that vLLM runs: behind its server (`vllm:URL#MODEL`), or in this process (`vllm:MODEL`).

Its prefix cache keeps a picture between questions: the first questions of all pictures go before the others.

Source: vLLM 0.33, docs/features/batch_invariance.md.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nein.loading.errors import MODEL_ERRORS, reason
from nein.loading.references import located
from nein.loading.service import NoAnswer
from nein.metrics.backends.endpoint import LOGPROBS, Endpoint, Said, Turn, answer_place, picture
from nein.metrics.base import MetricError, without_thoughts

log = logging.getLogger(__name__)

#: 1 makes answers independent of what else is asked (NVIDIA, compute capability 8.0 or higher; beta).
INVARIANT = "VLLM_BATCH_INVARIANT"
_GREY = np.full((64, 64, 3), 128, np.uint8)


class VllmServer(Endpoint):
    """Chat completions of one model of a vLLM server, as `Endpoint`; `check` must have been called."""

    def __init__(self, url: str, model: str, **sending: Any) -> None:
        super().__init__(url, model, **sending)
        self._root = self.address.removesuffix("/v1")
        self._facts: dict[str, Any] = {}

    def check(self) -> None:
        """As `Endpoint.check`, and that the server takes a picture and gives log-probabilities."""
        super().check()
        try:
            said = self.about(picture(_GREY), Turn("Is this image grey? Answer only yes or no"), 1, True)
        except NoAnswer as error:
            hint = "vLLM's address ends in /v1" if error.status == 404 else "or give openai:URL#MODEL"
            raise MetricError(
                f"'{self.address}' does not answer a question about a picture ({error}); start vLLM with a "
                f"model that sees; {hint}."
            ) from None
        if not said.first and not said.thought:
            raise MetricError(
                f"'{self.address}' gives no log-probabilities, from which P(yes) comes; start vLLM with "
                "--max-logprobs 20 or more, or give openai:URL#MODEL for a server that does without."
            )
        environment = self._said_of_itself("server_info").get("vllm_env")
        invariant = environment.get(INVARIANT) if isinstance(environment, dict) else None
        self._facts = {
            "engine": f"vLLM {self._said_of_itself('version').get('version', 'of an unknown version')}",
            # Of "vllm-0.33.0-H100-tp1-bf16-a3b21f94" all but the hash of everything.
            "server": said.server.rpartition("-")[0],
            "batch_invariant": "not said" if invariant is None else str(invariant) in ("1", "True", "true"),
        }
        _warn(self._facts["batch_invariant"])

    def facts(self) -> dict[str, Any]:
        """Model, version, configuration, and whether answers depend on the batch: "not said" unless the
        server runs with VLLM_SERVER_DEV_MODE=1, which makes it tell."""
        return {**super().facts(), **self._facts}

    def about(self, picture: Mapping[str, Any], turn: Turn, max_tokens: int, likeliest: bool) -> Said:
        return without_end(super().about(picture, turn, max_tokens, likeliest))

    def _said_of_itself(self, path: str) -> dict[str, Any]:
        try:
            said = json.loads(self._get(path))
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def _get(self, path: str) -> str:
        """What the server has beside /v1; "" for nothing."""
        import httpx
        import openai

        try:
            once = self.client.with_options(max_retries=0)
            return once.get(f"{self._root}/{path}", cast_to=httpx.Response).text
        except openai.APIError:
            return ""


class VllmEngine:
    """A model in vLLM's engine in this process: a folder, a hub id with or without `@revision`, "nano:NAME".

    Asked in batches: the first questions of all pictures, then all others. Raises MetricError where vLLM is
    not installed, or cannot load the model.
    """

    concurrency = 0

    def __init__(self, reference: str, *, revision: str | None, device: str, dtype: str) -> None:
        check_engine(reference)
        from nein.loading.digests import folder_digest
        from nein.metrics.loading import split_reference

        name, revision = split_reference(located(reference), revision)
        if device.partition(":")[2] not in ("", "0"):
            raise MetricError(
                f"vllm:{reference} takes the first GPU that this process sees, not '{device}'; set "
                "CUDA_VISIBLE_DEVICES, or serve the model and give vllm:http://HOST:8000/v1#MODEL."
            )
        import vllm

        try:
            self._llm = vllm.LLM(
                model=name, revision=revision, dtype=dtype, seed=0, enable_prefix_caching=True,
                limit_mm_per_prompt={"image": 1},
            )  # fmt: skip
        except MODEL_ERRORS as error:
            raise MetricError(f"vLLM cannot load '{reference}': {reason(error)}.") from error
        self._sampling = vllm.SamplingParams
        self._lock = threading.Lock()
        self.address = reference
        self._facts = {
            "model": reference,
            "weights": folder_digest(Path(name)) if Path(name).is_dir() else f"{name}@{revision or 'main'}",
            "dtype": dtype,
            "engine": f"vLLM {vllm.__version__}",
            "batch_invariant": os.environ.get(INVARIANT) == "1",
        }
        _warn(self._facts["batch_invariant"])
        [[said]] = self.ask([_GREY], [[Turn("Is this image grey? Answer only yes or no")]], max_tokens=1)
        if not said.first and not said.thought:
            raise MetricError(f"vLLM gives no log-probabilities for '{reference}', from which P(yes) comes.")

    def facts(self) -> dict[str, Any]:
        """What decides an answer, the weights included."""
        return self._facts

    def usage(self) -> dict[str, Any]:
        """Nothing is paid for."""
        return {}

    def stop(self) -> None:
        """Nothing is waited for."""

    def ask(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Turn]], *, max_tokens: int,
        likeliest: bool = True, failed: Callable[[NoAnswer], Any] | None = None,
    ) -> list[list[Any]]:  # fmt: skip
        """As `Endpoint.ask`. What the engine raises is about the whole call."""
        from PIL import Image

        shown = [{"type": "image_pil", "image_pil": Image.fromarray(image)} for image in images]
        sampling = self._sampling(
            temperature=0.0, max_tokens=max_tokens, logprobs=LOGPROBS["top_logprobs"] if likeliest else None
        )
        answers: dict[tuple[int, int], Said] = {}
        first = [(i, 0) for i, row in enumerate(asked) if row]
        others = [(i, k) for i, row in enumerate(asked) for k in range(1, len(row))]
        for places in filter(None, (first, others)):
            talks = [[{"role": "user", "content": asked[i][k].around(shown[i])}] for i, k in places]
            with self._lock:  # the engine is one, and knows no threads
                outputs = self._llm.chat(talks, sampling, use_tqdm=False)
            answers |= dict(zip(places, map(self._read, outputs), strict=True))
        return [[answers[i, k] for k in range(len(row))] for i, row in enumerate(asked)]

    def _read(self, output: Any) -> Said:
        made = output.outputs[0]
        steps = list(zip(made.token_ids, made.logprobs or (), strict=False))
        place = answer_place([str(step[token].decoded_token) for token, step in steps], made.text)
        likely = steps[place][1].values() if steps and place is not None else ()
        first = tuple((str(one.decoded_token), float(one.logprob)) for one in likely)
        finished, count = made.finish_reason != "length", len(made.token_ids)
        answer = without_thoughts(made.text)
        thinking = answer is None
        return without_end(Said(answer or "", finished, first, count, thought=place != 0, thinking=thinking))


def check_engine(reference: str) -> None:
    """Raises MetricError where vLLM is not installed, or `reference` can be no model; loads nothing."""
    if importlib.util.find_spec("vllm") is None:
        raise MetricError(
            f"'vllm:{reference}' needs vLLM, which is not installed: pip install 'nein[vllm]', or serve the "
            "model elsewhere and give vllm:http://HOST:8000/v1#MODEL."
        )
    from nein.metrics.loading import check_folder

    check_folder(located(reference))


def without_end(said: Said) -> Said:
    """vLLM counts the end-of-sequence token, which ends an answer that the limit does not."""
    return replace(said, tokens=said.tokens - 1) if said.finished and said.tokens else said


def _warn(invariant: Any) -> None:
    if invariant is not True:
        text = "vLLM runs without %s=1, or does not say: the last bits of an answer may depend on what else "
        log.warning(text + "is asked at the time.", INVARIANT)
