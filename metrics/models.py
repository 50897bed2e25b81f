"""Loads the models of metrics by reference: image encoders, judges, multiple-choice models, rewards, duals.

A reference names a checkpoint (folder or hub id), a served model, a plug-in or Python code. The table above
each function has the loaders, as "module:function". At the end: what a model downloads.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from nein.loading import references
from nein.loading.digests import source_digest
from nein.loading.errors import choose
from nein.metrics.base import MetricError
from nein.metrics.chat import endpoint

# --- encoders ------------------------------------------------------------------------------
#: Kind of encoder -> loader.
ENCODERS: dict[str, str] = {
    "clip": "nein.metrics.encoders:load_clip",
    "dino": "nein.metrics.encoders:load_vit",
    "lpips": "nein.metrics.encoders:load_lpips",
    "fid": "nein.metrics.encoders:load_fid",
}


def load_encoder(
    kind: str, path_or_id: str, *, device: str = "cpu", dtype: str = "float32", **options: Any
) -> Any:
    """Load the network of an image metric: an object with `encode(images) -> (N, D) float32` ("lpips":
    `distances`), `fingerprint` and `describe()`. Raises MetricError for an unusable checkpoint.

    path_or_id  A folder in the transformers layout (safetensors), an installed package's model ("nano:clip"),
                or a hub id, with or without `@revision`. "lpips": also "alex", "vgg", "squeeze"; "fid": also
                "inception", the network of clean-fid."""
    load = pkgutil.resolve_name(ENCODERS[choose("kind of encoder", kind, ENCODERS)])
    return load(references.locate_embedded(path_or_id), device=device, dtype=dtype, **options)


# --- judges --------------------------------------------------------------------------------
#: Kind of judge -> checkpoint type (`model_type` of its config.json) -> loader; "": any other type.
JUDGES: dict[str, dict[str, str]] = {
    "vqa": {"llava_next": "nein.metrics.judges.llava:load", "": "nein.metrics.chat.asking:ChatJudge.load"},
    "ovd": {"owlv2": "nein.metrics.judges.detectors:load_owlv2", "": "nein.metrics.judges.detectors:load"},
    "itm": {"": "nein.metrics.judges.blip:load"},
}
#: Kind of reference (`Reference.kind`) -> loader of judges that have no checkpoint to read.
REFERENCES: dict[str, str] = {
    "plugin": "nein.metrics.models:load_plugin",
    "attribute": "nein.metrics.models:load_plugin",
    "served": "nein.metrics.chat.asking:ChatJudge.load",
}
#: Options that a loader gets only if it has such a parameter; all others are always passed.
_OPTIONAL = ("quantization", "pad", "backend")


def load_judge(
    kind: str, path_or_id: str, *, device: str = "cpu", dtype: str = "float32", **options: Any
) -> Any:
    """Load a judge: a model that answers questions about an image. Raises MetricError.

    kind        "vqa" (`ask`), "ovd" (`detect`) or "itm" (`match`).
    path_or_id  As for `load_encoder`. vqa: LLaVA-NeXT, or any image-text model with a chat template, also
                "openai:URL#MODEL"; ovd: OWLv2, or any zero-shot detector of transformers; itm: BLIP.
                Also "plugin:NAME", "module:attribute" and "file.py:attribute" (`find_plugin`).
    options     LLaVA-NeXT: `template`, `quantization`, `batch_size`; OWLv2: `pad`, `backend`, `batch_size`;
                BLIP: `batch_size`."""
    choose("kind of judge", kind, JUDGES)
    path_or_id = references.locate_embedded(path_or_id)
    reference_kind = references.parse_reference(path_or_id).kind
    options |= {"device": device, "dtype": dtype}
    if references.parse_reference(path_or_id).is_code:
        return load_plugin(path_or_id, kind=kind, **options)
    if reference_kind == "served" and kind != "vqa":
        raise MetricError(f"A served model can only be the judge 'vqa', not '{kind}'.")
    loader = REFERENCES.get(reference_kind)
    if loader is None:  # a checkpoint
        from nein.metrics.loading import read_model_type

        loader = JUDGES[kind].get(read_model_type(path_or_id) or "", JUDGES[kind][""])
    load = pkgutil.resolve_name(loader)
    parameters = inspect.signature(load).parameters
    if "quantization" not in parameters and options.get("quantization", "none") != "none":
        raise MetricError(f"'{path_or_id}' cannot be quantized, only LLaVA-NeXT can; choose 'none'.")
    passed = {key: value for key, value in options.items() if key in parameters or key not in _OPTIONAL}
    return load(path_or_id, **passed)


def check_reference(path_or_id: str) -> None:
    """Check the reference of a judge or multiple-choice model, offline. Raises MetricError."""
    if references.parse_reference(path_or_id).is_code:
        find_plugin(path_or_id)
    else:
        endpoint.check_chat(path_or_id)


#: Entry-point group of other packages' judges, `plugin:NAME`: each a judge (`metrics.judges.base`), or a
#: function `load(kind=..., device=..., dtype=..., **options)` that makes one.
GROUP = "nein.judges"
#: Kind of judge -> the method that it must have.
METHODS = {"vqa": "ask", "ovd": "detect", "itm": "match"}


def load_plugin(path_or_id: str, *, kind: str, **options: Any) -> Any:
    """Load a judge of another package or of a file. Raises MetricError."""
    plugin = find_plugin(path_or_id)
    judge = plugin
    if not hasattr(plugin, METHODS[kind]) or isinstance(plugin, type):  # a function, or a class to be called
        options = {"kind": kind, **options}
        try:
            inspect.signature(plugin).bind(**options)
        except (TypeError, ValueError):
            function = f"a function of {', '.join(options)} that makes one"
            raise MetricError(f"'{path_or_id}' is neither a judge nor {function}.") from None
        judge = plugin(**options)
    needed = ["fingerprint", "describe", METHODS[kind]] + (["template"] if kind == "vqa" else [])
    if missing := [name for name in needed if not hasattr(judge, name)]:
        raise MetricError(f"'{path_or_id}' is not a judge '{kind}': it has no {', '.join(missing)}.")
    return _Plugin(judge, source_digest(plugin))


def find_plugin(path_or_id: str) -> Any:
    """Find the object that a reference names: a judge, or a function that makes one. Raises MetricError."""
    parsed = references.parse_reference(path_or_id)
    if parsed.kind == "attribute":
        plugin = references.load_attribute(path_or_id)
    else:
        points = {point.name: point for point in metadata.entry_points(group=GROUP)}
        if not points:
            raise MetricError(f"'{path_or_id}': no installed package has judges (entry points of '{GROUP}').")
        try:
            plugin = points[choose("judge plug-in", parsed.name, points)].load()
        except (ImportError, AttributeError) as error:
            raise MetricError(f"The judge plug-in '{parsed.name}' cannot be loaded: {error}.") from None
    if not callable(plugin) and not any(hasattr(plugin, method) for method in METHODS.values()):
        raise MetricError(f"'{path_or_id}' is neither a judge nor a function that makes one.")
    return plugin


class _Plugin:
    """A judge whose fingerprint includes its source code: a change to the code invalidates cached answers."""

    def __init__(self, judge: Any, source: str) -> None:
        self._judge, self.fingerprint = judge, f"{judge.fingerprint}-{source[:12]}"

    def __getattr__(self, name: str) -> Any:  # everything else is the judge's
        return getattr(self._judge, name)


# --- multiple choice -----------------------------------------------------------------------
def load_choices(path_or_id: str, *, device: str = "cpu", dtype: str = "float32", **options: Any) -> Any:
    """Load a multiple-choice model (`metrics.choices`). Raises MetricError.

    path_or_id  A folder or hub id of any image-text-to-text model of transformers with a chat template, or an
                InstructBLIP; "openai:URL#MODEL"; "file.py:function" (`metrics.choices.FunctionChoices`).
    options     `max_new_tokens`; transformers: `batch_size` (images); endpoints: those of `Endpoint`."""
    from nein.metrics.choices import ChatChoices, make_choice_model

    if references.parse_reference(path_or_id).kind == "attribute":
        return make_choice_model(references.load_attribute(path_or_id), path_or_id.rpartition(":")[2])
    return ChatChoices.load(references.locate_embedded(path_or_id), device=device, dtype=dtype, **options)


# --- rewards -------------------------------------------------------------------------------
#: Prefix of a reward (a judge of whole edits) -> loader.
REWARDS: dict[str, str] = {
    "editscore": "nein.metrics.rewards:load_editscore",
    "pairwise": "nein.metrics.rewards:load_pairwise",
}


def load_reward(
    reference: str, *, device: str = "cpu", dtype: str = "float32", endpoint_options: Mapping[str, Any] = {},
    **options: Any,
) -> Any:  # fmt: skip
    """Load a reward (`metrics.rewards`): "editscore:MODEL", EditScore's questions to an image-text model
    (arXiv:2509.23909), or "pairwise:MODEL", any multiple-choice model. Raises MetricError.

    endpoint_options  Options of `Endpoint`, for a served model.
    options           editscore: `passes`."""
    kind, model = check_reward(reference)
    if references.is_served(model):
        options |= endpoint_options
    return pkgutil.resolve_name(REWARDS[kind])(model, device=device, dtype=dtype, **options)


def check_reward(reference: str) -> tuple[str, str]:
    """Split a reward's reference into (kind, model) and check both, offline. Raises MetricError."""
    kind, _, model = reference.partition(":")
    if not model:
        forms = ", ".join(f"{name}:MODEL" for name in REWARDS)
        raise MetricError(f"'{reference}' is not a reward; expected {forms}.")
    choose("kind of reward", kind, REWARDS)
    model = references.locate_embedded(model)
    is_lora = references.expand_user(Path(model, "adapter_config.json")).is_file()  # which names its base
    if kind != "editscore" or not is_lora:
        endpoint.check_chat(model)
    return kind, model


