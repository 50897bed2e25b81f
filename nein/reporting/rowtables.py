"""All rows of runs as tables for other programs: CSV and parquet, one table per file of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting import figures as frames

FIGURES = "figures"


def write(folders: Sequence[Path], out: Path, kind: str) -> list[Path]:
    """OUT/<rows>.csv or .parquet: the rows of that name of all run folders below each other, and their
    figures; the column "run" says whose they are. What is a list or a mapping in a row is JSON text."""
    tables: dict[str, list[pd.DataFrame]] = {}
    for folder in folders:
        for name, frame in _tables(folder):
            frame.insert(0, "run", folder.name if len(folders) == 1 else _label(folder, folders))
            tables.setdefault(name, []).append(frame)
    written = []
    for name, parts in tables.items():
        path = out / f"{name}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(pd.concat(parts, ignore_index=True), path)
        written.append(path)
    return written


def _label(folder: Path, folders: Sequence[Path]) -> str:
    """The end of a folder that tells it from the others: "ip2p/negative"."""
    for length in range(1, len(folder.parts) + 1):
        ends = ["/".join(other.parts[-length:]) for other in folders]
        if len(set(ends)) == len(ends):
            return "/".join(folder.parts[-length:])
    return str(folder)


def _tables(folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """(name, rows) of every canonical file of a run."""
    for file in sorted([*folder.glob("*.jsonl"), *folder.glob("samples/*.jsonl")]):
        rows = [{key: _cell(value) for key, value in row.items()} for row in atomic.read_lines(file)]
        yield file.name.removesuffix(".jsonl"), pd.DataFrame(rows)
    if (folder / "figures.csv").is_file():
        yield FIGURES, frames.read(folder / "figures.csv")


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value


def _write(frame: pd.DataFrame, path: Path) -> None:
    if path.suffix == ".csv":
        atomic.write_text(path, frame.map(frames.harmless).to_csv(index=False, lineterminator="\n"))
        return
    try:
        import pyarrow  # noqa: F401 - pandas says less
    except ImportError:
        raise UserError("--format parquet needs the package pyarrow: pip install 'nein[hub]'.") from None
    with atomic.writing(path) as file:
        frame.convert_dtypes().to_parquet(file, index=False)
