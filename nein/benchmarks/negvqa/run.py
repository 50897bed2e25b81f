"""NegVQA: what is asked of which model, and what is written when all answers are there."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nein import metrics
from nein.benchmarks import runner
from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY, grey, spread
from nein.benchmarks.negvqa import paper_numbers, report, scores, sections
from nein.benchmarks.negvqa.config import NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.scores import ANSWERS, BLIND, MATCHES, AnswersDir
from nein.benchmarks.runner import Benchmark
from nein.benchmarks.runs import Run
from nein.datasets.negvqa import questions
from nein.datasets.negvqa.questions import VARIANTS, Item, Questions
from nein.engine import images
from nein.engine.answers import AnswerCache
from nein.engine.blocks import Blocks
from nein.engine.errors import UserError
from nein.engine.folder import Folder, Row
from nein.engine.stages import Model, Stage, shared
from nein.loading.digests import json_digest
from nein.loading.references import expanded
from nein.metrics import choices
from nein.metrics.backends import check_options
from nein.metrics.backends.endpoint import is_endpoint
from nein.metrics.choices import ChoiceQuestion, Reply
from nein.metrics.letters import MISSING, SCORINGS, without_missing
from nein.models import references
from nein.models.cached import CachedModel
from nein.models.remedies import answers as remedies
from nein.reporting.scores import ScoreTable

JUDGE = "judge"
NO_PICTURE = "no picture: "
_questions = functools.lru_cache(maxsize=2)(questions.load)  # names of runs are looked up before they begin


def runs(config: NegvqaConfig, device: str) -> list[Run]:
    """One run per model, everything looked at and nothing loaded."""
    asked = _questions(
        config.data, negated=config.negated, pictures=config.images, split=config.split,
        columns=tuple(sorted(config.columns.items())), questions=config.questions,
    )  # fmt: skip
    absent = [item.picture for item in asked.items if not item.picture.is_file()]
    if len(absent) == len(asked.items):
        raise UserError(f"None of the pictures is there, for example '{absent[0]}'; say where with --images.")
    if config.matching:
        from nein.models.llm import client

        client.check(config.matching)
    people = {name: _answered(name, config, asked, device) for name in config.answers_from}
    models: dict[str, str] = {}  # name of its run -> what was typed
    for model in [*people, *config.model]:
        reference, name = references.named(model)[1], people[model].name if model in people else ""
        if not name:
            if references.offered(reference) is None:
                where = references.resolve(_behind(reference, config))[0]
                metrics.check_reference(where)
                check_options(where, config.model_options)
            scorings(reference, config)
            name = run_name(model, config)
        twin = models.setdefault(name, model)
        if twin != model:
            raise UserError(
                f"'{twin}' and '{model}' have one name; give one of them another: NAME={reference}."
            )
    made = []
    for name, model in list(models.items())[len(people) :]:
        reference = references.named(model)[1]

        def load_cached(reference: str = reference) -> CachedModel:
            cache = config.out_dir / "cache" / "answers.sqlite"
            return CachedModel(load_model(reference, config, device), AnswerCache(cache))

        load = shared(load_cached)
        for remedy in ("", *config.mend):
            remedies.possible(remedy, scorings(reference, config), model)
            made.append(_run(name, reference, config, asked, device, load, remedy))
    return [*made, *people.values()]


def _behind(reference: str, config: NegvqaConfig) -> str:
    return config.judge if reference == JUDGE else reference


def prompt_format(reference: str, config: NegvqaConfig) -> choices.PromptFormat:
    """The wording of the question, and the longest answer in tokens."""
    toolkit = choices.prompt_format(_behind(reference, config))
    wording = toolkit.prompt if config.prompt == "vlmevalkit" else config.prompt
    return choices.PromptFormat(wording, config.max_new_tokens or toolkit.max_new_tokens)


def _run(
    name: str,
    reference: str,
    config: NegvqaConfig,
    asked: Questions,
    device: str,
    load: Callable[[], CachedModel],
    remedy: str,
) -> Run:
    """remedy: the arm of `--mend`; "" for the model as it is."""
    how = prompt_format(reference, config)
    identity = {
        "model": references.identity(_behind(reference, config)),
        "role": JUDGE if reference == JUDGE else "model",
        "data": asked.sha256,
        "prompt": how.prompt,
        "scoring": scorings(reference, config),
        "max_new_tokens": how.max_new_tokens,
        **runner.machine_identity(config, device),
    }
    if vanishing(config, asked.items):
        identity["missing"] = "not shown"
    if config.model_options:
        identity["options"] = config.model_options
    if remedy:
        name, identity["mend"] = f"{name}+{remedy}", remedy
    if reference == JUDGE:
        identity |= {"quantization": config.judge_quantization, "asking": config.judge_asking}
    stages = _asking(reference, config, asked.items, load, remedy)
    # A judge's answers about one option at a time are no texts to match.
    texts = reference != JUDGE or config.judge_asking == "letters"
    return _of_stages(name, reference, config, asked, device, identity, stages, config.limit, texts)


def _of_stages(
    name: str, reference: str, config: NegvqaConfig, asked: Questions, device: str, identity: Row,
    stages: list[Stage], limit: int | None, texts: bool = True,
) -> Run:  # fmt: skip
    """The run, with the matcher's stage where one reads its `texts`."""
    outputs = {}
    if config.matching and texts and "generated" in identity["scoring"]:
        from nein.benchmarks.negvqa import matching

        folder = AnswersDir(config.out_dir / name)
        stages = [*stages, matching.stage(config, folder, stages[0].blocks, device)]
        outputs = {MATCHES: {"matcher": references.identity(config.matching), "letters": config.letters}}
    facts = {
        "reference": reference,
        "preset": config.preset,
        "protocol": config.protocol,
        "scoring": [name for name in config.scoring if name in identity["scoring"]],
        "letters": config.letters,
        "matcher": config.matcher,
        "data": {
            **asked.origin, "sha256": asked.sha256, "questions": len(asked.items),
            "subsets": Counter(item.subset for item in asked.items),
        },
        "limit": limit,
    }  # fmt: skip
    return Run(name, name, identity, tuple(stages), facts, outputs)


