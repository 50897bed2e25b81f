"""What asks a chat, and where the chat comes from: a served model, or one of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nein.loading.references import is_served
from nein.metrics.base import Described
from nein.metrics.chat import Chat, Completion, Message, Sampling, endpoint


class ChatModel(Described):
    """Greedy answers of a chat, of at most `max_new_tokens` tokens. kind: what it is asked as."""

    kind = ""
    tokens = 10  # of an answer, where nothing else is said

    def __init__(self, chat: Chat, *, max_new_tokens: int = 0) -> None:
        self.chat, self.max_new_tokens = chat, max_new_tokens or self.tokens

    @classmethod
    def load(cls, path_or_id: str, *, max_new_tokens: int = 0, **how: Any) -> Any:
        return cls(open_chat(path_or_id, **how), max_new_tokens=max_new_tokens)

    @property
    def concurrent(self) -> int:
        return self.chat.concurrent

    def describe(self) -> dict[str, Any]:
        decoding = f"greedy, at most {self.max_new_tokens} tokens"
        return {**self.chat.describe(), "kind": self.kind, "decoding": decoding}

    def usage(self) -> dict[str, Any]:
        return self.chat.usage()

    def stop(self) -> None:
        self.chat.stop()


def open_chat(path_or_id: str, *, batch_size: int = 1, bare: Sequence[str] = (), **how: Any) -> Chat:
    """A model that talks about images. batch_size, bare: of a local one, see `chat.local`; how: device and
    dtype, and of a served one the options of `Endpoint`. Raises MetricError."""
    if is_served(path_or_id):
        return endpoint.connect(path_or_id, **how)
    from nein.metrics.chat.local import LocalChat, load_chat

    return LocalChat(*load_chat(path_or_id, bare=bare, **how), batch_size=batch_size)


def in_turns(rows: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    """(row, place in it) of every cell: the first of all rows, then the second, ..."""
    longest = max(map(len, rows), default=0)
    return [(i, k) for k in range(longest) for i, row in enumerate(rows) if k < len(row)]


def ask(chat: Chat, rows: Sequence[Sequence[Message]], sampling: Sampling) -> list[list[Completion]]:
    """Completions in the shape of `rows`."""
    cells = in_turns(rows)
    table = dict(zip(cells, chat.complete([rows[i][k] for i, k in cells], sampling), strict=True))
    return [[table[i, k] for k in range(len(row))] for i, row in enumerate(rows)]
