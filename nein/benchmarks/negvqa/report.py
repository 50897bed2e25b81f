"""The report of finished runs: one page, and the same tables and plots as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nein.benchmarks.negvqa import folder as files
from nein.benchmarks.negvqa.config import ReportConfig
from nein.config.groups import FORMATS
from nein.datasets.negvqa.questions import Item
from nein.engine import atomic
from nein.engine.errors import UserError
from nein.engine.folder import COMPLETE, Folder


def write(
    folders: Sequence[Folder],
    out: Path,
    *,
    samples: int = 400,
    items: Sequence[Item] | None = None,
    formats: Sequence[str] = FORMATS,
) -> str:
    """Writes `out` (.html) with .md, .csv, .tex, .png and .svg beside it; returns the headline as text.

    samples  Questions with their answers in the page.
    items    The questions with their pictures; without them the page shows none.

    Raises UserError when a run is not complete, or when runs asked different questions.
    """
    import tabulate

    from nein.benchmarks.negvqa import tables
    from nein.benchmarks.nein.reporting import tables as texts

    found = _summaries(folders)
    made = tables.all_tables(found)
    title = "NegVQA"
    presets = {summary["preset"] for summary in found.values()}
    label = (
        "Miniature models on drawn questions: real measurements, not comparable with the paper's"
        if presets == {"nano"}
        else ", ".join(sorted(presets))
    )
    prompts = ", ".join(sorted({summary["prompt"] for summary in found.values()}))
    notes = [f"Preset: {label}. Prompt: {prompts}.", *_notes(found)]
    makers = {
        "md": lambda: texts.markdown(made, title, notes),
        "csv": lambda: texts.to_csv(made),
        "tex": lambda: texts.latex(made, title),
    }
    for kind, make in makers.items():
        if kind in formats:
            atomic.write_text(out.with_suffix(f".{kind}"), make())
    if {"html", "plots"} & set(formats):
        from nein.benchmarks.negvqa import page, plots

        drawn = plots.all_plots(found)
        for plot in drawn if "plots" in formats else ():
            for kind in ("png", "svg"):
                atomic.write_bytes(out.with_name(f"{out.stem}-{plot.key}.{kind}"), plot.encode(kind))
        if "html" in formats:
            answers = {folder.path.name: atomic.read_lines(files.answers(folder)) for folder in folders}
            scores = {folder.path.name: atomic.read_lines(files.scores(folder)) for folder in folders}
            headlines = {name: plots.headline(summary) for name, summary in found.items()}
            shown = page.samples(answers, scores, items, samples, headlines)
            page.write(out, title=title, notes=notes, tables=made, plots=drawn, samples=shown)
    head = next(table for table in made if table.key == f"accuracy_{_protocol(found)}_clustered")
    gap = next(table for table in made if table.key == "gap")
    parts = [
        f"{table.title}\n" + tabulate.tabulate(table.rows, table.columns, disable_numparse=True)
        for table in (head, gap)
    ]
    written = out if "html" in formats else out.parent
    return "\n\n".join(parts) + f"\n\nReport: {written}\n"


def _summaries(folders: Sequence[Folder]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    hashes: dict[str, str] = {}
    for folder in folders:
        manifest = folder.manifest()
        if manifest.get("status") != COMPLETE:
            raise UserError(f"'{folder.path}' is not complete; give its nein negvqa command again.")
        name = folder.path.name if folder.path.name not in found else str(folder.path)
        found[name] = atomic.read_json(files.summary(folder))
        hashes[name] = manifest["data"]["sha256"]
    if len(set(hashes.values())) > 1:
        one = next(iter(hashes))
        other = next(name for name in hashes if hashes[name] != hashes[one])
        raise UserError(f"'{one}' and '{other}' were asked different questions; report them apart.")
    return found


def _protocol(found: dict[str, dict[str, Any]]) -> str:
    protocols = {summary["protocol"] for summary in found.values()}
    return protocols.pop() if len(protocols) == 1 else "fixed"


def _notes(found: dict[str, dict[str, Any]]) -> list[str]:
    from nein.benchmarks.negvqa import table1

    notes = []
    for name, summary in found.items():
        if summary.get("asking") == "options":
            notes.append(
                f"{name}: asked about one option at a time in its yes/no question about a caption; "
                "'generated' is the only option with a yes, 'logprob' the one whose yes is likelier."
            )
        printed = table1.known(summary["reference"])
        for (model, variant, category), why in table1.MISPRINTS.items():
            if printed == model:
                notes.append(f"{name}: the printed figure for {category}, {variant}, is odd: {why}.")
    return notes


def run(options: ReportConfig) -> str:
    """Writes the report of finished runs; returns the headline as text. Raises UserError."""
    folders = [folder for path in options.runs for folder in files.find(path)]
    if not folders:
        raise UserError(f"'{options.runs[0]}' holds no run of nein negvqa; give the folder passed to --out.")
    items = _items(folders, options.data, options.negated, options.images)
    out = options.out.with_suffix(".html")
    return write(folders, out, samples=options.samples, items=items, formats=options.formats)


def _items(
    folders: Sequence[Folder], source: str | None, negated: str | None, pictures: str | None
) -> Sequence[Item] | None:
    """The questions the runs were asked, where they can be found; None otherwise."""
    from nein.datasets.negvqa import questions

    origin = folders[0].manifest()["data"]
    if source is None and origin["kind"] == "nano":
        return questions.load("nano", questions=origin["questions"]).items
    if source is None:
        return None
    found = questions.load(
        source, negated=negated, pictures=pictures, columns=origin.get("columns"),
        split=origin.get("split", "test"),
    )  # fmt: skip
    if found.sha256 != origin["sha256"]:
        raise UserError(f"'{source}' does not hold the questions that '{folders[0].path}' was asked.")
    return found.items
