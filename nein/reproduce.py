"""`nein reproduce`: measures a published table again, and compares it with the paper in text and a JSON file.

nein reproduce nein-table3 --data NEIN --device cuda
nein reproduce nein-table3 --preset nano        the same path in miniature, offline
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nein.benchmarks import registry
from nein.config import options
from nein.config.groups import Limit, OnDevice
from nein.config.options import Names, argument, option
from nein.loading.digests import Json
from nein.loading.errors import match_name
from nein.loading.references import Need

if TYPE_CHECKING:
    from nein.benchmarks.runner import Benchmark, PaperEstimate
    from nein.engine.folder import Folder

FILE = "reproduction.json"  # in `out`: what was measured, for others to compare


# --- the published tables ------------------------------------------------------------------------
@dataclass(frozen=True)
class Table:
    """A published table, or a part of one."""

    title: str
    benchmark: str
    source: str  # name of a set of published values, for `Benchmark.paper_estimates`
    models: Mapping[str, str]  # preset -> the models that can be downloaded, joined by commas
    options: Mapping[str, str]  # of the benchmark's command, in addition to the preset's
    nano: Mapping[str, str] = field(default_factory=lambda: {"data": "nano"})  # what nano changes in them
    model_option: str = "model"  # the option of the command that names models


def _negbench(title: str, source: str, models: str, **changed: str) -> Table:
    """A table of NegBench. models: of preset paper; changed: options that differ from `usual`."""
    usual = {"datasets": "coco,voc2007", "tasks": "mcq", "variants": "rephrased", "protocol": "paper"}
    miniatures = ",".join(f"{name}=nano:clip" for name in models.split(",")[:2])
    return Table(
        f"NegBench (CVPR 2025), {title}",
        "negbench",
        source,
        models={"paper": models, "nano": miniatures},
        options={**usual, "blind": "0", **changed},
        nano={"datasets": "all", "variants": "all", "data": "nano"},
    )


_MCQ = "repository, results/mcq/"  # folder of the authors' repository
_OPEN_CLIPS = "clip-laion400m,clip-datacomp"
_WITH_RETRIEVAL = {"tasks": "all", "features": "unnormalised"}  # options of tables with retrieval
_FIGURES = {"datasets": "coco,chexpert", "variants": "all", **_WITH_RETRIEVAL}
TABLES = {  # by the names that users type
    "nein-table3": Table(
        "NeIn (CVPR Workshops 2025), Table 3",
        "nein",
        "table3",
        models={"paper": "ip2p,magicbrush,hqedit", "nano": "ip2p,magicbrush"},
        options={"control": "none", "protocol": "paper"},
        model_option="editor",
    ),
    "negbench-table1": _negbench(
        "Table 1", "paper_table1", "clip", datasets="coco,msr-vtt", **_WITH_RETRIEVAL
    ),
    "negbench-baselines": _negbench(f"{_MCQ}1_baseline", "repo_baseline", f"clip,{_OPEN_CLIPS}"),
    "negbench-scaling": _negbench(f"{_MCQ}2_scaling_clip", "repo_scaling", "clip-laion400m,clip-l,clip-h"),
    "negbench-finetuned": _negbench(f"{_MCQ}3_finetuned_total", "repo_finetuned", "clip"),
    "negbench-figures": _negbench(
        "Figures 3 and 4c, drops", "paper_figures", f"{_OPEN_CLIPS},biomedclip", **_FIGURES
    ),
    "negvqa-table1": Table(
        "NegVQA (ACL Findings 2025), Table 1",
        "negvqa",
        "table1",
        models={"paper": "llava-hf/llava-1.5-7b-hf", "nano": "llava-1.5-7b-hf=nano:negvqa"},
        options={"blind": "0", "scoring": "generated", "protocol": "paper"},
    ),
}


# --- the command ---------------------------------------------------------------------------------
@dataclass(kw_only=True)
class ReproduceConfig(Limit, OnDevice):
    epilog = (
        "Downloads happen at first use, or before: nein fetch reproduce TABLE. --run.OPTION VALUE is any "
        "option of the benchmark's command. Tables of trainings (NegBench's over alpha) are not included: "
        "docs/reference/papers.md."
    )

    table: str = argument("TABLE", ", ".join(TABLES))
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
        self.table = match_name("table", self.table, TABLES)

    @property
    def out_dir(self) -> Path:
        return Path(self.out or f"runs/reproduce-{self.table}-{self.preset}")

    @property
    def benchmark(self) -> Benchmark:
        return registry.get(TABLES[match_name("table", self.table, TABLES)].benchmark)

    def command_arguments(self) -> list[str]:
        """Arguments of the benchmark's command."""
        table = TABLES[self.table]
        values: Json = {"preset": self.preset, **table.options}
        if self.preset == "nano":
            values |= table.nano
        if self.data:
            values["data"] = self.data
        values[table.model_option] = ",".join(self.model) or table.models[self.preset]
        values |= {"limit": self.limit, "device": self.device, "out": str(self.out_dir), **self.run}
        return [f"--{name}={value}" for name, value in values.items() if value is not None]

    def benchmark_options(self, *, to_fetch: bool = False) -> Any:
        """The options of the benchmark's command."""
        prog = f"nein reproduce {self.table}: {self.benchmark.typed}"
        return options.read(self.benchmark.config, self.command_arguments(), prog=prog, to_fetch=to_fetch)[0]

    def needs(self) -> list[Need]:
        return list(self.benchmark_options(to_fetch=True).needs())


