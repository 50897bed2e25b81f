"""The command `nein calibrate`: error rates of judges on images of known truth.

sources    the source images of NeIn: the object of every sample is absent, the caption's objects are there
instances  images with COCO instance annotations: annotated categories are there, others are not
pasted     source images with an annotated object of another image pasted in; the image itself before that

OUT/calibration/<kind>-<fingerprint>.json    the judge, how it was asked, its error rates
OUT/calibration/<kind>-<fingerprint>.jsonl   one line per question: truth, answer, verdicts, soft score
OUT/calibration/answers.sqlite               finished cases
"""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from nein.benchmarks.nein import calibrations, stages
from nein.benchmarks.nein.calibrations import Calibration
from nein.benchmarks.nein.runs import RunDir
from nein.datasets import coco
from nein.datasets import nein as loading
from nein.datasets.nein import Dataset
from nein.engine import atomic, images, machine
from nein.engine.answers import AnswerCache
from nein.engine.folder import ANSWERS, Row
from nein.engine.machine import Processes
from nein.engine.run import Bar
from nein.judges.config import SETS, CalibrateConfig, read_config
from nein.loading.errors import UserError
from nein.metrics.presence import caption_objects
from nein.models import judges
from nein.models.cached import Services
from nein.models.judges import CAPTION, OBJECT, JudgeOptions, Word
from nein.reporting import figures as frames
from nein.reporting import tables

log = logging.getLogger(__name__)
#: Share of its image that an object must cover to be cut out: visible, yet not everything.
PASTED_AREA = (0.01, 0.3)
DONORS_TRIED = 40  # objects looked at for an image before it goes without
CONTROLLED = 64  # images that every control is about


# --- images of known truth -------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One image with the words to ask about.

    id       Unique within its set.        cluster  Source image, or source images that share one.
    decode   Decodes (or makes) the image, (H, W, 3) uint8 RGB; raises ImageError.
    control  A key of `nein.benchmarks.calibrations.CONTROLS`; "": none.
    """

    set: str
    id: str
    cluster: str
    decode: Callable[[], np.ndarray]
    words: tuple[Word, ...]
    control: str = ""

    @property
    def present(self) -> tuple[Word, ...]:
        return tuple(word for word in self.words if word.present)


def sources(dataset: Dataset) -> list[Case]:
    """Every source image with its samples' objects (absent) and the nouns of its captions (present)."""
    nouns = caption_objects([sample.caption for sample in dataset.samples], protocol="fixed")
    absent: dict[str, dict[str, None]] = {}  # source -> objects of its samples, in order
    named: dict[str, dict[str, None]] = {}
    paths: dict[str, Path] = {}
    for sample, of_caption in zip(dataset.samples, nouns, strict=True):
        absent.setdefault(sample.source_id, {})[sample.object] = None
        named.setdefault(sample.source_id, {}).update(dict.fromkeys(of_caption))
        paths.setdefault(sample.source_id, sample.source_path)
    cases = []
    for name, path in paths.items():
        words = [Word(noun, False, OBJECT) for noun in absent[name]]
        words += [Word(noun, True, CAPTION) for noun in named[name] if noun not in absent[name]]
        cases.append(Case("sources", name, name, partial(images.decode, path), tuple(words)))
    return cases


def instances(annotations: coco.Annotations, seed: int) -> list[Case]:
    """Every image with its annotated categories (present) and as many others, drawn by seed (absent)."""
    cases = []
    for image in annotations.images:
        rng, present = random.Random(f"{seed}/instances/{image.stem}"), sorted(image.categories)
        others = sorted({*annotations.categories} - image.categories)  # absent
        absent = rng.sample(others, min(len(others), max(1, len(present))))
        words = tuple(Word(name, name in present, OBJECT) for name in (*present, *absent))
        decode = partial(images.decode, image.path)
        cases.append(Case("instances", image.stem, cluster_of(image.stem), decode, words))
    return cases


def paste_cases(annotations: coco.Annotations, seed: int) -> list[Case]:
    """Every image with a pasted object of another image (present), and as it is (absent). The object is large
    enough, and of a category that the image lacks."""
    every = [(donor, thing) for donor in annotations.images for thing in donor.objects if not thing.crowd]
    cases = []
    for image in annotations.images:
        rng = random.Random(f"{seed}/pasted/{image.stem}")
        for donor, thing in rng.sample(every, min(len(every), DONORS_TRIED)):
            if thing.box is None or thing.category in image.categories or donor.stem == image.stem:
                continue
            width, height = images.read_size(donor.path)
            area = thing.box[2] * thing.box[3] / (width * height)  # fraction of the image
            if not PASTED_AREA[0] <= area <= PASTED_AREA[1] or min(thing.box[2:]) < 4:
                continue
            place, before = (rng.random(), rng.random()), partial(images.decode, image.path)
            after = partial(paste, before, partial(images.decode, donor.path), thing, place)
            for sign, decode in (("+", after), ("-", before)):
                words = (Word(thing.category, sign == "+", OBJECT),)
                name = f"{image.stem}{sign}{thing.category}"
                cases.append(Case("pasted", name, cluster_of(image.stem), decode, words))
            break
    return cases


