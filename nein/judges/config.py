"""The options of `nein calibrate`, `check`, `study` and `negbench judge`, and a reader of a run's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, TypeAdapter

from nein.benchmarks.nein.config import EvalConfig, MovedData
from nein.config.groups import Batches, Budget, DtypeOptions, EndpointOptions, Limit, OnDevice, Seed, Threads
from nein.config.options import Device, Names, Paths, argument, option
from nein.loading.errors import UserError, match_name
from nein.loading.references import Need

if TYPE_CHECKING:
    from nein.benchmarks.nein.runs import RunDir

KINDS = ("vqa", "ovd")  # of judges: visual question answering, open-vocabulary detection
SETS = ("sources", "instances", "pasted")  # of images: see `nein.judges.calibrate`


def read_config(path: Path, judges: Mapping[str, str] | None = None) -> tuple[RunDir, EvalConfig]:
    """The first run at or below `path`, and its options. judges: kind -> judge in place of the run's own."""
    from nein.benchmarks.nein.runs import RunDir
    from nein.engine.folder import find_runs

    folders = find_runs(path)
    if not folders:
        raise UserError(f"'{path}' is not a run (no manifest.json); pass the folder that was its --out.")
    run = RunDir(folders[0])
    settings = run.manifest()["config"]
    settings = {**settings, "models": {**settings.get("models", {}), **(judges or {})}}
    try:
        return run, TypeAdapter(EvalConfig).validate_python(settings)
    except ValueError:
        problem = "has options of another version; rerun its command with --overwrite"
        raise UserError(f"'{run.path}' {problem}.") from None


def judge_needs(kind: str, run: Path, reference: str = "") -> list[Need]:
    """Downloads for the judge `reference`, or, if it is "", for the run's own judge of this kind."""
    from nein.models import needs

    return needs.model_needs(kind, reference or getattr(read_config(run)[1].models, kind))


@dataclass(kw_only=True)
class CalibrateConfig(Limit, Seed, Batches, Budget):
    """The judges to calibrate, and the images of known truth that they are asked about."""

    counted = "images of each set"  # what --limit counts

    run: Path = argument("RUN", "result folder, or one run in it")
    judges: Names = option(list(KINDS), "judges: vqa, ovd; vqa=REFERENCE: another than the run's", "Main")
    sets: Names = option(
        [], f"image sets: {', '.join(SETS)} (default: all available)", "Data", among=SETS, what="set"
    )
    instances: Path | None = option(
        None, "COCO instance annotations (default: instances.json of the data)", "Data"
    )
    images: Path | None = option(None, "image folder of --instances (default: the file's own)", "Data")
    data: str | None = option(None, "NeIn data, if moved", "Data")
    device: Device | None = option(None, "auto, cpu, cuda, cuda:1, mps (default: the run's)", "Machine")
    out: Path | None = option(None, "result folder (default: RUN/calibration)", "Output")

    def needs(self) -> list[Need]:
        return [need for kind, name in self.named.items() for need in judge_needs(kind, self.run, name)]

    @property
    def named(self) -> dict[str, str]:
        """Kind -> judge; "": the run's own. Raises UserError for an unknown kind."""
        pairs = (judge.partition("=") for judge in self.judges)
        return {match_name("judge", kind, KINDS): reference for kind, _, reference in pairs}

    def check(self) -> None:
        if self.limit == 1:
            raise UserError("--limit is 1; pass at least 2.")
        if not self.named:
            raise UserError(f"--judges is empty; pass some of {', '.join(KINDS)}.")


@dataclass(kw_only=True)
class CheckConfig(DtypeOptions, OnDevice, Threads, EndpointOptions):
    """The editor or judge to check, and with how many samples."""

    subject: str = argument("SUBJECT", "editor, or judge of --kind: name, folder, hub id, module:attribute")
    kind: Literal["editor", "vqa", "ovd"] = option("editor", "what is checked: an editor or a judge", "Main")
    number: Annotated[int, Field(ge=3)] = option(6, "samples to try", "Main")
    editor_options: dict[str, Any] = option({}, "options of the editor: --editor-options.steps 4", "Main")

    def needs(self) -> list[Need]:
        from nein.models import needs

        if self.kind != "editor":
            return needs.model_needs(self.kind, self.subject)
        return needs.editor_needs([self.subject], "nano", self.editor_options)


@dataclass(kw_only=True)
class RetrievedConfig(Batches, OnDevice, Budget):
    """The retrieval run to judge, and the calibrated judge."""

    run: Path = argument("OUT", "folder of nein negbench eval")
    judged_by: Path = option(Path("runs/nano"), "nein eval run with a calibrated judge", "Main", value="RUN")
    kind: Literal["vqa", "ovd"] = option("vqa", "judge to use", "Main")
    queries: PositiveInt = option(200, "negated captions per task", "Data")

    def needs(self) -> list[Need]:
        return judge_needs(self.kind, self.judged_by)


@dataclass(kw_only=True)
class StudyConfig(MovedData, Seed):
    """The edits that people label, or the files of their labels."""

    run: Path = argument("RUN", "result folder of nein eval")
    labels: Paths = option([], "files that raters saved: print what they say", "Main")
    raters: PositiveInt = option(2, "pages to make, one per rater", "Main")
    items: PositiveInt = option(120, "edits to label, the same number of every run", "Main")
    shared: NonNegativeInt = option(30, "how many of them every rater labels, for agreement", "Main")
    gold: NonNegativeInt = option(6, "extra items of known truth on every page", "Main")
    out: Path | None = option(None, "folder of the study (default: RUN/study)", "Output")
