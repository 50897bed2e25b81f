"""VLMEvalKit's second step: a language model is asked about answers in which the letter rule finds none,
three times at most; then one of the letters or none is drawn. That the paper did without (`--matcher exact`)
is our assumption."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar

from nein.benchmarks.negvqa.config import NegvqaConfig
from nein.benchmarks.negvqa.scores import ANSWERS, MATCHES
from nein.engine.blocks import Blocks, sample_seed
from nein.engine.folder import Folder, Row
from nein.engine.stages import Functions, Model, Stage, usage_of
from nein.metrics import choices
from nein.metrics.base import fingerprint
from nein.metrics.letters import LETTERS, parse, without_missing
from nein.models import references
from nein.models.cached import Services
from nein.models.llm import client as llm

ATTEMPTS = 3
MAX_TOKENS = 2048  # of the toolkit's client
READ = "no letter by the rule; the matcher reads one"
DRAWN = "the matcher named no option three times, and one was drawn as VLMEvalKit does"


class LetterReply(llm.Plain):
    """All that a language model says, whatever it is."""

    END: ClassVar[str] = "\0"
    text: str

    @classmethod
    def read(cls, text: str) -> LetterReply:
        return cls(text=text)


def stage(config: NegvqaConfig, folder: Folder, blocks: Blocks, device: str) -> Stage:
    """Rows for answers without a letter: id, variant, `said` by the matcher, `letter` or the `reason` why it
    found none, and `error` where it failed, for which it is asked again."""

    def load() -> Any:
        options = llm.LlmOptions(model=config.matching, max_tokens=MAX_TOKENS, dtype=config.dtype)
        services = Services.of(config, config.out_dir / "cache" / "answers.sqlite")
        return llm.load(options, services=services, device=device)

    model = Model(
        config.matcher, load,
        lambda client: {"matcher": (fingerprint(client.describe()), client.describe())},
        references.place(str(config.matching)), lambda client: usage_of({"matcher": client}),
    )  # fmt: skip
    return Functions(
        MATCHES, (MATCHES,), blocks, lambda number: folder.read(ANSWERS, number),
        lambda client, rows, missing: {MATCHES: matched(client, rows)}, model,
        lambda output, number, rows: not any(row["error"] for row in rows),
    )  # fmt: skip


def matched(client: Any, rows: Sequence[Row]) -> list[Row]:
    """See `stage`. `client`: a `nein.models.llm.client.Client`."""
    open_ = {(row["id"], row["variant"]): row for row in rows if _unread(row)}
    options = {key: without_missing(row["options"]) for key, row in open_.items()}
    done: dict[tuple[str, str], Row] = {}
    for attempt in range(ATTEMPTS):
        prompts = [choices.matching(row["question"], options[k], row["text"]) for k, row in open_.items()]
        requests = [llm.Request(prompt, seed=attempt) for prompt in prompts]
        for key, outcome in zip(list(open_), client.complete(requests, LetterReply), strict=True):
            if outcome.value is None:
                match: Row = {"error": f"the matcher gave no answer: {outcome.reason}"}
            else:
                letter = parse(outcome.value.text, options[key], "vlmevalkit")
                if letter.letter is None and not letter.declined:
                    continue
                reason = READ if letter.letter else "the matcher finds no option in the answer"
                match = {"said": outcome.value.text, "letter": letter.letter, "reason": reason}
            done[key] = {**_blank(key), **match}
            del open_[key]
    for key in open_:
        done[key] = {**_blank(key), "letter": draw(key, options[key]), "reason": DRAWN}
    return [done[key] for row in rows if (key := (row["id"], row["variant"])) in done]


def draw(key: tuple[str, str], options: Sequence[str | None]) -> str | None:
    """One of the letters, or None, which the toolkit calls Z, all equally likely; by the question's own
    seed."""
    rng = random.Random(sample_seed(0, f"{key[0]}/{key[1]}/{MATCHES}"))
    letters = [letter for letter, text in zip(LETTERS, options, strict=False) if text is not None]
    return rng.choice([*letters, None])


def _unread(row: Row) -> bool:
    if row["error"] or row["text"] is None or row.get("each") is not None:
        return False
    letter = parse(row["text"], without_missing(row["options"]), "vlmevalkit")
    return letter.letter is None and not letter.declined


def _blank(key: tuple[str, str]) -> Row:
    return {"id": key[0], "variant": key[1], "said": None, "letter": None, "reason": "", "error": ""}
