"""What there is to compute: stages over the blocks of folders. How and where is an executor's business."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nein.engine import atomic
from nein.engine.folder import Blocks, Folder, Row, id_of
from nein.loading.digests import content_digest, json_digest

Rows = Sequence[Any]  # dataclasses, or mappings


@dataclass(frozen=True)
class Model:
    """Something to be loaded, once for all stages and folders that name it alike.

    describe  The loaded thing -> kind -> (fingerprint, description), noted in every folder it is used for.
    place     Where it works: "device", "host" (functions of pixels and texts), or "remote" (an endpoint).
    requests  Of "remote": blocks that it works on side by side; 0: as many as the command says.
    usage     The loaded thing -> kind -> what its work has taken since it was loaded, for the manifest.
    """

    name: str
    load: Callable[[], Any]
    describe: Callable[[Any], Mapping[str, tuple[str, Mapping[str, Any]]]]
    place: str = "device"
    usage: Callable[[Any], Mapping[str, Mapping[str, Any]]] = lambda loaded: {}
    requests: int = 0

    @classmethod
    def one(
        cls, name: str, load: Callable[[], Any], place: str = "device", kind: str = "model", requests: int = 0
    ) -> Model:
        """A single model that has `describe()` itself and, if anything, `fingerprint`."""
        return cls(
            name,
            load,
            lambda loaded: {kind: (getattr(loaded, "fingerprint", ""), loaded.describe())},
            place,
            lambda loaded: usage_of({kind: loaded}),
            requests,
        )


def usage_of(models: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """What those of the models say of their work that have `usage()` and something to say."""
    usages = {kind: model.usage() for kind, model in models.items() if hasattr(model, "usage")}
    return {kind: usage for kind, usage in usages.items() if usage}


@dataclass(frozen=True)
class Shared:
    """`load`, but with what it gave before as long as somebody holds that: for models around one and the same
    model."""

    load: Callable[[], Any]
    _living: weakref.WeakValueDictionary[str, Any] = field(default_factory=weakref.WeakValueDictionary)

    def __call__(self) -> Any:
        loaded = self._living.get("it")
        if loaded is None:
            loaded = self._living["it"] = self.load()
        return loaded


class Stage:
    """One step of the work on a folder: a function of a block that gives rows. Subclasses give `read` and
    `work`, and of the rest what differs.

    name      Unique in the folder: title of the progress bar and key of its costs.
    outputs   The files it writes of each block: see `Folder.block_path`.
    blocks    The blocks that are wanted.
    model     What `work` needs; loaded when the first block is open. None: nothing is needed.
    invalidates     Outputs, of any command, whose block of the same number is made of this stage's; "scores"
                    is every output below it. They are removed where a block gets other rows (`put`).
    depends_on_all  Outputs of earlier stages of which every wanted block is read: all have to be there.
    cut       Of a block the rows of `Blocks.needed` are made, and not of all its records.
    asks      Reference of a model behind an address -> about how many requests a record takes.
    """

    name: str
    outputs: tuple[str, ...]
    blocks: Blocks
    model: Model | None = None
    invalidates: tuple[str, ...] = ()
    depends_on_all: tuple[str, ...] = ()
    cut: bool = False
    asks: Mapping[str, int] = MappingProxyType({})

    def read(self, number: int) -> Any:
        """The inputs of `work` for a block."""
        raise NotImplementedError

    def work(self, model: Any, inputs: Any, missing: tuple[str, ...]) -> Mapping[str, Rows]:
        """Output -> rows, of the outputs still to make. A failing record becomes a row that says so: what is
        raised here ends the command."""
        raise NotImplementedError

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """Whether a block that is there still counts. Where not (images have vanished, failed records are
        worth another try) it is made again as a whole."""
        return True

    def ids(self, records: range) -> Iterable[Any] | None:
        """The "id" of every row of these records: a block that holds others is made again. None: any."""
        return None

    def files(self, records: range) -> Iterable[Path]:
        """The user's files that the rows of these records are made of. A block is made again when one of them
        has other content."""
        return ()

    def state(self, records: range) -> Any:
        """What else decides the rows of these records, JSON-serializable, None for nothing: where it changes,
        a block is made again, too."""
        return None

    def records(self, number: int) -> range:
        """Indices of the records that a block is made of."""
        return self.blocks.needed(number) if self.cut else self.blocks.members(number)

    def made_of(self, records: range) -> str | None:
        """12 digits of the contents of `files`, and of `state`."""
        contents, state = [*map(content_digest, self.files(records))], self.state(records)
        if not contents and state is None:
            return None
        return json_digest({"files": contents, "state": state})[:12]

    def head(self, output: str, number: int, records: range, made_of: str | None) -> Row:
        """The first line of a block that is made of these records: which one it is, what changes with the
        files that it is made of, and of how many records it is, if not of all."""
        facts: Row = {"output": output, "block": number}
        facts |= {} if made_of is None else {"made_of": made_of}
        return facts if records == self.blocks.members(number) else {**facts, "records": len(records)}


@dataclass(frozen=True)
class Step:
    """A stage of a folder. `label`: of the folder, beside the progress bar."""

    folder: Folder
    stage: Stage
    label: str = ""


#: Device -> everything that a command wants computed, stages of a folder in their order. Workers elsewhere
#: get it as a pickle: it holds no model, and changes nothing on disk.
Plan = Callable[[str], Sequence[Step]]


@dataclass(frozen=True)
class Task:
    """A block to make. missing: the outputs that it lacks; absent: of which there was no file."""

    step: Step
    number: int
    missing: tuple[str, ...]
    absent: bool

    def put(self, rows: Mapping[str, Rows]) -> None:
        """Writes the missing outputs. What was made of the block before is removed first, unless a worker of
        a killed command has made the same block meanwhile."""
        folder, stage, number = self.step.folder, self.step.stage, self.number
        records = stage.records(number)
        made_of = stage.made_of(records)
        files: dict[Path, bytes] = {}
        for output in self.missing:
            lines = [stage.head(output, number, records, made_of), *rows[output]]
            files[folder.block_path(output, number)] = b"".join(map(atomic.json_line, lines))
        if self.absent and all(path.exists() and path.read_bytes() == data for path, data in files.items()):
            return
        unit = number * stage.blocks.size // (stage.blocks.unit or stage.blocks.size)
        for output in stage.invalidates:
            old = folder.block_path(output, unit)
            below = (folder.path / output).glob(f"*/{old.parent.name}/{old.name}")
            for path in (old, *below):
                path.unlink(missing_ok=True)
        for path, data in files.items():
            atomic.write_bytes(path, data)


def open_tasks(
    step: Step, rank: int = 0, size: int = 1, passed: Callable[[int], Any] = lambda number: None
) -> Iterator[Task]:
    """The wanted blocks of share `rank` of `size` that lack an output, or hold one that does not count; found
    as they are asked for. passed: called with every other one."""
    for number in step.stage.blocks.share(rank, size):
        made_of = functools.cache(step.stage.made_of)  # files are looked at once for all outputs of a block
        heads = {name: step.folder.head(name, number) for name in step.stage.outputs}
        missing = tuple(
            name for name, head in heads.items() if not head or not _counts(step, name, number, head, made_of)
        )
        if missing:
            there = any(heads[name] for name in missing)
            yield Task(step, number, missing, absent=not there)
        else:
            passed(number)


def _counts(step: Step, output: str, number: int, known: Row, made_of: Callable[[range], str | None]) -> bool:
    """Whether a block that is there still counts. known: its first line."""
    folder, stage = step.folder, step.stage
    records = stage.blocks.members(number)
    if isinstance(cut := known.get("records"), int):
        records = records[:cut]
    if len(records) < len(stage.records(number)):
        return False
    if known != stage.head(output, number, records, made_of(records)):
        return False
    rows, ids = folder.read(output, number), stage.ids(records)
    return (ids is None or [*map(id_of, rows)] == [*ids]) and stage.is_valid(output, number, rows)
