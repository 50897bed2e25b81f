"""What `nein negvqa` does once its options are known: ask, write down, read, report."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tqdm import tqdm

import metrics
from metrics import choices
from metrics.choices import Asked, Reply
from nein.benchmarks.negvqa.config import NegvqaConfig
from nein.benchmarks.negvqa.folder import AnswerDir
from nein.datasets.negvqa import questions
from nein.datasets.negvqa.questions import VARIANTS, Item
from nein.engine import blocks, environment, images, journal
from nein.engine.errors import UserError
from nein.engine.world import World
from nein.generate.nein.folder import COMPLETE, INCOMPLETE
from nein.models import references

JUDGE = "judge"
#: (question id, variant) -> what is kept of a reply.
Answers = dict[tuple[str, str], dict[str, Any]]


def run(config: NegvqaConfig, world: World) -> str | None:
    """Asks every model every question that has no answer yet, then writes the report.

    Everything that can be wrong with names, data and folders is found before a model is loaded. Raises
    UserError or MetricError. Returns the headline table, on the main process.
    """
    found = questions.load(
        config.data, negated=config.negated, pictures=config.images, split=config.split,
        columns=config.columns, questions=config.questions,
    )  # fmt: skip
    absent = questions.missing_pictures(found.items)
    if len(absent) == len(found.items):
        raise UserError(f"None of the pictures is there, for example '{absent[0]}'; say where with --images.")
    references = list(dict.fromkeys(config.model))
    for reference in references:
        _look_at(reference, config)
        _scorings(reference, config)
        twin = next(other for other in references if _name(other, config) == _name(reference, config))
        if twin != reference:
            raise UserError(f"'{twin}' and '{reference}' are one model at two places; ask one of them.")
    device = world.device(config.device)
    threads = world.workers(device)
    folders = []
    for reference in references:
        folder = AnswerDir(config.out_dir / _name(reference, config))
        folders.append(folder)
        with contextlib.ExitStack() as stack:
            if world.is_main:
                stack.enter_context(folder.lock("run", timeout=0))
                _open(folder, reference, config, found, device)
            world.barrier()
            _ask(folder, reference, config, found.items, world, device, threads)
            world.barrier()
            if world.is_main:
                _finish(folder, config, found.items)
    if not world.is_main:
        return None
    from nein.benchmarks.negvqa import report

    return report.write(
        folders, config.out_dir / "report.html", samples=config.samples, items=found.items,
        formats=config.formats,
    )  # fmt: skip


def _look_at(reference: str, config: NegvqaConfig) -> None:
    """Finds a wrong name or folder without loading a model."""
    where, _ = references.resolve(config.judge if reference == JUDGE else reference)
    if metrics.special_reference(where):
        return
    from metrics.loading import check_folder

    check_folder(where)


def load_model(reference: str, config: NegvqaConfig, device: str) -> choices.ChoiceModel:
    """The model behind one of `--model`'s names. Raises MetricError or UserError."""
    options: dict[str, Any]
    sending = {"concurrency": config.concurrency, "timeout": config.timeout, "retries": config.retries}
    if reference == JUDGE:
        where, revision = references.resolve(config.judge)
        plain = config.judge_quantization == "none"
        options = {} if plain else {"quantization": config.judge_quantization}
        options |= sending if where.startswith("openai:") else {}
        return choices.of_judge(
            metrics.load_judge("vqa", where, revision=revision, device=device, dtype=config.dtype, **options),
            config.judge_asking,
        )
    where, revision = references.resolve(reference)
    options = {"batch_size": config.batch_size, "max_new_tokens": config.max_new_tokens}
    if where.startswith("openai:"):
        options |= sending
    elif metrics.special_reference(where):
        raise UserError(f"'{reference}' can only be a judge; give --model judge --judge {reference}.")
    return choices.load(where, revision=revision, device=device, dtype=config.dtype, **options)


def _name(reference: str, config: NegvqaConfig) -> str:
    """Of a run's folder. A model behind an endpoint is known by its own name: servers move."""
    if reference == JUDGE:
        return JUDGE if config.judge_asking == "options" else f"{JUDGE}-{config.judge_asking}"
    if reference.startswith("openai:"):
        return references.slug(f"openai-{reference.partition('#')[2]}")
    return references.slug(reference.replace("nano:", "nano-"))


def _identity(reference: str) -> str:
    return f"openai:#{reference.partition('#')[2]}" if reference.startswith("openai:") else reference


