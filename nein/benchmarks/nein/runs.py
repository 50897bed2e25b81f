"""One run directory: one editor on one instruction track. It describes itself, resumes, and refuses mixtures.

    OUT/<editor>/<track>/
      manifest.json      status, configuration, models, data, environment, counts
      journal/*.jsonl    append-only, one file per process and stage; with timings
      images/<id>.png    the edits
      features/*.safetensors   features of the Frechet distance, one file per block
      edits.jsonl        canonical: data order, no timings, no hosts
      scores.jsonl       canonical: a line per sample and metric
      corpus.json        figures that exist only for the whole (FID)
      figures.csv        figures with intervals

The configuration is split: `edit_identity` decides the images, `score_identity[metric]` decides one metric.
Stages, limits and metrics may be added to a run at any time; a change of an identity is refused with the key
that differs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nein.datasets.nein.samples import Sample
from nein.engine import atomic, journal
from nein.engine.errors import UserError

FORMAT = 1
COMPLETE, EDITED, INCOMPLETE = "complete", "edited", "incomplete"


@dataclass(frozen=True)
class RunDir:
    """Paths and records of one run; holds no open file."""

    out: Path
    editor: str
    track: str

    @property
    def path(self) -> Path:
        return self.out / self.editor / self.track

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def journals(self) -> Path:
        return self.path / "journal"

    @property
    def label(self) -> str:
        return f"{self.editor}/{self.track}"

    def image_path(self, sample_id: str) -> Path:
        return self.path / "images" / f"{sample_id}.png"

    def sheet_path(self, sample_id: str) -> Path:
        """Where the intermediate pictures of an edit are drawn, when that was asked for."""
        return self.path / "maps" / f"{sample_id}.png"

    def feature_path(self, block: int) -> Path:
        return self.path / "features" / f"block-{block:06d}.safetensors"

    # --- manifest ------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any] | None:
        return atomic.read_json(self.manifest_path) if self.manifest_path.exists() else None

    def update(self, **entries: Any) -> None:
        """Replaces entries of the manifest, atomically. For the main process only."""
        atomic.write_json(self.manifest_path, {**(self.manifest() or {}), **entries})

    def open(self, identity: Mapping[str, Any], entries: Mapping[str, Any], *, overwrite: bool) -> None:
        """Starts the run, or continues it if its images were made with the same `identity`.

        Raises UserError naming the first key that differs. With `overwrite`, a run that differs is removed
        first.
        """
        found = self.manifest()
        if found is not None:
            if found.get("format") != FORMAT:
                raise UserError(
                    f"'{self.path}' was written by another version (format {found.get('format')}); "
                    "choose another --out."
                )
            difference = first_difference(found.get("edit_identity", {}), identity)
            if difference and not overwrite:
                raise UserError(
                    f"'{self.path}' holds edits made with {difference}; "
                    "choose another --out, or --overwrite to discard them."
                )
            if difference:
                shutil.rmtree(self.path)
                found = None
        earlier = found or {}
        kept = {key: earlier[key] for key in ("score_identity", "models", "peak_memory") if key in earlier}
        history = [*earlier.get("invocations", []), *entries.get("invocations", [])]
        atomic.write_json(
            self.manifest_path,
            {
                "format": FORMAT,
                "status": INCOMPLETE,
                "editor": self.editor,
                "track": self.track,
                "edit_identity": dict(identity),
                "score_identity": {},
                **kept,
                **{key: value for key, value in entries.items() if key != "invocations"},
                "invocations": history,
            },
        )

    def open_scores(self, identities: Mapping[str, Mapping[str, Any]], *, overwrite: bool) -> None:
        """Adds metrics to the run; refuses a metric that was scored with another identity."""
        manifest = self.manifest() or {}
        known = dict(manifest.get("score_identity", {}))
        for metric, identity in identities.items():
            difference = first_difference(known.get(metric, identity), identity)
            if difference and not overwrite:
                raise UserError(
                    f"'{self.path}' holds {metric} scored with {difference}; "
                    "choose another --out, or --overwrite to score it again."
                )
            known[metric] = dict(identity)
        self.update(score_identity=known)

    def check_description(self, kind: str, fingerprint: str, description: Mapping[str, Any]) -> None:
        """Notes what a loaded model is; refuses to go on with another one under the same name.

        Names are compared when a run is opened; this catches weights that were replaced behind a name.
        """
        known = dict((self.manifest() or {}).get("models", {}))
        if kind in known and known[kind]["fingerprint"] != fingerprint:
            raise UserError(
                f"The weights or settings behind '{kind}' have changed since '{self.path}' was begun; "
                "choose another --out."
            )
        known[kind] = {"fingerprint": fingerprint, **description}
        self.update(models=known)

    # --- journals ------------------------------------------------------------------------

    def edits(self) -> dict[int, list[dict[str, Any]]]:
        """Block number -> its edit records, for blocks whose every image is on disk."""
        done: dict[int, list[dict[str, Any]]] = {}
        on_disk = {path.stem for path in (self.path / "images").glob("*.png")}
        for record in journal.read(self.journals, "edits"):
            rows = record["edits"]
            if all(row["image"] is None or row["id"] in on_disk for row in rows):
                done[record["block"]] = rows
        return done

    def scores(self) -> dict[int, dict[str, dict[str, dict[str, Any]]]]:
        """Block number -> metric -> sample id -> {value, reason, detail}, for the identities now in force."""
        wanted = {m: identity_hash(i) for m, i in (self.manifest() or {}).get("score_identity", {}).items()}
        done: dict[int, dict[str, dict[str, dict[str, Any]]]] = {}
        for record in journal.read(self.journals, "scores"):
            for metric, rows in record["scores"].items():
                if record["identity"].get(metric) != wanted.get(metric):
                    continue
                if metric == "fid" and not self.feature_path(record["block"]).exists():
                    continue
                done.setdefault(record["block"], {})[metric] = dict(zip(record["ids"], rows, strict=True))
        return done

    # --- canonical files -----------------------------------------------------------------

    def write_edits(self, samples: Sequence[Sample], records: Mapping[str, Mapping[str, Any]]) -> None:
        atomic.write_lines(self.path / "edits.jsonl", (dict(records[sample.id]) for sample in samples))

    def write_scores(
        self,
        samples: Sequence[Sample],
        metrics: Iterable[str],
        rows: Mapping[str, Mapping[str, Mapping[str, Any]]],
    ) -> None:
        """`rows[metric][id]`; written in data order, metrics in the order given."""
        names = list(metrics)
        atomic.write_lines(
            self.path / "scores.jsonl",
            ({"id": s.id, "metric": m, **rows[m][s.id]} for s in samples for m in names),
        )

    def read_scores(self) -> list[dict[str, Any]]:
        return atomic.read_lines(self.path / "scores.jsonl")

    def read_edits(self) -> list[dict[str, Any]]:
        return atomic.read_lines(self.path / "edits.jsonl")

    def lock(self) -> FileLock:
        """The run's lock, held. The system releases it when the process ends, however it ends.

        Raises UserError while another command is at work here.
        """
        atomic.make_folder(self.path.parent)
        lock = FileLock(
            self.path.parent / f".{self.track}.lock"
        )  # beside the run: --overwrite removes the run
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"Another command is at work in '{self.path}'; "
                "wait until it has finished, or choose another --out."
            ) from None
        except OSError as error:
            raise UserError(f"'{self.path}' cannot be locked ({error.strerror or error}).") from None
        return lock


def find(out: Path) -> list[RunDir]:
    """Every run below `out` (an output folder, or an editor's folder in it), or the one that `out` itself is;
    ordered by editor, then track."""
    manifests = sorted(out.glob("*/*/manifest.json")) or sorted(out.glob("*/manifest.json"))
    if (out / "manifest.json").is_file():
        manifests = [out / "manifest.json"]
    return [RunDir(path.parents[2], path.parents[1].name, path.parent.name) for path in manifests]


def identity_hash(identity: Mapping[str, Any]) -> str:
    """16 hex digits of SHA-256 over the canonical JSON of an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def first_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """ "seed 0, not 1": the first key, in sorted order, whose value differs; None when all agree."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if before != after:
            if isinstance(before, Mapping) and isinstance(after, Mapping):
                return f"{key}: {first_difference(before, after)}"
            return f"{key} {before}, not {after}"
    return None
