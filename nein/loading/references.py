"""References to models: of which kind one is, what an installed package offers by name, and what must be
downloaded."""

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

#: Entry points of this group give models by name: `nano = "package.module:path"` makes `nano:NAME` the folder
#: that `path(NAME)` returns.
REFERENCES = "nein.references"
_ATTRIBUTE = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*|.+\.py):[^\W\d]\w*")
Kind = Literal["served", "embedded", "plugin", "attribute", "local", "hub", "name"]


class Reference(NamedTuple):
    """How a user names a model.

    kind      "served" (openai:URL#MODEL, openai:MODEL), "embedded" (nano:NAME), "plugin" (plugin:NAME),
              "attribute" (module:attribute, file.py:attribute), "local" (a path, or what is
              there), "hub" (owner/name[@revision]), or "name": of a row of a table, or of nothing.
    name      Of "served" the model, of "plugin" and "attribute" what is behind the colon; of all others the
              reference without the revision.
    revision  Of "hub" and "name".
    url       Of "served"; None without one, "" for an unusable one.
    """

    text: str
    kind: Kind
    name: str
    revision: str | None = None
    url: str | None = None

    @property
    def has_files(self) -> bool:
        """Whether it names files, here or on the hub, and no row of a table."""
        return self.kind in ("embedded", "local", "hub")

    @property
    def is_code(self) -> bool:
        """Whether it names an object of Python."""
        return self.kind in ("plugin", "attribute")

    @property
    def without_address(self) -> str:
        """Not where a served model is, for servers move: "openai:#MODEL"."""
        return f"{self.text.partition(':')[0]}:#{self.name}" if self.kind == "served" else self.text


def parse_reference(reference: str) -> Reference:
    """By its form; a name of nothing else may be a file here. Raises UserError for an empty one."""
    if not reference:
        raise UserError(
            "'' names no model; give a hub id, a folder, nano:NAME or, where it can be, openai:URL#MODEL."
        )
    prefix, colon, rest = reference.partition(":")
    if is_served(reference):
        if "://" not in rest:
            return Reference(reference, "served", rest.removeprefix("#"))
        url, _, model = rest.rpartition("#")
        return Reference(reference, "served", model, url=url if is_address(url) else "")
    if colon and prefix == "nano":
        return Reference(reference, "embedded", reference)
    if colon and prefix == "plugin":
        return Reference(reference, "plugin", rest)
    if _ATTRIBUTE.fullmatch(reference) and prefix != "hub":
        return Reference(reference, "attribute", reference.rpartition(":")[2])
    if reference.startswith((".", "~", "/")) or "\\" in reference or is_local(reference):
        return Reference(reference, "local", reference)
    name, _, revision = reference.partition("@")
    return Reference(reference, "hub" if "/" in name else "name", name, revision or None)


def cached_folder(repository: str, revision: str | None, kind: str = "model") -> Path | None:
    """The folder in the hub's cache that has the files, or some of them, of a repository ("model",
    "dataset"); its name is the commit."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            repository,
            repo_type=kind,
            revision=revision,
            local_files_only=True,
            allow_patterns=[],  # else a repository of which some files were fetched is refused
        )
    except (OSError, ValueError):  # not in the cache, or no name of a repository
        return None
    return Path(folder)


def cached_commit(repository: str, revision: str | None, kind: str = "model") -> str:
    """The commit of a repository in the hub's cache; "" where it is not there."""
    folder = cached_folder(repository, revision, kind)
    return "" if folder is None else folder.name


def check_hub(repository: str, revision: str | None = None) -> None:
    """Raises UserError for a model that is not in the hub's cache while nobody answers: loaders of libraries
    ask for each of its files six times."""
    from huggingface_hub import HfApi, constants, errors
    from huggingface_hub.utils import httpx

    if cached_commit(repository, revision):
        return
    try:
        HfApi().model_info(repository, revision=revision, timeout=10)
    except (errors.HfHubHTTPError, ValueError):
        pass  # there is an answer, or no such name: the loader says what is wrong
    except (OSError, httpx.HTTPError) as error:
        raise UserError(
            f"'{repository}' is not in {constants.HF_HUB_CACHE}, and {constants.ENDPOINT} does not answer "
            f"({first_line(error).rstrip('.')}); connect, set HF_ENDPOINT to a mirror, or fetch it "
            "beforehand (nein fetch)."
        ) from None


