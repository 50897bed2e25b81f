"""From a dataclass to a command line: argparse reads the words, pydantic checks the values.

Precedence: command line > `--config FILE` > preset (`configs/<presets><preset>.yaml`) > default. A field that
is itself a dataclass becomes a group of dotted options, its docstring the words above them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn, TypeVar

import pydantic
import yaml
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from nein.engine.errors import UserError, chosen, near_match, unknown
from nein.engine.processes import DEVICES, DEVICES_SAID
from nein.loading import credentials
from nein.loading.references import Need

PRESETS = ("nano", "paper")
#: Options that are typed often -> their second flag, in every command that has them.
SHORT = {"out": "-o", "number": "-n"}

#: A list of names: `a,b` on the command line (repeatable), a YAML list in a file.
Names = list[str]
#: A list of files or folders, given in the same way.
Paths = list[Path]
UnitInterval = Annotated[float, pydantic.Field(ge=0, le=1)]
#: How many scenes, pairs or questions are drawn: each is a file or more.
DrawnCount = Annotated[int, pydantic.Field(gt=0, le=1_000_000)]
Device = Annotated[str, pydantic.Field(pattern=f"^({DEVICES})$")]

EXPECTED: dict[Any, str] = {
    Device: DEVICES_SAID,
    PositiveInt: "a whole number above 0",
    NonNegativeInt: "a whole number, 0 or above",
    DrawnCount: "a whole number from 1 to 1,000,000",
    int: "a whole number",
    PositiveFloat: "a number above 0",
    NonNegativeFloat: "a number, 0 or above",
    UnitInterval: "a number from 0 to 1",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Path: "a path",
}


class Options:
    """The options of a command: a dataclass of fields by `option` and `argument`. A subclass that changes a
    default keeps the help."""

    #: Prefix of its presets below `configs` ("negbench/eval-") or None; their option, names and default.
    presets: ClassVar[str | None] = None
    preset_option: ClassVar[str] = "preset"
    preset_names: ClassVar[Sequence[str]] = PRESETS
    default_preset: ClassVar[str | None] = "nano"
    #: Words at the end of `--help`.
    epilog: ClassVar[str] = ""

    def __post_init__(self) -> None:
        """Raises UserError for an address with a user, password or query."""
        for item in dataclasses.fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            credentials.check(vars(value) if dataclasses.is_dataclass(value) else value)

    def check(self) -> None:
        """Everything that can be wrong with the words alone. Raises UserError."""

    def needs(self) -> list[Need]:
        """The models and data that the command reads from elsewhere, for `nein fetch`. Raises UserError,
        EditorError or MetricError for an unknown name."""
        return []

    @classmethod
    def parse(cls: type[Given], argv: Sequence[str]) -> Given:
        """The checked options of a command line, as `read` gives them."""
        return read(cls, argv)[0]

    @classmethod
    def of(cls: type[Given], **values: Any) -> Given:
        """The checked options of a call in Python; what is None or not given comes from the preset."""
        known = [item.key for item in fields(cls)]
        given = _written({name: value for name, value in values.items() if value is not None})
        for name, value in given.items():
            if isinstance(value, dict):
                given[name] = {inner: entry for inner, entry in value.items() if entry is not None}
            if name not in known:
                raise unknown("argument", name, known)
        return _build(cls, _with_preset(cls, [given]))


Given = TypeVar("Given", bound=Options)


def option(default: Any, text: str, group: str = "", **more: Any) -> Any:
    """A field of a command's dataclass: `--name VALUE`.

    text   For `--help`, under the heading `group`; `<presets>`, `<counted>`, `<default_out>` are filled in.
    more   `typed`: another name on the command line. `negatable`: adds --no-NAME. `among`: the words a list
           may hold, each called `what`.
    """
    metadata = {"help": text, "group": group, **more}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def argument(metavar: str, text: str, default: Any = dataclasses.MISSING) -> Any:
    """A positional field; of a list, at least one. Optional if it has a default."""
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar})


def names(value: Any) -> Names:
    # ["a", "b"] from "a,b" or from a list; "none" and "" are the empty list.
    items = value if isinstance(value, list | tuple | set) else str(value).split(",")
    # A stripped string stays the object that it is: it may carry a model.
    words = [item if isinstance(item, str) and item == item.strip() else str(item).strip() for item in items]
    words = [word for word in words if word]
    return [] if words == ["none"] else words


LISTS: dict[Any, Callable[[Any], Any]] = {Names: names, Paths: lambda value: [*map(Path, names(value))]}


def read(
    cls: type[Given],
    argv: Sequence[str],
    *,
    prog: str = "nein",
    description: str = "",
    to_fetch: bool = False,
) -> tuple[Given, bool]:
    """The checked options of a command line, and whether `--dry-run` was given.

    prog      The command, for `--help` and errors.
    to_fetch  Accept what is not on this machine yet.

    Raises UserError; for `--help` prints and raises SystemExit(0).
    """
    typed = _typed(cls, argv, prog)
    files = [_read_yaml(Path(file)) for file in typed.pop("config", [])]
    dry_run, wants_help = typed.pop("dry_run", False), typed.pop("help", False)
    values = _with_preset(cls, [*files, typed])
    if wants_help:
        make_parser(cls, prog, description, values).print_help()
        raise SystemExit(0)
    return _build(cls, values, prog, to_fetch), dry_run


def _flag(name: str) -> str:  # underscores of `models.vqa_options` stay
    return name if name.isupper() else "--" + (name if "." in name else name.replace("_", "-"))


def _typed(cls: type[Options], argv: Sequence[str], prog: str) -> dict[str, Any]:
    """What stands on the command line, by its key; dotted options are nested."""
    parser, every = make_parser(cls, prog, ""), flat(cls)
    mappings = {f"{_flag(key)}.": key for key, item in every.items() if typing.get_origin(item.hint) is dict}
    plain: list[str] = []
    typed: dict[str, Any] = {}
    items = list(argv)
    while items:
        flag, equals, value = items.pop(0).partition("=")
        start = next((start for start in mappings if flag.startswith(start)), "")
        if entry := flag[len(start) :] if start else "":  # --editor-options.steps 3: any key
            if not equals and (not items or items[0].startswith("--")):
                raise UserError(f"{flag} needs a value; see {prog} --help.")
            of_text = typing.get_args(every[mappings[start]].hint)[1:] == (str,)
            text = value if equals else items.pop(0)
            outer, _, inner = mappings[start].rpartition(".")  # --models.vqa_options.detail low
            group = typed.setdefault(outer, {}) if outer else typed
            group.setdefault(inner, {})[entry] = text if of_text else _load(text, flag)
        else:
            plain.append(f"{flag}{equals}{value}")
    for name, given in vars(parser.parse_args(plain)).items():
        outer, _, inner = name.partition(".")
        if name in every and every[name].hint in LISTS and "metavar" not in every[name].metadata:
            given = ",".join(given if len(given) == 1 else dict.fromkeys(",".join(given).split(",")))
        group = typed.setdefault(outer, {}) if inner else typed
        if name in mappings.values():  # whole, beside single entries
            whole = _load(given, name)
            given = {**whole, **group.get(inner or name, {})} if isinstance(whole, dict) else whole
        group[inner or name] = given
    return typed


def _with_preset(cls: type[Options], sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of the preset that the last of the sources names, and of the sources over it."""
    values: dict[str, Any] = {}
    if cls.presets is not None:
        named = [source[cls.preset_option] for source in sources if source.get(cls.preset_option) is not None]
        preset = named[-1] if named else cls.default_preset
        if preset is not None and preset not in cls.preset_names:
            raise unknown(cls.preset_option, str(preset), cls.preset_names)
        if preset is not None:
            values = _read_yaml(preset_file(preset, cls.presets))
    for source in sources:
        for name, value in source.items():
            inner: Any = values.get(name)
            both = isinstance(inner, dict) and isinstance(value, dict)
            values[name] = {**inner, **value} if both else value
    return values


