"""The configuration of an evaluation, and the one order in which it is put together.

Precedence: command line > `--config FILE` > preset (`configs/<preset>.yaml`) > default. Reading, merging and
type checks are jsonargparse's; this file holds the table of options, and turns every complaint into one
sentence with a near match. It imports nothing heavy, so that `--help` is immediate.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jsonargparse
from jsonargparse.typing import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.config_errors import complaint
from nein.errors import UserError, unknown

STAGES = ("edit", "score", "report")
PRESETS = ("nano", "paper")
DTYPES = ("float32", "bfloat16", "float16")


def about(text: str, group: str = "") -> dict[str, str]:
    """A field's help text, and the heading of `--help` under which it stands."""
    return {"help": text, "group": group}


#: A list of names: `a,b` on the command line (repeatable), a YAML list in a file.
Names = list[str]


def names(value: Any) -> Names:
    """["a", "b"] from "a,b" or from a list; "none" and "" are the empty list."""
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    found = [str(item).strip() for item in items if str(item).strip()]
    return [] if found == ["none"] else list(dict.fromkeys(found))


@dataclass
class ModelsConfig:
    """Judges and encoders: `nano:NAME`, a hub id `owner/name[@revision]`, or a local folder."""

    clip: str = field(default="nano:clip", metadata=about("CLIP, for CLIP-I and CLIP-T"))
    dino: str = field(default="nano:dino", metadata=about("DINO"))
    lpips: str = field(default="nano:lpips", metadata=about("LPIPS network: alex, vgg, squeeze, or a folder"))
    fid: str = field(
        default="nano:fid", metadata=about("network of the Frechet distance: inception, or a folder")
    )
    vqa: str = field(default="nano:llava", metadata=about("visual question answering judge"))
    ovd: str = field(default="nano:owlv2", metadata=about("open-vocabulary detector"))
    vqa_quantization: Literal["none", "bnb-fp4"] = field(
        default="none", metadata=about("bnb-fp4: 4 bit, as in the paper (needs CUDA)")
    )
    ovd_pad: Literal["library", "gray"] = field(
        default="library", metadata=about("padding of the detector; gray: as in the paper's time")
    )
    ovd_backend: Literal["torchvision", "pil"] = field(
        default="torchvision", metadata=about("resize of the detector; pil: as in the paper's time")
    )


