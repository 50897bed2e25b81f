"""Models and data in one folder, for machines without internet: `nein fetch` fills it, `--models-from` reads
it.

FOLDER/hub/ is a cache of huggingface_hub, FOLDER/torch/ what TORCH_HOME names, and FOLDER/manifest.json has
size and SHA-256 of every file. Links are relative: the folder can be moved and copied.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nein.engine import atomic, shapes
from nein.engine.errors import UserError
from nein.loading.digests import file_sha256
from nein.loading.references import Need as Need
from nein.loading.references import expanded

HUB, TORCH, MANIFEST = "hub", "torch", "manifest.json"
#: What tells the libraries where to look; worker processes need them too.
VARIABLES = ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "TORCH_HOME", "HF_HUB_VERBOSITY")
SCHEMA = 1


def use(folder: str | Path) -> None:
    """From now on every library of this process, and of those that it starts, reads models from `folder` and
    asks nobody. Raises UserError where there is no such folder."""
    root = expanded(folder).absolute()
    read_manifest(root)
    values = (str(root / HUB), "1", str(root / TORCH), "error")
    os.environ.update(dict(zip(VARIABLES, values, strict=True)))
    # The library reads them when it is imported, which a program that calls us may have done already.
    if (constants := sys.modules.get("huggingface_hub.constants")) is not None:
        constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE = values[0], True  # type: ignore[attr-defined]
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def read_manifest(root: Path) -> dict[str, Any]:
    """The sets of files of a folder, by `Need.key`. Raises UserError where there is none."""
    file = root / MANIFEST
    if not file.is_file():
        raise UserError(
            f"'{root}' holds no {MANIFEST}, so it is no folder of models; make it where there is a network: "
            f"nein fetch --preset paper --out {root.name}."
        )
    content = atomic.read_json(file, {"schema": int, "sets": dict})
    for entry in content["sets"].values():
        if fault := shapes.fault(entry, {"reference": str, "files": dict}):
            raise UserError(f"'{file}': {fault}; fetch into another folder.")
    return dict(content["sets"])


def write_manifest(root: Path, sets: Mapping[str, Any]) -> None:
    atomic.write_json(root / MANIFEST, {"schema": SCHEMA, "sets": dict(sorted(sets.items()))})


def check(folder: str | Path, needs: Iterable[Need]) -> None:
    """Raises UserError that names the first file, or repository, that a run needs and the folder lacks."""
    root = expanded(folder).absolute()
    sets = read_manifest(root)
    lacking = [fault for need in dict.fromkeys(needs) for fault in _lacks(root, sets, need)]
    if lacking:
        more = f" (and {len(lacking) - 1} more)" if len(lacking) > 1 else ""
        raise UserError(
            f"'{folder}' lacks {lacking[0]}{more}, which this run needs. Complete it where there is a "
            "network: put 'nein fetch' in the place of 'nein' before this command; nein fetch --check "
            f"--out {folder} says what else is missing or altered."
        )


def _lacks(root: Path, sets: Mapping[str, Any], need: Need) -> list[str]:
    """What a need lacks, in words; sizes are looked at, contents are not."""
    if need.layout == "package":
        here = on_disk(need) is not None
        return [] if here else [f"the Python package {need.reference}, which pip installs with nein"]
    if need.key not in sets:
        return [f"'{need}'"]
    return [
        f"{name} of '{need}'"
        for name, facts in sets[need.key]["files"].items()
        if not (root / name).is_file() or (root / name).stat().st_size != facts["size"]
    ]


def faults(root: Path, sets: Mapping[str, Any], progress: Callable[[int], object]) -> Iterator[str]:
    """ "missing", "cut short" or "altered", and which file of which model: of every file that is not as it
    was fetched. All are read, and `progress` gets the bytes."""
    seen: dict[tuple[str, str], str] = {}
    for entry in sets.values():
        for name, facts in entry["files"].items():
            file = root / name
            if (key := (name, facts["sha256"])) in seen:
                pass
            elif not file.is_file():
                seen[key] = "missing"
            elif file.stat().st_size < facts["size"]:
                seen[key] = "cut short"
            else:
                seen[key] = "" if file_sha256(file, progress) == facts["sha256"] else "altered"
            if seen[key]:
                yield f"{seen[key]}: {name} of {entry['reference']}"


def on_disk(need: Need) -> int | None:
    """Bytes of a need on this machine; None where it is not here, or only in part."""
    if need.layout == "package":
        return 0 if any(importlib.util.find_spec(name) for name in need.reference.split(" or ")) else None
    if need.layout == "torch":
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        home = os.environ.get("TORCH_HOME") or Path(cache, "torch")
        files = sorted(Path(home, "hub", "checkpoints").glob(need.reference.rpartition("/")[2]))
        return files[0].stat().st_size if files else None
    folder = snapshot(need)
    if folder is None or any(folder.parents[1].glob("blobs/*.incomplete")):
        return None
    files = [path for path in folder.rglob("*") if path.is_file()]
    weightless = need.layout in ("text", "settings", "dataset")
    whole = files if weightless else [path for path in files if path.suffix in (".safetensors", ".bin")]
    return sum(path.stat().st_size for path in files) if whole else None


def repository(need: Need) -> str:
    """The name of a repository's folder in a cache of the hub."""
    kind = "datasets" if need.layout == "dataset" else "models"
    return f"{kind}--{need.reference.replace('/', '--')}"


def snapshot(need: Need) -> Path | None:
    """The folder in the hub's cache that has the files of a need, or some of them; None where there is
    none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    kind = "dataset" if need.layout == "dataset" else "model"
    try:
        found = snapshot_download(
            need.reference, repo_type=kind, revision=need.revision, local_files_only=True
        )
    except (HFValidationError, LocalEntryNotFoundError):
        return None
    return Path(found)


def total(sets: Mapping[str, Any]) -> int:
    """Bytes of all files, each counted once."""
    files = {name: facts["size"] for entry in sets.values() for name, facts in entry["files"].items()}
    return sum(files.values())
