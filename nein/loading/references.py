"""References, the names of models that users type: parses them, finds their files in the hub's cache or
installed packages, lists downloads (`Need`), imports objects; and keeps credentials out of addresses."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pkgutil
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from nein.loading.errors import UserError, first_line, near_match

#: `module:attribute` or `file.py:attribute`, where [^\W\d]\w* is a Python name.
_ATTRIBUTE = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*|.+\.py):[^\W\d]\w*")
Kind = Literal["served", "embedded", "plugin", "attribute", "local", "hub", "name"]


class Reference(NamedTuple):
    """A model as a user names it.

    kind      "served"     openai:URL#MODEL, openai:MODEL
              "embedded"   nano:NAME
              "plugin"     plugin:NAME
              "attribute"  module:attribute, file.py:attribute
              "local"      a path, or the name of an existing file
              "hub"        owner/name[@revision]
              "name"       any other word: a row of a table, or unknown
    name      "served": MODEL; "plugin", "attribute": the part after the colon; else the text, no revision.
    revision  Of "hub" and "name"; None: the main branch.
    url       Of "served"; None: the default server; "": not a usable address.
    """

    text: str
    kind: Kind
    name: str
    revision: str | None = None
    url: str | None = None

    @property
    def has_files(self) -> bool:
        """Whether it names files, on this machine or on the hub."""
        return self.kind in ("embedded", "local", "hub")

    @property
    def is_code(self) -> bool:
        return self.kind in ("plugin", "attribute")

    @property
    def without_address(self) -> str:
        """The reference without the address of a served model, since servers move: "openai:#MODEL"."""
        return f"{self.text.partition(':')[0]}:#{self.name}" if self.kind == "served" else self.text


def parse_reference(reference: str) -> Reference:
    """The reference in a text, by its form or by an existing file. Raises UserError for an empty text."""
    if not reference:
        raise UserError("'' names no model; give a hub id, a folder, nano:NAME or openai:URL#MODEL.")
    prefix, colon, address = reference.partition(":")
    if is_served(reference):
        if "://" not in address:
            return Reference(reference, "served", address.removeprefix("#"))
        url, _, model = address.rpartition("#")
        return Reference(reference, "served", model, url=url if is_address(url) else "")
    if colon and prefix == "nano":
        return Reference(reference, "embedded", reference)
    if colon and prefix == "plugin":
        return Reference(reference, "plugin", address)
    if _ATTRIBUTE.fullmatch(reference) and prefix != "hub":  # hub:NAME names data
        return Reference(reference, "attribute", reference.rpartition(":")[2])
    if reference.startswith((".", "~", "/")) or "\\" in reference or is_local(reference):
        return Reference(reference, "local", reference)
    name, _, revision = reference.partition("@")
    return Reference(reference, "hub" if "/" in name else "name", name, revision or None)


# --- the hub's cache -------------------------------------------------------------------------
def find_cached_folder(repository: str, revision: str | None, kind: str = "model") -> Path | None:
    """The folder in the hub's cache, named by the commit, with some or all files of a repository."""
    from huggingface_hub import snapshot_download

    try:
        # Without patterns a repository with only some of its files is refused.
        folder = snapshot_download(
            repository, repo_type=kind, revision=revision, local_files_only=True, allow_patterns=[]
        )
    except (OSError, ValueError):  # not in the cache, or not the name of a repository
        return None
    return Path(folder)


def find_cached_commit(repository: str, revision: str | None, kind: str = "model") -> str:
    """The commit of a repository in the hub's cache; "" if it is not there."""
    folder = find_cached_folder(repository, revision, kind)
    return "" if folder is None else folder.name


def check_hub(repository: str, revision: str | None = None) -> None:
    """Raises UserError, at once, if a model is not in the hub's cache and the hub does not answer."""
    from huggingface_hub import HfApi, constants, errors
    from huggingface_hub.utils import httpx

    if find_cached_commit(repository, revision):
        return
    try:
        HfApi().model_info(repository, revision=revision, timeout=10)
    except (errors.HfHubHTTPError, ValueError):
        pass  # the hub answers, or the name is wrong: the loader explains the error
    except (OSError, httpx.HTTPError) as error:
        raise UserError(
            f"'{repository}' is not in {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} does not answer "
            f"({first_line(error).rstrip('.')}); connect, set HF_ENDPOINT to a mirror, or download it first "
            "with nein fetch."
        ) from None


# --- addresses of servers, without credentials -------------------------------------------------
def is_served(reference: str) -> bool:
    """Whether a reference names a model behind an address."""
    return reference.startswith("openai:")


