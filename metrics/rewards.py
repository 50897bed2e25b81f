"""Rewards: judges that score a whole edit, or pick the better of two, given source image and instruction.

`metrics.load_reward` loads one; `rank_edits` scores several edits of one image. In this order: the interface,
`EditScore` (scores one edit), `Pairwise` (compares two).
"""

from __future__ import annotations

import ast
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nein.loading.digests import Json, folder_digest
from nein.loading.errors import isolate, reason
from nein.loading.references import expand_user
from nein.loading.service import NoAnswer
from nein.metrics.base import Described, Images, MetricError, Score, check_images, fingerprint
from nein.metrics.chat import Chat, Completion, Message, Sampling, strip_thoughts
from nein.metrics.chat.asking import open_chat
from nein.metrics.choice_prompts import Prompt
from nein.metrics.choices import ChatChoices, ChoiceQuestion, Reply, answer_each
from nein.metrics.letters import parse


class RewardJudge(Described):
    """Base of rewards; images are (H, W, 3) uint8."""

    compares = False  # True: it has `prefer`; False: it has `score`

    def __init__(self, model: Any) -> None:
        self.model = model
        self.usage: Callable[[], Json] = getattr(model, "usage", dict)  # cost so far; {} of a local model
        self.stop: Callable[[], None] = getattr(model, "stop", lambda: None)  # ends requests to a server

    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        """Score every edit; higher is better. Each judge has a scale of its own."""
        raise NotImplementedError

    def prefer(
        self, sources: Images, first: Images, second: Images, instructions: Sequence[str]
    ) -> list[Score]:
        """Compare the edits of every pair: 1 if the first is better, 0 if the second is, 0.5 if neither."""
        raise NotImplementedError


def rank_edits(judge: RewardJudge, source: np.ndarray, edits: Images, instruction: str) -> list[Score]:
    """Score every edit of one image. A judge that compares gives each its mean preference over the others."""

    def score(some: Images) -> list[Score]:
        return judge.score([source] * len(some), some, [instruction] * len(some))

    def compare(pairs: Sequence[tuple[int, int]]) -> list[Score]:
        first, second = [edits[i] for i, _ in pairs], [edits[k] for _, k in pairs]
        return judge.prefer([source] * len(pairs), first, second, [instruction] * len(pairs))

    def leave_unscored(error: BaseException) -> Score:
        return Score(None, reason(error))

    if not judge.compares:
        return isolate(score, edits, leave_unscored)
    pairs = list(itertools.combinations(range(len(edits)), 2))
    preferences: list[list[float]] = [[] for _ in edits]  # per edit: its preference over each other, 0 to 1
    reasons = []  # why comparisons failed
    for (i, k), preference in zip(pairs, isolate(compare, pairs, leave_unscored), strict=True):
        if preference.value is None:
            reasons.append(preference.reason)
        else:
            preferences[i].append(preference.value)
            preferences[k].append(1 - preference.value)
    failed = Score(None, reasons[0] if reasons else "there is no other edit to compare with")
    return [Score(sum(p) / len(p), f"of {len(p)} comparisons") if p else failed for p in preferences]


def check_edits(images: Sequence[Images], instructions: Sequence[str]) -> None:
    """Raise MetricError unless every list of images has one valid image per instruction."""
    for row in images:
        if len(row) != len(instructions):
            raise MetricError(f"{len(row)} images but {len(instructions)} instructions were given.")
        check_images(row, row, "images")
    for sentence in instructions:
        if not isinstance(sentence, str) or not sentence.strip():
            raise MetricError(f"The instruction is {sentence!r}; expected a sentence.")


# --- EditScore -------------------------------------------------------------------------------------------
# Source: arXiv:2509.23909; github.com/VectorSpaceLab/EditScore, editscore/__init__.py and json_parser.py at
# 6e0f1b9; the questions are VIEScore's (arXiv:2312.14867). Two questions, each answered by two numbers:
#   SC (semantic consistency), about source and edit: was the instruction followed, was nothing else changed?
#   PQ (perceptual quality), about the edit: is it natural, is it free of artifacts?
# SC and PQ are the smaller of their two numbers, scaled to 0 to 10; the score is sqrt(SC x PQ).

