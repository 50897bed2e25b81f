"""The samples of a report: the picture that every run made of each, with verdicts, answers and scores."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nein.benchmarks.nein.runs import REMOVALS, TEMPLATES, RunDir, why_not
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Sample
from nein.engine import images
from nein.engine.errors import UserError
from nein.engine.folder import Row
from nein.metrics import METRICS
from nein.reporting import cards, page
from nein.reporting.cards import Thumbnail

#: Longest side of a source image in pixels -> the class it is counted under.
SIZES = ((256, "up to 256 px"), (512, "257 to 512 px"), (math.inf, "above 512 px"))
SIZE_CLASSES = tuple(name for _, name in SIZES)
COLUMNS = ("metric", "value", "reason", "evidence")
#: What a page shows of what a judge said; evidence.js makes words of it.
EVIDENCE = ("answer", "p_yes", "p_no", "score", "threshold", "before", "after", "question")


@dataclass(frozen=True)
class Browser:
    """The samples of a report. samples: id -> record with its pictures, where the data are at hand."""

    runs: Sequence[RunDir]
    ids: list[str]
    samples: Mapping[str, Sample]
    sizes: Mapping[str, str]
    note: str

    @classmethod
    def of(cls, loaded: Sequence[RunDir], source: str | None = None, split: str = "val") -> Browser:
        """The samples of the runs; without the data set, pictures of samples and targets are missing."""
        ids = list(dict.fromkeys(name for run in loaded for name in run.index))
        note = ""
        try:
            dataset = loading.reload(loaded[0].about["data"], source, split)
            samples = {sample.id: sample for sample in dataset.samples}
        except (UserError, KeyError) as error:
            if source:
                raise
            samples, note = {}, f"Pictures of samples and targets are missing: {error} Give --data."
        sizes = {}
        for key, path in {s.source_id: s.source_path for name in ids if (s := samples.get(name))}.items():
            with contextlib.suppress(images.ImageError):
                side = max(images.probe(path))
                sizes[key] = next(name for limit, name in SIZES if side <= limit)
        return cls(loaded, ids, samples, sizes, note)

    def pictures(self, side: int) -> Iterator[list[Thumbnail]]:
        """Of every sample, its target and all edits (`cards.of_samples`). side: of the longer side."""
        return cards.of_samples(map(self._places, self.ids), side)

    def part(self, out: Path, pictures: Iterator[list[Thumbnail]], budget: int) -> page.Part:
        """What the page at `out` shows of the samples. budget: bytes of chunks that may be in the page."""
        return cards.browser(
            lambda: (self.described(), self.details(pictures)), note=self.note, out=out, budget=budget,
            scripts=[Path(__file__).with_name("evidence.js")],
        )  # fmt: skip

    @functools.cached_property
    def metrics(self) -> list[str]:
        """Those that any run was scored with."""
        return [name for name in METRICS if any(name in run.metrics for run in self.runs)]

    def described(self) -> cards.Samples:
        """Everything but pictures and raw answers."""
        negative = [run for run in self.runs if run.track == "negative"]

        def edit_in(runs: Sequence[RunDir], name: str) -> Row:
            """The edit of a sample in the first of the runs that has it."""
            return next(edit for run in runs if (edit := run.edit(name)) is not None)

        first = {name: edit_in(self.runs, name) for name in self.ids}
        instructed = {name: edit_in([*negative, *self.runs], name) for name in self.ids}
        captions = {name: f" · caption: {sample.caption}" for name, sample in self.samples.items()}
        templates = [instructed[name]["template"] for name in self.ids]
        sizes = [self.sizes.get(first[name]["source_id"]) for name in self.ids]
        facets = {
            "Object": [[first[name]["object"]] for name in self.ids],
            "Family": [[family] if (family := first[name].get("family")) else [] for name in self.ids],
            "Instruction": [[] if t is None else [TEMPLATES[t]] for t in templates],
            "Source size": [[size] if size else [] for size in sizes],
        }
        metrics = self.metrics
        return cards.Samples(
            self.ids,
            [instructed[name]["instruction"] for name in self.ids],
            [
                f"source image {edit['source_id']} · object: {edit['object']}{captions.get(name, '')}"
                for name, edit in first.items()
            ],
            {name: entries for name, entries in facets.items() if any(entries)},
            [
                cards.Member(run.label, (run.name, run.track), run.track == (negative or self.runs)[0].track)
                for run in self.runs
            ],
            [_measure(name) for name in metrics],
            [self._values(run, metrics) for run in self.runs],
            chosen="removal_vqa" if "removal_vqa" in metrics else "",
            rivals=("removal_vqa", "removal_ovd", "Judges disagree"),
            spread="Editors disagree",
            words=("samples", "Run", "Metric"),
            columns=COLUMNS,
        )

    def _values(self, run: RunDir, metrics: Sequence[str]) -> list[list[float | int | str | None]]:
        """By metric, of every sample the value; a sentence where the run has none or asks for no removal."""
        why = ["no removal asked" if name in run.index else "not in this run" for name in self.ids]
        return [[*map(_short, map(values.get, self.ids, why))] for values in map(run.values, metrics)]

    def details(self, pictures: Iterator[list[Thumbnail]]) -> Iterator[cards.Detail]:
        """Sample after sample."""
        none: Thumbnail = {"none": "no pictures in this report"}
        for name, thumbnails in zip(self.ids, pictures, strict=True):
            both = list(zip(("sample", "target"), thumbnails[:2], strict=True)) if thumbnails else []
            edits = thumbnails[2:] or [none] * len(self.runs)
            replies = [self._said(run, name, edit) for run, edit in zip(self.runs, edits, strict=True)]
            yield cards.Detail(both, said=replies)

    def _said(self, run: RunDir, name: str, picture: Thumbnail) -> cards.CardReply:
        """A row of every score: place of the metric, value, then the reason and what the judge said."""
        edit, rows = run.edit(name), []
        if edit is None:
            return cards.CardReply(picture)
        seed = edit.get("seed", "")
        parts = [edit["instruction"], f"seed {seed}" if seed != "" else ""]
        parts += [why_not(edit) if edit.get("error") else "", edit.get("note") or ""]
        for row in run.replies(name):
            cells, detail = [self.metrics.index(row["metric"]), row["value"]], row["detail"]
            if detail:
                cells += row["reason"], {key: detail[key] for key in EVIDENCE if key in detail}
            elif row["reason"]:
                cells.append(row["reason"])
            rows.append(cells)
        return cards.CardReply(picture, line=" · ".join(filter(None, parts)), rows=rows)

    def _places(self, name: str) -> list[str | dict[str, str]]:
        """Of the pictures of a sample, its target, and of every edit."""
        sample = self.samples.get(name)
        places: list[str | dict[str, str]] = [{"none": "not at hand"}] * 2
        if sample is not None:
            places = [str(sample.sample_path), str(sample.source_path)]
        for run in self.runs:
            edit = run.edit(name)
            if edit is None:
                places.append({"none": "not in this run"})
            elif edit["image"] is None:
                places.append({"none": why_not(edit)})
            else:
                places.append(str(run.image_path(edit)))
        return places


def _measure(name: str) -> cards.Measure:
    metric = METRICS[name]
    badge = (REMOVALS[name], "removed", "still there") if name in REMOVALS else None
    digits = 2 if metric.scale == 1 else 1
    return cards.Measure(name, metric.title, metric.higher_is_better, metric.scale, digits, badge)


def _short(value: float | str | None) -> float | int | str | None:
    """Five digits are enough to sort and show; whole numbers without a point."""
    if value is None or isinstance(value, str):
        return value
    number = float(f"{value:.5g}")
    return int(number) if number.is_integer() else number
