"""From the name of a language model to a client."""

from __future__ import annotations

from pathlib import Path

from nein.engine.errors import UserError
from nein.metrics.base import MetricError, RecordStore
from nein.metrics.served import is_served
from nein.metrics.served.endpoint import is_endpoint, key, split_endpoint
from nein.models.llm.client import Backend, Client
from nein.models.llm.options import LlmOptions


def load(options: LlmOptions, *, cache: RecordStore | None, device: str = "cpu") -> Client:
    """The client of `options`; its answers are kept in `cache`.

    An endpoint is looked at (address, key, model), a local model is loaded. Raises UserError or MetricError.
    """
    return Client(
        backend(options, device=device),
        cache=cache,
        temperature=float(options.temperature),
        max_tokens=int(options.max_tokens),
        attempts=int(options.attempts),
    )


def backend(options: LlmOptions, *, device: str = "cpu") -> Backend:
    """The model itself. Raises UserError without a name, MetricError when it is not there."""
    check(options.model)
    reference = str(options.model)
    if is_endpoint(reference):
        from nein.models.llm.remote import EndpointModel

        url, model = split_endpoint(reference)
        remote = EndpointModel(
            url,
            model,
            key=key(),
            concurrency=int(options.concurrency),
            timeout=float(options.timeout),
            retries=int(options.retries),
        )
        remote.endpoint.check()
        return remote
    from nein.metrics.loading import split_reference
    from nein.models.llm import local

    where, revision = split_reference(str(Path(reference).expanduser()), None)
    return local.load(where, revision=revision, device=device, dtype=options.dtype)


def check(reference: str | None) -> None:
    """Says what is wrong with a name before anything is loaded. Raises UserError or MetricError."""
    if not reference:
        raise UserError(
            "No language model is named; give --llm.model openai:URL#MODEL, a hub id owner/name, or the "
            "folder of an instruction-tuned model."
        )
    if is_endpoint(reference):
        split_endpoint(reference)
        return
    if is_served(reference):
        raise MetricError(f"'{reference}': language models are asked through vLLM's server: vllm:URL#MODEL.")
    path = Path(reference).expanduser()
    if not path.exists() and (reference.count("/") != 1 or reference.startswith((".", "/", "~"))):
        raise MetricError(
            f"There is no language model '{reference}'; give openai:URL#MODEL, a hub id owner/name, or an "
            "existing folder."
        )
