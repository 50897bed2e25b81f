"""From a dataclass to a command line: one parser for every command.

Precedence: command line > `--config FILE` > preset (`configs/<presets><preset>.yaml`) > default. Reading,
merging and type checks are jsonargparse's; complaints become one sentence with a near match. A field is
declared by `option` or `argument`; a field that is itself a dataclass becomes a group of dotted options, its
docstring the words above them. Groups that several commands share are in `nein.config.groups`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jsonargparse
import yaml

from nein.config.complaints import complaint
from nein.engine import store
from nein.engine.errors import UserError, chosen, unknown
from nein.engine.store import Need

PRESETS = ("nano", "paper")
#: How jsonargparse reads values here: as YAML, but for a `#` at the start of a word, which is no comment.
MODE = "words"
#: Options that are typed often -> their second flag, in every command that has them.
SHORT = {"out": "-o", "number": "-n"}

#: A list of names: `a,b` on the command line (repeatable), a YAML list in a file.
Names = list[str]
#: A list of files or folders, given in the same way.
Paths = list[Path]


class Options:
    """The options of a command. Subclasses are dataclasses whose fields are made by `option` and `argument`.

    A field that a shared group declares keeps its help text where a subclass changes the default only.
    """

    #: Start of the names of its presets below `configs` ("negbench/eval-"), or None where it has none.
    presets: ClassVar[str | None] = None
    #: The option that names one of them, which there are, and which counts where none is named.
    preset_option: ClassVar[str] = "preset"
    preset_names: ClassVar[Sequence[str]] = PRESETS
    default_preset: ClassVar[str | None] = "nano"
    #: Words at the end of `--help`.
    epilog: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Puts the credentials of endpoints aside: what comes after has references without them."""
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            setattr(self, item.name, _without_credentials(getattr(self, item.name)))

    def check(self) -> None:
        """Everything that can be wrong with the words alone. Raises UserError."""

    def needs(self) -> list[Need]:
        """The models and data that the command reads from elsewhere, for `nein fetch`; nothing is loaded.
        Raises UserError, EditorError or MetricError for a name that there is not."""
        return []

    def announced(self) -> list[str]:
        """What `--dry-run` prints behind the options, as comments."""
        return []

    @classmethod
    def parse(cls: type[Given], argv: Sequence[str]) -> Given:
        """The checked options of a command line, as `read` gives them."""
        return read(cls, argv)[0]

    @classmethod
    def of(cls: type[Given], **values: Any) -> Given:
        """The checked options of a call in Python: what is None or not named comes from the preset."""
        return read(cls, words(values))[0]


Given = TypeVar("Given", bound=Options)


