"""User, password and query of an endpoint's address: put aside where a reference comes in, and read again
where a request is sent. Everything between (files, messages, fingerprints) has the reference without them.

    put_aside("openai:http://me:PASS@host/v1?tok=1#eye-7b")    -> "openai:http://host/v1#eye-7b"
    of("http://host/v1", "eye-7b")                             -> Credentials("me:PASS", "tok=1")

An environment variable of this process keeps them, so that the processes it starts have them, too.
"""

from __future__ import annotations

import json
import os
import re
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

VARIABLE = "NEIN_ENDPOINT_CREDENTIALS"
#: An address in a text: up to a blank, a quotation mark, or the next reference of a list.
_ADDRESS = re.compile(
    r"(?P<kind>(?:openai|vllm):)?(?P<scheme>https?)://(?P<rest>(?:(?!,\s*(?:[\w.+-]+:)*(?:openai|vllm):)[^\s'\"<>`])*)",
    re.IGNORECASE,
)
#: A header with a key or a password, as a server may quote it.
QUOTED = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]+", re.IGNORECASE)
#: A name or number of a machine, with or without a port.
_HOST = re.compile(r"(?:[^:@]*|\[[^\]]*\])(?::\d*)?")


class Credentials(NamedTuple):
    """`user`: "name:password", and the `query` behind "?"; "" where there is none."""

    user: str
    query: str


def split(url: str) -> tuple[str, Credentials]:
    """An address without its credentials, and these: of a bad address all up to the last "@"."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url, Credentials("", "")
    before, _, query = rest.partition("?")
    authority, slash, path = before.partition("/")
    user, _, host = authority.rpartition("@")
    if not _HOST.fullmatch(host) and "@" in rest:  # a password with "/" or "?" in it
        user, _, host = rest.rpartition("@")
        before, _, query = host.partition("?")
        host, slash, path = before.partition("/")
    return f"{scheme}://{host}{slash}{path}", Credentials(user, query)


def without(text: str) -> str:
    """A text in which every address has lost its credentials."""
    return _ADDRESS.sub(lambda match: _replaced(match, keep=False), text)


def put_aside(text: str) -> str:
    """A text in which every reference to an endpoint has lost its credentials; `of` finds them then."""
    return _ADDRESS.sub(lambda match: _replaced(match, keep=True) if match["kind"] else match[0], text)


def of(url: str, model: str) -> Credentials:
    """What was put aside for a model at an address."""
    stored = json.loads(os.environ.get(VARIABLE, "{}"))
    return Credentials(*stored.get(_key(url, model), ("", "")))


def spellings(given: Credentials, *others: str) -> list[str]:
    """Every form in which a server may quote them, longest first."""
    parts = [given.user, given.query, *given.user.split(":"), *others]
    parts += [value for _, value in parse_qsl(given.query)]
    return sorted({*parts, *map(unquote, parts)} - {""}, key=len, reverse=True)


def _replaced(match: re.Match[str], *, keep: bool) -> str:
    url, mark, model = f"{match['scheme']}://{match['rest']}".rpartition("#")
    host = re.split("[/?]", url.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
    if not mark or (model.count("@") and not _HOST.fullmatch(host)):  # a password with "#" in it
        url, mark, model = f"{url}{mark}{model}", "", ""
    model, comma, others = model.partition(",")  # of a list: "openai:...#eye-7b,rewrite"
    address, credentials = split(url)
    if keep and any(credentials):
        stored = json.loads(os.environ.get(VARIABLE, "{}"))
        os.environ[VARIABLE] = json.dumps({**stored, _key(address, model): credentials})
    return f"{match['kind'] or ''}{address}{mark}{model}{comma}{others}"


def _key(url: str, model: str) -> str:
    return f"{url.rstrip('/')}#{model}"