def paste(
    read: Callable[[], np.ndarray],
    read_donor: Callable[[], np.ndarray],
    thing: coco.Instance,
    place: tuple[float, float],
) -> np.ndarray:
    """Pastes the donor's pixels inside the thing's box and polygons into an image, (H, W, 3) uint8, at their
    size or at half of the image. place: left and upper end, as fractions of the free room."""
    canvas, donor = Image.fromarray(read()), Image.fromarray(read_donor())
    x, y, width, height = thing.box or (0, 0, *donor.size)
    corners = max(0, int(x)), max(0, int(y)), int(np.ceil(x + width)), int(np.ceil(y + height))
    corners = (*corners[:2], min(donor.width, corners[2]), min(donor.height, corners[3]))
    part, mask = donor.crop(corners), Image.new("L", donor.size, 0 if thing.polygons else 255)  # 255: pasted
    for polygon in thing.polygons:
        ImageDraw.Draw(mask).polygon([float(value) for value in polygon], fill=255)
    factor = min(1.0, canvas.width / 2 / part.width, canvas.height / 2 / part.height)  # never enlarged
    size = (max(1, round(part.width * factor)), max(1, round(part.height * factor)))
    corner = round(place[0] * (canvas.width - size[0])), round(place[1] * (canvas.height - size[1]))
    canvas.paste(part.resize(size), corner, mask.crop(corners).resize(size))
    return np.array(canvas)


def cluster_of(name: str) -> str:
    """NeIn samples of one source image share its number; other images stand for themselves."""
    return f"COCO_{name.split('_')[1]}" if name.startswith("NeIn_") else name


def thin_cases(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """At most `limit` cases, evenly spread, so that a small part still covers the whole set."""
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]


def controls(cases: Sequence[Case], kind: str) -> list[Case]:
    """Does a judge look and read? Changed images with the same questions, and changed questions about the
    same images: of the set "instances" if there is one."""
    usable = [case for case in cases if case.present]
    chosen = thin_cases([case for case in usable if case.set == "instances"] or usable, CONTROLLED)
    changed = []
    for index, case in enumerate(chosen):
        black, mirrored = (partial(_change, case.decode, change) for change in (np.zeros_like, np.fliplr))
        gone = tuple(replace(word, present=False) for word in case.present)  # in a black or another image
        changed.append(replace(case, control="black", decode=black, words=gone))
        changed.append(replace(case, control="mirrored", decode=mirrored))
        names = {word.word for word in case.present}
        for other in (*chosen[index + 1 :], *chosen[:index]):  # the next image with none of these objects
            if other.cluster != case.cluster and names.isdisjoint(word.word for word in other.present):
                theirs = tuple(replace(word, present=False) for word in other.present)
                changed.append(replace(case, control="picture", decode=other.decode, words=gone))
                changed.append(replace(case, control="question", words=theirs))
                break
        if kind == "vqa":  # a detector is not asked in a sentence
            for wording, questions in (("negated", case.present), ("reversed", case.words)):
                words = tuple(replace(word, wording=wording) for word in questions)
                changed.append(replace(case, control=wording, words=words))
    return changed


