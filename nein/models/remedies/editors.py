"""Remedies for editors: another instruction, negative prompt or attention in place of the request (`--mend`).

They are told what a user would type and nothing else: the object's name, and that a sentence is negative, are
read from the sentence, by rule (`nein.wording.denials`) or by a language model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from nein import editors
from nein.engine.errors import UserError, chosen
from nein.loading.digests import json_digest
from nein.metrics.base import RecordStore
from nein.models import rewards
from nein.models.llm import client as llm
from nein.models.remedies import best_of
from nein.wording import denials
from nein.wording.families import removal

#: `rewrite:llm:MODEL` is the arm "rewrite" by a language model.
LLM = "rewrite:llm:"
AS_IT_IS = "the sentence denies nothing: sent as it is"
AFFIRMED = "the sentence denies a denial: the picture stays as it is"
#: Factor of the attention to what is absent: the far end of what Prompt-to-Prompt uses.
AWAY = -2.0
_PROMPT = (
    "A person tells a program what a picture should be like. The program understands only plain commands, "
    "and no negation. Say the command that brings the picture there.\n"
    '- Where the sentence says that something is absent, the command removes it: "Remove the X.", or '
    '"Remove the X and the Y." '
    "X is the thing in the person's words, without further words.\n"
    "- Where the sentence affirms that something is there, in however many negations, the command is empty.\n"
    "- Any other sentence is the command as it is.\n\n"
    "Sentence: {sentence}"
)


class Sent(NamedTuple):
    """What an editor is sent in place of a request; without one the picture stays as it is, or there is an
    `error`. `note` says what was done."""

    request: editors.EditRequest | None
    note: str = ""
    error: str | None = None


class Command(BaseModel):
    """The answer of a language model that rewrites: the command, "" where the picture stays as it is."""

    model_config = ConfigDict(extra="forbid")
    command: str


#: Name -> what changes in a request, by the absent objects, and the capability that the editor needs for it.
BY_RULE: dict[str, tuple[Callable[[Sequence[str]], dict[str, Any]], str]] = {
    "rewrite": (lambda absent: {"instruction": removal(" and the ".join(absent))}, ""),
    "negative-prompt": (lambda absent: {"negative_prompt": ", ".join(absent)}, "negative_prompt"),
    "negative-prompt-alone": (
        lambda absent: {"instruction": "", "negative_prompt": ", ".join(absent)}, "negative_prompt",
    ),
    # Prompt-to-Prompt, arXiv:2208.01626
    "attention": (lambda absent: {"weights": dict.fromkeys(absent, AWAY)}, "weights"),
}  # fmt: skip


@dataclass(frozen=True)
class ByRule:
    """A row of `BY_RULE`, by the objects that `nein.wording.denials` reads as absent."""

    name: str

    def facts(self) -> dict[str, Any]:
        """What decides the requests, and so belongs to the editor's fingerprint."""
        return {"arm": self.name, "reads": "nein.wording.denials"}

    def send(self, requests: Sequence[editors.EditRequest]) -> list[Sent]:
        sent = []
        for request, reading in zip(requests, denials.read([r.instruction for r in requests]), strict=True):
            if reading.absent:
                sent.append(_sent(request, **BY_RULE[self.name][0](reading.absent)))
            else:
                sent.append(Sent(None, AFFIRMED) if reading.doubled else Sent(request, AS_IT_IS))
        return sent


class ByLanguageModel:
    """ "rewrite" by a language model, whose answers are checked, remembered and counted."""

    def __init__(self, reference: str, cache: RecordStore | None, device: str) -> None:
        self._client = llm.load(llm.LlmOptions(model=reference), cache=cache, device=device)
        self.usage = self._client.usage

    def facts(self) -> dict[str, Any]:
        return {"arm": "rewrite", "prompt": _PROMPT, **self._client.describe()}

    def send(self, requests: Sequence[editors.EditRequest]) -> list[Sent]:
        asked = [llm.Request(_PROMPT.format(sentence=request.instruction)) for request in requests]
        sent = []
        for request, outcome in zip(requests, self._client.complete(asked, Command), strict=True):
            if outcome.value is None:
                sent.append(Sent(None, error=f"no rewriting: {outcome.failure}, {outcome.reason}"))
            else:
                command = outcome.value.command.strip()
                sent.append(_sent(request, instruction=command) if command else Sent(None, AFFIRMED))
        return sent


