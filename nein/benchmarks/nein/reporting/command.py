"""The commands `nein report` and `nein compare`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nein.benchmarks.nein.config import CompareConfig, ReportConfig
from nein.engine.errors import UserError

if TYPE_CHECKING:
    from nein.benchmarks.nein.records import Records
    from nein.benchmarks.nein.reporting.sample_browser import Browser
    from nein.reporting.thumbnails import Thumbnail


def report(options: ReportConfig) -> int:
    """Writes the report. Raises UserError for anything the user can mend."""
    from nein.benchmarks.nein import records
    from nein.benchmarks.nein.reporting import sample_browser
    from nein.engine import atomic

    atomic.check_writable(options.out.parent)
    loaded, unfinished = records.load(options.runs)
    browser = sample_browser.Browser.of(loaded, options.data, options.split)
    with browser.pictures(options.thumbnails if "html" in options.formats else 0) as pictures:
        return _write(options, loaded, unfinished, browser, pictures)


def _write(
    options: ReportConfig,
    loaded: list[Records],
    unfinished: list[str],
    browser: Browser,
    pictures: Iterator[list[Thumbnail]],
) -> int:
    """Works out the figures and writes them."""
    out, formats = options.out, options.formats
    from nein.benchmarks.nein import figures as of_runs
    from nein.benchmarks.nein import protocols, sections
    from nein.benchmarks.nein import report as run_report
    from nein.benchmarks.nein.reporting import comparisons, costs, judge_tables, sample_browser
    from nein.reporting import figures as frames
    from nein.reporting import page
    from nein.reporting import report as reporting
    from nein.reporting.report import Section

    folders = options.calibration or [r.run.out / "calibration" for r in loaded]
    folders = list(dict.fromkeys(folders))
    calibrations = judge_tables.load(folders, explicit=bool(options.calibration))
    rewards = judge_tables.load_rewards(folders)
    negative = [run for run in loaded if run.track == "negative"] or loaded
    compared = comparisons.comparisons(comparisons.chosen(negative, options), options.family)
    rows = [*compared, *judge_tables.judged(loaded, calibrations), *costs.costs(loaded)]
    rows += judge_tables.rewarded(loaded, rewards)
    if options.labels:
        rows += judge_tables.labelled(loaded, judge_tables.read_labels(options.labels))
    if options.judge_grade:
        rows += judge_tables.grades(loaded, judge_tables.read_grades(options.judge_grade))
    if options.protocols:
        rows += [row for run in loaded for row in protocols.rows(run)]
    results = run_report.together(loaded)
    parts = of_runs.breakdowns(loaded, browser.sizes, sample_browser.SIZE_CLASSES)
    gaps = of_runs.gaps(loaded)
    figures = frames.label(frames.concat([results, gaps, parts, frames.frame(rows)]), benchmark="nein")
    about_judges = [sections.CALIBRATION, sections.REWARDS, sections.BEST_OF, sections.CORRECTED]
    shown = [
        Section(
            "gap",
            "Negation gap",
            [sections.GAP, sections.GAP_BY_TEMPLATE],
            [sections.TOLD_AND_DENIED, sections.GAPS],
        ),
        Section("minimal_pairs", "Minimal pairs", [sections.MINIMAL_PAIRS], [sections.PARTS]),
        Section(
            "results",
            "Results",
            [*sections.results(), sections.LIMIT, sections.coverage()],
            [sections.REMOVAL],
        ),
        sections.families(),
        Section("breakdowns", "Breakdowns", sections.breakdowns()),
        Section("comparisons", "Comparisons", [sections.comparisons(comparisons.out_of_reach(compared))]),
        Section(
            "judges",
            "Judges",
            [*about_judges, sections.AGREEMENT, sections.LABELLED, sections.NEGVQA],
            [sections.RELIABILITY],
        ),
        Section("protocols", "Protocols", [sections.PROTOCOLS]),
        Section("costs", "Costs", [sections.COSTS]),
    ]
    manifests = {run.label: run.manifest for run in loaded}
    target = out if out.suffix in (".html", ".htm") else out.with_suffix(".html")
    samples = [browser.part(target, pictures, options.budget * 2**20)]
    written = reporting.write(
        target, figures, sections=shown, parts=samples, formats=formats,
        title=options.title or f"NeIn: {', '.join(dict.fromkeys(run.name for run in loaded))}",
        subtitle=f"Preset: {run_report.label(manifests.values())}. {run_report.HOW}",
        findings=[*run_report.finding(figures), *run_report.findings(gaps)],
        notes=run_report.notes(results, loaded, unfinished),
        settings={run.label: page.setting(_setting(run)) for run in loaded},
    )  # fmt: skip
    for path in written:
        print(path if path != target else _with_sizes(path))
    return 0


def _with_sizes(path: Path) -> str:
    """The page and what lies beside it, with their sizes."""
    from nein.reporting import page

    sizes = [file.stat().st_size for file in page.beside(path).glob("*.js")]
    beside = f" with {len(sizes)} files beside it ({sum(sizes) / 2**20:.1f} MiB)" if sizes else ""
    return f"{path} ({path.stat().st_size / 2**20:.1f} MiB){beside}"


def compare(options: CompareConfig) -> int:
    """Prints every pair of the runs named, tested and corrected for their number."""
    from nein.benchmarks.nein import records, sections
    from nein.benchmarks.nein import report as run_report
    from nein.benchmarks.nein.reporting import comparisons
    from nein.reporting import figures as frames
    from nein.reporting import tables

    wanted = options.metrics or None
    loaded, unfinished = records.load(options.runs)
    loaded = [run for run in loaded if run.track == options.track] if options.track != "all" else loaded
    if len(loaded) < 2:
        raise UserError(
            f"A comparison needs two runs; {len(loaded)} complete run of track '{options.track}' is there "
            "(--track all compares every track)."
        )
    rows = comparisons.comparisons(comparisons.chosen(loaded, options), options.family, wanted)
    if not rows:
        raise UserError("These runs have no metric in common; score them with the same --metrics.")
    figures = frames.concat([frames.frame(rows), run_report.together(loaded)])
    shown = tables.sheets(
        [sections.comparisons(comparisons.out_of_reach(rows)), sections.coverage()], figures
    )
    if options.format == "csv":
        print(frames.to_csv(frames.frame(rows)), end="")
    elif options.format == "tex":
        print(tables.latex(shown[:1], "Comparison"), end="")
    else:
        print(tables.markdown(shown, "Comparison"), end="")
    if unfinished:
        print(f"not compared because not complete: {', '.join(unfinished)}", file=sys.stderr)
    return 0


def _setting(run: Records) -> dict[str, Any]:
    """The resolved configuration, models and versions of a run."""
    manifest = run.manifest
    invocations = manifest.get("invocations", [])
    return {
        "editor": run.run.editor,
        "track": run.track,
        **{key: manifest.get(key, {}) for key in ("config", "data", "models")},
        "invocations": [
            {k: v for k, v in invocation.items() if k != "command"} for invocation in invocations
        ],
    }
