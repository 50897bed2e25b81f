"""`nein data show DATA`: a page of samples, instructions and counts of a data set."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nein.benchmarks.config import DataPageConfig
from nein.datasets import negvqa, nein
from nein.datasets.negbench import loading
from nein.datasets.negbench.records import Question
from nein.engine import atomic, images
from nein.metrics.letters import LETTERS
from nein.reporting import cards, tables
from nein.reporting import figures as frames
from nein.reporting.cards import Card
from nein.reporting.page import Page, Section, headline, places, write
from nein.reporting.tables import Column, Row, Table
from nein.wording.families import NEGATIVE_TEMPLATES

SIDE = 128  # pixels of an image's longer side
_DIFFERENT = Column("different", show=lambda figures: str(len(figures)))
_OF_EACH = Column("samples of each", show=tables.count("value"))
SUMMARY = Table("summary", "Data", (Row("what"),), (_DIFFERENT, _OF_EACH), {})
COUNTS = Table(
    "counts", "Samples", (Row("what"), Row("entry", "")), (Column("samples", show=tables.value()),)
)


def show(options: DataPageConfig) -> str:
    """The command: writes the page, returns the text to print. Raises UserError for invalid data."""
    by_ending = {".jsonl": _negvqa, ".csv": _negbench}.get(Path(options.data).suffix.lower(), _nein)
    read = {"nein": _nein, "negbench": _negbench, "negvqa": _negvqa}.get(options.benchmark or "", by_ending)
    every = [*read(options)]
    facets = ((name, entries) for card in every for name, entries in card.facets.items())
    counts = Counter((name, entry) for name, entries in facets for entry in entries)
    rows = [("all", "", len(every))]
    rows += [(*key, count) for key, count in sorted(counts.items(), key=lambda row: (row[0][0], -row[1]))]
    numbers = (frames.number(n, what=name, entry=entry, unit="count") for name, entry, n in rows)
    figures = frames.frame(numbers, task="counts")
    drawn = {*cards.choose_ids([card.id for card in every], options.shown)}
    visible = (card for card in every if card.id in drawn)
    cards_shown = (dataclasses.replace(card, pictures=[*map(_thumbnail, card.pictures)]) for card in visible)
    subtitle = f"{len(every):,} samples, {len(drawn):,} of them shown."
    parts, sections = (
        [cards.browser(cards.Samples([], []), lambda: cards_shown)],
        [Section("counts", "Counts", [COUNTS])],
    )
    page = Page(f"Data: {options.data}", subtitle, parts=parts, headline=[SUMMARY], sections=sections)
    out = options.out.with_suffix(".html")
    atomic.make_folder(out.parent)
    return headline(figures, [SUMMARY], [subtitle], places(out, write(out, figures, page, ["html"]), 0))


def _thumbnail(named: tuple[str, Any]) -> tuple[str, cards.Thumbnail]:
    """named: of a picture its title, and its file or NegBench's media with the name there."""
    title, place = named
    if isinstance(place, Path):
        return title, cards.read_thumbnail(place, SIDE)
    media, name = place
    try:
        return title, cards.make_thumbnail(media.frames(name)[0], SIDE)
    except images.ImageError as error:
        return title, {"none": str(error)}


def _nein(options: DataPageConfig) -> Iterator[Card]:
    for sample in nein.load(options.data, split=options.split or "val").samples:
        form = sample.family or ("other" if sample.template is None else NEGATIVE_TEMPLATES[sample.template])
        facets = {"Object": [sample.object], "Instruction": [form.replace("{S}", "X")]}
        aside = f"source image {sample.source_id} · object: {sample.object} · caption: {sample.caption}"
        pictures: Any = [("sample", sample.sample_path), ("target", sample.source_path)]
        yield Card(sample.id, sample.negative, aside, facets, pictures=pictures)


def _negvqa(options: DataPageConfig) -> Iterator[Card]:
    for item in negvqa.load(options.data, split=options.split or "test", pictures=options.images).items:
        lines = [
            f"{name.capitalize()}: {text} ({item.answers[name]})" for name, text in item.questions.items()
        ]
        lines.append(" · ".join(f"{a}: {text}" for a, text in zip(LETTERS, item.options, strict=False)))
        facets, pictures = {"Subset": [item.subset], "Category": [item.category]}, [("", item.picture)]
        yield Card(item.id, item.questions["original"], item.subset, facets, (), pictures, lines)  # type: ignore[arg-type]


def _negbench(options: DataPageConfig) -> Iterator[Card]:
    roots = [options.images] if options.images else []
    tasks = [(data, task) for data in loading.load(options.data, image_roots=roots) for task in data.tasks]
    records = [(data, task, record) for data, task in tasks for record in task.records]
    for data, task, record in records:
        title, lines = record.texts[0], [*record.texts[1:]]
        if isinstance(record, Question):
            right = record.options[record.correct]
            kind, title = record.type or "", record.asked or right.text
            lines = [f"{option.shown}{' (right)' if option is right else ''}" for option in record.options]
        else:
            kind = record.kind
        facets = {"Task": [f"{data.title}, {task.key}"], "Kind": [kind] if kind else []}
        pictures: Any = [("", (task.media, name)) for name in dict.fromkeys(record.images)]
        yield Card(f"{task.name}/{task.variant}/{kind}/{record.id}", title, kind, facets, (), pictures, lines)
