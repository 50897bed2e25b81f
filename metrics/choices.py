"""Multiple-choice questions about pictures: what a model is asked, the wordings, and its replies; a VQA judge
or a function as such a model. `metrics.load_choices` loads others; `metrics.letters` reads their replies.
Such a model has `fingerprint`, `describe()` and

    answer(images, asked, scorings)  -> a `Reply` per question of `asked[i]`, `ChoiceQuestion`s about
                images[i], (H, W, 3) uint8; may raise one of `MODEL_ERRORS` for the whole call
    scorings    which of `SCORINGS` it can give
    concurrent  questions in flight side by side (such a model has `stop()`); 0: batches of images
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
from nein.metrics.base import Images, MetricError, alike, check_finite, check_images, fingerprint
from nein.metrics.chat import THINKING, Message, Sampling, Words
from nein.metrics.chat.asking import ChatModel, in_turns
from nein.metrics.judges.base import TEMPLATES, Answer
from nein.metrics.letters import LETTERS, SCORINGS

#: How a judge is asked, and by what it can be read then. "options": NeIn's yes/no question about a caption,
#: once per option ("What is on the bed? dog"). "letters": the multiple-choice question.
ASKINGS: dict[str, tuple[str, ...]] = {"options": SCORINGS, "letters": ("generated",)}


@dataclass(frozen=True)
class ChoiceQuestion:
    """A question. prompt: its final wording; options: how many it has; question, texts: the question and the
    options by themselves, for models asked about one option at a time."""

    prompt: Prompt
    options: int = 2
    question: str = ""
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """One answer. Raises ValueError for log-probabilities that are not finite.

    text      What the model wrote, stripped; None where it was not asked to write.
    logprobs  Per option, the natural logarithm of the probability that the answer begins with its letter;
              None for a letter that the server did not list, None altogether where there are none.
    each      What was said about each option by itself ("Yes", "No"), where the model was asked so.
    error     Why there is no answer.
    version   Of the model that answered, where a server says so.
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
        """The letter with the highest probability; None without probabilities or for a tie at the top."""
        values = [-math.inf if value is None else value for value in self.logprobs or ()]
        if not values or max(values) == -math.inf or values.count(max(values)) > 1:
            return None
        return LETTERS[values.index(max(values))]


#: Per image its questions.
Questions = Sequence[Sequence[ChoiceQuestion]]


def answer_each(model: Any, images: Images, asked: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
    """As `model.answer`; only the question that fails has a reply with the error. Raises MetricError."""

    def answer(questions: Sequence[tuple[int, ChoiceQuestion]]) -> list[Reply]:
        rows: dict[int, list[ChoiceQuestion]] = {}
        for picture, question in questions:
            rows.setdefault(picture, []).append(question)
        replied = model.answer([images[picture] for picture in rows], list(rows.values()), scorings)
        return [reply for row in replied for reply in row]

    def failed(error: BaseException) -> Reply:
        if isinstance(error, MetricError):
            raise error
        return Reply(error=_why(error))

    every = [(i, question) for i, row in enumerate(asked) for question in row]
    replies = iter(isolate(answer, every, failed))
    return [[next(replies) for _ in row] for row in asked]


_LETTERS = Words(tuple(LETTERS), logs=True)


class ChatChoices(ChatModel):
    """A chat model: greedy answers, and the letters' log-probabilities, of the first token; of a served model
    those among its 20 likeliest. A question without an answer is a reply with the error."""

    kind, tokens = "choice", 16
    local: ClassVar = {"batch_size": 8, "bare": ("instructblip",)}
    scorings = SCORINGS

    def describe(self) -> Json:
        place = "where the prompt has it" if self.chat.keeps_order else "before the words"
        local = {"batch_size": self.chat.batch_size, "parameters": self.chat.parameters}
        return {**super().describe(), "picture": place, **({} if self.concurrent else local)}

    def answer(self, images: Images, asked: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, asked, "questions")
        writes, top = "generated" in scorings, _LETTERS if "logprob" in scorings else None
        sampling = Sampling(self.max_new_tokens if writes else 1, top=top)
        replies: dict[tuple[int, int], Reply] = {}
        for cells in self._batches(images, asked):
            messages = []
            for i, k in cells:
                prompt = asked[i][k].prompt
                split = prompt.before and self.chat.keeps_order
                parts = (prompt.before, images[i], prompt.after) if split else (images[i], prompt.text)
                messages.append(Message(parts))
            for (i, k), one in zip(cells, self.chat.complete(messages, sampling), strict=True):
                # A limit that ended within thoughts is no matter where only the first token is read.
                if one.error is not None and (writes or getattr(one.error, "kind", "") != THINKING):
                    replies[i, k] = Reply(error=_why(one.error))
                    continue
                likely, letters = one.probabilities, LETTERS[: asked[i][k].options]
                logprobs = None if likely is None else tuple(likely[letter] for letter in letters)
                replies[i, k] = Reply(one.text if writes else None, logprobs, version=one.version)
        return [[replies[i, k] for k in range(len(row))] for i, row in enumerate(asked)]

    def _batches(self, images: Images, asked: Questions) -> Iterator[list[tuple[int, int]]]:
        """(image, question) of messages that go together: of a served model all, of one that is here those
        about as many images of one size as it takes at once, first questions first."""
        if self.concurrent:
            yield in_turns(asked)
            return
        for group in alike(range(len(images)), lambda index: images[index].shape, self.chat.batch_size):
            for turn in range(max((len(asked[i]) for i in group), default=0)):
                yield [(i, turn) for i in group if turn < len(asked[i])]


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, NoAnswer) else reason(error)


