"""Write a trained model to OUT/model, with card and training.json; add words to a model before training."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nein.loading.errors import UserError
from nein.train.options import Learning

# --- OUT/model -------------------------------------------------------------------------------------------
MODEL = "model"  # the folder in OUT
Facts = Mapping[str, Any]  # about a run, from `train.loop.Record.facts`


@contextlib.contextmanager
def write_model(out: Path, facts: Facts, card: str) -> Iterator[Path]:
    """Yield a draft folder to save a model in; if that succeeds, the draft becomes OUT/model, with `facts` in
    training.json and `card` in README.md. Raises UserError if the disk is full."""
    target = out / MODEL
    draft = Path(tempfile.mkdtemp(prefix=".model-", dir=out))
    try:
        draft.chmod(0o755)
        yield draft
        # Libraries write local paths into their configurations: they are removed.
        for file in (*draft.rglob("*config.json"), *draft.glob("model_index.json")):
            content = json.loads(file.read_text(encoding="utf-8"))
            content.pop("_name_or_path", None)
            file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        (draft / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(card, encoding="utf-8")
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


def cut_paths(value: Any) -> Any:
    """Copy of a JSON value in which every local path is cut to its last part."""
    if isinstance(value, Mapping):
        return {key: cut_paths(part) for key, part in value.items()}
    if isinstance(value, list):
        return [cut_paths(part) for part in value]
    if isinstance(value, str) and (value.startswith((".", "~")) or Path(value).is_absolute()):
        return Path(value).name
    return value


def format_card(
    facts: Facts, default: Learning, *, head: list[str], title: str, paragraphs: list[str]
) -> str:
    """Model card in Markdown: YAML head, title, paragraphs, and a table of options: those that differ from
    `default`, and those of its `CARD_OPTIONS`. head: lines of YAML; a base on the hub is added."""
    base, default_values = str(facts["base"]), default.identity()
    is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", base)  # OWNER/NAME[@REVISION]
    if is_hub_id and not Path(base).exists():
        head = [f"base_model: {base.partition('@')[0]}", *head]
    table = ["| option | value |", "|---|---|"]
    for key, value in facts["options"].items():
        if key in default.CARD_OPTIONS or value != default_values.get(key):
            table.append(f"| {key} | {', '.join(value) if isinstance(value, list) else value} |")
    head_and_title = "\n".join(["---", *head, "---", f"# {title}"])
    return "\n\n".join([head_and_title, *paragraphs, "\n".join(table)]) + "\n"


# --- added words -----------------------------------------------------------------------------------------
@torch.no_grad()
def add_words(tokenizer: Any, model: Any, words: Sequence[str]) -> int:
    """Add `words` to a fast tokenizer of transformers and to the model; returns how many are new. A new row
    of the embeddings, and of an output layer, is the mean of the rows of the word's pieces."""
    from tokenizers import AddedToken

    pieces = {word: tokenizer(f" {word}", add_special_tokens=False)["input_ids"] for word in words}
    new = [word for word in words if len(pieces[word]) > 1]  # the others are tokens already
    first = len(tokenizer)
    # lstrip takes the blank before the word, which byte-level tokenizers keep in it.
    tokenizer.add_tokens([AddedToken(word, single_word=True, lstrip=True, normalized=True) for word in new])
    assert len(tokenizer) == first + len(new), (first, len(tokenizer), new)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        if layer is None:
            continue
        for index, word in enumerate(new, start=first):
            layer.weight[index] = layer.weight[pieces[word]].mean(0)  # (pieces, D) => (D,)
    return len(new)