def _build(cls: type[Given], values: Mapping[str, Any], prog: str = "nein", to_fetch: bool = False) -> Given:
    """The checked options of these values, by their keys. Raises UserError."""
    by_key, checked = {item.key: item for item in fields(cls)}, {}
    _check_keys(values, by_key, prog)
    for name, value in values.items():
        item = by_key[name]
        if dataclasses.is_dataclass(item.hint):
            if not isinstance(value, Mapping):
                raise UserError(f"{name} is '{value}'; it must hold 'key: value' lines.")
            group: Any = item.hint
            inner = {field.key: field.hint for field in fields(group)}
            _check_keys(value, inner, prog, f"{name}.")
            entries = {key: _checked(inner[key], entry, f"{name}.{key}") for key, entry in value.items()}
            checked[item.name] = group(**entries)
        else:
            checked[item.name] = _checked(item.hint, value, item.metadata.get("metavar", name))
    needed = [item for item in fields(cls) if item.default is dataclasses.MISSING]
    if missing := [item.metadata["metavar"] for item in needed if not checked.get(item.name)]:
        words = [f": {', '.join(choices)}" for need in needed[:1] if (choices := literals(need.hint))]
        raise UserError(f"{prog} needs {' and '.join(missing)}{(words or [f'; see {prog} --help'])[0]}.")
    given = cls(**checked)
    for item in fields(cls):  # words of a list as they are written in `among`
        if among := item.metadata.get("among"):
            words = [chosen(item.metadata["what"], name, among) for name in getattr(given, item.name)]
            setattr(given, item.name, list(dict.fromkeys(words)))
    if not to_fetch:
        given.check()
    return given


