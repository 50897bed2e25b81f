"""From a dataclass to a command line: argparse reads the words, pydantic checks the values.

Precedence: command line > `--config FILE` > preset (`configs/<presets><preset>.yaml`) > default. A field that
is itself a dataclass becomes a group of dotted options below its docstring.
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
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import pydantic
import yaml

from nein.engine.atomic import adapter
from nein.engine.machine import DEVICE_NAMES, DEVICES
from nein.loading.digests import Json
from nein.loading.errors import UserError, match_name, near_match, unknown
from nein.loading.references import Need, check_credentials

PRESETS = ("nano", "paper")
SHORT = {"out": "-o", "number": "-n"}  # option -> its short flag, in every command that has it


def split_names(value: Any) -> list[str]:
    """["a", "b"] from "a,b" or from a list, each once; "none" and "" are the empty list."""
    items = value if isinstance(value, list | tuple | set) else str(value).split(",")
    # A string without blanks stays the same object: it may carry a model.
    words = [item if isinstance(item, str) and item == item.strip() else str(item).strip() for item in items]
    words = [word for word in dict.fromkeys(words) if word]
    return [] if words == ["none"] else words


def _device(value: str) -> str:
    if not re.fullmatch(DEVICES, value):
        raise ValueError(DEVICE_NAMES)
    return value


#: A list of names, or of paths: `a,b` on the command line (repeatable), a YAML list in a file.
Names = Annotated[list[str], pydantic.PlainValidator(split_names)]
Paths = Annotated[list[Path], pydantic.PlainValidator(lambda value: [*map(Path, split_names(value))])]
UnitInterval = Annotated[float, pydantic.Field(ge=0, le=1)]
#: A number of drawn scenes, pairs or questions, each of at least one file.
DrawnCount = Annotated[int, pydantic.Field(gt=0, le=1_000_000)]
Device = Annotated[str, pydantic.AfterValidator(_device)]


class Options:
    """The options of a command: a dataclass of fields by `option` and `argument`. A subclass that changes a
    default keeps the help.

    presets         Prefix of the preset files below `configs` ("negbench/eval-"); None: the command has none.
    preset_option   The option that names a preset; its values `preset_names`, its default `default_preset`.
    epilog          The end of `--help`.
    """

    __pydantic_config__: ClassVar[pydantic.ConfigDict] = pydantic.ConfigDict(extra="forbid")
    presets: ClassVar[str | None] = None
    preset_option: ClassVar[str] = "preset"
    preset_names: ClassVar[Sequence[str]] = PRESETS
    default_preset: ClassVar[str | None] = "nano"
    epilog: ClassVar[str] = ""

    def check(self) -> None:
        """Check the values alone, without models or data. Raises UserError."""

    def needs(self) -> list[Need]:
        """The models and data that the command downloads, for `nein fetch`. Raises UserError, EditorError or
        MetricError for an unknown name."""
        return []

    @classmethod
    def parse(cls: type[Config], argv: Sequence[str]) -> Config:
        return read(cls, argv)[0]

    @classmethod
    def create(cls: type[Config], **values: Any) -> Config:
        """The checked options of a call in Python; the preset gives those that are missing or None."""
        plain = _make_plain({name: value for name, value in values.items() if value is not None})
        return _build(cls, _merge_preset(cls, [plain]))


Config = TypeVar("Config", bound=Options)


def option(default: Any, text: str, group: str = "", **more: Any) -> Any:
    """A field of a command's dataclass: `--name VALUE`.

    text   Its help, under the heading `group`; `<presets>`, `<counted>`, `<default_out>` are filled in.
    more   `value`: the metavar. `in_file`: only a key of --config. `negatable`: adds --no-NAME. `among`: the
           allowed words of a list, each called `what`.
    """
    metadata = {"help": text, "group": group, **more}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def argument(metavar: str, text: str, default: Any = dataclasses.MISSING) -> Any:
    """A positional field; a list has at least one value. Optional if it has a default."""
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar})


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
    to_fetch  Accept what is not on this machine yet.

    Raises UserError; for `--help` prints and raises SystemExit(0).
    """
    typed = _parse_words(cls, make_parser(cls, prog, ""), argv)
    files = [_read_yaml(Path(file)) for file in typed.pop("config", [])]
    dry_run, wants_help = typed.pop("dry_run", False), typed.pop("help", False)
    values = _merge_preset(cls, [*files, typed])
    if wants_help:
        make_parser(cls, prog, description[:1].upper() + description[1:], values).print_help()
        raise SystemExit(0)
    return _build(cls, values, prog, to_fetch), dry_run


def _flag(name: str) -> str:  # underscores of `models.vqa_options` stay
    return "--" + (name if "." in name else name.replace("_", "-"))


