"""The runs of `nein negvqa`: which model is asked what. Everything is checked and nothing is loaded."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nein.benchmarks import runner
from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY, spread
from nein.benchmarks.negvqa import estimates, report, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.data import ANSWERS, BLIND, MATCHES, AnswersDir
from nein.benchmarks.negvqa.stages import Answerer, Asking, FileAnswers, Matching, Questioning
from nein.benchmarks.runner import Benchmark, Finished, Run
from nein.datasets import negvqa as questions
from nein.datasets.harness import Question
from nein.datasets.negvqa import VARIANTS, Questions
from nein.engine.folder import Blocks
from nein.engine.stages import Model, Shared, Stage, usage_of
from nein.loading.digests import json_digest
from nein.loading.errors import UserError
from nein.loading.references import expand_user, is_served, parse_reference
from nein.metrics import choices, models
from nein.metrics.base import fingerprint
from nein.metrics.chat.endpoint import check_options
from nein.metrics.letters import MISSING, SCORINGS
from nein.models import llm, references
from nein.models.cached import Services
from nein.models.llm import LlmOptions
from nein.models.remedies import answers as remedies
from nein.reporting.scores import ScoreTable

JUDGE = "judge"
MATCHER_TOKENS = 2048  # of the toolkit's client
_questions = functools.lru_cache(maxsize=2)(questions.load)  # names of runs are looked up before they begin


def run_name(model: str, config: NegvqaConfig) -> str:
    """Of a run's folder: the name that the user gave. A model behind an endpoint is known by its own name:
    servers move."""
    given, reference = references.named(model)
    if given is not None:
        return given
    if model in config.answers_from:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", expand_user(model).stem).lstrip("-.") or "answers"
    if reference == JUDGE:
        return JUDGE if config.judge_asking == "options" else f"{JUDGE}-{config.judge_asking}"
    return references.moved(reference) or references.slug(reference.replace("nano:", "nano-"))


def answerer(reference: str, config: NegvqaConfig) -> Answerer:
    """Raises UserError or MetricError for a model that cannot be asked."""
    where = source = config.judge if reference == JUDGE else reference
    if (model := references.offered(reference)) is not None:
        possible: Sequence[str] = model.scorings
    else:
        where = references.resolve(source)
        models.check_reference(where)
        check_options(where, config.model_options)
        possible = choices.ASKINGS[config.judge_asking] if reference == JUDGE else SCORINGS
        if reference != JUDGE and parse_reference(where).is_code:
            possible = choices.FunctionChoices.scorings
    if not (scorings := sorted(set(config.scoring) & {*possible})):
        words, more = " or ".join(possible), ", or --judge-asking options" if reference == JUDGE else ""
        raise UserError(f"'{reference}' can be read by {words} only; add it to --scoring{more}.")
    toolkit = choices.prompt_format(source)
    wording = toolkit.prompt if config.prompt == "vlmevalkit" else config.prompt
    form = choices.PromptFormat(wording, config.max_new_tokens or toolkit.max_new_tokens)
    return Answerer(reference, source, where, scorings, form)


def load_model(asked: Answerer, config: NegvqaConfig, device: str) -> Any:
    """Raises MetricError or UserError."""
    if (model := references.offered(asked.reference)) is not None:
        return model
    served = is_served(asked.where)
    services = Services.of(config, config.out_dir / "cache" / "answers.sqlite" if served else None)
    options: dict[str, Any] = {"device": device, "dtype": config.dtype}
    options |= {**(services.options if served else {}), **config.model_options}
    if asked.reference == JUDGE:
        if config.judge_quantization != "none":
            options["quantization"] = config.judge_quantization
        judge = services.keep(models.load_judge("vqa", asked.where, **options))
        return choices.JudgeChoices(judge, config.judge_asking)
    options |= {"batch_size": config.batch_size, "max_new_tokens": asked.format.max_new_tokens}
    return services.keep(models.load_choices(asked.where, **options))


def load_mended(load: Callable[[], Any], remedy: str, wording: str) -> Any:
    return remedies.WithRemedy(load(), remedy, wording)


def load_matcher(config: NegvqaConfig, device: str) -> llm.Client:
    options = LlmOptions(model=config.matching, max_tokens=MATCHER_TOKENS, dtype=config.dtype)
    services = Services.of(config, config.out_dir / "cache" / "answers.sqlite")
    return llm.load(options, services=services, device=device)


@dataclass(frozen=True)
class _Maker:
    """Makes the runs of a command on its data."""

    config: NegvqaConfig
    data: Questions
    device: str

    def of_model(self, name: str, reference: str) -> Iterator[Run]:
        """The model as it is, then with each remedy of `--mend`."""
        asked = answerer(reference, self.config)
        load = Shared(functools.partial(load_model, asked, self.config, self.device))
        yield self._of_arm(name, asked, load, "")
        for remedy in self.config.mend:
            if remedy == "consistent" and "logprob" not in asked.scorings:
                raise UserError(
                    f"'{reference}' gives no probabilities of letters, by which --mend {remedy} chooses; "
                    "leave it out."
                )
            mended = functools.partial(load_mended, load, remedy, asked.format.prompt)
            yield self._of_arm(f"{name}+{remedy}", asked, mended, remedy)

    def _of_arm(self, name: str, asked: Answerer, load: Callable[[], Any], remedy: str) -> Run:
        config, items = self.config, self.data.items
        hides = config.protocol == "paper" and any(not MISSING.isdisjoint(item.options) for item in items)
        identity: dict[str, Any] = {
            "model": references.identity(asked.source),
            "role": JUDGE if asked.reference == JUDGE else "model",
            "prompt": asked.format.prompt,
            "scoring": asked.scorings,
            "max_new_tokens": asked.format.max_new_tokens,
            **references.contents({"model": asked.source}),
        }
        if hides:
            identity["missing"] = "not shown"
        if config.model_options:
            identity["options"] = config.model_options
        if asked.reference == JUDGE:
            identity |= {"quantization": config.judge_quantization, "asking": config.judge_asking}
        if remedy:
            identity["mend"] = remedy
        called = f"{asked.reference}+{remedy}" if remedy else asked.reference
        model = Model.one(called, load, references.place(asked.source))
        ask = functools.partial(Questioning, model=model, items=items, asked=asked, hides=hides)
        blocks = Blocks.first(len(items), config.batch_size, config.limit)
        plain = [Asking(variant) for variant in VARIANTS]
        stages: list[Stage] = [ask(name=ANSWERS, blocks=blocks, askings=plain, invalidates=(MATCHES,))]
        if config.blind:
            unseen = [Asking(variant, TEXT_ONLY) for variant in VARIANTS]
            if remedy not in remedies.IN_PAIRS:  # which have nothing to ask without both questions
                unseen.append(Asking("", PICTURE_ONLY))
            stages.append(ask(name=BLIND, blocks=spread(blocks, config.blind), askings=unseen))
        return self._run(name, asked.reference, identity, stages)

    def of_file(self, name: str, file: str) -> Run:
        """A run of the questions that a file has answers to."""
        path = expand_user(file)
        answers = questions.answers(path, self.data.items)
        items = [item for item in self.data.items if item.id in answers]
        blocks = Blocks.first(len(items), self.config.batch_size, self.config.limit)
        identity: dict[str, Any] = {"model": f"answers {json_digest(answers)}", "role": "answers"}
        identity |= {"prompt": "not asked here", "scoring": ["generated"]}
        return self._run(
            name, path.name, identity, [FileAnswers(blocks=blocks, items=items, answers=answers)]
        )

    def _run(self, name: str, reference: str, identity: dict[str, Any], stages: list[Stage]) -> Run:
        config, data, outputs = self.config, self.data, {}
        folder, blocks = AnswersDir(config.out_dir / name), stages[0].blocks
        texts = identity.get("asking") != "options"  # a judge's answers about one option are none to match
        if config.matching and texts and "generated" in identity["scoring"]:
            model = Model(
                config.matcher,
                functools.partial(load_matcher, config, self.device),
                lambda client: {"matcher": (fingerprint(client.describe()), client.describe())},
                references.place(config.matching),
                lambda client: usage_of({"matcher": client}),
            )
            stages.append(Matching(folder=folder, blocks=blocks, model=model))
            matcher = references.identity(config.matching)
            outputs = {MATCHES: {"matcher": matcher, **references.contents({"matcher": config.matching})}}
        about: dict[str, Any] = {"sha256": data.sha256, "questions": len(data.items)}
        about["subsets"] = Counter(item.subset for item in data.items)
        facts = {
            "reference": reference,
            "protocol": config.protocol,
            "scoring": [name for name in config.scoring if name in identity["scoring"]],
            "matcher": config.matcher,
            "data": {**data.origin, **about},
            "limit": len(blocks.indices),
        }
        identity = {**identity, "data": data.sha256, **runner.machine_identity(config, self.device)}
        is_nano = reference.startswith("nano:") and name.startswith("nano-")  # not by a name of the user's
        label = name.replace("nano-", "nano:", 1) if is_nano else name
        return Run(folder, label, identity, stages, facts, outputs)


class NegVqa(Benchmark):
    """Questions about pictures, and their negations."""

    name, title = "negvqa", "NegVQA"
    config, report_config, folder = NegvqaConfig, ReportConfig, AnswersDir
    gap, sections = VARIANTS, sections.SECTIONS
    page, gaps = staticmethod(report.page), staticmethod(report.negation_gaps)
    paper_gaps = staticmethod(report.paper_gaps)
    paper_estimates = staticmethod(report.paper_estimates)

    def runs(self, config: Any, device: str) -> list[Run]:
        """One run per model and remedy, and per file of answers."""
        data = _questions(
            config.data,
            negated=config.negated,
            pictures=config.images,
            split=config.split,
            columns=tuple(sorted(config.columns.items())),
            questions=config.questions,
        )
        absent = [item.picture for item in data.items if not item.picture.is_file()]
        if len(absent) == len(data.items):
            raise UserError(
                f"None of the pictures is there, for example '{absent[0]}'; say where with --images."
            )
        if config.matching:
            llm.check(config.matching)
        asked = (*config.model, *config.answers_from)
        names = runner.name_folders((run_name(given, config), given) for given in asked)
        maker, found = _Maker(config, data, device), list[Run]()
        for name, given in names.items():
            reference = references.named(given)[1]
            of_file = given in config.answers_from
            found += [maker.of_file(name, reference)] if of_file else maker.of_model(name, reference)
        return found

    def scores(self, run: Any) -> ScoreTable:
        return scores.of_run(run.folder, run.stages[0].items, run.stages[0].blocks.indices)

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return estimates.of_table(table, folder.manifest()["identity"].get("asking"))

    def harness_questions(self, run: Finished, options: Any) -> Iterable[Question]:
        return questions.export_questions(report.find_items(run, options))

    def primary_scores(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """The scores under `--protocol`, by the scoring named first."""
        facts = folder.manifest()
        return table.where(metric="accuracy", protocol=facts["protocol"], scoring=facts["scoring"][0])


NEGVQA = NegVqa()
