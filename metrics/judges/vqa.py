"""A chat model as a VQA judge: one user turn, image and question, answered yes or no."""

from __future__ import annotations

from typing import Any

from nein.loading.references import is_served
from nein.metrics.base import Described, Images, Texts, without_thoughts
from nein.metrics.chat import YES_NO, Chat, Completion, Message, Sampling, ask
from nein.metrics.chat.endpoint import connect
from nein.metrics.judges.base import Answer, check_batch


class ChatJudge(Described):
    """Greedy answers of at most `max_new_tokens` tokens. P(yes) and P(no) are of the first token, of a served
    model lower bounds; a question that stays without an answer raises for the whole call."""

    template = "question"

    def __init__(self, chat: Chat, *, max_new_tokens: int = 10) -> None:
        self.chat, self.max_new_tokens = chat, max_new_tokens

    @property
    def concurrent(self) -> int:
        return self.chat.concurrent

    def describe(self) -> dict[str, Any]:
        decoding = f"greedy, at most {self.max_new_tokens} tokens"
        return {**self.chat.describe(), "kind": "vqa", "decoding": decoding}

    def usage(self) -> dict[str, Any]:
        return self.chat.usage()

    def stop(self) -> None:
        self.chat.stop()

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """`questions[i]`: plain questions about `images[i]`, (H, W, 3) uint8. Raises NoAnswer, or what the
        model raised."""
        check_batch(images, questions, "questions")
        rows = [
            [Message((image, text)) for text in row] for image, row in zip(images, questions, strict=True)
        ]
        sampling = Sampling(self.max_new_tokens, top=YES_NO)
        found = ask(self.chat, rows, sampling)
        return [[_answer(completion) for completion in row] for row in found]


def _answer(said: Completion) -> Answer:
    if said.error is not None:
        raise said.error
    if (text := without_thoughts(said.text)) is None:
        raise ValueError("the limit of tokens ended within the model's thoughts")
    likely = said.probabilities or {}
    return Answer(text.strip(), said.tokens or 0, likely.get("yes"), likely.get("no"), said.version)


def load(path_or_id: str, *, max_new_tokens: int = 10, **how: Any) -> ChatJudge:
    if is_served(path_or_id):
        return ChatJudge(connect(path_or_id, **how), max_new_tokens=max_new_tokens)
    from nein.metrics.chat.local import LocalChat, load_chat

    return ChatJudge(LocalChat(*load_chat(path_or_id, **how)), max_new_tokens=max_new_tokens)
