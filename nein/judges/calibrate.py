"""The command `nein calibrate`: what the judges of a run say about pictures whose truth is known.

OUT/calibration/<kind>-<fingerprint>.json    the judge, how it was asked, its error rates
OUT/calibration/<kind>-<fingerprint>.jsonl   one line per question: truth, answer, verdicts, soft score
OUT/calibration/answers.sqlite               finished batches
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from nein.benchmarks import controls as of_controls
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.runs import RunDir
from nein.datasets import coco
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Dataset
from nein.engine import atomic, environment
from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError
from nein.engine.folder import ANSWERS
from nein.engine.processes import Processes
from nein.judges import asking
from nein.judges.asking import read_config
from nein.judges.config import SETS, CalibrateConfig
from nein.models import judges
from nein.models.cached import Services
from nein.models.judges import Word
from nein.reporting import figures as frames
from nein.statistics import calibration

if TYPE_CHECKING:
    from nein.judges.known import Case

log = logging.getLogger(__name__)


def run(options: CalibrateConfig) -> None:
    """Asks the judges and prints what each is worth. Raises UserError for anything the user can mend."""
    from nein.benchmarks.nein import score
    from nein.judges import known

    directory, config = read_config(options.run, {kind: name for kind, name in options.named.items() if name})
    out = options.out or directory.out / "calibration"
    atomic.make_folder(out)
    services = Services.of(options, config.cache_dir / "answers.sqlite")
    dataset, annotations = read_material(options, directory)
    cases = gather(dataset, annotations, options)
    for name, (present, absent) in known.counts(cases).items():
        print(f"{name}: {present} present and {absent} absent objects", file=sys.stderr)
    environment.keep_freed_memory()
    device = Processes().device(options.device or config.device)
    for kind in options.named:
        judge = score.load_models([f"removal_{kind}"], config, device, services)[kind]
        file = calibrate(kind, judge, cases, config, out, options.batch_size)
        result = atomic.read_json(file)
        rates = result["rates"]["fixed"]
        parts = [asking.shown(name, rates[name]) for name in ("sensitivity", "specificity")]
        print(f"{kind}: {', '.join(parts)}, unscored {rates['n_unscored']}; {file}")
        for sentence in result["flags"]:
            print(f"Note: {sentence}")


def read_material(options: CalibrateConfig, run: RunDir) -> tuple[Dataset, coco.Annotations | None]:
    """NeIn's samples, of the run or of the options, and the annotated pictures beside them where there are
    any. Raises UserError where a set needs such and there are none."""
    from nein.judges import known

    origin = (run.manifest() or {}).get("data", {})
    dataset = loading.reload(origin, options.data)
    file = options.instances
    if file is None and "annotations" in origin:
        beside = Path(origin["annotations"]).parent / "instances.json"
        file = beside if beside.is_file() else None
    if file is not None:
        return dataset, known.read_instances(file, options.images or file.parent)
    if {"instances", "pasted"} & set(options.sets):
        raise UserError(
            "The sets 'instances' and 'pasted' need COCO instance annotations: --instances FILE and "
            "--images FOLDER."
        )
    return dataset, None


def gather(dataset: Dataset, annotations: coco.Annotations | None, options: CalibrateConfig) -> list[Case]:
    """The cases of `--sets`, or of all that there are."""
    from nein.judges import known

    sets: dict[str, Callable[[], list[Case]]] = {"sources": lambda: known.sources(dataset)}
    if annotations is not None:
        sets["instances"] = lambda: known.instances(annotations, options.seed)
        sets["pasted"] = lambda: known.pasted(annotations, options.seed)
    else:
        log.warning(
            "no instance annotations: absent objects only for names of objects, so Removal is not corrected"
        )
    wanted = [name for name in sets if name in (options.sets or SETS)]
    return [case for name in wanted for case in known.thinned(sets[name](), options.limit)]


def calibrate(
    kind: str, judge: Any, cases: Sequence[Case], config: EvalConfig, out: Path, batch_size: int = 16
) -> Path:
    """Asks a judge about the cases and writes what came of it; returns the .json file."""
    from nein.judges import controls, known

    how = judges.JudgeOptions(config.article, config.threshold)
    rows = ask_all(kind, judge, cases, how, out, batch_size)
    controlled = ask_all(kind, judge, controls.of_cases(cases, kind), how, out, batch_size)
    target = out / f"{kind}-{judge.fingerprint[:12]}.json"
    atomic.write_lines(target.with_suffix(".jsonl"), [*rows, *controlled])
    figures = frames.frame(of_controls.figures(rows, controlled, kind))
    rates = {
        protocol: calibration.rates(
            [row["present"] for row in rows], [row[f"verdict_{protocol}"] for row in rows],
            [row["cluster"] for row in rows], [row["score"] for row in rows],
        )
        for protocol in ("fixed", "paper")
    }  # fmt: skip
    result = {
        "kind": kind, "fingerprint": judge.fingerprint, "judge": judge.describe(), **how.of(kind),
        "sets": {name: list(pair) for name, pair in known.counts(cases).items()},
        "rates": {name: dataclasses.asdict(rate) for name, rate in rates.items()},
        "flags": of_controls.flags(figures, [kind]),
    }  # fmt: skip
    atomic.write_json(target, result)
    return target


def ask_all(
    kind: str, judge: Any, cases: Sequence[Case], how: judges.JudgeOptions, out: Path, batch_size: int = 16
) -> list[dict[str, Any]]:
    """A row per case and word, in order: set, id, cluster, role, word, present, verdicts, score, reply.
    Answers of an earlier command are in `ANSWERS`."""

    def key(case: Case, word: Word) -> str:
        return json.dumps([case.set, case.id, word.word, *filter(None, [case.control])])

    space = json.dumps(["calibration", judge.fingerprint, how.of(kind)], sort_keys=True)
    rows: dict[str, Any] = {}
    with AnswerCache(out / ANSWERS) as cache:
        for case in cases:
            for word in case.words:
                if (row := cache.get(space, key(case, word))) is not None:
                    rows[key(case, word)] = row
        missing = [case for case in cases if any(key(case, word) not in rows for word in case.words)]
        with tqdm(total=len(missing), desc=f"calibrate {kind}", unit="image", disable=None) as bar:
            for start in range(0, len(missing), batch_size):
                batch = missing[start : start + batch_size]
                pictures = [asking.decoded(case.picture) for case in batch]
                answers = judges.ask(kind, judge, pictures, [case.words for case in batch], how)
                fresh = {
                    key(case, word): {
                        "set": case.set, "id": case.id, "cluster": case.cluster, "role": word.role,
                        "word": word.word, "present": word.present, "control": case.control, **answer,
                    }
                    for case, row in zip(batch, answers, strict=True)
                    for word, answer in zip(case.words, row, strict=True)
                }  # fmt: skip
                cache.put_all({(space, name): row for name, row in fresh.items()})
                rows |= fresh
                bar.update(len(batch))
    return [rows[key(case, word)] for case in cases for word in case.words]
