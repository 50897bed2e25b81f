"""From a dataclass to a command line: one parser for every command that has presets and configuration files.

Precedence: command line > `--config FILE` > preset (`configs/<folder><preset>.yaml`) > default. Reading,
merging and type checks are jsonargparse's; complaints become one sentence with a near match. A field's
metadata (`about`) holds its help text and heading; a field that is itself a dataclass becomes a group of
dotted options.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import jsonargparse

from nein.config.complaints import complaint
from nein.engine.errors import UserError, unknown

PRESETS = ("nano", "paper")
Config = TypeVar("Config")

#: A list of names: `a,b` on the command line (repeatable), a YAML list in a file.
Names = list[str]


def about(text: str, group: str = "") -> dict[str, str]:
    """A field's help text, and the heading of `--help` under which it stands."""
    return {"help": text, "group": group}


def names(value: Any) -> Names:
    """["a", "b"] from "a,b" or from a list; "none" and "" are the empty list."""
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    found = [str(item).strip() for item in items if str(item).strip()]
    return [] if found == ["none"] else list(dict.fromkeys(found))


def read(
    cls: type[Config], argv: Sequence[str], *, prog: str, description: str, folder: str, **groups: str
) -> tuple[Config, bool]:
    """The configuration of a command line, types checked, and whether `--dry-run` was given.

    cls     A dataclass with a field `preset`; fields without a help text (`about`) must be dataclasses.
    folder  Below `configs`, where the command's presets are: "nein/eval-", say.
    groups  Name of a nested dataclass field -> what `--help` says about it.

    Raises UserError for anything wrong; prints and raises SystemExit(0) for `--help`.
    """
    arguments, files = _files_first(cls, argv, prog)
    parser = _parser(cls, _preset_of(arguments, files), prog, description, folder, groups)
    try:
        found = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        flags = [
            flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")
        ]
        raise complaint(error, flags, _hints(cls), prog) from None
    values = found.as_dict()
    dry_run = values.pop("dry_run")
    nested = {
        name: kind(**{key: _plain(value) for key, value in values.pop(name).items()})
        for name, kind in _nested(cls).items()
    }
    known = {item.name for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    plain = {key: _plain(value) for key, value in values.items() if key in known}
    return cls(**plain, **nested), dry_run


def dump(config: Any) -> str:
    """A configuration as YAML that `--config` reads back."""
    import yaml

    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False, allow_unicode=True)


def preset_file(preset: str, folder: str) -> Path:
    """`configs/<folder><preset>.yaml`, in an installed package or in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for root in (here / "configs", here.parent / "configs"):
        if (root / f"{folder}{preset}.yaml").is_file():
            return root / f"{folder}{preset}.yaml"
    raise UserError(
        f"The file configs/{folder}{preset}.yaml is missing from this installation; install nein again."
    )


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows a default where there is one, lists as they are typed."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if default is None or default is False or default == argparse.SUPPRESS or default in ([], {}):
            return text
        return f"{text} (default: {','.join(default) if isinstance(default, list) else default})"


def _parser(
    cls: type, preset: str, prog: str, description: str, folder: str, titles: dict[str, str]
) -> jsonargparse.ArgumentParser:
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        usage="%(prog)s [OPTIONS]",
        formatter_class=Help,
        print_config=None,  # --dry-run does that, and checks more
        description=description,
        epilog="Precedence: command line, then --config, then the preset. Documentation: README.md.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", action=jsonargparse.ActionConfigFile, help="YAML file with any of these options"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and stop")
    hints, nested = typing.get_type_hints(cls), _nested(cls)
    groups: dict[str, Any] = {}
    for item in dataclasses.fields(cls):
        if item.name in nested:
            continue
        title = item.metadata["group"]
        group = groups.setdefault(title, None) or parser.add_argument_group(title)
        groups[title] = group
        _add(group, item.name.replace("_", "-"), item, hints[item.name])
    for name, kind in nested.items():
        inner = typing.get_type_hints(kind)
        group = parser.add_argument_group(name.capitalize(), titles.get(name, ""))
        for item in dataclasses.fields(kind):
            _add(group, f"{name}.{item.name}", item, inner[item.name])
    parser.set_defaults(_flat(_read_yaml(preset_file(preset, folder)), nested))
    return parser


def _nested(cls: type) -> dict[str, Any]:
    return {name: hint for name, hint in typing.get_type_hints(cls).items() if dataclasses.is_dataclass(hint)}


def _hints(cls: type) -> dict[str, Any]:
    """Type of every option, dotted names included."""
    hints = typing.get_type_hints(cls)
    for name, kind in _nested(cls).items():
        hints |= {f"{name}.{key}": hint for key, hint in typing.get_type_hints(kind).items()}
    return hints


def _flat(values: dict[str, Any], nested: dict[str, Any]) -> dict[str, Any]:
    inner = {f"{n}.{key}": value for n in nested for key, value in values.pop(n, {}).items()}
    return {**values, **inner}


def _add(group: Any, flag: str, item: dataclasses.Field[Any], hint: Any) -> None:
    factory = item.default_factory
    default = item.default if factory is dataclasses.MISSING else factory()
    text = item.metadata["help"]
    if hint is bool:
        group.add_argument(f"--{flag}", action="store_true", default=default, help=text)
    else:
        group.add_argument(f"--{flag}", type=names if hint == Names else hint, default=default, help=text)


def _files_first(cls: type, argv: Sequence[str], prog: str) -> tuple[list[str], list[Path]]:
    """Moves `--config` in front of everything else, and joins repeated `--editor a --editor b`.

    jsonargparse applies options in the order they stand; here a flag beats a file wherever it stands.
    """
    listed = {f"--{n.replace('_', '-')}" for n, hint in typing.get_type_hints(cls).items() if hint == Names}
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
                    raise UserError(f"{flag} needs a value; see {prog} --help.")
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
