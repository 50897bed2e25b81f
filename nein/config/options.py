"""Turns a dataclass into a command line: argparse parses the words, pydantic checks the values.

Each command of `nein` has its dataclass, a subclass of `Options`. Precedence of values: command line >
`--config FILE` > preset (`configs/<presets><preset>.yaml`) > default. A field that is itself a dataclass
becomes a group of dotted options below its docstring.
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
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import pydantic
import yaml

from nein.engine.atomic import adapter
from nein.engine.machine import DEVICE_NAMES, DEVICES
from nein.loading.digests import Json
from nein.loading.errors import UserError, match_name, near_match, unknown
from nein.loading.references import Need, check_credentials


# --- types of options ------------------------------------------------------------------------
def split_names(value: Any) -> list[str]:
    """["a", "b"] from "a,b" or from a list, each once; "none" and "" are the empty list."""
    items = value if isinstance(value, list | tuple | set) else str(value).split(",")
    # A string without blanks stays the same object: a subclass of str may carry a model.
    words = [item if isinstance(item, str) and item == item.strip() else str(item).strip() for item in items]
    words = [word for word in dict.fromkeys(words) if word]
    return [] if words == ["none"] else words


def _check_device(value: str) -> str:
    if not re.fullmatch(DEVICES, value):
        raise ValueError(DEVICE_NAMES)
    return value


#: A list of names, or of paths: `a,b` on the command line (repeatable), a YAML list in a file.
Names = Annotated[list[str], pydantic.PlainValidator(split_names)]
Paths = Annotated[list[Path], pydantic.PlainValidator(lambda value: [*map(Path, split_names(value))])]
UnitInterval = Annotated[float, pydantic.Field(ge=0, le=1)]
#: A number of scenes, pairs or questions to draw; limited, since each becomes one file or more.
DrawnCount = Annotated[int, pydantic.Field(gt=0, le=1_000_000)]
Device = Annotated[str, pydantic.AfterValidator(_check_device)]


# --- declaring the options of a command --------------------------------------------------------
class Options:
    """Base of the options of a command, dataclasses with fields by `option` and `argument`."""

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid")  # of keys
    presets: ClassVar[str | None] = None  # prefix of preset files in `configs` ("negbench/eval-"); None: none
    preset_option: ClassVar[str] = "preset"  # the option that names a preset
    preset_names: ClassVar[Sequence[str]] = ("nano", "paper")  # its values
    default_preset: ClassVar[str | None] = "nano"  # if that option is not given; None: then no preset
    epilog: ClassVar[str] = ""  # the end of `--help`

    def check(self) -> None:
        """Check the values alone, without models or data. Raises UserError."""

    def needs(self) -> list[Need]:
        """Models and data that `nein fetch` downloads for the command. Raises errors of unknown names."""
        return []

    @classmethod
    def parse(cls: type[Config], argv: Sequence[str]) -> Config:
        """The checked options of a command line."""
        return read(cls, argv)[0]

    @classmethod
    def create(cls: type[Config], **values: Any) -> Config:
        """The checked options of a call in Python; missing ones and None come from the preset."""
        plain = _make_plain({name: value for name, value in values.items() if value is not None})
        return _build(cls, _merge_preset(cls, [plain]))


Config = TypeVar("Config", bound=Options)


def option(default: Any, text: str, group: str = "", **more: Any) -> Any:
    """A field of a command's dataclass that becomes `--name VALUE`.

    text   Its help. `<presets>`, `<counted>`, `<default_out>` stand for the class attributes of these names.
    group  The heading of `--help` above it; "": none.
    more   `value`: the metavar. `in_file`: only a key of --config. `negatable`: adds --no-NAME. `among`: the
           allowed words of a list, which errors call `what` ("format").
    """
    metadata = {"help": text, "group": group, **more}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def argument(metavar: str, text: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that becomes a positional argument, optional if it has a default."""
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar})


# --- reading a command line --------------------------------------------------------------------
def read(
    cls: type[Config],
    argv: Sequence[str],
    *,
    prog: str = "nein",
    description: str = "",
    to_fetch: bool = False,
) -> tuple[Config, bool]:
    """The checked options of a command line, and whether `--dry-run` was given.

    prog      The command, for `--help` and errors.
    to_fetch  Skip `Options.check`: models and data may not be on this machine yet.

    Raises UserError; for `--help` prints and raises SystemExit(0).
    """
    typed = _parse_words(cls, make_parser(cls, prog, ""), argv)
    files = [_read_yaml(Path(file)) for file in typed.pop("config", [])]
    dry_run = typed.pop("dry_run", False)
    wants_help = typed.pop("help", False)
    values = _merge_preset(cls, [*files, typed])
    if wants_help:
        make_parser(cls, prog, description[:1].upper() + description[1:], values).print_help()
        raise SystemExit(0)
    return _build(cls, values, prog, to_fetch), dry_run


