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

FILE = "reproduction.json"  # in `out`: what was measured, for others to compare


# --- the published tables ------------------------------------------------------------------------
@dataclass(frozen=True)
class Table:
    """A published table, or a part of one."""

    title: str
    benchmark: str
    source: str  # argument of `Benchmark.paper_estimates`
    models: Mapping[str, str]  # preset -> the models that can be downloaded, joined by commas
    options: Mapping[str, str]  # of the benchmark's command, in addition to the preset's
    nano: Mapping[str, str] = field(default_factory=lambda: {"data": "nano"})  # further ones of preset nano
    model_option: str = "model"  # the option of the command that names models


def _negbench(title: str, source: str, models: str, **changed: str) -> Table:
    """A table of NegBench. models: for preset paper; changed: options that differ from the usual ones."""
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
_WHOLE = {"tasks": "all", "features": "unnormalised"}  # options with retrieval, too
_FIGURES = {"datasets": "coco,chexpert", "variants": "all", **_WHOLE}
#: By the names that users type.
TABLES = {
    "nein-table3": Table(
        "NeIn (CVPR Workshops 2025), Table 3",
        "nein",
        "table3",
        models={"paper": "ip2p,magicbrush,hqedit", "nano": "ip2p,magicbrush"},
        options={"control": "none", "protocol": "paper"},
        model_option="editor",
    ),
    "negbench-table1": _negbench("Table 1", "paper_table1", "clip", datasets="coco,msr-vtt", **_WHOLE),
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

    def words(self) -> list[str]:
        """The command line of the benchmark's command."""
        table = TABLES[self.table]
        values: Json = {"preset": self.preset, **table.options}
        if self.preset == "nano":
            values |= table.nano
        if self.data:
            values["data"] = self.data
        values[table.model_option] = ",".join(self.model) or table.models[self.preset]
        values |= {"limit": self.limit, "device": self.device, "out": str(self.out_dir), **self.run}
        return [f"--{name}={value}" for name, value in values.items() if value is not None]

    def inner(self, *, to_fetch: bool = False) -> Any:
        """The options of the benchmark's command."""
        prog = f"nein reproduce {self.table}: {self.benchmark.typed}"
        return options.read(self.benchmark.config, self.words(), prog=prog, to_fetch=to_fetch)[0]

    def needs(self) -> list[Need]:
        return list(self.inner(to_fetch=True).needs())


def announce(config: ReproduceConfig) -> list[str]:
    """The line of `--dry-run`: the benchmark's command."""
    return [" ".join([config.benchmark.typed, *config.words()])]


def agreement(printed: PaperEstimate, ours: Mapping[str, Any], preset: str, limit: int | None) -> str:
    """ "yes" or "no": whether the published value lies in our interval; or why they cannot be compared."""
    total = ours["n"] + ours["unscored"]
    if preset == "nano":
        return "miniature models: not comparable"
    if ours["value"] is None:
        return "not measured"
    if ours["low"] is None or ours["high"] is None:
        return "no interval"
    if printed.needs_all and limit is not None:
        return "depends on how many samples there are"
    if limit is None and printed.n not in (None, total):
        return f"of {total} samples, published of {printed.n}"
    return "yes" if ours["low"] <= printed.value <= ours["high"] else "no"


#: Options of a benchmark with paths; the others are printed and written with the estimates.
PATH_OPTIONS = ("data", "images", "image-root", "cache", "negated")


def run(config: ReproduceConfig) -> str | None:
    """Runs the benchmark; writes `FILE` and returns the comparison as text. None: other processes report."""
    from nein.benchmarks.runner import FIGURES_CSV
    from nein.config.groups import start
    from nein.engine import atomic
    from nein.engine.folder import Folder
    from nein.reporting import figures as frames
    from nein.reporting import tables

    inner = config.inner()
    with contextlib.closing(start(inner)) as executor:
        config.benchmark(inner, executor)
        if not executor.concludes:
            return None
        folders = [Folder(run.folder.path) for run in config.benchmark.runs(inner, executor.device)]

    # --- compare, run by run
    source = TABLES[config.table].source
    keys = [printed.key for printed in config.benchmark.paper_estimates(source, None)]
    pairs = {pair for key in keys for pair in key.items()}  # (column, entry)
    entry_counts = Counter(column for column, _ in pairs)
    # A run has one data set; on drawn data its wording need not be the table's.
    ignored = ("dataset", "variant") if config.preset == "nano" else ("dataset",)
    rows: list[list[Any]] = []  # of the comparison: a published value each
    costs: list[list[Any]] = []  # rows of the table of costs: a stage each
    runs: list[Json] = []  # entries of `FILE`
    for folder in folders:
        manifest = folder.manifest()
        measured = frames.read(folder.path / FIGURES_CSV)
        name = folder.path.relative_to(config.out_dir).as_posix()
        figures: list[Json] = []
        for printed in config.benchmark.paper_estimates(source, manifest):
            columns = {key: value for key, value in printed.key.items() if key not in ignored}
            row = frames.pick(measured, **columns) or {}
            ours: Json = {key: row.get(key) for key in ("value", "low", "high")}
            ours |= {key: row.get(key) or 0 for key in ("n", "unscored")}
            figures.append({"of": dict(printed.key), **ours, "published": printed.value})
            # A column with the same entry in all rows is not printed.
            details = [value for key, value in printed.key.items() if value and entry_counts[key] > 1]
            theirs = tables.format_number(printed.value, printed.unit, digits=2)
            our_text = tables.format_estimate({**ours, "unit": printed.unit}, digits=2)
            scored = f"{ours['n']} of {ours['n'] + ours['unscored']}"
            verdict = agreement(printed, ours, config.preset, config.limit)
            rows.append([printed.row, ", ".join(details), theirs, our_text, scored, verdict])
        stages = folder.sum_costs()
        for stage, cost in stages.items():
            gib = [f"{cost['peak_memory'].get(memory, 0) / 2**30:.2f}" for memory in ("host", "device")]
            costs.append([name, stage, f"{cost['seconds'] / 3600:.3f}", *gib])
        entry: Json = {"run": name, "row": rows[-1][0] if figures else "", "stages": stages}
        entry["data"] = manifest["data"].get("records_sha256") or manifest["data"].get("sha256")
        entry["models"] = {kind: str(model["fingerprint"]) for kind, model in manifest["models"].items()}
        machines = [call["environment"] for call in manifest["invocations"] if call.get("environment")]
        runs.append({**entry, "machines": machines, "figures": figures})

    # --- the file, and the text
    changed = {}  # without paths of this machine
    for name, value in config.run.items():
        if name not in PATH_OPTIONS:
            changed[name] = Path(value).name if Path(value).exists() else value
    facts = {"table": config.table, "preset": config.preset, "samples": config.limit, "options": changed}
    atomic.write_json(config.out_dir / FILE, {**facts, "runs": runs})
    samples = "all samples" if config.limit is None else f"the first {config.limit} samples"
    heads = ("row", "figure", "published", "ours [95 % interval]", "scored", "agree")
    parts = [f"{TABLES[config.table].title}, on {samples}, preset {config.preset}:"]
    parts.append(tables.format_rows(rows, heads))
    if changed:
        words = ", ".join(f"--{name} {value}" for name, value in changed.items())
        parts.append(f"Options that differ from the table's: {words}.")
    parts.append(_count_agreements([row[-1] for row in rows]))
    parts.append(tables.format_rows(costs, ("run", "stage", "hours of work", "GiB, host", "GiB, device")))
    return "\n\n".join([*parts, f"For others: {config.out_dir / FILE}\n"])


def _count_agreements(verdicts: Sequence[str]) -> str:
    count = Counter(verdicts)
    if not (total := count["yes"] + count["no"]):
        return "Nothing is comparable."
    more = f"\n{len(verdicts) - total} estimates cannot be compared." if total < len(verdicts) else ""
    rule = "the published value lies in our 95 % interval"
    return f"{count['yes']} of {total} comparable estimates agree ({rule}).{more}"
