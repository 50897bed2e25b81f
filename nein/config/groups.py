"""Declares what a command is, groups of options that commands inherit, and the executor of `--on`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from nein.config.options import Device, Names, Options, Paths, argument, option
from nein.loading.digests import Json
from nein.loading.errors import UserError

if TYPE_CHECKING:
    from nein.engine import run


@dataclass(frozen=True)
class Command:
    """A command of `nein`. Its code is named as "module:name", and imported when it is called."""

    help: str  # one sentence without a period, for `nein --help`
    configuration: str  # the dataclass of its options, a `nein.config.options.Options`, in a light module
    work: str  # function of the options; returns text to print, an exit code, or None
    shared: bool = False  # whether `work` also takes the executor of `--on`, which shares the work
    announces: str = ""  # function of the options; returns what `--dry-run` adds as comments; "": nothing


# --- groups of options ---------------------------------------------------------------------------
Dtype = Literal["float32", "bfloat16", "float16"]
FORMATS = ("html", "md", "csv", "tex", "plots")


@dataclass(kw_only=True)
class Preset(Options):
    preset: Literal["nano", "paper"] = option("nano", "defaults: configs/<presets>PRESET.yaml", "Main")


@dataclass(kw_only=True)
class Limit(Options):
    limit: PositiveInt | None = option(None, "only the first N <counted>", "Main")
    counted: ClassVar[str] = "samples"  # what the help calls them


@dataclass(kw_only=True)
class Output(Options):
    """The folder of results, resumed if it exists."""

    out: str | None = option(
        None, "result folder, resumed if it exists (default: <default_out>)", "Main", value="FOLDER"
    )
    overwrite: bool = option(False, "discard results in OUT that are finished or of other options", "Output")
    default_out: ClassVar[str]  # default of `out`; PRESET in it is replaced by the name of the preset

    @property
    def out_dir(self) -> Path:
        return Path(self.out or self.default_out.replace("PRESET", getattr(self, "preset", "")))


@dataclass(kw_only=True)
class Blind(Options):
    """A control: accuracy of the same model without the image or without the question."""

    blind: NonNegativeInt = option(500, "ask this many questions also without the image; 0: none", "Method")


@dataclass(kw_only=True)
class TrackerOptions(Options):
    trackers: Names = option([], "tensorboard, wandb, trackio, ... or none", "Logging")


@dataclass(kw_only=True)
class Seed(Options):
    seed: NonNegativeInt = option(0, "random seed", "Method")


@dataclass(kw_only=True)
class Sampler(Options):
    editor_options: Json = option({}, "--editor-options.steps 20, .guidance_scale, .offload, .ema", "Editor")


@dataclass(kw_only=True)
class OnDevice(Options):
    device: Device = option("auto", "auto, cpu, cuda, cuda:1, mps", "Main")


@dataclass(kw_only=True)
class Threads(Options):
    threads: PositiveInt | None = option(None, "PyTorch threads (default on a CPU: one per core)", "Machine")


@dataclass(kw_only=True)
class Batches(Threads):
    batch_size: PositiveInt = option(16, "batch size; lower it on out-of-memory", "Machine")  # and block size


@dataclass(kw_only=True)
class DtypeOptions(Options):
    dtype: Dtype = option("float32", "dtype of the models", "Machine")


@dataclass
class Endpoint:
    """Limits of the requests to served models."""

    concurrency: PositiveInt | None = option(None, "concurrent requests (default: 8)")
    timeout: PositiveFloat | None = option(
        None, "time limit of a request (default: 120; edits: 300)", value="SECONDS"
    )
    retries: NonNegativeInt | None = option(None, "retries of a failed request (default: 5)")


@dataclass(kw_only=True)
class EndpointOptions(Options):
    endpoint: Endpoint = field(default_factory=Endpoint)


@dataclass(kw_only=True)
class Budget(EndpointOptions):
    budget: PositiveFloat | None = option(
        None, "stop at this cost of endpoints, summed over commands in OUT", "Machine", value="DOLLARS"
    )


@dataclass(kw_only=True)
class SlurmJobs(Options):
    """Options that `nein slurm COMMAND` adds to those of the command."""

    partition: str | None = option(None, "partition of the jobs", "Slurm")
    gres: str | None = option(None, "resources of each job: gpu:1", "Slurm")
    array: PositiveInt = option(4, "number of jobs", "Slurm")
    time: str = option("4:00:00", "time limit of a job, which is then requeued", "Slurm", value="H:MM:SS")
    options: dict[str, str] = option({}, "further options of sbatch: --options.account NAME", "Slurm")


@dataclass
class RayWorkers:
    """The workers of `--on ray`, on this machine or on the cluster of RAY_ADDRESS (HOST:PORT)."""

    workers: PositiveInt | None = option(None, "maximum number of workers")
    gpus_per_worker: PositiveFloat = option(1.0, "GPUs per worker; 0.25 puts four on one")


@dataclass(kw_only=True)
class RuntimeOptions(DtypeOptions, OnDevice, Batches, Budget):
    """Device, batches, requests, and the processes that share the work (`nein.engine.run`)."""

    on: Literal["threads", "ranks", "ray", "debug"] | None = option(
        None,
        "backend: threads (default), ranks (automatic under torchrun), ray, debug (sequential)",
        "Machine",
    )
    executor: RayWorkers = field(default_factory=RayWorkers)


@dataclass(kw_only=True)
class Evaluation(Preset, Limit, RuntimeOptions, Output, TrackerOptions):
    protocol: Literal["paper", "fixed"] = option(
        "fixed", "paper: as in the released code; fixed: corrected", "Method"
    )
    fail_on_unscored: bool = option(
        False, "exit 3 if any sample is unscored (the count is always printed)", "Output"
    )


@dataclass(kw_only=True)
class Runs(Options):
    runs: Paths = argument("RUN", "result folders, or single runs in them")


@dataclass(kw_only=True)
class Page(Options):
    formats: Names = option(
        list(FORMATS), f"parts of the report: {', '.join(FORMATS)}", "Output", among=FORMATS, what="format"
    )
    out: Path = option(Path("report.html"), "page to write; other formats get the same name", "Output")

    def check(self) -> None:
        if self.out.is_dir():
            raise UserError(f"'{self.out}' is a folder; --out takes a file: {self.out / 'report.html'}.")
        if self.out.suffix not in ("", ".html", ".htm"):
            raise UserError(f"--out is '{self.out}'; it takes a page, for example report.html.")


# --- the executor --------------------------------------------------------------------------------
def start(options: Any) -> run.Executor:
    """The executor that `--on` chooses. options: `RuntimeOptions`, or some of them. Raises UserError."""
    from nein.engine import machine, run
    from nein.loading.service import AT_ONCE

    is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # by accelerate or torchrun
    backend = getattr(options, "on", None) or ("ranks" if is_launched else "threads")
    if backend == "ray":
        from nein.engine.ray import Ray

        return Ray(options.device, **vars(options.executor), threads=options.threads)
    if backend == "ranks" and not is_launched:
        raise UserError("--on ranks needs several processes; start the command with torchrun.")
    ranks = machine.join_processes() if backend == "ranks" else None
    return run.Executor(
        options.device,
        ranks,
        share=run.read_share(),
        threads=getattr(options, "threads", None),
        requests=options.endpoint.concurrency or AT_ONCE,
        debug=backend == "debug",
    )
