"""What comes out of a run: a model folder with a card and a record, whole or not at all."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nein.engine.errors import UserError

MODEL = "model"  # the folder in OUT


@contextlib.contextmanager
def finished_model(out: Path, facts: Mapping[str, Any], card: str) -> Iterator[Path]:
    """A folder to write a model into; when the block ends well it becomes OUT/model, with `facts` as
    training.json and the card beside the weights. Raises UserError when the disk does not take it."""
    target = out / MODEL
    draft = Path(tempfile.mkdtemp(prefix=".model-", dir=out))
    try:
        draft.chmod(0o755)
        yield draft
        (draft / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (draft / "README.md").write_text(card, encoding="utf-8")
        if target.exists():
            shutil.rmtree(target)
        draft.replace(target)
    except OSError as error:
        raise UserError(
            f"The result cannot be written to '{target}' ({error.strerror or error}); the last checkpoint "
            "holds it: free some space and run the same command again."
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def portable(value: Any) -> Any:
    """The same value with every path of this machine cut to its last part."""
    if isinstance(value, Mapping):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    if isinstance(value, str) and (value.startswith((".", "~")) or Path(value).is_absolute()):
        return Path(value).name
    return value


def without_paths(folder: Path) -> None:
    """Takes the path of this machine out of the configurations that libraries have written."""
    for file in (*folder.rglob("*config.json"), *folder.glob("model_index.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        content.pop("_name_or_path", None)
        file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def card(
    facts: Mapping[str, Any],
    head: Sequence[str],
    title: str,
    words: Sequence[str],
    defaults: Mapping[str, Any],
    always: Sequence[str],
) -> str:
    """A model card: the paragraphs `words`, and a table of the options that are not at their defaults, or in
    `always`. head: lines of its YAML head, besides the model on the hub that training began with."""
    base = str(facts["base"])
    on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", base) is not None and not Path(base).exists()
    shown = {k: v for k, v in facts["options"].items() if k in always or v != defaults.get(k)}
    cells = {key: ", ".join(value) if isinstance(value, list) else value for key, value in shown.items()}
    table = ["| option | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells.items())]
    yaml = ["---", *([f"base_model: {base.partition('@')[0]}"] if on_hub else []), *head, "---"]
    return "\n\n".join(["\n".join([*yaml, f"# {title}"]), *filter(None, words), "\n".join(table)]) + "\n"
