"""Loads encoders and judges from checkpoints of transformers: safetensors only, and none of their code.

`load_model` loads a model, `Source.load_part` its tokenizer or processor. At the end: helpers to run them.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from nein.loading.digests import Json, folder_digest
from nein.loading.errors import choose, first_line, out_of_memory
from nein.loading.references import check_hub, find_cached_commit, parse_reference
from nein.loading.weights import align, check_loaded, check_tokenizer, torch_dtype
from nein.metrics.base import MetricError

#: Errors of torch, transformers and safetensors for unusable files.
UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, SafetensorError)


@dataclass(frozen=True)
class Source:
    """Origin of a model, and its other parts (tokenizer, processor) if it is one of transformers."""

    reference: str  # folder or hub id
    revision: str | None  # commit; None for a folder
    digest: str  # SHA-256 of a folder's files, or `id@commit`
    config: Any = None  # the model's configuration; None: not of transformers

    def load_part(self, cls: Any, **options: Any) -> Any:
        """Load the model's tokenizer or processor. Raises MetricError."""
        part = load_pretrained(cls, self.reference, revision=self.revision, **options)
        tokenizer = getattr(part, "tokenizer", part)
        if hasattr(tokenizer, "get_vocab"):
            check_tokenizer(tokenizer, self.config, self.reference)
        return part


def check_folder(reference: str) -> tuple[str, str | None]:
    """Split a reference into (folder, None) or (owner/name, revision), and check it. Raises MetricError."""
    parsed = parse_reference(reference)
    path = Path(parsed.name)
    advice = "pass a folder with config.json and *.safetensors, or a hub id 'owner/name'"
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MetricError(f"The model folder '{path}' has no config.json; {advice}.")
        if not any(path.glob("*.safetensors")):
            pickles = sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
            note = f" (only pickles, which are never loaded: {', '.join(pickles)})" if pickles else ""
            raise MetricError(f"The model folder '{path}' has no *.safetensors file{note}; {advice}.")
    elif path.is_file():
        raise MetricError(f"'{path}' is a file; {advice}.")
    elif parsed.name.count("/") != 1 or parsed.name.startswith((".", "/", "~")):
        raise MetricError(f"There is no model folder '{parsed.name}'; {advice}.")
    return parsed.name, parsed.revision


def load_pretrained(cls: Any, path_or_id: str, *, revision: str | None = None, **kwargs: Any) -> Any:
    """Call `cls.from_pretrained` without the checkpoint's code. Raises MetricError for unusable files."""
    options = {"revision": revision or "main", "trust_remote_code": False}
    if not Path(path_or_id).is_dir():
        check_hub(path_or_id, revision)
    try:
        return cls.from_pretrained(path_or_id, **options, **kwargs)
    except Exception as error:  # transformers and tokenizers raise any class
        if out_of_memory(error):
            raise
        raise MetricError(f"Cannot load {cls.__name__} from '{path_or_id}': {first_line(error)}") from error


def read_model_type(reference: str) -> str | None:
    """Read `model_type` from a checkpoint's configuration, such as "llava_next". Raises MetricError."""
    from transformers import PretrainedConfig

    path_or_id, revision = check_folder(reference)
    if not Path(path_or_id).is_dir():
        check_hub(path_or_id, revision)
    try:
        config, _ = PretrainedConfig.get_config_dict(path_or_id, revision=revision or "main")
    except (OSError, ValueError) as error:
        raise MetricError(f"Cannot read the configuration of '{path_or_id}': {first_line(error)}") from error
    return config.get("model_type")


def load_model(
    cls: Any, reference: str, model_type: str | None = None, *, device: str, dtype: str, **options: Any
) -> tuple[Any, Source]:
    """Load a model from safetensors, in evaluation mode on `device`: (model, source). Raises MetricError,
    also for missing weights.

    model_type  Required `model_type` of the configuration; None allows any.
    options     Of `from_pretrained`; device_map "auto" or "balanced" spreads the layers over all GPUs."""
    torch_type = torch_dtype(dtype)
    device_map = options.get("device_map")
    if isinstance(device_map, str):
        choose("device_map", device_map, ("auto", "balanced"))
        if device == "cpu":
            raise MetricError(f"device_map is '{device_map}', which needs a GPU, but the device is 'cpu'.")
    path_or_id, revision = check_folder(reference)
    is_folder = Path(path_or_id).is_dir()
    if model_type is not None and (actual := read_model_type(reference)) != model_type:
        needed = f"{cls.__name__} needs a checkpoint of type '{model_type}'"
        raise MetricError(f"'{path_or_id}' is of type '{actual}'; {needed}.")
    # transformers draws missing weights at random; the global generator is left unchanged.
    with torch.random.fork_rng(devices=[]), hide_progress(is_folder):
        options |= {"revision": revision, "use_safetensors": True, "dtype": torch_type}
        model, info = load_pretrained(cls, path_or_id, output_loading_info=True, **options)
    check_loaded(type(model), info, path_or_id)
    if not {"quantization_config", "device_map"} & options.keys():  # with these, from_pretrained places it
        model = model.to(device)
    align(model).eval().requires_grad_(False)
    if is_folder:
        return model, Source(path_or_id, None, folder_digest(Path(path_or_id)), model.config)
    commit = find_cached_commit(path_or_id, revision) or revision or "main"
    return model, Source(path_or_id, commit, f"{path_or_id}@{commit}", model.config)


@contextlib.contextmanager
def hide_progress(is_local: bool) -> Iterator[None]:
    """Show no progress bar of transformers for local files; a download keeps its own."""
    from transformers.utils import logging

    hides = is_local and logging.is_progress_bar_enabled()
    if hides:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hides:
            logging.enable_progress_bar()


def describe_model(kind: str, model: Any, source: Source, **fields: Any) -> Json:
    """Make the `describe()` of a torch model: the entries that all models share, and `fields`."""
    first = next(model.parameters())  # for modules without `dtype` and `device`
    dtype = str(getattr(model, "dtype", first.dtype)).removeprefix("torch.")
    device = str(getattr(model, "device", first.device))
    origin = {"reference": source.reference, "revision": source.revision, "weights": source.digest}
    return {"kind": kind, "class": type(model).__name__, **origin, "dtype": dtype, "device": device, **fields}


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft folder, renamed to `folder` at the end. Raises MetricError if that exists."""
    if folder.exists():
        raise MetricError(f"'{folder}' already exists; pass a new folder.")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as temporary:
        draft = Path(temporary, "folder")
        draft.mkdir()
        yield draft
        draft.rename(folder)


def library_version(name: str = "transformers") -> str:
    """Name a library with its version, since image processors differ between versions."""
    return f"{name} {version(name)}"


def move_inputs(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Move tensors to the model's device, floating point ones to its dtype; other values are kept."""
    moved = dict(inputs)
    for key, value in inputs.items():
        if isinstance(value, torch.Tensor):
            moved[key] = value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)
    return moved


class SharedTokenizer:
    """A tokenizer or processor with a lock, for threads: fast tokenizers keep padding between calls."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return self._tokenizer(*args, **kwargs)


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Compute without gradients and without TensorFloat-32, which changes the fourth decimal of cosines."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