def announce(config: ReproduceConfig) -> list[str]:
    """The line of `--dry-run`: the benchmark's command."""
    return [" ".join([config.benchmark.typed, *config.command_arguments()])]


# --- the comparison with the paper ---------------------------------------------------------------
def agreement(published: PaperEstimate, ours: Mapping[str, Any], preset: str, limit: int | None) -> str:
    """ "yes" or "no": whether the published value lies in our interval; or why they cannot be compared."""
    total = ours["n"] + ours["unscored"]
    if preset == "nano":
        return "miniature models: not comparable"
    if ours["value"] is None:
        return "not measured"
    if ours["low"] is None or ours["high"] is None:
        return "no interval"
    if published.needs_all and limit is not None:
        return "depends on how many samples there are"
    if limit is None and published.n not in (None, total):
        return f"of {total} samples, published of {published.n}"
    return "yes" if ours["low"] <= published.value <= ours["high"] else "no"


PATH_OPTIONS = ("data", "images", "image-root", "cache", "negated")  # their values are not written to `FILE`


def run(config: ReproduceConfig) -> str | None:
    """Runs the benchmark; writes `FILE` and returns the comparison as text. None: other processes report."""
    from nein.config.groups import start
    from nein.engine import atomic
    from nein.engine.folder import Folder

    command_options = config.benchmark_options()
    with contextlib.closing(start(command_options)) as executor:
        config.benchmark(command_options, executor)
        if not executor.concludes:
            return None
        folders = [Folder(run.folder.path) for run in config.benchmark.runs(command_options, executor.device)]
    # Columns with several entries in the published table; the others are not printed.
    published = config.benchmark.paper_estimates(TABLES[config.table].source, None)
    distinct = {(column, name) for value in published for column, name in value.key.items()}
    varying = [column for column, count in Counter(column for column, _ in distinct).items() if count > 1]
    compared = [_compare(config, folder, varying) for folder in folders]
    runs = [entry for entry, _ in compared]
    rows = [row for _, run_rows in compared for row in run_rows]
    changed: Json = {}  # without paths of this machine
    for name, value in config.run.items():
        if name not in PATH_OPTIONS:
            changed[name] = Path(value).name if Path(value).exists() else value
    facts = {"table": config.table, "preset": config.preset, "samples": config.limit, "options": changed}
    atomic.write_json(config.out_dir / FILE, {**facts, "runs": runs})
    return _write_text(config, changed, rows, runs)


