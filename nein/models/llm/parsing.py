"""From the text of an answer to an object of a schema, strictly: what is not plainly there is a failure."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

#: Failures of an answer that did arrive.
NONSENSE, WRONG_SCHEMA, CUT_OFF = "nonsense", "wrong schema", "cut off"

Schema = TypeVar("Schema", bound=BaseModel)
_THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


class Plain(BaseModel):
    """An answer that is no JSON object, for prompts that say themselves what they want.

    END  Where the answer ends: what the model says behind it is not read.
    """

    END: ClassVar[str] = "\n\n"

    @classmethod
    def read(cls, text: str) -> Any:
        """The answer, from a text without white space around it. Raises AnswerError."""
        raise NotImplementedError


class AnswerError(ValueError):
    """An answer that cannot be used. `kind` is NONSENSE, WRONG_SCHEMA or CUT_OFF."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def parse(text: str, schema: type[Schema], *, finished: bool = True) -> Schema:
    """The one JSON object of an answer, checked against `schema` without any conversion of types; or what a
    `Plain` schema reads.

    finished  Whether the model ended the answer itself; an unusable one is otherwise CUT_OFF.

    Text around the object, a code fence and a leading <think> block are allowed, a second object is not: it
    would be unclear which one is meant. So is a key that occurs twice. Raises AnswerError.
    """
    try:
        if issubclass(schema, Plain):
            body = _THOUGHT.sub("", text).strip()
            return schema.read(body.partition(schema.END)[0].strip())
        answer = _only_object(text)
        return schema.model_validate_json(json.dumps(answer), strict=True)
    except AnswerError as error:
        if not finished:
            raise AnswerError(CUT_OFF, f"the answer was cut off before its end ({error})") from None
        raise
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise AnswerError(WRONG_SCHEMA, f"{place + ': ' if place else ''}{first['msg']}") from None


def instructions(schema: type[BaseModel]) -> str:
    """The sentence at the end of a prompt that asks for the form, for models with and without a JSON mode; ""
    for a `Plain` answer."""
    if issubclass(schema, Plain):
        return ""
    shape = json.dumps(wire_schema(schema), ensure_ascii=False, sort_keys=True)
    return f"Answer with exactly one JSON object and no other text. It must match this JSON schema:\n{shape}"


def wire_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema as servers with structured output take it: every key required, no further keys."""
    shape = schema.model_json_schema()
    for part in (shape, *shape.get("$defs", {}).values()):
        if part.get("type") == "object":
            part["additionalProperties"] = False
            part["required"] = sorted(part.get("properties", {}))
    return shape


def _only_object(text: str) -> dict[str, Any]:
    body = _THOUGHT.sub("", text)

    def constant(name: str) -> Any:
        raise AnswerError(NONSENSE, f"{name} is no JSON value")

    decoder = json.JSONDecoder(object_pairs_hook=_no_repetition, parse_constant=constant)
    objects: list[dict[str, Any]] = []
    place = body.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(body, place)
        except json.JSONDecodeError:
            break
        except AnswerError:
            raise
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, endless nesting
            raise AnswerError(NONSENSE, f"the JSON of the answer cannot be read ({error})") from None
        objects.append(value)
        place = body.find("{", end)
    if place >= 0 or not objects:
        raise AnswerError(NONSENSE, f"no JSON object in the answer {text.strip()[:80]!r}")
    if len(objects) > 1:
        raise AnswerError(NONSENSE, f"{len(objects)} JSON objects in one answer")
    return objects[0]


def _no_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise AnswerError(NONSENSE, "a key occurs twice in the answer")
    return dict(pairs)
