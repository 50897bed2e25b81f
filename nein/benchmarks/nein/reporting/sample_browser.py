"""The samples of a report: the picture that every run made of each, with verdicts, answers and scores."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nein.benchmarks.nein.runs import REMOVALS, TEMPLATES, RunDir
from nein.datasets import nein as loading
from nein.datasets.nein import Sample
from nein.engine import images
from nein.engine.errors import UserError
from nein.metrics import METRICS
from nein.reporting import cards, page
from nein.reporting.cards import Thumbnail

#: Longest side of a source image in pixels -> the class that samples are filtered by.
SIZES = {256: "up to 256 px", 512: "257 to 512 px", math.inf: "above 512 px"}
COLUMNS = ("metric", "value", "reason", "evidence")
#: What a page shows of what a judge said; evidence.js makes words of it.
EVIDENCE = ("answer", "p_yes", "p_no", "score", "threshold", "before", "after", "question")


@dataclass(frozen=True)
class Browser:
    """The samples of a report. samples: id -> record with its pictures, where the data are at hand."""

    runs: Sequence[RunDir]
    ids: list[str]
    samples: Mapping[str, Sample]
    note: str

    @classmethod
    def of(cls, loaded: Sequence[RunDir], source: str | None = None, split: str = "val") -> Browser:
        """The samples of the runs; without the data set, pictures of samples and targets are missing."""
        ids = list(dict.fromkeys(name for run in loaded for name in run.edits))
        note = ""
        try:
            dataset = loading.reload(loaded[0].about["data"], source, split)
            samples = {sample.id: sample for sample in dataset.samples}
        except (UserError, KeyError) as error:
            if source:
                raise
            samples, note = {}, f"Pictures of samples and targets are missing: {error} Give --data."
        return cls(loaded, ids, samples, note)

    def pictures(self, side: int) -> Iterator[list[Thumbnail]]:
        """Of every sample, its target and all edits (`cards.of_samples`). side: of the longer side."""
        return cards.of_samples(map(self._places, self.ids), side)

    def part(self, out: Path, pictures: Iterator[list[Thumbnail]], budget: int) -> page.Part:
        """What the page at `out` shows of the samples. budget: bytes of chunks that may be in the page."""
        track = self.told[0].track
        layout = cards.Samples(
            [cards.Member(run.label, (run.name, run.track), run.track == track) for run in self.runs],
            [_measure(name) for name in self.metrics],
            chosen="removal_vqa" if "removal_vqa" in self.metrics else "",
            rivals=("removal_vqa", "removal_ovd", "Judges disagree"),
            spread="Editors disagree",
            words=("samples", "Run", "Metric"),
            columns=COLUMNS,
        )
        shown, scripts = functools.partial(self.shown, pictures), [Path(__file__).with_name("evidence.js")]
        return cards.browser(layout, shown, note=self.note, out=out, budget=budget, scripts=scripts)

    @functools.cached_property
    def metrics(self) -> list[str]:
        """Those that any run was scored with."""
        return [name for name in METRICS if any(name in run.metrics for run in self.runs)]

    @functools.cached_property
    def told(self) -> list[RunDir]:
        """The runs, those with negative instructions first: a sample is told as in the first that has it."""
        return sorted(self.runs, key=lambda run: run.track != "negative")

    def shown(self, pictures: Iterator[list[Thumbnail]]) -> Iterator[cards.Card]:
        """Sample after sample."""
        none: Thumbnail = {"none": "no pictures in this report"}
        values = [[run.values(metric) for metric in self.metrics] for run in self.runs]
        for name, thumbnails in zip(self.ids, pictures, strict=True):
            edits = thumbnails[2:] or [none] * len(self.runs)
            first, told = (
                next(edit for run in runs if (edit := run.edits.get(name)) is not None)
                for runs in (self.runs, self.told)
            )
            sample, template = self.samples.get(name), told.template
            caption = f" · caption: {sample.caption}" if sample else ""
            facets = {
                "Object": first.object,
                "Family": first.family,
                "Instruction": None if template is None else TEMPLATES[template],
                "Source size": _size_class(sample) if sample else None,
            }
            why = ["no removal asked" if name in run.edits else "not in this run" for run in self.runs]
            yield cards.Card(
                name,
                told.instruction,
                f"source image {first.source_id} · object: {first.object}{caption}",
                {key: [entry] for key, entry in facets.items() if entry},
                [
                    [_short(of_metric.get(name, words)) for of_metric in of_run]
                    for of_run, words in zip(values, why, strict=True)
                ],
                [*zip(("sample", "target"), thumbnails[:2], strict=False)],
                said=[self._said(run, name, edit) for run, edit in zip(self.runs, edits, strict=True)],
            )

    def _said(self, run: RunDir, name: str, picture: Thumbnail) -> cards.CardReply:
        """A row of every score: place of the metric, value, then the reason and what the judge said."""
        edit, rows = run.edits.get(name), list[list[Any]]()
        if edit is None:
            return cards.CardReply(picture)
        seed = "" if edit.seed is None else f"seed {edit.seed}"
        parts = [edit.instruction, seed, edit.why_not if edit.error else "", edit.note]
        for row in run.replies(name):
            detail = row.detail
            cells: list[Any] = [self.metrics.index(row.metric), row.value]
            if detail:
                cells += row.reason, {key: detail[key] for key in EVIDENCE if key in detail}
            elif row.reason:
                cells.append(row.reason)
            rows.append(cells)
        return cards.CardReply(picture, line=" · ".join(filter(None, parts)), rows=rows)

    def _places(self, name: str) -> list[str | dict[str, str]]:
        """Of the pictures of a sample, its target, and of every edit."""
        sample = self.samples.get(name)
        places: list[str | dict[str, str]] = [{"none": "not at hand"}] * 2
        if sample is not None:
            places = [str(sample.sample_path), str(sample.source_path)]
        for run in self.runs:
            edit = run.edits.get(name)
            if edit is None or edit.image is None:
                places.append({"none": edit.why_not if edit else "not in this run"})
            else:
                places.append(str(run.image_path(edit)))
        return places


def _size_class(sample: Sample) -> str | None:
    with contextlib.suppress(images.ImageError):
        side = max(images.probe(sample.source_path))
        return next(name for limit, name in SIZES.items() if side <= limit)
    return None


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
