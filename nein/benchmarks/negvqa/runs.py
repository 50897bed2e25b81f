"""Makes the runs of `nein negvqa`, and defines the benchmark NegVQA.

A run is a model, alone or with a remedy of `--mend`, or a file of answers. The data are read here, and the
names of models checked; the stages load the models. Parts: models, runs, the benchmark.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY, spread_blocks
from nein.benchmarks.negvqa import estimates, paper, report, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.data import ANSWERS, BLIND, MATCHES, AnswersDir
from nein.benchmarks.negvqa.stages import Answerer, FileAnswers, Matching, QuestionForm, Questioning
from nein.benchmarks.runner import Benchmark, Finished, Run
from nein.datasets import negvqa as questions
from nein.datasets.harness import Question
from nein.datasets.negvqa import VARIANTS, Questions
from nein.engine.folder import Blocks
from nein.engine.stages import Model, Shared, Stage, read_usage
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.loading.references import expand_user, is_served, parse_reference
from nein.metrics import choice_prompts, choices, models
from nein.metrics.base import fingerprint
from nein.metrics.chat.endpoint import check_options
from nein.metrics.letters import MISSING, SCORINGS
from nein.models import llm, references
from nein.models.cached import Services
from nein.models.llm import LlmOptions
from nein.models.remedies import answers as remedies
from nein.reporting.scores import ScoreTable

# --- models ----------------------------------------------------------------------------------------
JUDGE = "judge"  # --model judge: the VQA judge of --judge
MATCHER_TOKENS = 2048  # longest answer of the matcher, as in VLMEvalKit


def find_answerer(reference: str, config: NegvqaConfig) -> Answerer:
    """Checks a model of the command line. Raises UserError or MetricError for one that cannot be asked."""
    source = config.judge if reference == JUDGE else reference
    location = source  # of an object of the Python API
    model = references.get_object(reference)  # None: the reference is a text
    if model is None:
        location = references.resolve(source)
        models.check_reference(location)
        check_options(location, config.model_options)
    possible: Sequence[str] = SCORINGS
    if model is not None:
        possible = model.scorings
    elif reference == JUDGE:
        possible = choices.ASKINGS[config.judge_asking]
    elif parse_reference(location).is_code:
        possible = choices.FunctionChoices.scorings
    scorings = sorted(set(config.scoring) & {*possible})
    if not scorings:
        advice = "add it to --scoring"
        if reference == JUDGE:
            advice += ", or --judge-asking options"
        raise UserError(f"'{reference}' can be read by {' or '.join(possible)} only; {advice}.")
    toolkit_format = choice_prompts.find_prompt_format(source)  # VLMEvalKit's for this model
    wording = toolkit_format.prompt if config.prompt == "vlmevalkit" else config.prompt
    max_new_tokens = config.max_new_tokens or toolkit_format.max_new_tokens
    prompt_format = choice_prompts.PromptFormat(wording, max_new_tokens)
    return Answerer(reference, source, location, scorings=scorings, format=prompt_format)


def load_model(answerer: Answerer, config: NegvqaConfig, device: str) -> Any:
    """The loaded model behind an answerer. Raises MetricError or UserError."""
    if (model := references.get_object(answerer.reference)) is not None:
        return model
    served = is_served(answerer.location)
    services = Services.create(config, config.out_dir / "cache" / "answers.sqlite" if served else None)
    options: dict[str, Any] = {"device": device, "dtype": config.dtype}
    if served:
        options |= services.options
    options |= config.model_options
    if answerer.reference == JUDGE:
        if config.judge_quantization != "none":
            options["quantization"] = config.judge_quantization
        judge = services.keep(models.load_judge("vqa", answerer.location, **options))
        return choices.JudgeChoices(judge, config.judge_asking)
    options |= {"batch_size": config.batch_size, "max_new_tokens": answerer.format.max_new_tokens}
    return services.keep(models.load_choices(answerer.location, **options))


def load_with_remedy(load: Callable[[], Any], remedy: str, wording: str) -> Any:
    return remedies.WithRemedy(load(), remedy, wording)


def make_matcher(reference: str, config: NegvqaConfig, device: str) -> Model:
    """The language model of `--matcher`, to be loaded by the stage "matches"."""

    def load() -> llm.Client:
        options = LlmOptions(model=reference, max_tokens=MATCHER_TOKENS, dtype=config.dtype)
        services = Services.create(config, config.out_dir / "cache" / "answers.sqlite")
        return llm.load(options, services=services, device=device)

    return Model(
        config.matcher, load, place=references.find_place(reference),
        describe=lambda client: {"matcher": (fingerprint(client.describe()), client.describe())},
        usage=lambda client: read_usage({"matcher": client}),
    )  # fmt: skip


# --- runs ------------------------------------------------------------------------------------------
def name_run(model: str, config: NegvqaConfig) -> str:
    """The name of a run's folder: the user's, else made from the reference, without a server's address."""
    label, reference = references.split_label(model)  # of LABEL=MODEL or NAME=FILE.csv
    if label is not None:
        return label
    if model in config.answers_from:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", expand_user(model).stem).lstrip("-.") or "answers"
    if reference == JUDGE:
        return JUDGE if config.judge_asking == "options" else f"{JUDGE}-{config.judge_asking}"
    return references.slugify_served(reference) or references.slugify(reference.replace("nano:", "nano-"))


