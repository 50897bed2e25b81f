"""What a file that was read back must look like: checked before anything is worked out from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pydantic_core
from pydantic_core import core_schema

#: A type (float takes whole numbers, None stands for null), several shapes of which one must fit, a list
#: whose members all have one shape ([int, int]: exactly two of them), or a mapping of keys to shapes; "key?"
#: may be missing, others may be there.
Shape = Any
_TYPES: dict[Any, tuple[str, Callable[..., Any]]] = {
    str: ("a text", core_schema.str_schema),
    int: ("a whole number", core_schema.int_schema),
    float: ("a number", core_schema.float_schema),
    bool: ("true or false", core_schema.bool_schema),
    dict: ("an object", core_schema.dict_schema),
    list: ("a list", core_schema.list_schema),
}


def fault(value: Any, shape: Shape, name: str = "") -> str:
    """The first thing that is wrong, in words: "'data.annotations' is 3, which must be a text"; "" where all
    is well."""
    try:
        pydantic_core.SchemaValidator(_schema(shape)).validate_python(value)
        return ""
    except pydantic_core.ValidationError as error:
        first = error.errors(include_url=False)[0]
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]]
    inner = "".join([name, *parts]).removeprefix(".")
    if first["type"] == "missing":
        return f"'{inner}' is missing"
    wanted = {
        "dict_type": "an object", "list_type": "a list", "too_short": "longer", "too_long": "shorter",
    }.get(first["type"], first["msg"])  # fmt: skip
    excerpt = json.dumps(first["input"], ensure_ascii=False, default=str)[:60]
    return (f"'{inner}' " if inner else "") + f"is {excerpt}, which must be {wanted}"


def quick(shape: Shape) -> Callable[[Any], bool]:
    """A test of many values of parsed JSON: whether `fault` says "" of one, in a small part of its time."""
    return pydantic_core.SchemaValidator(_schema(shape)).isinstance_python


def _schema(shape: Shape) -> core_schema.CoreSchema:
    """The shape as pydantic's validator has it, without any conversion."""
    if isinstance(shape, list):
        count = len(shape) if len(shape) > 1 else None
        return core_schema.list_schema(_schema(shape[0]), min_length=count, max_length=count, strict=True)
    if isinstance(shape, Mapping) and shape:
        fields = {
            key.removesuffix("?"): core_schema.typed_dict_field(_schema(part), required=key[-1:] != "?")
            for key, part in shape.items()
        }
        return core_schema.typed_dict_schema(fields, strict=True, extra_behavior="ignore")
    if shape is None:
        inner: core_schema.CoreSchema = core_schema.none_schema()
    elif isinstance(shape, tuple):
        inner = core_schema.union_schema([_schema(part) for part in shape])
    elif shape is object:
        return core_schema.any_schema()
    else:
        inner = _TYPES[shape if isinstance(shape, type) else dict][1](strict=True)
    return core_schema.custom_error_schema(inner, "shape", custom_error_message=_words(shape))


def _words(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return " or ".join(map(_words, shape))
    if shape is None:
        return "null"
    return _TYPES[shape if isinstance(shape, type) else type(shape)][0]
