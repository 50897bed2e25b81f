"""`NeIn`, the benchmark behind `nein eval`: makes a run per editor and instruction track, and its scores.

Names, data and models are checked here; models are loaded when a stage needs them.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd

from nein.benchmarks.compare import Side
from nein.benchmarks.nein import estimates, paper_numbers, report, stages
from nein.benchmarks.nein.config import CompareConfig, EvalConfig, ReportConfig
from nein.benchmarks.nein.runs import CORPUS, EDIT, SCORES, RunDir, export_questions, order_runs, score_output
from nein.benchmarks.nein.stages import Edit, Score, Scorer
from nein.benchmarks.runner import Benchmark, Finished, Run, machine_identity
from nein.datasets.harness import Question, read_answers
from nein.datasets.nein import Dataset
from nein.datasets.nein import load as load_dataset
from nein.editors import Editor
from nein.engine import atomic
from nein.engine.folder import Blocks, collect_runs
from nein.engine.stages import Model, Shared, Stage
from nein.loading.digests import json_digest
from nein.loading.errors import UserError, shortlist
from nein.loading.references import expand_user
from nein.metrics import METRICS
from nein.models.editor_choice import EditorChoice, resolve_editors
from nein.models.references import digest_models, identify
from nein.reporting.scores import ScoreTable

log = logging.getLogger(__name__)
Load = Callable[[], Editor]  # loads an editor


class NeIn(Benchmark):
    """The benchmark of editors that are told what an image should not show."""

    # Explained at `Benchmark`.
    name, title, command = "nein", "NeIn", "eval"
    config, report_config, compare_config = EvalConfig, ReportConfig, CompareConfig
    folder = RunDir
    reports_all = True
    page = staticmethod(report.make_page)
    gaps = staticmethod(estimates.negation_gaps)
    paper_gaps = staticmethod(paper_numbers.paper_gaps)
    paper_estimates = staticmethod(paper_numbers.paper_estimates)

    def runs(self, config: EvalConfig, device: str) -> list[Run]:
        """One run per editor and track; none for a report alone."""
        has_edits, has_scores = "edit" in config.stages, "score" in config.stages
        if not (has_edits or has_scores):
            collect_runs([config.out_dir])  # raises UserError without a run to report
            return []
        # Editors, metrics and data.
        choices = resolve_editors(
            config.editor,
            config.preset,
            config.editor_options,
            edited=config.edited,
            mend=config.mend,
            as_released=config.protocol == "paper",
        )
        for choice in choices if has_edits else ():
            choice.check_references()
        metrics = config.metrics if has_scores else []
        judged = [name for name in metrics if not (config.answers_from and name == "removal_vqa")]
        stages.check_references(judged, config)
        dataset = _load_data(config, choices, metrics)
        notes = [*_note_missing_images(dataset, config.data)] if dataset.missing else []
        model_kinds = stages.list_model_kinds(judged)
        if "vqa" in model_kinds:
            notes += filter(None, (choice.warn_of_kinship(config.models.vqa) for choice in choices))
        blocks = Blocks(len(dataset.samples), config.batch_size, dataset.select(config.limit, config.samples))
        # What all runs share: the scorer, and the identity of each metric.
        answers = _read_log(config, choices) if judged != metrics else None
        load_scorer = functools.partial(Scorer, config, device)
        place = "device" if model_kinds else "host"  # metrics of pixels need no accelerator
        scorer = Model("scoring", load_scorer, Scorer.describe, place=place, usage=Scorer.usage)
        outputs = {score_output(name): stages.collect_score_facts(name, config, device) for name in judged}
        if answers is not None:
            outputs[score_output("removal_vqa")] = {"answers": json_digest(answers)[:12]}
        # A run per editor and track.
        loaders: dict[str, Load] = {}  # an editor and its remedies share one loaded model
        runs: list[Run] = []
        for choice in choices:
            editor = _make_model(config, choice, device, loaders)
            edit_blocks = blocks
            if choice.requests is not None:  # edits are made one by one: a sample per block
                edit_blocks = dataclasses.replace(blocks, size=1, unit=blocks.size)
            for track in _list_tracks(config, choice):
                folder = RunDir(config.out_dir / choice.slug / track)
                steps: list[Stage] = []
                shared: Any = {"run": folder, "dataset": dataset, "config": config}
                if has_edits:
                    steps.append(Edit(blocks=edit_blocks, model=editor, choice=choice, **shared))
                else:
                    _check_edits(folder, edit_blocks)
                if has_scores:
                    shared |= {"metrics": metrics, "answers": answers}
                    steps.append(Score(edited=edit_blocks, model=scorer, **shared))
                identity = {**_identify(config, choice), "track": track, "seed": config.seed}
                identity |= {"data": dataset.records_sha256, **machine_identity(config, device)}
                facts = {"editor": choice.slug, "track": track, "config": dataclasses.asdict(config)}
                facts |= {"data": dataset.facts(blocks), "selected": {EDIT: edit_blocks.selection}}
                # Edits alone are a part of a run, unless it has been scored before.
                partial = not metrics and not folder.list_complete_metrics(edit_blocks)
                more: Any = {"facts": facts, "outputs": outputs, "partial": partial, "notes": notes}
                runs.append(Run(folder, folder.label, identity, steps, **more))
        return runs

    def scores(self, run: Run) -> ScoreTable:
        """The scores by every metric that covers the whole selection; also computes FID (corpus.json)."""
        folder = run.folder
        complete = folder.list_complete_metrics(folder.blocks)
        begun = [name for name in folder.outputs(SCORES) if folder.list_blocks(score_output(name))]
        if partial := [name for name in begun if name not in complete]:
            why = "scored on a smaller selection only, and left out; add to --metrics to complete"
            log.warning("%s: %s %s", folder.label, ", ".join(partial), why)
        entries = {}
        for name in complete:
            if METRICS[name].kind == "corpus":
                entries[name] = dataclasses.asdict(estimates.compute_corpus_metric(name, folder))
        if entries:
            atomic.write_json(folder.path / CORPUS, entries)
        return folder.make_scores()

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return estimates.make_estimates(table, folder.corpus(), folder.track)

    def primary_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """The scores by the metric with the most unscored samples."""
        unscored_counts = table.frame.loc[table.frame["value"].isna(), "metric"].value_counts()
        return table.where(metric=unscored_counts.index[0]) if len(unscored_counts) else table

    def harness_questions(self, run: Finished, options: Any) -> Iterator[Question]:
        return export_questions(run.folder)

    def sides(self, finished: Sequence[Finished], options: Any) -> dict[str, Side]:
        loaded = order_runs([entry.folder for entry in finished])
        chosen = [run for run in loaded if options is None or options.track in (run.track, "all")]
        return report.make_sides(chosen, {run.name: run for run in loaded if run.track == "remove"})


NEIN = NeIn()


# --- data, and the editor of a run ------------------------------------------------------------
def _load_data(config: EvalConfig, choices: Sequence[EditorChoice], metrics: Sequence[str]) -> Dataset:
    """The data of a command. Raises UserError, also if a metric or an editor needs more than they have."""
    dataset = load_dataset(config.data, split=config.split, columns=config.columns, families=config.families)
    has_things = any(sample.things for sample in dataset.samples)
    if unsupported := [metric for metric in metrics if METRICS[metric].by_truth and not has_things]:
        raise UserError(f"Metric '{unsupported[0]}' needs --data nano:scope; pass it, or omit the metric.")
    for choice in choices:
        if choice.external is not None:
            choice.external.check_samples(dataset.samples)
    return dataset


def _note_missing_images(dataset: Dataset, name: str) -> Iterator[str]:
    """Yields a sentence for each kind of image with missing files. Raises UserError if all are missing."""
    sources = {sample.source_id for sample in dataset.samples}
    for role, ids in {"NeIn": {sample.id for sample in dataset.samples}, "COCO": sources}.items():
        if missing := sorted(ids & dataset.missing):
            message = f"'{name}' lacks {len(missing)} of {len(ids)} {role} images ({shortlist(missing, 3)})"
            if len(missing) == len(ids):
                raise UserError(f"{message}; put them there.")
            yield f"{message}; their samples will be unscored."


def _make_model(config: EvalConfig, choice: EditorChoice, device: str, loaders: dict[str, Load]) -> Model:
    """The editor as a stage's model. Adds its loader without a remedy to `loaders`: editor -> loader."""
    services = functools.partial(stages.make_services, config)
    load = functools.partial(
        choice.load, device=device, dtype=config.dtype, batch_size=config.batch_size, services=services
    )
    load_plain = loaders.setdefault((choice.without_remedy or choice).name, Shared(load))
    name = f"{choice.name}/{choice.external.track}" if choice.external else choice.name
    load_mended = functools.partial(_load_editor, config, choice, device, load_plain)
    place = "device" if choice.requests is None else "remote"
    return Model.one(name, load_mended, place, kind="editor", requests=choice.requests or 0)


