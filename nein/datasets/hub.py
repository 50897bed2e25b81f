"""Load data sets of the Hugging Face hub with `datasets`: hub:OWNER/NAME[@REVISION], or hub:FOLDER."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from nein.engine import atomic
from nein.loading.digests import json_digest
from nein.loading.errors import UserError, first_line
from nein.loading.references import find_cached_commit

PREFIX = "hub:"
#: Benchmark -> its published data set on the hub; results belong to it unless an option names another.
PUBLISHED = {"nein": "nhatttanbui/NeIn", "negvqa": "yuhuizhang/NegVQA"}


class Reference(NamedTuple):
    """The part behind "hub:": the data set's name and a commit, branch or tag."""

    name: str
    revision: str | None


def parse(source: str) -> Reference | None:
    """Parse "hub:OWNER/NAME@REVISION"; None for a source of another kind."""
    if not source.startswith(PREFIX):
        return None
    name, _, revision = source.removeprefix(PREFIX).partition("@")
    return Reference(name, revision or None)


def find_version(data: Reference) -> str:
    """The commit in the hub's cache ("" before the download), or a hash of a folder's names, sizes, times."""
    folder = Path(data.name)
    if folder.is_dir():
        return json_digest({"files": sorted(map(atomic.stamp, folder.rglob("*.*")))})[:12]
    return find_cached_commit(data.name, data.revision, "dataset")


def read(data: Reference, split: str, configuration: str | None = None) -> Any:
    """Load a split ("all": every one); an image cell is {"bytes": ..., "path": ...}. Raises UserError."""
    try:
        import datasets
        from datasets.exceptions import DatasetsError
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import LocalEntryNotFoundError
    except ImportError:
        raise UserError(
            f"'{PREFIX}{data.name}' needs the package 'datasets': pip install -e '.[hub]', or pass a file or "
            "folder instead."
        ) from None
    try:
        # Load from the files: the tables that `datasets` caches do not come along with a copied hub cache.
        folder = data.name
        if not Path(folder).exists():
            folder = snapshot_download(data.name, repo_type="dataset", revision=data.revision)
        table = datasets.load_dataset(folder, configuration, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        problem = first_line(error).rstrip(".")
        if isinstance(error, ConnectionError | LocalEntryNotFoundError):
            problem = (
                "the machine has no network, or HF_HUB_OFFLINE is set, and the data set is not in the hub's "
                "cache; run nein fetch first, or pass a file or folder"
            )
        raise UserError(f"The data set '{data.name}' could not be loaded from the hub: {problem}.") from None
    for column, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(column, datasets.Image(decode=False))
    return table
