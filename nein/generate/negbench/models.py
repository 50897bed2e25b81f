"""The models that stages of a build need: language model, detector, and what makes pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nein import metrics
from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError
from nein.engine.folder import Folder
from nein.engine.stages import Model, usage_of
from nein.generate.negbench.config import BuildConfig
from nein.generate.negbench.pairs import EditorMaker, TextMaker, Verifier
from nein.generate.nein.sources import COCO
from nein.loading.digests import folder_digest, json_digest
from nein.models import editor_choice, references
from nein.models.llm import client as llm

VERDICT = 64  # tokens of an answer whether a list is one; the released code asks for 10, of "Yes" or "No"
_PARTS = {"maker": "maker", "detector": "verifier", "llm": "client"}  # of PairTools


@dataclass(frozen=True)
class PairTools:
    """What making pairs needs. `client`: thinks of scenes; None where an editor starts from pictures."""

    maker: EditorMaker | TextMaker
    verifier: Verifier
    vocabulary: Sequence[str]
    client: llm.Client | None

    def stop(self) -> None:
        """Ends waiting for answers."""
        if self.client is not None:
            self.client.stop()


def of_stage(config: BuildConfig, folder: Folder, stage: str, device: str) -> Model:
    """What a stage needs, not loaded. To validate, the language model answers at temperature 0."""
    if stage == "pairs":
        return Model(
            "maker", lambda: _tools(config, folder, device),
            lambda tools: {
                name: fact
                for kind, part in _PARTS.items()
                for name, fact in _described(kind, getattr(tools, part)).items()
            },
            usage=lambda tools: usage_of({"llm": tools.client}),
        )  # fmt: skip
    if stage == "verify":
        return Model(
            "detector", lambda: _verifier(config, device, config.protocol),
            lambda verifier: _described("detector", verifier),
        )  # fmt: skip
    kind = "llm"
    if stage == "validate":
        kind = "checker"
        config = replace(config, llm=replace(config.llm, temperature=0.0, attempts=1, max_tokens=VERDICT))
    return Model(
        kind, lambda: _client(config, folder, device), lambda client: _described(kind, client),
        references.place(str(config.llm.model)), lambda client: usage_of({kind: client}),
    )  # fmt: skip


def _described(kind: str, part: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Fingerprint and description, by kind; nothing of None."""
    if part is None:
        return {}
    part = getattr(part, "detector", part)
    facts = part.describe()
    return {kind: (getattr(part, "fingerprint", None) or json_digest(facts)[:16], facts)}


def _tools(config: BuildConfig, folder: Folder, device: str) -> PairTools:
    from nein.nano.draw import CATEGORIES

    client = None if config.edits else _client(config, folder, device)
    vocabulary = CATEGORIES if config.preset == "nano" else COCO
    # How the authors verified pairs is not released.
    return PairTools(_maker(config, device), _verifier(config, device, "fixed"), vocabulary, client)


def _client(config: BuildConfig, folder: Folder, device: str) -> llm.Client:
    return llm.load(config.llm, cache=AnswerCache(folder.answers), device=device)


def _verifier(config: BuildConfig, device: str, protocol: Any) -> Verifier:
    where, revision = references.resolve(config.detector)
    detector = metrics.load_judge("ovd", where, revision=revision, device=device, dtype=config.dtype)
    return Verifier(detector, config.query, config.threshold, protocol, config.absent)


def _maker(config: BuildConfig, device: str) -> EditorMaker | TextMaker:
    name = config.maker.partition(":")[2]
    if config.edits:
        choice = editor_choice.choose_editor(name, config.preset, {"steps": config.steps})
        return EditorMaker(choice.load(device=device, dtype=config.dtype, batch_size=config.block_size))
    pipeline, identity = text_pipeline(name, device, config.dtype)
    return TextMaker(pipeline, identity, resolution=config.resolution, steps=config.steps)


def text_pipeline(name: str, device: str, dtype: str) -> tuple[Any, dict[str, Any]]:
    """A text-to-image pipeline of diffusers from a folder or the hub (safetensors only), and what it is."""
    import torch
    from diffusers import AutoPipelineForText2Image

    from nein.loading.digests import torch_dtype
    from nein.metrics.loading import split_reference

    where, revision = split_reference(name, None)
    try:
        pipeline = AutoPipelineForText2Image.from_pretrained(
            where, revision=revision, use_safetensors=True, torch_dtype=torch_dtype(dtype)
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"Cannot load a text-to-image pipeline from '{name}': {first}") from None
    pipeline.set_progress_bar_config(disable=True)
    if getattr(pipeline, "safety_checker", None) is not None:
        # It would put a black picture in the place of one it refuses, which the detector would then judge.
        pipeline.safety_checker = None
    weights = folder_digest(Path(where)) if Path(where).is_dir() else f"{where}@{revision or 'main'}"
    identity = {"class": type(pipeline).__name__, "weights": weights, "dtype": dtype}
    return pipeline.to(torch.device(device)), identity