@dataclass(frozen=True)
class _RunMaker:
    """Makes the runs of a command on the same questions."""

    config: NegvqaConfig
    data: Questions
    device: str

    def make_model_runs(self, name: str, reference: str) -> Iterator[Run]:
        """The run of a model, then one with each remedy of `--mend`; all share the loaded model."""
        answerer = find_answerer(reference, self.config)
        load = Shared(functools.partial(load_model, answerer, self.config, self.device))  # loads once
        yield self._make_model_run(name, answerer, load, remedy="")
        for remedy in self.config.mend:
            if remedy == "consistent" and "logprob" not in answerer.scorings:
                raise UserError(f"--mend {remedy} needs probabilities, which '{reference}' lacks; omit it.")
            load_both = functools.partial(load_with_remedy, load, remedy, answerer.format.prompt)
            yield self._make_model_run(f"{name}+{remedy}", answerer, load_both, remedy=remedy)

    def _make_model_run(self, name: str, answerer: Answerer, load: Callable[[], Any], *, remedy: str) -> Run:
        config, items = self.config, self.data.items
        # The paper's toolkit reads its table with pandas, to which an option "None" is a missing value.
        has_missing = any(not MISSING.isdisjoint(item.options) for item in items)
        hide_missing = config.protocol == "paper" and has_missing
        identity: dict[str, Any] = {
            "model": references.identify(answerer.source),
            "role": JUDGE if answerer.reference == JUDGE else "model",
            "prompt": answerer.format.prompt, "scoring": answerer.scorings,
            "max_new_tokens": answerer.format.max_new_tokens,
            **references.digest_models({"model": answerer.source}),
        }  # fmt: skip
        if hide_missing:
            identity["missing"] = "not shown"
        if config.model_options:
            identity["options"] = config.model_options
        if answerer.reference == JUDGE:
            identity |= {"quantization": config.judge_quantization, "asking": config.judge_asking}
        if remedy:
            identity["mend"] = remedy

        model_name = f"{answerer.reference}+{remedy}" if remedy else answerer.reference
        model = Model.one(model_name, load, references.find_place(answerer.source))
        common: Any = {"model": model, "items": items, "answerer": answerer, "hide_missing": hide_missing}
        blocks = Blocks.first(len(items), config.batch_size, config.limit)
        forms = [QuestionForm(variant) for variant in VARIANTS]
        ask = Questioning(name=ANSWERS, blocks=blocks, forms=forms, invalidates=(MATCHES,), **common)
        stages: list[Stage] = [ask]
        if config.blind:
            forms = [QuestionForm(variant, TEXT_ONLY) for variant in VARIANTS]
            if remedy not in remedies.IN_PAIRS:  # without a question there is no pair to ask
                forms.append(QuestionForm("", PICTURE_ONLY))
            spread = spread_blocks(blocks, config.blind)
            stages.append(Questioning(name=BLIND, blocks=spread, forms=forms, **common))
        return self._make_run(name, answerer.reference, identity, stages)

    def make_file_run(self, name: str, file: str) -> Run:
        """The run of a file of answers, over the questions that it answers."""
        path = expand_user(file)
        answers = questions.read_answers(path, self.data.items)
        items = [item for item in self.data.items if item.id in answers]
        blocks = Blocks.first(len(items), self.config.batch_size, self.config.limit)
        identity: dict[str, Any] = {"model": f"answers {json_digest(answers)}", "role": "answers"}
        identity |= {"prompt": "not asked here", "scoring": ["generated"]}
        stage = FileAnswers(blocks=blocks, items=items, answers=answers)
        return self._make_run(name, path.name, identity, [stage])

    def _make_run(self, name: str, reference: str, identity: dict[str, Any], stages: list[Stage]) -> Run:
        """Adds the matcher's stage, if one is needed, and the facts of the manifest."""
        config, data = self.config, self.data
        folder, blocks = AnswersDir(config.out_dir / name), stages[0].blocks
        outputs: dict[str, Any] = {}  # output -> what decides its rows, besides the run's identity
        answers_in_words = identity.get("asking") != "options"  # else yes or no per option: nothing to match
        if config.matcher_model and answers_in_words and "generated" in identity["scoring"]:
            matcher = make_matcher(config.matcher_model, config, self.device)
            stages.append(Matching(folder=folder, blocks=blocks, model=matcher))
            digests = references.digest_models({"matcher": config.matcher_model})
            outputs[MATCHES] = {"matcher": references.identify(config.matcher_model), **digests}
        subsets = Counter(item.subset for item in data.items)
        facts = {
            "reference": reference, "protocol": config.protocol,
            "scoring": [name for name in config.scoring if name in identity["scoring"]],
            "matcher": config.matcher,
            "data": {**data.origin, "sha256": data.sha256, "questions": len(data.items), "subsets": subsets},
            "limit": len(blocks.indices),
        }  # fmt: skip
        identity = {**identity, "data": data.sha256, **runner.machine_identity(config, self.device)}
        if reference.startswith("nano:") and name.startswith("nano-"):  # made by `name_run`, not the user's
            name = name.replace("nano-", "nano:", 1)  # as the model is typed: no part of a path here
        return Run(folder, name, identity, stages, facts=facts, outputs=outputs)


