"""Writes the prompts of multiple-choice questions, in the wordings of NegVQA and VLMEvalKit.

`write_prompt` puts a question and its options into a `Prompt`; `find_prompt_format` picks the wording that
VLMEvalKit has for a model; `write_matching_prompt` asks a language model which option an answer means.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from nein.loading.errors import choose
from nein.metrics.base import MetricError
from nein.metrics.letters import LETTERS

#: Texts of A, B, ... in order; None: the option is left out with its letter.
Options = Sequence[str | None]


class Prompt(NamedTuple):
    """Text before and after the image."""

    before: str  # "": the image comes first
    after: str

    @property
    def text(self) -> str:
        """Both parts joined, for a model that takes the image first."""
        return f"{self.before}{self.after.lstrip()}" if self.before else self.after


class Wording(NamedTuple):
    """Parts of a prompt; each {} is filled in."""

    before: str  # before the image
    after: str  # after it; {} question, {} list of options
    option: str  # an entry of that list; {} letter, {} text
    end: str = ""  # after the list
    chinese_end: str = ""  # replaces `end` if the prompt has a Chinese character; "": none does


_LINE = "{}. {}\n"
_LETTER = "Answer with the option's letter from the given choices directly."
_LETTER_IN_CHINESE = "请直接回答选项字母。"
_SELECT = "Please select the correct answer from the options above."
#: Name -> wording. "paper": as NegVQA prints it (arXiv:2505.22946, the image after "Question:"). The others
#: are VLMEvalKit's, which NegVQA used (commit 0f27427e of 25 May 2025). "vlmevalkit" is for models without a
#: wording of their own (vlmeval/dataset/image_mcq.py); "vlmevalkit-..." come from vlmeval/vlm: llava/llava.py
#: and internvl/utils.py, molmo.py, qwen2_vl/prompt.py.
PROMPTS: dict[str, Wording] = {
    "paper": Wording("Question: ", " {}\nOptions:{}\n", " {}. {}", _LETTER),
    "vlmevalkit": Wording("", "Question: {}\nOptions:\n{}", _LINE, f"{_SELECT} \n"),
    "vlmevalkit-llava": Wording("", "{}{}\n", "\n{}. {}", _LETTER, _LETTER_IN_CHINESE),
    "vlmevalkit-molmo": Wording("", "a_okvqa_mc: {}{}", "\n{}: {}"),
    "vlmevalkit-qwen2-vl": Wording("", "Question: {}\nOptions:\n{}", _LINE, _SELECT, _LETTER_IN_CHINESE),
}


def write_prompt(wording: str, question: str, options: Options) -> Prompt:
    """Write the prompt of a question. wording: a key of `PROMPTS`. Raises MetricError for any other, or
    unless there are 2 to 26 options."""
    if not 2 <= len(options) <= len(LETTERS):
        raise MetricError(f"A question needs 2 to {len(LETTERS)} options, not {len(options)}.")
    parts = PROMPTS[choose("prompt", wording, PROMPTS)]
    after = parts.after.format(question, _list_options(parts.option, options))
    end = parts.chinese_end if parts.chinese_end and _is_chinese(after) else parts.end
    return Prompt(parts.before, after + end)


def _list_options(line: str, options: Options) -> str:
    pairs = zip(LETTERS, options, strict=False)
    return "".join(line.format(letter, text) for letter, text in pairs if text is not None)


def _is_chinese(text: str) -> bool:
    """Whether a text has a Chinese character, VLMEvalKit's criterion."""
    return re.search("[\u4e00-\u9fff]", text) is not None


def write_yes_no_prompt(question: str) -> Prompt:
    """Write the prompt of a yes/no question, with NeIn's ending."""
    return Prompt("", f"{question} Answer only yes or no")


# --- VLMEvalKit's wording of each model --------------------------------------------------------------
class PromptFormat(NamedTuple):
    """How VLMEvalKit asks a model."""

    prompt: str  # its wording, a key of `PROMPTS`
    max_new_tokens: int  # of an answer


#: Pattern of a checkpoint's name in lower case -> its format in VLMEvalKit; the first match counts. Source:
#: vlmeval/vlm and vlmeval/config.py at commit 0f27427e; 256 tokens are the default of InstructBLIP's lavis.
PROMPT_FORMATS = (
    (r"vila", PromptFormat("vlmevalkit", 2048)),
    (r"llava-?(v?1\.[56]|next-(72|110)b|interleave)", PromptFormat("vlmevalkit-llava", 2048)),
    (r"llama3-llava-next-8b-hf", PromptFormat("vlmevalkit-llava", 2048)),
    (r"internvl", PromptFormat("vlmevalkit-llava", 4096)),
    (r"molmo", PromptFormat("vlmevalkit-molmo", 200)),
    (r"qwen2-?vl", PromptFormat("vlmevalkit-qwen2-vl", 2048)),
    (r"deepseek-?vl-", PromptFormat("vlmevalkit", 512)),
    (r"instructblip", PromptFormat("vlmevalkit", 256)),
)
#: Format of all other models, such as Cambrian and Qwen2.5-VL.
DEFAULT_FORMAT = PromptFormat("vlmevalkit", 2048)


def find_prompt_format(reference: str) -> PromptFormat:
    """Find VLMEvalKit's format for a hub id, a folder or openai:URL#MODEL by the model's name."""
    name = reference.rpartition("#")[2].rstrip("/").rpartition("/")[2].partition("@")[0]
    plain = name.lower().replace("_", "-")
    for pattern, prompt_format in PROMPT_FORMATS:
        if re.search(pattern, plain):
            return prompt_format
    return DEFAULT_FORMAT


# --- which option does an answer without a letter mean? ----------------------------------------------
# Each {}: question, list of options, answer.
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


def write_matching_prompt(question: str, options: Options, answer: str) -> str:
    """Write VLMEvalKit's prompt for a language model that matches an answer with an option. Source:
    vlmeval/dataset/utils/multiple_choice.py and vlmeval/smp/vlm.py; commit 0f27427e."""
    option_list = f"There are several options: \n{_list_options(_LINE, options)}"
    template = _MATCHING_IN_CHINESE if _is_chinese(question) else _MATCHING
    return template.format(question, option_list, answer)
