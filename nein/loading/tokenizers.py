"""Whether a tokenizer fits the model that reads its ids. transformers builds one of two words where the
files are missing, and renames what it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nein.loading.errors import UserError, reason

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
    file = "check tokenizer.json and tokenizer_config.json, or copy them from the model's repository"
    if len(tokenizer) < LEAST * rows:
        raise UserError(
            f"{name} has {len(tokenizer)} words and the model's embedding {rows}: its tokenizer.json is "
            "missing, cut short or another model's; copy it from the model's repository."
        )
    try:
        ids = tokenizer(PROBE)["input_ids"]
        words = tokenizer(PROBE, add_special_tokens=False)["input_ids"]
    except Exception as error:  # the library of tokenizers has no class of its own
        raise UserError(f"{name} cannot read '{PROBE}' ({reason(error)}); {file}.") from error
    if max(ids) >= rows:
        word = tokenizer.convert_ids_to_tokens(max(ids))
        raise UserError(f"{name} gives '{word}' the id {max(ids)}, but the model has {rows} words; {file}.")
    own = Path(tokenizer.name_or_path, "tokenizer.json")
    if own.is_file():
        from tokenizers import Tokenizer

        published = Tokenizer.from_file(str(own))
        published.no_padding()  # as the file was saved
        if published.encode(PROBE, add_special_tokens=False).ids != words:
            raise UserError(
                f"{name} is read as {type(tokenizer).__name__}, which splits '{PROBE}' otherwise than its "
                "tokenizer.json says; correct tokenizer_class in tokenizer_config.json."
            )
    # CLIP's text towers pool at the end token: at the id of their configuration, or at the highest (2).
    end = getattr(text, "eos_token_id", None)
    end = max(ids) if end == 2 else end
    if type(tokenizer).__name__ == "CLIPTokenizer" and isinstance(end, int) and ids[-1] != end:
        raise UserError(f"{name} ends sentences with id {ids[-1]}, the model with {end}; {file}.")
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id >= rows:
        if tokenizer.eos_token_id is None or tokenizer.eos_token_id >= rows:
            raise UserError(
                f"{name} has neither a padding nor an end token among the model's {rows} words; name one as "
                "pad_token in tokenizer_config.json."
            )
        tokenizer.pad_token = tokenizer.eos_token
