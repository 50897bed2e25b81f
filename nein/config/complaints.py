"""Complaints of the option parser, put into sentences for the person at the keyboard."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from jsonargparse.typing import (
    ClosedUnitInterval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    restricted_string_type,
)

from nein.engine.errors import UserError, near_match
from nein.engine.processes import DEVICES, DEVICES_SAID

Device = restricted_string_type("Device", f"^({DEVICES})$")

EXPECTED: dict[Any, str] = {
    PositiveInt | Literal["auto"]: "a whole number above 0, or auto",
    Device: DEVICES_SAID,
    PositiveInt: "a whole number above 0",
    NonNegativeInt: "a whole number, 0 or above",
    PositiveFloat: "a number above 0",
    NonNegativeFloat: "a number, 0 or above",
    ClosedUnitInterval: "a number from 0 to 1",
    float: "a number",
    str: "a text",
    bool: "true or false",
}


def complaint(error: Exception, flags: Sequence[str], hints: Mapping[str, Any], prog: str) -> UserError:
    """jsonargparse's complaint as one sentence that names the value, what is allowed and a near match.

    flags  Every option of the command, with its dashes.
    hints  Configuration key ("seed", "models.clip") -> its type.
    prog   Whose --help lists the options.
    """
    text = str(error)
    if match := re.search(r"unrecognized arguments: (\S+)", text):
        word = match.group(1).partition("=")[0]
        near = near_match(word.replace("_", "-"), flags)
        guess = f"; did you mean {near}?" if near else f"; see {prog} --help."
        return UserError(f"Unknown option {word}{guess}")
    if match := re.search(r"Option '([^']+)' is not accepted", text):
        keys = [flag.removeprefix("--").replace("-", "_") for flag in flags]
        near = near_match(match.group(1), keys)
        guess = f"; did you mean '{near}'?" if near else f"; see {prog} --help for the keys."
        return UserError(f"Unknown key '{match.group(1)}' in the configuration file{guess}")
    if match := re.search(r"Value not boolean: (.*)\.", text):
        return UserError(
            f"A switch in the configuration file is '{match.group(1)}'; it must be true or false."
        )
    key = re.search(r'Parser key "([^"]+)"', text)
    value = re.search(r"(?:Got value|Given value): (.*)", text) or re.search(
        r"(?:base 10|to float): '([^']*)'|Not of type \w+: (.*) does not (?:conform|match)", text
    )
    given = next((part for part in value.groups() if part), "") if value else ""
    if key and value and (expected := _expected(hints.get(key.group(1)), given)):
        flag = "--" + key.group(1).replace("_", "-") if "." not in key.group(1) else "--" + key.group(1)
        return UserError(f"{flag} is '{given}'; it must be {expected}")
    return UserError(" ".join(text.split()) + f"; see {prog} --help.")


def _expected(hint: Any, value: str) -> str | None:
    if hint in EXPECTED:
        return f"{EXPECTED[hint]}."
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    if typing.get_origin(hint) is Literal:
        near = near_match(value, parts)
        return f"one of {', '.join(parts)}" + (f" (did you mean '{near}'?)" if near else ".")
    if len(parts) == 1:  # of `kind | None`
        return _expected(parts[0], value)
    return None
