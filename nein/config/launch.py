"""From the words of a command line to work done."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import pkgutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nein.config import options
from nein.config.commands import Command
from nein.config.groups import SlurmJobs
from nein.engine.errors import UserError, printable

if TYPE_CHECKING:
    from nein.engine.run import Executor


def launch(
    prog: str, command: Command, words: Sequence[str] | None = None, others: Sequence[str] = ()
) -> int:
    """Reads the options of `PROG WORDS`, does the work, prints the text it returns; the exit code.

    prog    What is typed before the options: "nein negbench eval", "python -m research.nano".
    others  Commands whose names begin with this one's, for `--help`.

    The function that works is imported only when the options are in order, and not at all for `--dry-run`.
    """
    words = sys.argv[1:] if words is None else words
    configuration = pkgutil.resolve_name(command.configuration)
    description = command.description
    if others:
        description += f" Also: {', '.join(f'nein {other}' for other in others)}."
    config, dry_run = options.read(configuration, words, prog=prog, description=description)
    if dry_run:
        lines = pkgutil.resolve_name(command.announces)(config) if command.announces else ()
        print(options.dump(config) + "".join(f"# {line}\n" for line in lines), end="")
        return 0
    from nein.engine import machine

    machine.tune_process()
    work = pkgutil.resolve_name(command.work)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if command.shared:
        with contextlib.closing(start(config)) as executor:
            answer = work(config, executor)
    else:
        answer = work(config)
    if isinstance(answer, str):
        print(printable(answer), end="", flush=True)
        if command.shared:
            print(f"Results: {config.out_dir}", file=sys.stderr)
    return answer if isinstance(answer, int) else 0


def start(options: Any) -> Executor:
    """The executor of `--on` (`nein.config.groups.RuntimeOptions`). Raises UserError."""
    from nein.engine import machine, run
    from nein.loading.service import AT_ONCE

    on = getattr(options, "on", None) or ("ranks" if machine.launched() else "threads")
    if on == "ray":
        from nein.engine.ray import Ray

        pool = options.executor
        return Ray(options.device, None, pool.workers, pool.gpus_per_worker)
    if on == "ranks" and not machine.launched():
        raise UserError("--on ranks is for commands that accelerate launch or torchrun starts.")
    ranks = machine.from_environment() if on == "ranks" else None
    requests = options.endpoint.concurrency or AT_ONCE
    return run.Executor(options.device, ranks, share=run.share(), requests=requests, debug=on == "debug")


def submit(name: str, command: Command, words: Sequence[str]) -> int:
    """`nein slurm NAME WORDS`: an array of jobs, a share each, and a last job; `--dry-run` prints it."""
    from nein.engine import atomic, slurm
    from nein.loading.references import without_credentials

    own: Any = pkgutil.resolve_name(command.configuration)
    both = dataclasses.make_dataclass(own.__name__, [], bases=(own, SlurmJobs), kw_only=True)
    config: Any
    config, dry_run = options.read(both, words, prog=f"nein slurm {name}", description=command.description)
    folder = config.out_dir / "slurm"
    if dry_run:
        print(slurm.script(config, folder), end="")
        return 0
    if config.overwrite:
        raise UserError("--overwrite is for one command; remove the folder, or choose another --out.")
    slurm.executor(config, folder, "slurm")  # what is missing is said before anything is written
    file = (folder / "command.yaml").resolve()
    values = {item.name: getattr(config, item.name) for item in options.fields(own)}
    atomic.write_text(file, options.dump(own(**{**values, "on": None})))
    given = tuple(without_credentials(word) for word in ("slurm", *name.split(), *words))
    last = slurm.Whole((*name.split(), "--config", str(file)), given)
    array = ""
    if config.array > 1:
        shares = [dataclasses.replace(last, share=f"{r}/{config.array}") for r in range(config.array)]
        jobs = slurm.submit(shares, config, folder)
        array = str(jobs[0].job_id).partition("_")[0]
        print(f"Submitted {len(jobs)} jobs, {jobs[0].job_id} to {jobs[-1].job_id}, one share each.")
    [job] = slurm.submit([last], config, folder, after=array)
    when = f", which begins when {array} has ended" if array else ""
    print(f"Submitted {job.job_id}, which makes what is left and the report{when}.")
    print(f"Scripts and logs: {folder}")
    print(f"How far they are: nein status {config.out_dir}")
    return 0
