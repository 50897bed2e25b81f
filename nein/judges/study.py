"""`nein study`: makes pages on which people label edits blindly, and tables of their labels.

OUT/rater-<n>.html    the page of one rater
OUT/study.json        which edit every item is: not for raters
OUT/labels.csv        with --labels: rater, editor, track, sample and answers, for nein report --labels
OUT/table.md, .csv    with --labels: agreement of raters, and judges against the labels
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
from nein.datasets.nein import reload
from nein.engine import atomic, images
from nein.judges.config import StudyConfig, read_config
from nein.loading.errors import UserError
from nein.loading.resize import r64
from nein.metrics.preprocess import stretch
from nein.reporting import cards, labels
from nein.reporting import figures as frames
from nein.reporting.page import Page, Section, format_headline, write

SIDE, QUALITY = 640, 90  # longer side in pixels and JPEG quality: high, since raters look for artifacts
PLAN, LABELS = "study.json", "labels.csv"
GUIDE = (
    "One item at a time: the picture before, and what an editor made of it. Judge what you see; "
    '"cannot tell" is an answer. Labels stay in this browser until you save them as a file.'
)


@dataclass
class StudyItem:
    """An edit of a sample, or an item of known truth."""

    id: str  # of the sample
    editor: str  # "": of known truth
    track: str
    gold: str  # the known truth, "gone" or "there"; "": an edit


@dataclass
class StudyPlan:
    """The content of study.json."""

    drawn: list[int]  # the options that decide the items: seed, items, shared, gold, raters
    sheets: list[str]  # names of the pages, which labels repeat
    items: dict[str, StudyItem]  # by their key on the pages


def run(options: StudyConfig) -> str:
    """Writes the pages, or with --labels the tables; returns the text to print. Raises UserError."""
    loaded = [results for results in runs.load_complete([options.run]) if results.track != "add"]
    if not loaded:
        raise UserError(f"'{options.run}' has no complete run on track negative or remove; run nein eval.")
    out = options.out or options.run / "study"
    if options.labels:
        return _write_tables(loaded, out, options.labels)
    return _write_pages(loaded, out, options)


def _write_pages(loaded: Sequence[RunDir], out: Path, options: StudyConfig) -> str:
    dataset = reload(loaded[0].about["data"], options.data, options.split)
    resolution = read_config(options.run)[1].align_resolution
    samples = {sample.id: sample for sample in dataset.samples if not sample.stays}
    entries: dict[str, labels.Item] = {}  # key -> item as a page shows it
    plan = StudyPlan([options.seed, options.items, options.shared, options.gold, options.raters], [], {})
    for item, run in [*_draw_edits(loaded, [*samples], options), *_draw_gold(loaded, [*samples], options)]:
        sample = samples[item.id]
        before = images.decode(sample.sample_path)
        if run:
            after = images.decode(run.image_path(run.edits[item.id]))
        else:  # the target, without the object, or the unedited image
            after = images.decode(sample.source_path) if item.gold == "gone" else before
            if after.shape != before.shape:  # crop the target as NeIn's samples were cropped
                after = stretch(r64(after, resolution), (before.shape[1], before.shape[0]))
        facts = [str(options.seed), item.id, item.gold, *([run.label] if run else [])]
        key = hashlib.sha256("/".join(facts).encode()).hexdigest()[:10]  # tells a rater nothing
        plan.items[key] = item
        views = [("before", before), ("after", after)]
        thumbnails = [(name, cards.make_thumbnail(view, SIDE, QUALITY)) for name, view in views]
        entries[key] = labels.Item(key, f"To be removed: {sample.object}", thumbnails)
    # Refuse a run without edits, and a folder with another study.
    gold = [key for key, item in plan.items.items() if item.gold]  # known truth, on every page
    edits = [key for key in entries if key not in gold]
    if not edits:
        raise UserError("No run has an edited image of these data; pass the data of the run as --data.")
    if (atomic.make_folder(out) / PLAN).exists():
        old = atomic.read_json(out / PLAN, StudyPlan)
        if (old.drawn, old.items) != (plan.drawn, plan.items):
            raise UserError(f"'{out}' has another study, whose labels would be lost; pass another --out.")
    shared, unshared = edits[: options.shared], edits[options.shared :]  # labeled by every rater; by one
    # Pages, in another order for every rater.
    for rater in range(options.raters):
        order = [*gold, *shared, *unshared[rater :: options.raters]]
        random.Random(f"{options.seed}/order/{rater}").shuffle(order)
        page = out / f"rater-{rater + 1}.html"
        items = [entries[key] for key in order]
        title = "Which objects are gone?"
        plan.sheets.append(labels.write_page(page, title, GUIDE, calibrations.QUESTIONS, items))
    atomic.write_json(out / PLAN, asdict(plan))
    option = f" --out {out}" if options.out else ""
    return (
        f"{len(edits)} items, {len(shared)} of them for every rater, and {len(gold)} of known truth.\n"
        f"Pages: {out}/rater-1.html to rater-{options.raters}.html. Do not show {out / PLAN} to the raters.\n"
        f"Then: nein study {options.run}{option} --labels FILE.csv,FILE.csv\n"
    )


Drawn = tuple[StudyItem, RunDir | None]  # an edit and its run; None: of known truth


def _draw_edits(loaded: Sequence[RunDir], samples: Sequence[str], options: StudyConfig) -> list[Drawn]:
    """Random edits, in turn of every run."""
    by_run: list[list[Drawn]] = []
    for run in loaded:
        edits = [run.edits[name] for name in samples if name in run.edits]
        names = [edit.id for edit in edits if edit.image and not runs.label_edit(edit, run.track)["stays"]]
        names = random.Random(f"{options.seed}/{run.label}").sample(names, len(names))
        by_run.append([(StudyItem(name, run.editor, run.track, ""), run) for name in names])
    turns = itertools.chain(*itertools.zip_longest(*by_run))  # None after the end of a shorter list
    return [item for item in turns if item is not None][: options.items]


def _draw_gold(loaded: Sequence[RunDir], samples: Sequence[str], options: StudyConfig) -> list[Drawn]:
    """Items of known truth, "gone" and "there" in turn."""
    names = [name for name in samples if any(name in run.edits for run in loaded)]
    random.Random(f"{options.seed}/gold").shuffle(names)
    chosen = enumerate(names[: options.gold])
    return [(StudyItem(name, "", "", "there" if index % 2 else "gone"), None) for index, name in chosen]


def _write_tables(loaded: Sequence[RunDir], out: Path, files: Sequence[Path]) -> str:
    if not (out / PLAN).is_file():
        raise UserError(f"'{out}' has no study; run nein study RUN, or pass the study's folder as --out.")
    plan = atomic.read_json(out / PLAN, StudyPlan)
    rows = labels.read_answers(files, calibrations.QUESTIONS, plan.sheets)
    for row in rows:  # free text, which a spreadsheet could run as a formula
        row |= {name: frames.escape_formula(row[name]) for name in ("rater", "note")}
    gold = {name: item.gold for name, item in plan.items.items() if item.gold}
    edit_labels = []
    for row in rows:
        if row["item"] not in gold:
            item = plan.items[row["item"]]
            edit_labels.append(row | {"id": item.id, "editor": item.editor, "track": item.track})
    described = labels.describe_raters(rows, calibrations.QUESTIONS, gold)
    frame = frames.frame([*described, *calibrations.use_labels(loaded, edit_labels)], benchmark="nein")
    people = [labels.RATERS, *sections.make_label_tables()]
    write(out, frame, Page("What people say", sections=[Section("people", "People", people)]), ["md", "csv"])
    text = pd.DataFrame(edit_labels).drop(columns=["sheet", "items"]).to_csv(index=False, lineterminator="\n")
    atomic.write_text(out / LABELS, text)
    last = f"All tables: {out}/table.md. Labels for nein report --labels: {out / LABELS}"
    return format_headline(frame, people, last=[last])
