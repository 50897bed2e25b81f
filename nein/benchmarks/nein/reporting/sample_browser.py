"""What the sample browser shows: an index of every sample, and chunks with thumbnails and details.

The index is enough to search, filter and sort; a chunk is needed only for what is on the screen. Chunks are
part of the page while they fit into its budget; beyond it they become script files beside the page, which a
browser loads from disk without a server.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrics import METRICS
from nein.benchmarks.nein import negation_gap
from nein.benchmarks.nein.reporting.collect import Run
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Sample
from nein.engine import images
from nein.engine.errors import UserError
from nein.reporting import page

TEMPLATES = Path(__file__).parent / "templates"
#: Longest side of a source image in pixels -> the class it is counted under.
SIZES = ((256, "up to 256 px"), (512, "257 to 512 px"), (math.inf, "above 512 px"))
SIZE_CLASSES = tuple(name for _, name in SIZES)
CHUNK = 32
PAGE = 24
_HIDDEN = ("objects_of", "protocol")


@dataclass(frozen=True)
class Browser:
    """The samples of a report. `samples`: sample id -> record with its pictures, where the data are at
    hand."""

    runs: Sequence[Run]
    ids: list[str]
    samples: Mapping[str, Sample]
    sizes: Mapping[str, str]
    note: str

    @classmethod
    def of(cls, loaded: Sequence[Run], source: str | None = None, split: str = "val") -> Browser:
        """Gathers the samples of the runs; without the data set, pictures of sources and targets are
        missing."""
        ids = list(dict.fromkeys(name for run in loaded for name in run.edits))
        note = ""
        try:
            dataset = (
                loading.load(source, split=split) if source else loading.reload(loaded[0].manifest["data"])
            )
            samples = {sample.id: sample for sample in dataset.samples}
        except (UserError, KeyError) as error:
            if source:
                raise
            samples, note = {}, f"Pictures of samples and targets are missing: {error} Give --data."
        wanted = {s.source_id: s.source_path for name in ids if (s := samples.get(name)) is not None}
        return cls(
            loaded, ids, samples, {key: size for key, p in wanted.items() if (size := size_class(p))}, note
        )

    def part(self, out: Path, side: int, budget: int) -> tuple[page.Browser, page.Stored]:
        """What the page at `out` shows of the samples, and where its chunks went.

        side    Longer side of a thumbnail in pixels; 0 for a page without pictures.
        budget  Bytes of chunks that may be in the page.
        """
        stored = page.store(out, self.chunks(side), budget)
        index = page.script_json({**self.index(), "folder": page.beside(out).name})
        values = {"note": self.note, "index": index, "chunks": stored.inside}
        return page.Browser("browser", "Samples", TEMPLATES, values, bool(stored.files)), stored

    def index(self) -> dict[str, Any]:
        """Everything but pictures and raw answers, column by column."""
        edit_of = {name: next(run.edits[name] for run in self.runs if name in run.edits) for name in self.ids}
        told = {
            n: next((r.edits[n] for r in self.runs if r.track == "negative" and n in r.edits), edit_of[n])
            for n in self.ids
        }
        objects = sorted({edit["object"] for edit in edit_of.values()})
        sizes = [name for _, name in SIZES if name in self.sizes.values()]
        templates = [told[name]["template"] for name in self.ids]
        used = sorted({t for t in templates if t is not None})
        metrics = [m for m in METRICS if any(m in run.values for run in self.runs)]
        return {
            "runs": [{"label": run.label, "name": run.name, "track": run.track} for run in self.runs],
            "metrics": [_metric(name) for name in metrics],
            "objects": objects,
            "templates": [negation_gap.template_name(template) for template in used],
            "sizes": sizes,
            "chunk": CHUNK,
            "page": PAGE,
            "id": self.ids,
            "source": [edit_of[name]["source_id"] for name in self.ids],
            "object": [objects.index(edit_of[name]["object"]) for name in self.ids],
            "template": [-1 if t is None else used.index(t) for t in templates],
            "size": [_position(sizes, self.sizes.get(edit_of[n]["source_id"])) for n in self.ids],
            "caption": [self.samples[n].caption if n in self.samples else "" for n in self.ids],
            "instruction": [told[name]["instruction"] for name in self.ids],
            "values": [
                [[_short(run.values.get(m, {}).get(n)) for n in self.ids] for m in metrics]
                for run in self.runs
            ],
        }

    def chunks(self, side: int) -> Iterator[dict[str, Any]]:
        """Chunk after chunk: `thumbs[i]` = [sample, target, one per run] as base64 WebP or a sentence saying
        why
        there is none, `details[i]` = one record per run. `side`: longer side of a thumbnail; 0: no
        thumbnails."""
        with ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
            thumbnails: dict[Path, Any] = {}
            for start in range(0, len(self.ids), CHUNK):
                names = self.ids[start : start + CHUNK]
                rows = [self._paths(name) for name in names] if side else [[] for _ in names]
                wanted = {path for row in rows for path in row if isinstance(path, Path)}
                thumbnails = {
                    path: thumbnails.get(path) or pool.submit(thumbnail, path, side) for path in wanted
                }
                thumbs = [
                    [thumbnails[p].result() if isinstance(p, Path) else {"none": p} for p in row]
                    for row in rows
                ]
                yield {
                    "thumbs": thumbs,
                    "details": [[_details(run, name) for run in self.runs] for name in names],
                }

    def _paths(self, name: str) -> list[Path | str]:
        sample = self.samples.get(name)
        paths: list[Path | str] = ["not at hand", "not at hand"]
        if sample is not None:
            paths = [sample.sample_path, sample.source_path]
        for run in self.runs:
            edit = run.edits.get(name)
            if edit is None:
                paths.append("not in this run")
            elif edit["image"] is None:
                paths.append(f"failed: {edit['error']}")
            else:
                paths.append(run.directory.image_path(name))
        return paths


def size_class(path: Path) -> str | None:
    """The class of a picture's longer side, from its header; None when it cannot be read."""
    try:
        width, height = images.probe(path)
    except images.ImageError:
        return None
    return next(name for limit, name in SIZES if max(width, height) <= limit)


