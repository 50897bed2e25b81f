"""The NeIn benchmark: which images editors make when told what is absent, and how those are scored."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from nein.benchmarks.compare import Side
from nein.benchmarks.nein import estimates, paper_numbers, report, stages
from nein.benchmarks.nein.config import CompareConfig, EvalConfig, ReportConfig
from nein.benchmarks.nein.runs import CORPUS, EDIT, SCORES, RunDir, in_order, scores_of
from nein.benchmarks.nein.stages import Edit, Score, Scorer
from nein.benchmarks.runner import Benchmark, Finished, Printed, Run, machine_identity
from nein.datasets import nein as loading
from nein.datasets.nein import Dataset
from nein.editors import Editor
from nein.engine import atomic
from nein.engine.folder import Blocks, runs_at
from nein.engine.stages import Model, Stage, shared
from nein.loading.errors import UserError, shortlist
from nein.loading.references import is_served
from nein.metrics import METRICS
from nein.models import editor_choice
from nein.models.cached import Services
from nein.models.editor_choice import EditorChoice
from nein.models.references import contents
from nein.models.references import identity as identity_of
from nein.reporting.page import Page
from nein.reporting.scores import ScoreTable

log = logging.getLogger(__name__)


def _data(config: EvalConfig, choices: Sequence[EditorChoice], wanted: Sequence[str]) -> Dataset:
    """The data of a command. Raises UserError, also where they lack what a metric or an editor needs."""
    dataset = loading.load(
        config.data,
        split=config.split,
        columns=config.columns,
        families=config.families,
    )
    for metric in wanted:
        if METRICS[metric].by_truth and not any(sample.things for sample in dataset.samples):
            raise UserError(
                f"The metric '{metric}' needs data that say which things every picture shows, and "
                f"'{config.data}' does not; take --data nano:scope, or other metrics."
            )
    for choice in choices:
        if choice.external is not None:
            choice.external.check_samples(dataset.samples)
    return dataset


def _missing_images(dataset: Dataset, name: str) -> list[str]:
    """Sentences on images that are not there, whose samples will be unscored; none is opened. Raises
    UserError where every image of a kind is missing: then the folder is another one."""
    kinds = {
        "NeIn": {sample.id for sample in dataset.samples},
        "COCO": {sample.source_id for sample in dataset.samples},
    }
    notes = []
    for role, names in kinds.items():
        if missing := sorted(names & dataset.missing):
            message = f"'{name}' lacks {len(missing)} of {len(names)} {role} images ({shortlist(missing, 3)})"
            if len(missing) == len(names):
                raise UserError(f"{message}; put them there.")
            notes.append(f"{message}; their samples will be unscored.")
    return notes


def _load(config: EvalConfig, choice: EditorChoice, device: str, plain: Callable[[], Editor]) -> Editor:
    """The editor, with its remedy. plain: gives it without."""
    if not choice.remedy:
        return plain()
    from nein.models.judges import RemovalReward
    from nein.models.remedies.editors import with_remedy

    services = services_of(config)

    def removal() -> RemovalReward:
        judge = stages.load_models(["removal_vqa"], config, device, services)["vqa"]
        return RemovalReward(judge, config.article)

    how: dict[str, Any] = {"device": device, "dtype": config.judge_dtype}
    return with_remedy(plain(), choice.remedy, services=services, removal=removal, **how)


def services_of(config: EvalConfig) -> Services:
    return Services.of(config, config.cache_dir / "answers.sqlite")


class NeIn(Benchmark):
    """Editors on negative instructions."""

    name, title, command = "nein", "NeIn", "eval"
    config, report_config, compare_config = EvalConfig, ReportConfig, CompareConfig
    folder = RunDir
    whole = True

    def runs(self, config: EvalConfig, device: str) -> list[Run]:
        """One run per editor and track; none for a report alone."""
        if not {"edit", "score"} & set(config.stages):
            runs_at([config.out_dir])
            return []
        choices = editor_choice.resolve_editors(
            config.editor,
            config.preset,
            config.editor_options,
            config.edited,
            config.mend,
            config.protocol == "paper",
        )
        for choice in choices if "edit" in config.stages else ():
            choice.check_references()
        wanted = config.metrics if "score" in config.stages else []
        stages.check_references(wanted, config)
        dataset = _data(config, choices, wanted)
        notes = _missing_images(dataset, config.data) if dataset.missing else []
        blocks = Blocks(len(dataset.samples), config.batch_size, dataset.select(config.limit, config.samples))
        load_scorer = functools.partial(Scorer, config, device)
        place = "device" if stages.model_kinds(config.metrics) else "host"
        scorer = Model("scoring", load_scorer, Scorer.describe, place, Scorer.usage)
        asked = stages.questions(wanted, config)
        outputs = {scores_of(name): stages.score_identity(name, config, device) for name in wanted}
        found: list[Run] = []
        loaders: dict[str, Callable[[], Editor]] = {}
        for choice in choices:
            how: dict[str, Any] = {"device": device, "dtype": config.dtype, "batch_size": config.batch_size}
            load = functools.partial(choice.load, services=functools.partial(services_of, config), **how)
            plain = loaders.setdefault((choice.plain or choice).asked, shared(load))
            made_by = functools.partial(_load, config, choice, device, plain)
            name = f"{choice.asked}/{choice.external.track}" if choice.external else choice.asked
            editor = Model.one(name, made_by, choice.place, "editor", choice.requests or 0)
            singly = choice.requests is not None
            edited = dataclasses.replace(blocks, size=1, unit=blocks.size) if singly else blocks
            for track in [choice.external.track] if choice.external else config.tracks:
                run = RunDir(config.out_dir / choice.slug / track)
                steps: list[Stage] = []
                if "edit" in config.stages:
                    edit = Edit(run=run, dataset=dataset, blocks=edited, model=editor, seed=config.seed)
                    edit.retry_refused = config.retry_refused
                    edit.asks = {choice.row: choice.edits} if is_served(choice.row) else {}
                    edit.given = choice.external.files if choice.external else {}
                    steps.append(edit)
                elif missing := sum(
                    len(edited.needed(n)) > run.records(EDIT, n, edited) for n in edited.numbers
                ):
                    raise UserError(
                        f"'{run.path}' lacks edits in {missing} of {len(edited.numbers)} blocks of samples; "
                        "run the stage edit to make them."
                    )
                if "score" in config.stages:
                    how = {"plain": config.protocol == "paper", "asks": asked}
                    steps.append(
                        Score(run=run, dataset=dataset, edited=edited, metrics=wanted, scorer=scorer, **how)
                    )
                identity = choice.identity()
                if choice.asks_the_run:
                    judge = config.models.vqa
                    identity["mend.judge"] = {"name": identity_of(judge), **contents({"judge": judge})}
                identity |= {"track": track, "seed": config.seed, "data": dataset.records_sha256}
                identity |= machine_identity(config, device)
                facts = {"editor": choice.slug, "track": track, "config": dataclasses.asdict(config)}
                facts |= {"data": dataset.facts(blocks), "selected": {EDIT: edited.selection}}
                partial = not wanted and not run.scored_metrics(edited)
                found.append(Run(run, run.label, identity, steps, facts, outputs, partial, notes))
        return found

    def scores(self, run: Run) -> ScoreTable:
        """The scores by every metric that the whole selection has; also works out what exists only for the
        whole."""
        folder = run.folder
        names, opened = folder.scored_metrics(folder.blocks), folder.outputs(SCORES)
        if partial := [name for name in opened if name not in names and folder.done(scores_of(name))]:
            why = "scored on a smaller selection only, and left out; add to --metrics to complete"
            log.warning("%s: %s %s", folder.label, ", ".join(partial), why)
        whole = {
            name: dataclasses.asdict(estimates.of_whole(name, folder))
            for name in names
            if METRICS[name].kind == "corpus"
        }
        if whole:
            atomic.write_json(folder.path / CORPUS, whole)
        return folder.scored()

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return estimates.of_table(table, folder.corpus(), folder.track)

    def decides(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """The scores by the metric that lacks most."""
        lacking = table.frame.loc[table.frame["value"].isna(), "metric"].value_counts()
        return table.where(metric=lacking.index[0]) if len(lacking) else table

    def page(self, finished: Sequence[Finished], options: Any) -> Page | None:
        return report.page(finished, options)

    def sides(self, finished: Sequence[Finished], options: Any) -> dict[str, Side]:
        loaded = in_order([entry.folder for entry in finished])
        chosen = [run for run in loaded if options is None or options.track in (run.track, "all")]
        return report.sides(chosen, {run.name: run for run in loaded if run.track == "remove"})

    def gaps(self, finished: Sequence[Finished]) -> pd.DataFrame:
        return estimates.negation_gaps(finished)

    def printed(self) -> Iterator[Mapping[str, Any]]:
        return paper_numbers.gaps()

    def published(self, source: str, run: Mapping[str, Any] | None) -> Iterator[Printed]:
        return paper_numbers.published(source, run)


NEIN = NeIn()
