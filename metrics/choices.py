"""Multiple-choice questions about images: prompt wordings, and models that answer them with a `Reply`.

`metrics.load_choices` loads a model; `metrics.letters` reads its replies. A model has `fingerprint`,
`describe()`,

    answer(images, questions, scorings)  -> a `Reply` per `ChoiceQuestion` in questions[i], about images[i],
                (H, W, 3) uint8; may raise one of `MODEL_ERRORS` for the whole call
    scorings    which of `SCORINGS` it supports
    concurrent  questions in flight (then it has `stop()`); 0: batches of images
"""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from nein.loading.digests import Json, source_digest
from nein.loading.errors import choose, isolate, out_of_memory, reason
from nein.loading.service import NoAnswer
from nein.metrics.base import Images, MetricError, check_finite, check_images, fingerprint, group_by
from nein.metrics.chat import THINKING, Message, Sampling, Words
from nein.metrics.chat.asking import ChatModel, list_cells
from nein.metrics.judges.base import TEMPLATES, Answer
from nein.metrics.letters import LETTERS, SCORINGS

#: Way of asking a judge -> scorings it supports. "options": NeIn's yes/no question about a caption, once per
#: option ("What is on the bed? dog"). "letters": the multiple-choice question.
ASKINGS: dict[str, tuple[str, ...]] = {"options": SCORINGS, "letters": ("generated",)}


class Prompt(NamedTuple):
    """Text before and after the image; joined if a template puts the image first."""

    before: str
    after: str

    @property
    def text(self) -> str:
        return f"{self.before}{self.after.lstrip()}" if self.before else self.after


@dataclass(frozen=True)
class ChoiceQuestion:
    """One question; its parts are for models that are asked about one option at a time."""

    prompt: Prompt  # the full wording
    options: int = 2  # number of options
    question: str = ""
    texts: tuple[str, ...] = ()  # texts of the options


@dataclass(frozen=True)
class Reply:
    """One answer. Raises ValueError for log-probabilities that are not finite.

    text      The written answer, stripped; None if none was requested.
    logprobs  Per option, ln of the probability that the answer begins with its letter; None for a letter that
              the server did not list; None altogether if unavailable.
    each      Answer about each option alone ("Yes", "No"), if asked so.
    error     Why there is no answer.
    version   Model version that a server reports.
    """

    text: str | None = None
    logprobs: tuple[float | None, ...] | None = None
    each: tuple[str, ...] | None = None
    error: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        check_finite(*self.logprobs or ())

    @property
    def likeliest(self) -> str | None:
        """Letter with the highest probability; None without probabilities or for a tie."""
        values = [-math.inf if value is None else value for value in self.logprobs or ()]
        if not values or max(values) == -math.inf or values.count(max(values)) > 1:
            return None
        return LETTERS[values.index(max(values))]


#: Questions per image.
Questions = Sequence[Sequence[ChoiceQuestion]]


def answer_each(
    model: Any, images: Images, questions: Questions, scorings: Sequence[str]
) -> list[list[Reply]]:
    """`model.answer`, but a failing question gets a reply with its error. Raises MetricError."""

    def answer_cells(cells: Sequence[tuple[int, ChoiceQuestion]]) -> list[Reply]:
        rows: dict[int, list[ChoiceQuestion]] = {}  # image -> its questions
        for image, question in cells:
            rows.setdefault(image, []).append(question)
        replies = model.answer([images[image] for image in rows], list(rows.values()), scorings)
        return [reply for row in replies for reply in row]

    def make_reply(error: BaseException) -> Reply:
        if isinstance(error, MetricError):
            raise error
        return Reply(error=_explain(error))

    cells = [(image, question) for image, row in enumerate(questions) for question in row]
    replies = iter(isolate(answer_cells, cells, make_reply))
    return [[next(replies) for _ in row] for row in questions]


_LETTERS = Words(tuple(LETTERS), logs=True)