def is_address(url: str) -> bool:
    """Whether a text is the address of a server, without user, password and query."""
    try:
        parts = urlsplit(url)
        is_bare = parts.username is None and not parts.query
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and is_bare
    except ValueError:  # a port that is no number
        return False


#: "://USER:PASSWORD@", up to the last "@" before a "#" (fragment), or else before a "/" (path).
_USER = re.compile(r"://(?:[^\s'\"<>`#]*|[^\s'\"<>`/]*)@")
#: "://HOST/PATH?QUERY", up to a "#"; group 1 is the part before the query.
_QUERY = re.compile(r"(://[^\s'\"<>`?#]*)\?[^\s'\"<>`#]*")


def hide_credentials(text: str) -> str:
    """The text, with user, password and query cut from every address."""
    return _QUERY.sub(r"\1", _USER.sub("://", text)) if "://" in text else text


def check_credentials(value: Any) -> None:
    """Raises UserError if a text, or one in a list or dict, is an address with user, password or query."""
    if isinstance(value, (list, dict)):
        inner_values = value.values() if isinstance(value, dict) else value
        for inner in inner_values:
            check_credentials(inner)
    elif isinstance(value, str) and hide_credentials(value) != value:
        raise UserError(
            f"'{hide_credentials(value)}' was given with a user, password or query, which files would "
            "show; give only the address, and the key by an environment variable (OPENAI_API_KEY)."
        )


# --- paths, and models of installed packages ---------------------------------------------------
def expand_user(path: str | Path) -> Path:
    """The path with its `~` replaced. `~name` of an unknown user stays; `Path.expanduser` would raise."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def is_local(path: str | Path) -> bool:
    """Whether a file or folder of this name exists; False for names that no file system takes."""
    return os.path.exists(os.path.expanduser(path))  # noqa: PTH110, PTH111


def locate_embedded(reference: str) -> str:
    """The folder of an installed package's model ("nano:clip"); other references are returned unchanged."""
    scheme, colon, name = reference.partition(":")
    points = _find_entry_points(scheme, tuple(sys.path)) if colon else ()
    for point in points:  # the first one decides
        try:
            return str(point.load()(name))
        except (ValueError, FileNotFoundError) as error:
            raise UserError(f"'{reference}' cannot be resolved: {error}") from None
    return reference


#: Group of entry points of packages with models: `nano = "module:path"` finds `nano:NAME` in `path(NAME)`.
REFERENCES = "nein.references"


@functools.lru_cache(maxsize=16)
def _find_entry_points(scheme: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """The entry points named "nano". Cached per `sys.path`: each search reads a file of every package."""
    return tuple(metadata.entry_points(group=REFERENCES, name=scheme))


# --- downloads ---------------------------------------------------------------------------------
#: Patterns of the files of a repository without weights: configurations, tokenizers, templates.
TEXTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")


class Need(NamedTuple):
    """Files that a command must download."""

    reference: str  # OWNER/NAME of a repository on the hub; for kind "url" the address of a file
    revision: str | None = None  # commit, branch or tag (None: main); of a "url" the start of its SHA-256
    kind: str = "model"  # or "dataset", or "url"
    files: tuple[str, ...] = ()  # `fnmatch` patterns in a repository; (): `TEXTS` and the weights

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision and self.kind != "url" else ""
        return f"{self.reference}{revision}"

    @classmethod
    def parse(cls, path_or_id: str, revision: str | None = None, files: tuple[str, ...] = ()) -> Need | None:
        """The need of a hub id; None for models of installed packages and for local files."""
        reference = parse_reference(locate_embedded(path_or_id))
        if is_local(reference.text):
            return None
        return cls(reference.name, revision or reference.revision, files=files)


# --- imports of an object from a module or a user's file ------------------------------------------
def load_attribute(reference: str) -> Any:
    """The object that `module:attribute` or `file.py:attribute` names. Raises UserError if there is none."""
    source, _, name = reference.rpartition(":")
    try:
        if not source.endswith(".py"):
            return pkgutil.resolve_name(reference)
        module = _import_file(expand_user(source))
        if not hasattr(module, name):
            near = near_match(name, vars(module))
            guess = f"; did you mean '{near}'?" if near else ""
            raise AttributeError(f"'{source}' has no '{name}'{guess}")
        return getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise UserError(f"'{reference}' cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a file of the user runs
        raise UserError(f"'{reference}' raises {type(error).__name__} when imported: {error}") from None


def _import_file(file: Path) -> Any:
    """Runs a file once; returns its module. It can import the other files of its folder."""
    name = f"_file_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise FileNotFoundError(f"there is no file '{file}'")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader  # noqa: PT018 - every name that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(file.resolve().parent)
    sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module
