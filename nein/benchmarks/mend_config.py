"""The options of `nein mend`, and the benchmark's command that it runs with them."""

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
    """A kind of model, and how `nein mend` evaluates it."""

    benchmark: str  # whose command is run
    option: str  # the option of that command that takes the model
    limit: int  # samples, unless --limit is given
    told: tuple[str, ...]  # affirmative variants, which a remedy must not make worse
    fixed: Mapping[str, Any]  # further options


KINDS = {
    "editor": Kind("nein", "editor", 48, ("remove",), {"control": ["remove"]}),
    "encoder": Kind("negbench", "model", 500, ("original", "affirmation"), {"blind": 0}),
    "vlm": Kind("negvqa", "model", 320, ("original",), {"blind": 0}),
}
_OWN = {"model", "kind", "mend", "data", "limit", "out", "preset"}


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


def make_command(config: MendConfig, arms: Sequence[str]) -> Any:
    """The configuration of the benchmark's command."""
    kind = KINDS[find_kind(config)]
    options = {}
    for item in dataclasses.fields(config):
        default = item.default_factory() if callable(item.default_factory) else item.default
        if item.name not in _OWN and (value := getattr(config, item.name)) != default:
            options[item.name] = value
    options |= {"preset": config.preset, "data": config.data, "limit": config.limit or kind.limit}
    options |= {"out": str(config.out_dir), "mend": [*arms], kind.option: [config.model], **kind.fixed}
    return registry.get(kind.benchmark).config.create(**options)


def find_kind(config: MendConfig) -> str:
    """The kind of the model: by its name in our tables, else by its files. Raises UserError."""
    from nein import editors
    from nein.benchmarks.negbench.data import MODELS
    from nein.metrics import dual_prefix
    from nein.models import references

    label, name = references.split_label(config.model)
    if config.kind is not None:
        return config.kind
    form = parse_reference(name)
    if form.kind == "served":
        raise UserError(f"Cannot tell what kind of model '{name}' is; pass --kind editor, encoder or vlm.")
    if form.kind == "attribute" or {name, label} & {*editors.available()}:
        return "editor"
    if name in (*MODELS, "random") or label in MODELS or dual_prefix(name) is not None:
        return "encoder"
    location = references.resolve(name) if form.has_files else ""
    if location and editors.read_index(location).get("_class_name"):
        return "editor"
    from transformers.models.auto import modeling_auto as auto

    declared = read_model_type(location) if location else ""
    if declared in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return "vlm"
    if declared in auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES:
        return "encoder"
    raise UserError(
        f"Cannot tell what kind of model '{config.model}' is; pass --kind editor, encoder or vlm."
    )


def read_model_type(location: str) -> str:
    """`model_type` of the model's config.json (transformers); "" without one."""
    from transformers import PretrainedConfig

    parsed = parse_reference(location)
    try:
        config, _ = PretrainedConfig.get_config_dict(parsed.name, revision=parsed.revision)
        return str(config.get("model_type", ""))
    except (OSError, ValueError):
        return ""