def _check_keys(values: Mapping[str, Any], allowed: Mapping[str, Any], prog: str, start: str = "") -> None:
    for name in values:
        if name not in allowed:
            near = near_match(str(name), allowed)
            guess = f"; did you mean '{start}{near}'?" if near else f"; see {prog} --help for the keys."
            raise UserError(f"Unknown key '{start}{name}'{guess}")


def _checked(hint: Any, value: Any, name: str) -> Any:
    """The value as its type has it: numbers and switches may be given as text. Raises UserError."""
    if hint in LISTS:
        given = LISTS[hint](value)
        if twice := [word for word in given if given.count(word) > 1]:
            raise UserError(f"{_flag(name)} names '{twice[0]}' twice.")
        return given
    if value in (None, "null") and type(None) in typing.get_args(hint):
        return None
    try:
        if isinstance(value, bool) and bool not in (hint, *typing.get_args(hint)):
            raise ValueError
        return _adapter(hint).validate_python(value)
    except ValueError:  # pydantic's own is one
        flag = _flag(name)
        raise UserError(f"{flag} is '{value}'; it must be {_expected(hint, str(value))}") from None


def _expected(hint: Any, value: str) -> str:
    if hint in EXPECTED:
        return f"{EXPECTED[hint]}."
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        near = near_match(value, parts)
        return f"one of {', '.join(parts)}" + (f" (did you mean '{near}'?)" if near else ".")
    if typing.get_origin(hint) is dict:
        return "a mapping."
    return _expected(parts[0], value) if len(parts) == 1 else f"{hint}."  # the first of `kind | None`


def dump(config: Options) -> str:
    """Options as YAML that `--config` reads back."""
    values = {item.key: getattr(config, item.name) for item in fields(type(config))}
    plain = json.loads(json.dumps(_written(values)))  # strings that are nothing more
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def preset_file(preset: str, start: str) -> Path:
    """`configs/<start><preset>.yaml`, in an installed package or in a checkout."""
    here = Path(__file__).resolve().parents[1]
    for root in (here / "configs", here.parent / "configs"):
        if (root / f"{start}{preset}.yaml").is_file():
            return root / f"{start}{preset}.yaml"
    raise UserError(
        f"The file configs/{start}{preset}.yaml is missing from this installation; install nein again."
    )


class Field(NamedTuple):
    """One option. key: its name on the command line and in files. metadata: from the group that declares it,
    where the class only changes its default."""

    name: str
    key: str
    hint: Any
    metadata: Mapping[str, Any]
    default: Any


def _fields(cls: type) -> tuple[Field, ...]:
    """The options of a dataclass: those that it declares itself, then those of its groups."""
    hints = typing.get_type_hints(cls, include_extras=True)
    every = {item.name: item for item in dataclasses.fields(cls)}
    own = [name for name in inspect.get_annotations(cls) if name in every and every[name].metadata]
    found = []
    for name in dict.fromkeys([*own, *every]):
        item = every[name]
        declared = (vars(base).get("__dataclass_fields__", {}).get(name) for base in cls.__mro__)
        metadata: Mapping[str, Any] = next(
            (field.metadata for field in declared if field is not None and field.metadata), {}
        )
        factory = item.default_factory
        default = item.default if factory is dataclasses.MISSING else factory()
        found.append(Field(name, metadata.get("typed", name), hints[name], metadata, default))
    return tuple(found)


fields: Callable[[type], tuple[Field, ...]] = functools.cache(_fields)


def flat(cls: type) -> dict[str, Field]:
    """The options by key; those of a group have dotted ones."""
    groups = [item for item in fields(cls) if dataclasses.is_dataclass(item.hint)]
    inner = {f"{group.key}.{item.key}": item for group in groups for item in fields(group.hint)}
    return {**{item.key: item for item in fields(cls) if item not in groups}, **inner}


