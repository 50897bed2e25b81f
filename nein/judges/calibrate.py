"""`nein calibrate`: measures the error rates of judges on images of known truth, in three sets.

sources    the source images of NeIn: the object of every sample is absent, the caption's objects are there
instances  images with COCO instance annotations: annotated categories are there, others are not
pasted     those images, each with an annotated object of another image pasted in, and without it

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
from nein.datasets.nein import Dataset, reload
from nein.engine import atomic, images, machine
from nein.engine.answers import ANSWERS, AnswerCache
from nein.engine.folder import Row
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
#: Smallest and largest share of its image that a pasted object covers there: visible, but not everything.
PASTED_AREA = (0.01, 0.3)
DONORS_TRIED = 40  # objects of other images that are tried for an image; if none fits, it has no case
CONTROLLED = 64  # images per control


# --- cases: images of known truth -------------------------------------------------------------------------
Decode = Callable[[], np.ndarray]  # decodes or makes an image, (H, W, 3) uint8 RGB; raises ImageError


@dataclass(frozen=True)
class Case:
    """One image with the words to ask about."""

    set: str  # of `SETS`, or "retrieved"
    id: str  # unique within its set
    cluster: str  # its source image; images made from one source share it
    decode: Decode
    words: tuple[Word, ...]
    control: str = ""  # a key of `calibrations.CONTROLS`; "": none

    @property
    def present(self) -> tuple[Word, ...]:
        return tuple(word for word in self.words if word.present)


def make_source_cases(dataset: Dataset) -> list[Case]:
    """Every source image with its samples' objects (absent) and the nouns of its captions (present)."""
    nouns = caption_objects([sample.caption for sample in dataset.samples], protocol="fixed")
    absent: dict[str, dict[str, None]] = {}  # source -> objects of its samples (a set in order)
    named: dict[str, dict[str, None]] = {}  # source -> nouns of its captions (a set in order)
    paths: dict[str, Path] = {}
    for sample, caption_nouns in zip(dataset.samples, nouns, strict=True):
        absent.setdefault(sample.source_id, {})[sample.object] = None
        named.setdefault(sample.source_id, {}).update(dict.fromkeys(caption_nouns))
        paths.setdefault(sample.source_id, sample.source_path)
    cases = []
    for name, path in paths.items():
        words = [Word(noun, False, OBJECT) for noun in absent[name]]
        words += [Word(noun, True, CAPTION) for noun in named[name] if noun not in absent[name]]
        cases.append(Case("sources", name, name, partial(images.decode, path), tuple(words)))
    return cases


def make_instance_cases(annotations: coco.Annotations, seed: int) -> list[Case]:
    """Every image with its annotated categories (present) and as many others, drawn by seed (absent)."""
    cases = []
    for image in annotations.images:
        rng = random.Random(f"{seed}/instances/{image.stem}")
        present = sorted(image.categories)
        candidates = sorted({*annotations.categories} - image.categories)
        absent = rng.sample(candidates, min(len(candidates), max(1, len(present))))
        words = tuple(Word(name, name in present, OBJECT) for name in (*present, *absent))
        decode = partial(images.decode, image.path)
        cases.append(Case("instances", image.stem, find_cluster(image.stem), decode, words))
    return cases


def make_pasted_cases(annotations: coco.Annotations, seed: int) -> list[Case]:
    """Every image with an object of another one pasted in (present), and without it (absent)."""
    donors = [(donor, thing) for donor in annotations.images for thing in donor.objects if not thing.crowd]
    cases = []
    for image in annotations.images:
        rng = random.Random(f"{seed}/pasted/{image.stem}")
        for donor, thing in rng.sample(donors, min(len(donors), DONORS_TRIED)):
            if thing.box is None or thing.category in image.categories or donor.stem == image.stem:
                continue
            width, height = images.read_size(donor.path)
            area = thing.box[2] * thing.box[3] / (width * height)  # fraction of the donor
            if not PASTED_AREA[0] <= area <= PASTED_AREA[1] or min(thing.box[2:]) < 4:  # pixels
                continue
            position = (rng.random(), rng.random())
            without = partial(images.decode, image.path)
            pasted = partial(paste, without, partial(images.decode, donor.path), thing, position)
            for sign, decode in (("+", pasted), ("-", without)):
                words = (Word(thing.category, sign == "+", OBJECT),)
                name = f"{image.stem}{sign}{thing.category}"
                cases.append(Case("pasted", name, find_cluster(image.stem), decode, words))
            break  # one object per image
    return cases


