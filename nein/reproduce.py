"""`nein reproduce`: a published table measured again in one command, and a file of what came out, for others
to check.

nein reproduce nein-table3 --data NEIN --device cuda
nein reproduce nein-table3 --preset nano        the same path in miniature, offline
nein reproduce reproduction.json
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from nein.benchmarks import registry
from nein.config import options
from nein.config.groups import Limit, OnDevice
from nein.config.options import Names, argument, option
from nein.engine.errors import UserError, chosen
from nein.loading.references import Need

if TYPE_CHECKING:
    from nein.benchmarks.runner import Printed

FILE = "reproduction.json"
LARGEST = 16 * 2**20  # bytes of a file that is checked
#: Options of a benchmark that say where something is; all others are named beside the figures.
PLACES = ("data", "images", "image-root", "cache", "negated")


@dataclass(frozen=True)
class Table:
    """A published table, or a part of one. asks: the option of its benchmark's command that names models.
    source: as of `Benchmark.published`. models: preset -> those that can be downloaded. options: of the
    command, beside those of the preset; `nano`: further ones in miniature."""

    title: str
    benchmark: str
    source: str
    models: Mapping[str, str]
    asks: str = "model"
    options: Mapping[str, str] = field(default_factory=dict)
    nano: Mapping[str, str] = field(default_factory=dict)


def _negbench(title: str, source: str, models: str, **more: str) -> Table:
    named = {"paper": models, "nano": ",".join(f"{name}=nano:clip" for name in models.split(",")[:2])}
    given = {"datasets": "coco,voc2007", "tasks": "mcq", "variants": "rephrased", "protocol": "paper"}
    drawn = {"datasets": "all", "variants": "all", "data": "nano"}
    title = f"NegBench (CVPR 2025), {title}"
    return Table(title, "negbench", source, named, "model", {**given, "blind": "0", **more}, drawn)


TABLES = {
    "nein-table3": Table(
        "NeIn (CVPR Workshops 2025), Table 3", "nein", "table3",
        {"paper": "ip2p,magicbrush,hqedit", "nano": "ip2p,magicbrush"}, "editor",
        {"control": "none", "protocol": "paper"}, {"data": "nano"},
    ),
    "negbench-table1": _negbench(
        "Table 1", "paper_table1", "clip", datasets="coco,msr-vtt", tasks="all", features="unnormalised"
    ),
    "negbench-baselines": _negbench(
        "repository, results/mcq/1_baseline", "repo_baseline", "clip,clip-laion400m,clip-datacomp"
    ),
    "negbench-scaling": _negbench(
        "repository, results/mcq/2_scaling_clip", "repo_scaling", "clip-laion400m,clip-l,clip-h"
    ),
    "negbench-finetuned": _negbench("repository, results/mcq/3_finetuned_total", "repo_finetuned", "clip"),
    "negvqa-table1": Table(
        "NegVQA (ACL Findings 2025), Table 1", "negvqa", "table1",
        {"paper": "llava-hf/llava-1.5-7b-hf", "nano": "llava-1.5-7b-hf=nano:negvqa"},
        options={"blind": "0", "scoring": "generated", "protocol": "paper"}, nano={"data": "nano"},
    ),
}  # fmt: skip


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

    def words(self) -> list[str]:
        table = self.chosen
        given = {
            "preset": self.preset, **table.options, **(table.nano if self.preset == "nano" else {}),
            table.asks: ",".join(self.model) or table.models[self.preset],
            **({"data": self.data} if self.data else {}),
            "limit": self.limit, "device": self.device, "out": str(self.out_dir), **self.run,
        }  # fmt: skip
        return [f"--{name}={value}" for name, value in given.items() if value is not None]

    def inner(self, *, to_fetch: bool = False) -> Any:
        benchmark = registry.get(self.chosen.benchmark)
        prog = f"nein reproduce {self.table}: {benchmark.typed}"
        return options.read(benchmark.config, self.words(), prog=prog, to_fetch=to_fetch)[0]

    def needs(self) -> list[Need]:
        return [] if self.file else list(self.inner(to_fetch=True).needs())


def announced(config: ReproduceConfig) -> list[str]:
    return (
        [" ".join([registry.get(config.chosen.benchmark).typed, *config.words()])]
        if config.file is None
        else []
    )


# --- the file --------------------------------------------------------------------------------------


def _printable(text: str) -> str:
    if not text.isprintable() or len(text) > 400:
        raise ValueError("a text has characters that are not printed, or is too long")
    return text


Text = Annotated[str, AfterValidator(_printable)]


class _Form(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Figure(_Form):
    """A published figure and ours; shares, not per cent. agrees: None where it cannot be said, `why`."""

    row: Text
    of: dict[Text, Text]
    published: float
    value: float | None
    low: float | None
    high: float | None
    n: NonNegativeInt
    unscored: NonNegativeInt
    agrees: bool | None
    why: Text


class Measured(_Form):
    """A run: its row of the table, the digest of its data, fingerprints of its models; of every stage the
    "seconds" of all workers, one after the other, and bytes at the peak ("host", "device"); of each machine a
    text for each fact."""

    run: Text
    row: Text
    data: Text
    models: dict[Text, Text]
    stages: dict[Text, dict[Text, NonNegativeFloat]]
    machines: Annotated[list[dict[Text, Text]], Field(max_length=1000)]


class Reproduction(_Form):
    """What came out. options: of the benchmark's command, where others than the table's were given."""

    format: Literal[1] = 1
    table: Text
    preset: Literal["nano", "paper"]
    samples: PositiveInt | None
    options: dict[Text, Text]
    runs: Annotated[list[Measured], Field(max_length=1000)]
    figures: Annotated[list[Figure], Field(max_length=10_000)]


def agreement(printed: Printed, ours: Mapping[str, Any], preset: str, samples: int | None) -> tuple[Any, str]:
    """Whether the published value lies within our interval; None and the reason where that says nothing."""
    total = ours["n"] + ours["unscored"]
    reasons = {
        "miniature models: not comparable": preset == "nano",
        "not measured": ours["value"] is None,
        "no interval": ours["low"] is None or ours["high"] is None,
        "depends on how many samples there are": printed.whole and samples is not None,
        f"of {total} samples, published of {printed.n}": samples is None and printed.n not in (None, total),
    }
    if why := next((reason for reason, holds in reasons.items() if holds), ""):
        return None, why
    return ours["low"] <= printed.value <= ours["high"], ""


# --- measuring -------------------------------------------------------------------------------------


def run(config: ReproduceConfig) -> int | str | None:
    if config.file is not None:
        return check(config.file)
    from nein.config.launch import start
    from nein.engine import atomic

    benchmark, inner = registry.get(config.chosen.benchmark), config.inner()
    with contextlib.closing(start(inner)) as executor:
        benchmark(inner, executor)
        if not executor.concludes:
            return None
        runs = benchmark.runs(inner, executor.device)
        found = reproduction(config, [inner.out_dir / run.folder for run in runs])
    path = config.out_dir / FILE
    atomic.write_text(path, found.model_dump_json(indent=1) + "\n")
    return f"{text(found)}To send back, and to check with nein reproduce FILE: {path}\n"


def reproduction(config: ReproduceConfig, folders: Sequence[Path]) -> Reproduction:
    from nein.benchmarks.runner import FIGURES
    from nein.engine.folder import Folder
    from nein.reporting import figures as frames

    table = config.chosen
    benchmark = registry.get(table.benchmark)
    runs, figures = [], []
    for path in folders:
        folder, name = Folder(path), path.relative_to(config.out_dir).as_posix()
        manifest, measured = folder.manifest(), frames.read(path / FIGURES)
        row = ""
        for entry in benchmark.published(table.source, manifest):
            one = ("dataset", "variant") if config.preset == "nano" else ("dataset",)  # a run is of one
            here = {key: value for key, value in entry.of.items() if key not in one}
            ours: dict[str, Any] = {"value": None, "low": None, "high": None, "n": 0, "unscored": 0}
            found = frames.pick(measured, **here) or {}
            ours |= {key: found[key] for key in ours if found.get(key) is not None}
            agrees, why = agreement(entry, ours, config.preset, config.limit)
            row = entry.row
            figures.append(
                Figure(row=row, of=dict(entry.of), published=entry.value, **ours, agrees=agrees, why=why)
            )
        data, models = manifest["data"], manifest["models"]
        digest = data.get("records_sha256") or data.get("sha256") or ""
        prints = {kind: str(facts["fingerprint"]) for kind, facts in models.items()}
        costs = sorted(folder.costs().items())
        stages = {stage: {"seconds": cost["seconds"], **cost["peak_memory"]} for stage, cost in costs}
        hosts = (entry.get("environment") for entry in manifest["invocations"])
        machines = {str(host): _machine(host) for host in hosts if host}
        hosts_of = [*machines.values()]
        runs.append(Measured(run=name, row=row, data=digest, models=prints, stages=stages, machines=hosts_of))
    given = {
        name: Path(value).name if Path(value).exists() else value
        for name, value in config.run.items()
        if name not in PLACES
    }
    return Reproduction(
        table=str(config.table), preset=config.preset, samples=config.limit, options=given, runs=runs,
        figures=figures,
    )  # fmt: skip


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


def _cells(table: Table) -> dict[tuple[str, str], Printed]:
    """The published figures of a table by row and by what they are of."""
    published = registry.get(table.benchmark).published(table.source, None)
    return {_key(figure): figure for figure in published}


def text(found: Reproduction) -> str:
    """The table: published, ours, whether they agree; then what it cost."""
    from nein.reporting import format
    from nein.reporting.tables import pipes

    table = TABLES[found.table]
    cells = _cells(table)
    seen: dict[str, set[str]] = {}
    for printed in cells.values():
        for key, value in printed.of.items():
            seen.setdefault(key, set()).add(value)
    words: dict[bool | None, str] = {True: "yes", False: "no"}
    rows = []
    for item in found.figures:
        unit = cells[_key(item)].unit
        what = ", ".join(value for key, value in item.of.items() if value and len(seen[key]) > 1)
        ours = format.text({**item.model_dump(), "unit": unit}, digits=2)
        theirs = format.number(item.published, unit, digits=2)
        rows.append([item.row, what, theirs, ours, item.n, item.unscored, words.get(item.agrees, item.why)])
    heads = ("row", "figure", "published", "ours [95 % interval]", "n", "unscored", "agree")
    samples = "all samples" if found.samples is None else f"the first {found.samples} samples"
    lines = [f"{table.title}, on {samples}, preset {found.preset}:", "", pipes(rows, heads), ""]
    if found.options:
        given = ", ".join(f"--{name} {value}" for name, value in found.options.items())
        lines += [f"With other options than the table's: {given}.", ""]
    count = Counter(item.agrees for item in found.figures)
    total = count[True] + count[False]
    rule = "the published value lies within our 95 % interval"
    lines += [
        f"{count[True]} of {total} comparable figures agree ({rule})." if total else "Nothing is comparable."
    ]
    lines += [f"{count[None]} figures cannot be compared.", ""] if total and count[None] else [""]
    spent = []
    for measured in found.runs:
        for stage, cost in measured.stages.items():
            memory = [f"{cost.get(where, 0) / 2**30:.2f}" for where in ("host", "device")]
            spent.append([measured.run, stage, f"{cost.get('seconds', 0) / 3600:.3f}", *memory])
    lines += [pipes(spent, ("run", "stage", "hours of work", "GiB, host", "GiB, device")), ""]
    return "".join(f"{line}\n" for line in lines)


def check(path: Path) -> int | str:
    """Reads a file of somebody else, of which nothing is run or followed: its table again, and what is wrong
    with it (exit code 1). Raises UserError for a file of another form."""
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"'{path}' has more than {LARGEST // 2**20} MiB, which no {FILE} has.")
        found = Reproduction.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror or error}.") from None
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ascii(".".join(map(str, first["loc"])))[:100]
        raise UserError(f"'{path}' is not a {FILE}: {where}: {first['msg']}.") from None
    if found.table not in TABLES:
        raise UserError(f"'{path}' is of the table '{found.table}', which there is not.")
    wrong = [*_faults(found)]
    cells = _cells(TABLES[found.table])
    known = [figure for figure in found.figures if _key(figure) in cells]
    print(text(found.model_copy(update={"figures": known})), end="")
    for fault in wrong:
        print(fault)
    if wrong:
        return 1
    return (
        "The file is in order: its published values are the printed ones, and what it says of them holds.\n"
    )


def _key(one: Figure | Printed) -> tuple[str, str]:
    return one.row, str(sorted(one.of.items()))


def _faults(found: Reproduction) -> Iterator[str]:
    cells = _cells(TABLES[found.table])
    keys = Counter(map(_key, found.figures))
    rows = {item.row for item in found.runs}
    for item in found.figures:
        name, printed = ", ".join([item.row, *filter(None, item.of.values())]), cells.get(_key(item))
        if printed is None:
            yield f"{name}: no such figure is in the table"
            continue
        if keys[_key(item)] > 1:
            yield f"{name}: there more than once"
        if item.row not in rows:
            yield f"{name}: of a row without a run"
        if item.published != printed.value:
            yield f"{name}: published is {printed.value:.6g}, not {item.published:.6g}"
        ends = [end for end in (item.low, item.value, item.high) if end is not None]
        if ends != sorted(ends) or (item.value is not None and not item.n):
            yield f"{name}: the value does not lie in its interval, or is of nothing"
        if (item.agrees, item.why) != agreement(printed, item.model_dump(), found.preset, found.samples):
            yield f"{name}: what it says of agreement does not follow from its figures"
