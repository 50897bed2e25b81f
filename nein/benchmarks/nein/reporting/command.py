"""The commands `nein report` and `nein compare`."""

from __future__ import annotations

import sys
from typing import Any

from nein.benchmarks.nein import figures, records
from nein.benchmarks.nein.config import CompareConfig, ReportConfig
from nein.benchmarks.nein.records import Records
from nein.benchmarks.nein.reporting import comparisons, costs, judge_tables, protocols, sections
from nein.benchmarks.nein.reporting import tables as run_report
from nein.benchmarks.nein.reporting.sample_browser import SIZE_CLASSES, Browser
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.reporting import figures as frames
from nein.reporting import page, tables


def report(options: ReportConfig) -> int:
    """Writes the report. Raises UserError for anything the user can mend."""
    atomic.check_writable(options.out.parent)
    loaded, unfinished = records.load(options.runs)
    browser = Browser.of(loaded, options.data, options.split)
    pictures = browser.pictures(options.thumbnails if "html" in options.formats else 0)
    folders = list(dict.fromkeys(options.calibration or [r.run.out / "calibration" for r in loaded]))
    calibrations = judge_tables.load(folders, explicit=bool(options.calibration))
    rewards = judge_tables.load_rewards(folders)
    negative = [run for run in loaded if run.track == "negative"] or loaded
    compared = comparisons.comparisons(comparisons.chosen(negative, options), options.family)
    rows = [*compared, *judge_tables.judged(loaded, calibrations), *costs.costs(loaded)]
    rows += judge_tables.rewarded(loaded, rewards)
    if options.labels:
        rows += judge_tables.labelled(loaded, judge_tables.read_labels(options.labels))
    rows += judge_tables.grades(loaded, judge_tables.read_grades(options.judge_grade))
    if options.protocols:
        rows += [row for run in loaded for row in protocols.rows(run)]
    target = options.out if options.out.suffix in (".html", ".htm") else options.out.with_suffix(".html")
    written = run_report.write(
        target, loaded, unfinished, sections.page(comparisons.out_of_reach(compared)),
        more=[figures.breakdowns(loaded, browser.sizes, SIZE_CLASSES), frames.frame(rows)],
        title=options.title or f"NeIn: {', '.join(dict.fromkeys(run.name for run in loaded))}",
        parts=[browser.part(target, pictures, options.budget * 2**20)], formats=options.formats,
        settings={run.label: page.setting(_setting(run)) for run in loaded},
    )  # fmt: skip
    for path in written:
        sizes = [file.stat().st_size for file in page.beside(path).glob("*.js")] if path == target else []
        beside = f" with {len(sizes)} files beside it ({sum(sizes) / 2**20:.1f} MiB)" if sizes else ""
        size = f" ({path.stat().st_size / 2**20:.1f} MiB){beside}" if path == target else ""
        print(f"{path}{size}")
    return 0


def _setting(run: Records) -> dict[str, Any]:
    """The resolved configuration, models and versions of a run."""
    calls = [{k: v for k, v in call.items() if k != "command"} for call in run.manifest["invocations"]]
    told = {key: run.manifest.get(key, {}) for key in ("config", "data", "models")}
    return {"editor": run.run.editor, "track": run.track, **told, "invocations": calls}


def compare(options: CompareConfig) -> int:
    """Prints every pair of the runs named, tested and corrected for their number."""
    loaded, unfinished = records.load(options.runs)
    controls = {run.name: run for run in loaded if run.track == "remove"}
    loaded = [run for run in loaded if options.track in (run.track, "all")]
    if len(loaded) < 2:
        raise UserError(
            f"A comparison needs two runs; {len(loaded)} complete run of track '{options.track}' is there "
            "(--track all compares every track)."
        )
    pairs = comparisons.chosen(loaded, options)
    rows = comparisons.comparisons(pairs, options.family, options.metrics, controls)
    if not rows:
        raise UserError("These runs have no metric in common; score them with the same --metrics.")
    compared = frames.label(frames.frame(rows), benchmark="nein")
    shown = [sections.comparisons(comparisons.out_of_reach(rows)), sections.COVERAGE]
    sheets = tables.sheets(shown, frames.concat([compared, run_report.together(loaded)]))
    if options.format == "csv":
        print(frames.to_csv(compared), end="")
    elif options.format == "tex":
        print(tables.latex(sheets[:1], "Comparison"), end="")
    else:
        print(tables.markdown(sheets, "Comparison"), end="")
    if unfinished:
        print(f"not compared because not complete: {', '.join(unfinished)}", file=sys.stderr)
    return 0