def paste(
    decode: Decode, decode_donor: Decode, thing: coco.Instance, place: tuple[float, float]
) -> np.ndarray:
    """An image, (H, W, 3) uint8, with the donor's pixels in the thing's box and polygons pasted in, shrunk to
    half of the image if larger. place: (x, y) of the upper left corner, as fractions of the free room."""
    canvas, donor = Image.fromarray(decode()), Image.fromarray(decode_donor())
    x, y, width, height = thing.box or (0, 0, *donor.size)
    right, lower = min(donor.width, int(np.ceil(x + width))), min(donor.height, int(np.ceil(y + height)))
    box = (max(0, int(x)), max(0, int(y)), right, lower)
    part, mask = donor.crop(box), Image.new("L", donor.size, 0 if thing.polygons else 255)  # 255: pasted
    for polygon in thing.polygons:
        ImageDraw.Draw(mask).polygon([float(value) for value in polygon], fill=255)
    factor = min(1.0, canvas.width / 2 / part.width, canvas.height / 2 / part.height)  # never enlarged
    size = (max(1, round(part.width * factor)), max(1, round(part.height * factor)))
    corner = round(place[0] * (canvas.width - size[0])), round(place[1] * (canvas.height - size[1]))
    canvas.paste(part.resize(size), corner, mask.crop(box).resize(size))
    return np.array(canvas)


def find_cluster(name: str) -> str:
    """The cluster of an image: NeIn samples of one source image share its number; others are alone."""
    return f"COCO_{name.split('_')[1]}" if name.startswith("NeIn_") else name


