"""Declares the work of a command: `Model` says how to load a model, `Stage` how to make the rows of a block;
`open_tasks` finds the missing blocks, which an executor (`nein.engine.run`) computes."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nein.engine import atomic
from nein.engine.folder import Blocks, Folder, Row, get_row_id
from nein.loading.digests import content_digest, json_digest

Rows = Sequence[Any]  # dataclasses, or mappings


# --- models ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Model:
    """A model to be loaded once, for all stages and folders that give it the same name."""

    name: str
    load: Callable[[], Any]
    # Loaded model -> {kind: (fingerprint, description)}, noted in every folder that uses it.
    describe: Callable[[Any], Mapping[str, tuple[str, Mapping[str, Any]]]]
    place: str = "device"  # or "host" (a function of pixels and texts), or "remote" (an endpoint)
    # Loaded model -> {kind: its usage since it was loaded}, for the manifest.
    usage: Callable[[Any], Mapping[str, Mapping[str, Any]]] = lambda loaded: {}
    requests: int = 0  # if remote: how many blocks it makes at once; 0: as many as the command says

    @classmethod
    def one(
        cls, name: str, load: Callable[[], Any], place: str = "device", kind: str = "model", requests: int = 0
    ) -> Model:
        """A model whose `load` returns one object with `describe()`, maybe `fingerprint` and `usage()`."""
        return cls(
            name,
            load,
            describe=lambda loaded: {kind: (getattr(loaded, "fingerprint", ""), loaded.describe())},
            place=place,
            usage=lambda loaded: read_usage({kind: loaded}),
            requests=requests,
        )


def read_usage(models: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Kind -> usage, of the loaded models that have `usage()` and used something."""
    usages = {kind: model.usage() for kind, model in models.items() if hasattr(model, "usage")}
    return {kind: usage for kind, usage in usages.items() if usage}


@dataclass(frozen=True)
class Shared:
    """`load` with a weak cache: several remedies wrap one model, which lives while one of them holds it."""

    load: Callable[[], Any]
    _cache: weakref.WeakValueDictionary[str, Any] = field(default_factory=weakref.WeakValueDictionary)

    def __call__(self) -> Any:
        loaded = self._cache.get("model")
        if loaded is None:
            loaded = self._cache["model"] = self.load()
        return loaded


# --- stages ----------------------------------------------------------------------------------
class Stage:
    """One kind of work on a folder: makes rows from a block of records. Subclasses define the attributes
    without a default, `read` and `work`."""

    name: str  # unique in the folder: title of the progress bar, and key of its costs
    outputs: tuple[str, ...]  # names of the files that it writes per block (`Folder.block_path`)
    blocks: Blocks  # which records are selected, and how they are divided
    model: Model | None = None  # argument of `work`, loaded before the first open block; None: no model
    invalidates: tuple[str, ...] = ()  # outputs made from its rows ("scores": all below), removed with them
    depends_on_all: tuple[str, ...] = ()  # outputs of earlier stages that must be complete before it starts
    cut: bool = False  # whether a limit inside a block cuts it; a larger limit then makes it again
    asks: Mapping[str, int] = MappingProxyType({})  # served model -> approximate requests per record

    # --- making a block
    def read(self, number: int) -> Any:
        """The inputs of `work` for a block."""
        raise NotImplementedError

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> Mapping[str, Rows]:
        """Missing output -> rows. A failed record is a row with its reason; an exception ends the command."""
        raise NotImplementedError

    # --- whether an existing block counts; if not, it is open: made again
    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """Whether the rows of an existing block count: False if, say, images are gone or a retry is due."""
        return True

    def ids(self, records: range) -> Iterable[Any] | None:
        """The "id" of every row of these records; other ids in a block open it. None: not checked."""
        return None

    def files(self, records: range) -> Iterable[Path]:
        """The user's files from which the rows of these records are made; a changed one opens the block."""
        return ()

    def state(self, records: range) -> Any:
        """Other JSON-serializable facts that decide these rows, or None; a change opens the block."""
        return None

    # --- for the engine
    def records(self, number: int) -> range:
        """Indices of the records from which a block is made."""
        return self.blocks.needed(number) if self.cut else self.blocks.members(number)

    def source_digest(self, records: range) -> str | None:
        """12 digits of SHA-256 over the contents of `files` and over `state`; None without both."""
        contents = [content_digest(path) for path in self.files(records)]
        state = self.state(records)
        if not contents and state is None:
            return None
        return json_digest({"files": contents, "state": state})[:12]

    def head(self, output: str, number: int, records: range, digest: str | None) -> Row:
        """The first line of a block's file; it has the number of `records` only if a limit cut the block."""
        facts: Row = {"output": output, "block": number}
        if digest is not None:
            facts["made_of"] = digest
        if records != self.blocks.members(number):
            facts["records"] = len(records)
        return facts


