"""`nein reproduce`: a published table measured again in one command, and a file of what came out, for others
to check.

nein reproduce nein-table3 --data NEIN --device cuda
nein reproduce nein-table3 --preset nano        the same path in miniature, offline
nein reproduce reproduction.json
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pydantic
from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveInt

from nein.benchmarks import registry
from nein.config import options
from nein.config.groups import Limit, OnDevice
from nein.config.options import Names, argument, option
from nein.engine.errors import UserError, chosen
from nein.loading.references import Need

if TYPE_CHECKING:
    from nein.benchmarks.runner import Benchmark, Printed

FILE = "reproduction.json"
#: Options of a benchmark that say where something is; all others are named beside the figures.
PLACES = ("data", "images", "image-root", "cache", "negated")


@dataclass(frozen=True)
class Table:
    """A published table, or a part of one.

    source   As of `Benchmark.published`.     asks  The option of its benchmark's command that names models.
    models   Preset -> those that can be downloaded.
    options  Of the command, beside those of the preset; `nano`: further ones in miniature.
    """

    title: str
    benchmark: str
    source: str
    models: Mapping[str, str]
    options: Mapping[str, str]
    nano: Mapping[str, str] = field(default_factory=lambda: {"data": "nano"})
    asks: str = "model"


def _negbench(title: str, source: str, models: str, **more: str) -> Table:
    drawn = ",".join(f"{name}=nano:clip" for name in models.split(",")[:2])
    given = {"datasets": "coco,voc2007", "tasks": "mcq", "variants": "rephrased", "protocol": "paper"}
    miniature = {"datasets": "all", "variants": "all", "data": "nano"}
    options = {**given, "blind": "0", **more}
    title, named = f"NegBench (CVPR 2025), {title}", {"paper": models, "nano": drawn}
    return Table(title, "negbench", source, named, options, miniature)


_MCQ = "repository, results/mcq/"
TABLES = {
    "nein-table3": Table(
        "NeIn (CVPR Workshops 2025), Table 3",
        "nein",
        "table3",
        models={"paper": "ip2p,magicbrush,hqedit", "nano": "ip2p,magicbrush"},
        options={"control": "none", "protocol": "paper"},
        asks="editor",
    ),
    "negbench-table1": _negbench(
        "Table 1", "paper_table1", "clip", datasets="coco,msr-vtt", tasks="all", features="unnormalised"
    ),
    "negbench-baselines": _negbench(
        f"{_MCQ}1_baseline", "repo_baseline", "clip,clip-laion400m,clip-datacomp"
    ),
    "negbench-scaling": _negbench(f"{_MCQ}2_scaling_clip", "repo_scaling", "clip-laion400m,clip-l,clip-h"),
    "negbench-finetuned": _negbench(f"{_MCQ}3_finetuned_total", "repo_finetuned", "clip"),
    "negbench-figures": _negbench(
        "Figures 3 and 4c, drops",
        "paper_figures",
        "clip-laion400m,clip-datacomp,biomedclip",
        datasets="coco,chexpert",
        tasks="all",
        variants="all",
        features="unnormalised",
    ),
    "negvqa-table1": Table(
        "NegVQA (ACL Findings 2025), Table 1",
        "negvqa",
        "table1",
        models={"paper": "llava-hf/llava-1.5-7b-hf", "nano": "llava-1.5-7b-hf=nano:negvqa"},
        options={"blind": "0", "scoring": "generated", "protocol": "paper"},
    ),
}


@dataclass(kw_only=True)
class ReproduceConfig(Limit, OnDevice):
    """Which table, of how many samples, or which file is checked."""

    epilog = (
        "What has to be downloaded is downloaded when it is used, or beforehand: nein fetch reproduce TABLE. "
        "--run.OPTION VALUE is any option of the benchmark's command. "
        "Tables of trainings (NegBench's over alpha) are not among them: docs/reference/papers.md."
    )

    table: str = argument("TABLE", f"{', '.join(TABLES)}, or a {FILE} to check; nothing is computed then")
    preset: Literal["nano", "paper"] = option(
        "paper", "paper: published models; nano: the same path in miniature", "Main"
    )
    model: Names = option(
        [], "rows to measure, LABEL=FOLDER for own weights (default: all downloadable)", "Main"
    )
    data: str | None = option(None, "published data, if not on the hub", "Data")
    run: dict[str, str] = option(
        {}, "other options of the benchmark's command: --run.image-root coco=FOLDER", "Method"
    )
    out: str | None = option(
        None, f"folder of the runs and {FILE} (default: runs/reproduce-TABLE-PRESET)", "Output"
    )

    def check(self) -> None:
        if self.file is None:
            self.table = chosen("table", self.table, TABLES)

    @property
    def file(self) -> Path | None:
        """The file that is checked, in place of a table that is measured."""
        return Path(self.table) if self.table.endswith(".json") else None

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/reproduce-{self.table}-{self.preset}")

    @property
    def chosen(self) -> Table:
        return TABLES[chosen("table", self.table, TABLES)]

    @property
    def benchmark(self) -> Benchmark:
        return registry.get(self.chosen.benchmark)

    def words(self) -> list[str]:
        table = self.chosen
        given: dict[str, Any] = {"preset": self.preset, **table.options}
        given |= table.nano if self.preset == "nano" else {}
        given |= {"data": self.data} if self.data else {}
        given[table.asks] = ",".join(self.model) or table.models[self.preset]
        given |= {"limit": self.limit, "device": self.device, "out": str(self.out_dir), **self.run}
        return [f"--{name}={value}" for name, value in given.items() if value is not None]

    def inner(self, *, to_fetch: bool = False) -> Any:
        prog = f"nein reproduce {self.table}: {self.benchmark.typed}"
        return options.read(self.benchmark.config, self.words(), prog=prog, to_fetch=to_fetch)[0]

    def needs(self) -> list[Need]:
        return [] if self.file else list(self.inner(to_fetch=True).needs())


def announced(config: ReproduceConfig) -> list[str]:
    return [] if config.file else [" ".join([config.benchmark.typed, *config.words()])]


# --- the file --------------------------------------------------------------------------------------


class _Form(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Figure(_Form):
    """Our figure of what the table prints of `of`; shares, not per cent."""

    of: dict[str, str]
    value: float | None
    low: float | None
    high: float | None
    n: NonNegativeInt
    unscored: NonNegativeInt

    @pydantic.model_validator(mode="after")
    def check(self) -> Figure:
        ends = [end for end in (self.low, self.value, self.high) if end is not None]
        if ends != sorted(ends) or (self.value is not None and not self.n):
            raise ValueError("a value does not lie in its interval, or is of nothing")
        return self


class Measured(_Form):
    """A run: its row of the table, the digest of its data, fingerprints of its models; of every stage the
    "seconds" of all workers, one after the other, and bytes at the peak ("host", "device"); of each machine a
    text for each fact."""

    run: str
    row: str
    data: str
    models: dict[str, str]
    stages: dict[str, dict[str, NonNegativeFloat]]
    machines: list[dict[str, str]]
    figures: list[Figure]


class Reproduction(_Form):
    """What came out. options: of the benchmark's command, where others than the table's were given."""

    table: str
    preset: Literal["nano", "paper"]
    samples: PositiveInt | None
    options: dict[str, str]
    runs: list[Measured]


def agreement(printed: Printed, ours: Figure, preset: str, samples: int | None) -> str:
    """ "yes" or "no", whether the published value lies within our interval; or why that says nothing."""
    total = ours.n + ours.unscored
    if preset == "nano":
        return "miniature models: not comparable"
    if ours.value is None:
        return "not measured"
    if ours.low is None or ours.high is None:
        return "no interval"
    if printed.whole and samples is not None:
        return "depends on how many samples there are"
    if samples is None and printed.n not in (None, total):
        return f"of {total} samples, published of {printed.n}"
    return "yes" if ours.low <= printed.value <= ours.high else "no"


# --- measuring -------------------------------------------------------------------------------------


def run(config: ReproduceConfig) -> str | None:
    if config.file is not None:
        return check(config.file)
    from nein.config.groups import start
    from nein.engine import atomic

    inner = config.inner()
    with contextlib.closing(start(inner)) as executor:
        config.benchmark(inner, executor)
        if not executor.concludes:
            return None
        runs = config.benchmark.runs(inner, executor.device)
        found = reproduction(config, [run.folder.path for run in runs])
    path = config.out_dir / FILE
    atomic.write_text(path, found.model_dump_json(indent=1) + "\n")
    return f"{text(found)}To send back, and to check with nein reproduce FILE: {path}\n"


def reproduction(config: ReproduceConfig, folders: Sequence[Path]) -> Reproduction:
    from nein.benchmarks.runner import FIGURES
    from nein.engine.folder import Folder
    from nein.reporting import figures as frames

    # A run is of one data set, and one of drawn data of one wording, which need not be the table's.
    apart = ("dataset", "variant") if config.preset == "nano" else ("dataset",)
    runs = []
    for path in folders:
        folder, measured = Folder(path), frames.read(path / FIGURES)
        manifest, row, figures = folder.manifest(), "", []
        for printed in config.benchmark.published(config.chosen.source, manifest):
            where = {key: value for key, value in printed.of.items() if key not in apart}
            found, row = frames.pick(measured, **where) or {}, printed.row
            numbers: dict[str, Any] = {name: found.get(name) for name in ("value", "low", "high")}
            numbers |= {name: found.get(name) or 0 for name in ("n", "unscored")}
            figures.append(Figure(of=dict(printed.of), **numbers))
        data, costs = manifest["data"], sorted(folder.costs().items())
        hosts = [entry["environment"] for entry in manifest["invocations"] if entry.get("environment")]
        own = Measured(
            run=path.relative_to(config.out_dir).as_posix(),
            row=row,
            data=data.get("records_sha256") or data.get("sha256") or "",
            models={kind: str(facts["fingerprint"]) for kind, facts in manifest["models"].items()},
            stages={stage: {"seconds": cost["seconds"], **cost["peak_memory"]} for stage, cost in costs},
            machines=[*{str(host): _machine(host) for host in hosts}.values()],
            figures=figures,
        )
        runs.append(own)
    given = {name: Path(value).name if Path(value).exists() else value for name, value in config.run.items()}
    told = {name: value for name, value in given.items() if name not in PLACES}
    named: Any = {"table": config.table, "preset": config.preset, "samples": config.limit}
    return Reproduction(**named, options=told, runs=runs)


def _machine(host: Mapping[str, Any]) -> dict[str, str]:
    """Where, and by which versions."""
    git = host.get("git") or {}
    facts = {key: host.get(key) for key in ("python", "platform", "device", "device_name", "arithmetic")}
    facts |= {
        "git": git.get("commit"),
        "git changes": "yes" if git.get("dirty") else None,
        **host["packages"],
    }
    return {key: str(fact) for key, fact in facts.items() if fact}


# --- showing and checking --------------------------------------------------------------------------


def _key(row: str, of: Mapping[str, str]) -> tuple[str, str]:
    return row, str(sorted(of.items()))


def _cells(table: Table) -> dict[tuple[str, str], Printed]:
    """The published figures of a table by row and by what they are of."""
    published = registry.get(table.benchmark).published(table.source, None)
    return {_key(printed.row, printed.of): printed for printed in published}


def text(found: Reproduction) -> str:
    """The table: published, ours, whether they agree; then what it cost."""
    from nein.reporting import tables
    from nein.reporting.tables import pipes

    table, rows, spent = TABLES[found.table], [], []
    cells = _cells(table)
    seen = {(key, value) for printed in cells.values() for key, value in printed.of.items()}
    several = [key for key, count in Counter(key for key, _ in seen).items() if count > 1]
    for run in found.runs:
        for figure in run.figures:
            printed = cells[_key(run.row, figure.of)]
            what = ", ".join(value for key, value in figure.of.items() if value and key in several)
            ours = tables.text({**figure.model_dump(), "unit": printed.unit}, digits=2)
            theirs = tables.number(printed.value, printed.unit, digits=2)
            verdict = agreement(printed, figure, found.preset, found.samples)
            rows.append([run.row, what, theirs, ours, figure.n, figure.unscored, verdict])
        for stage, cost in run.stages.items():
            memory = [f"{cost.get(where, 0) / 2**30:.2f}" for where in ("host", "device")]
            spent.append([run.run, stage, f"{cost.get('seconds', 0) / 3600:.3f}", *memory])
    heads = ("row", "figure", "published", "ours [95 % interval]", "n", "unscored", "agree")
    samples = "all samples" if found.samples is None else f"the first {found.samples} samples"
    parts = [f"{table.title}, on {samples}, preset {found.preset}:", pipes(rows, heads)]
    if found.options:
        given = ", ".join(f"--{name} {value}" for name, value in found.options.items())
        parts.append(f"With other options than the table's: {given}.")
    count = Counter(verdict for *_, verdict in rows)
    if total := count["yes"] + count["no"]:
        more = f"\n{len(rows) - total} figures cannot be compared." if total < len(rows) else ""
        rule = "the published value lies within our 95 % interval"
        parts.append(f"{count['yes']} of {total} comparable figures agree ({rule}).{more}")
    else:
        parts.append("Nothing is comparable.")
    parts.append(pipes(spent, ("run", "stage", "hours of work", "GiB, host", "GiB, device")))
    return "\n\n".join(parts) + "\n\n"


def check(path: Path) -> str:
    """The table again of a file of somebody else, of which nothing is run or followed. Raises UserError for a
    file of another form, or with figures that the table does not have."""
    try:
        found = Reproduction.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ascii(".".join(map(str, first["loc"])))[:100]
        raise UserError(f"'{path}' is not a {FILE}: {where}: {first['msg']}.") from None
    if found.table not in TABLES:
        raise UserError(f"'{path}' is of the table '{found.table}', which there is not.")
    cells = _cells(TABLES[found.table])
    for row, figure in ((run.row, figure) for run in found.runs for figure in run.figures):
        if _key(row, figure.of) not in cells:
            name = ", ".join([row, *filter(None, figure.of.values())])
            raise UserError(f"'{path}' has a figure that is not in the table: {name}.")
    return f"{text(found)}The file is in order: the table has its figures, and each lies in its interval.\n"
