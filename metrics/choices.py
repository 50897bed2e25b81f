"""Models that answer multiple-choice questions about images: chat models, VQA judges, users' functions.

`metrics.load_choices` loads one, `metrics.choice_prompts` writes its questions, `metrics.letters` reads its
answers. Every model has `fingerprint`, `describe()` and

    answer(images, questions, scorings)  -> a `Reply` per `ChoiceQuestion` in questions[i], about images[i],
                (H, W, 3) uint8; may raise one of `MODEL_ERRORS` for the whole call
    scorings    the members of `letters.SCORINGS` that it supports
    concurrent  number of questions in flight (then it has `stop()`); 0: a local model
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from nein.loading.digests import Json, source_digest
from nein.loading.errors import choose, isolate, out_of_memory, reason
from nein.loading.service import NoAnswer
from nein.metrics.base import Images, MetricError, check_finite, check_images, fingerprint, group_by
from nein.metrics.chat import THINKING, Completion, Message, Sampling, Words
from nein.metrics.chat.asking import ChatModel, list_cells
from nein.metrics.choice_prompts import Prompt
from nein.metrics.judges.base import TEMPLATES, Answer
from nein.metrics.letters import LETTERS, SCORINGS


@dataclass(frozen=True)
class ChoiceQuestion:
    """One question: the full prompt, and its parts for models that take them apart."""

    prompt: Prompt
    option_count: int = 2
    question: str = ""
    texts: tuple[str, ...] = ()  # of the options


@dataclass(frozen=True)
class Reply:
    """Answer to one question. Raises ValueError for log-probabilities that are not finite."""

    text: str | None = None  # the written answer, stripped; None if none was requested
    # ln of the probability that the answer begins with an option's letter, per option; None for a letter that
    # the server did not list. None in place of the tuple: not available.
    logprobs: tuple[float | None, ...] | None = None
    each: tuple[str, ...] | None = None  # answers about each option alone ("Yes", "No"); None: not asked so
    error: str = ""  # why there is no answer; "" if there is one
    version: str = ""  # model version that a server reports

    def __post_init__(self) -> None:
        check_finite(*self.logprobs or ())

    @property
    def likeliest(self) -> str | None:
        """Letter with the highest probability; None without probabilities, or for a tie."""
        values = [-math.inf if value is None else value for value in self.logprobs or ()]
        if not values or max(values) == -math.inf or values.count(max(values)) > 1:
            return None
        return LETTERS[values.index(max(values))]


#: A list of questions per image.
Questions = Sequence[Sequence[ChoiceQuestion]]


def answer_each(
    model: Any, images: Images, questions: Questions, scorings: Sequence[str]
) -> list[list[Reply]]:
    """Call `model.answer`; a question that fails gets a reply with its error. Raises MetricError."""

    def answer_cells(cells: Sequence[tuple[int, int]]) -> list[Reply]:
        rows: dict[int, list[ChoiceQuestion]] = {}  # index of an image -> its questions
        for i, k in cells:
            rows.setdefault(i, []).append(questions[i][k])
        replies = model.answer([images[i] for i in rows], list(rows.values()), scorings)
        return [reply for row in replies for reply in row]

    def reply_failure(error: BaseException) -> Reply:
        if isinstance(error, MetricError):
            raise error
        return Reply(error=_explain(error))

    cells = [(i, k) for i, row in enumerate(questions) for k in range(len(row))]  # row after row
    replies = dict(zip(cells, isolate(answer_cells, cells, reply_failure), strict=True))
    return [[replies[i, k] for k in range(len(row))] for i, row in enumerate(questions)]


def _explain(error: BaseException) -> str:
    return str(error) if isinstance(error, NoAnswer) else reason(error)


# --- chat models ----------------------------------------------------------------------------------
#: Requests the log-probabilities of all letters as the first token.
_FIRST_LETTER = Words(tuple(LETTERS), logs=True)


class ChatChoices(ChatModel):
    """Multiple choice by a chat model: greedy answers, and log-probabilities of the letters as first token
    (for a served model only among the 20 likeliest). An unanswered question gets a reply with its error."""

    kind = "choice"
    default_tokens = 16
    defaults: ClassVar[dict[str, Any]] = {"batch_size": 8, "bare": ("instructblip",)}
    scorings = SCORINGS

    def describe(self) -> Json:
        description = super().describe()
        description["picture"] = "where the prompt has it" if self.chat.keeps_order else "before the words"
        if not self.concurrent:
            description |= {"batch_size": self.chat.batch_size, "parameters": self.chat.parameters}
        return description

    def answer(self, images: Images, questions: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, questions, "questions")
        writes = "generated" in scorings  # an answer, not just its first token
        top = _FIRST_LETTER if "logprob" in scorings else None
        sampling = Sampling(max_tokens=self.max_new_tokens if writes else 1, top=top)
        replies: dict[tuple[int, int], Reply] = {}  # (image, question) -> reply
        for cells in self._batches(images, questions):
            messages = [self._write_message(images[i], questions[i][k].prompt) for i, k in cells]
            for (i, k), completion in zip(cells, self.chat.complete(messages, sampling), strict=True):
                replies[i, k] = _make_reply(completion, questions[i][k].option_count, writes)
        return [[replies[i, k] for k in range(len(row))] for i, row in enumerate(questions)]

    def _batches(self, images: Images, questions: Questions) -> Iterator[list[tuple[int, int]]]:
        """Yield batches of (image, question) indices: all at once for a served model; for a local one the
        k-th questions of up to `batch_size` images of one size."""
        if self.concurrent:
            yield list_cells(questions)
            return
        for group in group_by(range(len(images)), lambda i: images[i].shape, self.chat.batch_size):
            for k in range(max((len(questions[i]) for i in group), default=0)):
                yield [(i, k) for i in group if k < len(questions[i])]

    def _write_message(self, image: np.ndarray, prompt: Prompt) -> Message:
        if prompt.before and self.chat.keeps_order:
            return Message((prompt.before, image, prompt.after))
        return Message((image, prompt.text))


def _make_reply(completion: Completion, option_count: int, writes: bool) -> Reply:
    """Reply from a completion. writes: whether a written answer was requested."""
    error, by_letter = completion.error, completion.probabilities
    # Thoughts that hit the token limit do not matter if only the first token is read.
    if error is not None and (writes or getattr(error, "kind", "") != THINKING):
        return Reply(error=_explain(error))
    logprobs = None if by_letter is None else tuple(by_letter[x] for x in LETTERS[:option_count])
    return Reply(completion.text if writes else None, logprobs, version=completion.version)


# --- VQA judges -----------------------------------------------------------------------------------
#: Way of asking a judge -> scorings that it supports. "options": NeIn's yes/no question about a caption, once
#: per option ("What is on the bed? dog"). "letters": the multiple-choice question.
ASKINGS: dict[str, tuple[str, ...]] = {"options": SCORINGS, "letters": ("generated",)}


class JudgeChoices:
    """Multiple choice by a VQA judge, asked in its own template in one of the `ASKINGS`. "options" fills
    `Reply.each`, and `Reply.logprobs` with ln(P(yes) / (P(yes) + P(no))); "letters" fills the text alone."""

    def __init__(self, judge: Any, asking: str = "letters") -> None:
        self.judge = judge
        self.asking = choose("way of asking a judge", asking, ASKINGS)
        self.scorings = ASKINGS[asking]
        self.concurrent: int = getattr(judge, "concurrent", 0)
        self.usage: Callable[[], Json] = getattr(judge, "usage", dict)
        self.stop: Callable[[], None] = getattr(judge, "stop", lambda: None)
        self.fingerprint = fingerprint({"kind": "choice", "judge": judge.fingerprint, "asking": asking})

    def describe(self) -> Json:
        return {**self.judge.describe(), "judge": self.judge.fingerprint, "asking": self.asking}

    def answer(self, images: Images, questions: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, questions, "questions")
        template = TEMPLATES[self.judge.template]
        if self.asking == "letters":
            prompts = [[template.wrap(question.prompt.text.strip()) for question in row] for row in questions]
            answers = self.judge.ask(images, prompts)
            return [[Reply(text=answer.text, version=answer.version) for answer in row] for row in answers]
        captions = [[f"{q.question} {text}".strip() for q in row for text in q.texts] for row in questions]
        prompts = [[template.ask_caption(caption) for caption in row] for row in captions]
        replies = []
        for row, answers in zip(questions, self.judge.ask(images, prompts), strict=True):
            remaining = iter(answers)  # one per option of the first question, then of the second, ...
            replies.append([_combine(list(islice(remaining, len(q.texts))), scorings) for q in row])
        return replies


def _combine(answers: Sequence[Answer], scorings: Sequence[str]) -> Reply:
    """Make a reply from the answers about each option; its text is "A: Yes, B: No"."""
    each = tuple(answer.text for answer in answers)
    text = ", ".join(f"{letter}: {verdict}" for letter, verdict in zip(LETTERS, each, strict=False))
    logprobs = _yes_logprobs(answers) if "logprob" in scorings else None
    return Reply(text, logprobs, each, version=answers[0].version if answers else "")


def _yes_logprobs(answers: Sequence[Answer]) -> tuple[float | None, ...] | None:
    """ln(P(yes) / (P(yes) + P(no))) per answer; None if the judge gives no probabilities."""
    logs = []
    for answer in answers:
        if answer.p_yes is None or answer.p_no is None or answer.p_yes + answer.p_no <= 0:
            return None
        share = answer.p_yes / (answer.p_yes + answer.p_no)
        logs.append(math.log(share) if share > 0 else None)
    return tuple(logs)


# --- users' functions -----------------------------------------------------------------------------
class FunctionChoices:
    """Multiple choice by a user's function, `answer(image, question, options) -> str`, one call at a time.

    It gets a `PIL.Image.Image` (RGB), the question and a list of options, and returns a text that begins with
    the letter. An exception, or a result that is no text, becomes the error of that question. Raises
    MetricError for a function with other parameters."""

    scorings = ("generated",)
    concurrent = 0

    def __init__(self, function: Callable[..., str], *, name: str, fingerprint: str) -> None:
        try:
            inspect.signature(function).bind(None, None, None)
        except (TypeError, ValueError):
            advice = "define answer(image, question, options)"
            raise MetricError(f"{name} does not take (image, question, options); {advice}") from None
        self.function, self.name, self.fingerprint = function, name, fingerprint
        self._lock = threading.Lock()  # users' functions are rarely thread-safe

    def describe(self) -> Json:
        return {"class": type(self).__name__, "function": self.name, "fingerprint": self.fingerprint}

    def answer(self, images: Images, questions: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, questions, "questions")
        rows = zip(images, questions, strict=True)
        return [[self._answer(image, question) for question in row] for image, row in rows]

    def _answer(self, image: np.ndarray, question: ChoiceQuestion) -> Reply:
        from PIL import Image

        try:
            with self._lock:
                text = self.function(Image.fromarray(image.copy()), question.question, list(question.texts))
        except Exception as error:
            if out_of_memory(error):
                raise  # the machine's fault, not the question's
            return Reply(error=f"{self.name} raised {reason(error)}")
        if not isinstance(text, str):
            return Reply(error=f"{self.name} returned {type(text).__name__}; expected a text, such as 'A'")
        return Reply(text=text.strip())


def is_choice_model(candidate: Any) -> bool:
    return all(hasattr(candidate, name) for name in ("answer", "scorings", "fingerprint", "describe"))


def make_choice_model(candidate: Any, name: str) -> Any:
    """Make a multiple-choice model from a function; a model is returned as given. Raises MetricError."""
    if is_choice_model(candidate):
        return candidate
    if not callable(candidate) or isinstance(candidate, type):
        expected = "expected a function (image, question, options) -> text"
        raise MetricError(f"'{name}' is of type {type(candidate).__name__}; {expected}.")
    return FunctionChoices(candidate, name=name, fingerprint=source_digest(candidate)[:20])