@dataclass(frozen=True)
class Step:
    """A stage of one folder. label: names the folder in the progress bar."""

    folder: Folder
    stage: Stage
    label: str = ""


#: Device -> all steps of a command, the stages of a folder in their order. Workers on other nodes get the
#: function as a pickle: it holds no model, and changes nothing on disk.
Plan = Callable[[str], Sequence[Step]]


# --- missing blocks ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Task:
    """An open block. missing: the outputs to make; absent: whether none of them has a file."""

    step: Step
    number: int
    missing: tuple[str, ...]
    absent: bool

    def put(self, rows: Mapping[str, Rows]) -> None:
        """Writes the missing outputs; first removes the outputs that were made from the old block."""
        folder, stage, number = self.step.folder, self.step.stage, self.number
        records = stage.records(number)
        digest = stage.source_digest(records)
        files: dict[Path, bytes] = {}
        for output in self.missing:
            lines = [stage.head(output, number, records, digest), *rows[output]]
            files[folder.block_path(output, number)] = b"".join(map(atomic.json_line, lines))
        # The worker of a killed command may have written the same block meanwhile: nothing is out of date.
        if self.absent and all(path.exists() and path.read_bytes() == data for path, data in files.items()):
            return
        # A dependent output has a block per unit. It goes first, lest a kill leave it beside new rows.
        unit_number = number * stage.blocks.size // stage.blocks.units.size
        for output in stage.invalidates:
            old = folder.block_path(output, unit_number)
            in_outputs_below = (folder.path / output).glob(f"*/{old.parent.name}/{old.name}")
            for path in (old, *in_outputs_below):
                path.unlink(missing_ok=True)
        for path, data in files.items():
            atomic.write_bytes(path, data)


def open_tasks(
    step: Step, worker: int = 0, workers: int = 1, skip: Callable[[int], Any] = lambda number: None
) -> Iterator[Task]:
    """Yields the open blocks of a worker's share; calls `skip` with the numbers of its other blocks."""
    folder, stage = step.folder, step.stage
    for number in stage.blocks.share(worker, workers):
        heads = {name: folder.head(name, number) for name in stage.outputs}
        digest = functools.cache(stage.source_digest)  # files are read once for all outputs of a block
        missing = []
        for output, head in heads.items():
            records = stage.blocks.members(number)
            if isinstance(count := head.get("records"), int):  # a limit cut the block
                records = records[:count]
            has_all = bool(head) and len(records) >= len(stage.records(number))  # {}: no block
            if has_all and head == stage.head(output, number, records, digest(records)):
                rows, ids = folder.read(output, number), stage.ids(records)
                same_ids = ids is None or [*map(get_row_id, rows)] == [*ids]
                if same_ids and stage.is_valid(output, number, rows):
                    continue
            missing.append(output)
        if missing:
            yield Task(step, number, tuple(missing), absent=not any(heads[name] for name in missing))
        else:
            skip(number)
