"""Makes the runs of `nein negvqa`, and defines the benchmark NegVQA.

A run is a model, alone or with a remedy, or a file of answers. Names, data and models are checked here, and
loaded by the stages. Parts: models, runs, the benchmark.
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
    location = source = config.judge if reference == JUDGE else reference
    model = references.get_object(reference)  # of the Python API
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
        words, more = " or ".join(possible), ", or --judge-asking options" if reference == JUDGE else ""
        raise UserError(f"'{reference}' can be read by {words} only; add it to --scoring{more}.")
    toolkit = choice_prompts.find_prompt_format(source)  # VLMEvalKit's for this model
    wording = toolkit.prompt if config.prompt == "vlmevalkit" else config.prompt
    prompt_format = choice_prompts.PromptFormat(wording, config.max_new_tokens or toolkit.max_new_tokens)
    return Answerer(reference, source, location, scorings, prompt_format)


def load_model(answerer: Answerer, config: NegvqaConfig, device: str) -> Any:
    """The loaded model behind an answerer. Raises MetricError or UserError."""
    if (model := references.get_object(answerer.reference)) is not None:
        return model
    served = is_served(answerer.location)
    services = Services.create(config, config.out_dir / "cache" / "answers.sqlite" if served else None)
    options: dict[str, Any] = {"device": device, "dtype": config.dtype}
    options |= {**(services.options if served else {}), **config.model_options}
    if answerer.reference == JUDGE:
        if config.judge_quantization != "none":
            options["quantization"] = config.judge_quantization
        judge = services.keep(models.load_judge("vqa", answerer.location, **options))
        return choices.JudgeChoices(judge, config.judge_asking)
    options |= {"batch_size": config.batch_size, "max_new_tokens": answerer.format.max_new_tokens}
    return services.keep(models.load_choices(answerer.location, **options))


def load_with_remedy(load: Callable[[], Any], remedy: str, wording: str) -> Any:
    return remedies.WithRemedy(load(), remedy, wording)


def load_matcher(config: NegvqaConfig, device: str) -> llm.Client:
    options = LlmOptions(model=config.matching, max_tokens=MATCHER_TOKENS, dtype=config.dtype)
    services = Services.create(config, config.out_dir / "cache" / "answers.sqlite")
    return llm.load(options, services=services, device=device)


# --- runs ------------------------------------------------------------------------------------------
def name_run(model: str, config: NegvqaConfig) -> str:
    """The name of a run's folder: the user's, else made from the reference, without a server's address."""
    label, reference = references.split_label(model)
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
        load = Shared(functools.partial(load_model, answerer, self.config, self.device))
        yield self._make_model_run(name, answerer, load, "")
        for remedy in self.config.mend:
            if remedy == "consistent" and "logprob" not in answerer.scorings:
                raise UserError(f"--mend {remedy} needs probabilities, which '{reference}' lacks; omit it.")
            mended = functools.partial(load_with_remedy, load, remedy, answerer.format.prompt)
            yield self._make_model_run(f"{name}+{remedy}", answerer, mended, remedy)

    def _make_model_run(self, name: str, answerer: Answerer, load: Callable[[], Any], remedy: str) -> Run:
        config, items = self.config, self.data.items
        # The paper's toolkit reads its table with pandas, to which an option "None" is a missing value.
        hide_nan = config.protocol == "paper" and any(not MISSING.isdisjoint(item.options) for item in items)
        identity: dict[str, Any] = {
            "model": references.identify(answerer.source),
            "role": JUDGE if answerer.reference == JUDGE else "model",
            "prompt": answerer.format.prompt,
            "scoring": answerer.scorings,
            "max_new_tokens": answerer.format.max_new_tokens,
            **references.digest_models({"model": answerer.source}),
        }
        if hide_nan:
            identity["missing"] = "not shown"
        if config.model_options:
            identity["options"] = config.model_options
        if answerer.reference == JUDGE:
            identity |= {"quantization": config.judge_quantization, "asking": config.judge_asking}
        if remedy:
            identity["mend"] = remedy

        model_name = f"{answerer.reference}+{remedy}" if remedy else answerer.reference
        model = Model.one(model_name, load, references.find_place(answerer.source))
        ask = functools.partial(Questioning, model=model, items=items, answerer=answerer, hide_nan=hide_nan)
        blocks = Blocks.first(len(items), config.batch_size, config.limit)
        forms = [QuestionForm(variant) for variant in VARIANTS]
        stages: list[Stage] = [ask(name=ANSWERS, blocks=blocks, forms=forms, invalidates=(MATCHES,))]
        if config.blind:
            forms = [QuestionForm(variant, TEXT_ONLY) for variant in VARIANTS]
            if remedy not in remedies.IN_PAIRS:  # without a question there is no pair to ask
                forms.append(QuestionForm("", PICTURE_ONLY))
            stages.append(ask(name=BLIND, blocks=spread_blocks(blocks, config.blind), forms=forms))
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
        config, data, outputs = self.config, self.data, {}
        folder, blocks = AnswersDir(config.out_dir / name), stages[0].blocks
        in_words = identity.get("asking") != "options"  # else yes or no to each option: nothing to match
        if config.matching and in_words and "generated" in identity["scoring"]:
            model = Model(
                config.matcher,
                functools.partial(load_matcher, config, self.device),
                describe=lambda client: {"matcher": (fingerprint(client.describe()), client.describe())},
                place=references.find_place(config.matching),
                usage=lambda client: read_usage({"matcher": client}),
            )
            stages.append(Matching(folder=folder, blocks=blocks, model=model))
            digests = references.digest_models({"matcher": config.matching})
            outputs = {MATCHES: {"matcher": references.identify(config.matching), **digests}}
        subsets = Counter(item.subset for item in data.items)
        facts = {
            "reference": reference,
            "protocol": config.protocol,
            "scoring": [name for name in config.scoring if name in identity["scoring"]],
            "matcher": config.matcher,
            "data": {**data.origin, "sha256": data.sha256, "questions": len(data.items), "subsets": subsets},
            "limit": len(blocks.indices),
        }
        identity = {**identity, "data": data.sha256, **runner.machine_identity(config, self.device)}
        if reference.startswith("nano:") and name.startswith("nano-"):  # not a name of the user's
            name = name.replace("nano-", "nano:", 1)
        return Run(folder, name, identity, stages, facts, outputs)