class JudgeChoices:
    """A judge asked in its own template. asking "options": `Reply.each` is what it said about every option,
    `Reply.logprobs` is ln(P(yes) / (P(yes) + P(no))) for each; "letters": text alone."""

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

    def answer(self, images: Images, asked: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, asked, "questions")
        template = TEMPLATES[self.judge.template]
        if self.asking == "letters":
            questions = [[template.wrap(question.prompt.text.strip()) for question in row] for row in asked]
            answers = self.judge.ask(images, questions)
            return [[Reply(text=answer.text, version=answer.version) for answer in row] for row in answers]
        captions = [[f"{one.question} {text}".strip() for one in row for text in one.texts] for row in asked]
        questions = [[template.ask_caption(caption) for caption in row] for row in captions]
        streams = [iter(row) for row in self.judge.ask(images, questions)]
        return [
            [_reply([next(stream) for _ in question.texts], scorings) for question in row]
            for row, stream in zip(asked, streams, strict=True)
        ]


def _reply(answers: Sequence[Answer], scorings: Sequence[str]) -> Reply:
    each = tuple(answer.text for answer in answers)
    listing = ", ".join(f"{letter}: {text}" for letter, text in zip(LETTERS, each, strict=False))
    shares: list[float | None] = []  # ln of the share of yes
    for answer in answers if "logprob" in scorings else ():
        if answer.p_yes is None or answer.p_no is None or answer.p_yes + answer.p_no <= 0:
            return Reply(listing, each=each, version=answer.version)  # the judge gives no probabilities
        share = answer.p_yes / (answer.p_yes + answer.p_no)
        shares.append(math.log(share) if share > 0 else None)
    logprobs = tuple(shares) if "logprob" in scorings else None
    return Reply(listing, logprobs, each, version=answers[0].version if answers else "")


class FunctionChoices:
    """Answers by a function of yours, `answer(image, question, options) -> str`, one call at a time.

    function  Gets a `PIL.Image.Image` (RGB), the question and a list of options; gives a letter first. What
              it raises, and an answer that is no text, is the error of that question.

    Raises MetricError for a function that cannot be called so.
    """

    scorings = ("generated",)
    concurrent = 0

    def __init__(self, function: Callable[..., str], *, name: str, fingerprint: str) -> None:
        try:
            inspect.signature(function).bind(None, None, None)
        except (TypeError, ValueError):
            raise MetricError(
                f"{name} cannot be called as answer(image, question, options) -> text"
            ) from None
        self.function, self.name, self.fingerprint = function, name, fingerprint
        self._lock = threading.Lock()  # functions are seldom written to be called from several threads

    def describe(self) -> Json:
        return {"class": type(self).__name__, "function": self.name, "fingerprint": self.fingerprint}

    def answer(self, images: Images, asked: Questions, scorings: Sequence[str]) -> list[list[Reply]]:
        check_images(images, asked, "questions")
        rows = zip(images, asked, strict=True)
        return [[self._one(image, question) for question in row] for image, row in rows]

    def _one(self, image: np.ndarray, one: ChoiceQuestion) -> Reply:
        from PIL import Image

        try:
            with self._lock:
                text = self.function(Image.fromarray(image.copy()), one.question, list(one.texts))
        except Exception as error:
            if out_of_memory(error):
                raise  # is about the machine, not about the question
            return Reply(error=f"{self.name} raised {reason(error)}")
        if not isinstance(text, str):
            return Reply(error=f"{self.name} gave a {type(text).__name__}; expected a text, such as 'A'")
        return Reply(text=text.strip())


def is_choices(thing: Any) -> bool:
    """Whether it is a model of multiple choice."""
    return all(hasattr(thing, part) for part in ("answer", "scorings", "fingerprint", "describe"))


def as_choices(thing: Any, name: str) -> Any:
    """A model of multiple choice from one, or from a function. Raises MetricError."""
    if is_choices(thing):
        return thing
    if not callable(thing) or isinstance(thing, type):
        kind = type(thing).__name__
        raise MetricError(
            f"'{name}' is of type {kind}; expected a function (image, question, options) -> text."
        )
    return FunctionChoices(thing, name=name, fingerprint=source_digest(thing)[:20])