def thin_cases(cases: Sequence[Case], limit: int | None) -> list[Case]:
    """At most `limit` cases, evenly spread, so that a small part still covers the whole set."""
    if limit is None or limit >= len(cases):
        return list(cases)
    return [cases[index * len(cases) // limit] for index in range(limit)]


def make_control_cases(cases: Sequence[Case], kind: str) -> list[Case]:
    """Cases that show whether a judge looks and reads: changed images with the same questions, and changed
    questions about the same images. They are made of the set "instances", or of all cases if it is empty."""
    usable = [case for case in cases if case.present]
    chosen = thin_cases([case for case in usable if case.set == "instances"] or usable, CONTROLLED)
    changed = []
    for index, case in enumerate(chosen):
        absent = tuple(replace(word, present=False) for word in case.present)  # in a black or another image
        black = partial(_change, case.decode, np.zeros_like)
        changed.append(replace(case, control="black", decode=black, words=absent))
        changed.append(replace(case, control="mirrored", decode=partial(_change, case.decode, np.fliplr)))
        names = {word.word for word in case.present}
        for other in (*chosen[index + 1 :], *chosen[:index]):  # the next image with none of these objects
            if other.cluster != case.cluster and names.isdisjoint(word.word for word in other.present):
                others_words = tuple(replace(word, present=False) for word in other.present)
                changed.append(replace(case, control="picture", decode=other.decode, words=absent))
                changed.append(replace(case, control="question", words=others_words))
                break
        if kind == "vqa":  # a detector is not asked in a sentence
            for wording, questions in (("negated", case.present), ("reversed", case.words)):
                words = tuple(replace(word, wording=wording) for word in questions)
                changed.append(replace(case, control=wording, words=words))
    return changed


def _change(decode: Decode, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    return np.ascontiguousarray(change(decode()))


# --- asking ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CaseJudge:
    """A judge that is asked about cases, and remembers its answers in `folder`."""

    kind: str  # "vqa" or "ovd"
    judge: Any
    options: JudgeOptions
    folder: Path
    batch_size: int = 16
    threads: int | None = None

    def ask(self, cases: Sequence[Case]) -> list[Row]:
        """A row per case and word: set, id, cluster, role, word, present, control, verdicts, score, reply."""
        settings = self.options.decisive(self.kind)
        space = json.dumps(["calibration", self.judge.fingerprint, settings], sort_keys=True)  # of the cache
        keys = [json.dumps([case.set, case.id, case.control, [w.word for w in case.words]]) for case in cases]
        with AnswerCache(self.folder / ANSWERS) as cache:
            answers: dict[str, Any] = {key: cache.get(space, key) for key in keys}
            missing = [(key, case) for key, case in zip(keys, cases, strict=True) if answers[key] is None]
            starts = range(0, len(missing), self.batch_size)
            batches = [missing[start : start + self.batch_size] for start in starts]
            on_cpu = self.judge.describe().get("device") == "cpu"
            with Bar(f"ask {self.kind}", len(missing)) as bar:
                results = machine.map_parallel(self._ask_batch, batches, on_cpu, self.threads)
                for batch, new_answers in results:
                    cache.put_all({(space, key): answer for key, answer in new_answers.items()})
                    answers |= new_answers
                    bar.update(len(batch))
        return [row for key in keys for row in answers[key]["rows"]]

    def _ask_batch(self, batch: Sequence[tuple[str, Case]]) -> dict[str, dict[str, list[Row]]]:
        """Key -> the rows of its case."""
        cases = [case for _, case in batch]
        arrays = [case.decode() for case in cases]  # each (H, W, 3) uint8
        answers = judges.ask(self.kind, self.judge, arrays, [case.words for case in cases], self.options)
        results = {}
        for (key, case), case_answers in zip(batch, answers, strict=True):
            labels = {"set": case.set, "id": case.id, "cluster": case.cluster, "control": case.control}
            words = [{"role": w.role, "word": w.word, "present": w.present} for w in case.words]
            pairs = zip(words, case_answers, strict=True)
            results[key] = {"rows": [{**labels, **word, **answer} for word, answer in pairs]}
        return results


# --- the command -----------------------------------------------------------------------------------
def run(options: CalibrateConfig) -> None:
    """Asks the judges and prints the error rates of each. Raises UserError."""
    nein_run, config = read_config(options.run, {kind: name for kind, name in options.named.items() if name})
    out = atomic.make_folder(options.out or nein_run.out / "calibration")
    services = Services.create(options, config.cache_dir / "answers.sqlite")
    cases = gather_cases(options, nein_run)
    for name, (present, absent) in count_questions(cases).items():
        print(f"{name}: {present} present and {absent} absent objects", file=sys.stderr)
    device = Processes().device(options.device or config.device)
    if device == "cpu":
        machine.set_threads()
    judge_options = JudgeOptions(config.article, config.threshold)
    for kind in options.named:
        judge = stages.load_models([f"removal_{kind}"], config, device, services)[kind]
        case_judge = CaseJudge(kind, judge, judge_options, out, options.batch_size, options.threads)
        print(calibrate(case_judge, cases))


def gather_cases(options: CalibrateConfig, nein_run: RunDir) -> list[Case]:
    """The cases of `--sets`, by default of every available set. Raises UserError for an unavailable one."""
    origin = nein_run.manifest().get("data", {})
    file = options.instances
    if file is None and "annotations" in origin:
        default = Path(origin["annotations"]).parent / "instances.json"
        file = default if default.is_file() else None
    cases = {"sources": make_source_cases(reload(origin, options.data))}
    if file is not None:
        annotations = coco.read(instances=file, folder=options.images or file.parent)
        cases["instances"] = make_instance_cases(annotations, options.seed)
        cases["pasted"] = make_pasted_cases(annotations, options.seed)
    elif {"instances", "pasted"} & set(options.sets):
        raise UserError("--sets instances and pasted need COCO annotations; pass --instances and --images.")
    else:
        log.warning("no instance annotations were found; Removal is not corrected")
    names = [name for name in options.sets or SETS if name in cases]
    return [case for name in names for case in thin_cases(cases[name], options.limit)]


def count_questions(cases: Sequence[Case]) -> dict[str, tuple[int, int]]:
    """Set -> numbers of questions about present and about absent objects."""
    counts = Counter((case.set, word.present) for case in cases for word in case.words)
    return {name: (counts[name, True], counts[name, False]) for name, _ in counts}


def calibrate(case_judge: CaseJudge, cases: Sequence[Case]) -> str:
    """Asks a judge about the cases and writes the calibration; returns its error rates as lines to print."""
    kind, judge = case_judge.kind, case_judge.judge
    rows = [*case_judge.ask(cases), *case_judge.ask(make_control_cases(cases, kind))]
    file = case_judge.folder / f"{kind}-{judge.fingerprint[:12]}.json"
    atomic.write_lines(file.with_suffix(".jsonl"), rows)
    facts = {"kind": kind, "fingerprint": judge.fingerprint, "judge": judge.describe()}
    facts |= case_judge.options.decisive(kind)
    calibration = Calibration(kind, facts, rows)
    rates = {protocol: calibration.rates(protocol) for protocol in ("fixed", "paper")}
    flags = calibrations.list_flags(frames.frame(calibrations.check_controls(rows, kind)), [kind])
    written = {name: dataclasses.asdict(rate) for name, rate in rates.items()}
    atomic.write_json(file, {**facts, "sets": count_questions(cases), "rates": written, "flags": flags})
    shares = []
    for name in ("sensitivity", "specificity"):
        estimate = frames.figure(getattr(rates["fixed"], name), unit="%")
        shares.append(f"{name} {tables.format_estimate(estimate)} % of {estimate['n']}, ")
    summary = f"{kind}: {''.join(shares)}unscored {rates['fixed'].n_unscored}; {file}"
    return "\n".join([summary, *(f"Note: {sentence}" for sentence in flags)])
