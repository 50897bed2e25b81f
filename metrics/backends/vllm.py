"""Models behind vLLM's server: `vllm:URL#MODEL`. Source: vLLM 0.33, docs/features/batch_invariance.md."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nein.loading.service import NoAnswer
from nein.metrics.backends.endpoint import Completion, Endpoint, Message, picture
from nein.metrics.base import MetricError

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
            reply = self.about(picture(_GREY), Message("Is this image grey? Answer only yes or no"), 1, True)
        except NoAnswer as error:
            hint = "vLLM's address ends in /v1" if error.status == 404 else "or give openai:URL#MODEL"
            raise MetricError(
                f"'{self.address}' does not answer a question about a picture ({error}); start vLLM with a "
                f"model that sees; {hint}."
            ) from None
        if not reply.first and not reply.thought:
            raise MetricError(
                f"'{self.address}' gives no log-probabilities, from which P(yes) comes; start vLLM with "
                "--max-logprobs 20 or more, or give openai:URL#MODEL for a server that does without."
            )
        environment = self._said_of_itself("server_info").get("vllm_env")
        invariant = environment.get(INVARIANT) if isinstance(environment, dict) else None
        self._facts = {
            "engine": f"vLLM {self._said_of_itself('version').get('version', 'of an unknown version')}",
            # Of "vllm-0.33.0-H100-tp1-bf16-a3b21f94" all but the hash of everything.
            "server": reply.server.rpartition("-")[0],
            "batch_invariant": "not said" if invariant is None else str(invariant) in ("1", "True", "true"),
        }
        if self._facts["batch_invariant"] is not True:
            text = "vLLM runs without %s=1, or does not say: the last bits of an answer may depend on what "
            log.warning(text + "else is asked at the time.", INVARIANT)

    def facts(self) -> dict[str, Any]:
        """Model, version, configuration, and whether answers depend on the batch: "not said" unless the
        server runs with VLLM_SERVER_DEV_MODE=1, which makes it tell."""
        return {**super().facts(), **self._facts}

    def about(
        self, picture: Mapping[str, Any], turn: Message, max_tokens: int, likeliest: bool
    ) -> Completion:
        reply = super().about(picture, turn, max_tokens, likeliest)
        # vLLM counts the end-of-sequence token, which ends an answer that the limit does not.
        return replace(reply, tokens=reply.tokens - 1) if reply.finished and reply.tokens else reply

    def _said_of_itself(self, path: str) -> dict[str, Any]:
        """What the server has beside /v1; {} for nothing."""
        import httpx
        import openai

        try:
            once = self.client.with_options(max_retries=0)
            reply = json.loads(once.get(f"{self._root}/{path}", cast_to=httpx.Response).text)
        except (openai.APIError, ValueError):
            return {}
        return reply if isinstance(reply, dict) else {}
