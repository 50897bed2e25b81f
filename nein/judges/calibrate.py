"""The command `nein calibrate`: what the judges of a run say about pictures whose truth is known.

OUT/calibration/<kind>-<fingerprint>.json    the judge, how it was asked, its error rates
OUT/calibration/<kind>-<fingerprint>.jsonl   one line per question: truth, answer, verdicts, soft score
OUT/calibration/answers.sqlite               finished batches; the same command goes on where it was killed
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from nein.judges.config import REWARD, CalibrateConfig
from nein.judges.scored import read_config
from nein.models import judges
from nein.models.judges import Word
from nein.statistics import calibration

if TYPE_CHECKING:
    from nein.judges.known_edits import Pair
    from nein.judges.known_presence import Case

log = logging.getLogger(__name__)


def run(options: CalibrateConfig) -> None:
    """Asks the judges and prints what each is worth. Raises UserError for anything the user can mend."""
    from nein.benchmarks.nein import models
    from nein.judges import known_presence

    directory, config = read_config(options.run, options.named)
    out = options.out or directory.out / "calibration"
    atomic.check_writable(out)
    kinds = [kind for kind in options.judges if kind != REWARD]
    material = read_material(options, directory)
    cases = gather(material, options) if kinds else []
    for name, (present, absent) in known_presence.counts(cases).items():
        print(f"{name}: {present} present and {absent} absent objects", file=sys.stderr)
    environment.keep_freed_memory()
    device = Processes().device(options.device or config.device)
    for kind in kinds:
        judge = models.load_models([f"removal_{kind}"], config, device)[kind]
        file = calibrate(kind, judge, cases, config, out, options.block_size)
        print(_summary(file))
    if options.rewards:
        pairs = gather_edits(material, options, config.align_resolution)
        for reference in options.rewards:
            print(preferences.summary(_prefer(reference, pairs, config, device, out, options.batch_size)))


class Material(NamedTuple):
    """What cases and pairs are made of: NeIn's samples, and annotated pictures where there are any."""

    dataset: Dataset
    annotations: coco.Annotations | None


def read_material(options: CalibrateConfig, run: RunDir) -> Material:
    """The data of the run, or those of the options. An instance file may lie beside them. Raises UserError
    where a set needs one and there is none."""
    from nein.judges import known_presence

    origin = (run.manifest() or {}).get("data", {})
    dataset = loading.reload(origin, options.data)
    file = options.instances
    if file is None and "annotations" in origin:
        beside = Path(origin["annotations"]).parent / "instances.json"
        file = beside if beside.is_file() else None
    if file is not None:
        return Material(dataset, known_presence.read_instances(file, options.images or file.parent))
    if {"instances", "pasted"} & set(options.sets):
        raise UserError(
            "The sets 'instances' and 'pasted' need COCO instance annotations: --instances FILE and "
            "--images FOLDER."
        )
    return Material(dataset, None)


def gather(material: Material, options: CalibrateConfig) -> list[Case]:
    """The cases of the sets asked for, or of all there are."""
    from nein.judges import known_presence

    made: dict[str, Callable[[], list[Case]]] = {"sources": lambda: known_presence.sources(material.dataset)}
    if (annotations := material.annotations) is not None:
        made["instances"] = lambda: known_presence.instances(annotations, options.seed)
        made["pasted"] = lambda: known_presence.pasted(annotations, options.seed)
    else:
        log.warning(
            "no instance annotations: absent objects only for names of objects, so Removal is not corrected"
        )
    wanted = [name for name in made if not options.sets or name in options.sets]
    return [case for name in wanted for case in known_presence.thinned(made[name](), options.limit)]


def gather_edits(material: Material, options: CalibrateConfig, resolution: int) -> list[Pair]:
    """Pairs of edits of the sets asked for, or of all there are."""
    from nein.judges import known_edits, known_presence

    pairs: list[Pair] = []
    if not options.sets or "sources" in options.sets:
        pairs += known_edits.unedited(material.dataset, resolution)
    if material.annotations is not None and (not options.sets or "pasted" in options.sets):
        pairs += known_edits.pasted(material.annotations, options.seed)
    groups = [[pair for pair in pairs if pair.set == name] for name in dict.fromkeys(p.set for p in pairs)]
    return [pair for group in groups for pair in known_presence.thinned(group, options.limit)]


