"""The command `nein calibrate`: what the judges of a run say about images whose truth is known.

OUT/calibration/<kind>-<fingerprint>.json    the judge, how it was asked, its error rates
OUT/calibration/<kind>-<fingerprint>.jsonl   one line per question: truth, answer, verdicts, soft score
OUT/calibration/answers.sqlite               finished cases
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from nein.benchmarks import controls
from nein.benchmarks.nein.runs import RunDir
from nein.datasets import nein as loading
from nein.engine import atomic, machine
from nein.engine.answers import AnswerCache
from nein.engine.errors import UserError
from nein.engine.folder import ANSWERS
from nein.engine.images import ImageError
from nein.engine.machine import Processes
from nein.judges.config import SETS, CalibrateConfig, read_config
from nein.models import judges
from nein.models.cached import Services
from nein.models.judges import JudgeOptions
from nein.reporting import figures as frames
from nein.reporting import format
from nein.statistics import calibration

if TYPE_CHECKING:
    from nein.judges.known import Case

log = logging.getLogger(__name__)


def run(options: CalibrateConfig) -> None:
    """Asks the judges and prints what each is worth. Raises UserError for anything the user can mend."""
    from nein.benchmarks.nein import score

    directory, config = read_config(options.run, {kind: name for kind, name in options.named.items() if name})
    out = options.out or directory.out / "calibration"
    atomic.make_folder(out)
    services = Services.of(options, config.cache_dir / "answers.sqlite")
    cases = gather(options, directory)
    for name, (present, absent) in counts(cases).items():
        print(f"{name}: {present} present and {absent} absent objects", file=sys.stderr)
    machine.tune_process()
    device = Processes().device(options.device or config.device)
    how = JudgeOptions(config.article, config.threshold)
    for kind in options.named:
        judge = score.load_models([f"removal_{kind}"], config, device, services)[kind]
        asking = Asking(kind, judge, how, out, options.batch_size)
        file, rates, flags = calibrate(asking, cases)
        shares = {"sensitivity": rates.sensitivity, "specificity": rates.specificity}
        figures = {name: frames.figure(share, unit="%") for name, share in shares.items()}
        parts = [f"{name} {format.text(one)} % of {one['n']}" for name, one in figures.items()]
        print(f"{kind}: {', '.join(parts)}, unscored {rates.n_unscored}; {file}")
        for sentence in flags:
            print(f"Note: {sentence}")


def gather(options: CalibrateConfig, run: RunDir) -> list[Case]:
    """The cases of `--sets`, or of all that there are: of NeIn's samples, and of the annotated images beside
    them. Raises UserError where a set needs such and there are none."""
    from nein.judges import known

    origin = run.manifest().get("data", {})
    wanted, file = options.sets or SETS, options.instances
    if file is None and "annotations" in origin:
        beside = Path(origin["annotations"]).parent / "instances.json"
        file = beside if beside.is_file() else None
    found = {"sources": known.sources(loading.reload(origin, options.data))}
    if file is not None:
        annotations = known.read_instances(file, options.images or file.parent)
        found["instances"] = known.instances(annotations, options.seed)
        found["pasted"] = known.pasted(annotations, options.seed)
    elif {"instances", "pasted"} & set(options.sets):
        raise UserError(
            "The sets 'instances' and 'pasted' need COCO instance annotations: --instances FILE and "
            "--images FOLDER."
        )
    else:
        log.warning(
            "no instance annotations: absent objects only for names of objects, so Removal is not corrected"
        )
    return [case for name in wanted if name in found for case in known.thinned(found[name], options.limit)]


def counts(cases: Sequence[Case]) -> dict[str, tuple[int, int]]:
    """Set -> (present, absent) questions."""
    words = Counter((case.set, word.present) for case in cases for word in case.words)
    return {name: (words[name, True], words[name, False]) for name, _ in words}


@dataclasses.dataclass(frozen=True)
class Asking:
    """A judge, how it is asked, and where its answers are kept."""

    kind: str
    judge: Any
    how: JudgeOptions
    folder: Path
    batch_size: int = 16

    def rows(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        """A row per case and word, in order: set, id, cluster, role, word, present, control, verdicts, score,
        reply. A case that was answered before is not asked again. Raises UserError for an image that cannot
        be read."""
        space = json.dumps(["calibration", self.judge.fingerprint, self.how.of(self.kind)], sort_keys=True)
        keys = [json.dumps([c.set, c.id, c.control, [w.word for w in c.words]]) for c in cases]
        with AnswerCache(self.folder / ANSWERS) as cache:
            found = {key: cache.get(space, key) for key in keys}
            missing = [(key, case) for key, case in zip(keys, cases, strict=True) if found[key] is None]
            with tqdm(total=len(missing), desc=f"ask {self.kind}", unit="image", disable=None) as bar:
                for start in range(0, len(missing), self.batch_size):
                    batch = missing[start : start + self.batch_size]
                    answered = self._ask([case for _, case in batch])
                    fresh = {key: {"rows": rows} for (key, _), rows in zip(batch, answered, strict=True)}
                    cache.put_all({(space, key): answer for key, answer in fresh.items()})
                    found |= fresh
                    bar.update(len(batch))
        return [row for key in keys for row in (found[key] or {})["rows"]]

    def _ask(self, cases: Sequence[Case]) -> list[list[dict[str, Any]]]:
        try:
            pictures = [case.picture() for case in cases]
        except ImageError as error:
            raise UserError(f"A picture cannot be read: {error}") from None
        answers = judges.ask(self.kind, self.judge, pictures, [case.words for case in cases], self.how)
        rows = []
        for case, row in zip(cases, answers, strict=True):
            what = {"set": case.set, "id": case.id, "cluster": case.cluster, "control": case.control}
            words = [{"role": w.role, "word": w.word, "present": w.present} for w in case.words]
            rows.append([{**what, **word, **answer} for word, answer in zip(words, row, strict=True)])
        return rows


def calibrate(asking: Asking, cases: Sequence[Case]) -> tuple[Path, calibration.Rates, list[str]]:
    """Asks a judge about the cases and writes what came of it: the .json file, the error rates, and what the
    controls say."""
    from nein.judges import known

    kind, judge = asking.kind, asking.judge
    rows, controlled = asking.rows(cases), asking.rows(known.controls(cases, kind))
    target = asking.folder / f"{kind}-{judge.fingerprint[:12]}.json"
    atomic.write_lines(target.with_suffix(".jsonl"), [*rows, *controlled])
    flags = controls.flags(frames.frame(controls.figures(rows, controlled, kind)), [kind])
    rates = {
        protocol: calibration.rates(
            *([row[name] for row in rows] for name in ("present", f"verdict_{protocol}", "cluster", "score"))
        )
        for protocol in ("fixed", "paper")
    }
    result = {
        "kind": kind,
        "fingerprint": judge.fingerprint,
        "judge": judge.describe(),
        **asking.how.of(kind),
        "sets": counts(cases),
        "rates": {name: dataclasses.asdict(rate) for name, rate in rates.items()},
        "flags": flags,
    }
    atomic.write_json(target, result)
    return target, rates["fixed"], flags
