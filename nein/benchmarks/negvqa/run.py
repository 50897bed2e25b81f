"""NegVQA: what is asked of which model, and what is written when all answers are there."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from nein import metrics
from nein.benchmarks import runner
from nein.benchmarks.baselines import PICTURE_ONLY, TEXT_ONLY, grey, spread
from nein.benchmarks.negvqa import exported, figures, matching, paper_numbers, report, scores, sections
from nein.benchmarks.negvqa.config import EXACT, LLM, NegvqaConfig, ReportConfig
from nein.benchmarks.negvqa.folder import ANSWERS, BLIND, MATCHES, AnswersDir
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
from nein.metrics import choices
from nein.metrics.choices import Asked, Reply
from nein.metrics.served import is_served
from nein.metrics.served.endpoint import is_endpoint
from nein.models import references
from nein.models.cached import CachedModel, batched
from nein.models.remedies import answers as remedies
from nein.reporting.scores import ScoreTable

JUDGE = "judge"
NO_PICTURE = "no picture: "


def runs(config: NegvqaConfig, device: str) -> list[Run]:
    """One run per model, everything looked at and nothing loaded."""
    asked = load_questions(config)
    absent = questions.missing_pictures(asked.items)
    if len(absent) == len(asked.items):
        raise UserError(f"None of the pictures is there, for example '{absent[0]}'; say where with --images.")
    matching.check(config)
    models: dict[str, str] = {}  # name of its run -> as it was asked for
    for model in dict.fromkeys(config.model):
        _, reference = references.named(model)
        _check_reference(reference, config)
        scorings(reference, config)
        twin = models.setdefault(run_name(model, config), model)
        if twin != model:
            raise UserError(
                f"'{twin}' and '{model}' have one name; give one of them another: NAME={reference}."
            )
    made = []
    for name, model in models.items():
        reference = references.named(model)[1]
        load = shared(functools.partial(_remembered, reference, config, device))
        for cure in ("", *config.mend):
            remedies.possible(cure, scorings(reference, config), model)
            made.append(
                _run(f"{name}+{cure}" if cure else name, reference, config, asked, device, load, cure)
            )
    return made


@functools.lru_cache(maxsize=2)
def _questions(*key: Any) -> Questions:
    source, negated, pictures, split, columns, count = key
    return questions.load(
        source, negated=negated, pictures=pictures, split=split, columns=dict(columns), questions=count
    )


def load_questions(config: NegvqaConfig) -> Questions:
    """The questions of a command, read once."""
    columns = tuple(sorted(config.columns.items()))
    return _questions(config.data, config.negated, config.images, config.split, columns, config.questions)


def manner(reference: str, config: NegvqaConfig) -> choices.Manner:
    """The wording of the question, and the longest answer in tokens."""
    toolkit = choices.manner(config.judge if reference == JUDGE else reference)
    wording = toolkit.prompt if config.prompt == "vlmevalkit" else config.prompt
    return choices.Manner(wording, config.max_new_tokens or toolkit.max_new_tokens)


def _run(
    name: str,
    reference: str,
    config: NegvqaConfig,
    asked: Questions,
    device: str,
    load: Callable[[], CachedModel],
    cure: str,
) -> Run:
    """cure: the arm of `--mend`; "" for the model as it is."""
    how = manner(reference, config)
    identity = {
        "model": references.identity(config.judge if reference == JUDGE else reference),
        "role": JUDGE if reference == JUDGE else "model",
        "data": asked.sha256,
        "prompt": how.prompt,
        "scoring": scorings(reference, config),
        "max_new_tokens": how.max_new_tokens,
        **runner.machine_identity(config, device),
    }
    if cure:
        identity["mend"] = cure
    if reference == JUDGE:
        identity |= {"quantization": config.judge_quantization, "asking": config.judge_asking}
    facts = {
        "reference": reference,
        "preset": config.preset,
        "protocol": config.protocol,
        "scoring": [name for name in config.scoring if name in identity["scoring"]],
        "letters": config.letters,
        "matcher": EXACT if (model := matching.reference(config)) is None else f"{LLM}{model}",
        "data": {
            **asked.origin,
            "sha256": asked.sha256,
            "questions": len(asked.items),
            "subsets": Counter(item.subset for item in asked.items),
        },
        "limit": config.limit,
    }
    stages, outputs = _asking(reference, config, asked.items, load, cure), {}
    if matches(reference, config):
        folder = AnswersDir(config.out_dir / name)
        stages.append(matching.stage(config, folder, stages[0].blocks, device))
        outputs[MATCHES] = matching.identity(config)
    return Run(name, name, identity, tuple(stages), facts, outputs)


def matches(reference: str, config: NegvqaConfig) -> bool:
    """Whether a language model is asked about answers of this model: a judge's about one option at a time are
    no texts to match."""
    texts = reference != JUDGE or config.judge_asking == "letters"
    return config.matcher != EXACT and texts and "generated" in scorings(reference, config)


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
    possible = choices.ASKINGS[config.judge_asking] if reference == JUDGE else choices.SCORINGS
    possible = possible if made is None else made.scorings
    usable = sorted(name for name in set(config.scoring) if name in possible)
    if not usable and made is not None:
        raise UserError(f"'{reference}' can be read by {' or '.join(possible)} only; add it to scoring.")
    if not usable:
        raise UserError(
            f"A judge asked for letters gives no probabilities; add {' or '.join(possible)} to --scoring, or "
            "--judge-asking options."
        )
    return usable


# --- models ------------------------------------------------------------------------------------


def _check_reference(reference: str, config: NegvqaConfig) -> None:
    """Finds a wrong name or folder without loading a model."""
    if references.offered(reference) is not None:
        return
    where, _ = references.resolve(config.judge if reference == JUDGE else reference)
    metrics.check_reference(where)


def load_model(reference: str, config: NegvqaConfig, device: str) -> choices.ChoiceModel:
    """The model behind one of `--model`'s names. Raises MetricError or UserError."""
    if (made := references.offered(reference)) is not None:
        return made
    options: dict[str, Any]
    sending = {"concurrency": config.concurrency, "timeout": config.timeout, "retries": config.retries}
    if reference == JUDGE:
        where, revision = references.resolve(config.judge)
        plain = config.judge_quantization == "none"
        options = {} if plain else {"quantization": config.judge_quantization}
        options |= sending if is_endpoint(where) else {}
        return choices.of_judge(
            metrics.load_judge("vqa", where, revision=revision, device=device, dtype=config.dtype, **options),
            config.judge_asking,
        )
    where, revision = references.resolve(reference)
    options = {"batch_size": config.block_size, "max_new_tokens": manner(reference, config).max_new_tokens}
    if is_endpoint(where):
        options |= sending
    elif metrics.special_reference(where) and not is_served(where):
        raise UserError(f"'{reference}' can only be a judge; give --model judge --judge {reference}.")
    return choices.load(where, revision=revision, device=device, dtype=config.dtype, **options)


