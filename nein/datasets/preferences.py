"""Pairs of edits of which people prefer one: the published sets, told apart by their columns (`FORMATS`)."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nein.datasets import hub
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.store import expanded
from nein.loading.digests import json_digest

Row = Mapping[str, Any]
LOOKUP = "dataset_lookup.json"


@dataclass(frozen=True)
class Preference:
    """What an editor was told about a picture, the edit that people prefer, and the other one: files.
    cluster: the picture, by its name in the set."""

    set: str
    id: str
    cluster: str
    instruction: str
    source: Path
    better: Path
    worse: Path


@dataclass(frozen=True)
class Format:
    """edits: two columns, or one that holds both. first: whether people prefer the first edit, None where
    they prefer neither; raises KeyError for an entry that is none of the format's."""

    title: str
    instruction: str
    source: str
    edits: tuple[str, ...]
    winner: str
    first: Callable[[Row], bool | None]

    def fits(self, row: Row) -> bool:
        return {self.instruction, self.source, *self.edits, self.winner} <= row.keys()


def _ranked(row: Row) -> bool | None:
    """ "A>B", "C<A", "A=B", "A=B=Bad": the first edit is the first letter of comparison_type "AvsC"."""
    one, sign, other = [*str(row["ranking"]).replace(" ", "")[:3]]
    first, second = str(row.get("comparison_type") or "AvsB").split("vs")
    return {"": None, first: True, second: False}[{"=": "", ">": one, "<": other}[sign]]


FORMATS = (
    Format("EditReward-Bench (TIGER)", "instruction", "source_image", ("candidate_1", "candidate_2"),
           "ranking", _ranked),
    # The preferred edit always stands first.
    Format("EditReward-Bench (EditScore)", "instruction", "input_image", ("output_images",), "key",
           lambda row: True),
    Format("GEditBench v2", "instruction", "source_image_path", ("edited_image_paths",), "winner",
           lambda row: {"Image A": True, "Image B": False, "Tie": None}[row["winner"]]),
    Format("GenAI-Bench", "instruct_prompt", "source_image", ("left_output_image", "right_output_image"),
           "vote_type", lambda row: {"leftvote": True, "rightvote": False, "tievote": None,
                                     "bothbad_vote": None}[row["vote_type"]]),
    Format("preferences", "instruction", "source", ("a", "b"), "winner",
           lambda row: {"a": True, "b": False, "tie": None}[row["winner"]]),
)  # fmt: skip


def load(source: str, pictures: Path | None = None) -> tuple[list[Preference], int]:
    """(pairs with a preferred edit, how many have none) of a .jsonl file, ImagenHub's folder of ratings, or
    hub:NAME[@REVISION][#[CONFIGURATION][/SPLIT]], all splits by default. pictures: their folder, beside the
    file by default; of ImagenHub that with dataset_lookup.json. Raises UserError."""
    name, _, part = source.partition("#")
    configuration, _, split = part.partition("/")
    file = expanded(name)
    if reference := hub.reference(name):
        rows: Iterable[Row] = hub.read(reference, split or "all", configuration or None)
    elif file.is_dir():
        rows = _rated(file, pictures)
    elif file.suffix == ".jsonl":
        rows = atomic.checked_lines(file)
    else:
        raise UserError(
            f"--preferences '{source}' is neither hub:NAME, a .jsonl file, nor a folder of ratings (*.tsv)."
        )
    root, undecided = pictures or file.parent, 0
    found: list[Preference] = []
    for number, row in enumerate(rows, start=1):
        kind = next((form for form in FORMATS if form.fits(row)), None)
        if kind is None:
            columns = "; ".join(
                ", ".join((form.instruction, form.source, *form.edits, form.winner)) for form in FORMATS
            )
            raise UserError(f"'{source}', record {number} has {', '.join(row)}; expected one of: {columns}.")
        try:
            first = kind.first(row)
        except (KeyError, TypeError, ValueError):
            raise UserError(
                f"'{source}', record {number}: {kind.winner} is {row[kind.winner]!r}, which names no edit."
            ) from None
        edits = row[kind.edits[0]] if len(kind.edits) == 1 else [row[column] for column in kind.edits]
        if not isinstance(edits, Sequence) or len(edits) != 2:
            raise UserError(f"'{source}', record {number}: {kind.edits[0]} must hold two edits.")
        undecided += first is None
        if first is not None:
            cells = (row[kind.source], *(edits if first else edits[::-1]))
            names, paths = zip(*(_file(cell, root) for cell in cells), strict=True)
            title = ", ".join(
                str(part) for part in (row.get("set", kind.title), row.get("dimension")) if part
            )
            key = f"{number}-{json_digest({'of': source, 'pictures': names})[:12]}"
            found.append(Preference(title, key, names[0], str(row[kind.instruction]), *paths))
    if not found:
        raise UserError(f"'{source}' has no pair of which people prefer one.")
    return found, undecided


def _file(cell: Any, root: Path) -> tuple[str, Path]:
    """(name, file) of a picture, which a cell holds or names. Sets name places of their authors' machines:
    the whole name is looked for below `root`, then shorter tails of it, of a folder and a file at least."""
    if isinstance(cell, Mapping) and isinstance(cell.get("bytes"), bytes):
        path = atomic.file_of(cell["bytes"])
        return path.name, path
    name = str(cell.get("path") if isinstance(cell, Mapping) else cell)
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..")]
    for start in range(max(1, len(parts) - 1)):
        if (path := root.joinpath(*parts[start:])).is_file():
            return name, path
    raise UserError(f"The picture '{name}' is not below '{root}'; --preference-images names their folder.")


def _rated(folder: Path, pictures: Path | None) -> Iterator[Row]:
    """ImagenHub: a .tsv per rater, a line per picture, and [SC, PQ] of every editor from 0 to 1. An edit is
    as good as the mean of sqrt(SC PQ) over raters; every two editors make a pair."""
    if pictures is None or not (pictures / LOOKUP).is_file():
        raise UserError(
            f"The ratings in '{folder}' need --preference-images: the folder with {LOOKUP} and input/."
        )
    scores: dict[str, dict[str, float]] = {}
    for file in sorted(folder.glob("*_rater*.tsv")):
        for number, row in atomic.read_csv(file, ["uid"], "\t"):
            of_picture = scores.setdefault(row.pop("uid"), defaultdict(float))
            for editor, cell in row.items():
                try:
                    of_picture[editor] += math.sqrt(math.prod(json.loads(cell)))
                except (TypeError, ValueError):
                    raise UserError(
                        f"'{file}', line {number}: {cell!r} of {editor} is no [SC, PQ]."
                    ) from None
    lookup = atomic.read_json(pictures / LOOKUP, {uid: {"instruction": str} for uid in scores})
    for uid, of_picture in scores.items():
        for one, other in itertools.combinations(of_picture, 2):
            apart = of_picture[one] - of_picture[other]
            winner = "tie" if abs(apart) < 1e-9 else "a" if apart > 0 else "b"
            yield {
                "set": "ImagenHub", "instruction": lookup[uid]["instruction"], "winner": winner,
                "source": f"input/{uid}", "a": f"{one}/{uid}", "b": f"{other}/{uid}",
            }  # fmt: skip