def _compare(config: ReproduceConfig, folder: Folder, varying: Sequence[str]) -> tuple[Json, list[list[str]]]:
    """A run's entry of `FILE`, and a row of the printed table for each published value of its model."""
    from nein.benchmarks.runner import FIGURES_CSV
    from nein.reporting import figures as frames
    from nein.reporting import tables

    manifest, measured = folder.manifest(), frames.read(folder.path / FIGURES_CSV)
    # A run's figures have no column for the data set; drawn data may have other wordings than the table.
    ignored = ("dataset", "variant") if config.preset == "nano" else ("dataset",)
    rows: list[list[str]] = []
    figures: list[Json] = []
    for published in config.benchmark.paper_estimates(TABLES[config.table].source, manifest):
        columns = {key: value for key, value in published.key.items() if key not in ignored}
        found = frames.pick(measured, **columns) or {}
        ours: Json = {key: found.get(key) for key in ("value", "low", "high")}
        ours |= {key: found.get(key) or 0 for key in ("n", "unscored")}
        figures.append({"of": dict(published.key), **ours, "published": published.value})
        details = [value for key, value in published.key.items() if value and key in varying]
        theirs = tables.format_number(published.value, published.unit, digits=2)
        our_text = tables.format_estimate({**ours, "unit": published.unit}, digits=2)
        scored = f"{ours['n']} of {ours['n'] + ours['unscored']}"
        verdict = agreement(published, ours, config.preset, config.limit)
        rows.append([published.row, ", ".join(details), theirs, our_text, scored, verdict])
    row_label = rows[-1][0] if rows else ""
    entry: Json = {"run": folder.path.relative_to(config.out_dir).as_posix(), "row": row_label}
    entry["stages"] = folder.sum_costs()
    entry["data"] = manifest["data"].get("records_sha256") or manifest["data"].get("sha256")
    entry["models"] = {kind: str(model["fingerprint"]) for kind, model in manifest["models"].items()}
    machines = [call["environment"] for call in manifest["invocations"] if call.get("environment")]
    return {**entry, "machines": machines, "figures": figures}, rows


def _write_text(config: ReproduceConfig, changed: Json, rows: list[list[str]], runs: list[Json]) -> str:
    """The printed comparison: a row per published value, then the costs of every stage of the runs."""
    from nein.reporting import tables

    samples = "all samples" if config.limit is None else f"the first {config.limit} samples"
    heads = ("row", "figure", "published", "ours [95 % interval]", "scored", "agree")
    parts = [f"{TABLES[config.table].title}, on {samples}, preset {config.preset}:"]
    parts.append(tables.format_rows(rows, heads))
    if changed:
        words = ", ".join(f"--{name} {value}" for name, value in changed.items())
        parts.append(f"Options that differ from the table's: {words}.")
    verdicts = Counter(row[-1] for row in rows)
    if comparable := verdicts["yes"] + verdicts["no"]:
        rule = "the published value lies in our 95 % interval"
        more = f"\n{rest} estimates cannot be compared." if (rest := len(rows) - comparable) else ""
        parts.append(f"{verdicts['yes']} of {comparable} comparable estimates agree ({rule}).{more}")
    else:
        parts.append("Nothing is comparable.")
    costs = []
    for run in runs:
        for stage, cost in run["stages"].items():
            gib = [f"{cost['peak_memory'].get(memory, 0) / 2**30:.2f}" for memory in ("host", "device")]
            costs.append([run["run"], stage, f"{cost['seconds'] / 3600:.3f}", *gib])
    parts.append(tables.format_rows(costs, ("run", "stage", "hours of work", "GiB, host", "GiB, device")))
    return "\n\n".join([*parts, f"For others: {config.out_dir / FILE}\n"])
