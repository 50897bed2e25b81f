"""Export of a run: a model folder with card and training.json, complete or absent; tokens for whole words."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nein.loading.errors import UserError

MODEL = "model"  # the folder in OUT
Facts = Mapping[str, Any]  # about a run, from `Record.facts`


@contextlib.contextmanager
def write_model(out: Path, facts: Facts, describe: Callable[[Facts], str]) -> Iterator[Path]:
    """Yield a draft folder for a model; without an exception it becomes OUT/model, with `facts` in
    training.json and in the card from `describe`. Raises UserError."""
    target, facts = out / MODEL, portable(facts)
    draft = Path(tempfile.mkdtemp(prefix=".model-", dir=out))
    try:
        draft.chmod(0o755)
        yield draft
        remove_paths(draft)
        (draft / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(describe(facts), encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        draft.replace(target)
    except OSError as error:
        raise UserError(
            f"The model cannot be written to '{target}' ({error.strerror or error}); the last checkpoint "
            "holds it: free some space and rerun the command."
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def portable(value: Any) -> Any:
    """Copy of a JSON value; every local path is cut to its last part."""
    if isinstance(value, Mapping):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    if isinstance(value, str) and (value.startswith((".", "~")) or Path(value).is_absolute()):
        return Path(value).name
    return value


def remove_paths(folder: Path) -> None:
    """Remove local paths from the configurations that libraries have written."""
    for file in (*folder.rglob("*config.json"), *folder.glob("model_index.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        content.pop("_name_or_path", None)
        file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def card(
    facts: Facts,
    head: Sequence[str],
    title: str,
    words: Sequence[str],
    defaults: Mapping[str, object],
    always: Sequence[str],
) -> str:
    """Model card: the paragraphs `words`, then a table of options that differ from `defaults` or are in
    `always`. head: lines of its YAML head; the base model is added if it is on the hub."""
    base = str(facts["base"])
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", base) is not None and not Path(base).exists()
    options = {k: v for k, v in facts["options"].items() if k in always or v != defaults.get(k)}
    cells = {key: ", ".join(value) if isinstance(value, list) else value for key, value in options.items()}
    table = ["| option | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells.items())]
    yaml = ["---", *([f"base_model: {base.partition('@')[0]}"] if on_hub else []), *head, "---"]
    return "\n\n".join(["\n".join([*yaml, f"# {title}"]), *filter(None, words), "\n".join(table)]) + "\n"


@torch.no_grad()
def add_words(tokenizer: Any, model: Any, words: Sequence[str]) -> int:
    """Add `words` to a fast tokenizer of transformers and to the model's embeddings; returns how many are
    new.

    A new row, also of an output layer, is the mean of the rows of the word's pieces. Words that are one token
    already are skipped.
    """
    from tokenizers import AddedToken

    pieces = {word: tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words}
    new = [word for word in words if len(pieces[word]) > 1]
    first = len(tokenizer)
    # lstrip takes the blank before the word, which byte-level tokenizers keep in it.
    tokenizer.add_tokens([AddedToken(word, single_word=True, lstrip=True, normalized=True) for word in new])
    assert len(tokenizer) == first + len(new), (first, len(tokenizer), new)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for layer in filter(None, (model.get_input_embeddings(), model.get_output_embeddings())):
        for index, word in enumerate(new, start=first):
            layer.weight[index] = layer.weight[pieces[word]].mean(0)  # (pieces, D) => (D,)
    return len(new)
