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

from nein.benchmarks import controls as of_controls
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.runs import RunDir
from nein.datasets import coco
from nein.datasets.nein import loading
from nein.datasets.nein.samples import Dataset
from nein.engine import atomic, environment
from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError
from nein.engine.processes import Processes
from nein.judges import asking, preferences
from nein.judges.asking import read_config
from nein.judges.config import REWARD, SETS, CalibrateConfig
from nein.loading import spending
from nein.models import judges
from nein.models.judges import Word
from nein.reporting import figures as frames
from nein.statistics import calibration

if TYPE_CHECKING:
    from nein.judges.known import Case, Pair

log = logging.getLogger(__name__)


def run(options: CalibrateConfig) -> None:
    """Asks the judges and prints what each is worth. Raises UserError for anything the user can mend."""
    from nein.benchmarks.nein import score
    from nein.judges import known
    from nein.models import rewards

    directory, config = read_config(options.run, options.named)
    out = options.out or directory.out / "calibration"
    atomic.make_folder(out)
    spending.keep(out, options.budget)
    kinds = [kind for kind in options.judges if kind != REWARD]
    dataset, annotations = read_material(options, directory)
    cases = gather(dataset, annotations, options) if kinds else []
    for name, (present, absent) in known.counts(cases).items():
        print(f"{name}: {present} present and {absent} absent objects", file=sys.stderr)
    environment.keep_freed_memory()
    device = Processes().device(options.device or config.device)

    def load(kind: str) -> Any:
        return score.load_models([f"removal_{kind}"], config, device)[kind]

    for kind in kinds:
        file = calibrate(kind, load(kind), cases, config, out, options.batch_size)
        result = atomic.read_json(file)
        rates = result["rates"]["fixed"]
        parts = [asking.shown(name, rates[name]) for name in ("sensitivity", "specificity")]
        print(f"{kind}: {', '.join(parts)}, unscored {rates['n_unscored']}; {file}")
        for sentence in result["flags"]:
            print(f"Note: {sentence}")
    pairs = gather_edits(dataset, annotations, options, config.align_resolution) if options.rewards else []
    for reference in options.rewards:
        judge = rewards.load(
            reference, cache=AnswerCache(out / asking.ANSWERS), device=device, dtype=config.judge_dtype,
            removal=lambda: rewards.RemovalReward(load("vqa"), config.article),
        )  # fmt: skip
        print(preferences.summary(preferences.calibrate(reference, judge, pairs, out, options.batch_size)))


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


def gather_edits(
    dataset: Dataset, annotations: coco.Annotations | None, options: CalibrateConfig, resolution: int
) -> list[Pair]:
    """Pairs of edits of `--preferences` and `--sets`; without either of all sets that there are."""
    from nein.datasets import preferences as of_people
    from nein.judges import known

    pairs, wanted = [], options.sets or SETS
    if options.preferences:
        found, undecided = of_people.load(options.preferences, options.preference_images)
        pairs, wanted = [*map(known.preferred, found)], options.sets
        print(f"{options.preferences}: {len(pairs)} preferences, {undecided} ties", file=sys.stderr)
    pairs += known.unedited(dataset, resolution) if "sources" in wanted else []
    if annotations is not None and "pasted" in wanted:
        pairs += known.pasted_pairs(annotations, options.seed)
    groups = [[pair for pair in pairs if pair.set == name] for name in dict.fromkeys(p.set for p in pairs)]
    return [pair for group in groups for pair in known.thinned(group, options.limit)]


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
    """A row per case and word, in order: set, id, cluster, role, word, present, verdicts, score, reply."""

    def key(case: Case, word: Word) -> str:
        return json.dumps([case.set, case.id, word.word, *filter(None, [case.control])])

    def ask(batch: Sequence[Case]) -> dict[str, tuple[asking.Row, bool]]:
        pictures = [asking.decoded(case.picture) for case in batch]
        answers = judges.ask(kind, judge, pictures, [case.words for case in batch], how)
        return {
            key(case, word): ({
                "set": case.set, "id": case.id, "cluster": case.cluster, "role": word.role,
                "word": word.word, "present": word.present, "control": case.control, **answer,
            }, True)
            for case, row in zip(batch, answers, strict=True)
            for word, answer in zip(case.words, row, strict=True)
        }  # fmt: skip

    return asking.answered(
        out,
        json.dumps(["calibration", judge.fingerprint, how.of(kind)], sort_keys=True),
        cases,
        lambda case: [key(case, word) for word in case.words],
        ask,
        batch_size=batch_size,
        title=kind,
        unit="image",
    )
