"""From what a run needs to files in a folder: which files of a repository, how many bytes, and the download.

Downloading is huggingface_hub's. What is chosen of a repository is what its loader reads: weights once, as
safetensors wherever there are any.
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
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import URLError

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import httpx

from nein.engine.errors import UserError
from nein.engine.store import HUB, TORCH, Need, repository
from nein.loading.digests import file_sha256

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

Names = Sequence[str]


@dataclass(frozen=True)
class File:
    """One file of a set. `size` in bytes, `sha256` where the hub says it, `revision` where it is another
    one's."""

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


@dataclass
class Asked:
    """What the hub says about needs: `sets` to download, and a sentence for every need that is not to be
    had."""

    sets: list[Set] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def ask(needs: Iterable[Need], folder: Path) -> Asked:
    """Looks every need up; downloads no more than configurations that name further needs. Raises UserError
    where the hub does not answer at all."""
    asked, waiting = Asked(), list(dict.fromkeys(needs))
    seen = set(waiting)
    for need in waiting:  # grows
        try:
            found = _look_up(need)
            further = _further(need, found, folder)
        except Refused as error:
            asked.refused.append(str(error))
            continue
        asked.sets.append(found)
        waiting += [other for other in further if other not in seen]
        seen.update(further)
    return asked


class Refused(Exception):
    """A need that is not to be had: one sentence."""


def _look_up(need: Need) -> Set:
    with _sentences(need):
        if need.layout == "torch":
            return _address(need)
        api, kind = HfApi(), _kind(need)
        ask_about: Callable[..., Any] = api.dataset_info if kind == "dataset" else api.model_info
        info = ask_about(need.reference, revision=need.revision, files_metadata=True, timeout=TIMEOUT)
        if info.gated:
            api.auth_check(need.reference, repo_type=kind)
    files = {item.rfilename: _file(item) for item in info.siblings or []}
    chosen = [files[name] for name in choose(need.layout, list(files))]
    if not chosen:
        raise Refused(f"'{need}' holds nothing of what a model of the kind '{need.layout}' is read from.")
    if _weightless(need.layout, chosen):
        with _sentences(need):
            chosen += _conversion(api, need)
    return Set(need, info.sha, tuple(chosen))


def _file(item: RepoSibling, revision: str | None = None) -> File:
    return File(item.rfilename, item.size or 0, item.lfs.sha256 if item.lfs else None, revision)


def _kind(need: Need) -> str:
    return "dataset" if need.layout == "dataset" else "model"


def choose(layout: str, names: Names) -> list[str]:
    """The files of a repository that a layout reads, of their paths in it."""
    base, _, file = layout.partition(":")
    if base == "file":
        return [name for name in names if name == file]
    return sorted(LAYOUTS[base](names, file))


def _transformers(names: Names, _: str) -> Iterator[str]:
    yield from _texts(
        name for name in names if "/" not in name or name.startswith("additional_chat_templates/")
    )
    yield from _weights([name for name in names if "/" not in name], ".safetensors")


def _text(names: Names, _: str) -> Iterator[str]:
    yield from _texts(name for name in names if "/" not in name)


def _open_clip(names: Names, file: str) -> Iterator[str]:
    yield from _texts(name for name in names if "/" not in name)
    wanted = (f"{file.rpartition('.')[0]}.safetensors", file) if file else OPEN_CLIP
    yield from [name for name in wanted if name in names][:1]


def _sentence(names: Names, _: str) -> Iterator[str]:
    ours = [name for name in names if name.split("/")[0] not in FOREIGN]
    yield from _texts(ours)
    for folder in {str(PurePosixPath(name).parent) for name in ours}:
        yield from _weights([n for n in ours if str(PurePosixPath(n).parent) == folder], ".safetensors")


def _pipeline(names: Names, _: str) -> Iterator[str]:
    yield from _with_checker([name for name in names if not name.startswith(f"{CHECKER}/")], "")


def _with_checker(names: Names, _: str) -> Iterator[str]:
    parts = [name for name in names if "/" in name and name.split("/")[0] not in FOREIGN]
    yield from _texts([name for name in names if "/" not in name] + parts)
    held = {
        suffix: {folder: _weights(group, suffix) for folder, group in _by_folder(parts).items()}
        for suffix in (".safetensors", ".bin")
    }
    # Of a pipeline that lacks safetensors of one part, all are read from .bin files.
    whole = all(held[".safetensors"][folder] for folder, found in held[".bin"].items() if found)
    for found in held[".safetensors" if whole else ".bin"].values():
        yield from found


