"""The command `nein study`: pages on which people label edits without knowing the editor or the instruction,
and what their labels say of editors and judges.

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

import numpy as np
import pandas as pd

from nein.benchmarks.nein import runs
from nein.benchmarks.nein.reporting import people, sections
from nein.benchmarks.nein.runs import RunDir
from nein.datasets import nein as loading
from nein.datasets.nein import Sample
from nein.engine import atomic, images
from nein.engine.errors import UserError
from nein.judges.config import StudyConfig, read_config
from nein.loading.resize import r64
from nein.metrics.preprocess import stretch
from nein.reporting import cards, labels, report
from nein.reporting import figures as frames
from nein.reporting.labels import Item, Labelled
from nein.reporting.page import Page, Section

SIDE, QUALITY = 640, 90  # a picture's longer side in pixels, and its JPEG's quality: artefacts are looked for
PLAN, LABELS = "study.json", "labels.csv"
HOW = (
    "One item at a time: the picture before, and what an editor made of it. Judge what you see; "
    '"cannot tell" is an answer. Labels stay in this browser until you save them as a file.'
)


@dataclass
class Shown:
    """An item: its sample, (editor, track) of each side, and the right answer where it is known."""

    id: str
    runs: list[tuple[str, str]]
    gold: str

    @property
    def labelled(self) -> Labelled:
        """For a row of labels."""
        sides = ("",) if len(self.runs) == 1 else ("left_", "right_")
        where = {"id": self.id}
        for side, (editor, track) in zip(sides, self.runs, strict=True):
            where |= {f"{side}editor": editor, f"{side}track": track}
        return where


@dataclass
class StudyPlan:
    """`PLAN`. drawn: the options that decided the items; sheets: names of the pages; items: by their name."""

    pairs: bool
    drawn: list[int]
    sheets: list[str]
    items: dict[str, Shown]


def run(options: StudyConfig) -> str:
    """Writes the pages; with --labels, what the labels say. Raises UserError."""
    loaded = [results for results in runs.load([options.run]) if results.track != "add"]
    if not loaded:
        raise UserError(f"'{options.run}' has no complete run in which an object is to be removed.")
    out = options.out or options.run / "study"
    if options.labels:
        return _analyse(loaded, out, options.labels)
    try:
        return _write(loaded, out, options)
    except images.ImageError as error:
        raise UserError(f"A picture cannot be read: {error}") from None


def _write(loaded: Sequence[RunDir], out: Path, options: StudyConfig) -> str:
    questions = [people.BETTER] if options.pairs else people.QUESTIONS
    dataset = loading.reload(loaded[0].about["data"], options.data, options.split)
    _, config = read_config(options.run)
    truth = {sample.id: sample for sample in dataset.samples if not sample.stays}
    names = [name for name in truth if any(name in run.edits for run in loaded)]
    random.Random(f"{options.seed}/gold").shuffle(names)
    answers = ("left", "right") if options.pairs else ("gone", "there")
    known = [(name, list[RunDir](), answers[n % 2]) for n, name in enumerate(names[: options.gold])]
    drawn = [(name, sides, "") for name, sides in _drawn(loaded, [*truth], options)]
    if not drawn:
        raise UserError("There is nothing to show: no run has a picture of a sample of these data.")
    numbers = [options.seed, options.items, options.shared, options.gold, options.raters]
    plan = StudyPlan(options.pairs, numbers, [], {})
    entries: dict[str, Item] = {}
    for name, sides, right in (*drawn, *known):
        facts = [options.seed, name, right, *(one.label for one in sides)]
        key = hashlib.sha256("/".join(map(str, facts)).encode()).hexdigest()[:10]
        plan.items[key] = Shown(name, [(one.editor, one.track) for one in sides], right)
        if right:
            views = _known(truth[name], right, config.align_resolution)
        else:
            views = [images.decode(side.image_path(side.edits[name])) for side in sides]
        views = [images.decode(truth[name].sample_path), *views]
        titles = ("before", "left", "right") if options.pairs else ("before", "after")
        pictures = [cards.of_picture(view, SIDE, QUALITY) for view in views]
        title = f"To be removed: {truth[name].object}"
        entries[key] = Item(key, title, list(zip(titles, pictures, strict=True)))
    edits, gold = [*entries][: len(drawn)], [*entries][len(drawn) :]
    atomic.make_folder(out)
    if (out / PLAN).exists():
        old = atomic.read_json(out / PLAN, StudyPlan)
        plan.sheets = old.sheets  # pages that another version wrote, with labels on their way
        if old != plan:
            raise UserError(f"'{out}' holds another study, whose labels would be lost; give another --out.")
    shared, rest = edits[: options.shared], edits[options.shared :]
    for rater in range(options.raters):
        order = [*gold, *shared, *rest[rater :: options.raters]]
        random.Random(f"{options.seed}/order/{rater}").shuffle(order)
        page, items = out / f"rater-{rater + 1}.html", [entries[item] for item in order]
        sheet = labels.write_page(page, "Which objects are gone?", HOW, questions, items)
        plan.sheets = [*dict.fromkeys([*plan.sheets, sheet])]
    atomic.write_json(out / PLAN, asdict(plan))
    option = f" --out {out}" if options.out else ""
    return (
        f"{len(edits)} items, {len(shared)} of them for every rater, and {len(gold)} of known truth.\n"
        f"Pages: {out}/rater-1.html to rater-{options.raters}.html. Keep {out / PLAN} from the raters.\n"
        f"Then: nein study {options.run}{option} --labels FILE.csv,FILE.csv\n"
    )


def _known(sample: Sample, answer: str, resolution: int) -> list[np.ndarray]:
    """What stands beside the sample where `answer` is right: the target, without the object, or the unedited
    image, or both. A target of another size is cropped as NeIn's samples were, at `resolution`."""
    wrong, right = images.decode(sample.sample_path), images.decode(sample.source_path)
    if right.shape != wrong.shape:
        right = stretch(r64(right, resolution), (wrong.shape[1], wrong.shape[0]))
    return {"gone": [right], "there": [wrong], "left": [right, wrong], "right": [wrong, right]}[answer]