def _parse_words(cls: type[Options], parser: argparse.ArgumentParser, argv: Sequence[str]) -> Json:
    """Values of the command line by key, not yet checked; dotted options are nested."""
    options = flatten_fields(cls)
    mappings = [f"{_flag(key)}." for key, item in options.items() if typing.get_origin(item.hint) is dict]
    words: list[str] = []
    remaining = iter(argv)
    for word in remaining:  # --columns.category subset: argparse gets --columns.KEY=category=subset
        if start := next((start for start in mappings if word.startswith(start)), ""):
            flag, equals, text = word.partition("=")
            text = text if equals else next(remaining, "--")
            if not equals and text.startswith("--"):
                raise UserError(f"{flag}: expected one argument; see {parser.prog} --help.")
            word = f"{start}KEY={flag[len(start) :]}={text}"
        words.append(word)
    try:
        namespace, unknown_words = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        flag = str(error.argument_name).partition("/")[0]
        raise UserError(f"{flag}: {error.message}; see {parser.prog} --help.") from None
    if unknown_words:
        raise _explain_unknown(parser, unknown_words[0].partition("=")[0])
    typed: Json = {}
    for name, value in vars(namespace).items():
        hint = options[name].hint if name in options else None
        if typing.get_origin(hint) is dict:
            pairs = [entry.partition("=") for entry in value]  # (key, "=", text)
            texts = typing.get_args(hint)[1] is str
            value = {key: text if texts else _parse_entry(text, f"{name}.{key}") for key, _, text in pairs}
        elif hint in (Names, Paths) and "metavar" not in options[name].metadata:
            value = ",".join(value)
        elif value == "null" and type(None) in typing.get_args(hint):
            value = None
        outer, _, inner = name.rpartition(".")
        (typed.setdefault(outer, {}) if outer else typed)[inner] = value
    return typed


def _explain_unknown(parser: argparse.ArgumentParser, word: str) -> UserError:
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    near, guess = near_match(word.replace("_", "-"), flags), f"see {parser.prog} --help."
    if word.startswith("-"):
        return UserError(f"Unknown option {word}; {f'did you mean {near}?' if near else guess}")
    model_flag = next((flag for flag in ("--editor", "--model") if flag in flags), "")
    near = f"--{word}" if f"--{word}" in flags else f"{model_flag} {word}" if model_flag else ""
    return UserError(f"'{word}' has no option before it; {f'did you mean {near}?' if near else guess}")


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
            # In an installed package, or in a checkout; a plug-in gives an absolute path.
            file = Path("configs", f"{cls.presets}{preset}.yaml")
            values = _read_yaml(package / file if (package / file).is_file() else package.parent / file)
    for source in sources:
        for name, value in source.items():
            inner: Any = values.get(name)
            are_groups = isinstance(inner, dict) and isinstance(value, dict)
            values[name] = {**inner, **value} if are_groups else value
    return values


def _build(
    cls: type[Config], values: Mapping[str, Any], prog: str = "nein", to_fetch: bool = False
) -> Config:
    """Checked options from their values by key. Raises UserError."""
    check_credentials(values)
    needed = [item for item in fields(cls) if item.default is dataclasses.MISSING]
    if missing := [item.metadata["metavar"] for item in needed if not values.get(item.name)]:
        choices = ", ".join(literals(needed[0].hint))
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
    first = error.errors(include_url=False)[0]
    key, value = ".".join(map(str, first["loc"])), first["input"]
    cause, options = first.get("ctx", {}).get("error"), flatten_fields(cls)
    if isinstance(cause, UserError):
        return cause
    if first["type"] == "unexpected_keyword_argument":
        outer, _, name = key.rpartition(".")
        group = next((item.hint for item in fields(cls) if item.name == outer), cls)
        near = near_match(name, [item.name for item in fields(group)])
        guess = f"did you mean '{key.removesuffix(name)}{near}'?" if near else f"see {prog} --help."
        return UserError(f"Unknown key '{key}'; {guess}")
    near = near_match(str(value), literals(options[key].hint)) if key in options else None
    message = str(cause or re.sub(r"(Input|String) should ", "", first["msg"]).partition(", unable")[0])
    label = options[key].metadata.get("metavar", _flag(key)) if key in options else key
    message = message.removeprefix("be ")
    return UserError(
        f"{label} is '{value}'; it must be {message}{f' (did you mean {near!r}?)' if near else '.'}"
    )


def dump(config: Options) -> str:
    """Options as YAML that `--config` reads back."""
    values = {item.name: getattr(config, item.name) for item in fields(type(config))}
    plain = json.loads(json.dumps(_make_plain(values)))  # subclasses of str become str
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


class Field(NamedTuple):
    """One option. metadata: from the group that declares it, where the class only changes its default."""

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
        item, factory = declared[name], declared[name].default_factory
        declarations = (vars(base).get("__dataclass_fields__", {}).get(name) for base in cls.__mro__)
        metadata: Any = next((field.metadata for field in declarations if field and field.metadata), {})
        default = item.default if factory is dataclasses.MISSING else factory()
        result.append(Field(name, hints[name], metadata, default))
    return tuple(result)


#: Cached; the annotation hides from mypy that `cache` wants a Hashable, which no dataclass type is to it.
fields: Callable[[type], tuple[Field, ...]] = functools.cache(_collect_fields)


