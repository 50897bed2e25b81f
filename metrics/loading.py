"""What every encoder and judge needs: find a checkpoint, load it safely, fingerprint it, run it exactly."""

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

from nein.loading.digests import Json, folder_digest, torch_dtype
from nein.loading.errors import choose, first_line, out_of_memory
from nein.loading.references import cached_commit, check_hub, parse_reference
from nein.loading.weights import align, check_loaded, check_tokenizer, read_checkpoint
from nein.metrics.base import MetricError

#: Under which key a training checkpoint has its model.
_STATES = ("state_dict", "model", "model_state_dict")
#: What torch, transformers and safetensors raise for files that they cannot use.
UNREADABLE = (OSError, RuntimeError, ValueError, KeyError, SafetensorError)


@dataclass(frozen=True)
class Source:
    """Folder or hub id as given, commit (None: a folder), SHA-256 of a folder's files or `id@commit`, and the
    configuration of a model of transformers."""

    reference: str
    revision: str | None
    digest: str
    config: Any = None

    def part(self, cls: Any, **options: Any) -> Any:
        """A tokenizer or processor of the model. Raises MetricError, UserError for one that does not fit."""
        part = from_pretrained(cls, self.reference, revision=self.revision, **options)
        tokenizer = getattr(part, "tokenizer", part)
        if hasattr(tokenizer, "get_vocab"):
            check_tokenizer(tokenizer, self.config, self.reference)
        return part


def state_dict(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint by name without DistributedDataParallel's "module."."""
    state = read_checkpoint(file)[0]
    if isinstance(state, Mapping):
        state = next((state[key] for key in _STATES if key in state), state)
    if not isinstance(state, Mapping) or not state or not all(torch.is_tensor(v) for v in state.values()):
        raise MetricError(f"'{file}' holds no state dict of tensors.")
    return {str(key).removeprefix("module."): value for key, value in state.items()}


def check_folder(reference: str) -> tuple[str, str | None]:
    """(folder, None) or (owner/name, revision); raises MetricError for what cannot be a model folder or a hub
    id."""
    given = parse_reference(reference)
    path = Path(given.name)
    what = "give a folder with config.json and *.safetensors, or a hub id 'owner/name'"
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MetricError(f"The model folder '{path}' has no config.json; {what}.")
        if not any(path.glob("*.safetensors")):
            pickles = sorted(p.name for p in path.iterdir() if p.suffix in (".bin", ".pt", ".pth", ".ckpt"))
            found = f" (found {', '.join(pickles)}, which are pickles and are not loaded)" if pickles else ""
            raise MetricError(f"The model folder '{path}' has no *.safetensors file{found}; {what}.")
    elif path.is_file():
        raise MetricError(f"'{path}' is a file; {what}.")
    elif given.name.count("/") != 1 or given.name.startswith((".", "/", "~")):
        raise MetricError(f"There is no model folder '{given.name}'; {what}.")
    return given.name, given.revision


def from_pretrained(cls: Any, path_or_id: str, *, revision: str | None = None, **kwargs: Any) -> Any:
    """`cls.from_pretrained`; code of the checkpoint never runs. Raises MetricError for unusable files."""
    options = {"revision": revision or "main", "trust_remote_code": False}
    if not Path(path_or_id).is_dir():
        check_hub(path_or_id, revision)
    try:
        return cls.from_pretrained(path_or_id, **options, **kwargs)
    except Exception as error:  # of transformers, tokenizers and all that they call
        if out_of_memory(error):
            raise
        raise MetricError(f"Cannot load {cls.__name__} from '{path_or_id}': {first_line(error)}") from error


def type_of(reference: str) -> str | None:
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
    """A model from safetensors, in evaluation mode on `device`, and its source. model_type: of the
    configuration; None for any. options: of `from_pretrained`; device_map "auto" or "balanced" spreads the
    layers over all GPUs (accelerate). Raises MetricError, also for lost weights."""
    number_type = torch_dtype(dtype)
    if isinstance(spread := options.get("device_map"), str):
        choose("device_map", spread, ("auto", "balanced"))
        if device == "cpu":
            raise MetricError(f"device_map is '{spread}', which needs a GPU, but the device is 'cpu'.")
    path_or_id, revision = check_folder(reference)
    if model_type is not None and (actual := type_of(reference)) != model_type:
        raise MetricError(
            f"'{path_or_id}' is a '{actual}' checkpoint; {cls.__name__} needs one of type '{model_type}'."
        )
    # Weights missing from a file are drawn; nobody else's random numbers change before that is refused.
    with torch.random.fork_rng(devices=[]), no_bar(Path(path_or_id).is_dir()):
        options |= {"revision": revision, "use_safetensors": True, "dtype": number_type}
        model, found = from_pretrained(cls, path_or_id, output_loading_info=True, **options)
    check_loaded(type(model), found, path_or_id)
    if not {"quantization_config", "device_map"} & options.keys():
        model = model.to(device)
    align(model).eval().requires_grad_(False)
    if Path(path_or_id).is_dir():
        return model, Source(path_or_id, None, folder_digest(Path(path_or_id)), model.config)
    commit = cached_commit(path_or_id, revision) or revision or "main"
    return model, Source(path_or_id, commit, f"{path_or_id}@{commit}", model.config)


@contextlib.contextmanager
def no_bar(local: bool) -> Iterator[None]:
    """No progress bar for local files; a download keeps its own."""
    from transformers.utils import logging

    with contextlib.ExitStack() as stack:
        if local and logging.is_progress_bar_enabled():
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        yield


def model_fields(kind: str, model: Any, source: Source) -> Json:
    """The part of `describe()` that all models of torch share."""
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
    """A folder to be filled, named once it is complete. Raises MetricError where `folder` exists."""
    if folder.exists():
        raise MetricError(f"'{folder}' exists already; give a folder that does not.")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.absolute().parent) as temporary:
        draft = Path(temporary, "folder")
        draft.mkdir()
        yield draft
        draft.rename(folder)


def library() -> str:
    """Version of transformers, whose image processors have changed what models see."""
    from importlib.metadata import version

    return f"transformers {version('transformers')}"


def on_device(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors on the model's device, floating point ones in its dtype; anything else as it is."""
    return {
        key: value.to(model.device, model.dtype if value.is_floating_point() else value.dtype)
        if isinstance(value, torch.Tensor)
        else value
        for key, value in inputs.items()
    }


class SharedTokenizer:
    """A tokenizer or processor behind a lock: fast tokenizers keep padding and truncation between calls."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return self._tokenizer(*args, **kwargs)


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """No gradients, and no TensorFloat-32, which moves cosines in the fourth decimal."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
