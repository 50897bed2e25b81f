"""Data sets on the Hugging Face hub, read with `datasets`: hub:OWNER/NAME[@REVISION], or hub:FOLDER."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nein.engine.errors import UserError

PREFIX = "hub:"
#: Of benchmarks that have one, the data set on the hub: what results belong to where nobody says another.
PUBLISHED = {"nein": "nhatttanbui/NeIn", "negvqa": "yuhuizhang/NegVQA"}


class Reference(NamedTuple):
    """What stands behind "hub:": the data set's name and a commit, branch or tag of it."""

    name: str
    revision: str | None


class Table(Protocol):
    """The rows of a split, each a mapping from column to value; a picture is {"bytes": ..., "path": ...}."""

    column_names: list[str]

    def __iter__(self) -> Iterator[Mapping[str, Any]]: ...


def reference(source: str) -> Reference | None:
    """What "hub:OWNER/NAME@REVISION" names; None for a source of another kind."""
    if not source.startswith(PREFIX):
        return None
    name, _, revision = source.removeprefix(PREFIX).partition("@")
    return Reference(name, revision or None)


def read(data: Reference, split: str) -> Table:
    """A split, downloaded on first use. Pictures are the bytes of their files, which nothing encodes again.

    Raises UserError when it cannot be had, with the reason and what to do.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetsError
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise UserError(
            f"'{PREFIX}{data.name}' needs the package 'datasets': pip install 'nein[hub]', or name a file or "
            "folder instead."
        ) from None
    try:
        # The files themselves: what they are made into lies elsewhere and does not come with a copied folder.
        folder = data.name if Path(data.name).exists() else snapshot_download(
            data.name, repo_type="dataset", revision=data.revision
        )  # fmt: skip
        table = datasets.load_dataset(folder, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        offline = (
            " The machine has no network, or HF_HUB_OFFLINE is set, and the data set is not in the hub's "
            "cache; fetch it beforehand (nein fetch), or name a file or folder instead."
        )
        if not isinstance(error, ConnectionError | LocalEntryNotFoundError):
            offline = ""
        raise UserError(
            f"The data set '{data.name}' could not be loaded from the hub: {first}.{offline}"
        ) from None
    for column, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
    return table
