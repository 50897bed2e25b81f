"""The folder of a build: where everything is, what it was made with, and that nobody mixes two
configurations.

OUT/build.json              manifest: configuration, models, environment, counts, hash of the data set
OUT/work/journal/*.jsonl    append-only: one line per shard, stage and worker
OUT/work/claims/*.lock      who is at work
OUT/work/images/<id>.png    every generated picture, also the rejected ones
OUT/candidates.jsonl        one line per source image or candidate: its way through the stages, and the
                            verdict
OUT/dataset/                NeIn's official layout, with a card
OUT/hub/                    the same as parquet files for the `datasets` library, with a card
OUT/card.json, card.png     the card's figures; pictures of accepted and rejected samples by reason
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import first_difference

FORMAT = 1
COMPLETE, INCOMPLETE = "complete", "incomplete"


@dataclass(frozen=True)
class BuildDir:
    """Paths and manifest of a build; holds no open file."""

    path: Path

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def parts(self) -> tuple[str, ...]:
        """What `open` removes with --overwrite."""
        return ("work", "dataset", "hub")

    @property
    def what(self) -> str:
        """What the folder holds, in messages."""
        return "a build"

    @property
    def manifest_path(self) -> Path:
        return self.path / "build.json"

    def image(self, name: str) -> Path:
        return self.work / "images" / name

    def manifest(self) -> dict[str, Any]:
        return atomic.read_json(self.manifest_path) if self.manifest_path.exists() else {}

    @contextlib.contextmanager
    def lock(self, name: str = "manifest", timeout: float = -1) -> Iterator[None]:
        """Exclusive among all workers; waits for as long as `timeout` says (seconds, -1: for ever)."""
        atomic.make_folder(self.path)
        try:
            with FileLock(self.path / f".{name}.lock", timeout=timeout):
                yield
        except Timeout:
            raise UserError(
                f"Another command is at work in '{self.path}'; wait until it has finished."
            ) from None

    def update(self, **entries: Any) -> None:
        """Replaces entries of the manifest, atomically."""
        with self.lock():
            atomic.write_json(self.manifest_path, {**self.manifest(), **entries})

    def open(self, identity: Mapping[str, Any], entries: Mapping[str, Any], *, overwrite: bool) -> None:
        """Begins the build, or goes on with it if its samples are made with the same `identity`.

        Raises UserError naming the first key that differs. With `overwrite` a build that differs is removed.
        """
        with self.lock():
            found = self.manifest()
            difference = first_difference(found["identity"], identity) if found else None
            if found and found.get("format") != FORMAT:
                raise UserError(f"'{self.path}' was written by another version; choose another --out.")
            if difference and not overwrite:
                raise UserError(
                    f"'{self.path}' holds {self.what} made with {difference}; "
                    "choose another --out, or --overwrite to discard what is there."
                )
            if difference:
                for part in self.parts:
                    if (self.path / part).is_file():
                        (self.path / part).unlink()
                    shutil.rmtree(self.path / part, ignore_errors=True)
                found = {}
            history = [*found.get("invocations", []), *entries.get("invocations", [])]
            kept = {"models": found.get("models", {})}
            new = {**entries, "invocations": history, "identity": dict(identity)}
            atomic.write_json(self.manifest_path, {"format": FORMAT, "status": INCOMPLETE, **kept, **new})

    def note_model(self, kind: str, fingerprint: str, description: Mapping[str, Any]) -> None:
        """Writes down what a loaded model is; refuses another one under the same name."""
        with self.lock():
            manifest = self.manifest()
            known = dict(manifest.get("models", {}))
            if kind in known and known[kind]["fingerprint"] != fingerprint:
                raise UserError(
                    f"The weights or settings behind '{kind}' have changed since '{self.path}' was begun; "
                    "choose another --out."
                )
            if kind not in known:
                known[kind] = {"fingerprint": fingerprint, **description}
                atomic.write_json(self.manifest_path, {**manifest, "models": known})