def _sent(request: editors.EditRequest, **changes: Any) -> Sent:
    told = "; ".join(f"{name} {value!r}" for name, value in changes.items())
    return Sent(dataclasses.replace(request, **changes), f"sent with {told}")


def check(arm: str, row: str) -> None:
    """Raises UserError or MetricError for a remedy that this editor cannot have; loads nothing."""
    if arm.startswith(best_of.PREFIX):
        return best_of.check(arm)
    if arm.startswith(LLM):
        return llm.check(arm.removeprefix(LLM))
    _, needs = BY_RULE[chosen("remedy", arm, [*BY_RULE, f"{LLM}MODEL", f"{best_of.PREFIX}N:JUDGE"])]
    if needs and not editors.can(row, needs):
        what = "weights of attention" if needs == "weights" else "negative prompt"
        raise UserError(
            f"--mend {arm} is not supported by editor '{row}', which takes no {what}; use --mend rewrite."
        )


def with_remedy(
    editor: editors.Editor,
    name: str,
    *,
    cache: RecordStore | None,
    device: str,
    dtype: str,
    removal: Callable[[], rewards.RewardJudge],
) -> editors.Editor:
    """`editor` with a remedy before it or, of `best-of`, behind it; "": as it is.

    cache    Where answers of a language model, or of a judge behind an endpoint, are kept.
    dtype, removal  Of the judge that chooses: see `nein.models.rewards.load`.
    """
    if not name:
        return editor
    if name.startswith(best_of.PREFIX):
        count, reference = best_of.parse(name)
        judge = rewards.load(reference, cache=cache, device=device, dtype=dtype, removal=removal)
        return best_of.Best(editor, judge, count, name)
    return WithRemedy(editor, load(name, cache=cache, device=device), name)


def load(name: str, *, cache: RecordStore | None, device: str) -> ByRule | ByLanguageModel:
    """The remedy of that name. cache: where a language model's answers are kept."""
    if name.startswith(LLM):
        return ByLanguageModel(name.removeprefix(LLM), cache, device)
    return ByRule(name)


class WithRemedy:
    """An `editors.Editor`: another one that is sent what an arm makes of each request. The note of a result
    says what that was."""

    def __init__(self, editor: editors.Editor, arm: ByRule | ByLanguageModel, name: str) -> None:
        self.name = f"{editor.name}+{name}"
        self._editor, self._arm = editor, arm
        self.paid, self.seeded = getattr(editor, "paid", False), getattr(editor, "seeded", True)

    @property
    def batch_size(self) -> int:
        return getattr(self._editor, "batch_size", 1)

    @batch_size.setter
    def batch_size(self, size: int) -> None:
        if hasattr(self._editor, "batch_size"):
            self._editor.batch_size = size

    def describe(self) -> dict[str, Any]:
        return {**self._editor.describe(), "mended": self._arm.facts()}

    @property
    def fingerprint(self) -> str:
        return json_digest({"editor": self._editor.fingerprint, "mended": self._arm.facts()})

    def usage(self) -> dict[str, Any]:
        """What endpoints behind the editor and the remedy have taken so far."""
        parts: list[dict[str, Any]] = [getattr(part, "usage", dict)() for part in (self._editor, self._arm)]
        return {**parts[0], **parts[1]}

    def stop(self) -> None:
        for part in (self._editor, self._arm):
            getattr(part, "stop", lambda: None)()

    def edit(self, requests: Sequence[editors.EditRequest]) -> list[editors.EditResult]:
        made = dict(self.as_made(requests))
        return [made[place] for place in range(len(requests))]

    def as_made(self, requests: Sequence[editors.EditRequest]) -> Iterator[tuple[int, editors.EditResult]]:
        """(place among the requests, result), as they come where the editor gives them so."""
        sent = self._arm.send(requests)
        for place, (request, one) in enumerate(zip(requests, sent, strict=True)):
            if one.request is None:
                image = None if one.error else request.image.copy()
                yield place, editors.EditResult(request.id, image, one.error, note=one.note)
        places = [place for place, one in enumerate(sent) if one.request is not None]
        asked = [one.request for one in sent if one.request is not None]
        edit = getattr(self._editor, "as_made", lambda some: enumerate(self._editor.edit(some)))
        for number, result in edit(asked) if asked else ():
            note = "; ".join(filter(None, (sent[places[number]].note, result.note)))
            yield places[number], dataclasses.replace(result, note=note)
