"""The command `nein check`: does an editor or a judge keep its contract? A plain list, passed or failed.

nein check EDITOR             a name, a folder, a hub id, plugin of `nein.editors`, or module:attribute
nein check --judge vqa REF    a reference as `--models.vqa` takes it, or module:attribute
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from nein.engine.errors import UserError


def main(argv: Sequence[str]) -> int:
    """Runs `nein check argv`; 0 when everything passes, 1 otherwise. Raises UserError."""
    options = _parser().parse_args(list(argv))
    if options.number < 3:
        raise UserError(f"--number is {options.number}; the checks need at least 3 samples.")
    from nein.engine.world import World
    from nein.judges.checks import editors, judges

    device = World().device(options.device)
    if options.judge:
        subject = build_judge(options.judge, options.subject, device, options.dtype)
        outcomes = judges.check_judge(options.judge, subject, options.number)
    else:
        subject = build_editor(options.subject, device, options.dtype, options.option)
        outcomes = editors.check_editor(subject, options.number)
    failed = 0
    for outcome in outcomes:
        word = {True: "pass", False: "FAIL", None: "info"}[outcome.passed]
        failed += outcome.passed is False
        print(f"{word}  {outcome.name}{': ' if outcome.reason else ''}{outcome.reason}", flush=True)
    print(f"{options.subject}: {'all checks passed' if not failed else f'{failed} checks failed'}")
    return 1 if failed else 0


def build_editor(name: str, device: str, dtype: str, given: Sequence[str]) -> Any:
    """The editor: as `nein eval --editor` finds it, or what `module:attribute` makes."""
    options = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--option is '{item}'; it must be NAME=VALUE.")
        options[key] = _value(value)
    from metrics.judges.plugin import attribute, is_attribute

    if is_attribute(name):
        made = attribute(name)
        return made(**options) if callable(made) else made
    from nein.models import editor_choice

    [choice] = editor_choice.resolve_editors([name], "nano", options)
    return choice.load(device=device, dtype=dtype, batch_size=4)


def build_judge(kind: str, reference: str, device: str, dtype: str) -> Any:
    """The judge, as `--models.<kind>` finds it."""
    import metrics
    from nein.models import references

    where, revision = references.resolve(reference)
    return metrics.load_judge(kind, where, revision=revision, device=device, dtype=dtype)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nein check",
        description="Check that an editor or a judge keeps its contract, from determinism to error handling.",
    )
    add = parser.add_argument
    add(
        "subject",
        metavar="EDITOR",
        help="editor (or, with --judge, judge): a name, folder, hub id or module:attribute",
    )
    add("--judge", choices=("vqa", "ovd"), help="check a judge of this kind instead of an editor")
    add("--number", type=int, default=6, help="samples to try (default: 6)")
    add("--device", default="auto", help="auto, cpu, cuda (default: auto)")
    add(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16", "float16"),
        help="number type (default: float32)",
    )
    add(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the editor; repeatable"
    )
    return parser
