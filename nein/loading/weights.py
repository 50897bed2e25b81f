"""Helps to load weights: names dtypes and aligns memory, checks that weights and tokenizers fit a model, and
reads checkpoints without running their code."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nein.loading.errors import UserError, choose, message, reason

if TYPE_CHECKING:
    import torch

# --- dtypes and alignment ------------------------------------------------------------------------
DTYPES = ("float32", "bfloat16", "float16")  # names of dtypes; each is an attribute of torch
ALIGNMENT = 64  # bytes, as PyTorch aligns what it allocates itself


def torch_dtype(name: str) -> torch.dtype:
    import torch

    return getattr(torch, choose("dtype", name, DTYPES))


def align(module: Any) -> Any:
    """Moves the CPU weights of a torch module to multiples of `ALIGNMENT`; returns the module. Memory-mapped
    weights may start at any address, and MKL rounds differently by alignment: last bits would vary."""
    for weight in (*module.parameters(), *module.buffers()):
        if weight.device.type == "cpu" and weight.data_ptr() % ALIGNMENT:
            weight.data = weight.data.clone()
    return module


# --- checks of weights and tokenizers ------------------------------------------------------------
def check_loaded(cls: Any, info: Mapping[str, Any], source: str) -> None:
    """Raises UserError for weights that a model lacks, which the library would draw at random, and for LoRA
    weights that it ignores.

    cls     Class of transformers or diffusers.
    info    From its `from_pretrained(output_loading_info=True)`.
    source  Folder or hub id, for the message.
    """
    if missing := sorted(info["missing_keys"]):
        library = cls.__module__.partition(".")[0]
        raise UserError(
            f"'{source}' lacks {len(missing)} of the weights of its {cls.__name__}, first '{missing[0]}'; it "
            "is damaged, of another class, or was saved by another version than "
            f"{library} {version(library)} reads."
        )
    if tuned := sorted(name for name in info["unexpected_keys"] if "lora" in name.lower()):
        raise UserError(
            f"'{source}' has {len(tuned)} LoRA weights that its {cls.__name__} does not read, first "
            f"'{tuned[0]}'; fuse them, or pass them as lora=FILE."
        )


PROBE = "a photo of a dog and no cat"  # a text for trying tokenizers
MIN_USED_ROWS = 0.9  # least share of embedding rows that have a token; the rest pads up to a round size


def check_tokenizer(tokenizer: Any, config: Any, source: str) -> None:
    """Raises UserError for a tokenizer of transformers whose ids do not fit a model. Uses the end token for
    padding, if the tokenizer has no padding token in the model's vocabulary.

    config  The model's configuration; without `vocab_size` in its text part nothing is checked.
    source  Folder or hub id, for the message.
    """
    text_config = config.get_text_config()
    rows = getattr(text_config, "vocab_size", None)  # of the embedding: ids are below it
    if rows is None:
        return
    name = f"The tokenizer of '{source}'"
    advice = "check tokenizer.json and tokenizer_config.json, or copy them from the model's repository"
    # --- every id is a row of the embedding
    if len(tokenizer) < MIN_USED_ROWS * rows:
        raise UserError(f"{name} has {len(tokenizer)} words and the model's embedding {rows}; {advice}.")
    try:
        ids = tokenizer(PROBE)["input_ids"]
        word_ids = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    except Exception as error:  # the package tokenizers raises plain Exception
        raise UserError(f"{name} cannot read '{PROBE}' ({reason(error)}); {advice}.") from error
    if max(ids) >= rows:
        word = tokenizer.convert_ids_to_tokens(max(ids))
        raise UserError(f"{name} gives '{word}' the id {max(ids)}, but the model has {rows} words; {advice}.")

    # --- the Python class splits texts as the published file does
    file = Path(tokenizer.name_or_path, "tokenizer.json")
    if file.is_file():
        from tokenizers import Tokenizer

        published = Tokenizer.from_file(str(file))
        published.no_padding()  # a file may turn it on
        if published.encode(PROBE, add_special_tokens=False).ids != word_ids:
            kind = type(tokenizer).__name__
            raise UserError(f"{name} is read as {kind}, which splits '{PROBE}' unlike its file; {advice}.")

    # --- the end token: CLIP's text towers pool at its configured id or, if that is 2, at the highest id
    configured_end = getattr(text_config, "eos_token_id", None)
    end = max(ids) if configured_end == 2 else configured_end
    if type(tokenizer).__name__ == "CLIPTokenizer" and isinstance(end, int) and ids[-1] != end:
        raise UserError(f"{name} ends sentences with id {ids[-1]}, the model with {end}; {advice}.")
    # --- padding
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
        if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= rows:
            raise UserError(f"{name} has no padding or end token among the model's {rows} words; {advice}.")
        tokenizer.pad_token = tokenizer.eos_token


# --- reading checkpoints -------------------------------------------------------------------------
class _Inert:
    """Stands in for a class that a pickle names: holds the state of its objects, and runs nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


class _InertDict(_Inert):  # `_Inert` has no __setitem__, which a pickle calls to fill a mapping
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return {}


class _InertList(_Inert):  # for its `append`
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return []


def _choose_stand_in(name: str) -> type:
    """The class to build instead of a named one ("collections.OrderedDict", "module.MyDict", ...)."""
    if name.endswith(("dict", "Dict")):
        return _InertDict
    return _InertList if name == "collections.deque" else _Inert


def read_checkpoint(
    file: Path, *, inert: bool = False, advice: str = "use a copy with safetensors"
) -> tuple[Any, list[str]]:
    """(content, names of replaced classes) of a .safetensors file or a pickle. Of a pickle only tensors and
    plain containers are built, and nothing runs. Raises UserError.

    inert   Replace objects of other classes by `_Inert` ones; else a pickle with such objects is refused.
    advice  What the user can do about a refused file, for the message.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    names: list[str] = []  # of classes to replace
    try:
        if file.suffix == ".safetensors":
            return load_file(file), names
        is_zip = zipfile.is_zipfile(file)  # since torch 1.6; torch lists the classes of a zip file alone
        if inert and is_zip:
            names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(file)))
        with torch.serialization.safe_globals([(_choose_stand_in(name), name) for name in names]):
            return torch.load(file, "cpu", weights_only=True, mmap=is_zip or None), names
    except pickle.UnpicklingError as error:
        problem = "is a pickle that holds more than tensors and could run code when read"
        if not inert:
            problem += f"; {advice}"
        elif not is_zip:
            problem += "; where you trust it, save its state dict with torch 1.6 or later"
        else:
            problem = f"cannot be read without running code from it ({message(error)}); do not use it"
        raise UserError(f"'{file}' {problem}") from None
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, SafetensorError) as error:
        raise UserError(
            f"cannot read '{file}' ({type(error).__name__}: {message(error)}); fetch it again"
        ) from None