class ChatChoices(ChatModel):
    """Multiple choice by a chat model: greedy answers, and log-probabilities of the letters as first token
    (of a served model those among the 20 likeliest). An unanswered question gets a reply with its error."""

    kind, tokens = "choice", 16
    defaults: ClassVar = {"batch_size": 8, "bare": ("instructblip",)}
    scorings = SCORINGS

    def describe(self) -> Json:
        position = "where the prompt has it" if self.chat.keeps_order else "before the words"
        local = {"batch_size": self.chat.batch_size, "parameters": self.chat.parameters}
        return {**super().describe(), "picture": position, **({} if self.concurrent else local)}

    def answer(self, images: Images, questions: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, questions, "questions")
        writes, letters = "generated" in scorings, _LETTERS if "logprob" in scorings else None
        sampling = Sampling(self.max_new_tokens if writes else 1, top=letters)
        replies: dict[tuple[int, int], Reply] = {}  # (image, question) -> reply
        for cells in self._batches(images, questions):
            messages = []
            for i, k in cells:
                prompt = questions[i][k].prompt
                image_inside = prompt.before and self.chat.keeps_order
                parts = (prompt.before, images[i], prompt.after) if image_inside else (images[i], prompt.text)
                messages.append(Message(parts))
            for (i, k), reply in zip(cells, self.chat.complete(messages, sampling), strict=True):
                # Thoughts that hit the token limit do not matter if only the first token is read.
                if reply.error is not None and (writes or getattr(reply.error, "kind", "") != THINKING):
                    replies[i, k] = Reply(error=_explain(reply.error))
                    continue
                by_letter, count = reply.probabilities, questions[i][k].options
                logprobs = None if by_letter is None else tuple(by_letter[c] for c in LETTERS[:count])
                replies[i, k] = Reply(reply.text if writes else None, logprobs, version=reply.version)
        return [[replies[i, k] for k in range(len(row))] for i, row in enumerate(questions)]

    def _batches(self, images: Images, questions: Questions) -> Iterator[list[tuple[int, int]]]:
        """Yield batches of (image, question) indices: all for a served model; for a local one the k-th
        questions of up to `batch_size` images of one size."""
        if self.concurrent:
            yield list_cells(questions)
            return
        for group in group_by(range(len(images)), lambda i: images[i].shape, self.chat.batch_size):
            for k in range(max((len(questions[i]) for i in group), default=0)):
                yield [(i, k) for i in group if k < len(questions[i])]


def _explain(error: BaseException) -> str:
    return str(error) if isinstance(error, NoAnswer) else reason(error)


class JudgeChoices:
    """Multiple choice by a VQA judge, in its own template (`ASKINGS`). "options" fills `Reply.each`, and
    `Reply.logprobs` with ln(P(yes) / (P(yes) + P(no))) per option; "letters" the text alone."""

    def __init__(self, judge: Any, asking: str = "letters") -> None:
        self.judge = judge
        self.asking = choose("way of asking a judge", asking, ASKINGS)
        self.scorings = ASKINGS[asking]
        self.concurrent: int = getattr(judge, "concurrent", 0)
        self.fingerprint = fingerprint({"kind": "choice", "judge": judge.fingerprint, "asking": asking})

    def describe(self) -> Json:
        return {**self.judge.describe(), "judge": self.judge.fingerprint, "asking": self.asking}

    def stop(self) -> None:
        self.judge.stop()

    def usage(self) -> Json:
        return getattr(self.judge, "usage", dict)()

    def answer(self, images: Images, questions: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, questions, "questions")
        template = TEMPLATES[self.judge.template]
        if self.asking == "letters":
            prompts = [[template.wrap(question.prompt.text.strip()) for question in row] for row in questions]
            answers = self.judge.ask(images, prompts)
            return [[Reply(text=answer.text, version=answer.version) for answer in row] for row in answers]
        captions = [[f"{q.question} {text}".strip() for q in row for text in q.texts] for row in questions]
        prompts = [[template.ask_caption(caption) for caption in row] for row in captions]
        answers_by_image = map(iter, self.judge.ask(images, prompts))  # options of all questions in a row
        return [
            [_combine([next(stream) for _ in question.texts], scorings) for question in row]
            for row, stream in zip(questions, answers_by_image, strict=True)
        ]


