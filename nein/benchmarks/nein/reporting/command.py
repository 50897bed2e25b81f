"""The commands `nein report` and `nein compare`."""

from __future__ import annotations

import itertools
import sys

from nein.benchmarks.nein.config import CompareConfig, ReportConfig
from nein.engine.errors import UserError


def report(options: ReportConfig) -> int:
    """Writes the report. Raises UserError for anything the user can mend."""
    out, formats = options.out, options.formats
    from nein.benchmarks.nein import report as run_report
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
    nano = run_report.NANO_LABEL if presets == {"nano"} else ", ".join(sorted(map(str, presets)))
    subtitle = (
        f"Preset: {nano}. Intervals: 95 %, clustered by source image. "
        "↑ higher is better, ↓ lower is better. Percentages except FID and LPIPS."
    )
    notes = run_report._notes([run.summary for run in loaded], unfinished)
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


def compare(options: CompareConfig) -> int:
    """Prints every pair of the runs named, tested and corrected for their number."""
    from nein.benchmarks.nein.reporting import collect, comparisons, sections, tables

    wanted = options.metrics or None
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
