"""Run folders: `Blocks` divides a run's records into numbered ranges; `Folder` reads and writes its files.

    FOLDER/
      manifest.json             format, status, identity, and facts about the latest command
      answers.sqlite            answers of models, so that no request is sent twice
      models/<kind>.json        fingerprint and description of a model that made rows
      notes/<process>.json      costs of a worker, by stage and by model; written once, at its end
      <output>/identity.json    what decides the rows of one output, if it may differ from the folder's
      <output>/000/000012.jsonl block 12: its head (`Stage.head`), then one JSON row per line

A block is done when its file exists, which is written atomically. Rows hold no time and no host: two
processes that make the same block write the same bytes, and no lock is needed.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pydantic
from typing_extensions import NotRequired

from nein.engine import atomic
from nein.engine.answers import ANSWERS, read_spending
from nein.engine.atomic import Row, record
from nein.loading.digests import Json
from nein.loading.errors import UserError

FORMAT = 7  # version of this layout; folders of another version are refused
COMPLETE, INCOMPLETE = "complete", "incomplete"  # values of a manifest's "status"
MANIFEST = "manifest.json"
CONTENTS = "weights or source"  # key of an identity; its value: role of a model -> digest of its files
SEGMENT = 1000  # consecutive blocks whose files share a folder, so that listings stay short


# --- blocks ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Blocks:
    """The division of `count` records into blocks; block b holds the records [b * size, (b + 1) * size)."""

    count: int
    size: int  # records per block
    indices: Sequence[int]  # of the selected records, ascending; if consecutive a range: they may be millions
    unit: int = 0  # records per unit, a group of blocks that one worker makes; 0: a unit is one block

    @classmethod
    def first(cls, count: int, size: int, limit: int | None = None) -> Blocks:
        """The blocks of the first `limit` records, or of all."""
        return cls(count, size, range(count if limit is None else min(limit, count)))

    @classmethod
    def read(cls, manifest: Mapping[str, Any], output: str) -> Blocks:
        """The blocks of an output that the latest command selected. Raises UserError without them."""
        if (entry := manifest.get("selected", {}).get(output)) is None:
            raise UserError(f"A manifest.json has no 'selected.{output}'; rerun the command of the run.")
        ranges = [range(first, end) for first, end in entry["records"]]
        indices: Sequence[int] = ranges[0] if len(ranges) == 1 else [*itertools.chain(*ranges)]
        count = max((part.stop for part in ranges), default=0)
        return cls(count, entry["size"], indices, entry.get("unit", 0))

    @property
    def selection(self) -> Json:
        """The selected records, for a manifest: [[first, end], ...], and the block size."""
        spans: list[list[int]] = []
        if isinstance(self.indices, range) and self.indices:
            spans.append([self.indices.start, self.indices.stop])
        else:
            for index in self.indices:  # extend the last span, or start another
                if not spans or index > spans[-1][1]:
                    spans.append([index, index])
                spans[-1][1] = index + 1
        unit = {"unit": self.unit} if self.unit else {}
        return {"size": self.size, **unit, "records": spans}

    @property
    def units(self) -> Blocks:
        """The same records in larger blocks: one per unit."""
        return Blocks(self.count, self.unit or self.size, self.indices)

    def count_selected(self, number: int) -> int:
        """The number of selected records of a block."""
        first = bisect.bisect_left(self.indices, number * self.size)
        return bisect.bisect_left(self.indices, (number + 1) * self.size) - first

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the blocks with a selected record, ascending; a range where `indices` is one."""
        if isinstance(self.indices, range) and self.indices:
            return range(self.indices[0] // self.size, self.indices[-1] // self.size + 1)
        return sorted({index // self.size for index in self.indices})

    def share(self, worker: int, workers: int) -> Sequence[int]:
        """The block numbers of a worker, ascending: those in the units u with u % workers == worker."""
        if workers == 1:
            return self.numbers
        unit = self.unit or self.size
        return [number for number in self.numbers if (number * self.size // unit) % workers == worker]

    def members(self, number: int) -> range:
        """Indices of a block's records, selected or not."""
        return range(number * self.size, min((number + 1) * self.size, self.count))

    def needed(self, number: int) -> range:
        """Indices of a block's records up to the last selected one. A limit that grows adds records."""
        members = self.members(number)
        selected_before_end = bisect.bisect_left(self.indices, members.stop)  # how many
        return range(members.start, self.indices[selected_before_end - 1] + 1)


def sample_seed(run_seed: int, sample_id: str, repeat: int = 0) -> int:
    """The seed of a sample, in [0, 2**63): the first 63 bits of SHA-256 over "run seed/sample id/repeat". A
    sample and its affirmative twin share it, and so start from the same noise: their difference is paired."""
    digest = hashlib.sha256(f"{run_seed}/{sample_id}/{repeat}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


# --- the folder --------------------------------------------------------------------------------------
# Types of the manifest: `_HEAD` is checked first; `MANIFEST_FIELDS` are the entries of all benchmarks.
_HEAD = record({"format": NotRequired[int], "benchmark": NotRequired[str]})
_SPAN = Annotated[list[int], pydantic.Field(min_length=2, max_length=2)]  # [first, end] of record indices
_SELECTION: Any = record({"size": int, "unit": NotRequired[int], "records": list[_SPAN]})
_INVOCATION: Any = record(
    {
        "started": str,
        "command": NotRequired[list[str]],
        "directory": NotRequired[str],
        "environment": NotRequired[Json],
    }
)
MANIFEST_FIELDS: Row = {
    "status": NotRequired[str],
    "identity": Row,
    "invocations": NotRequired[list[_INVOCATION]],
    "selected": NotRequired[dict[str, _SELECTION]],
}
_MODEL = record({"fingerprint": str})  # models/<kind>.json
# The cost of a stage; peak_memory: "host" or "device" -> bytes.
_COST: Any = record({"blocks": int, "rows": int, "seconds": float, "peak_memory": dict[str, int]})
_NOTE = record({"stages": dict[str, _COST], "usage": Row})  # notes/<process>.json: by stage, by model


@dataclass(frozen=True)
class Folder:
    """Manifest, notes and blocks of the run in `path`; holds no open file. Benchmarks subclass it."""

    path: Path
    content_name: ClassVar[str] = "results"  # what messages call the results: "edits", "answers"
    # Output, or the first part of its name -> the dataclass of its rows (default: dictionaries).
    row_types: ClassVar[Mapping[str, Any]] = {}
    benchmark: ClassVar[str] = ""  # the benchmark of these runs, as manifests name it; "": any
    manifest_type: ClassVar[Any] = record(MANIFEST_FIELDS)  # the type that `manifest` checks

    # --- manifest --------------------------------------------------------------------------
    def entries(self) -> Row:
        """The manifest file, only its head checked; {} without one. Raises UserError for another `FORMAT`."""
        path = self.path / MANIFEST
        entries: Row = atomic.read_json(path, _HEAD) if path.exists() else {}
        if entries.get("format", FORMAT) != FORMAT:
            raise UserError(
                f"'{self.path}' was written by another version of nein (format {entries['format']}, not "
                f"{FORMAT}); rerun its command with another --out.",
                "other-version",
            )
        return entries

    @property
    def is_complete(self) -> bool:
        return self.entries().get("status") == COMPLETE

    def manifest(self) -> Json:
        """The checked manifest file, or {} without one. Three entries are added from other files: `models`
        (kind -> fingerprint and description), `usage` (by model and worker), `spent` (by model, over all runs
        of OUT). Raises UserError for a run of another benchmark or of another version of this package."""
        if not (entries := self.entries()):
            return {}
        benchmark = entries.get("benchmark", self.benchmark)
        if self.benchmark not in ("", benchmark):
            family = "nein" if benchmark == "nein" else f"nein {benchmark}"
            raise UserError(
                f"'{self.path}' is a run of {benchmark}; this command takes runs of {self.benchmark}. "
                f"See {family} --help for its commands.",
                "other-benchmark",
            )
        entries = atomic.read_json(self.path / MANIFEST, self.manifest_type)
        usage: Row = {}
        for worker, note in self.read_notes().items():
            usage |= {f"{kind}-{worker}": counts for kind, counts in note["usage"].items()}
        facts = {"models": self.models(), "usage": usage, "spent": read_spending(self.path)}
        return {"invocations": [], **entries, **facts}

    def open(
        self, identity: Mapping[str, Any], facts: Mapping[str, Any], *, overwrite: bool, anew: bool = False
    ) -> None:
        """Starts the run, or resumes one of the same `identity`. For the main process.

        facts      Further entries of the manifest; "invocation" is appended to those of earlier commands.
        overwrite  Remove a run of another identity; else UserError names the first key that differs.
        anew       Remove any run. Answers of models stay, since their key says what they answer.
        """
        atomic.remove_drafts(self.path)
        before = self.entries()
        difference = _first_difference(before["identity"], identity) if before else None
        if difference and not overwrite:
            raise UserError(
                f"'{self.path}' holds {self.content_name} made with {difference}; "
                "choose another --out, or --overwrite to discard what is there.",
                "mixed",
            )
        if difference or (before and anew):
            for path in self.path.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif not path.name.startswith(ANSWERS):  # with SQLite's journal
                    path.unlink()
        entries = dict(facts)
        invocations = [] if difference else before.get("invocations", [])
        if "invocation" in entries:
            invocations.append(entries.pop("invocation"))
        benchmark = {"benchmark": self.benchmark} if self.benchmark else {}
        head = {"format": FORMAT, "status": INCOMPLETE, **benchmark, "identity": dict(identity)}
        atomic.write_json(self.path / MANIFEST, {**head, **entries, "invocations": invocations})

    def update(self, **entries: Any) -> None:
        """Replaces entries of the manifest, atomically. For the main process."""
        atomic.write_json(self.path / MANIFEST, {**self.entries(), **entries})

    def open_output(self, output: str, identity: Mapping[str, Any], *, overwrite: bool) -> None:
        """Adds an output (a metric). Rows of another identity raise UserError, or `overwrite` drops them."""
        path = self.path / output / "identity.json"
        difference = _first_difference(atomic.read_json(path, dict), identity) if path.exists() else None
        if difference and not overwrite:
            raise UserError(
                f"'{self.path}' holds {Path(output).name} made with {difference}; "
                "choose another --out, or --overwrite to make it again.",
                "mixed",
            )
        if difference:
            shutil.rmtree(path.parent)
            for key in identity:  # some are kinds of models, which the new rows may change
                (self.path / "models" / f"{key}.json").unlink(missing_ok=True)
        atomic.write_json(path, dict(identity))

    def outputs(self, group: str) -> dict[str, Json]:
        """Name -> identity, of the outputs `group`/<name> that `open_output` added."""
        paths = sorted((self.path / group).glob("*/identity.json"))
        return {path.parent.name: atomic.read_json(path, dict) for path in paths}

    # --- models and notes ------------------------------------------------------------------
    def models(self) -> dict[str, Row]:
        """Kind -> fingerprint and description, of the models that `note_model` wrote."""
        paths = sorted((self.path / "models").glob("*.json"))
        return {path.stem: atomic.read_json(path, _MODEL) for path in paths}

    def note_model(self, kind: str, fingerprint: str, description: Mapping[str, Any]) -> None:
        """Writes the description of a loaded model, once. Raises UserError if its fingerprint has changed."""
        path = self.path / "models" / f"{kind}.json"
        if not path.exists():
            atomic.write_json(path, {"fingerprint": fingerprint, **description})
        elif atomic.read_json(path, _MODEL)["fingerprint"] != fingerprint:
            raise UserError(
                f"The weights or settings of '{kind}' have changed since '{self.path}' was started; choose "
                "another --out.",
                "changed-model",
            )

    def write_note(self, content: Mapping[str, Any]) -> None:
        """Writes the note of a worker: `stages` (name -> blocks, rows, seconds, peak_memory), `usage`."""
        name = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"
        atomic.write_json(self.path / "notes" / f"{name}.json", content)

    def sum_costs(self) -> dict[str, Row]:
        """Stage -> blocks, rows and seconds of all workers, and their largest peak_memory."""
        sums: dict[str, Row] = {}
        for note in self.read_notes().values():
            for stage, cost in note["stages"].items():
                total = sums.setdefault(stage, {"blocks": 0, "rows": 0, "seconds": 0.0, "peak_memory": {}})
                for key in ("blocks", "rows", "seconds"):
                    total[key] += cost[key]
                for memory, peak in cost["peak_memory"].items():
                    total["peak_memory"][memory] = max(peak, total["peak_memory"].get(memory, 0))
        return sums

    def read_notes(self) -> dict[str, Row]:
        """Name of a worker -> its note."""
        paths = sorted((self.path / "notes").glob("[!.]*.json"))
        return {path.stem: atomic.read_json(path, _NOTE) for path in paths}

    # --- blocks ----------------------------------------------------------------------------
    def check_inside(self, path: Path) -> Path:
        """Returns a path that a file of this folder names. Raises UserError if it leaves, or has a link."""
        parts = path.parts[len(self.path.parts) :]
        is_safe = path.is_relative_to(self.path) and ".." not in parts and "\0" not in str(path)
        # Links above the run are the user's own: not checked, which saves requests on a network disk.
        prefixes = (self.path.joinpath(*parts[:count]) for count in range(1, len(parts) + 1))
        if not is_safe or any(map(os.path.islink, prefixes)):
            raise UserError(f"'{path}' leads out of '{self.path}'; paths of a run must stay in its folder.")
        return path

    def block_path(self, output: str, number: int) -> Path:
        return self.path / output / f"{number // SEGMENT:03d}" / f"{number:06d}.jsonl"

    def list_blocks(self, output: str) -> set[int]:
        """Numbers of the blocks of an output that exist."""
        files = (self.path / output).glob("[0-9]*/[0-9]*.jsonl")
        return {int(file.stem) for file in files if file.stem.isdigit()}

    def read(self, output: str, number: int) -> list[Any]:
        """The rows of a block, of their `row_types`. Raises UserError for other rows or another head."""
        row_type = self.row_types.get(output) or self.row_types.get(output.partition("/")[0], Row)
        path = self.block_path(output, number)
        with atomic.explain_read_errors(path):
            head_line, *lines = path.read_bytes().splitlines() or [b"{}"]  # an empty file: no block's head
        head = atomic.parse(head_line, Row, f"'{path}', line 1")
        if (head.get("output"), head.get("block")) != (output, number):
            raise UserError(f"'{path}' is not block {number} of {output}; remove it and rerun the command.")
        numbered = enumerate(lines, start=2)
        return [atomic.parse(line, row_type, f"'{path}', line {index}") for index, line in numbered]

    def head(self, output: str, number: int) -> Row:
        """The first line of a block, which describes it; {} where it cannot be read."""
        try:
            with self.block_path(output, number).open("rb") as file:
                return dict(json.loads(file.readline()))
        except (OSError, ValueError, TypeError, RecursionError):
            return {}

    def count_records(self, output: str, number: int, blocks: Blocks) -> int:
        """The number of records from which a block was made; 0 where it does not exist."""
        head = self.head(output, number)
        return int(head.get("records", len(blocks.members(number)))) if head else 0

    def rows(self, output: str, numbers: Iterable[int]) -> Iterator[Any]:
        """The rows of several blocks, in the order of `numbers`. Raises UserError for a missing block."""
        for number in numbers:
            if not self.block_path(output, number).exists():
                raise UserError(
                    f"'{self.path}' lacks block {number} of {output}; rerun the command to make it.",
                    "missing-block",
                )
            yield from self.read(output, number)


def _first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """ "seed 0, not 1": the first key in sorted order whose value differs, with both; None: all agree."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if key == CONTENTS:  # a model that was not downloaded yet has no digest: compare the common roles
            before, after = before or {}, after or {}
            before = {role: digest for role, digest in before.items() if role in after}
            after = {role: digest for role, digest in after.items() if role in before}
        if before != after:
            if isinstance(before, Mapping) and isinstance(after, Mapping):
                return f"{key}: {_first_difference(before, after)}"
            return f"{key} {before}, not {after}"
    return None


def get_row_id(row: Any) -> Any:
    """The "id" of a row, a dictionary or a dataclass; "" for a dictionary without one."""
    return row.get("id", "") if isinstance(row, dict) else row.id


# --- finding run folders -----------------------------------------------------------------------------
def find_runs(out: Path) -> list[Path]:
    """Every run folder at or below `out`, at most three folders deep, ordered by path."""
    if (out / MANIFEST).is_file():
        return [out]
    depths = ("*", "*/*", "*/*/*")
    return sorted(path.parent for depth in depths for path in out.glob(f"{depth}/{MANIFEST}"))


def collect_runs(paths: Sequence[Path]) -> list[Path]:
    """The runs at or below the paths, each once. Raises UserError without any."""
    runs = {run.resolve(): run for path in paths for run in find_runs(path)}
    if not runs:
        raise UserError(f"There is no run in '{paths[0]}'; give the --out of a command, or a run in it.")
    return list(runs.values())