@dataclass
class EvalConfig:
    """Everything that decides an evaluation. Field names are the keys of a configuration file."""

    editor: Names = field(
        default_factory=lambda: ["magicbrush"],
        metadata=about("editor names, hub ids or folders: a,b or all", "What"),
    )
    preset: Literal["nano", "paper"] = field(
        default="nano", metadata=about("which configs/<preset>.yaml fills what is not given", "What")
    )
    data: str = field(
        default="nano",
        metadata=about("nano, a folder in NeIn's layout, or hub:OWNER/NAME[@REVISION]", "Data"),
    )
    split: str = field(default="val", metadata=about("which split of the data", "Data"))
    annotations: str | None = field(
        default=None, metadata=about("annotation file, if not DATA/<split>.json", "Data")
    )
    source_images: str | None = field(
        default=None, metadata=about("folder of COCO images, if not in DATA", "Data")
    )
    nein_images: str | None = field(
        default=None, metadata=about("folder of NeIn images, if not in DATA", "Data")
    )
    columns: dict[str, str] = field(
        default_factory=dict, metadata=about("renamed fields: --columns.T_negative NAME", "Data")
    )
    limit: PositiveInt | None = field(default=None, metadata=about("only the first N samples", "Data"))
    samples: Names = field(default_factory=list, metadata=about("only these ids", "Data"))
    control: Names = field(
        default_factory=list, metadata=about("affirmative twins to run as well: remove, add, or none", "What")
    )
    metrics: Names = field(default_factory=list, metadata=about("metrics to compute, or all", "What"))
    stages: Names = field(default_factory=lambda: list(STAGES), metadata=about("stages to run", "What"))
    protocol: Literal["paper", "fixed"] = field(
        default="fixed", metadata=about("how answers are read: the paper's code, or mended", "How")
    )
    align: Literal["stretch", "crop"] = field(
        default="stretch", metadata=about("how the target is compared: stretched, or cropped", "How")
    )
    align_resolution: PositiveInt = field(
        default=512, metadata=about("resolution of the crop rule of --align crop, in pixels", "How")
    )
    threshold: NonNegativeFloat = field(default=0.1, metadata=about("detection threshold", "How"))
    article: Literal["none", "a_an"] = field(
        default="none", metadata=about("article in the judge's question", "How")
    )
    evidence: Literal["both", "own"] = field(
        default="both",
        metadata=about("what judges are asked for the record: both protocols' questions, or only these", "How"),
    )
    seed: NonNegativeInt = field(
        default=0, metadata=about("run seed; every sample derives its own from it", "How")
    )
    steps: PositiveInt | None = field(
        default=None, metadata=about("sampling steps, if not the editor's own", "How")
    )
    guidance_scale: PositiveFloat | None = field(
        default=None, metadata=about("text guidance, if not the editor's own", "How")
    )
    image_guidance_scale: PositiveFloat | None = field(
        default=None, metadata=about("image guidance, if not the editor's own", "How")
    )
    batch_size: PositiveInt = field(
        default=16, metadata=about("samples per block; lower it when memory runs out", "Machine")
    )
    device: str = field(default="auto", metadata=about("auto, cpu, cuda, cuda:1, mps", "Machine"))
    dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32", metadata=about("number type of the editors", "Machine")
    )
    judge_dtype: Literal["float32", "bfloat16", "float16"] = field(
        default="float32",
        metadata=about("number type of the judges (encoders always measure in float32)", "Machine"),
    )
    editor_options: dict[str, Any] = field(
        default_factory=dict,
        metadata=about("further options of the editor: --editor-options.resize none", "How"),
    )
    out: str | None = field(default=None, metadata=about("result folder; default runs/<preset>", "Files"))
    cache: str | None = field(
        default=None, metadata=about("folder of cached target features; default OUT/cache", "Files")
    )
    overwrite: bool = field(
        default=False,
        metadata=about("discard earlier results that a changed configuration contradicts", "Files"),
    )
    models: ModelsConfig = field(default_factory=ModelsConfig)

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/{self.preset}")

    @property
    def cache_dir(self) -> Path:
        return Path(self.cache) if self.cache else self.out_dir / "cache"

    @property
    def tracks(self) -> list[str]:
        return ["negative", *self.control]

    def editor_overrides(self) -> dict[str, Any]:
        """The sampler settings that were given, by the names `editors.get_editor` takes."""
        given = {key: getattr(self, key) for key in ("steps", "guidance_scale", "image_guidance_scale")}
        return {**{key: value for key, value in given.items() if value is not None}, **self.editor_options}

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def parse(argv: Sequence[str]) -> tuple[EvalConfig, bool]:
    """The checked configuration of a command line, and whether `--dry-run` was given.

    Raises UserError for anything wrong with it; prints and raises SystemExit(0) for `--help`.
    """
    arguments, files = _files_first(argv)
    preset = _preset_of(arguments, files)
    parser = _parser(preset)
    try:
        found = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        flags = [
            flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")
        ]
        models_hints = typing.get_type_hints(ModelsConfig).items()
        hints = {**typing.get_type_hints(EvalConfig), **{f"models.{key}": hint for key, hint in models_hints}}
        raise complaint(error, flags, hints) from None
    values = found.as_dict()
    dry_run = values.pop("dry_run")
    models = ModelsConfig(**values.pop("models"))
    known = {item.name for item in dataclasses.fields(EvalConfig)}
    config = EvalConfig(
        **{key: _plain(value) for key, value in values.items() if key in known}, models=models
    )
    config.metrics = _metrics(config.metrics)
    _check(config)
    return config, dry_run


def dump(config: EvalConfig) -> str:
    """The configuration as YAML that `--config` reads back."""
    import yaml

    return yaml.safe_dump(config.as_dict(), sort_keys=False, allow_unicode=True)


def preset_file(preset: str) -> Path:
    """`configs/<preset>.yaml`, in an installed package or in a checkout."""
    here = Path(__file__).resolve().parent
    for folder in (here / "configs", here.parent / "configs"):
        if (folder / f"{preset}.yaml").is_file():
            return folder / f"{preset}.yaml"
    raise UserError(f"The file configs/{preset}.yaml is missing from this installation; install nein again.")


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows a default where there is one, lists as they are typed."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if default is None or default is False or default == argparse.SUPPRESS or default in ([], {}):
            return text
        return f"{text} (default: {','.join(default) if isinstance(default, list) else default})"