def _flag(name: str) -> str:
    """ "--batch-size" of "batch_size"; underscores of dotted options ("models.vqa_options") stay."""
    return "--" + (name if "." in name else name.replace("_", "-"))


def _parse_words(cls: type[Options], parser: argparse.ArgumentParser, argv: Sequence[str]) -> Json:
    """Values of the command line by key, not yet checked; dotted options are nested."""
    options = flatten_fields(cls)
    # --- mappings: argparse gets "--columns.category subset" as "--columns.KEY=category=subset"
    mappings = [key for key, item in options.items() if typing.get_origin(item.hint) is dict]
    prefixes = tuple(f"{_flag(key)}." for key in mappings)
    words: list[str] = []
    remaining = iter(argv)
    for word in remaining:
        if word.startswith(prefixes):
            flag, equals, text = word.partition("=")
            if not equals:
                text = next(remaining, "--")  # "--": no word is left
                if text.startswith("--"):
                    raise UserError(f"{flag}: expected one argument; see {parser.prog} --help.")
            prefix = next(prefix for prefix in prefixes if word.startswith(prefix))
            word = f"{prefix}KEY={flag.removeprefix(prefix)}={text}"
        words.append(word)
    try:
        namespace, unknown_words = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        flag = str(error.argument_name).partition("/")[0]
        raise UserError(f"{flag}: {error.message}; see {parser.prog} --help.") from None
    if unknown_words:
        raise _explain_unknown(parser, unknown_words[0].partition("=")[0])
    # --- values by key
    typed: Json = {}
    for name, value in vars(namespace).items():
        hint = options[name].hint if name in options else None
        if typing.get_origin(hint) is dict:
            value = dict(entry.split("=", 1) for entry in value)  # of "KEY=VALUE"
            if typing.get_args(hint)[1] is not str:
                value = {key: _parse_entry(text, f"{name}.{key}") for key, text in value.items()}
        elif hint in (Names, Paths) and "metavar" not in options[name].metadata:
            value = ",".join(value)  # an option may be repeated
        elif value == "null" and type(None) in typing.get_args(hint):
            value = None
        outer, _, inner = name.rpartition(".")
        group = typed.setdefault(outer, {}) if outer else typed
        group[inner] = value
    return typed