def _combine(answers: Sequence[Answer], scorings: Sequence[str]) -> Reply:
    """Reply from the answers about each option."""
    each = tuple(answer.text for answer in answers)
    listing = ", ".join(f"{letter}: {text}" for letter, text in zip(LETTERS, each, strict=False))
    logs: list[float | None] = []  # ln(P(yes) / (P(yes) + P(no)))
    for answer in answers if "logprob" in scorings else ():
        if answer.p_yes is None or answer.p_no is None or answer.p_yes + answer.p_no <= 0:
            return Reply(listing, each=each, version=answer.version)  # the judge gives no probabilities
        share = answer.p_yes / (answer.p_yes + answer.p_no)
        logs.append(math.log(share) if share > 0 else None)
    logprobs = tuple(logs) if "logprob" in scorings else None
    return Reply(listing, logprobs, each, version=answers[0].version if answers else "")


class FunctionChoices:
    """Multiple choice by a user's function, `answer(image, question, options) -> str`, one call at a time.

    function  Takes a `PIL.Image.Image` (RGB), the question and a list of options; returns a text that begins
              with the letter. An exception, or another type, becomes the error of that question.

    Raises MetricError for a function with other parameters.
    """

    scorings = ("generated",)
    concurrent = 0

    def __init__(self, function: Callable[..., str], *, name: str, fingerprint: str) -> None:
        try:
            inspect.signature(function).bind(None, None, None)
        except (TypeError, ValueError):
            raise MetricError(
                f"{name} does not take (image, question, options); define answer(image, question, options)"
            ) from None
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
    """Multiple-choice model from a function; a model is returned unchanged. Raises MetricError."""
    if is_choice_model(candidate):
        return candidate
    if not callable(candidate) or isinstance(candidate, type):
        kind = type(candidate).__name__
        raise MetricError(
            f"'{name}' is of type {kind}; expected a function (image, question, options) -> text."
        )
    return FunctionChoices(candidate, name=name, fingerprint=source_digest(candidate)[:20])


# --- wording ---------------------------------------------------------------------------------------------


class PromptFormat(NamedTuple):
    """VLMEvalKit's wording for a model (a key of `PROMPTS`), and its longest answer in tokens."""

    prompt: str
    max_new_tokens: int


#: Texts of A, B, ...; an option that is None is left out, with its letter.
Options = Sequence[str | None]


def _list_options(line: str, options: Options) -> str:
    pairs = zip(LETTERS, options, strict=False)
    return "".join(line.format(letter, text) for letter, text in pairs if text is not None)


def is_chinese(text: str) -> bool:
    """Whether a text has a Chinese character, VLMEvalKit's criterion."""
    return re.search("[\u4e00-\u9fff]", text) is not None


_LINE = "{}. {}\n"
_LETTER = "Answer with the option's letter from the given choices directly."
_LETTER_IN_CHINESE = "请直接回答选项字母。"
_SELECT = "Please select the correct answer from the options above."


class Wording(NamedTuple):
    """Parts of a prompt; {} are filled in."""

    before: str  # before the image
    after: str  # {} question, {} list of options
    option: str  # {} letter, {} text
    end: str = ""
    chinese: str = ""  # replaces `end` for a question with Chinese characters


#: "paper": as NegVQA prints it (arXiv:2505.22946, the image after "Question:"). Others: VLMEvalKit,
#: which NegVQA used (commit 0f27427e of 25 May 2025): "vlmevalkit" for models without a wording of their own
#: (vlmeval/dataset/image_mcq.py), and those of vlmeval/vlm/llava/llava.py and internvl/utils.py, molmo.py,
#: qwen2_vl/prompt.py.
PROMPTS: dict[str, Wording] = {
    "paper": Wording("Question: ", " {}\nOptions:{}\n", " {}. {}", _LETTER),
    "vlmevalkit": Wording("", "Question: {}\nOptions:\n{}", _LINE, f"{_SELECT} \n"),
    "vlmevalkit-llava": Wording("", "{}{}\n", "\n{}. {}", _LETTER, _LETTER_IN_CHINESE),
    "vlmevalkit-molmo": Wording("", "a_okvqa_mc: {}{}", "\n{}: {}"),
    "vlmevalkit-qwen2-vl": Wording("", "Question: {}\nOptions:\n{}", _LINE, _SELECT, _LETTER_IN_CHINESE),
}
#: Pattern of a checkpoint's name in lower case -> its format in VLMEvalKit; the first match counts. Source:
#: vlmeval/vlm and vlmeval/config.py at commit 0f27427e; 256 tokens are the default of InstructBLIP's lavis.
PROMPT_FORMATS = (
    (r"vila", PromptFormat("vlmevalkit", 2048)),
    (
        r"llava-?(v?1\.[56]|next-(72|110)b|interleave)|llama3-llava-next-8b-hf",
        PromptFormat("vlmevalkit-llava", 2048),
    ),
    (r"internvl", PromptFormat("vlmevalkit-llava", 4096)),
    (r"molmo", PromptFormat("vlmevalkit-molmo", 200)),
    (r"qwen2-?vl", PromptFormat("vlmevalkit-qwen2-vl", 2048)),
    (r"deepseek-?vl-", PromptFormat("vlmevalkit", 512)),
    (r"instructblip", PromptFormat("vlmevalkit", 256)),
)
#: Format of all other models, such as Cambrian and Qwen2.5-VL.
DEFAULT_FORMAT = PromptFormat("vlmevalkit", 2048)


