"""From what a run needs to files in a folder: which files of a repository, how many bytes, and the download.

Downloading is huggingface_hub's. Chosen is what a loader reads: weights once, as safetensors if it can be.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import URLError

from huggingface_hub import HfApi, constants, errors, hf_hub_download, snapshot_download
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import httpx

from nein.engine.errors import UserError
from nein.engine.store import HUB, TORCH, Need, repository
from nein.loading.digests import file_sha256
from nein.loading.errors import first_line

TIMEOUT = 30.0  # seconds until a silent hub has not answered
#: Configurations, tokenizers, templates.
TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken")
#: Weights as libraries name them: no variant ("model.fp16.safetensors"), nothing of another framework.
WEIGHTS = re.compile(r"(model|pytorch_model|diffusion_pytorch_model)(-\d+-of-\d+)?\.(safetensors|bin)")
#: Folders of other frameworks.
FOREIGN = ("onnx", "openvino", "coreml", "original")
CHECKER = "safety_checker"
OPEN_CLIP = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
#: What transformers' service calls its conversions of repositories without safetensors, and who makes them.
CONVERSION = ("Adding `safetensors` variant of this model", "SFconvertbot")
_CHECKPOINTS = Path("hub", "checkpoints")  # where torch looks below TORCH_HOME


@dataclass(frozen=True)
class File:
    """`size` in bytes, `sha256` where the hub says it, `revision` where it is another one's."""

    name: str
    size: int
    sha256: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Set:
    """The files that a need comes to."""

    need: Need
    commit: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class Refused(Exception):
    """A need that is not to be had: one sentence."""


def ask(needs: Iterable[Need], folder: Path) -> tuple[list[Set], list[str]]:
    """What is to be downloaded, and a sentence for every need that is not to be had. Downloads no more than
    configurations that name further needs. Raises UserError where the hub does not answer at all, or
    HF_HUB_OFFLINE is set."""
    if constants.HF_HUB_OFFLINE:
        raise UserError("HF_HUB_OFFLINE is set, and nein fetch needs the network: unset it for this command.")
    sets: list[Set] = []
    refused: list[str] = []
    waiting = list(dict.fromkeys(needs))
    seen = set(waiting)
    for need in waiting:  # grows
        try:
            with _sentences(need):
                found = _look_up(need)
                further = _further(need, found, folder)
        except Refused as error:
            refused.append(str(error))
            continue
        sets.append(found)
        waiting += [other for other in further if other not in seen]
        seen.update(further)
    return sets, refused


def _look_up(need: Need) -> Set:
    if need.layout == "torch":
        answer = httpx.head(need.reference, follow_redirects=True, timeout=TIMEOUT)
        answer.raise_for_status()
        name, size = need.reference.rpartition("/")[2], int(answer.headers.get("Content-Length", 0))
        return Set(need, need.revision or "", (File(name, size, need.revision),))
    api, kind = HfApi(), _kind(need)
    ask_about: Callable[..., Any] = api.dataset_info if kind == "dataset" else api.model_info
    info = ask_about(need.reference, revision=need.revision, files_metadata=True, timeout=TIMEOUT)
    if info.gated:
        api.auth_check(need.reference, repo_type=kind)
    files = {item.rfilename: _file(item) for item in info.siblings or []}
    chosen = [files[name] for name in choose(need.layout, list(files))]
    if not chosen:
        raise Refused(f"'{need}' holds nothing of what a model of the kind '{need.layout}' is read from.")
    if need.layout == "transformers" and not any(file.name.endswith(".safetensors") for file in chosen):
        chosen += _conversion(api, need)
    return Set(need, info.sha, tuple(chosen))


def _file(item: RepoSibling, revision: str | None = None) -> File:
    return File(item.rfilename, item.size or 0, item.lfs.sha256 if item.lfs else None, revision)


def _kind(need: Need) -> str:
    return "dataset" if need.layout == "dataset" else "model"