def _parse_entry(text: str, name: str) -> Any:
    """Value of a mapping's entry, read as YAML; a text stays as given: "house #3" keeps its "#3"."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"{_flag(name)} is '{text}', which is not valid YAML.") from None
    return text if isinstance(value, str) or text.lstrip().startswith("#") else value


def _explain_unknown(parser: argparse.ArgumentParser, word: str) -> UserError:
    """The error for a word of the command line that argparse does not know."""
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    problem = f"'{word}' has no option before it"
    if word.startswith("-"):
        problem = f"Unknown option {word}"
        guess = near_match(word.replace("_", "-"), flags)
    elif f"--{word}" in flags:
        guess = f"--{word}"
    else:
        guess = next((f"{flag} {word}" for flag in ("--editor", "--model") if flag in flags), None)
    hint = f"did you mean {guess}?" if guess else f"see {parser.prog} --help."
    return UserError(f"{problem}; {hint}")


def _merge_preset(cls: type[Options], sources: Sequence[Mapping[str, Any]]) -> Json:
    """Values of the preset that the last source names, overridden by the sources in order."""
    values: Json = {}
    if cls.presets is not None:
        named = [source[cls.preset_option] for source in sources if source.get(cls.preset_option) is not None]
        preset = named[-1] if named else cls.default_preset
        if preset is not None and preset not in cls.preset_names:
            raise unknown(cls.preset_option, str(preset), cls.preset_names)
        if preset is not None:
            package = Path(__file__).resolve().parents[1]
            file = Path("configs", f"{cls.presets}{preset}.yaml")  # a plug-in's `presets` is absolute
            # `configs` is in the installed package or, in a checkout, next to it.
            values = _read_yaml(package / file if (package / file).is_file() else package.parent / file)
    for source in sources:
        for name, value in source.items():
            old: Any = values.get(name)
            are_groups = isinstance(old, dict) and isinstance(value, dict)
            values[name] = {**old, **value} if are_groups else value
    return values


def _read_yaml(file: Path) -> Json:
    if file.is_dir():
        raise UserError(f"'{file}' is a folder; --config takes a YAML file.")
    if not file.is_file():
        raise UserError(f"There is no configuration file '{file}'; check the path of --config.")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"The configuration file '{file}' is not valid YAML: {detail}.") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"The configuration file '{file}' must hold 'key: value' lines; see --dry-run.")
    return content or {}


def _build(cls: type[Config], values: Json, prog: str = "nein", to_fetch: bool = False) -> Config:
    """Checked options from their values by key. Raises UserError."""
    check_credentials(values)
    required = [item for item in fields(cls) if item.default is dataclasses.MISSING]
    if missing := [item.metadata["metavar"] for item in required if not values.get(item.name)]:
        choices = ", ".join(literals(required[0].hint))
        hint = f": {choices}" if choices else f"; see {prog} --help"
        raise UserError(f"{prog} needs {' and '.join(missing)}{hint}.")
    for key, item in flatten_fields(cls).items():  # pydantic would accept YAML's true as 1
        value: Any = values
        for name in key.split("."):
            value = (value or {}).get(name)
        if isinstance(value, bool) and re.search(r"\b(int|float)\b", str(item.hint)):
            raise UserError(f"{_flag(key)} is '{str(value).lower()}'; it must be a number.")
    try:
        config: Config = adapter(cls).validate_python(values)
    except pydantic.ValidationError as error:
        raise _explain_invalid(cls, error, prog) from None
    for item in fields(cls):  # words of a list get the spelling of `among`
        if among := item.metadata.get("among"):
            words = [match_name(item.metadata["what"], name, among) for name in getattr(config, item.name)]
            setattr(config, item.name, list(dict.fromkeys(words)))
    if not to_fetch:
        config.check()
    return config


def _explain_invalid(cls: type[Options], error: pydantic.ValidationError, prog: str) -> UserError:
    """The first of pydantic's errors as a sentence with the option's name."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    value = first["input"]
    cause = first.get("ctx", {}).get("error")  # the exception that a validator of ours raised
    if isinstance(cause, UserError):
        return cause
    if first["type"] == "unexpected_keyword_argument":
        outer, _, name = key.rpartition(".")
        group = next((item.hint for item in fields(cls) if item.name == outer), cls)
        near = near_match(name, [item.name for item in fields(group)])
        guess = f"did you mean '{key.removesuffix(name)}{near}'?" if near else f"see {prog} --help."
        return UserError(f"Unknown key '{key}'; {guess}")
    rule = str(cause or re.sub(r"(Input|String) should ", "", first["msg"]).partition(", unable")[0])
    sentence = f"is '{value}'; it must be {rule.removeprefix('be ')}"
    item = flatten_fields(cls).get(key)
    if item is None:  # a key inside an option's value
        return UserError(f"{key} {sentence}.")
    near = near_match(str(value), literals(item.hint))
    guess = f" (did you mean '{near}'?)" if near else "."
    return UserError(f"{item.metadata.get('metavar', _flag(key))} {sentence}{guess}")