# --- wording ---------------------------------------------------------------------------------------------


class Prompt(NamedTuple):
    """What is said before and after the picture; joined where a template puts the picture first."""

    before: str
    after: str

    @property
    def text(self) -> str:
        return f"{self.before}{self.after.lstrip()}" if self.before else self.after


class PromptFormat(NamedTuple):
    """How VLMEvalKit asks a model: the name of a wording, and the longest answer in tokens."""

    prompt: str
    max_new_tokens: int


#: Texts behind A, B, ...; None is not shown, and its letter stays free.
Options = Sequence[str | None]


def _listed(form: str, options: Options) -> str:
    pairs = zip(LETTERS, options, strict=False)
    return "".join(form.format(letter, text) for letter, text in pairs if text is not None)


def is_chinese(text: str) -> bool:
    """As VLMEvalKit has it: one such character suffices."""
    return re.search("[\u4e00-\u9fff]", text) is not None


_LINE = "{}. {}\n"
_LETTER = "Answer with the option's letter from the given choices directly."
_LETTER_IN_CHINESE = "请直接回答选项字母。"
_SELECT = "Please select the correct answer from the options above."


class Wording(NamedTuple):
    """`{}` are the question and the list of options. chinese: the end of a question with Chinese in it."""

    before: str
    after: str
    option: str
    end: str = ""
    chinese: str = ""


#: "paper": as NegVQA prints it (arXiv:2505.22946, the picture behind "Question:"). The others: what the
#: toolkit it was run with sends for a multiple-choice question, to models without a wording of their own
#: ("vlmevalkit": vlmeval/dataset/image_mcq.py) and to those with one (vlmeval/vlm/llava/llava.py and
#: internvl/utils.py, molmo.py, qwen2_vl/prompt.py; commit 0f27427e of 25 May 2025).
PROMPTS: dict[str, Wording] = {
    "paper": Wording("Question: ", " {}\nOptions:{}\n", " {}. {}", _LETTER),
    "vlmevalkit": Wording("", "Question: {}\nOptions:\n{}", _LINE, f"{_SELECT} \n"),
    "vlmevalkit-llava": Wording("", "{}{}\n", "\n{}. {}", _LETTER, _LETTER_IN_CHINESE),
    "vlmevalkit-molmo": Wording("", "a_okvqa_mc: {}{}", "\n{}: {}"),
    "vlmevalkit-qwen2-vl": Wording("", "Question: {}\nOptions:\n{}", _LINE, _SELECT, _LETTER_IN_CHINESE),
}
#: How a checkpoint's name looks in lower case -> how the toolkit asks it; the first that fits. Source: the
#: classes of vlmeval/vlm and vlmeval/config.py at commit 0f27427e; InstructBLIP's 256 tokens are the default
#: of the package lavis, which the toolkit leaves as it is.
MANNERS = (
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
#: Of Cambrian and Qwen2.5-VL among others, and of models that the toolkit does not know.
USUAL = PromptFormat("vlmevalkit", 2048)


def prompt(name: str, question: str, options: Options) -> Prompt:
    """The prompt of that name. Raises MetricError for an unknown name or not 2 to 26 options."""
    if not 2 <= len(options) <= len(LETTERS):
        raise MetricError(f"A question needs 2 to {len(LETTERS)} options, not {len(options)}.")
    wording = PROMPTS[choose("prompt", name, PROMPTS)]
    after = wording.after.format(question, _listed(wording.option, options))
    chinese = wording.chinese and is_chinese(after)
    return Prompt(wording.before, after + (wording.chinese if chinese else wording.end))


def yes_or_no(question: str) -> Prompt:
    """A question to be answered with a word, in the words of NeIn's judge."""
    return Prompt("", f"{question} Answer only yes or no")


def prompt_format(reference: str) -> PromptFormat:
    """Of the model behind a hub id, a folder or openai:URL#MODEL, by its name alone."""
    name = reference.rpartition("#")[2].rstrip("/").rpartition("/")[2].partition("@")[0]
    plain = name.lower().replace("_", "-")
    return next((style for pattern, style in MANNERS if re.search(pattern, plain)), USUAL)


def matching(question: str, options: Options, answer: str) -> str:
    """What VLMEvalKit asks a language model about an answer in which its letter rule finds nothing. Source:
    vlmeval/dataset/utils/multiple_choice.py and vlmeval/smp/vlm.py; commit 0f27427e."""
    listed = f"There are several options: \n{_listed(_LINE, options)}"
    form = _MATCHING_IN_CHINESE if is_chinese(question) else _MATCHING
    return form.format(question, listed, answer)


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