def _without_credentials(value: Any) -> Any:
    if isinstance(value, str) and "://" in value:
        from metrics import credentials  # not for a command that asks nobody

        return credentials.put_aside(value)
    if isinstance(value, list):
        return [_without_credentials(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _without_credentials(inner) for key, inner in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **_without_credentials(vars(value)))
    return value


def option(default: Any, text: str, group: str = "", **more: Any) -> Any:
    """A field of a command's dataclass: `--name VALUE`.

    text   What `--help` says; `<presets>`, `<counted>` and `<default_out>` stand for these attributes of the
           class.
    group  The heading of `--help` under which it stands.
    more   Further metadata. `typed`: its name for who types it, where Python needs another. `negatable`:
           --no-NAME is a flag too.
           `among`: the words a list may hold, and `what` one of them is called in a complaint.
    """
    metadata = {"help": text, "group": group, **more}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def argument(metavar: str, text: str) -> Any:
    """A field of a command's dataclass that is given by its place; of a list, at least one."""
    return dataclasses.field(metadata={"help": text, "metavar": metavar})


def words(values: Mapping[str, Any], start: str = "--") -> list[str]:
    """The command line that says the same as `values`; mappings are dotted options."""
    line: list[str] = []
    for name, value in values.items():
        flag = f"{start}{name.replace('_', '-')}" if start == "--" else f"{start}{name}"
        if isinstance(value, Mapping):
            line += words(value, f"{flag}.")
        elif isinstance(value, list | tuple | set):
            line.append(f"{flag}={','.join(map(str, value)) or 'none'}")
        elif value is True:
            line.append(flag)
        elif value is not None and value is not False:
            line.append(f"{flag}={value}")
    return line


def names(value: Any) -> Names:
    """["a", "b"] from "a,b" or from a list; "none" and "" are the empty list."""
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    words = [str(item).strip() for item in items if str(item).strip()]
    return [] if words == ["none"] else list(dict.fromkeys(words))


def paths(value: Any) -> Paths:
    """As `names`, for files and folders."""
    return [Path(name) for name in names(value)]


LISTS: dict[Any, Any] = {Names: names, Paths: paths}


def read(
    cls: type[Given],
    argv: Sequence[str],
    *,
    prog: str = "nein",
    description: str = "",
    to_fetch: bool = False,
) -> tuple[Given, bool]:
    """The checked options of a command line, and whether `--dry-run` was given. With `--models-from` they are
    in force from here on.

    prog      What is typed before the options, for `--help` and complaints.
    to_fetch  What the command needs is about to be downloaded: only that is asked of the options, and what
              has to be on this machine is not looked for.

    Raises UserError for anything wrong; prints and raises SystemExit(0) for `--help`.
    """
    arguments, files = _files_first(cls, argv, prog)
    parser = make_parser(cls, prog, description)
    if cls.presets is not None:
        preset = _preset_of(cls, arguments, files)
        if preset is not None:
            parser.set_defaults(_flat(_read_yaml(preset_file(preset, cls.presets)), _nested(cls)))
    try:
        parsed = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise _complaint(error, parser, cls, prog) from None
    values = {key: _plain(value) for key, value in parsed.as_dict().items()}
    nested = {name: kind(**values.pop(name)) for name, kind in _nested(cls).items()}
    typed = {item.name: key(cls, item) for item in fields(cls)}
    given = cls(**{name: values[word] for name, word in typed.items() if word in values}, **nested)
    _check_lists(given)
    folder = values.get("models_from")
    if folder and not to_fetch:
        store.use(folder)
    if not to_fetch:
        given.check()
    if folder and not to_fetch:
        store.check(folder, given.needs())
    return given, values["dry_run"]


def _complaint(
    error: argparse.ArgumentError, parser: argparse.ArgumentParser, cls: type[Options], prog: str
) -> UserError:
    actions = parser._actions
    if missing := re.search(r"arguments are required: (.*)", str(error)):
        shown = {action.dest: str(action.metavar) for action in actions}
        needed = " and ".join(shown.get(dest, dest) for dest in missing.group(1).split(", "))
        return UserError(f"{prog} needs {needed}; see {prog} --help.")
    flags = [flag for action in actions for flag in action.option_strings if flag.startswith("--")]
    return complaint(error, flags, hints(cls), prog)


def _check_lists(given: Options) -> None:
    """Puts the words of a list as they are written in `among`. Raises UserError for one that is not there."""
    for item in fields(type(given)):
        facts = metadata(type(given), item)
        if "among" in facts:
            words = [chosen(facts["what"], name, facts["among"]) for name in getattr(given, item.name)]
            setattr(given, item.name, list(dict.fromkeys(words)))


def dump(config: Options) -> str:
    """Options as YAML that `--config` reads back."""
    values = {key(type(config), item): getattr(config, item.name) for item in fields(type(config))}
    return yaml.safe_dump(_written(values), sort_keys=False, allow_unicode=True)


def preset_file(preset: str, start: str) -> Path:
    """`configs/<start><preset>.yaml`, in an installed package or in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for root in (here / "configs", here.parent / "configs"):
        if (root / f"{start}{preset}.yaml").is_file():
            return root / f"{start}{preset}.yaml"
    raise UserError(
        f"The file configs/{start}{preset}.yaml is missing from this installation; install nein again."
    )


def fields(cls: type) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a dataclass: those that it declares itself, then those of its groups."""
    every = {item.name: item for item in dataclasses.fields(cls)}
    declared = [name for name in inspect.get_annotations(cls) if name in every and every[name].metadata]
    yield from (every.pop(name) for name in declared)
    yield from every.values()


def metadata(cls: type, item: dataclasses.Field[Any]) -> Mapping[str, Any]:
    """Of a field, from the group that declares it where the class changes its default only."""
    if item.metadata:
        return item.metadata
    declared = (vars(base).get("__dataclass_fields__", {}).get(item.name) for base in cls.__mro__)
    return next((one.metadata for one in declared if one is not None and one.metadata), {})


def key(cls: type, item: dataclasses.Field[Any]) -> str:
    """The name of a field on the command line and in files."""
    return str(metadata(cls, item).get("typed", item.name))


def _load(text: str) -> Any:
    """A value or a file as YAML; what is one comment in YAML, "#112233" say, is a text."""
    return text if re.fullmatch(r"\s*#.*", text) else jsonargparse.get_loader("yaml")(text)


jsonargparse.set_loader(MODE, _load, (yaml.YAMLError,))


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Help that shows a default where there is one, lists as they are typed."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if default is None or default is False or default == argparse.SUPPRESS or default in ([], {}, ""):
            return text
        return f"{text} (default: {','.join(default) if isinstance(default, list) else default})"


def make_parser(cls: type[Options], prog: str, description: str) -> jsonargparse.ArgumentParser:
    """The parser of a command, without the values of a preset."""
    outer, nested = _types(cls), _nested(cls)
    places = [item for item in fields(cls) if "metavar" in item.metadata]
    source = "--config, then the preset" if cls.presets is not None else "--config"
    parser = jsonargparse.ArgumentParser(
        prog=prog,
        usage=" ".join(["%(prog)s", *(item.metadata["metavar"] for item in places), "[OPTIONS]"]),
        formatter_class=Help,
        print_config=None,  # --dry-run does that, and checks more
        parser_mode=MODE,
        description=description,
        epilog=f"{cls.epilog} Precedence: command line, then {source}. Documentation: README.md.".strip(),
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config", action=jsonargparse.ActionConfigFile, help="YAML file with any of these options"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and stop")
    groups: dict[str, Any] = {}
    for item in fields(cls):
        if item.name not in nested:
            title = metadata(cls, item).get("group", "")
            if title not in groups:
                groups[title] = parser.add_argument_group(title) if title else parser
            _add(groups[title], cls, key(cls, item).replace("_", "-"), item, outer[item.name])
    for name, kind in nested.items():
        inner = _types(kind)
        group = parser.add_argument_group(name.capitalize(), " ".join((kind.__doc__ or "").split()))
        for item in dataclasses.fields(kind):
            _add(group, kind, f"{name}.{item.name}", item, inner[item.name])
    return parser


def _add(group: Any, cls: type, flag: str, item: dataclasses.Field[Any], hint: Any) -> None:
    facts = metadata(cls, item)
    text = re.sub("<(presets|counted|default_out)>", lambda m: getattr(cls, m.group(1)), facts["help"])
    if "metavar" in facts:
        many = {"nargs": "+", "type": Path if hint == Paths else str} if hint in LISTS else {"type": hint}
        group.add_argument(item.name, metavar=facts["metavar"], help=text, **many)
        return
    flags = [f"--{flag}", *([SHORT[flag]] if flag in SHORT else [])]
    factory = item.default_factory
    default = item.default if factory is dataclasses.MISSING else factory()
    if facts.get("negatable"):
        yes_no: Any = jsonargparse.ActionYesNo(no_prefix="no-")
        group.add_argument(*flags, action=yes_no, default=default, help=text)
    elif hint is bool:
        group.add_argument(*flags, action="store_true", default=default, help=text)
    elif hint == bool | None:
        group.add_argument(*flags, action=argparse.BooleanOptionalAction, default=default, help=text)
    else:
        group.add_argument(*flags, type=LISTS.get(hint, hint), default=default, help=text)


def _types(cls: Any) -> Mapping[str, Any]:
    return _worked_out(cls)


_worked_out = functools.cache(typing.get_type_hints)


def _nested(cls: type) -> dict[str, Any]:
    return {name: hint for name, hint in _types(cls).items() if dataclasses.is_dataclass(hint)}


def hints(cls: type) -> dict[str, Any]:
    """Type of every option, dotted names included."""
    types = dict(_types(cls))
    for name, kind in _nested(cls).items():
        types |= {f"{name}.{key}": hint for key, hint in _types(kind).items()}
    return types


def _flat(values: dict[str, Any], nested: dict[str, Any]) -> dict[str, Any]:
    inner = {f"{n}.{key}": value for n in nested for key, value in values.pop(n, {}).items()}
    return {**values, **inner}


def _files_first(cls: type[Options], argv: Sequence[str], prog: str) -> tuple[list[str], list[Path]]:
    """Moves `--config` in front of everything else, and joins repeated `--editor a --editor b`.

    jsonargparse applies options in the order they stand; here a flag beats a file wherever it stands.
    """
    listed = {f"--{n.replace('_', '-')}" for n, hint in _types(cls).items() if hint in LISTS.keys()}
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


def _preset_of(cls: type[Options], arguments: Sequence[str], files: Sequence[Path]) -> str | None:
    """The preset named on the command line, else by the last configuration file that names one, else the
    default."""
    flag, preset = f"--{cls.preset_option}", cls.default_preset
    for file in files:
        preset = _read_yaml(file).get(cls.preset_option) or preset
    for index, item in enumerate(arguments):
        if item.startswith(f"{flag}="):
            preset = item.partition("=")[2]
        elif item == flag:
            if index + 1 == len(arguments):
                raise UserError(f"{flag} needs a value: {', '.join(cls.preset_names)}.")
            preset = arguments[index + 1]
    if preset is not None and preset not in cls.preset_names:
        raise unknown(cls.preset_option, str(preset), cls.preset_names)
    return preset


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"The configuration file '{file}' is not valid YAML: {detail}.") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"The configuration file '{file}' must hold 'key: value' lines.")
    return content or {}


def _plain(value: Any) -> Any:
    """jsonargparse's restricted numbers and words as Python's own, which YAML and JSON can write."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _written(value: Any) -> Any:
    """Paths as text, nested dataclasses as mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _written(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_written(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