def _scorings(reference: str, config: NegvqaConfig) -> list[str]:
    """Those of --scoring that the model can be read by. Raises UserError where there is none."""
    possible = choices.ASKINGS[config.judge_asking] if reference == JUDGE else choices.SCORINGS
    found = sorted(name for name in set(config.scoring) if name in possible)
    if not found:
        raise UserError(
            f"A judge asked for letters gives no probabilities; add {' or '.join(possible)} to --scoring, or "
            "--judge-asking options."
        )
    return found


def _open(
    folder: AnswerDir, reference: str, config: NegvqaConfig, found: questions.Questions, device: str
) -> None:
    identity = {
        "model": _identity(config.judge if reference == JUDGE else reference),
        "role": JUDGE if reference == JUDGE else "model",
        "data": found.sha256,
        "prompt": config.prompt,
        "scoring": _scorings(reference, config),
        "max_new_tokens": config.max_new_tokens,
        "batch_size": config.batch_size,
        "dtype": config.dtype,
        "device": device.partition(":")[0],
        "image_rule": images.RULE,
    }
    if reference == JUDGE:
        identity |= {"quantization": config.judge_quantization, "asking": config.judge_asking}
    entries = {
        "reference": reference,
        "preset": config.preset,
        "protocol": config.protocol,
        "data": {**found.origin, "sha256": found.sha256, "questions": len(found.items)},
        "limit": config.limit,
        "invocations": [
            {
                "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
                "command": list(sys.argv[1:]),
                "environment": environment.describe(device),
            }
        ],
    }
    folder.open(identity, entries, overwrite=config.overwrite)


# --- asking --------------------------------------------------------------------------------


def answered(folder: AnswerDir) -> Answers:
    """Every reply in the journals; of a question asked twice, the last that is no failure."""
    found: Answers = {}
    for record in journal.read(folder.journals, "answers"):
        for row in record["rows"]:
            key = (row["id"], row["variant"])
            if not row["error"] or key not in found:
                found[key] = row
    return found