def _settings(names: Names, _: str) -> Iterator[str]:
    yield from _texts(name for name in names if name.split("/")[0] not in (*FOREIGN, CHECKER))


def _dataset(names: Names, _: str) -> Iterator[str]:
    yield from (name for name in names if name != ".gitattributes")


#: Layout -> (paths in a repository, what stands behind its colon) -> those that are read.
LAYOUTS: dict[str, Callable[[Names, str], Iterator[str]]] = {
    "transformers": _transformers,
    "text": _text,
    "open_clip": _open_clip,
    "sentence": _sentence,
    "pipeline": _pipeline,
    "pipeline and checker": _with_checker,
    "settings": _settings,
    "dataset": _dataset,
}


_TEXTS = " ".join(f"*{ending}" for ending in TEXTS)
#: The same in patterns, for who asks before the hub does: `nein fetch --dry-run`.
PATTERNS: dict[str, str] = {
    "transformers": f"{_TEXTS} model*.safetensors additional_chat_templates/*",
    "text": _TEXTS,
    "open_clip": f"{_TEXTS} {OPEN_CLIP[0]}, or {OPEN_CLIP[1]}",
    "sentence": f"{_TEXTS} model*.safetensors, of all folders but {' '.join(FOREIGN)}",
    "pipeline": f"{_TEXTS} */*model*.safetensors, or .bin, without {CHECKER}",
    "pipeline and checker": f"{_TEXTS} */*model*.safetensors, or .bin",
    "settings": f"{_TEXTS}, of all folders but {' '.join((*FOREIGN, CHECKER))}",
    "dataset": "every file",
}


def expected(needs: Iterable[Need], folder: Path) -> Iterator[str]:
    """A line for every need: the repository and its revision, its files in patterns, and where they go.
    Nobody is asked."""
    for need in dict.fromkeys(needs):
        base, _, file = need.layout.partition(":")
        if base == "package":
            yield f"{need}: pip installs it with nein"
        elif base == "torch":
            yield f"{need}: one file -> {folder / TORCH / _CHECKPOINTS}"
        else:
            asked = file if base == "file" else f"{_TEXTS} {file}" if file else PATTERNS[base]
            yield f"{need.reference}@{need.revision or 'main'}: {asked} -> {folder / HUB / repository(need)}"


def _texts(names: Iterable[str]) -> Iterator[str]:
    yield from (name for name in names if name.endswith(TEXTS))


def _by_folder(names: Iterable[str]) -> dict[str, list[str]]:
    folders: dict[str, list[str]] = {}
    for name in names:
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    return folders


def _weights(names: Names, suffix: str) -> list[str]:
    """Weights of one folder; the shards only where there is no file of them all."""
    there = [n for n in names if n.endswith(suffix) and WEIGHTS.fullmatch(n.rpartition("/")[2])]
    return [name for name in there if "-of-" not in name] or there


def _weightless(layout: str, chosen: Sequence[File]) -> bool:
    return layout == "transformers" and not any(file.name.endswith(".safetensors") for file in chosen)


def _conversion(api: HfApi, need: Need) -> list[File]:
    """The safetensors that transformers takes for a repository without any: those of the hub's own service,
    in a pull request."""
    title, author = CONVERSION
    for one in api.get_repo_discussions(need.reference, author=author, discussion_type="pull_request"):
        if one.title == title and one.status == "open":
            revision = f"refs/pr/{one.num}"
            info = api.model_info(need.reference, revision=revision, files_metadata=True, timeout=TIMEOUT)
            there = {item.rfilename: item for item in info.siblings or []}
            shards = _weights(list(there), ".safetensors")
            names = shards + [name for name in there if name == "model.safetensors.index.json"]
            if shards:
                return [_file(there[name], revision) for name in names]
    raise Refused(
        f"'{need}' has no weights as safetensors, and pickles are not loaded; save it again with "
        f"save_pretrained, or "
        "name a revision that has them: OWNER/NAME@REVISION."
    )


def _address(need: Need) -> Set:
    name = need.reference.rpartition("/")[2]
    answer = httpx.head(need.reference, follow_redirects=True, timeout=TIMEOUT)
    answer.raise_for_status()
    size = int(answer.headers.get("Content-Length", 0))
    return Set(need, need.revision or "", (File(name, size, need.revision),))