def choose(layout: str, names: Sequence[str]) -> list[str]:
    """The files of a repository that a layout reads, of their paths in it."""
    base, _, file = layout.partition(":")
    top = [name for name in names if "/" not in name]
    parts = [name for name in names if "/" in name and name.split("/")[0] not in FOREIGN]
    if base in ("pipeline", "settings"):
        parts = [name for name in parts if not name.startswith(f"{CHECKER}/")]
    if base == "file":
        return [name for name in names if name == file]
    if base == "dataset":
        return sorted(name for name in names if name != ".gitattributes")
    texts, weights = top, list[str]()  # layout "text"
    if base == "transformers":
        texts = top + [name for name in names if name.startswith("additional_chat_templates/")]
        weights = _weights(top)
    elif base == "open_clip":
        wanted = (f"{file.rpartition('.')[0]}.safetensors", file) if file else OPEN_CLIP
        weights = [name for name in wanted if name in names][:1]
    elif base == "sentence":
        texts = top + parts
        weights = _weights(texts)
    elif base == "settings":
        texts = top + parts
    elif base in ("pipeline", "pipeline and checker"):
        texts, weights = top + parts, _weights(parts)
        old = _weights(parts, ".bin")
        # Of a pipeline that lacks safetensors of one part, all are read from .bin files.
        if not {PurePosixPath(name).parent for name in old} <= {PurePosixPath(n).parent for n in weights}:
            weights = old
    return sorted([*(name for name in texts if name.endswith(TEXTS)), *weights])


def _weights(names: Iterable[str], suffix: str = ".safetensors") -> list[str]:
    """Weights of every folder; the shards only where there is no file of them all."""
    folders: dict[str, list[str]] = {}
    for name in names:
        folder, _, file = name.rpartition("/")
        if file.endswith(suffix) and WEIGHTS.fullmatch(file):
            folders.setdefault(folder, []).append(name)
    return [n for files in folders.values() for n in [x for x in files if "-of-" not in x] or files]


def place(need: Need, folder: Path) -> Path:
    """The folder below `folder` that a need is downloaded into."""
    return folder / TORCH / _CHECKPOINTS if need.layout == "torch" else folder / HUB / repository(need)


def _conversion(api: HfApi, need: Need) -> list[File]:
    """The safetensors of the hub's conversion service, in a pull request, which transformers takes."""
    title, author = CONVERSION
    for discussion in api.get_repo_discussions(need.reference, author=author, discussion_type="pull_request"):
        if discussion.title == title and discussion.status == "open":
            revision = f"refs/pr/{discussion.num}"
            info = api.model_info(need.reference, revision=revision, files_metadata=True, timeout=TIMEOUT)
            files = {item.rfilename: item for item in info.siblings or []}
            if shards := _weights(name for name in files if "/" not in name):
                names = [*shards, *({"model.safetensors.index.json"} & files.keys())]
                return [_file(files[name], revision) for name in names]
    raise Refused(
        f"'{need}' has no weights as safetensors, and pickles are not loaded; save it again with "
        "save_pretrained, or name a revision that has them: OWNER/NAME@REVISION."
    )


def _further(need: Need, found: Set, folder: Path) -> list[Need]:
    """What the configuration of an open_clip repository says of its text tower."""
    if need.layout != "open_clip" or not any(file.name == "open_clip_config.json" for file in found.files):
        return []
    from nein.metrics.dual.openclip import text_origins

    path = hf_hub_download(
        need.reference, "open_clip_config.json", revision=need.revision, cache_dir=folder / HUB
    )
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))["model_cfg"]
        return text_origins(config)
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"The configuration of '{need}' is none of open_clip: {error}.") from None


def download(found: Set, folder: Path) -> dict[str, Any]:
    """Puts a set into the folder; its entry of the manifest. Files that are there are not downloaded again.
    Every file is compared with the hub's SHA-256. Raises Refused or UserError."""
    need = found.need
    entry: dict[str, Any] = {"reference": need.reference, "layout": need.layout}
    entry |= {"revision": need.revision, "commit": found.commit, "files": {}}
    with _sentences(need):
        places = _download(found, folder)
    for file, path in zip(found.files, places, strict=True):
        digest = file_sha256(path) if path.is_file() else None
        if digest is None:
            raise _silent(need, FileNotFoundError(file.name))
        if file.sha256 is not None and not digest.startswith(file.sha256):
            path.resolve().unlink()
            raise Refused(
                f"{file.name} of '{need}' arrived damaged (SHA-256 {digest[:12]}..., expected "
                f"{file.sha256[:12]}...) and was removed; fetch again."
            )
        entry["files"][str(path.relative_to(folder))] = {"size": path.stat().st_size, "sha256": digest}
    return entry