# --- duals: an encoder for images and one for sentences ------------------------------------
#: Prefix of a dual's reference -> loader. Without a prefix: a folder or hub id of transformers, or a folder
#: in open_clip's layout.
DUALS: dict[str, str] = {
    "open_clip": "nein.metrics.dual.openclip:load",
    "random": "nein.metrics.dual:load_control",
    "constant": "nein.metrics.dual:load_control",
    "sentence": "nein.metrics.encoders:load_sentences",  # encodes sentences only
}


def load_dual(reference: str, *, device: str = "cpu", dtype: str = "float32", batch_size: int = 32) -> Any:
    """Load a dual: an encoder for images and one for sentences. Raises MetricError.

    reference  A folder or hub id of transformers (CLIP, SigLIP, ...); "open_clip:ARCHITECTURE/TAG",
               "open_clip:hf-hub:OWNER/NAME", or a folder in open_clip's layout; the controls "random" and
               "constant"; "sentence:FOLDER_OR_ID", which has only `encode_text`; "file.py:object"."""
    reference = references.locate_embedded(reference)
    prefix = dual_prefix(reference)
    if prefix is None and references.parse_reference(reference).kind == "attribute":
        from nein.metrics import dual

        model = references.load_attribute(reference)
        fingerprint = dual.fingerprint_object(model)
        return dual.make_dual(model, name=reference, fingerprint=fingerprint, batch_size=batch_size)
    if prefix is None and Path(reference, "open_clip_config.json").is_file():
        prefix = "open_clip"
    load = pkgutil.resolve_name(DUALS[prefix] if prefix else "nein.metrics.encoders:load_towers")
    return load(reference, device=device, dtype=dtype, batch_size=batch_size)


