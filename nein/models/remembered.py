"""Questions to a model behind an endpoint, never asked twice: multiple choice, and those of a judge."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from nein.engine.images import pixel_hash
from nein.loading.digests import json_digest
from nein.metrics.base import RecordStore
from nein.metrics.choices.base import Asked, ChoiceModel, Reply, answer_each, check
from nein.metrics.judges.base import Answer
from nein.metrics.served.endpoint import NoAnswer
from nein.models.questions import Questions


class _Kept:
    """What holds for every model here whose questions are asked one by one:

    - What the cache has is not asked; what is asked is in the cache as soon as it is answered, so that a kill
      loses nothing. Failures are not kept. The model's fingerprint is part of the address: its name, and not
      the URL, for servers move.
    - `concurrent` questions are in flight at a time, whatever the number of threads that call.
    - Where `2 * concurrent + 4` questions in a row, over all calls and threads, stay without an answer, this
      call and every other raises UserError: nobody is there.
    - After `stop` every call that is waiting, and every later one, raises
      `concurrent.futures.CancelledError`; no request is sent again. To be called when the program ends early
      (Ctrl-C) and calls are made in threads that the interpreter would wait for.
    """

    def __init__(self, model: Any, cache: RecordStore, space: str) -> None:
        self.model, self.concurrent = model, model.concurrent
        limit = 2 * model.concurrent + 4
        self._questions = Questions(cache, space, at_once=model.concurrent, limit=limit)

    def describe(self) -> dict[str, Any]:
        return self.model.describe()

    def usage(self) -> dict[str, Any]:
        """What the model's work has taken, where it says so."""
        return getattr(self.model, "usage", dict)()

    def stop(self) -> None:
        if self.concurrent:
            self._questions.stop()
            self.model.stop()

    def _all(self, asked: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, dict[str, Any] | NoAnswer]:
        """Key -> the kept answer, or what asking gives."""

        def work(key: str) -> dict[str, Any] | NoAnswer:
            try:
                return self._questions.answer(key, asked[key])
            except NoAnswer as error:
                return error

        return dict(self._questions.each(work, list(asked)))


class Remembered(_Kept):
    """A `metrics.choices.ChoiceModel` around another one, `answer_each` included: a question the model fails
    on has a reply with the error, and only that one.

        model = Remembered(choices.load(reference), AnswerCache(folder / "answers.sqlite"))
        replies = model.answer(pictures, asked, scorings)

    A local model's questions (`concurrent` 0) go to it in the batches they come in and are not kept one by
    one: the last bits of an answer depend on the batch.
    """

    def __init__(self, model: ChoiceModel, cache: RecordStore) -> None:
        super().__init__(model, cache, model.fingerprint)
        self.fingerprint, self.scorings = model.fingerprint, model.scorings

    def answer(
        self, images: Sequence[np.ndarray], asked: Sequence[Sequence[Asked]], scorings: Sequence[str]
    ) -> list[list[Reply]]:
        """See `metrics.choices.base.ChoiceModel`. Raises UserError when the endpoint is silent."""
        if not self.concurrent:
            return answer_each(self.model, images, asked, scorings)
        check(images, asked)
        keys = [_keys(image, row, scorings) for image, row in zip(images, asked, strict=True)]
        longest = max(map(len, asked), default=0)  # the first questions of all pictures go first
        places = [(i, k) for k in range(longest) for i, row in enumerate(asked) if k < len(row)]
        said = self._all(
            {keys[i][k]: functools.partial(self._ask, images[i], asked[i][k], scorings) for i, k in places}
        )
        return [[_reply(said[key]) for key in row] for row in keys]

    def _ask(self, image: np.ndarray, one: Asked, scorings: Sequence[str]) -> dict[str, Any]:
        [[reply]] = answer_each(self.model, [image], [[one]], scorings)
        if reply.error:
            raise NoAnswer(reply.error, silent=reply.silent)
        return {"text": reply.text, "logprobs": reply.logprobs, "each": reply.each}


def _reply(said: dict[str, Any] | NoAnswer) -> Reply:
    if isinstance(said, NoAnswer):
        return Reply(error=str(said), silent=said.silent)
    logprobs, each = (None if said[name] is None else tuple(said[name]) for name in ("logprobs", "each"))
    return Reply(said["text"], logprobs, each)


class RememberedJudge(_Kept):
    """A VQA judge behind an endpoint (`metrics.judges.endpoint.EndpointJudge`); one question without an
    answer raises NoAnswer for all of a call, and the others are remembered when they are asked again."""

    def __init__(self, judge: Any, cache: RecordStore) -> None:
        super().__init__(judge, cache, judge.fingerprint)
        self.fingerprint, self.template = judge.fingerprint, judge.template

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """See `metrics.judges.base`. Raises NoAnswer, and UserError when the endpoint is silent."""
        pictures = [pixel_hash(image) if row else "" for image, row in zip(images, questions, strict=True)]
        keys = [
            [json.dumps([picture, one]) for one in row]
            for picture, row in zip(pictures, questions, strict=True)
        ]
        said = self._all(
            {
                key: functools.partial(self._ask, image, one)
                for image, row, words in zip(images, keys, questions, strict=True)
                for key, one in zip(row, words, strict=True)
            }
        )
        for answer in said.values():
            if isinstance(answer, NoAnswer):  # all the others are asked and kept by now
                raise answer
        return [[Answer(**said[key]) for key in row] for row in keys]  # type: ignore[arg-type]

    def _ask(self, image: np.ndarray, question: str) -> dict[str, Any]:
        return asdict(self.model.ask([image], [[question]])[0][0])


class RememberedSpeaker(_Kept):
    """A `metrics.rewards.editscore.ServedSpeaker`."""

    def __init__(self, speaker: Any, cache: RecordStore) -> None:
        # As everywhere, where the server is does not count.
        facts = {key: value for key, value in speaker.describe().items() if key != "reference"}
        super().__init__(speaker, cache, json_digest(facts))
        self.each = self._questions.each

    def say(self, pictures: Sequence[np.ndarray], text: str, seed: int, temperature: float) -> str:
        """See `metrics.rewards.editscore.Speaker`. Raises NoAnswer, and UserError for a silent endpoint."""
        key = json.dumps([[pixel_hash(picture) for picture in pictures], text, seed, temperature])
        ask = lambda: {"text": self.model.say(pictures, text, seed, temperature)}  # noqa: E731
        return str(self._questions.answer(key, ask)["text"])


def _keys(image: np.ndarray, row: Sequence[Asked], scorings: Sequence[str]) -> list[str]:
    """One per question: everything that decides the answer but the model."""
    picture, ways = pixel_hash(image) if row else "", sorted(scorings)
    asked = ((one.prompt.before, one.prompt.after, one.options, one.question, one.texts) for one in row)
    return [json.dumps([picture, *words, ways]) for words in asked]


def batched(loaded: Any) -> list[Any]:
    """The model behind wrappers that has a `batch_size`, if any has."""
    while loaded is not None and not hasattr(loaded, "batch_size"):
        loaded = getattr(loaded, "model", getattr(loaded, "_model", None))
    return [] if loaded is None else [loaded]
