"""`nein fetch COMMAND OPTIONS`: downloads the models and data of a command into the hub's cache (HF_HOME).

nein fetch --preset paper --editor ip2p,magicbrush                     of nein eval, the default command
nein fetch eval --preset paper --data hub:OWNER/NAME --editor all
HF_HUB_OFFLINE=1 nein eval ...                                         then works without a network
"""

from __future__ import annotations

import glob
import pkgutil
import shutil
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from nein.config import options
from nein.config.groups import Command
from nein.loading.errors import UserError, first_line
from nein.loading.references import TEXTS, Need

NOTHING = "Nothing to fetch: everything this needs ships with nein."


class Refused(Exception):
    """A need that cannot be downloaded; its message is one sentence."""


def fetch_command(name: str, command: Command, words: Sequence[str]) -> int | str:
    """`nein fetch NAME WORDS`: downloads or lists the needs of a command; returns text or an exit code."""
    config_class = pkgutil.resolve_name(command.configuration)
    prog, description = f"nein fetch {name}", f"{command.help}."
    config, dry_run = options.read(config_class, words, prog=prog, description=description, to_fetch=True)
    if dry_run:
        return "".join(f"{line}\n" for line in describe_plan(config.needs()))
    return fetch(config.needs())


def fetch(needs: Sequence[Need]) -> int | str:
    """Downloads missing files; returns the last line or, if one was refused, exit code 1."""
    if not needs:
        return f"{NOTHING}\n"
    refused = []
    for need in dict.fromkeys(needs):
        try:
            download(need)
        except Refused as error:
            refused.append(str(error))
    for sentence in refused:
        print(f"Not fetched: {sentence}", file=sys.stderr, flush=True)
    return 1 if refused else "Everything is here: HF_HUB_OFFLINE=1 nein COMMAND ...\n"


def describe_plan(needs: Sequence[Need]) -> list[str]:
    """The lines of `--dry-run`: files and size of each need, and the total. Without the hub: names."""
    from huggingface_hub import constants

    if not needs:
        return [NOTHING]
    lines = []
    count = size = to_download = 0  # files; bytes; bytes
    for need in dict.fromkeys(needs):
        try:
            files = download(need, dry_run=True)
        except Refused as error:
            lines.append(f"Refused: {error}")
        except UserError as error:
            return [*map(str, dict.fromkeys(needs)), f"Sizes need the hub: {error}"]
        else:
            need_size = sum(file.file_size or 0 for file in files)
            lines.append(f"{need}: {len(files)} files, {format_size(need_size)}" if files else str(need))
            count += len(files)
            size += need_size
            to_download += sum(file.file_size or 0 for file in files if file.will_download)
    root = Path(constants.HF_HUB_CACHE)  # it may not exist yet
    free = shutil.disk_usage(next(path for path in (root, *root.parents) if path.exists())).free
    total = f"{count} files, {format_size(size)}; {format_size(to_download)} to download"
    return [*lines, f"{total}, {format_size(free)} free on the disk of {root}."]


def download(need: Need, *, dry_run: bool = False) -> list[Any]:
    """Downloads a need's files: of a repository by `snapshot_download`, from an address by torch. dry_run:
    only returns the files of a repository (`huggingface_hub.DryRunFileInfo`). Raises Refused or UserError."""
    from huggingface_hub import HfApi, constants, errors, snapshot_download
    from huggingface_hub.utils import httpx

    if constants.HF_HUB_OFFLINE:
        raise UserError("HF_HUB_OFFLINE is set, and nein fetch needs the network: unset it for this command.")
    try:
        if need.kind == "url":
            if not dry_run:
                _download_address(need)
            return []
        repository: dict[str, Any] = {"repo_type": need.kind, "revision": need.revision}
        names = choose_files(need, HfApi().list_repo_files(need.reference, **repository))
        patterns = [*map(glob.escape, names)]
        downloads = snapshot_download(need.reference, **repository, dry_run=dry_run, allow_patterns=patterns)
        return list(downloads) if dry_run else []
    except errors.GatedRepoError:
        page = f"{constants.ENDPOINT}/{'datasets/' if need.kind == 'dataset' else ''}{need.reference}"
        raise Refused(
            f"'{need}' is gated: accept its license at {page}, log in with `hf auth login` (or set "
            "HF_TOKEN), and rerun the command."
        ) from None
    except errors.RepositoryNotFoundError:
        raise Refused(
            f"There is no repository '{need.reference}' on the hub, or it is private: check the name, or log "
            "in with `hf auth login`."
        ) from None
    except errors.RevisionNotFoundError:
        raise Refused(f"'{need.reference}' has no revision '{need.revision}'.") from None
    except (OSError, RuntimeError, ValueError, httpx.HTTPError) as error:
        source = need.reference if need.kind == "url" else constants.ENDPOINT
        raise UserError(
            f"'{need}' cannot be downloaded from {source}: {first_line(error).rstrip('.')}. Complete files "
            "stay; rerun the command, or set HF_ENDPOINT to a mirror."
        ) from None


#: Weights as transformers and diffusers name them: no variant ("model.fp16.safetensors"), no single file.
WEIGHTS = ("*model.safetensors", "*model-*-of-*.safetensors", "*model.bin", "*model-*-of-*.bin")
#: Folders of repositories that nein does not read.
LEFT_OUT = ("onnx/*", "openvino/*", "coreml/*", "original/*", "safety_checker/*")


def choose_files(need: Need, names: Sequence[str]) -> list[str]:
    """The files that a model's loader reads, without .bin files if each lies next to a safetensors file."""
    if need.kind == "dataset":
        return list(names)

    def matches(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch(name, pattern) for pattern in patterns)

    chosen = [name for name in names if matches(name, need.files or (*TEXTS, *WEIGHTS))]
    if not need.files:
        chosen = [name for name in chosen if not matches(name, LEFT_OUT)]
    pickles = [name for name in chosen if name.endswith(".bin")]
    folders = {name.rpartition("/")[0] for name in chosen if name.endswith(".safetensors")}
    if all(name.rpartition("/")[0] in folders for name in pickles):
        chosen = [name for name in chosen if name not in pickles]
    return chosen


def _download_address(need: Need) -> None:
    """Downloads a file into torch's cache, and checks its SHA-256."""
    import torch

    file = Path(torch.hub.get_dir(), "checkpoints", need.reference.rpartition("/")[2])
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(need.reference, str(file), hash_prefix=need.revision)


def format_size(size: int) -> str:
    """ "1.2 GB" or "3.4 MB", of a number of bytes."""
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