def _drawn(
    loaded: Sequence[RunDir], samples: Sequence[str], options: StudyConfig
) -> list[tuple[str, list[RunDir]]]:
    """(sample, its run or two runs in the order of their sides), at random, as many of every run or pair."""
    groups = [[run] for run in loaded]
    if options.pairs:
        groups = [list(pair) for pair in itertools.combinations(loaded, 2)]
        if not groups:
            raise UserError("--pairs needs two runs, and one is there.")
    columns = []
    for group in groups:
        rng = random.Random(f"{options.seed}/{' '.join(run.label for run in group)}")
        common = [name for name in samples if all(_is_asked(run, name) for run in group)]
        columns.append([(name, rng.sample(group, len(group))) for name in rng.sample(common, len(common))])
    flat = (cell for row in itertools.zip_longest(*columns) for cell in row if cell is not None)
    return [*itertools.islice(flat, options.items)]


def _is_asked(run: RunDir, sample: str) -> bool:
    edit = run.edits.get(sample)
    return bool(edit and edit.image and not runs.of_edit(edit, run.track)["stays"])


def _analyse(loaded: Sequence[RunDir], out: Path, files: Sequence[Path]) -> str:
    if not (out / PLAN).is_file():
        raise UserError(f"'{out}' holds no study; make one with nein study RUN, or name its folder by --out.")
    plan = atomic.read_json(out / PLAN, StudyPlan)
    questions = [people.BETTER] if plan.pairs else people.QUESTIONS
    rows = labels.read(files, questions, plan.sheets)
    for row in rows:
        row |= {name: frames.harmless(row[name]) for name in ("rater", "note")}
    gold = {item: shown.gold for item, shown in plan.items.items() if shown.gold}
    counted = [row for row in rows if row["item"] not in gold]
    resolved = [row | plan.items[row["item"]].labelled for row in counted]
    figures = [*labels.raters(rows, questions, gold)]
    if plan.pairs:
        figures += people.preferred(loaded, resolved)
        figures += labels.agreement(resolved, questions, {row["item"]: row["id"] for row in resolved})
    else:
        figures += people.labelled(loaded, resolved)
    frame = frames.frame(figures, benchmark="nein")
    tables = [people.PREFERRED, labels.AGREEMENT] if plan.pairs else sections.PEOPLE
    page = Page("What people say", sections=[Section("people", "People", [*tables, labels.RATERS])])
    report.write(out, frame, page, ["md", "csv"])
    text = pd.DataFrame(resolved).drop(columns=["sheet", "items"]).to_csv(index=False, lineterminator="\n")
    atomic.write_text(out / LABELS, text)
    last = f"Everything: {out}/table.md; labels for nein report --labels: {out / LABELS}"
    return report.headline(frame, [labels.RATERS, *tables], last=[last])
