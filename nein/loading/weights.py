"""Checkpoints: weights read from files without running anything of theirs, where they lie in memory, and
whether weights and tokenizer are the model's."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nein.loading.errors import UserError, message, reason

ALIGNMENT = 64  # bytes, as PyTorch aligns what it allocates itself


def aligned(module: Any) -> Any:
    """The same module; weights on the CPU begin at multiples of `ALIGNMENT`.

    A file is mapped into memory, where a weight may begin anywhere, and elsewhere when it is loaded again.
    Products of MKL differ in their last bits with that.
    """
    for weight in (*module.parameters(), *module.buffers()):
        if weight.device.type == "cpu" and weight.data_ptr() % ALIGNMENT:
            weight.data = weight.data.clone()
    return module


def check_loaded(cls: Any, found: Mapping[str, Any], where: str) -> None:
    """Raises UserError for weights that a class of transformers or diffusers lacks, which it would draw at
    random, and for LoRA weights that it leaves out.

    found  What its `from_pretrained` says with `output_loading_info=True`.
    where  Folder or hub id, for the message.
    """
    if lacking := sorted(found["missing_keys"]):
        library = cls.__module__.partition(".")[0]
        raise UserError(
            f"'{where}' lacks {len(lacking)} of the weights of its {cls.__name__}, first '{lacking[0]}'; it "
            "is damaged, of another class, or was saved by another version than "
            f"{library} {version(library)} reads."
        )
    if tuned := sorted(name for name in found["unexpected_keys"] if "lora" in name.lower()):
        raise UserError(
            f"'{where}' has {len(tuned)} LoRA weights among those of its {cls.__name__}, which reads none of "
            f"them, first '{tuned[0]}'; fuse them, or give them apart as lora=FILE."
        )


PROBE = "a photo of a dog and no cat"
#: Share of an embedding's rows that have a word at least; the rest is padding to a round number.
LEAST = 0.9


def check_tokenizer(tokenizer: Any, config: Any, where: str) -> None:
    """Raises UserError for a tokenizer of transformers whose ids are not those of a model; gives it the end
    token as padding token where it has none in the model's vocabulary.

    config  The model's configuration; without `vocab_size` in its text part nothing is compared.
    where   Folder or hub id, for the message.
    """
    text = config.get_text_config()
    rows = getattr(text, "vocab_size", None)
    if rows is None:
        return
    name = f"The tokenizer of '{where}'"
    what = "check tokenizer.json and tokenizer_config.json, or copy them from the model's repository"
    if len(tokenizer) < LEAST * rows:
        raise UserError(f"{name} has {len(tokenizer)} words and the model's embedding {rows}; {what}.")
    try:
        ids = tokenizer(PROBE)["input_ids"]
        words = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    except Exception as error:  # the library of tokenizers has no class of its own
        raise UserError(f"{name} cannot read '{PROBE}' ({reason(error)}); {what}.") from error
    if max(ids) >= rows:
        word = tokenizer.convert_ids_to_tokens(max(ids))
        raise UserError(f"{name} gives '{word}' the id {max(ids)}, but the model has {rows} words; {what}.")
    own = Path(tokenizer.name_or_path, "tokenizer.json")
    if own.is_file():
        from tokenizers import Tokenizer

        published = Tokenizer.from_file(str(own))
        published.no_padding()  # as the file was saved
        if published.encode(PROBE, add_special_tokens=False).ids != words:
            kind = type(tokenizer).__name__
            raise UserError(
                f"{name} is read as {kind}, which splits '{PROBE}' otherwise than its file; {what}."
            )
    # CLIP's text towers pool at the end token: at the id of their configuration, or at the highest (2).
    end = getattr(text, "eos_token_id", None)
    end = max(ids) if end == 2 else end
    if type(tokenizer).__name__ == "CLIPTokenizer" and isinstance(end, int) and ids[-1] != end:
        raise UserError(f"{name} ends sentences with id {ids[-1]}, the model with {end}; {what}.")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
        if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= rows:
            raise UserError(f"{name} has no padding or end token among the model's {rows} words; {what}.")
        tokenizer.pad_token = tokenizer.eos_token


class _Inert:
    """Stands for a class that a file names: takes whatever the file says of it, and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


def _stand_in(name: str) -> type:
    """Kinds of dictionaries and lists, which the file goes on to fill, become plain ones."""
    if name.endswith(("dict", "Dict")):
        return type("_Dictionary", (_Inert,), {"__new__": lambda cls, *args, **kwargs: {}})
    if name == "collections.deque":
        return type("_List", (_Inert,), {"__new__": lambda cls, *args, **kwargs: []})
    return _Inert


def read_checkpoint(
    file: Path, *, inert: bool = False, advice: str = "use a copy with safetensors"
) -> tuple[Any, list[str]]:
    """(content, names of the classes left out) of a .safetensors file or of a pickle, of which nothing
    but tensors and plain containers is built, and nothing runs. Raises UserError.

    inert   Every other class that the file names is replaced by an object that only holds what the file says
            of it; else such a file is refused, with the advice.
    """
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    names: list[str] = []
    try:
        if file.suffix == ".safetensors":
            return load_file(file), names
        zipped = zipfile.is_zipfile(file)
        if inert and zipped:
            names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(file)))
        with torch.serialization.safe_globals([(_stand_in(name), name) for name in names]):
            return torch.load(file, "cpu", weights_only=True, mmap=zipped or None), names
    except pickle.UnpicklingError as error:
        what = "is a pickle that holds more than tensors and could run code when read"
        if inert and not zipped:
            advice = "where you trust it, save its state dict with torch 1.6 or later"
        elif inert:
            what, advice = f"cannot be read without running code from it ({message(error)})", "do not use it"
        raise UserError(f"'{file}' {what}; {advice}") from None
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, SafetensorError) as error:
        raise UserError(
            f"cannot read '{file}' ({type(error).__name__}: {message(error)}); fetch it again"
        ) from None