def write_prompt(name: str, question: str, options: Options) -> Prompt:
    """Prompt in the wording `name`. Raises MetricError for an unknown one, or not 2 to 26 options."""
    if not 2 <= len(options) <= len(LETTERS):
        raise MetricError(f"A question needs 2 to {len(LETTERS)} options, not {len(options)}.")
    wording = PROMPTS[choose("prompt", name, PROMPTS)]
    after = wording.after.format(question, _list_options(wording.option, options))
    end = wording.chinese if wording.chinese and is_chinese(after) else wording.end
    return Prompt(wording.before, after + end)


def yes_or_no(question: str) -> Prompt:
    """Prompt of a yes/no question, with NeIn's ending."""
    return Prompt("", f"{question} Answer only yes or no")


def find_prompt_format(reference: str) -> PromptFormat:
    """VLMEvalKit's format for a hub id, a folder or openai:URL#MODEL, found by the model's name alone."""
    name = reference.rpartition("#")[2].rstrip("/").rpartition("/")[2].partition("@")[0]
    plain = name.lower().replace("_", "-")
    return next((style for pattern, style in PROMPT_FORMATS if re.search(pattern, plain)), DEFAULT_FORMAT)


def write_matching_prompt(question: str, options: Options, answer: str) -> str:
    """VLMEvalKit's prompt for a language model that reads an answer without a letter. Source:
    vlmeval/dataset/utils/multiple_choice.py and vlmeval/smp/vlm.py; commit 0f27427e."""
    option_list = f"There are several options: \n{_list_options(_LINE, options)}"
    template = _MATCHING_IN_CHINESE if is_chinese(question) else _MATCHING
    return template.format(question, option_list, answer)


_MATCHING = (
    "You are an AI assistant who will help me to match an answer with several options of a single-choice "
    "question. You are provided with a question, several options, and an answer, and you need to find which "
    "option is most similar to the answer. If the meaning of all options are significantly different from "
    "the answer, output Z. Your should output a single uppercase character in A, B, C, D (if they are valid "
    "options), and Z. \n"
    "Example 1: \nQuestion: What is the main object in image?\n"
    "Options: A. teddy bear B. rabbit C. cat D. dog\nAnswer: a cute teddy bear\nYour output: A\n"
    "Example 2: \nQuestion: What is the main object in image?\n"
    "Options: A. teddy bear B. rabbit C. cat D. dog\nAnswer: Spider\nYour output: Z\n"
    "Example 3: \nQuestion: {}?\nOptions: {}\nAnswer: {}\nYour output: "
)
_MATCHING_IN_CHINESE = (
    "你是一个帮助我匹配答案与单选题中多个选项的 AI 助手。你会被提供：一个问题，多个选项，一个答案。"
    "你的任务是找到与答案意义最相近的选项。如果所有选项的意义都与答案显著不同，则输出 Z。"
    "你应该输出一个单个的大写字母，例如 A, B, C, D（如果它们是有效选项），或 Z。"
    "例 1:问题: 图中最主要的物体是什么?\n选项: A. 泰迪熊 B. 兔子 C. 猫 D. 狗\n"
    "答案: 一只可爱的泰迪熊\n输出: A\n"
    "例 2: \n问题: 图中最主要的物体是什么?\n选项: A. 泰迪熊 B. 兔子 C. 猫 D. 狗\n答案: 蜘蛛\n输出: Z\n"
    "例 3: \n问题: {}?\n选项: {}\n答案: {}\n输出: "
)
