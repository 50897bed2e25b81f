"""The command `nein`: finds the subcommand in a table, parses its options, imports it and runs it. Packages
add benchmarks to the table by entry points of the group `nein.benchmarks` (`nein.benchmarks.registry`)."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import logging
import pkgutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from nein.benchmarks import registry
from nein.config.groups import Command
from nein.engine.exits import USER_MISTAKE, exit_with, make_printable
from nein.loading.errors import UserError, near_match

REQUESTS = "nein.benchmarks.progress:estimate_requests"  # what `--dry-run` tells of evaluations

# fmt: off
#: Name -> help, options ("module:class"), function ("module:name"); the name has one word or two.
COMMANDS: dict[str, Command] = {
    "eval": Command("evaluate image editors on negative instructions (NeIn)",
        "nein.benchmarks.nein.config:EvalConfig", "nein.benchmarks.nein.run:NEIN", shared=True,
        announces=REQUESTS),
    "rewriters": Command("measure what rewriters make of negative instructions",
        "nein.benchmarks.rewriters_config:RewritersConfig", "nein.benchmarks.rewriters:REWRITERS",
        shared=True, announces=REQUESTS),
    "generators": Command("evaluate text-to-image models on prompts that deny something",
        "nein.benchmarks.generators_config:GeneratorsConfig", "nein.benchmarks.generators:GENERATORS",
        shared=True, announces=REQUESTS),
    "grid": Command("draw samples and their edits in one image",
        "nein.benchmarks.nein.config:GridConfig", "nein.benchmarks.nein.grid:draw_grid"),
    "report": Command("write a page, tables and plots of finished runs",
        "nein.benchmarks.nein.config:ReportConfig", "nein.benchmarks.finished:report"),
    "compare": Command("compare runs: paired differences, intervals, tests, power",
        "nein.benchmarks.nein.config:CompareConfig", "nein.benchmarks.finished:compare"),
    "mend": Command("try the remedies for a model and recommend one",
        "nein.benchmarks.mend_config:MendConfig", "nein.benchmarks.mend:run", shared=True),
    "export": Command("export scores and figures of runs as two tables",
        "nein.benchmarks.config:ExportConfig", "nein.benchmarks.finished:export"),
    "leaderboard": Command("rank models and remedies by negation gap, on one page",
        "nein.benchmarks.config:LeaderboardConfig", "nein.benchmarks.finished:leaderboard"),
    "calibrate": Command("measure the error rates of a run's judges",
        "nein.judges.config:CalibrateConfig", "nein.judges.calibrate:run"),
    "check": Command("check that an editor or a judge keeps its contract",
        "nein.judges.config:CheckConfig", "nein.judges.check:run"),
    "study": Command("make pages for blind human labels; compare with judges",
        "nein.judges.config:StudyConfig", "nein.judges.study:run"),
    "data nano": Command("draw the miniature world into a folder",
        "nein.datasets.command:DrawConfig", "nein.datasets.command:draw"),
    "data show": Command("write a page of samples, instructions and counts of data",
        "nein.benchmarks.config:DataPageConfig", "nein.benchmarks.data_page:show"),
    "data check": Command("validate annotations and images of a NeIn folder",
        "nein.datasets.command:CheckConfig", "nein.datasets.command:check"),
    "status": Command("show progress of runs: done, running, rate, ETA",
        "nein.config.groups:Runs", "nein.benchmarks.progress:status"),
    "list": Command("list editors, metrics, judges, models, data, benchmarks",
        "nein.listing:ListConfig", "nein.listing:run"),
    "reproduce": Command("measure a published table and compare it with the paper",
        "nein.reproduce:ReproduceConfig", "nein.reproduce:run", announces="nein.reproduce:announce"),
    "convert": Command("convert an original checkpoint to safetensors",
        "nein.models.convert:ConvertConfig", "nein.models.convert:run"),
    "generate": Command("make a NeIn data set from captioned images",
        "nein.generate.config:BuildConfig", "nein.generate.nein.files:build", shared=True),
    "stats": Command("count negative sentences in a caption set",
        "nein.generate.config:StatsConfig", "nein.generate.nein.stats:run"),
    "negbench eval": Command("evaluate CLIP-like and generative models (NegBench)",
        "nein.benchmarks.negbench.config:EvalConfig", "nein.benchmarks.negbench.runs:NEGBENCH", shared=True,
        announces=REQUESTS),
    "negbench judge": Command("check whether retrieved images really lack the object",
        "nein.judges.config:RetrievedConfig", "nein.judges.retrieved:run"),
    "negbench analyse": Command("plot embeddings of affirmed and negated templates",
        "nein.benchmarks.negbench.config:AnalyseConfig", "nein.benchmarks.negbench.analysis:run"),
    "negbench generate": Command("make NegBench data: captions, questions, hard pairs",
        "nein.generate.config:NegbenchConfig", "nein.generate.negbench.files:build", shared=True),
    "negbench convert": Command("convert an open_clip checkpoint to safetensors",
        "nein.benchmarks.negbench.config:ConvertConfig", "nein.benchmarks.negbench.runs:convert"),
    "negvqa": Command("evaluate vision-language models on negated questions",
        "nein.benchmarks.negvqa.config:NegvqaConfig", "nein.benchmarks.negvqa.runs:NEGVQA", shared=True,
        announces=REQUESTS),
    "negvqa generate": Command("make negated two-choice questions from a VQA data set",
        "nein.generate.config:ConversionConfig", "nein.generate.negvqa:build"),
    "negvqa check": Command("estimate a conversion's accuracy from review sheets",
        "nein.generate.config:CheckConfig", "nein.generate.negvqa_check:check"),
}
# fmt: on


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """`nein ARGV`: runs a command and ends the process."""
    words = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path:  # finds my_module:my_edit in this folder, as `python -m nein` does
        sys.path.append("")
    exit_with(lambda: _dispatch(words))


def main_eval(argv: Sequence[str] | None = None) -> NoReturn:
    """`nein-eval`, a name in model cards: the same as `nein eval`."""
    main(["eval", *(sys.argv[1:] if argv is None else argv)])


def _dispatch(words: Sequence[str]) -> int | None:
    """Runs the command that the words name, or prints help; returns the exit code. Raises UserError."""
    if not words or words[0] in ("-h", "--help"):
        print(_overview("", commands()))
        return 0 if words else USER_MISTAKE
    if words[0] == "--version":
        print(importlib.metadata.version("nein"))
        return 0
    if words[0] == "slurm":
        return _submit(words[1:])
    if words[0] == "fetch":
        return _fetch(words[1:])
    match, table = _match(words)
    if match is None:  # a group ("nein negbench", "nein data --help"), or an unknown name
        group = [name for name in table if name.startswith(f"{words[0]} ")]
        if not group or (len(words) > 1 and words[1] not in ("-h", "--help")):
            raise _explain_unknown(" ".join(words[: 2 if group else 1]), group or table)
        print(_overview(f"{words[0]} ", table))
        return 0 if len(words) > 1 else USER_MISTAKE
    name, command, flags = match
    if not command.configuration:  # of a broken plug-in
        raise UserError(f"The command 'nein {name}' {command.help}.")
    return launch(f"nein {name}", command, flags, [key for key in table if key.startswith(f"{name} ")])


def launch(prog: str, command: Command, words: Sequence[str] | None = None, more: Sequence[str] = ()) -> int:
    """Parses the options of `PROG WORDS`, runs the command, prints its text; returns the exit code. The
    command is imported only when the options are valid, and not for `--dry-run`.

    prog  The words before the options: "nein negbench eval", "python -m research.nano".
    more  Commands whose names begin with this one's, for `--help`.
    """
    from nein.config import options

    words = sys.argv[1:] if words is None else words
    configuration = pkgutil.resolve_name(command.configuration)
    also = f" Also: {', '.join(f'nein {name}' for name in more)}." if more else ""
    config, dry_run = options.read(configuration, words, prog=prog, description=f"{command.help}.{also}")
    if dry_run:
        lines = pkgutil.resolve_name(command.announces)(config) if command.announces else ()
        print(options.dump(config) + "".join(f"# {line}\n" for line in lines), end="")
        return 0
    from nein.config.groups import start
    from nein.engine import machine

    machine.tune_process()
    work = pkgutil.resolve_name(command.work)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("huggingface_hub").propagate = False  # it has its own handler
    if command.shared:
        with contextlib.closing(start(config)) as executor:
            result = work(config, executor)
    else:
        result = work(config)
    if isinstance(result, str):
        print(make_printable(result), end="", flush=True)
        if command.shared:
            print(f"Results: {config.out_dir}", file=sys.stderr)
    return result if isinstance(result, int) else 0


# --- nein slurm and nein fetch, which take another command ---------------------------------------
def _submit(words: Sequence[str]) -> int:
    """`nein slurm NAME WORDS`: submits an array of jobs, one share each, and a last job for the report."""
    match = _match(words)[0] if words else None
    if match is None or not match[1].shared:
        shared = [name for name, command in COMMANDS.items() if command.shared]
        usage = (
            f"nein slurm submits {', '.join(shared)} as an array of jobs, for example: nein slurm eval "
            "--partition gpu --gres gpu:1 --array 64 --time 4:00:00 --preset paper --data FOLDER."
        )
        if not words or words[0] not in ("-h", "--help"):
            raise UserError(usage)
        print(usage)
        return 0
    from nein.config import options
    from nein.config.groups import SlurmJobs
    from nein.engine import atomic, slurm
    from nein.loading.references import hide_credentials

    name, command, flags = match
    config_class: Any = pkgutil.resolve_name(command.configuration)
    bases = (config_class, SlurmJobs)
    combined: Any = dataclasses.make_dataclass(config_class.__name__, [], bases=bases, kw_only=True)
    config, dry_run = options.read(combined, flags, prog=f"nein slurm {name}", description=f"{command.help}.")
    if dry_run:
        print(options.dump(config), end="")
        return 0
    if config.overwrite:
        raise UserError("--overwrite is for one command; remove the folder, or choose another --out.")

    # --- write the command's options into a file, which the jobs read
    folder = config.out_dir / "slurm"
    slurm.make_submitter(config, folder, "slurm")  # fails before anything is written
    file = (folder / "command.yaml").resolve()
    values = {item.name: getattr(config, item.name) for item in options.fields(config_class)}
    values["on"] = None  # a job is one process
    atomic.write_text(file, options.dump(config_class(**values)))
    # --- submit the jobs
    typed = tuple(hide_credentials(word) for word in ("slurm", *name.split(), *flags))
    last_job = slurm.Job((*name.split(), "--config", str(file)), typed)
    array_id, condition = "", ""  # of the last job, which waits for the array if there is one
    if config.array > 1:
        shares = [dataclasses.replace(last_job, share=f"{r}/{config.array}") for r in range(config.array)]
        jobs = slurm.submit(shares, config, folder)
        array_id = str(jobs[0].job_id).partition("_")[0]  # of "<array>_<task>"
        condition = f", which starts when {array_id} has ended"
        print(f"Submitted {len(jobs)} jobs, {jobs[0].job_id} to {jobs[-1].job_id}, one share each.")
    [job] = slurm.submit([last_job], config, folder, after=array_id)
    print(f"Submitted {job.job_id}, which makes missing blocks and the report{condition}.")
    print(f"Scripts and logs: {folder}\nProgress: nein status {config.out_dir}")
    return 0


def _fetch(words: Sequence[str]) -> int:
    """`nein fetch NAME WORDS`; the default name is eval."""
    if not words or words[0] in ("-h", "--help"):
        print(
            "usage: nein fetch [COMMAND] [OPTIONS]\n\n"
            "Download models and data of a command (default: eval) to the caches HF_HOME and TORCH_HOME.\n"
            "--dry-run lists files and sizes. Then, without a network: HF_HUB_OFFLINE=1 nein COMMAND OPTIONS"
        )
        return 0 if words else USER_MISTAKE
    match = _match(["eval", *words] if words[0].startswith("-") else words)[0]
    if match is None:
        raise _explain_unknown(words[0], COMMANDS)
    from nein.fetch import fetch_command

    result = fetch_command(*match)
    print(result if isinstance(result, str) else "", end="")
    return result if isinstance(result, int) else 0


# --- finding a command, and the overview of --help -----------------------------------------------
def commands() -> dict[str, Command]:
    """`COMMANDS` and the benchmarks of installed packages; the help of a broken one tells its error."""
    table = dict(COMMANDS)
    for name, target in registry.plugins().items():
        try:
            benchmark = registry.get(name)
        except UserError as error:
            table.setdefault(name, Command(f"is broken ({error})", "", ""))
            continue
        options = f"{benchmark.config.__module__}:{benchmark.config.__qualname__}"
        about = benchmark.about or f"evaluate on {benchmark.title}"
        table.setdefault(name, Command(about, options, target, shared=True))
    return table


def _match(
    words: Sequence[str], table: dict[str, Command] = COMMANDS
) -> tuple[tuple[str, Command, list[str]] | None, dict[str, Command]]:
    """The longest name that `words` begin with: (name, command, words after it) or None; and the table that
    was searched last: `table`, then that with plug-ins, which are loaded only if no command of ours fits."""
    first, pair = words[0], " ".join(words[:2])
    if pair in table:
        return (pair, table[pair], list(words[len(pair.split()) :])), table
    # A misspelled subcommand ("negvqa reprot") is no argument of the command "negvqa".
    has_second_word = len(words) > 1 and not words[1].startswith("-")
    is_group = any(name.startswith(f"{first} ") for name in table)
    if first in table and not (has_second_word and is_group):
        return (first, table[first], list(words[1:])), table
    return _match(words, commands()) if table is COMMANDS else (None, table)


def _explain_unknown(name: str, allowed: Iterable[str]) -> UserError:
    """The error for an unknown command. name: one word or two; allowed: names of commands."""
    names = list(dict.fromkeys(other if " " in name else other.partition(" ")[0] for other in allowed))
    near = near_match(name, names)
    guess = f"; did you mean 'nein {near}'?" if near else "."
    return UserError(f"Unknown command 'nein {name}'{guess} Commands: {', '.join(names)}.")


#: The first commands of `nein --help`.
EVERYDAY = ("eval", "negbench eval", "negvqa", "report", "compare", "grid", "list")


def _overview(start: str, table: Mapping[str, Command]) -> str:
    """The text of `nein --help` or, for commands that begin with `start`, of `nein negbench --help`."""
    rows = {name: command.help for name, command in table.items() if name.startswith(start)}
    sections = [rows]
    if not start:  # the everyday commands, the others of one word, and a line for each group
        groups: dict[str, list[str]] = {}
        for name in rows:
            if " " in name and name not in EVERYDAY:
                group, _, subcommand = name.partition(" ")
                groups.setdefault(group, []).append(subcommand)
        sections = [
            {name: rows[name] for name in EVERYDAY},
            {name: text for name, text in rows.items() if " " not in name and name not in EVERYDAY},
            {group: ", ".join(subcommands) for group, subcommands in groups.items()},
        ]
    width = max(len(name) for section in sections for name in section)
    blocks = []
    for section in sections:
        blocks.append("".join(f"  nein {name:<{width}}  {text}\n" for name, text in section.items()))
    return (
        f"usage: nein {start}COMMAND [OPTIONS]\n\n"
        "Measure how image editors and vision-language models understand negation.\n\n"
        + "\n".join(blocks)
        + "\nnein fetch COMMAND downloads models and data for machines without internet.\n"
        f"nein slurm COMMAND submits an array of jobs; nein {start}COMMAND --help lists options."
    )