def _prefer(
    reference: str, pairs: Sequence[Pair], config: EvalConfig, device: str, out: Path, batch_size: int
) -> Path:
    from nein.benchmarks.nein import models
    from nein.models import rewards

    def removal() -> rewards.RemovalReward:
        return rewards.RemovalReward(
            models.load_models(["removal_vqa"], config, device)["vqa"], config.article
        )

    cache = AnswerCache(out / asking.ANSWERS)
    judge = rewards.load(reference, cache=cache, device=device, dtype=config.judge_dtype, removal=removal)
    return preferences.calibrate(reference, judge, pairs, out, batch_size)


def calibrate(
    kind: str, judge: Any, cases: Sequence[Case], config: EvalConfig, out: Path, batch_size: int = 16
) -> Path:
    """Asks a judge about the cases and writes what came of it; returns the .json file."""
    from nein.judges import known_presence

    rows = ask_all(kind, judge, cases, manner_of(config), out, batch_size)
    target = out / f"{kind}-{judge.fingerprint[:12]}.json"
    atomic.write_lines(target.with_suffix(".jsonl"), rows)
    rates = {
        protocol: calibration.rates(
            [row["present"] for row in rows], [row[f"verdict_{protocol}"] for row in rows],
            [row["cluster"] for row in rows], [row["score"] for row in rows],
        )
        for protocol in ("fixed", "paper")
    }  # fmt: skip
    result = {
        "kind": kind,
        "fingerprint": judge.fingerprint,
        "judge": judge.describe(),
        **manner_of(config).of(kind),
        "sets": {name: list(pair) for name, pair in known_presence.counts(cases).items()},
        "rates": {name: dataclasses.asdict(rate) for name, rate in rates.items()},
    }
    atomic.write_json(target, result)
    return target


def manner_of(config: EvalConfig) -> judges.JudgeOptions:
    """How the judges of a run are asked."""
    return judges.JudgeOptions(config.article, config.threshold)


def ask_all(
    kind: str, judge: Any, cases: Sequence[Case], manner: judges.JudgeOptions, out: Path, batch_size: int = 16
) -> list[dict[str, Any]]:
    """A row per case and word, in order: set, id, cluster, role, word, present, verdicts, score, reply.

    Finished batches are kept in OUT/answers.sqlite; only what is missing is asked.
    """
    rows = asking.answered(
        out / asking.ANSWERS,
        json.dumps(["calibration", judge.fingerprint, manner.of(kind)], sort_keys=True),
        cases,
        lambda case: [_key(case, word) for word in case.words],
        lambda batch: _ask(kind, judge, batch, manner),
        batch_size=batch_size,
        title=kind,
        unit="image",
    )
    return [rows[_key(case, word)] for case in cases for word in case.words]


def _key(case: Case, word: Word) -> str:
    return json.dumps([case.set, case.id, word.word])


def _ask(
    kind: str, judge: Any, batch: Sequence[Case], manner: judges.JudgeOptions
) -> dict[str, tuple[asking.Row, bool]]:
    pictures = [asking.decoded(case.picture) for case in batch]
    said = judges.ask(kind, judge, pictures, [case.words for case in batch], manner)
    return {
        _key(case, word): ({
            "set": case.set, "id": case.id, "cluster": case.cluster, "role": word.role, "word": word.word,
            "present": word.present, **answer,
        }, True)
        for case, answers in zip(batch, said, strict=True)
        for word, answer in zip(case.words, answers, strict=True)
    }  # fmt: skip


def _summary(file: Path) -> str:
    result = atomic.read_json(file)
    rates = result["rates"]["fixed"]
    parts = [asking.shown(name, rates[name]) for name in ("sensitivity", "specificity")]
    return f"{result['kind']}: {', '.join(parts)}, unscored {rates['n_unscored']}; {file}"