def _change(decode: Callable[[], np.ndarray], change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(change(decode()))


# --- asking ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asking:
    """A judge, how it is asked, and where its answers are kept."""

    kind: str
    judge: Any
    how: JudgeOptions
    folder: Path
    batch_size: int = 16
    threads: int | None = None

    def rows(self, cases: Sequence[Case]) -> list[Row]:
        """A row per case and word: set, id, cluster, role, word, present, control, verdicts, score, reply.
        Earlier answers are reused. Raises ImageError."""
        space = json.dumps(
            ["calibration", self.judge.fingerprint, self.how.decisive(self.kind)], sort_keys=True
        )
        keys = [json.dumps([c.set, c.id, c.control, [w.word for w in c.words]]) for c in cases]
        with AnswerCache(self.folder / ANSWERS) as cache:
            answers: dict[str, Any] = {key: cache.get(space, key) for key in keys}
            missing = [(key, case) for key, case in zip(keys, cases, strict=True) if answers[key] is None]
            starts = range(0, len(missing), self.batch_size)
            batches = [missing[start : start + self.batch_size] for start in starts]
            on_cpu = self.judge.describe().get("device") == "cpu"
            with Bar(f"ask {self.kind}", len(missing)) as bar:
                for batch, fresh in machine.map_parallel(self._ask, batches, on_cpu, self.threads):
                    cache.put_all({(space, key): answer for key, answer in fresh.items()})
                    answers |= fresh
                    bar.update(len(batch))
        return [row for key in keys for row in answers[key]["rows"]]

    def _ask(self, batch: Sequence[tuple[str, Case]]) -> dict[str, dict[str, list[Row]]]:
        """Key -> the rows of its case."""
        cases = [case for _, case in batch]
        arrays = [case.decode() for case in cases]  # each (H, W, 3) uint8
        answers = judges.ask(self.kind, self.judge, arrays, [case.words for case in cases], self.how)
        results = {}
        for (key, case), row in zip(batch, answers, strict=True):
            labels = {"set": case.set, "id": case.id, "cluster": case.cluster, "control": case.control}
            words = [{"role": w.role, "word": w.word, "present": w.present} for w in case.words]
            pairs = zip(words, row, strict=True)
            results[key] = {"rows": [{**labels, **word, **answer} for word, answer in pairs]}
        return results


# --- the command -----------------------------------------------------------------------------------


def run(options: CalibrateConfig) -> None:
    """Asks the judges and prints what each is worth. Raises UserError for anything the user can mend."""
    directory, config = read_config(options.run, {kind: name for kind, name in options.named.items() if name})
    out = atomic.make_folder(options.out or directory.out / "calibration")
    services = Services.create(options, config.cache_dir / "answers.sqlite")
    cases = gather(options, directory)
    for name, (present, absent) in counts(cases).items():
        print(f"{name}: {present} present and {absent} absent objects", file=sys.stderr)
    device = Processes().device(options.device or config.device)
    if device == "cpu":
        machine.set_threads()
    how = JudgeOptions(config.article, config.threshold)
    for kind in options.named:
        judge = stages.load_models([f"removal_{kind}"], config, device, services)[kind]
        asking = Asking(kind, judge, how, out, options.batch_size, options.threads)
        print(calibrate(asking, cases))


def gather(options: CalibrateConfig, run: RunDir) -> list[Case]:
    """The cases of `--sets`, by default of every available set. Raises UserError for an unavailable one."""
    origin, file = run.manifest().get("data", {}), options.instances
    if file is None and "annotations" in origin:
        default = Path(origin["annotations"]).parent / "instances.json"
        file = default if default.is_file() else None
    cases = {"sources": sources(loading.reload(origin, options.data))}
    if file is not None:
        annotations = coco.read(instances=file, folder=options.images or file.parent)
        cases["instances"] = instances(annotations, options.seed)
        cases["pasted"] = paste_cases(annotations, options.seed)
    elif {"instances", "pasted"} & set(options.sets):
        raise UserError(
            "The sets 'instances' and 'pasted' need COCO instance annotations; pass --instances FILE and "
            "--images FOLDER."
        )
    else:
        log.warning("no instance annotations were found; Removal is not corrected")
    names = [name for name in options.sets or SETS if name in cases]
    return [case for name in names for case in thin_cases(cases[name], options.limit)]


def counts(cases: Sequence[Case]) -> dict[str, tuple[int, int]]:
    """Set -> (present, absent) questions."""
    words = Counter((case.set, word.present) for case in cases for word in case.words)
    return {name: (words[name, True], words[name, False]) for name, _ in words}


def calibrate(asking: Asking, cases: Sequence[Case]) -> str:
    """Asks a judge about the cases and writes what came of it; the error rates and what controls say."""
    kind, judge = asking.kind, asking.judge
    rows = [*asking.rows(cases), *asking.rows(controls(cases, kind))]
    file = asking.folder / f"{kind}-{judge.fingerprint[:12]}.json"
    atomic.write_lines(file.with_suffix(".jsonl"), rows)
    facts = {
        "kind": kind,
        "fingerprint": judge.fingerprint,
        "judge": judge.describe(),
        **asking.how.decisive(kind),
    }
    calibration = Calibration(kind, facts, rows)
    rates = {protocol: calibration.rates(protocol) for protocol in ("fixed", "paper")}
    flags = calibrations.list_flags(frames.frame(calibrations.check_controls(rows, kind)), [kind])
    written = {name: dataclasses.asdict(rate) for name, rate in rates.items()}
    atomic.write_json(file, {**facts, "sets": counts(cases), "rates": written, "flags": flags})
    parts = []
    for name in ("sensitivity", "specificity"):
        figure = frames.figure(getattr(rates["fixed"], name), unit="%")
        parts.append(f"{name} {tables.text(figure)} % of {figure['n']}, ")
    summary = f"{kind}: {''.join(parts)}unscored {rates['fixed'].n_unscored}; {file}"
    return "\n".join([summary, *(f"Note: {sentence}" for sentence in flags)])