# --- the benchmark ---------------------------------------------------------------------------------
_load_questions = functools.lru_cache(maxsize=2)(questions.load)  # `runs` may be called twice


class NegVqa(Benchmark):
    """Asks vision-language models questions about images, and their negations."""

    # `runner.Benchmark` says what each of these is for.
    name, title = "negvqa", "NegVQA"
    config, report_config, folder = NegvqaConfig, ReportConfig, AnswersDir
    gap, sections = VARIANTS, sections.SECTIONS
    page, gaps = staticmethod(report.make_page), staticmethod(report.negation_gaps)
    paper_gaps = staticmethod(paper.paper_gaps)
    paper_estimates = staticmethod(paper.paper_estimates)

    def runs(self, config: Any, device: str) -> list[Run]:
        """One run per model and remedy, and per file of answers."""
        data = _load_questions(
            config.data, negated=config.negated, image_folder=config.images, split=config.split,
            questions=config.questions, columns=tuple(sorted(config.columns.items())),
        )  # fmt: skip
        absent = [item.image for item in data.items if not item.image.is_file()]
        if len(absent) == len(data.items):
            raise UserError(f"No image of the questions exists ('{absent[0]}'); pass --images FOLDER.")
        if config.matcher_model:
            llm.check(config.matcher_model)
        subjects = (*config.model, *config.answers_from)
        names = runner.name_folders((name_run(subject, config), subject) for subject in subjects)
        maker = _RunMaker(config, data, device)
        runs: list[Run] = []
        for name, subject in names.items():
            reference = references.split_label(subject)[1]
            if subject in config.answers_from:
                runs.append(maker.make_file_run(name, reference))
            else:
                runs += maker.make_model_runs(name, reference)
        return runs

    def scores(self, run: Any) -> ScoreTable:
        return scores.make_scores(run.folder, run.stages[0].items, run.stages[0].blocks.indices)

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return estimates.make_estimates(table, folder.manifest()["identity"].get("asking"))

    def harness_questions(self, run: Finished, options: Any) -> Iterable[Question]:
        return questions.export_questions(report.find_items(run, options))

    def primary_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """The accuracies under `--protocol`, by the scoring named first."""
        facts = folder.manifest()
        return table.where(metric="accuracy", protocol=facts["protocol"], scoring=facts["scoring"][0])


NEGVQA = NegVqa()
