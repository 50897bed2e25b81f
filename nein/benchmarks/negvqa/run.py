"""NegVQA: which model is asked what, in which stages; its answers are scored in `scores`."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

from nein import metrics
from nein.benchmarks import runner
from nein.benchmarks.baselines import BASELINES, PICTURE_ONLY, TEXT_ONLY, grey, spread
from nein.benchmarks.negvqa import paper_numbers, report, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.scores import ANSWERS, BLIND, MATCHES, AnswersDir
from nein.benchmarks.runner import Benchmark, Finished, Printed, Run
from nein.datasets.negvqa import questions
from nein.datasets.negvqa.questions import VARIANTS, Item, Questions
from nein.engine import atomic, images
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Row
from nein.engine.stages import Functions, Model, Stage, shared
from nein.loading.digests import json_digest
from nein.loading.references import expanded, is_served, parse_reference
from nein.metrics import choices
from nein.metrics.chat.endpoint import check_options
from nein.metrics.choices import ChoiceQuestion, Reply
from nein.metrics.letters import MISSING, SCORINGS, without_missing
from nein.models import references
from nein.models.cached import Services
from nein.models.remedies import answers as remedies
from nein.reporting.page import Page
from nein.reporting.scores import ScoreTable

JUDGE = "judge"
NO_PICTURE = "no picture: "
_questions = functools.lru_cache(maxsize=2)(questions.load)  # names of runs are looked up before they begin


def runs(config: NegvqaConfig, device: str) -> list[Run]:
    """One run per model and remedy, and per file of answers: everything is checked and nothing loaded."""
    data = _questions(
        config.data, negated=config.negated, pictures=config.images, split=config.split,
        columns=tuple(sorted(config.columns.items())), questions=config.questions,
    )  # fmt: skip
    absent = [item.picture for item in data.items if not item.picture.is_file()]
    if len(absent) == len(data.items):
        raise UserError(f"None of the pictures is there, for example '{absent[0]}'; say where with --images.")
    if config.matching:
        from nein.models.llm import client

        client.check(config.matching)
    files = {file: _answered(file, config, data, device) for file in config.answers_from}
    models = {model: answerer(references.named(model)[1], config) for model in config.model}
    names = {**{file: run.name for file, run in files.items()}, **{m: run_name(m, config) for m in models}}
    by_name: dict[str, str] = {}
    for given, name in names.items():
        if (twin := by_name.setdefault(name, given)) != given:
            reference = references.named(given)[1]
            raise UserError(
                f"'{twin}' and '{given}' have one name; give one of them another: NAME={reference}."
            )
    of_models = []
    for model, subject in models.items():
        load = shared(functools.partial(load_model, subject, config, device))
        for remedy in ("", *config.mend):
            remedies.possible(remedy, subject.scorings, model)
            of_models.append(_run(names[model], subject, config, data, device, load, remedy))
    return [*of_models, *files.values()]


@dataclass(frozen=True)
class Answerer:
    """A model under test, checked and not loaded.

    reference  As given, without a name; "judge" stands for `source`, the reference of --judge.
    where      What is loaded.
    scorings   Those of --scoring that it can be read by.
    format     The wording of its questions and the longest answer.
    """

    reference: str
    source: str
    where: str
    scorings: list[str]
    format: choices.PromptFormat


def answerer(reference: str, config: NegvqaConfig) -> Answerer:
    """Raises UserError or MetricError for a model that cannot be asked."""
    source = config.judge if reference == JUDGE else reference
    where = source
    if references.offered(reference) is None:
        where = references.resolve(source)
        metrics.check_reference(where)
        check_options(where, config.model_options)
    toolkit = choices.prompt_format(source)
    wording = toolkit.prompt if config.prompt == "vlmevalkit" else config.prompt
    form = choices.PromptFormat(wording, config.max_new_tokens or toolkit.max_new_tokens)
    return Answerer(reference, source, where, scorings(reference, config), form)


def scorings(reference: str, config: NegvqaConfig) -> list[str]:
    """Those of --scoring that the model can be read by. Raises UserError where there is none."""
    model = references.offered(reference)
    of_reference = choices.ASKINGS[config.judge_asking] if reference == JUDGE else SCORINGS
    possible = of_reference if model is None else model.scorings
    usable = sorted(set(config.scoring) & {*possible})
    if not usable and model is not None:
        raise UserError(f"'{reference}' can be read by {' or '.join(possible)} only; add it to scoring.")
    if not usable:
        raise UserError(
            f"A judge asked for letters gives no probabilities; add {' or '.join(possible)} to --scoring, or "
            "--judge-asking options."
        )
    return usable


def run_name(model: str, config: NegvqaConfig) -> str:
    """Of a run's folder: the name that the user gave. A model behind an endpoint is known by its own name:
    servers move."""
    given, reference = references.named(model)
    if given is not None:
        return given
    if reference == JUDGE:
        return JUDGE if config.judge_asking == "options" else f"{JUDGE}-{config.judge_asking}"
    return references.moved(reference) or references.slug(reference.replace("nano:", "nano-"))


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
        judge = services.keep(metrics.load_judge("vqa", asked.where, **options))
        return choices.JudgeChoices(judge, config.judge_asking)
    if parse_reference(asked.where).is_code:
        raise UserError(
            f"'{asked.reference}' can only be a judge; give --model judge --judge {asked.reference}."
        )
    options |= {"batch_size": config.batch_size, "max_new_tokens": asked.format.max_new_tokens}
    return services.keep(metrics.load_choices(asked.where, **options))


def _run(
    name: str, asked: Answerer, config: NegvqaConfig, data: Questions, device: str,
    load: Callable[[], Any], remedy: str,
) -> Run:  # fmt: skip
    """remedy: the arm of `--mend`; "" for the model as it is."""
    hides = config.protocol == "paper" and any(not MISSING.isdisjoint(item.options) for item in data.items)
    identity = {
        "model": references.identity(asked.source),
        "role": JUDGE if asked.reference == JUDGE else "model",
        "data": data.sha256,
        "prompt": asked.format.prompt,
        "scoring": asked.scorings,
        "max_new_tokens": asked.format.max_new_tokens,
        **runner.machine_identity(config, device),
        **references.contents({"model": asked.source}),
    }
    if hides:
        identity["missing"] = "not shown"
    if config.model_options:
        identity["options"] = config.model_options
    if asked.reference == JUDGE:
        identity |= {"quantization": config.judge_quantization, "asking": config.judge_asking}
    where, prompt = references.place(asked.source), asked.format.prompt
    model = Model.one(asked.reference, load, where)
    if remedy:
        name, identity["mend"] = f"{name}+{remedy}", remedy
        model = Model.one(
            f"{asked.reference}+{remedy}", lambda: remedies.WithRemedy(load(), remedy, prompt), where
        )

    def stage(output: str, blocks: Blocks, askings: Sequence[Asking], *invalidates: str) -> Stage:
        return Questioning(output, data.items, blocks, askings, asked, hides).stage(model, invalidates)

    blocks = Blocks.first(len(data.items), config.batch_size, config.limit)
    stages = [stage(ANSWERS, blocks, [Asking(variant) for variant in VARIANTS], MATCHES)]
    if config.blind:
        # A remedy that takes a question and its negation together has nothing to ask without both.
        without = [] if remedy in remedies.IN_PAIRS else [Asking("", PICTURE_ONLY)]
        unseen = [*(Asking(variant, TEXT_ONLY) for variant in VARIANTS), *without]
        stages.append(stage(BLIND, spread(blocks, config.blind), unseen))
    # A judge's answers about one option at a time are no texts to match.
    texts = asked.reference != JUDGE or config.judge_asking == "letters"
    return _of_stages(name, asked.reference, config, data, device, identity, stages, config.limit, texts)


def _answered(given: str, config: NegvqaConfig, data: Questions, device: str) -> Run:
    """The answers of a file (`--answers-from`): a run of the questions that it has, for which nothing is
    loaded."""
    own, file = references.named(given)
    path = expanded(file)
    answers = questions.answers(path, data.items)
    items = [item for item in data.items if item.id in answers]
    blocks = Blocks.first(len(items), config.batch_size, config.limit)
    identity = {
        "model": f"answers {json_digest(answers)}", "role": "answers", "data": data.sha256,
        "prompt": "not asked here", "scoring": ["generated"], **runner.machine_identity(config, device),
    }  # fmt: skip

    def rows(number: int) -> dict[str, list[Row]]:
        lines: list[Row] = []
        for index in blocks.members(number):
            for variant, text in answers[items[index].id].items():
                reply = Reply(text) if text else Reply(error="the file has no answer")
                lines += _rows(items[index], Asking(variant), reply)
        return {ANSWERS: lines}

    name = own or re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("-.") or "answers"
    stage = Functions(
        ANSWERS, (ANSWERS,), blocks, rows, lambda _, block, missing: block, invalidates=(MATCHES,),
    )  # fmt: skip
    return _of_stages(name, path.name, config, data, device, identity, [stage], len(blocks.wanted))


def _of_stages(
    name: str, reference: str, config: NegvqaConfig, data: Questions, device: str, identity: Row,
    stages: list[Stage], limit: int | None, texts: bool = True,
) -> Run:  # fmt: skip
    """The run, with the matcher's stage where one reads its `texts`."""
    outputs = {}
    if config.matching and texts and "generated" in identity["scoring"]:
        from nein.benchmarks.negvqa import matching

        folder = AnswersDir(config.out_dir / name)
        stages = [*stages, matching.stage(config, folder, stages[0].blocks, device)]
        matcher = references.identity(config.matching)
        outputs = {MATCHES: {"matcher": matcher, **references.contents({"matcher": config.matching})}}
    facts = {
        "reference": reference,
        "preset": config.preset,
        "protocol": config.protocol,
        "scoring": [name for name in config.scoring if name in identity["scoring"]],
        "matcher": config.matcher,
        "data": {
            **data.origin, "sha256": data.sha256, "questions": len(data.items),
            "subsets": Counter(item.subset for item in data.items),
        },
        "limit": limit,
    }  # fmt: skip
    return Run(AnswersDir(config.out_dir / name), name, identity, stages, facts, outputs)