class _Parser(argparse.ArgumentParser):
    """Raises complaints as sentences in place of printing usage."""

    def error(self, message: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
        if match := re.search(r"unrecognized arguments: (\S+)", message):
            word = match.group(1).partition("=")[0]
            near = near_match(word.replace("_", "-"), flags)
            if not word.startswith("-"):
                main = next((flag for flag in ("--editor", "--model") if flag in flags), "")
                meant = f"--{word}" if f"--{word}" in flags else f"{main} {word}" if main else ""
                guess = f"did you mean {meant}?" if meant else f"see {self.prog} --help."
                raise UserError(f"'{word}' stands without an option; {guess}")
            raise UserError(
                f"Unknown option {word}"
                + (f"; did you mean {near}?" if near else f"; see {self.prog} --help.")
            )
        if match := re.search(r"argument (\S+?)(?:/-\w)?: expected", message):
            raise UserError(f"{match.group(1)} needs a value; see {self.prog} --help.")
        raise UserError(f"{message}; see {self.prog} --help.")


def make_parser(
    cls: type[Options], prog: str, description: str, preset: Mapping[str, Any] | None = None
) -> argparse.ArgumentParser:
    source = "--config, then the preset" if cls.presets is not None else "--config"
    positional = (item.metadata.get("metavar") for item in fields(cls))
    parser = _Parser(
        prog=prog,
        usage=" ".join(["%(prog)s", *filter(None, positional), "[OPTIONS]"]),
        description=description,
        epilog=f"{cls.epilog} Precedence: command line, then {source}. Documentation: README.md.".strip(),
        argument_default=argparse.SUPPRESS,
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=30),
        allow_abbrev=False,
        add_help=False,
    )
    add_options(parser, cls, preset or {})
    return parser


def add_options(parser: argparse.ArgumentParser, cls: type[Options], preset: Mapping[str, Any]) -> None:
    parser.add_argument("-h", "--help", action="store_true", help="show this help message and exit")
    parser.add_argument("--config", action="append", help="YAML file with any of these options")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the configuration and what would be done"
    )
    kinds = {item.key: item.hint for item in fields(cls)}
    groups: dict[str, Any] = {"": parser}
    titled = {
        name: name.rpartition(".")[0] or item.metadata.get("group", "") for name, item in flat(cls).items()
    }
    for name, title in sorted(titled.items(), key=lambda pair: pair[1] != "Main"):
        item, (outer, _, inner) = flat(cls)[name], name.rpartition(".")
        if title not in groups:
            about = " ".join((kinds[outer].__doc__ or "").split()) if outer else None
            heading = "Language model" if title == "llm" else title.capitalize() if outer else title
            groups[title] = parser.add_argument_group(heading, about)
        default = (preset.get(outer, {}) if outer else preset).get(inner, item.default)
        text = item.metadata["help"]
        text = re.sub("<(presets|counted|default_out)>", lambda match: getattr(cls, match.group(1)), text)
        _add(groups[title], name, item, default, text)


def _add(group: Any, name: str, item: Field, default: Any, text: str) -> None:
    if "metavar" in item.metadata:
        count = "*" if item.hint in LISTS else "?"
        group.add_argument(item.name, metavar=item.metadata["metavar"], help=text, nargs=count)
        return
    flag, words = _flag(name)[2:], ",".join(literals(item.hint))
    value = re.sub(r".*(\.|_(?!from$|by$))", "", name).upper()
    value = "N" if "number" in _expected(item.hint, "") else value
    more: dict[str, Any] = {"metavar": f"{{{words}}}" if words else value}
    if item.metadata.get("negatable") or item.hint == bool | None:
        more = {"action": argparse.BooleanOptionalAction}
    elif item.hint is bool:
        more = {"action": "store_true"}
    elif item.hint in LISTS:
        more["action"] = "append"
    if default not in (None, False, [], {}, "") and "(default: " not in text:
        written = ",".join(map(str, default)) if isinstance(default, list) else str(default)
        written = written if len(written) <= 40 else f"{written[:36]}..."
        text += f" (default: {written.replace('%', '%%')})"
    group.add_argument(f"--{flag}", *([SHORT[flag]] if flag in SHORT else []), dest=name, help=text, **more)


def literals(hint: Any) -> list[str]:
    """The words that a value may be, where its type is a choice of them alone."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        return [str(word) for word in typing.get_args(hint)]
    return literals(parts[0]) if len(parts) == 1 else []


_adapter: Callable[[Any], pydantic.TypeAdapter[Any]] = functools.cache(pydantic.TypeAdapter)


def _load(text: str, name: str) -> Any:
    """An entry of a mapping as YAML, where that is no text: in "house #3" nothing is a comment."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        flag = f"--{name.lstrip('-').replace('_', '-')}"
        raise UserError(f"{flag} is '{text}', which is not valid YAML.") from None
    return text if isinstance(value, str) or text.lstrip().startswith("#") else value


def _read_yaml(file: Path) -> dict[str, Any]:
    if not file.is_file():
        if file.is_dir():
            raise UserError(f"'{file}' is a folder; --config takes a YAML file.")
        raise UserError(f"There is no configuration file '{file}'.")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"The configuration file '{file}' is not valid YAML: {detail}.") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"The configuration file '{file}' must hold 'key: value' lines.")
    return content or {}


def _written(value: Any) -> Any:
    """Paths as text, nested dataclasses as mappings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _written(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_written(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