def thumbnail(path: Path, side: int) -> str | dict[str, str]:
    """Base64 WebP of a picture, shrunk until its longer side is at most `side`; or {"none": reason}."""
    try:
        picture = images.decode(path)
    except images.ImageError as error:
        return {"none": str(error).rpartition(": ")[2]}
    return base64.b64encode(page.thumbnail(picture, side, quality=70)).decode()


def _details(run: Run, name: str) -> dict[str, Any] | None:
    edit = run.edits.get(name)
    if edit is None:
        return None
    rows = {}
    for metric, scored in run.scores.items():
        row = scored.get(name)
        if row is None:
            continue
        evidence = {key: value for key, value in row["detail"].items() if key not in _HIDDEN}
        rows[metric] = [row["value"], row["reason"], evidence]
    details: dict[str, Any] = {
        "instruction": edit["instruction"],
        "seed": str(edit.get("seed", "")),
        "scores": rows,
    }
    for key in ("error", "note"):
        if edit.get(key):
            details[key] = edit[key]
    return details


def _metric(name: str) -> dict[str, Any]:
    info = METRICS[name]
    scale = {"scale": info.scale, "digits": 2 if info.scale == 1 else 1}
    return {"name": name, "title": info.title, "higher": info.higher_is_better, "kind": info.kind, **scale}


def _position(names: Sequence[str], name: str | None) -> int:
    return names.index(name) if name in names else -1


def _short(value: float | None) -> float | int | None:
    """Five digits are enough to sort and show; whole numbers without a point."""
    if value is None:
        return None
    number = float(f"{value:.5g}")
    return int(number) if number.is_integer() else number