def flatten_fields(cls: type) -> dict[str, Field]:
    """Options by key; those of a group have dotted keys."""
    options: dict[str, Field] = {}
    for item in fields(cls):
        is_group = inspect.isclass(item.hint) and dataclasses.is_dataclass(item.hint)
        inner = fields(item.hint) if is_group else ()
        options |= {f"{item.name}.{part.name}": part for part in inner} or {item.name: item}
    return options


def make_parser(
    cls: type[Options], prog: str, description: str, preset: Mapping[str, Any] | None = None
) -> argparse.ArgumentParser:
    """Parser of a command. preset: values that `--help` shows as defaults."""
    options, groups = flatten_fields(cls), {item.name: item.hint for item in fields(cls)}
    positional = [item.metadata["metavar"] for item in options.values() if "metavar" in item.metadata]
    source = "--config, then the preset" if cls.presets is not None else "--config"
    in_file = ", ".join(name for name, item in options.items() if item.metadata.get("in_file"))
    end = f"{cls.epilog} Precedence: command line, then {source}."
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=" ".join(["%(prog)s", *positional, "[OPTIONS]"]),
        description=description,
        epilog=f"{end} Further keys of a --config file: {in_file}." if in_file else end,
        argument_default=argparse.SUPPRESS,
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=30),
        allow_abbrev=False,
        add_help=False,
        exit_on_error=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help message and exit")
    if len(positional) < len(options):
        parser.add_argument("--config", metavar="FILE", action="append", help="YAML file of options")
        parser.add_argument(
            "--dry-run", action="store_true", help="print the configuration and what would be done"
        )
    else:
        parser.epilog = cls.epilog
    headings: Json = {"": parser}  # title -> group of arguments
    titles = {key: key.rpartition(".")[0] or item.metadata.get("group", "") for key, item in options.items()}
    for name, title in sorted(titles.items(), key=lambda pair: pair[1] != "Main"):
        item, (outer, _, inner) = options[name], name.rpartition(".")
        if item.metadata.get("in_file"):
            continue
        if title not in headings:
            about = " ".join((groups[outer].__doc__ or "").split()) if outer else None
            heading = "Language model" if title == "llm" else title.capitalize() if outer else title
            headings[title] = parser.add_argument_group(heading, about)
        # --- default and help
        defaults = (preset or {}).get(outer, {}) if outer else preset or {}
        default, hint = defaults.get(inner, item.default), item.hint
        filled = re.sub(
            "<(presets|counted|default_out)>", lambda m: getattr(cls, m[1]), item.metadata["help"]
        )
        text = filled.replace("%", "%%")
        if "metavar" in item.metadata:
            count = "*" if hint == Paths else "?"
            headings[title].add_argument(name, metavar=item.metadata["metavar"], help=text, nargs=count)
            continue
        flag, choices = _flag(name), ",".join(literals(hint))
        # --- metavar and action
        if re.search(r"\b(int|float)\b", str(hint)):
            metavar = "N"
        elif "Path" in str(hint):
            metavar = "PATH"
        else:
            metavar = "NAME" if hint == Names else re.sub(r".*[._]", "", name).upper()
        metavar = item.metadata.get("value", metavar)
        settings: Json = {"metavar": f"{{{choices}}}" if choices else metavar}
        if item.metadata.get("negatable") or hint == bool | None:
            settings = {"action": argparse.BooleanOptionalAction}
        elif hint is bool:
            settings = {"action": "store_true"}
        elif hint in (Names, Paths):
            settings = {"metavar": f"{metavar},...", "action": "append"}
        elif typing.get_origin(hint) is dict:
            settings, flag, default = {"metavar": "VALUE", "action": "append"}, f"{flag}.KEY", None
        if default not in (None, [], "") and default is not False and "(default: " not in text:
            displayed = ",".join(map(str, default)) if isinstance(default, list) else str(default)
            text += f" (default: {displayed.replace('%', '%%')})"
        short = [SHORT[name]] if name in SHORT else []
        headings[title].add_argument(flag, *short, dest=name, help=text, **settings)
    return parser


def literals(hint: Any) -> list[str]:
    """Allowed words of an option whose type is a choice among words, else []."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        return [str(word) for word in typing.get_args(hint)]
    return literals(parts[0]) if len(parts) == 1 else []


def _parse_entry(text: str, name: str) -> Any:
    """Value of a mapping's entry, read as YAML; text stays as given: "house #3" keeps its "#3"."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"{_flag(name)} is '{text}', which is not valid YAML.") from None
    return text if isinstance(value, str) or text.lstrip().startswith("#") else value


def _read_yaml(file: Path) -> Json:
    if not file.is_file():
        if file.is_dir():
            raise UserError(f"'{file}' is a folder; --config takes a YAML file.")
        raise UserError(f"There is no configuration file '{file}'; check the path of --config.")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise UserError(f"The configuration file '{file}' is not valid YAML: {detail}.") from None
    if content is not None and not isinstance(content, dict):
        raise UserError(f"The configuration file '{file}' must hold 'key: value' lines; see --dry-run.")
    return content or {}


def _make_plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _make_plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_make_plain(inner) for inner in value]
    return str(value) if isinstance(value, Path) else value
