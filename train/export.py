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


def is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", name) is not None and not Path(name).exists()


def portable(value: Any) -> Any:
    """The same value with every path of this machine cut to its last part."""
    if isinstance(value, Mapping):
        return {key: portable(part) for key, part in value.items()}
    if isinstance(value, list):
        return [portable(part) for part in value]
    if isinstance(value, str) and (value.startswith((".", "~")) or Path(value).is_absolute()):
        return Path(value).name
    return value


def option_rows(given: Mapping[str, Any], defaults: Mapping[str, Any], always: Sequence[str]) -> list[str]:
    """Lines of a card's table of options: those that are not at their defaults, and those of `always`."""
    shown = {key: value for key, value in given.items() if key in always or value != defaults[key]}
    cells = {key: ", ".join(value) if isinstance(value, list) else value for key, value in shown.items()}
    return ["| option | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells.items())]


def base_model(base: str) -> list[str]:
    """The line of a card's head that names the model on the hub, where that is what training began with."""
    return [f"base_model: {base.partition('@')[0]}"] if is_hub_id(base) else []
