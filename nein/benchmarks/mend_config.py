"""Options of `nein mend`: finds the kind of its model, and makes the benchmark command for this kind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from nein.benchmarks import registry
from nein.config.groups import Limit, Output, Preset, RuntimeOptions
from nein.config.options import Names, argument, option
from nein.loading.errors import UserError
from nein.loading.references import Need, parse_reference


class Kind(NamedTuple):
    """A kind of model, and the benchmark command that evaluates it."""

    benchmark: str  # name of the benchmark
    option: str  # option of that command that takes the model
    limit: int  # samples, unless --limit is given
    affirmative: tuple[str, ...]  # variants without negation, which a remedy must not make worse
    fixed: Mapping[str, Any]  # options that `nein mend` always passes


KINDS = {  # value of --kind -> kind
    "editor": Kind("nein", "editor", 48, ("remove",), {"control": ["remove"]}),
    "encoder": Kind("negbench", "model", 500, ("original", "affirmation"), {"blind": 0}),
    "vlm": Kind("negvqa", "model", 320, ("original",), {"blind": 0}),
}


@dataclass(kw_only=True)
class MendConfig(Preset, Limit, RuntimeOptions, Output):
    """The model, and the remedies to try."""

    default_out = "runs/mend-PRESET"
    counted = "samples (default: 48 of an editor, 500 of an encoder, 320 of a vlm)"

    model: str = argument(
        "MODEL", "editor, two-tower model or vision-language model, as its command takes it"
    )
    kind: Literal["editor", "encoder", "vlm"] | None = option(
        None, "what MODEL is (default: by its name or its files)", "Main"
    )
    mend: Names = option(
        [], "only these remedies (default: all that can act and need no other model)", "Main"
    )
    preset: Literal["nano", "paper"] = option("nano", "preset of the kind's benchmark", "Main")
    data: str | None = option(None, "data of the kind's benchmark (default: the preset's)", "Data")

    def needs(self) -> list[Need]:
        return make_command(self, []).needs()


#: Options that the benchmark command gets in another form, or not at all.
_OWN_OPTIONS = {"model", "kind", "mend", "data", "limit", "out", "preset"}


def make_command(config: MendConfig, remedies: Sequence[str]) -> Any:
    """The configuration of the benchmark command, with these remedies."""
    kind = KINDS[find_kind(config)]
    options = {}
    for field in dataclasses.fields(config):
        default = field.default_factory() if callable(field.default_factory) else field.default
        if field.name not in _OWN_OPTIONS and (value := getattr(config, field.name)) != default:
            options[field.name] = value
    options |= {"preset": config.preset, "data": config.data, "limit": config.limit or kind.limit}
    options |= {"out": str(config.out_dir), "mend": [*remedies], kind.option: [config.model], **kind.fixed}
    return registry.get(kind.benchmark).config.create(**options)


def find_kind(config: MendConfig) -> str:
    """The kind by --kind, else by the model's name in our tables, else by its files. Raises UserError."""
    from nein import editors
    from nein.benchmarks.negbench.models import MODELS
    from nein.editors.presets import read_index
    from nein.metrics import MetricError, dual_prefix
    from nein.metrics.loading import read_model_type
    from nein.models import references

    if config.kind is not None:
        return config.kind
    label, name = references.split_label(config.model)
    parsed = parse_reference(name)
    error = UserError(f"Cannot tell what kind of model '{name}' is; pass --kind editor, encoder or vlm.")
    if parsed.kind == "served":
        raise error
    # By its name.
    if parsed.kind == "attribute" or {name, label} & {*editors.available()}:
        return "editor"
    if name in (*MODELS, "random") or label in MODELS or dual_prefix(name) is not None:
        return "encoder"
    # By its files.
    location = references.resolve(name) if parsed.has_files else ""
    if location and read_index(location).get("_class_name"):
        return "editor"
    from transformers.models.auto import modeling_auto as auto

    try:
        model_type = read_model_type(location) if location else None
    except MetricError:  # it has no configuration that can be read
        raise error from None
    if model_type in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return "vlm"
    if model_type in auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "encoder"
    raise error