@dataclass(frozen=True)
class Asking:
    """A way in which a question is asked: its variant, "" without the question, and the baseline
    (`nein.benchmarks.baselines`), "" for picture and question."""

    variant: str
    baseline: str = ""

    def question(self, item: Item, wording: str, hides: bool) -> ChoiceQuestion:
        """hides: without the options that pandas takes for missing."""
        text = item.questions[self.variant] if self.variant else ""
        prompt = choices.prompt(wording, text, without_missing(item.options) if hides else item.options)
        return ChoiceQuestion(prompt, len(item.options), text, item.options)


@dataclass(frozen=True)
class Questioning:
    """A stage: every question of a block in every way of asking, in this order."""

    output: str
    items: Sequence[Item]
    blocks: Blocks
    askings: Sequence[Asking]
    asked: Answerer
    hides: bool

    def stage(self, model: Model, invalidates: tuple[str, ...]) -> Stage:
        where = self.asked.where
        return Functions(
            self.output, (self.output,), self.blocks, self.read, self.work,
            model, self.is_valid, invalidates=invalidates, ids=self.ids, state=self.state,
            asks={where: len(self.askings)} if is_served(where) else {},
        )  # fmt: skip

    def state(self, records: range) -> list[int | None]:
        return atomic.sizes(self.items[index].picture for index in records)

    def read(self, number: int) -> list[tuple[Item, Any]]:
        return [(self.items[index], _picture(self.items[index])) for index in self.blocks.members(number)]

    def work(self, model: Any, block: list[tuple[Item, Any]], missing: tuple[str, ...]) -> dict[str, Any]:
        readable = [(item, picture) for item, picture in block if not isinstance(picture, str)]
        replies: dict[tuple[str, Asking], Reply] = {}
        for unseen in (False, True):
            these = [asking for asking in self.askings if (asking.baseline == TEXT_ONLY) == unseen]
            if not these:
                continue
            pictures = [grey() if unseen else picture for _, picture in readable]
            wording = self.asked.format.prompt
            rows = [[asking.question(item, wording, self.hides) for asking in these] for item, _ in readable]
            answered = choices.answer_each(model, pictures, rows, self.asked.scorings)
            for (item, _), row in zip(readable, answered, strict=True):
                replies |= {(item.id, asking): reply for asking, reply in zip(these, row, strict=True)}
        return {
            self.output: [
                row
                for item, picture in block
                for asking in self.askings
                for row in _rows(item, asking, replies.get((item.id, asking)) or Reply(error=picture))
            ]
        }

    def ids(self, records: range) -> list[str]:
        items = [self.items[index] for index in records]
        none = Reply()
        return [row["id"] for item in items for asking in self.askings for row in _rows(item, asking, none)]

    def is_valid(self, output: str, number: int, rows: list[Row]) -> bool:
        """A question that failed is asked again, one without a picture as soon as that is there."""
        failed = {row["id"]: row["error"] for row in rows if row["error"]}
        if not failed:
            return True
        unreadable = {item.id for item, picture in self.read(number) if isinstance(picture, str)}
        return all(error.startswith(NO_PICTURE) and name in unreadable for name, error in failed.items())