def dual_prefix(reference: str) -> str | None:
    """Return the prefix of a reference if it is a key of `DUALS`; None for a folder or hub id."""
    prefix, colon, _ = reference.partition(":")
    return prefix if prefix in DUALS and (colon or prefix in ("random", "constant")) else None


# --- downloads -----------------------------------------------------------------------------
#: Kind of encoder, or prefix of a dual -> function that lists its downloads. Others download one repository.
ORIGINS: dict[str, str] = {
    "lpips": "nein.metrics.encoders:lpips_origins",
    "fid": "nein.metrics.encoders:fid_origins",
    "open_clip": "nein.metrics.dual.openclip:origins",
}


def origins(kind: str, reference: str) -> list[references.Need]:
    """List the downloads of a model; none for a folder or an endpoint. kind: of an encoder or judge; "dual";
    "text" (a dual for sentences only); any other word: a repository of transformers. Raises MetricError."""
    reference = references.locate_embedded(reference)
    if references.is_local(reference) or references.parse_reference(reference).kind in REFERENCES:
        return []
    if kind in ("dual", "text"):
        kind = dual_prefix(reference) or ""  # a key of `ORIGINS`, or a word without a meaning there
        if kind in ("random", "constant"):
            return []
        reference = reference.removeprefix("sentence:")
    if kind in ORIGINS:
        downloads = pkgutil.resolve_name(ORIGINS[kind])(reference)
        if downloads is not None:  # None: one repository
            return downloads
    repository = references.Need.parse(reference)
    return [repository] if repository else []
