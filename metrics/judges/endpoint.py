"""Models that are served (`metrics.backends`) as a VQA judge, and asked multiple-choice questions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from nein.loading.service import NoAnswer
from nein.metrics.backends import connect
from nein.metrics.backends.endpoint import Completion, Endpoint, Message
from nein.metrics.base import Described, Images, Texts, check_images
from nein.metrics.choices import ChoiceQuestion, Reply
from nein.metrics.judges.base import Answer, check_batch
from nein.metrics.letters import LETTERS, SCORINGS


class ServedModel(Described):
    """A chat model that is asked about pictures, at temperature 0, with at most `max_new_tokens` tokens.

    The fingerprint holds what `endpoint.facts` knows, not the address, for servers move.
    """

    kind: ClassVar[str]
    max_new_tokens = 10
    #: What else decides an answer, for `describe`.
    facts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, endpoint: Endpoint, *, max_new_tokens: int | None = None) -> None:
        self.endpoint = endpoint
        self.max_new_tokens = max_new_tokens or self.max_new_tokens
        self.concurrent = endpoint.concurrency
        self.stop, self.usage = endpoint.stop, endpoint.usage

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "class": type(self).__name__,
            "reference": self.endpoint.address,
            **self.endpoint.facts(),
            **self.facts,
            "decoding": f"temperature 0, at most {self.max_new_tokens} tokens",
        }


class EndpointJudge(ServedModel):
    """Yes or no.

    P(yes) and P(no) come from the log-probabilities of the first token behind any thoughts, where the server
    gives them (at most 20 alternatives, so they are lower bounds), else they are None. A question that stays
    without an answer raises NoAnswer; its sample is unscored with that reason.
    """

    kind, template = "vqa", "question"
    facts: ClassVar[Mapping[str, str]] = {"template": "one user turn: picture, question"}

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """`questions[i]` are plain questions about `images[i]`. Raises NoAnswer."""
        check_batch(images, questions, "questions")
        messages = [[Message(question) for question in row] for row in questions]
        completions = self.endpoint.ask(images, messages, max_tokens=self.max_new_tokens)
        return [[_answer(completion.answered()) for completion in row] for row in completions]


def _answer(said: Completion) -> Answer:
    p_yes = p_no = None
    if said.first:
        likely = [(token.strip().lower(), math.exp(value)) for token, value in said.first]
        p_yes, p_no = (min(1.0, sum(p for token, p in likely if token == word)) for word in ("yes", "no"))
    tokens = len(said.text.split()) if said.tokens is None else said.tokens
    return Answer(said.text.strip(), tokens, p_yes, p_no, said.version)


def load(path_or_id: str, **options: Any) -> EndpointJudge:
    return EndpointJudge(connect(path_or_id, **options))


class EndpointChoices(ServedModel):
    """Letters of options. Log-probabilities are those among the 20 alternatives of the first token; where a
    server gives none, every reply says so. A question without an answer is a reply with the error."""

    kind, scorings, max_new_tokens = "choice", SCORINGS, 16

    def answer(
        self, images: Images, asked: Sequence[Sequence[ChoiceQuestion]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        check_images(images, asked, "questions")
        completions = self.endpoint.ask(
            images,
            [[Message(question.prompt.after, question.prompt.before) for question in row] for row in asked],
            max_tokens=self.max_new_tokens if "generated" in scorings else 1,
            likeliest="logprob" in scorings,
            failed=lambda error: error,
        )
        return [
            [_reply(answer, question, scorings) for answer, question in zip(answers, row, strict=True)]
            for answers, row in zip(completions, asked, strict=True)
        ]


def _reply(said: Completion | NoAnswer, one: ChoiceQuestion, scorings: Sequence[str]) -> Reply:
    try:
        if isinstance(said, NoAnswer):
            raise said
        logprobs = _letters(said.first, one.options) if "logprob" in scorings else None
        text = said.answered().text.strip() if "generated" in scorings else None
    except NoAnswer as error:
        return Reply(error=str(error), silent=error.silent)
    return Reply(text, logprobs, version=said.version)


def _letters(first: Sequence[tuple[str, float]], options: int) -> tuple[float | None, ...] | None:
    """Log-probability per letter from the alternatives of the first token; None when there are none."""
    total = dict.fromkeys(LETTERS[:options], 0.0)
    for token, logprob in first:
        if token.strip() in total:
            total[token.strip()] += math.exp(logprob)
    return tuple(math.log(p) if p > 0 else None for p in total.values()) if first else None


def load_choices(path_or_id: str, *, max_new_tokens: int = 16, **options: Any) -> EndpointChoices:
    options.pop("batch_size", None)  # of models that are loaded here
    return EndpointChoices(connect(path_or_id, **options), max_new_tokens=max_new_tokens)
