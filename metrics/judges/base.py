"""Interface of judges, models that answer questions about images: results, prompts, reading of yes and no.

A judge has `fingerprint`, `describe()` (JSON-serializable) and, by its kind, one method, which takes images,
(H, W, 3) uint8, and a list of strings per image:

    vqa  ask(images, questions) -> list of `Answer` per image; `template` is a key of `TEMPLATES`
    ovd  detect(images, labels, threshold=0.1) -> {label: Detection} per image
    itm  match(images, texts, head="itm") -> scores per image, (texts,) float64; head: "itm" or "itc" (cosine)
"""

from __future__ import annotations

import string
from dataclasses import dataclass

from nein.loading.errors import choose
from nein.metrics.base import Images, MetricError, Texts, check_finite, check_images
from nein.metrics.chat import strip_thoughts


@dataclass(frozen=True)
class Answer:
    """One answer of a VQA judge. Raises ValueError for a probability that is not finite."""

    text: str
    token_count: int  # number of generated tokens, without the end of the sequence
    p_yes: float | None = None  # probability that the answer begins with "yes" (any case); None: unknown
    p_no: float | None = None  # likewise "no"
    version: str = ""  # model version that a server reports; "": none

    def __post_init__(self) -> None:
        check_finite(self.p_yes, self.p_no)


@dataclass(frozen=True)
class Detection:
    """Detection of one label. Raises ValueError for numbers that are not finite."""

    score: float  # highest over all boxes, in [0, 1]
    count: int  # number of boxes with a score above the threshold
    box: tuple[float, float, float, float]  # the best: (x0, y0, x1, y1) in pixels of the image, not clipped
    # Highest score over the boxes whose best label this is, 0 without any; None: each label has own boxes.
    named: float | None = None

    def __post_init__(self) -> None:
        check_finite(self.score, self.named, *self.box)


def check_batch(images: Images, strings: Texts, kind: str) -> None:
    """Raise MetricError for arguments that no judge can take. kind: plural noun for the strings."""
    check_images(images, strings, kind)
    for row in strings:
        if isinstance(row, str) or not all(isinstance(item, str) for item in row):
            raise MetricError(f"Pass a list of {kind} per image, not {row!r}.")


# --- prompts -------------------------------------------------------------------------------
CAPTION = 'Does the caption "{caption}" describe this image? Answer only yes or no'


@dataclass(frozen=True)
class PromptTemplate:
    """A model's dialogue format, and NeIn's question whether an object is present."""

    wrapper: str  # with {question}, and <image> at the image's place
    presence: str = "Does this image contain {object}? Answer only yes or no"  # as in NeIn's VQA scripts

    def ask_presence(self, name: str, article: str = "none") -> str:
        """Write the prompt for an object. article: "none" ("contain car?"), as in NeIn's code, or "a_an"."""
        choose("article", article, ("none", "a_an"))
        if article == "a_an":
            name = f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
        return self.wrap(self.presence.replace("{object}", name))

    def ask_caption(self, caption: str) -> str:
        return self.wrap(CAPTION.replace("{caption}", caption))

    def wrap(self, question: str) -> str:
        return self.wrapper.replace("{question}", question)


TEMPLATES = {
    "llava-mistral": PromptTemplate("[INST] <image>\n{question} [/INST]"),
    "llava-vicuna": PromptTemplate(
        "A chat between a curious human and an artificial intelligence assistant. The assistant gives "
        "helpful, detailed, and polite answers to the human's questions. USER: <image>\n{question} ASSISTANT:"
    ),
    "plain": PromptTemplate("<image>\n{question}"),
    "question": PromptTemplate("{question}"),  # the judge adds the image itself
}


def find_template(name: str) -> PromptTemplate:
    """Find a template by name. Raises MetricError."""
    return TEMPLATES[choose("prompt template", name, TEMPLATES)]


# --- reading yes or no ---------------------------------------------------------------------
def paper_says_removed(answer: str) -> bool:
    """Whether the answer is exactly "No" (not "no" or "No."), as in NeIn's removal_eval.py."""
    return answer.strip() == "No"


def paper_says_present(answer: str) -> bool:
    """Whether the answer is "yes" in any case (not "Yes."), as in NeIn's check_obj.py, retention_eval.py."""
    return answer.strip().lower() == "yes"


def parse_yes_no(answer: str) -> bool | None:
    """Read the first word after any thoughts: "No, there is no car." -> False; "Nothing", "" -> None."""
    words = (strip_thoughts(answer) or "").split()
    first = words[0].strip(string.punctuation + "“”‘’…").lower() if words else ""
    return {"yes": True, "no": False}.get(first)
