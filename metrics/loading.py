"""Loading of encoders and judges: find, load safely, digest; exact arithmetic."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from nein.loading.digests import Json, folder_digest
from nein.loading.errors import choose, first_line, out_of_memory
from nein.loading.references import check_hub, find_cached_commit, parse_reference
from nein.loading.weights import align, check_loaded, check_tokenizer, read_checkpoint, torch_dtype
from nein.metrics.base import MetricError

#: Keys of a training checkpoint under which the model may be.
_STATES = ("state_dict", "model", "model_state_dict")
#: Errors of torch, transformers and safetensors for unusable files.
UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, SafetensorError)


@dataclass(frozen=True)
class Source:
    """Origin of a model of transformers."""

    reference: str  # folder or hub id
    revision: str | None  # commit; None for a folder
    digest: str  # SHA-256 of a folder's files, or `id@commit`
    config: Any = None  # the model's configuration

    def load_part(self, cls: Any, **options: Any) -> Any:
        """Load the model's tokenizer or processor. Raises MetricError or UserError."""
        part = load_pretrained(cls, self.reference, revision=self.revision, **options)
        tokenizer = getattr(part, "tokenizer", part)
        if hasattr(tokenizer, "get_vocab"):
            check_tokenizer(tokenizer, self.config, self.reference)
        return part


def read_state_dict(file: Path) -> dict[str, torch.Tensor]:
    """Tensors of a checkpoint by name, without DistributedDataParallel's prefix "module."."""
    state = read_checkpoint(file)[0]
    if isinstance(state, Mapping):
        state = next((state[key] for key in _STATES if key in state), state)
    if not isinstance(state, Mapping) or not state or not all(torch.is_tensor(v) for v in state.values()):
        raise MetricError(f"'{file}' has no state dict of tensors.")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def check_folder(reference: str) -> tuple[str, str | None]:
    """(folder, None) or (owner/name, revision). Raises MetricError for anything else."""
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
    """`cls.from_pretrained` without the checkpoint's code. Raises MetricError for unusable files."""
    options = {"revision": revision or "main", "trust_remote_code": False}
    if not Path(path_or_id).is_dir():
        check_hub(path_or_id, revision)
    try:
        return cls.from_pretrained(path_or_id, **options, **kwargs)
    except Exception as error:  # of transformers, tokenizers and all that they call
        if out_of_memory(error):
            raise
        raise MetricError(f"Cannot load {cls.__name__} from '{path_or_id}': {first_line(error)}") from error


def read_model_type(reference: str) -> str | None:
    """`model_type` of a checkpoint's configuration ("llava_next"). Raises MetricError."""
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
    """Load (model, source) from safetensors, in evaluation mode on `device`. Raises MetricError, also for
    missing weights.

    model_type  Required `model_type` of the configuration; None allows any.
    options     Of `from_pretrained`; device_map "auto" or "balanced" spreads the layers over all GPUs
                (accelerate).
    """
    torch_type = torch_dtype(dtype)
    if isinstance(placement := options.get("device_map"), str):
        choose("device_map", placement, ("auto", "balanced"))
        if device == "cpu":
            raise MetricError(f"device_map is '{placement}', which needs a GPU, but the device is 'cpu'.")
    path_or_id, revision = check_folder(reference)
    if model_type is not None and (actual := read_model_type(reference)) != model_type:
        raise MetricError(
            f"'{path_or_id}' is of type '{actual}'; {cls.__name__} needs a checkpoint of type '{model_type}'."
        )
    # transformers draws missing weights at random; the global generator is left unchanged.
    with torch.random.fork_rng(devices=[]), hide_progress(Path(path_or_id).is_dir()):
        options |= {"revision": revision, "use_safetensors": True, "dtype": torch_type}
        model, info = load_pretrained(cls, path_or_id, output_loading_info=True, **options)
    check_loaded(type(model), info, path_or_id)
    if not {"quantization_config", "device_map"} & options.keys():
        model = model.to(device)
    align(model).eval().requires_grad_(False)
    if Path(path_or_id).is_dir():
        return model, Source(path_or_id, None, folder_digest(Path(path_or_id)), model.config)
    commit = find_cached_commit(path_or_id, revision) or revision or "main"
    return model, Source(path_or_id, commit, f"{path_or_id}@{commit}", model.config)


@contextlib.contextmanager
def hide_progress(local: bool) -> Iterator[None]:
    """No progress bar for local files; a download keeps its own."""
    from transformers.utils import logging

    with contextlib.ExitStack() as stack:
        if local and logging.is_progress_bar_enabled():
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        yield


def model_fields(kind: str, model: Any, source: Source) -> Json:
    """Entries of `describe()` that all torch models share."""
    first = next(model.parameters())
    return {
        "kind": kind,
        "class": type(model).__name__,
        "reference": source.reference,
        "revision": source.revision,
        "weights": source.digest,
        "dtype": str(getattr(model, "dtype", first.dtype)).removeprefix("torch."),
        "device": str(getattr(model, "device", first.device)),
    }


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a draft folder, renamed to `folder` when complete. Raises MetricError if that exists."""
    if folder.exists():
        raise MetricError(f"'{folder}' already exists; pass a new folder.")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as temporary:
        draft = Path(temporary, "folder")
        draft.mkdir()
        yield draft
        draft.rename(folder)


def library() -> str:
    """Version of transformers, whose image processors differ between versions."""
    from importlib.metadata import version

    return f"transformers {version('transformers')}"


def move_inputs(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Move tensors to the model's device, floating point ones to its dtype; other values are kept."""
    return {
        key: value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, torch.Tensor)
        else value
        for key, value in inputs.items()
    }


class SharedTokenizer:
    """Thread-safe tokenizer or processor: fast tokenizers keep padding as state between calls."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return self._tokenizer(*args, **kwargs)


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Compute without gradients and without TensorFloat-32, which changes cosines in the fourth decimal."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
