"""Completion of `nein` in a shell: the table of commands and their options as shtab takes them."""

from __future__ import annotations

import argparse
import pkgutil
import typing
from collections.abc import Mapping
from pathlib import Path

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
            parsers[group] = below[""].add_parser(group, help=f"{group} ...", add_help=False)
        if group not in below:
            below[group] = parsers[group].add_subparsers()
        parsers[name] = below[group].add_parser(last, help=command.help.replace("%", "%%"), add_help=False)
        _add_options(parsers[name], pkgutil.resolve_name(command.configuration))
    return root


def _add_options(parser: argparse.ArgumentParser, cls: type[Options]) -> None:
    options.add_options(parser, cls, {})
    hints = options.hints(cls)
    words = {item.name: options.metadata(cls, item).get("among") for item in options.fields(cls)}
    for action in parser._actions:
        hint = hints.get(action.dest)
        action.choices = words.get(action.dest) or options.literals(hint) or None
        if action.dest == "config" or Path in (hint, *typing.get_args(hint)):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
