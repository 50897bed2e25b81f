"""Addresses have no secrets in them: one with a user, a password or a query is refused, and shown without."""

from __future__ import annotations

import re
from typing import Any

from nein.loading.errors import UserError

_USER = re.compile(r"://(?:[^\s'\"<>`#]*|[^\s'\"<>`/]*)@")  # up to the last "@"
_QUERY = re.compile(r"(://[^\s'\"<>`?#]*)\?[^\s'\"<>`#]*")


def without(text: str) -> str:
    """A text in which every address has lost its user, password and query."""
    return _QUERY.sub(r"\1", _USER.sub("://", text)) if "://" in text else text


def check(value: Any) -> None:
    """Raises UserError where a text in `value`, also of a list or dict, is an address with one of them."""
    if isinstance(value, (list, dict)):
        for inner in value if isinstance(value, list) else value.values():
            check(inner)
    elif isinstance(value, str) and without(value) != value:
        raise UserError(
            f"'{without(value)}' was given with a user, password or query, which files would show; "
            "give the address alone, and a key by the environment (OPENAI_API_KEY)."
        )
