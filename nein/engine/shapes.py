"""What a file that was read back must look like: told before anything is worked out from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

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
    """A test of many values of parsed JSON: True where `fault` says "" of one, in a small part of its
    time. False says only that `fault` is to be asked."""
    from pydantic_core import SchemaValidator

    return SchemaValidator(_schema(shape)).isinstance_python


def _schema(shape: Shape) -> CoreSchema:
    """The shape as pydantic's validator has it, without any conversion."""
    from pydantic_core import core_schema

    if isinstance(shape, tuple):
        return core_schema.union_schema([_schema(part) for part in shape])
    if isinstance(shape, list):
        return core_schema.list_schema(_schema(shape[0]), strict=True)
    if isinstance(shape, Mapping) and shape:
        fields = {
            key.removesuffix("?"): core_schema.typed_dict_field(_schema(part), required=key[-1:] != "?")
            for key, part in shape.items()
        }
        return core_schema.typed_dict_schema(fields, strict=True, extra_behavior="ignore")
    schemas: dict[Any, CoreSchema] = {
        None: core_schema.none_schema(),
        str: core_schema.str_schema(strict=True),
        int: core_schema.int_schema(strict=True),
        float: core_schema.float_schema(strict=True),
        bool: core_schema.bool_schema(strict=True),
        list: core_schema.list_schema(strict=True),
    }
    plain = shape is None or isinstance(shape, type)
    return schemas.get(shape if plain else dict, core_schema.dict_schema(strict=True))


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