def _load_editor(config: EvalConfig, choice: EditorChoice, device: str, load_plain: Load) -> Editor:
    """Loads the editor, with its remedy if it has one. load_plain: loads it without."""
    if not choice.remedy:
        return load_plain()
    from nein.models.judges import RemovalReward
    from nein.models.remedies.editors import add_remedy

    services = stages.make_services(config)

    def load_reward() -> RemovalReward:
        judge = stages.load_models(["removal_vqa"], config, device, services)["vqa"]
        return RemovalReward(judge, config.article)

    options: dict[str, Any] = {"dtype": config.judge_dtype, "removal": load_reward}
    return add_remedy(load_plain(), choice.remedy, services=services, device=device, **options)


def _identify(config: EvalConfig, choice: EditorChoice) -> dict[str, Any]:
    """The identity of the editor; of a remedy that asks the run's judge, also that of the judge."""
    identity = choice.identity()
    if choice.uses_run_judge:
        judge = config.models.vqa
        identity["mend.judge"] = {"name": identify(judge), **digest_models({"judge": judge})}
    return identity


def _list_tracks(config: EvalConfig, choice: EditorChoice) -> list[str]:
    return [choice.external.track] if choice.external else config.tracks


def _check_edits(run: RunDir, blocks: Blocks) -> None:
    """Raises UserError if the run lacks edits of these blocks."""
    unmade = [n for n in blocks.numbers if len(blocks.needed(n)) > run.count_records(EDIT, n, blocks)]
    if unmade:
        raise UserError(f"'{run.path}' lacks edits in {len(unmade)} blocks; run the stage edit to make them.")


def _read_log(config: EvalConfig, choices: Sequence[EditorChoice]) -> dict[str, str]:
    """The answers of a log by `runs.question_key`. Raises UserError for a run without edits."""
    runs = []
    for choice in choices:
        runs += [RunDir(config.out_dir / choice.slug / track) for track in _list_tracks(config, choice)]
    for run in runs:
        if not run.list_blocks(EDIT):
            advice = "run the command with --metrics l1 and without --answers-from, then nein export."
            raise UserError(f"'{run.path}' has no edits that answers could be about; {advice}")
    questions = (question for run in runs for question in export_questions(run))
    return read_answers(expand_user(config.answers_from or ""), questions)