# --- asking ------------------------------------------------------------------------------------


def _remembered(reference: str, config: NegvqaConfig, device: str) -> CachedModel:
    cache = config.out_dir / "cache" / "answers.sqlite"
    return CachedModel(load_model(reference, config, device), AnswerCache(cache))


def _asking(
    reference: str, config: NegvqaConfig, items: Sequence[Item], load: Callable[[], CachedModel], cure: str
) -> list[Stage]:
    """Every question and its negation; and for some of them the baselines."""
    by_id = {item.id: item for item in items}
    read_by, wording = scorings(reference, config), manner(reference, config).prompt
    model = Model.one(
        f"{reference}+{cure}" if cure else reference,
        (lambda: remedies.WithRemedy(load(), cure, wording)) if cure else load,
        references.place(config.judge if reference == JUDGE else reference),
        batched if config.fits else None,
    )

    def stage(output: str, askings: Sequence[Asking], blocks: Blocks, feeds: tuple[str, ...] = ()) -> Stage:
        def read(number: int) -> list[tuple[Item, Any]]:
            return [(items[index], _picture(items[index])) for index in blocks.members(number)]

        def work(model: Any, block: list[tuple[Item, Any]], missing: tuple[str, ...]) -> dict[str, list[Row]]:
            return {output: _answers(model, block, askings, wording, read_by)}

        def lost(number: int, reason: str, missing: tuple[str, ...]) -> dict[str, list[Row]]:
            there = [items[index] for index in blocks.members(number)]
            error = Reply(error=reason)
            return {output: [row for item in there for one in askings for row in _rows(item, one, error)]}

        def usable(output: str, rows: list[Row]) -> bool:
            """A question that failed is asked again, one without a picture as soon as that is there."""
            return not any(
                row["error"]
                and not (row["error"].startswith(NO_PICTURE) and isinstance(_picture(by_id[row["id"]]), str))
                for row in rows
            )

        return Stage(output, (output,), blocks, read, work, lost, model, usable, feeds=feeds)

    blocks = Blocks.first(len(items), config.block_size, config.limit)
    stages = [stage(ANSWERS, [Asking(variant) for variant in VARIANTS], blocks, (MATCHES,))]
    if config.blind:
        stages.append(stage(BLIND, _baselines(cure), spread(blocks, config.blind)))
    return stages


