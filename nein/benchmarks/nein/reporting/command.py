"""The commands `nein report` and `nein compare`."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

from nein.engine.errors import UserError, unknown

FORMATS = ("html", "md", "csv", "tex", "plots")


def main_report(argv: Sequence[str]) -> int:
    """Runs `nein report argv`. Raises UserError for anything the user can mend."""
    options = _report_parser().parse_args(list(argv))
    formats = _formats(options.formats)
    if options.thumbnails < 0 or options.budget < 0:
        raise UserError("--thumbnails and --budget must be 0 or above.")
    out: Path = options.out
    if out.is_dir():
        raise UserError(f"'{out}' is a folder; -o takes a file, for example {out / 'report.html'}.")
    from nein.benchmarks.nein import report
    from nein.benchmarks.nein.reporting import (
        collect,
        comparisons,
        costs,
        judge_tables,
        page,
        plots,
        sample_browser,
        sections,
        tables,
    )
    from nein.engine import atomic

    atomic.check_writable(out.parent)
    loaded, unfinished = collect.load(options.runs)
    folders = options.calibration or [r.directory.out / "calibration" for r in loaded]
    known = judge_tables.load(list(dict.fromkeys(folders)), explicit=bool(options.calibration))
    browser = sample_browser.Browser.of(loaded, options.data, options.split)
    draws = comparisons.fid_draws(loaded)
    results = sections.results(loaded, comparisons.fid_intervals(loaded, draws))
    gaps = sections.gaps(loaded)
    negative = [run for run in loaded if run.track == "negative"] or loaded
    pairs = list(itertools.combinations(negative, 2))
    groups = [page.Group("results", "Results", [*results, sections.coverage(loaded)])]
    if gaps:
        groups.append(page.Group("gap", "Negation gap", gaps))
    groups.append(page.Group("breakdowns", "Breakdowns", sections.breakdowns(loaded, browser.sizes)))
    if pairs:
        groups.append(page.Group("comparisons", "Comparisons", [comparisons.comparisons(pairs, draws)]))
    about_judges = judge_tables.sections(loaded, known)
    if options.labels:
        about_judges.append(judge_tables.labelled_table(loaded, judge_tables.read_labels(options.labels)))
    groups.append(page.Group("judges", "Judges", about_judges))
    if options.judge_grade:
        about_judges.append(judge_tables.grades_table(loaded, judge_tables.read_grades(options.judge_grade)))
    if options.protocols:
        groups.append(page.Group("protocols", "Protocols", [sections.protocols(loaded)]))
    groups.append(page.Group("costs", "Costs", [costs.costs(loaded)]))
    groups = [group for group in groups if any(table.rows for table in group.tables)]
    if {"html", "plots"} & set(formats):
        made = {"results": [plots.removal(t) for t in results if t.key == "results_presence"],
                "gap": [plots.gap_by_template(t) for t in gaps if t.key == "gap_by_template"],
                "judges": [plots.reliability(known)]}  # fmt: skip
        for group in groups:
            group.plots = [plot for plot in made.get(group.key, []) if plot is not None]
    presets = {run.summary["preset"] for run in loaded}
    title = options.title or f"NeIn: {', '.join(dict.fromkeys(run.name for run in loaded))}"
    nano = report.NANO_LABEL if presets == {"nano"} else ", ".join(sorted(map(str, presets)))
    subtitle = (
        f"Preset: {nano}. Intervals: 95 %, clustered by source image. "
        "↑ higher is better, ↓ lower is better. Percentages except FID and LPIPS."
    )
    notes = report._notes([run.summary for run in loaded], unfinished)
    flat = [table for group in groups for table in group.tables if table.rows]
    written: list[str] = []
    texts = {"md": lambda: tables.markdown(flat, title, [subtitle, *notes]),
             "csv": lambda: tables.to_csv(flat),
             "tex": lambda: tables.latex(flat, title)}  # fmt: skip
    for kind, make in texts.items():
        if kind in formats:
            atomic.write_text(out.with_suffix(f".{kind}"), make())
            written.append(str(out.with_suffix(f".{kind}")))
    if "plots" in formats:
        for plot in (plot for group in groups for plot in group.plots):
            for kind in ("png", "svg"):
                file = out.with_name(f"{out.stem}-{plot.key.replace('_', '-')}.{kind}")
                atomic.write_bytes(file, plot.encode(kind))
                written.append(str(file))
    if "html" in formats:
        target = out if out.suffix in (".html", ".htm") else out.with_suffix(".html")
        done = page.write(target, title=title, subtitle=subtitle, groups=groups, notes=notes, runs=loaded,
                          browser=browser, side=options.thumbnails,
                          budget=options.budget * 2**20)  # fmt: skip
        beside = f" with {done.files} files beside it ({done.beside / 2**20:.1f} MiB)" if done.files else ""
        written.append(f"{target} ({done.page / 2**20:.1f} MiB){beside}")
    print("\n".join(written))
    if options.hub:
        from nein.benchmarks.nein import hub

        print(
            hub.publish(
                loaded, options.hub, out.parent, dataset=options.hub_dataset, push=not options.no_push
            )
        )
    return 0


def main_compare(argv: Sequence[str]) -> int:
    """Runs `nein compare argv`: every pair of the runs named, tested and corrected for their number."""
    options = _compare_parser().parse_args(list(argv))
    from metrics import METRICS
    from nein.benchmarks.nein.reporting import collect, comparisons, sections, tables

    wanted = None
    if options.metrics:
        wanted = [name.strip() for name in options.metrics.split(",") if name.strip()]
        for name in wanted:
            if name not in METRICS:
                raise unknown("metric", name, METRICS)
    loaded, unfinished = collect.load(options.runs)
    loaded = [run for run in loaded if run.track == options.track] if options.track != "all" else loaded
    if len(loaded) < 2:
        raise UserError(
            f"A comparison needs two runs; {len(loaded)} complete run of track '{options.track}' is there "
            "(--track all compares every track)."
        )
    draws = comparisons.fid_draws(loaded) if wanted is None or "fid" in wanted else {}
    table = comparisons.comparisons(list(itertools.combinations(loaded, 2)), draws, wanted)
    if not table.rows:
        raise UserError("These runs have no metric in common; score them with the same --metrics.")
    if options.format == "csv":
        print(tables.to_csv([table]), end="")
    elif options.format == "tex":
        print(tables.latex([table], table.title), end="")
    else:
        print(tables.markdown([table, sections.coverage(loaded)], "Comparison", []), end="")
    if unfinished:
        print(f"not compared because not complete: {', '.join(unfinished)}", file=sys.stderr)
    return 0


def _formats(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return list(FORMATS)
    for name in names:
        if name not in FORMATS:
            raise unknown("format", name, (*FORMATS, "all"))
    return names


def _report_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nein report", description="Write a report of finished runs: one HTML page, tables and plots."
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="an output folder or one run in it")
    add("-o", "--out", type=Path, default=Path("report.html"), help="page to write (default: report.html); "
        "the other files lie beside it under the same name")  # fmt: skip
    add("--formats", default="all", help="html,md,csv,tex,plots or all (default: all)")
    add("--protocols", action="store_true", help="add what each quirk of the published protocol changes")
    add("--calibration", type=Path, action="append", metavar="FOLDER", help="calibration of the judges "
        "(default: RUN/calibration where it exists)")  # fmt: skip
    add("--judge-grade", type=Path, action="append", metavar="PATH", help="what nein negvqa --model judge "
        "wrote: its folder")  # fmt: skip
    add(
        "--labels",
        type=Path,
        metavar="FILE",
        help="people's labels of some samples: CSV with editor,track,id,gone",
    )
    add("--data", help="the data, if they are no longer where the runs found them")
    add("--split", default="val", help="annotation file of --data (default: val)")
    add("--title", help="title of the page")
    add("--thumbnails", type=int, default=128, metavar="PIXELS", help="longer side of a picture; 0 for none "
        "(default: 128)")  # fmt: skip
    add("--budget", type=int, default=24, metavar="MIB",
        help="pictures and answers inside the page; beyond it "
        "they go into files beside it (default: 24)")  # fmt: skip
    add("--hub", metavar="OWNER/NAME", help="write the hub's evaluation results, and push them if logged in")
    add("--hub-dataset", default="nhatttanbui/NeIn", metavar="OWNER/NAME",
        help="benchmark data set the results "
        "belong to (default: nhatttanbui/NeIn)")  # fmt: skip
    add("--no-push", action="store_true", help="with --hub: write the files only")
    return parser


def _compare_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nein compare",
        description="Compare runs sample by sample: differences, intervals, tests, power.",
    )
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="an output folder or one run in it")
    add("--track", choices=("negative", "remove", "add", "all"), default="negative",
        help="which instructions (default: negative)")  # fmt: skip
    add("--metrics", help="only these metrics: a,b")
    add("--format", choices=("md", "csv", "tex"), default="md", help="how to print it (default: md)")
    return parser
