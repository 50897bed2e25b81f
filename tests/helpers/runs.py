"""Runs of `nein eval` with chosen contents, written as the command writes them."""

from nein.benchmarks.nein import estimates
from nein.benchmarks.nein import runs as of_runs
from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.run import NEIN
from nein.benchmarks.nein.runs import EDIT, EditRow, RunDir, score_output
from nein.benchmarks.runner import FIGURES_CSV, SCORES_CSV
from nein.engine import atomic
from nein.engine.run import Executor
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable


def write(run, edits, scores, *, config, data, size):
    """A complete run of these edits in blocks of `size`, and of scores, each of which names its `metric`."""
    facts = {"config": config, "data": data, "editor": run.editor, "name": run.label}
    facts["selected"] = {EDIT: {"size": size, "records": [[0, len(edits)]]}}
    run.open({"seed": 0}, facts, overwrite=False)
    run.update(status="complete")
    columns = {EDIT: edits}
    for row in scores:
        kept = {key: value for key, value in row.items() if key != "metric"}
        columns.setdefault(score_output(row["metric"]), []).append(kept)
    for output, rows in columns.items():
        if output != EDIT:
            run.open_output(output, {}, overwrite=False)
        for start in range(0, len(edits), size):
            write_block(run, output, start // size, rows[start : start + size])
    run.__dict__.pop("about", None)
    finish(run)


def write_block(folder, output, number, rows):
    """The file of a block, as a stage writes it."""
    atomic.write_lines(folder.block_path(output, number), [{"output": output, "block": number}, *rows])


def finish(run):
    run = RunDir(run.path)
    scores = run.make_scores()
    scores.write(run.path / SCORES_CSV)
    frames.write(run.path / FIGURES_CSV, estimates.make_estimates(scores, run.corpus(), run.track))


def report(out):
    text = NEIN(EvalConfig.parse(["--out", str(out), "--stages", "report"]), Executor("cpu", debug=True))
    assert isinstance(text, str)
    return text


def edits_of(path):
    return [vars(row) for row in RunDir(path).edits.values()]


def scores_in(path):
    return [vars(row) for row in RunDir(path).score_rows()]


def table(edits, scores):
    by_id = {edit["id"]: of_runs.label_edit(EditRow(**edit), "negative") for edit in edits}
    rows = (
        {**by_id[row["id"]], "before": row.get("detail", {}).get("present_before"), **row} for row in scores
    )
    return ScoreTable.from_rows(rows, of_runs.DETAILS)


def write_fid(run, entry):
    atomic.write_json(run.path / "corpus.json", {"fid": dict(entry)})