def _picture(item: Item) -> Any:
    """(H, W, 3) uint8, or why there is none."""
    try:
        return item.load()
    except images.ImageError as error:
        return f"{NO_PICTURE}{str(error).rpartition(': ')[2]}"


@dataclass(frozen=True)
class Asking:
    """A way in which a question is asked.

    variant   "original" or "negated"; "" without the question, of which there is then but one.
    baseline  Of `nein.benchmarks.baselines`; "" for picture and question.
    """

    variant: str
    baseline: str = ""

    def asked(self, item: Item, wording: str) -> Asked:
        question = item.questions[self.variant] if self.variant else ""
        words = choices.prompt(wording, question, item.options)
        return Asked(words, len(item.options), question, item.options)


def _baselines(cure: str) -> list[Asking]:
    """Without the picture both questions, without the question the options alone, which both have: nothing
    for a cure to ask that takes the two together."""
    unseen = [Asking(variant, TEXT_ONLY) for variant in VARIANTS]
    in_pairs = cure in remedies.IN_PAIRS
    return unseen if in_pairs else [*unseen, Asking("", PICTURE_ONLY)]


def _answers(
    model: choices.ChoiceModel,
    block: Sequence[tuple[Item, Any]],
    askings: Sequence[Asking],
    wording: str,
    read_by: Sequence[str],
) -> list[Row]:
    """The rows of every question and way of asking, in order."""
    readable = [(item, picture) for item, picture in block if not isinstance(picture, str)]
    rows: dict[tuple[str, Asking], list[Row]] = {}
    for unseen in (False, True):
        these = [one for one in askings if (one.baseline == TEXT_ONLY) == unseen]
        if not these:
            continue
        pictures = [grey() if unseen else picture for _, picture in readable]
        asked = [[one.asked(item, wording) for one in these] for item, _ in readable]
        for (item, _), said in zip(readable, model.answer(pictures, asked, read_by), strict=True):
            rows |= {(item.id, one): _rows(item, one, reply) for one, reply in zip(these, said, strict=True)}
    for item, picture in block:
        if isinstance(picture, str):
            rows |= {(item.id, one): _rows(item, one, Reply(error=picture)) for one in askings}
    return [row for item, _ in block for one in askings for row in rows[item.id, one]]


def _rows(item: Item, asking: Asking, reply: Reply) -> list[Row]:
    """What was asked and answered; what was said without the question counts for it and for its negation."""
    return [
        {
            "id": item.id,
            "variant": variant,
            "subset": item.subset,
            "category": item.category,
            "source": item.source,
            **({"baseline": asking.baseline} if asking.baseline else {}),
            "question": item.questions[variant],
            "options": list(item.options),
            "answer": item.answers[variant],
            "text": reply.text,
            "logprobs": None if reply.logprobs is None else list(reply.logprobs),
            **({} if reply.each is None else {"each": list(reply.each)}),
            "error": reply.error,
        }
        for variant in ([asking.variant] if asking.variant else VARIANTS)
    ]


def decides(table: ScoreTable, folder: Folder) -> ScoreTable:
    """The scores under `--protocol`, by the scoring named first."""
    facts = folder.manifest()
    return table.where(metric="accuracy", protocol=facts["protocol"], scoring=facts["scoring"][0])


def estimates(table: ScoreTable, folder: Folder) -> pd.DataFrame:
    return figures.figures(table, folder.manifest()["identity"].get("asking"))


NEGVQA = Benchmark(
    "negvqa",
    "NegVQA",
    NegvqaConfig,
    runs,
    lambda folder: scores.table(scores.of_folder(AnswersDir(folder.path))),
    estimates=estimates,
    decides=decides,
    sections=sections.SECTIONS,
    page=report.describe,
    report_config=ReportConfig,
    read=exported.read,
    printed=paper_numbers.gaps,
    folder=AnswersDir,
)
