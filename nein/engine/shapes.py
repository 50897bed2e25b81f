"""What a file that was read back must look like: told before anything is worked out from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: A type (float takes whole numbers, None stands for null), several shapes of which one must fit, a list
#: whose members all have one shape, or a mapping of keys to shapes; "key?" may be missing, others may be
#: there.
Shape = Any
_WORDS: dict[Any, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object",
    list: "a list", None: "null",
}  # fmt: skip


def fault(value: Any, shape: Shape, name: str = "") -> str:
    """The first thing that is wrong, in words: "'data.annotations' is 3, which must be a text"; "" where all
    is well."""
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        for key, part in shape.items():
            plain = key.removesuffix("?")
            inner = f"{name}.{plain}" if name else plain
            if plain not in value and plain == key:
                return f"'{inner}' is missing"
            if plain in value and (said := fault(value[plain], part, inner)):
                return said
        return ""
    if isinstance(shape, list) and isinstance(value, list):
        return next((said for part in value if (said := fault(part, shape[0], name))), "")
    if _fits(value, shape):
        return ""
    shown = json.dumps(value, ensure_ascii=False, default=str)
    start = f"'{name}' " if name else ""
    return f"{start}is {shown[:60]}, which must be {_wanted(shape)}"


def quick(shape: Shape) -> Callable[[Any], bool]:
    """A test of many values of parsed JSON: True where `fault` says "" of one, in a tenth of its time. False
    says only that `fault` is to be asked."""
    if isinstance(shape, Mapping):
        return _quick_object([(k.removesuffix("?"), k[-1:] == "?", quick(part)) for k, part in shape.items()])
    if isinstance(shape, list):
        member = quick(shape[0])
        return lambda value: type(value) is list and all(map(member, value))
    if isinstance(shape, tuple):
        kinds = frozenset(kind for part in shape for kind in _types(part))
        tests = [quick(part) for part in shape if not _types(part)]
        return lambda value: type(value) in kinds or any(fits(value) for fits in tests)
    types = frozenset(_types(shape))
    return lambda value: type(value) in types


def _quick_object(parts: Sequence[tuple[str, bool, Callable[[Any], bool]]]) -> Callable[[Any], bool]:
    """parts: (key, whether it may be missing, test of its value)."""

    def fits(value: Any) -> bool:
        if type(value) is not dict:
            return False
        for key, may_miss, part in parts:
            if key in value:
                if not part(value[key]):
                    return False
            elif not may_miss:
                return False
        return True

    return fits


def _types(shape: Shape) -> tuple[type, ...]:
    """The types of which every value fits; () where it takes more to know."""
    if shape is None:
        return (type(None),)
    return (int, float) if shape is float else (shape,) if isinstance(shape, type) else ()


def _fits(value: Any, shape: Shape) -> bool:
    if isinstance(shape, tuple):
        return any(not fault(value, part) for part in shape)
    if shape is None:
        return value is None
    if not isinstance(shape, type):
        return False
    kinds = (int, float) if shape is float else shape
    return isinstance(value, kinds) and (shape is bool or not isinstance(value, bool))


def _wanted(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_wanted, shape))
    kind = shape if shape is None or isinstance(shape, type) else type(shape)
    return _WORDS.get(kind, "an object")