def _ask(
    folder: AnswerDir, reference: str, config: NegvqaConfig, items: Sequence[Item], world: World, device: str,
    threads: int,
) -> None:  # fmt: skip
    """Asks what has no answer yet. A question that failed before is asked again."""
    wanted = len(items) if config.limit is None else min(config.limit, len(items))
    size = config.batch_size
    done = {key for key, row in answered(folder).items() if not row["error"]}
    numbers = range(-(-wanted // size))
    block = {number: items[number * size : (number + 1) * size] for number in numbers}
    missing = [n for n in numbers if any((item.id, v) not in done for item in block[n] for v in VARIANTS)]
    mine = blocks.share(missing, world.rank, world.size)
    if not mine:
        return
    model = load_model(reference, config, device)
    folder.note_model("model", model.fingerprint, model.describe())
    scorings = _scorings(reference, config)
    members = [block[number] for number in mine]
    total = sum(map(len, members))
    with journal.Journal(folder.journals, "answers", world.rank) as book:
        bar = tqdm(total=total, desc=folder.name, unit="question", disable=None if world.is_main else True)
        with bar:
            if model.concurrent:
                _one_by_one(model, [i for own in members for i in own], done, config, scorings, book, bar)
                return
            work = _block_worker(model, members, config, scorings)
            start = blocks.one_thread if device == "cpu" else None
            for place, rows in blocks.prefetch(work, range(len(members)), ahead=threads, initializer=start):
                book.append({"block": mine[place], "rows": rows})
                bar.update(len(members[place]))


def _block_worker(
    model: choices.ChoiceModel, members: Sequence[Sequence[Item]], config: NegvqaConfig, scorings: list[str]
) -> Callable[[int], list[dict[str, Any]]]:
    def work(place: int) -> list[dict[str, Any]]:
        block = members[place]
        start = time.perf_counter()
        pictures, errors = _pictures(block)
        good = [item for item in block if item.id in pictures]
        asked = [[_asked(item, variant, config) for variant in VARIANTS] for item in good]
        replies = choices.answer_each(model, [pictures[item.id] for item in good], asked, scorings)
        by_id = {item.id: row for item, row in zip(good, replies, strict=True)}
        share = (time.perf_counter() - start) / max(1, len(VARIANTS) * len(block))
        by_id |= {name: [Reply(error=why)] * len(VARIANTS) for name, why in errors.items()}
        return [
            _row(item, variant, by_id[item.id][k], share)
            for item in block
            for k, variant in enumerate(VARIANTS)
        ]

    return work


def _one_by_one(
    model: choices.ChoiceModel,
    items: Sequence[Item],
    done: set[tuple[str, str]],
    config: NegvqaConfig,
    scorings: list[str],
    book: journal.Journal,
    bar: Any,
) -> None:
    """Every question for itself, several in flight; each answer is on disk before the next is asked.

    Ends with a sentence when the endpoint has stopped answering altogether.
    """
    lock = threading.Lock()
    silent, last = 0, ""
    limit = 2 * model.concurrent + 4
    ended = threading.Event()

    def halt() -> None:
        ended.set()
        model.stop()  # type: ignore[attr-defined]  # models of several questions in flight have it

    def work(item: Item) -> None:
        try:
            ask_open(item)
        except BaseException:
            halt()
            raise

    def ask_open(item: Item) -> None:
        nonlocal silent, last
        open_variants = [variant for variant in VARIANTS if (item.id, variant) not in done]
        pictures, errors = _pictures([item])
        for variant in open_variants:
            if ended.is_set():
                return
            start = time.perf_counter()
            if item.id in pictures:
                asked = [[_asked(item, variant, config)]]
                reply = choices.answer_each(model, [pictures[item.id]], asked, scorings)[0][0]
            else:
                reply = Reply(error=errors[item.id])
            with lock:
                book.append({"rows": [_row(item, variant, reply, time.perf_counter() - start)]})
                silent = silent + 1 if reply.silent else 0
                last = reply.error or last
                if silent >= limit:
                    halt()
        with lock:
            bar.update(1)

    with ThreadPoolExecutor(max_workers=model.concurrent) as pool:
        try:
            for _ in pool.map(work, items):
                pass
        except BaseException:
            halt()
            pool.shutdown(cancel_futures=True)
            raise
    if ended.is_set():
        raise UserError(
            f"The endpoint left {limit} questions in a row without an answer ({last}); "
            "see that it runs, then give the same command again to go on."
        )


def _pictures(items: Sequence[Item]) -> tuple[dict[str, Any], dict[str, str]]:
    """Item id -> picture, and id -> why there is none."""
    found, errors = {}, {}
    for item in items:
        try:
            found[item.id] = item.load()
        except images.ImageError as error:
            errors[item.id] = f"no picture: {str(error).rpartition(': ')[2]}"
    return found, errors


def _asked(item: Item, variant: str, config: NegvqaConfig) -> Asked:
    words = choices.prompt(config.prompt, item.questions[variant], item.options)
    return Asked(words, len(item.options), item.questions[variant], item.options)


def _row(item: Item, variant: str, reply: Reply, seconds: float) -> dict[str, Any]:
    return {
        "id": item.id,
        "variant": variant,
        "text": reply.text,
        "logprobs": None if reply.logprobs is None else list(reply.logprobs),
        **({} if reply.each is None else {"each": list(reply.each)}),
        "error": reply.error,
        "seconds": round(seconds, 4),
    }


# --- the canonical files -------------------------------------------------------------------


def _finish(folder: AnswerDir, config: NegvqaConfig, items: Sequence[Item]) -> None:
    """answers.jsonl, scores.jsonl and summary.json from the journals; without timings, in data order."""
    from nein.benchmarks.negvqa import figures, scores
    from nein.engine import atomic

    selected = items if config.limit is None else items[: config.limit]
    known = answered(folder)
    lost = [item.id for item in selected for v in VARIANTS if (item.id, v) not in known]
    if lost:
        raise UserError(
            f"'{folder.path}' lacks answers to {len(lost)} questions; give the same command again."
        )
    folder.update(status=INCOMPLETE)
    rows = list(_answer_lines(selected, known))
    journal.write_lines(folder.answers, iter(rows))
    manifest = folder.manifest()
    scorings = [name for name in config.scoring if name in manifest["identity"]["scoring"]]
    scored = scores.score(rows, scorings)
    journal.write_lines(folder.scores, iter(scored))
    found = figures.summary(scored, manifest)
    atomic.write_json(folder.summary, found)
    if manifest["identity"]["role"] == JUDGE:
        atomic.write_json(folder.grade, figures.grade(found))
    failed = sum(bool(row["error"]) for row in rows)
    folder.update(
        status=COMPLETE, protocol=config.protocol,
        counts={"questions": len(selected), "answers": len(rows), "failed": failed},
    )  # fmt: skip


def _answer_lines(items: Sequence[Item], known: Mapping[tuple[str, str], Any]) -> Iterator[dict[str, Any]]:
    for item in items:
        for variant in VARIANTS:
            row = known[item.id, variant]
            yield {
                "id": item.id,
                "variant": variant,
                "subset": item.subset,
                "category": item.category,
                "source": item.source,
                "question": item.questions[variant],
                "options": list(item.options),
                "answer": item.answers[variant],
                **{key: row[key] for key in ("text", "logprobs", "each", "error") if key in row},
            }