#: Largest number in an answer; numbers from 0 to 25 become scores from 0 to 10.
RANGE = 25
#: Sampling of the released code. The seed of pass k is SEED + k; TOKENS limits an answer.
SEED, TEMPERATURE, TOP_P, TOP_K, TOKENS = 42, 0.7, 0.9, 20, 512
_FORM = (
    "You look at pictures that a program made. Answer with one JSON object and nothing else, the reasoning "
    'in one sentence: {"reasoning": "...", "score": [first, second]}\n'
)
#: SC and PQ -> our own question, for models that were not trained with the authors'.
OWN_QUESTIONS = {
    "SC": f"{_FORM}The first picture is the original, the second is what the program made of it when it was "
    "told what stands below; where it did nothing the two are the same.\n"
    f"first: from 0, nothing of what it was told is done, to {RANGE}, all of it is done.\n"
    f"second: from 0, nothing of the original is left, to {RANGE}, nothing was changed but what had to be.\n"
    "The program was told: <instruction>",
    "PQ": f"{_FORM}Say how well the picture is made.\n"
    f"first: from 0, it cannot be a photograph of anything, to {RANGE}, it looks natural.\n"
    f"second: from 0, it is full of artefacts, to {RANGE}, it has none.",
}


class EditScore(RewardJudge):
    """Scores from 0 to 10, read from the JSON object of an answer; unscored without two numbers in range.

    passes     Answers per question, with seeds 42, 43, ...; their scores are averaged. Released code: 1.
    questions  "SC" and "PQ" -> question; in it, <instruction> is replaced."""

    def __init__(self, chat: Chat, *, passes: int = 1, questions: dict[str, str] = OWN_QUESTIONS) -> None:
        if passes < 1:
            raise MetricError(f"passes is {passes}; it must be at least 1.")
        super().__init__(chat)
        self.chat, self.questions, self.passes = chat, questions, passes

    def describe(self) -> Json:
        decoding = f"temperature {TEMPERATURE:g}, seed {SEED} and up, at most {TOKENS} tokens"
        about: Json = {"kind": "editscore", "passes": self.passes, "decoding": decoding}
        about |= {"texts": self.questions, "numbers": "plain or as strings"}  # as `read_numbers` takes them
        return {**self.chat.describe(), **about}

    def score(self, sources: Images, edits: Images, instructions: Sequence[str]) -> list[Score]:
        """See `metrics.rewards.RewardJudge`; `detail` has SC, PQ, their numbers and the answers."""
        check_edits([sources, edits], instructions)
        messages = []
        for seed in range(SEED, SEED + self.passes):
            for source, edit, instruction in zip(sources, edits, instructions, strict=True):
                sc = self.questions["SC"].replace("<instruction>", instruction)
                pq = self.questions["PQ"].replace("<instruction>", instruction)
                # Every image after its label, as in the released code.
                messages.append(Message(("<img1>: ", source, "<img2>: ", edit, sc), seed))
                messages.append(Message(("<img1>: ", edit, pq), seed))
        sampling = Sampling(max_tokens=TOKENS, temperature=TEMPERATURE, top_p=TOP_P, top_k=TOP_K)
        answers = self.chat.complete(messages, sampling)  # SC and PQ of all edits, then the next pass
        scores = []
        for first in range(0, 2 * len(edits), 2):
            starts = range(first, len(answers), 2 * len(edits))  # of this edit's answers, per pass
            scores.append(_average_passes([(answers[k], answers[k + 1]) for k in starts]))
        return scores


def _average_passes(passes: Sequence[tuple[Completion, Completion]]) -> Score:
    """Score of one edit from its answers (SC, PQ) in all passes."""
    numbers = []  # per pass: the two numbers about SC, the two about PQ
    all_sc, all_pq, values = [], [], []  # per pass, 0 to 10
    for answers in passes:
        for answer in answers:
            if answer.error is not None:
                return Score(None, reason(answer.error), again=isinstance(answer.error, NoAnswer))
        try:
            numbers.append([read_numbers(answer.text) for answer in answers])
        except ValueError as error:
            return Score(None, str(error), {"answers": [answer.text for answer in answers]})
        sc, pq = (min(row) / (RANGE / 10) for row in numbers[-1])
        all_sc.append(sc)
        all_pq.append(pq)
        values.append(math.sqrt(sc * pq))
    sc, pq, value = (sum(column) / len(column) for column in (all_sc, all_pq, values))  # means over passes
    return Score(value, f"SC {sc:.2f}, PQ {pq:.2f}", {"SC": sc, "PQ": pq, "numbers": numbers})


