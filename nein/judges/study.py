"""The command `nein study`: pages on which people label edits blindly, and tables of their labels.

OUT/rater-<n>.html    the page of one rater
OUT/study.json        which edit every item is: not for raters
OUT/labels.csv        with --labels: rater, editor, track, sample and answers, for nein report --labels
OUT/table.md, .csv    with --labels: what they say
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from nein.benchmarks.nein import calibrations, runs, sections
from nein.benchmarks.nein.runs import RunDir
from nein.datasets import nein as loading
from nein.engine import atomic, images
from nein.judges.config import StudyConfig, read_config
from nein.loading.errors import UserError
from nein.loading.resize import r64
from nein.metrics.preprocess import stretch
from nein.reporting import cards, labels
from nein.reporting import figures as frames
from nein.reporting.page import Page, Section, headline, write

SIDE, QUALITY = 640, 90  # an image's longer side in pixels, and its JPEG's quality: artifacts are looked for
PLAN, LABELS = "study.json", "labels.csv"
HOW = (
    "One item at a time: the picture before, and what an editor made of it. Judge what you see; "
    '"cannot tell" is an answer. Labels stay in this browser until you save them as a file.'
)


@dataclass
class StudyItem:
    """An edit of a sample; or, without an editor, an item with the known answer `gold`."""

    id: str
    editor: str
    track: str
    gold: str


@dataclass
class StudyPlan:
    """`PLAN`. drawn: the options that decided the items; sheets: names of the pages; items: by their name."""

    drawn: list[int]
    sheets: list[str]
    items: dict[str, StudyItem]


def run(options: StudyConfig) -> str:
    """Writes the pages; with --labels, what the labels say. Raises UserError."""
    loaded = [results for results in runs.load([options.run]) if results.track != "add"]
    if not loaded:
        raise UserError(
            f"'{options.run}' has no complete run on the track negative or remove; run nein eval first."
        )
    out = options.out or options.run / "study"
    return _analyse(loaded, out, options.labels) if options.labels else _write(loaded, out, options)


def _write(loaded: Sequence[RunDir], out: Path, options: StudyConfig) -> str:
    dataset = loading.reload(loaded[0].about["data"], options.data, options.split)
    resolution = read_config(options.run)[1].align_resolution
    samples = {sample.id: sample for sample in dataset.samples if not sample.stays}
    entries: dict[str, labels.Item] = {}
    plan = StudyPlan([options.seed, options.items, options.shared, options.gold, options.raters], [], {})
    for item, run in [*_draw_edits(loaded, [*samples], options), *_draw_gold(loaded, [*samples], options)]:
        sample, label = samples[item.id], [run.label] if run else []
        before = images.decode(sample.sample_path)
        if run:
            after = images.decode(run.image_path(run.edits[item.id]))
        else:  # the target, without the object, or the unedited image
            after = images.decode(sample.source_path) if item.gold == "gone" else before
            if after.shape != before.shape:  # it is cropped as NeIn's samples were
                after = stretch(r64(after, resolution), (before.shape[1], before.shape[0]))
        facts = "/".join(map(str, [options.seed, item.id, item.gold, *label]))
        key = hashlib.sha256(facts.encode()).hexdigest()[:10]
        plan.items[key] = item
        views = {"before": before, "after": after}
        pictures = [(name, cards.make_thumbnail(view, SIDE, QUALITY)) for name, view in views.items()]
        entries[key] = labels.Item(key, f"To be removed: {sample.object}", pictures)
    gold = [key for key, item in plan.items.items() if item.gold]  # known truth, on every page
    edits = [key for key in entries if key not in gold]
    if not edits:
        raise UserError("No run has an edited image of these data; pass the data of the run as --data.")
    if (atomic.make_folder(out) / PLAN).exists():
        old = atomic.read_json(out / PLAN, StudyPlan)
        if (old.drawn, old.items) != (plan.drawn, plan.items):
            raise UserError(f"'{out}' has another study, whose labels would be lost; pass another --out.")
    shared, unshared = edits[: options.shared], edits[options.shared :]  # by all raters, by one
    for rater in range(options.raters):
        order = [*gold, *shared, *unshared[rater :: options.raters]]
        random.Random(f"{options.seed}/order/{rater}").shuffle(order)
        page, items = out / f"rater-{rater + 1}.html", [entries[item] for item in order]
        sheet = labels.write_page(page, "Which objects are gone?", HOW, calibrations.QUESTIONS, items)
        plan.sheets.append(sheet)
    atomic.write_json(out / PLAN, asdict(plan))
    option = f" --out {out}" if options.out else ""
    return (
        f"{len(edits)} items, {len(shared)} of them for every rater, and {len(gold)} of known truth.\n"
        f"Pages: {out}/rater-1.html to rater-{options.raters}.html. Keep {out / PLAN} from the raters.\n"
        f"Then: nein study {options.run}{option} --labels FILE.csv,FILE.csv\n"
    )


Drawn = tuple[StudyItem, RunDir | None]


def _draw_edits(loaded: Sequence[RunDir], samples: Sequence[str], options: StudyConfig) -> list[Drawn]:
    """Edits at random, as many of every run."""
    columns: list[list[Drawn]] = []
    for run in loaded:
        edits = [run.edits[name] for name in samples if name in run.edits]
        names = [edit.id for edit in edits if edit.image and not runs.label_edit(edit, run.track)["stays"]]
        names = random.Random(f"{options.seed}/{run.label}").sample(names, len(names))
        columns.append([(StudyItem(name, run.editor, run.track, ""), run) for name in names])
    drawn = [cell for row in itertools.zip_longest(*columns) for cell in row if cell is not None]
    return drawn[: options.items]


def _draw_gold(loaded: Sequence[RunDir], samples: Sequence[str], options: StudyConfig) -> list[Drawn]:
    """Items of known truth: the object is gone in every other one."""
    names = [name for name in samples if any(name in run.edits for run in loaded)]
    random.Random(f"{options.seed}/gold").shuffle(names)
    truths = itertools.cycle(("gone", "there"))
    return [(StudyItem(name, "", "", next(truths)), None) for name in names[: options.gold]]


def _analyse(loaded: Sequence[RunDir], out: Path, files: Sequence[Path]) -> str:
    if not (out / PLAN).is_file():
        raise UserError(f"'{out}' has no study; run nein study RUN, or pass its folder as --out.")
    plan = atomic.read_json(out / PLAN, StudyPlan)
    rows = labels.read(files, calibrations.QUESTIONS, plan.sheets)
    for row in rows:
        row |= {name: frames.escape_formula(row[name]) for name in ("rater", "note")}
    gold = {name: item.gold for name, item in plan.items.items() if item.gold}
    counted = [(row, plan.items[row["item"]]) for row in rows if row["item"] not in gold]
    resolved = [row | {"id": item.id, "editor": item.editor, "track": item.track} for row, item in counted]
    figures = [*labels.raters(rows, calibrations.QUESTIONS, gold), *calibrations.use_labels(loaded, resolved)]
    frame, people = frames.frame(figures, benchmark="nein"), [labels.RATERS, *sections.label_tables()]
    write(out, frame, Page("What people say", sections=[Section("people", "People", people)]), ["md", "csv"])
    text = pd.DataFrame(resolved).drop(columns=["sheet", "items"]).to_csv(index=False, lineterminator="\n")
    atomic.write_text(out / LABELS, text)
    last = f"Everything: {out}/table.md; labels for nein report --labels: {out / LABELS}"
    return headline(frame, people, last=[last])