def _parser(preset: str) -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(
        prog="nein-eval",
        usage="%(prog)s [OPTIONS]",
        formatter_class=Help,
        print_config=None,  # --dry-run does that, and checks more
        description="Edit, score, report: how image editors follow instructions that say what is absent.",
        epilog="Precedence: command line, then --config, then the preset. Documentation: README.md.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", action=jsonargparse.ActionConfigFile, help="YAML file with any of these options"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and stop")
    hints = typing.get_type_hints(EvalConfig)
    groups: dict[str, Any] = {}
    for item in dataclasses.fields(EvalConfig):
        if item.name == "models":
            continue
        title = item.metadata["group"]
        group = groups.setdefault(title, None) or parser.add_argument_group(title)
        groups[title] = group
        _add(group, item.name.replace("_", "-"), item, hints[item.name])
    model_hints = typing.get_type_hints(ModelsConfig)
    group = parser.add_argument_group(
        "Models", "nano:NAME, a hub id owner/name[@revision], or a local folder"
    )
    for item in dataclasses.fields(ModelsConfig):
        _add(group, f"models.{item.name}", item, model_hints[item.name])
    parser.set_defaults(_flat(_read_yaml(preset_file(preset))))
    return parser


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    models = {f"models.{key}": value for key, value in values.pop("models", {}).items()}
    return {**values, **models}


def _add(group: Any, flag: str, item: dataclasses.Field[Any], hint: Any) -> None:
    factory = item.default_factory
    default = item.default if factory is dataclasses.MISSING else factory()
    text = item.metadata["help"]
    if hint is bool:
        group.add_argument(f"--{flag}", action="store_true", default=default, help=text)
    else:
        group.add_argument(f"--{flag}", type=names if hint == Names else hint, default=default, help=text)


def _files_first(argv: Sequence[str]) -> tuple[list[str], list[Path]]:
    """Moves `--config` in front of everything else, and joins repeated `--editor a --editor b`.

    jsonargparse applies options in the order they stand; here a flag beats a file wherever it stands.
    """
    listed = {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(EvalConfig) if f.type == "Names"}
    front: list[str] = []
    rest: list[str] = []
    lists: dict[str, list[str]] = {}
    items = list(argv)
    while items:
        item = items.pop(0)
        flag, equals, value = item.partition("=")
        if flag == "--config" or flag in listed:
            if not equals:
                if not items or items[0].startswith("--"):
                    raise UserError(f"{flag} needs a value; see nein-eval --help.")
                value = items.pop(0)
            if flag == "--config":
                front.append(value)
            else:
                lists.setdefault(flag, []).append(value)
        else:
            rest.append(item)
    joined = [f"{flag}={','.join(values)}" for flag, values in lists.items()]
    for value in front:
        if not Path(value).is_file():
            raise UserError(f"There is no configuration file '{value}'.")
    return [part for value in front for part in ("--config", value)] + rest + joined, [Path(p) for p in front]


def _preset_of(arguments: Sequence[str], files: Sequence[Path]) -> str:
    """The preset named on the command line, else by the last configuration file that names one, else nano."""
    preset = "nano"
    for file in files:
        preset = _read_yaml(file).get("preset", preset)
    for index, item in enumerate(arguments):
        if item.startswith("--preset="):
            preset = item.partition("=")[2]
        elif item == "--preset" and index + 1 < len(arguments):
            preset = arguments[index + 1]
    if preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    return preset


def _read_yaml(file: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"The configuration file '{file}' is not valid YAML: {detail}.") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"The configuration file '{file}' must hold 'key: value' lines.")
    return content or {}


def _plain(value: Any) -> Any:
    """jsonargparse's restricted numbers as Python's own, which YAML and JSON can write."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, int) else float(value)


def _metrics(wanted: list[str]) -> list[str]:
    import metrics

    if wanted == ["all"]:
        return list(metrics.INFO)
    for name in wanted:
        if name not in metrics.INFO:
            raise unknown("metric", name, metrics.INFO)
    return [name for name in metrics.INFO if name in wanted]


def _check(config: EvalConfig) -> None:
    for what, given, allowed in (
        ("stage", config.stages, STAGES),
        ("control", config.control, ("remove", "add")),
    ):
        for name in given:
            if name not in allowed:
                raise unknown(what, name, allowed)
    if not config.editor:
        raise UserError("No editor was named; say --editor NAME, a comma list, or all.")
    if not config.stages:
        raise UserError(f"No stage was named; --stages takes some of {', '.join(STAGES)}.")
    if "score" in config.stages and not config.metrics:
        raise UserError("No metric was named; --metrics takes a comma list, or all.")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", config.device):
        raise UserError(f"--device is '{config.device}'; it must be auto, cpu, cuda, cuda:N or mps.")
    if config.preset == "paper" and config.data == "nano" and config.stages != ["report"]:
        raise UserError(
            "The paper preset needs NeIn's data: --data FOLDER (with val.json, coco_for_val/ and nein_val/) "
            "or --data hub:OWNER/NAME."
        )