def read_numbers(answer: str) -> list[float]:
    """Read the two numbers of an answer, also as strings ("20"). Raises ValueError."""
    text = strip_thoughts(answer) or ""
    quoted = f"the answer {answer[:80]!r}"
    try:
        entries = json.loads(text[text.find("{") : text.rfind("}") + 1])["score"]
        numbers = [math.nan if isinstance(entry, bool) else float(entry) for entry in entries]  # True is no 1
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        entries, numbers = None, []
    if not isinstance(entries, list) or len(numbers) != 2 or not all(map(math.isfinite, numbers)):
        raise ValueError(f"{quoted} has no 'score' of two numbers")
    if not all(0 <= number <= RANGE for number in numbers):
        raise ValueError(f"{quoted} has a number that is not from 0 to {RANGE}")
    return numbers


#: Configuration of a LoRA: EditScore's weights are one.
ADAPTER = "adapter_config.json"
#: The authors' file of questions, which a user copies into the folder of the weights.
AUTHORS_FILE = "vie_prompts.py"


def load_editscore(path_or_id: str, *, passes: int = 1, **options: Any) -> EditScore:
    """Load EditScore on an endpoint, an image-text model of transformers, or a folder with a LoRA, which
    names its base. `AUTHORS_FILE` in a folder replaces our questions. Raises MetricError."""
    folder = expand_user(path_or_id)
    is_adapter = (folder / ADAPTER).is_file()
    chat = _load_adapter(folder, **options) if is_adapter else open_chat(path_or_id, **options)
    file = folder / AUTHORS_FILE
    questions = _read_questions(file) if file.is_file() else OWN_QUESTIONS
    return EditScore(chat, passes=passes, questions=questions)


def _read_questions(file: Path) -> dict[str, str]:
    """Read SC and PQ -> question from string constants of the authors' file; it is parsed, not run."""
    rules = [f"_prompts_0shot_{rule}" for rule in ("two_image_edit_rule", "tie_rule_SC", "rule_PQ")]
    names = ["_context_no_delimit_reasoning_first", *rules]
    try:
        assignments = [line for line in ast.parse(file.read_bytes()).body if isinstance(line, ast.Assign)]
        values = {ast.unparse(line.targets[0]): line.value for line in assignments}  # name -> constant
        context, about, sc, pq = (ast.literal_eval(values[name]) for name in names)
    except (SyntaxError, ValueError, KeyError) as error:
        raise MetricError(
            f"'{file}' lacks EditScore's questions ({reason(error)}); copy editscore/{AUTHORS_FILE} from "
            "github.com/VectorSpaceLab/EditScore. It is read, not run."
        ) from None
    # The questions ask for 0 to 10; the released code replaces 10 by 25.
    sc, pq = (rule.replace("10", str(RANGE)) for rule in (sc, pq))
    return {"SC": "\n".join([context, about, sc]), "PQ": "\n".join([context, pq])}


def _load_adapter(folder: Path, **options: Any) -> Chat:
    """Load the base model with the LoRA of a folder merged in. Raises MetricError."""
    try:
        import peft
    except ImportError:
        raise MetricError(f"'{folder}' is a LoRA and needs peft: pip install -e '.[train]'.") from None
    from nein.metrics.chat.local import LocalChat, load_chat
    from nein.metrics.loading import Source

    try:
        base = str(json.loads((folder / ADAPTER).read_bytes())["base_model_name_or_path"])
        model, processor, source = load_chat(base, **options)
        merged = peft.PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise MetricError(f"The LoRA '{folder}' or its base cannot be used: {reason(error)}") from error
    merged.eval().requires_grad_(False)
    digest = f"{source.digest}+{folder_digest(folder)}"
    return LocalChat(merged, processor, Source(str(folder), source.revision, digest))