def _picture(item: Item) -> Any:
    """(H, W, 3) uint8, or why there is none."""
    try:
        return images.decode(item.picture)
    except images.ImageError as error:
        return f"{NO_PICTURE}{str(error).rpartition(': ')[2]}"


def _rows(item: Item, asking: Asking, reply: Reply) -> list[Row]:
    """What was asked and answered; an answer without the question counts for it and for its negation."""
    return [
        {
            "id": item.id, "variant": variant, "subset": item.subset, "category": item.category,
            "source": item.source, **({"baseline": asking.baseline} if asking.baseline else {}),
            "question": item.questions[variant], "options": list(item.options),
            "answer": item.answers[variant], "text": reply.text,
            "logprobs": None if reply.logprobs is None else list(reply.logprobs),
            **({} if reply.each is None else {"each": list(reply.each)}), "error": reply.error,
        }
        for variant in ([asking.variant] if asking.variant else VARIANTS)
    ]  # fmt: skip


class NegVqa(Benchmark):
    """Questions about pictures, and their negations."""

    name, title = "negvqa", "NegVQA"
    config, report_config, folder = NegvqaConfig, ReportConfig, AnswersDir
    gap, sections = VARIANTS, sections.SECTIONS
    exported: ClassVar = {
        "task": ("accuracy", "blind"), "interval": ("clustered", ""), "metric": ("accuracy", *BASELINES),
    }  # fmt: skip

    def runs(self, config: Any, device: str) -> Sequence[Run]:
        return runs(config, device)

    def scores(self, run: Run) -> ScoreTable:
        return scores.table(scores.of_folder(run.folder))

    def estimates(self, table: ScoreTable, folder: Any) -> pd.DataFrame:
        return scores.figures(table, folder.manifest()["identity"].get("asking"))

    def decides(self, table: ScoreTable, folder: Any) -> ScoreTable:
        """The scores under `--protocol`, by the scoring named first."""
        facts = folder.manifest()
        return table.where(metric="accuracy", protocol=facts["protocol"], scoring=facts["scoring"][0])

    def page(self, finished: Sequence[Finished], options: Any) -> Page | None:
        return report.describe(finished, options)

    def gaps(self, finished: Sequence[Finished]) -> pd.DataFrame:
        return report.negation_gaps(finished)

    def printed(self) -> Iterator[Mapping[str, Any]]:
        return paper_numbers.gaps()

    def published(self, source: str, run: Mapping[str, Any] | None) -> Iterator[Printed]:
        return paper_numbers.published(source, run)


NEGVQA = NegVqa()