# --- the benchmark ---------------------------------------------------------------------------------
_load_questions = functools.lru_cache(maxsize=2)(questions.load)  # `runs` may be called twice


class NegVqa(Benchmark):
    """Asks vision-language models questions about images, and their negations."""

    name, title = "negvqa", "NegVQA"
    config, report_config, folder = NegvqaConfig, ReportConfig, AnswersDir
    gap, sections = VARIANTS, sections.SECTIONS
    page, gaps = staticmethod(report.make_page), staticmethod(report.negation_gaps)
    paper_gaps = staticmethod(paper.paper_gaps)
    paper_estimates = staticmethod(paper.paper_estimates)

    def runs(self, config: Any, device: str) -> list[Run]:
        """One run per model and remedy, and per file of answers."""
        data = _load_questions(
            config.data,
            negated=config.negated,
            image_folder=config.images,
            split=config.split,
            columns=tuple(sorted(config.columns.items())),
            questions=config.questions,
        )
        absent = [item.image for item in data.items if not item.image.is_file()]
        if len(absent) == len(data.items):
            raise UserError(f"No image of the questions exists ('{absent[0]}'); pass --images FOLDER.")
        if config.matching:
            llm.check(config.matching)
        subjects = (*config.model, *config.answers_from)
        names = runner.name_folders((name_run(subject, config), subject) for subject in subjects)
        maker, runs = _RunMaker(config, data, device), list[Run]()
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