def _download(found: Set, folder: Path) -> list[Path]:
    need, hub = found.need, folder / HUB
    if need.layout == "torch":
        from torch.hub import download_url_to_file

        target = place(need, folder) / found.files[0].name
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            download_url_to_file(need.reference, str(target))
        return [target]
    ours = place(need, folder) / "snapshots" / found.commit
    for revision in dict.fromkeys(file.revision for file in found.files):
        names = [file.name for file in found.files if file.revision == revision]
        got = snapshot_download(
            need.reference,
            repo_type=_kind(need),
            revision=revision or need.revision,
            cache_dir=hub,
            allow_patterns=[glob.escape(name) for name in names],
        )
        for link in (ours / name for name in names if revision):
            # Offline nobody can look for the conversion: its weights lie where the repository's would.
            target = Path(got, link.relative_to(ours))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            try:
                link.symlink_to(os.path.relpath(target.resolve(), link.parent))
            except OSError:  # a file system without links
                shutil.copyfile(target, link)
    return [ours / file.name for file in found.files]


@contextmanager
def _sentences(need: Need) -> Iterator[None]:
    """What the hub refuses is `Refused`; where it does not answer, or the disk is full, UserError."""
    try:
        yield
    except errors.GatedRepoError:
        page = f"{constants.ENDPOINT}/{'datasets/' if need.layout == 'dataset' else ''}{need.reference}"
        raise Refused(
            f"'{need}' is gated: accept its licence at {page}, log in with `hf auth login` (or set "
            "HF_TOKEN), and fetch again."
        ) from None
    except errors.RepositoryNotFoundError:
        raise Refused(
            f"There is no repository '{need.reference}' on the hub, or it is private: check the name, or log "
            "in with `hf auth login`."
        ) from None
    except errors.RevisionNotFoundError:
        raise Refused(f"'{need.reference}' has no revision '{need.revision}'.") from None
    except errors.HFValidationError:
        raise Refused(f"'{need.reference}' is not a name of a repository; it must be OWNER/NAME.") from None
    except errors.LocalEntryNotFoundError as error:  # the connection broke between two files
        raise _silent(need, error.__cause__ or error) from None
    except (errors.EntryNotFoundError, errors.HfHubHTTPError, httpx.HTTPStatusError) as error:
        if getattr(getattr(error, "response", None), "status_code", 0) >= 500:
            raise _silent(need, error) from None
        raise Refused(f"'{need}' cannot be downloaded: {first_line(error).rstrip('.')}.") from None
    except (httpx.HTTPError, URLError) as error:
        raise _silent(need, error) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                "The disk is full. What is complete stays; make room, or copy the folder to a larger disk, "
                "and give the same command again."
            ) from None
        raise UserError(f"'{need}' cannot be written: {first_line(error).rstrip('.')}.") from None


def _silent(need: Need, error: BaseException) -> UserError:
    where = need.reference if need.layout == "torch" else constants.ENDPOINT
    return UserError(
        f"{where} does not answer ({first_line(error).rstrip('.')}). What is complete stays; give the same "
        "command again when there is a network, or set HF_ENDPOINT to a mirror."
    )


def left(sets: Iterable[Set], known: Mapping[str, Any], folder: Path) -> int:
    """Bytes that are still to be downloaded, by what the manifest and the cache already have."""
    size = 0
    for item in sets:
        entry = known.get(item.need.key, {})
        same = entry.get("files", ()) if entry.get("commit") == item.commit else ()
        present = [name for name in same if (folder / name).is_file()]
        lacking = (f for f in item.files if not any(name.endswith(f"/{f.name}") for name in present))
        size += sum(file.size for file in lacking)
    return size