def dump(config: Options) -> str:
    """Options as YAML that `--config` reads back."""
    values = {item.name: getattr(config, item.name) for item in fields(type(config))}
    plain = json.loads(json.dumps(_make_plain(values)))  # subclasses of str become str
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _make_plain(value: Any) -> Any:
    """Dataclasses as dictionaries and paths as texts, at any depth."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _make_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_make_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value


# --- the fields of a dataclass, and its parser -------------------------------------------------
class Field(NamedTuple):
    """One option. metadata: of `option` or `argument`, also if a subclass has changed the default."""

    name: str
    hint: Any
    metadata: Mapping[str, Any]
    default: Any


def _collect_fields(cls: type) -> tuple[Field, ...]:
    """Options of a dataclass: those that it declares itself, then those of its base classes."""
    hints = typing.get_type_hints(cls, include_extras=True)
    declared = {item.name: item for item in dataclasses.fields(cls)}
    order = [name for base in cls.__mro__ for name in inspect.get_annotations(base) if name in declared]
    result = []
    for name in dict.fromkeys(order):
        item = declared[name]
        # A subclass that only changes a default declares the field again, without metadata.
        declarations = (vars(base).get("__dataclass_fields__", {}).get(name) for base in cls.__mro__)
        metadata: Any = next((field.metadata for field in declarations if field and field.metadata), {})
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        result.append(Field(name, hints[name], metadata, default))
    return tuple(result)


#: `_collect_fields` with a cache; the annotation is for mypy, to which a dataclass type is not Hashable.
fields: Callable[[type], tuple[Field, ...]] = functools.cache(_collect_fields)


def flatten_fields(cls: type) -> dict[str, Field]:
    """Options by key; those of a group have dotted keys."""
    options: dict[str, Field] = {}
    for item in fields(cls):
        if inspect.isclass(item.hint) and dataclasses.is_dataclass(item.hint):
            options |= {f"{item.name}.{inner.name}": inner for inner in fields(item.hint)}
        else:
            options[item.name] = item
    return options


def make_parser(
    cls: type[Options], prog: str, description: str, preset: Mapping[str, Any] = MappingProxyType({})
) -> argparse.ArgumentParser:
    """Parser of a command. preset: values that `--help` shows as defaults."""
    options = flatten_fields(cls)
    positional = [item.metadata["metavar"] for item in options.values() if "metavar" in item.metadata]
    in_file = ", ".join(name for name, item in options.items() if item.metadata.get("in_file"))
    source = "--config, then the preset" if cls.presets is not None else "--config"
    epilog = f"{cls.epilog} Precedence: command line, then {source}."
    epilog += f" Further keys of a --config file: {in_file}." if in_file else ""
    has_options = len(positional) < len(options)
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=" ".join(["%(prog)s", *positional, "[OPTIONS]"]),
        description=description,
        epilog=epilog if has_options else cls.epilog,
        argument_default=argparse.SUPPRESS,
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=30),
        allow_abbrev=False,
        add_help=False,
        exit_on_error=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help message and exit")
    if has_options:
        parser.add_argument("--config", metavar="FILE", action="append", help="YAML file of options")
        effect = "print the configuration and what would be done"
        parser.add_argument("--dry-run", action="store_true", help=effect)
    # --- options under their titles, "Main" first
    classes = {item.name: item.hint for item in fields(cls)}
    groups: Json = {"": parser}  # title -> argparse's group of arguments
    titles = {key: key.rpartition(".")[0] or item.metadata.get("group", "") for key, item in options.items()}
    for name, title in sorted(titles.items(), key=lambda pair: pair[1] != "Main"):
        item = options[name]
        outer, _, inner = name.rpartition(".")  # outer: the group of a dotted option, else ""
        if item.metadata.get("in_file"):
            continue
        if title not in groups:
            about = " ".join((classes[outer].__doc__ or "").split()) if outer else None
            heading = title.capitalize() if outer else title
            groups[title] = parser.add_argument_group("Language model" if title == "llm" else heading, about)
        defaults = preset.get(outer, {}) if outer else preset
        text = item.metadata["help"]
        text = re.sub("<(presets|counted|default_out)>", lambda match: getattr(cls, match[1]), text)
        default = defaults.get(inner, item.default)
        _add_argument(groups[title], name, item, text=text.replace("%", "%%"), default=default)
    return parser


def _add_argument(group: Any, name: str, item: Field, *, text: str, default: Any) -> None:
    """Adds an option or a positional argument to a group of the parser. text: its help."""
    hint, metadata = item.hint, item.metadata
    if "metavar" in metadata:  # of `argument`
        group.add_argument(name, metavar=metadata["metavar"], help=text, nargs="*" if hint == Paths else "?")
        return
    if re.search(r"\b(int|float)\b", str(hint)):
        metavar = "N"
    elif "Path" in str(hint):
        metavar = "PATH"
    else:
        metavar = "NAME" if hint == Names else re.sub(r".*[._]", "", name).upper()  # its last word
    metavar = metadata.get("value", metavar)
    choices = ",".join(literals(hint))
    settings: Json = {"metavar": f"{{{choices}}}" if choices else metavar}  # of argparse
    flag = _flag(name)
    if metadata.get("negatable") or hint == bool | None:
        settings = {"action": argparse.BooleanOptionalAction}
    elif hint is bool:
        settings = {"action": "store_true"}
    elif hint in (Names, Paths):
        settings = {"metavar": f"{metavar},...", "action": "append"}
    elif typing.get_origin(hint) is dict:
        settings = {"metavar": "VALUE", "action": "append"}
        flag += ".KEY"
        default = None  # not displayed
    if default not in (None, [], "") and default is not False and "(default: " not in text:
        displayed = ",".join(map(str, default)) if isinstance(default, list) else str(default)
        text += f" (default: {displayed.replace('%', '%%')})"
    short = {"out": ["-o"], "number": ["-n"]}.get(name, [])  # in every command with such an option
    group.add_argument(flag, *short, dest=name, help=text, **settings)


def literals(hint: Any) -> list[str]:
    """Allowed words of an option whose type is a choice among words, else []."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        return [str(word) for word in typing.get_args(hint)]
    return literals(parts[0]) if len(parts) == 1 else []
