"""Completion of `nein` in a shell: the table of commands and their options as shtab takes them."""

from __future__ import annotations

import argparse
import pkgutil
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import shtab

from nein.config import options
from nein.config.commands import Command
from nein.config.options import Options

SHELLS = ("bash", "zsh")


def script(shell: str, commands: Mapping[str, Command]) -> str:
    """What a shell of `SHELLS` sources. The configurations of all commands are imported, nothing heavy is."""
    return shtab.complete(_tree(commands), shell=shell)


def _tree(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="nein")
    root.add_argument("--print-completion", choices=SHELLS, help="print what the shell has to source")
    below = {"": root.add_subparsers()}
    parsers: dict[str, argparse.ArgumentParser] = {}
    for name, command in sorted(commands.items()):
        if not command.configuration:
            continue
        group, _, last = name.rpartition(" ")
        if group and group not in parsers:
            parsers[group] = below[""].add_parser(group, help=f"{group} ...")
        if group not in below:
            below[group] = parsers[group].add_subparsers()
        parsers[name] = below[group].add_parser(last, help=_help(command.help))
        _add_options(parsers[name], pkgutil.resolve_name(command.configuration))
    return root


def _add_options(parser: argparse.ArgumentParser, cls: type[Options]) -> None:
    hints = options.hints(cls)
    words = {item.name: options.metadata(cls, item).get("among") for item in options.fields(cls)}
    for action in options.make_parser(cls, "", "")._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        more: dict[str, Any] = {"help": _help(action.help or "")}
        if action.nargs == 0:
            more["action"] = "store_true"
        else:
            choices = words.get(action.dest) or _literals(hints.get(action.dest))
            more |= {"nargs": action.nargs, "choices": choices or None}
        added = parser.add_argument(*(action.option_strings or [action.dest]), **more)
        if action.dest == "config" or Path in _parts(hints.get(action.dest)):
            added.complete = shtab.FILE  # type: ignore[attr-defined]


def _help(text: str) -> str:
    return text.replace("%%", "%").replace("%", "%%")


def _parts(hint: Any) -> tuple[Any, ...]:
    """Path of `list[Path] | None`: every type a hint is made of."""
    inner = typing.get_args(hint)
    return (hint, *(part for one in inner for part in _parts(one))) if inner else (hint,)


def _literals(hint: Any) -> list[str]:
    return [
        word for part in _parts(hint) if typing.get_origin(part) is Literal for word in typing.get_args(part)
    ]