def _answered(given: str, config: NegvqaConfig, asked: Questions, device: str) -> Run:
    """The answers of a file (`--answers-from`): a run of the questions that it has, for which nothing is
    loaded."""
    own, file = references.named(given)
    path = expanded(file)
    said = questions.answers(path, asked.items)
    items = [item for item in asked.items if item.id in said]
    blocks = Blocks.first(len(items), config.batch_size, config.limit)
    identity = {
        "model": f"answers {json_digest(said)}", "role": "answers", "data": asked.sha256,
        "prompt": "not asked here", "scoring": ["generated"], **runner.machine_identity(config, device),
    }  # fmt: skip

    def read(number: int) -> list[Item]:
        return [items[index] for index in blocks.members(number)]

    def work(_: Any, block: list[Item], missing: tuple[str, ...]) -> dict[str, list[Row]]:
        rows: list[Row] = []
        for item in block:
            for variant, text in said[item.id].items():
                reply = Reply(text) if text else Reply(error="the file has no answer")
                rows += _rows(item, Asking(variant), reply)
        return {ANSWERS: rows}

    def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[Row]]:
        return work(None, read(number), missing)

    name = own or re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("-.") or "answers"
    stages = [Stage(ANSWERS, (ANSWERS,), blocks, read, work, lost, invalidates=(MATCHES,))]
    return _of_stages(name, path.name, config, asked, device, identity, stages, len(blocks.wanted))


def vanishing(config: NegvqaConfig, items: Sequence[Item]) -> bool:
    """Whether there are options that --protocol paper does not show."""
    return config.protocol == "paper" and any(not MISSING.isdisjoint(item.options) for item in items)


def run_name(model: str, config: NegvqaConfig) -> str:
    """Of a run's folder: the name that the user gave. A model behind an endpoint is known by its own name:
    servers move."""
    given, reference = references.named(model)
    if given is not None:
        return given
    if reference == JUDGE:
        return JUDGE if config.judge_asking == "options" else f"{JUDGE}-{config.judge_asking}"
    return references.moved(reference) or references.slug(reference.replace("nano:", "nano-"))


def scorings(reference: str, config: NegvqaConfig) -> list[str]:
    """Those of --scoring that the model can be read by. Raises UserError where there is none."""
    made = references.offered(reference)
    asked_so = choices.ASKINGS[config.judge_asking] if reference == JUDGE else SCORINGS
    possible = asked_so if made is None else made.scorings
    usable = sorted(set(config.scoring) & {*possible})
    if not usable and made is not None:
        raise UserError(f"'{reference}' can be read by {' or '.join(possible)} only; add it to scoring.")
    if not usable:
        raise UserError(
            f"A judge asked for letters gives no probabilities; add {' or '.join(possible)} to --scoring, or "
            "--judge-asking options."
        )
    return usable


def load_model(reference: str, config: NegvqaConfig, device: str) -> choices.ChoiceModel:
    """The model behind one of `--model`'s names. Raises MetricError or UserError."""
    if (made := references.offered(reference)) is not None:
        return made
    where, revision = references.resolve(_behind(reference, config))
    options: dict[str, Any] = {"revision": revision, "device": device, "dtype": config.dtype}
    options |= config.model_options
    if reference == JUDGE:
        if config.judge_quantization != "none":
            options["quantization"] = config.judge_quantization
        return choices.JudgeChoices(metrics.load_judge("vqa", where, **options), config.judge_asking)
    if not is_endpoint(where) and metrics.special_reference(where):
        raise UserError(f"'{reference}' can only be a judge; give --model judge --judge {reference}.")
    longest = prompt_format(reference, config).max_new_tokens
    return metrics.load_choices(where, batch_size=config.batch_size, max_new_tokens=longest, **options)