# --- the better of two edits, asked in both orders ----------------------------------------------------------
OPTIONS = ("the picture in the middle", "the picture on the right")  # A and B of the question
QUESTION = (
    "Three pictures side by side. On the left is the original; in the middle and on the right are two edits "
    'of it. The editor was told: "{instruction}" Which edit is as it was told?'
)


class Pairwise(RewardJudge):
    """Asks a multiple-choice model for the better of two edits; it sees source and edits side by side.

    The model is asked in both orders. The mean of ln P(first) - ln P(second) decides; a preference for a
    position cancels in it. Without probabilities the letters decide; two that disagree are no preference
    (0.5). `detail` has the letters of both orders."""

    compares = True

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        # Probabilities of the first token are cheaper than an answer; a server may not give them.
        cheap = "logprob" in model.scorings and not model.concurrent
        self._scorings = ("logprob",) if cheap else tuple(model.scorings)
        self.fingerprint = fingerprint({"kind": "pairwise", "model": model.fingerprint, "prompt": QUESTION})

    def describe(self) -> Json:
        return {**self.model.describe(), "kind": "pairwise", "prompt": QUESTION, "orders": 2}

    def prefer(
        self, sources: Images, first: Images, second: Images, instructions: Sequence[str]
    ) -> list[Score]:
        check_edits([sources, first, second], instructions)
        sheets, questions = [], []  # two of each per pair of edits: in this order, swapped
        for source, a, b, instruction in zip(sources, first, second, instructions, strict=True):
            sheets += [_join_images([source, a, b]), _join_images([source, b, a])]
            wording = QUESTION.replace("{instruction}", instruction)
            prompt = f"{wording}\nA. {OPTIONS[0]}\nB. {OPTIONS[1]}\nAnswer with the letter alone."
            question = ChoiceQuestion(Prompt("", prompt), len(OPTIONS), question=wording, texts=OPTIONS)
            questions += [[question], [question]]
        replies = [row[0] for row in answer_each(self.model, sheets, questions, self._scorings)]
        orders = [replies[k : k + 2] for k in range(0, len(replies), 2)]  # per pair of edits
        return [_read_preference(straight, swapped) for straight, swapped in orders]


#: White gap between the images of a sheet, as a fraction of their height.
GAP = 0.06


def _join_images(images: Images) -> np.ndarray:
    """Draw images side by side on white, (H, W, 3) uint8, resized to the size of the first."""
    from PIL import Image

    height, width = images[0].shape[:2]
    step = width + max(1, round(GAP * height))  # pixels from one image to the next
    canvas = np.full((height, (len(images) - 1) * step + width, 3), 255, dtype=np.uint8)
    for k, image in enumerate(images):
        if image.shape != images[0].shape:
            image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))
        canvas[:, k * step : k * step + width] = image
    return canvas


def _read_preference(straight: Reply, swapped: Reply) -> Score:
    """Preference for the first edit, from the replies in both orders."""
    letters: list[str | None] = []  # straight and swapped; None: the answer has none
    differences: list[float] = []  # ln P(A) - ln P(B), straight and swapped
    for order, reply in (("first", straight), ("second", swapped)):
        if reply.error:
            return Score(None, f"the {order} order: {reply.error}")
        letters.append(reply.likeliest or (parse(reply.text, OPTIONS).letter if reply.text else None))
        a, b = (reply.logprobs or (None, None))[:2]
        if a is not None and b is not None:
            differences.append(a - b)
    detail: dict[str, Any] = {"letters": letters, "difference": None}
    if len(differences) == 2:
        difference = (differences[0] - differences[1]) / 2  # mean of ln P(first) - ln P(second)
        value = 0.5 if difference == 0 else float(difference > 0)
        return Score(value, f"ln P differs by {difference:.3g}", {**detail, "difference": difference})
    if None in letters:
        return Score(None, f"no letter in {[straight.text, swapped.text]!r}", detail)
    preferences = {"AB": 1.0, "BA": 0.0}  # letters straight and swapped; any others: no preference
    value = preferences.get(f"{letters[0]}{letters[1]}", 0.5)
    return Score(value, f"said {letters[0]}, then {letters[1]}", detail)


def load_pairwise(path_or_id: str, **options: Any) -> Pairwise:
    """Load a pairwise judge on any chat model (`metrics.load_choices`)."""
    return Pairwise(ChatChoices.load(path_or_id, **options))
