"""Models that ask a chat about images: their base class `ChatModel`, and the VQA judge `ChatJudge`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from nein.loading.digests import Json
from nein.loading.references import is_served
from nein.metrics.base import Described, Images, Texts
from nein.metrics.chat import YES_NO, Chat, Message, Sampling, endpoint, strip_thoughts
from nein.metrics.judges.base import Answer, check_batch


def open_chat(path_or_id: str, *, batch_size: int = 1, bare: Sequence[str] = (), **options: Any) -> Chat:
    """Open a served or local image-text model. batch_size, bare: for a local one (`chat.local.load_chat`).
    options: `device`, `dtype`, and those of `Endpoint` for a served one. Raises MetricError."""
    if is_served(path_or_id):
        return endpoint.connect(path_or_id, **options)
    from nein.metrics.chat.local import LocalChat, load_chat

    model, processor, source = load_chat(path_or_id, bare=bare, **options)
    return LocalChat(model, processor, source, batch_size=batch_size)


class ChatModel(Described):
    """Base of models that ask a chat for greedy answers of at most `max_new_tokens` tokens."""

    kind = ""  # in `describe()`; like the next two, set by subclasses
    default_tokens = 10  # of `max_new_tokens`
    defaults: ClassVar[dict[str, Any]] = {}  # options of `open_chat`, unless given

    def __init__(self, chat: Chat, *, max_new_tokens: int = 0) -> None:  # 0: the default
        self.chat, self.max_new_tokens = chat, max_new_tokens or self.default_tokens
        self.concurrent, self.usage, self.stop = chat.concurrent, chat.usage, chat.stop

    @classmethod
    def load(cls, path_or_id: str, *, max_new_tokens: int = 0, **options: Any) -> Any:
        return cls(open_chat(path_or_id, **(cls.defaults | options)), max_new_tokens=max_new_tokens)

    def describe(self) -> Json:
        decoding = f"greedy, at most {self.max_new_tokens} tokens"
        return {**self.chat.describe(), "kind": self.kind, "decoding": decoding}


def list_cells(rows: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    """List (row, column) of every cell, column by column: the first questions of all images come first."""
    longest = max(map(len, rows), default=0)
    return [(i, k) for k in range(longest) for i, row in enumerate(rows) if k < len(row)]


class ChatJudge(ChatModel):
    """Judge "vqa" on a chat model. P(yes) and P(no) are those of the first token; for a served model they are
    lower bounds, from its 20 likeliest tokens. One unanswered question fails the whole call."""

    kind = "vqa"
    template = "question"  # a key of `TEMPLATES`: the bare question

    def ask(self, images: Images, questions: Texts) -> list[list[Answer]]:
        """Answer `questions[i]` about `images[i]`, (H, W, 3) uint8. Raises the model's error."""
        check_batch(images, questions, "questions")
        cells = list_cells(questions)
        messages = [Message((images[i], questions[i][k])) for i, k in cells]
        replies = self.chat.complete(messages, Sampling(self.max_new_tokens, top=YES_NO))
        answers: dict[tuple[int, int], Answer] = {}
        for cell, reply in zip(cells, replies, strict=True):
            if reply.error is not None:
                raise reply.error
            text = strip_thoughts(reply.text)
            if text is None:
                raise ValueError("the token limit ended within the model's thoughts")
            p = reply.probabilities or {}  # "yes" and "no" -> probability; {}: not available
            count = reply.tokens or 0
            answers[cell] = Answer(text.strip(), count, p.get("yes"), p.get("no"), version=reply.version)
        return [[answers[i, k] for k in range(len(row))] for i, row in enumerate(questions)]