def _asking(
    reference: str, config: NegvqaConfig, items: Sequence[Item], load: Callable[[], CachedModel], remedy: str
) -> list[Stage]:
    """Every question and its negation; for some of them the baselines."""
    by_id = {item.id: item for item in items}
    read_by, wording = scorings(reference, config), prompt_format(reference, config).prompt
    vanish = vanishing(config, items)
    model = Model.one(
        f"{reference}+{remedy}" if remedy else reference,
        (lambda: remedies.WithRemedy(load(), remedy, wording)) if remedy else load,
        references.place(_behind(reference, config)),
    )

    def stage(output: str, askings: Sequence[Asking], blocks: Blocks, feeds: tuple[str, ...] = ()) -> Stage:
        def read(number: int) -> list[tuple[Item, Any]]:
            return [(items[index], _picture(items[index])) for index in blocks.members(number)]

        def work(model: Any, block: list[tuple[Item, Any]], missing: tuple[str, ...]) -> dict[str, list[Row]]:
            return {output: _answers(model, block, askings, wording, read_by, vanish)}

        def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[Row]]:
            there = [items[index] for index in blocks.members(number)]
            error = Reply(error=reason)
            return {output: [row for item in there for one in askings for row in _rows(item, one, error)]}

        def usable(output: str, number: int, rows: list[Row]) -> bool:
            """A question that failed is asked again, one without a picture as soon as that is there."""
            return not any(
                row["error"]
                and not (row["error"].startswith(NO_PICTURE) and isinstance(_picture(by_id[row["id"]]), str))
                for row in rows
            )

        def ids(number: int) -> list[str]:
            return [row["id"] for row in lost(number, "", ())[output]]

        where = _behind(reference, config)
        return Stage(
            output, (output,), blocks, read, work, lost, model, usable, invalidates=feeds, ids=ids,
            asks={where: len(askings)} if is_endpoint(where) else {},
        )  # fmt: skip

    blocks = Blocks.first(len(items), config.batch_size, config.limit)
    stages = [stage(ANSWERS, [Asking(variant) for variant in VARIANTS], blocks, (MATCHES,))]
    if config.blind:
        # Without the picture both questions, without the question the options alone, which both have: nothing
        # for a remedy to ask that takes the two together.
        unseen = [Asking(variant, TEXT_ONLY) for variant in VARIANTS]
        asked = unseen if remedy in remedies.IN_PAIRS else [*unseen, Asking("", PICTURE_ONLY)]
        stages.append(stage(BLIND, asked, spread(blocks, config.blind)))
    return stages


def _picture(item: Item) -> Any:
    """(H, W, 3) uint8, or why there is none."""
    try:
        return item.load()
    except images.ImageError as error:
        return f"{NO_PICTURE}{str(error).rpartition(': ')[2]}"


@dataclass(frozen=True)
class Asking:
    """A way in which a question is asked: its variant, "" without the question, and the baseline
    (`nein.benchmarks.baselines`), "" for picture and question."""

    variant: str
    baseline: str = ""

    def asked(self, item: Item, wording: str, vanish: bool) -> ChoiceQuestion:
        """vanish: without the options that pandas takes for missing."""
        question = item.questions[self.variant] if self.variant else ""
        words = choices.prompt(wording, question, without_missing(item.options) if vanish else item.options)
        return ChoiceQuestion(words, len(item.options), question, item.options)


def _answers(
    model: choices.ChoiceModel,
    block: Sequence[tuple[Item, Any]],
    askings: Sequence[Asking],
    wording: str,
    read_by: Sequence[str],
    vanish: bool,
) -> list[Row]:
    """The rows of every question and way of asking, in order."""
    readable = [(item, picture) for item, picture in block if not isinstance(picture, str)]
    replies: dict[tuple[str, Asking], Reply] = {}
    for unseen in (False, True):
        these = [one for one in askings if (one.baseline == TEXT_ONLY) == unseen]
        if these:
            pictures = [grey() if unseen else picture for _, picture in readable]
            asked = [[one.asked(item, wording, vanish) for one in these] for item, _ in readable]
            for (item, _), row in zip(readable, model.answer(pictures, asked, read_by), strict=True):
                replies |= {(item.id, one): reply for one, reply in zip(these, row, strict=True)}
    return [
        row
        for item, picture in block
        for one in askings
        for row in _rows(item, one, replies.get((item.id, one)) or Reply(error=picture))
    ]


def _rows(item: Item, asking: Asking, reply: Reply) -> list[Row]:
    """What was asked and answered; what was said without the question counts for it and for its negation."""
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


def decides(table: ScoreTable, folder: Folder) -> ScoreTable:
    """The scores under `--protocol`, by the scoring named first."""
    facts = folder.manifest()
    return table.where(metric="accuracy", protocol=facts["protocol"], scoring=facts["scoring"][0])


NEGVQA = Benchmark(
    "negvqa", "NegVQA", NegvqaConfig, runs,
    lambda folder: scores.table(scores.of_folder(AnswersDir(folder.path))),
    estimates=lambda table, folder: scores.figures(table, folder.manifest()["identity"].get("asking")),
    decides=decides, gap=VARIANTS, sections=sections.SECTIONS, page=report.describe,
    report_config=ReportConfig, read=report.exported, printed=paper_numbers.gaps,
    published=paper_numbers.published, folder=AnswersDir,
)  # fmt: skip