def is_served(reference: str) -> bool:
    """Whether a model is behind an address, and not in this process."""
    return reference.startswith("openai:")


def is_address(url: str) -> bool:
    """Whether it is one of a server, without user, password and query."""
    try:
        parts = urlsplit(url)
        plain = parts.username is None and not parts.query
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and plain
    except ValueError:  # a port that is no number
        return False


#: Up to the last "@".
_USER = re.compile(r"://(?:[^\s'\"<>`#]*|[^\s'\"<>`/]*)@")
_QUERY = re.compile(r"(://[^\s'\"<>`?#]*)\?[^\s'\"<>`#]*")


def without_credentials(text: str) -> str:
    """A text in which every address has lost its user, password and query."""
    return _QUERY.sub(r"\1", _USER.sub("://", text)) if "://" in text else text


def check_credentials(value: Any) -> None:
    """Raises UserError where a text in `value`, also of a list or dict, is an address with one of them."""
    if isinstance(value, (list, dict)):
        for inner in value if isinstance(value, list) else value.values():
            check_credentials(inner)
    elif isinstance(value, str) and without_credentials(value) != value:
        raise UserError(
            f"'{without_credentials(value)}' was given with a user, password or query, which files would "
            "show; give the address alone, and a key by the environment (OPENAI_API_KEY)."
        )


def expanded(path: str | Path) -> Path:
    """A path with its `~` written out; that of an unknown user stays, where `Path.expanduser` raises."""
    return Path(os.path.expanduser(path))  # noqa: PTH111


def is_local(path: str | Path) -> bool:
    """Whether a file or folder of this name exists; no for names that no file system takes."""
    return os.path.exists(os.path.expanduser(path))  # noqa: PTH110, PTH111


def located(reference: str) -> str:
    """The folder of an installed package's model ("nano:clip"); any other reference as it is. Raises
    UserError for a name that the package does not have."""
    scheme, colon, name = reference.partition(":")
    for point in _offered(scheme, tuple(sys.path)) if colon else ():
        try:
            return str(point.load()(name))
        except (ValueError, FileNotFoundError) as error:
            raise UserError(f"'{reference}' cannot be resolved: {error}") from None
    return reference


@functools.lru_cache(maxsize=16)
def _offered(scheme: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    """Looked for once, since every look reads a file of every installed package. path: `sys.path`."""
    return tuple(metadata.entry_points(group=REFERENCES, name=scheme))


#: Configurations, tokenizers, templates.
TEXTS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken")


class Need(NamedTuple):
    """Files that a run reads from elsewhere.

    reference  OWNER/NAME of a repository on the hub; of kind "url" the address of a file.
    revision   Commit, branch or tag; None is the main branch. Of "url" how its SHA-256 begins.
    kind       "model", "dataset" or "url".
    files      Patterns of a repository's files, as of `fnmatch`; without, `TEXTS` and the weights.
    """

    reference: str
    revision: str | None = None
    kind: str = "model"
    files: tuple[str, ...] = ()

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision and self.kind != "url" else ""
        return f"{self.reference}{revision}"

    @classmethod
    def of(cls, path_or_id: str, revision: str | None = None, files: tuple[str, ...] = ()) -> Need | None:
        """Of `owner/name[@revision]`; None of an installed package's model and of what is on this machine."""
        reference = parse_reference(located(path_or_id))
        if is_local(reference.text):
            return None
        return cls(reference.name, revision or reference.revision, files=files)


# --- what `module:attribute` or `file.py:attribute` names ---


def load_attribute(reference: str) -> Any:
    """Raises UserError where it is not there, or its module fails."""
    home, _, name = reference.rpartition(":")
    try:
        if not home.endswith(".py"):
            return pkgutil.resolve_name(reference)
        module = _module_of(expanded(home))
        if not hasattr(module, name):
            near = near_match(name, vars(module))
            guess = f"; did you mean '{near}'?" if near else ""
            raise AttributeError(f"'{home}' has no '{name}'{guess}")
        return getattr(module, name)
    except (ImportError, AttributeError, OSError, SyntaxError) as error:
        raise UserError(f"'{reference}' cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a file of the user runs
        raise UserError(f"'{reference}' raises {type(error).__name__} when imported: {error}") from None


def _module_of(file: Path) -> Any:
    """The module in a file, run once; it can import files beside it."""
    name = f"_file_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise FileNotFoundError(f"there is no file '{file}'")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # every name that ends in .py has one, and a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module
