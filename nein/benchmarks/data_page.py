"""`nein data show DATA`: writes a page of samples and counts of a data set.

Parts: the command and its tables; the readers of NeIn, NegVQA and NegBench, each from options to cards.
"""

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
from nein.reporting.page import Page, Section, format_headline, list_files, write
from nein.reporting.tables import Column, Row, Table
from nein.wording.families import NEGATIVE_TEMPLATES

SIDE = 128  # pixels of an image's longer side
_DIFFERENT = Column("different", show=lambda figures: str(len(figures)))
_OF_EACH = Column("samples of each", show=tables.count("value"))
SUMMARY = Table("summary", "Data", (Row("what"),), (_DIFFERENT, _OF_EACH), {})
_SAMPLES = Column("samples", show=tables.value())
COUNTS = Table("counts", "Samples", (Row("what"), Row("entry", "")), (_SAMPLES,))


def show(options: DataPageConfig) -> str:
    """The command: writes the page, returns the text to print. Raises UserError for invalid data."""
    ending = Path(options.data).suffix.lower()
    benchmark = options.benchmark or {".jsonl": "negvqa", ".csv": "negbench"}.get(ending, "nein")
    read = {"nein": _read_nein, "negbench": _read_negbench, "negvqa": _read_negvqa}[benchmark]
    every = list(read(options))  # cards, whose pictures are not read yet
    # Samples by facet and entry, the commonest entries first.
    counts = Counter[tuple[str, str]]()
    for card in every:
        counts.update((name, entry) for name, entries in card.facets.items() for entry in entries)
    rows = [frames.number(len(every), what="all", entry="", unit="count")]
    for (name, entry), count in sorted(counts.items(), key=lambda item: (item[0][0], -item[1])):
        rows.append(frames.number(count, what=name, entry=entry, unit="count"))
    figures = frames.frame(rows, task="counts")
    # Cards of some samples.
    drawn = {*cards.choose_ids([card.id for card in every], options.shown)}
    chosen = [card for card in every if card.id in drawn]
    with_images = (dataclasses.replace(card, pictures=[*map(_thumbnail, card.pictures)]) for card in chosen)
    subtitle = f"{len(every):,} samples, {len(drawn):,} of them shown."
    parts = [cards.make_browser(cards.Samples([], []), lambda: with_images)]
    sections = [Section("counts", "Counts", [COUNTS])]
    page = Page(f"Data: {options.data}", subtitle, parts=parts, headline=[SUMMARY], sections=sections)
    out = options.out.with_suffix(".html")
    atomic.make_folder(out.parent)
    files = write(out, figures, page, ["html"])
    return format_headline(figures, [SUMMARY], [subtitle], list_files(out, files, 0))


def _thumbnail(image: tuple[str, Any]) -> tuple[str, cards.Thumbnail]:
    """image: its title, and its file or (media of NegBench, name there)."""
    title, source = image
    if isinstance(source, Path):
        return title, cards.read_thumbnail(source, SIDE)
    media, name = source
    try:
        return title, cards.make_thumbnail(media.frames(name)[0], SIDE)
    except images.ImageError as error:
        return title, {"none": str(error)}


# --- readers ---------------------------------------------------------------------------------
def _read_nein(options: DataPageConfig) -> Iterator[cards.Card]:
    for sample in nein.load(options.data, split=options.split or "val").samples:
        template = "other" if sample.template is None else NEGATIVE_TEMPLATES[sample.template]
        instruction = (sample.family or template).replace("{S}", "X")
        facets = {"Object": [sample.object], "Instruction": [instruction]}
        aside = f"source image {sample.source_id} · object: {sample.object} · caption: {sample.caption}"
        pictures: Any = [("sample", sample.sample_path), ("target", sample.source_path)]
        yield cards.Card(sample.id, sample.negative, aside, facets=facets, pictures=pictures)


def _read_negvqa(options: DataPageConfig) -> Iterator[cards.Card]:
    for item in negvqa.load(options.data, split=options.split or "test", image_folder=options.images).items:
        questions = item.questions.items()
        lines = [f"{name.capitalize()}: {text} ({item.answers[name]})" for name, text in questions]
        letters = zip(LETTERS, item.options, strict=False)
        lines.append(" · ".join(f"{letter}: {text}" for letter, text in letters))
        facets = {"Subset": [item.subset], "Category": [item.category]}
        shown: Any = {"pictures": [("", item.image)], "lines": lines}
        yield cards.Card(item.id, item.questions["original"], item.subset, facets=facets, **shown)


def _read_negbench(options: DataPageConfig) -> Iterator[cards.Card]:
    records = []
    for data in loading.load(options.data, image_roots=[options.images] if options.images else []):
        records += [(data, task, record) for task in data.tasks for record in task.records]
    for data, task, record in records:
        title, lines = record.texts[0], [*record.texts[1:]]
        if isinstance(record, Question):
            right = record.options[record.correct]
            kind, title = record.type or "", record.asked or right.text
            lines = [f"{option.label}{' (right)' if option is right else ''}" for option in record.options]
        else:
            kind = record.kind
        facets = {"Task": [f"{data.title}, {task.key}"], "Kind": [kind] if kind else []}
        pictures: Any = [("", (task.media, name)) for name in dict.fromkeys(record.images)]
        key = f"{task.name}/{task.variant}/{kind}/{record.id}"
        yield cards.Card(key, title, kind, facets=facets, pictures=pictures, lines=lines)