def _further(need: Need, found: Set, folder: Path) -> list[Need]:
    """What the configuration of an open_clip repository says of its text tower."""
    if need.layout != "open_clip" or not any(file.name == "open_clip_config.json" for file in found.files):
        return []
    from nein.metrics.dual.openclip import text_origins

    with _sentences(need):
        path = hf_hub_download(
            need.reference, "open_clip_config.json", revision=need.revision, cache_dir=folder / HUB
        )
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))["model_cfg"]
        return [Need(*origin) for origin in text_origins(config)]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"The configuration of '{need}' is none of open_clip: {error}.") from None


def download(found: Set, folder: Path) -> dict[str, Any]:
    """Puts a set into the folder; its entry of the manifest. Files that are there are not downloaded again.
    Every file is compared with the hub's SHA-256. Raises Refused or UserError."""
    need = found.need
    entry: dict[str, Any] = {"reference": need.reference, "layout": need.layout}
    entry |= {"revision": need.revision, "commit": found.commit, "files": {}}
    with _sentences(need):
        places = _address_to(found, folder) if need.layout == "torch" else _repository_to(found, folder)
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


def _address_to(found: Set, folder: Path) -> list[Path]:
    from torch.hub import download_url_to_file

    [file] = found.files
    target = folder / TORCH / _CHECKPOINTS / file.name
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        download_url_to_file(found.need.reference, str(target))
    return [target]


def _repository_to(found: Set, folder: Path) -> list[Path]:
    need, hub = found.need, folder / HUB
    snapshots = hub / repository(need) / "snapshots"
    ours = snapshots / found.commit
    for revision in dict.fromkeys(file.revision for file in found.files):
        names = [file.name for file in found.files if file.revision == revision]
        got = snapshot_download(
            need.reference,
            repo_type=_kind(need),
            revision=revision or need.revision,
            cache_dir=hub,
            allow_patterns=[glob.escape(name) for name in names],
        )
        for name in names if revision else ():
            # Offline nobody can look for the conversion: its weights lie where the repository's would.
            _link(ours / name, Path(got, name))
    return [ours / file.name for file in found.files]


def _link(name: Path, target: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    try:
        name.symlink_to(os.path.relpath(target.resolve(), name.parent))
    except OSError:  # a file system without links
        shutil.copyfile(target, name)


@contextmanager
def _sentences(need: Need) -> Iterator[None]:
    """What the hub refuses is `Refused`; where it does not answer, or the disk is full, UserError."""
    try:
        yield
    except GatedRepoError:
        page = f"{constants.ENDPOINT}/{'datasets/' if need.layout == 'dataset' else ''}{need.reference}"
        raise Refused(
            f"'{need}' is gated: accept its licence at {page}, log in with `hf auth login` (or set "
            "HF_TOKEN), and fetch again."
        ) from None
    except RepositoryNotFoundError:
        raise Refused(
            f"There is no repository '{need.reference}' on the hub, or it is private: check the name, or log "
            "in with `hf auth login`."
        ) from None
    except RevisionNotFoundError:
        raise Refused(f"'{need.reference}' has no revision '{need.revision}'.") from None
    except HFValidationError:
        raise Refused(f"'{need.reference}' is no name of a repository; it must be OWNER/NAME.") from None
    except LocalEntryNotFoundError as error:  # the connection broke between two files
        raise _silent(need, error.__cause__ or error) from None
    except (EntryNotFoundError, HfHubHTTPError, httpx.HTTPStatusError) as error:
        if getattr(getattr(error, "response", None), "status_code", 0) >= 500:
            raise _silent(need, error) from None
        raise Refused(f"'{need}' cannot be downloaded: {_first(error)}.") from None
    except (httpx.HTTPError, URLError) as error:
        raise _silent(need, error) from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                "The disk is full. What is complete stays; make room, or copy the folder to a larger disk, "
                "and give the same command again."
            ) from None
        raise UserError(f"'{need}' cannot be written: {_first(error)}.") from None


def _silent(need: Need, error: BaseException) -> UserError:
    where = need.reference if need.layout == "torch" else constants.ENDPOINT
    return UserError(
        f"{where} does not answer ({_first(error)}). What is complete stays; give the same command again "
        "when there is a network, or set HF_ENDPOINT to a mirror."
    )


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def left(sets: Iterable[Set], known: Mapping[str, Any], folder: Path) -> int:
    """Bytes that are still to be downloaded, by what the manifest and the cache already have."""
    return sum(file.size for one in sets for file in one.files if not _is_there(one, file, known, folder))


def _is_there(found: Set, file: File, known: Mapping[str, Any], folder: Path) -> bool:
    entry = known.get(found.need.key, {})
    names = [name for name in entry.get("files", {}) if name.endswith(f"/{file.name}")]
    return entry.get("commit") == found.commit and any((folder / name).is_file() for name in names)
