"""Stages over the blocks of folders: what to compute. An executor (`nein.engine.run`) says how and where."""

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


@dataclass(frozen=True)
class Model:
    """A model to be loaded once, for all stages and folders that give it the same name.

    describe  The loaded model -> kind -> (fingerprint, description), noted in every folder that uses it.
    place     Where it works: "device", "host" (functions of pixels and texts), or "remote" (an endpoint).
    requests  Of "remote": its parallel blocks; 0: as many as the command says.
    usage     The loaded model -> kind -> its usage since it was loaded, for the manifest.
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
        """A single model, with a method `describe()` and maybe a `fingerprint`."""
        return cls(
            name,
            load,
            lambda loaded: {kind: (getattr(loaded, "fingerprint", ""), loaded.describe())},
            place,
            lambda loaded: usage_of({kind: loaded}),
            requests,
        )


def usage_of(models: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Kind -> usage, of the models that have `usage()` and used something."""
    usages = {kind: model.usage() for kind, model in models.items() if hasattr(model, "usage")}
    return {kind: usage for kind, usage in usages.items() if usage}


@dataclass(frozen=True)
class Shared:
    """`load` with a weak cache: several remedies wrap one model, which lives while one of them holds it."""

    load: Callable[[], Any]
    _living: weakref.WeakValueDictionary[str, Any] = field(default_factory=weakref.WeakValueDictionary)

    def __call__(self) -> Any:
        loaded = self._living.get("model")
        if loaded is None:
            loaded = self._living["model"] = self.load()
        return loaded


class Stage:
    """One step of the work on a folder: makes rows from a block. Subclasses define `read` and `work`, and
    override the other methods where they differ.

    name      Unique in the folder: title of the progress bar and key of its costs.
    outputs   The files it writes per block: see `Folder.block_path`.
    blocks    The selected blocks.
    model     Argument of `work`; loaded when the first block is open. None: no model.
    invalidates     Outputs, of any command, that are made from this stage's block of the same number
                    ("scores": every output below it); removed when a block gets other rows (`put`).
    depends_on_all  Outputs of earlier stages whose selected blocks must all exist, since all are read.
    cut       Makes rows of `Blocks.needed` instead of all records of a block.
    asks      Reference of a model behind an address -> approximate requests per record.
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
        """Output -> rows, for the missing outputs. A failed record becomes a row with its reason; an
        exception ends the command."""
        raise NotImplementedError

    def is_valid(self, output: str, number: int, rows: list[Any]) -> bool:
        """Whether an existing block counts. Else (images are gone, failed records deserve a retry) all of it
        is made again."""
        return True

    def ids(self, records: range) -> Iterable[Any] | None:
        """The "id" of every row of these records: a block with others is made again. None: any."""
        return None

    def files(self, records: range) -> Iterable[Path]:
        """The user's files from which the rows of these records are made. A block is made again when the
        content of one changes."""
        return ()

    def state(self, records: range) -> Any:
        """Other facts that decide the rows of these records, JSON-serializable, None for none: a block is
        made again when they change, too."""
        return None

    def records(self, number: int) -> range:
        """Indices of the records from which a block is made."""
        return self.blocks.needed(number) if self.cut else self.blocks.members(number)

    def source_digest(self, records: range) -> str | None:
        """12 digits of the contents of `files`, and of `state`."""
        contents, state = [*map(content_digest, self.files(records))], self.state(records)
        if not contents and state is None:
            return None
        return json_digest({"files": contents, "state": state})[:12]

    def head(self, output: str, number: int, records: range, digest: str | None) -> Row:
        """The first line of a block of these records: its output and number, its `source_digest`, and the
        number of its records if it is not complete."""
        facts: Row = {"output": output, "block": number}
        facts |= {} if digest is None else {"made_of": digest}
        return facts if records == self.blocks.members(number) else {**facts, "records": len(records)}


@dataclass(frozen=True)
class Step:
    """A stage of a folder. label: of the folder, for the progress bar."""

    folder: Folder
    stage: Stage
    label: str = ""


#: Device -> all steps of a command, stages of a folder in their order. Workers on other nodes get it as a
#: pickle: it holds no model, and changes nothing on disk.
Plan = Callable[[str], Sequence[Step]]


@dataclass(frozen=True)
class Task:
    """A block to make. missing: its outputs to make; absent: none of them had a file."""

    step: Step
    number: int
    missing: tuple[str, ...]
    absent: bool

    def put(self, rows: Mapping[str, Rows]) -> None:
        """Writes the missing outputs. Outputs that depend on the old block are removed first, unless a worker
        of a killed command has made the same block meanwhile."""
        folder, stage, number = self.step.folder, self.step.stage, self.number
        records = stage.records(number)
        digest = stage.source_digest(records)
        files: dict[Path, bytes] = {}
        for output in self.missing:
            lines = [stage.head(output, number, records, digest), *rows[output]]
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
    step: Step, rank: int = 0, size: int = 1, skip: Callable[[int], Any] = lambda number: None
) -> Iterator[Task]:
    """The selected blocks of share `rank` of `size` with a missing or invalid output, found one at a time.
    skip: called with every other block."""
    folder, stage = step.folder, step.stage
    for number in stage.blocks.share(rank, size):
        heads = {name: folder.head(name, number) for name in stage.outputs}
        digest = functools.cache(stage.source_digest)  # files are read once for all outputs of a block
        missing = []
        for output, head in heads.items():
            records = stage.blocks.members(number)
            if isinstance(cut := head.get("records"), int):
                records = records[:cut]
            enough = bool(head) and len(records) >= len(stage.records(number))
            if enough and head == stage.head(output, number, records, digest(records)):
                rows, ids = folder.read(output, number), stage.ids(records)
                same_ids = ids is None or [*map(get_row_id, rows)] == [*ids]
                if same_ids and stage.is_valid(output, number, rows):
                    continue
            missing.append(output)
        if missing:
            yield Task(step, number, tuple(missing), absent=not any(heads[name] for name in missing))
        else:
            skip(number)
