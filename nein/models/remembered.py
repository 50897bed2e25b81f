"""Questions to a model behind an endpoint, never asked twice: multiple choice, and those of a judge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from metrics.base import RecordStore
from metrics.choices.base import Asked, ChoiceModel, Reply, answer_each, check
from metrics.judges.base import Answer
from metrics.served.endpoint import NoAnswer
from nein.engine.images import pixel_hash
from nein.loading.digests import json_digest
from nein.models.questions import Questions


class Remembered:
    """A `metrics.choices.ChoiceModel` around another one, `answer_each` included: a question the model fails
    on has a reply with the error, and only that one.

        model = Remembered(choices.load(reference), AnswerCache(folder / "answers.sqlite"))
        replies = model.answer(pictures, asked, scorings)

    An endpoint's questions (`concurrent` above 0) are asked one by one, `concurrent` at a time whatever the
    number of threads that call:

    - What the cache has is not asked; what is asked is in the cache as soon as it is answered, so that a kill
      loses nothing. Failures are not kept. The model's fingerprint is part of the address: its name, and not
      the URL, for servers move.
    - Where `2 * concurrent + 4` questions in a row, over all calls and threads, stay without an answer, this
      call and every other raises UserError: nobody is there.
    - After `stop` every call that is waiting, and every later one, raises
      `concurrent.futures.CancelledError`; no request is sent again. To be called when the program ends early
      (Ctrl-C) and calls are made in threads that the interpreter would wait for.

    A local model's questions go to it in the batches they come in and are not kept one by one: the last bits
    of an answer depend on the batch. `stop` then does nothing.
    """

    def __init__(self, model: ChoiceModel, cache: RecordStore) -> None:
        self.model = model
        self.fingerprint, self.scorings, self.concurrent = model.fingerprint, model.scorings, model.concurrent
        limit = 2 * self.concurrent + 4
        self._questions = Questions(cache, self.fingerprint, at_once=self.concurrent, limit=limit)

    def describe(self) -> dict[str, Any]:
        return self.model.describe()

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
        open_ = {keys[i][k]: (images[i], asked[i][k]) for i, k in places}

        def work(key: str) -> Reply:
            return self._one(key, *open_[key], scorings)

        replies = dict(self._questions.each(work, list(open_)))
        return [[replies[key] for key in row] for row in keys]

    def usage(self) -> dict[str, Any]:
        """What the model's work has taken, where it says so."""
        return getattr(self.model, "usage", dict)()

    def stop(self) -> None:
        if self.concurrent:
            self._questions.stop()
            self.model.stop()  # type: ignore[attr-defined]  # models of several questions in flight have it

    def _one(self, key: str, image: np.ndarray, one: Asked, scorings: Sequence[str]) -> Reply:
        def ask() -> dict[str, Any]:
            reply = answer_each(self.model, [image], [[one]], scorings)[0][0]
            if reply.error:
                raise NoAnswer(reply.error, silent=reply.silent)
            return {"text": reply.text, "logprobs": reply.logprobs, "each": reply.each}

        try:
            answer = self._questions.answer(key, ask)
        except NoAnswer as error:
            return Reply(error=str(error), silent=error.silent)
        logprobs, each = (
            None if answer[name] is None else tuple(answer[name]) for name in ("logprobs", "each")
        )
        return Reply(answer["text"], logprobs, each)


class RememberedJudge:
    """A VQA judge behind an endpoint (`metrics.judges.endpoint.EndpointJudge`) around which the same holds as
    around the models of `Remembered`; one question without an answer raises NoAnswer for all of a call, and
    the others are remembered when they are asked again."""

    def __init__(self, judge: Any, cache: RecordStore) -> None:
        self.judge = judge
        self.fingerprint, self.template, self.concurrent = judge.fingerprint, judge.template, judge.concurrent
        self.describe, self.usage = judge.describe, judge.usage
        limit = 2 * self.concurrent + 4
        self._questions = Questions(cache, self.fingerprint, at_once=self.concurrent, limit=limit)

    def ask(self, images: Sequence[np.ndarray], questions: Sequence[Sequence[str]]) -> list[list[Answer]]:
        """See `metrics.judges.base`. Raises NoAnswer, and UserError when the endpoint is silent."""
        pictures = [pixel_hash(image) if row else "" for image, row in zip(images, questions, strict=True)]
        keys = [[json.dumps([picture, one]) for one in row]
                for picture, row in zip(pictures, questions, strict=True)]  # fmt: skip
        asked = {key: (image, one) for image, row, words in zip(images, keys, questions, strict=True)
                 for key, one in zip(row, words, strict=True)}  # fmt: skip

        def work(key: str) -> Answer | NoAnswer:
            image, question = asked[key]
            try:
                said = self._questions.answer(
                    key, lambda: asdict(self.judge.ask([image], [[question]])[0][0])
                )
            except NoAnswer as error:
                return error
            return Answer(**said)

        answers: dict[str, Answer] = {}
        failed: list[NoAnswer] = []
        for key, answer in self._questions.each(work, list(asked)):
            if isinstance(answer, NoAnswer):
                failed.append(answer)
            else:
                answers[key] = answer
        if failed:  # all the others are asked and kept by now
            raise failed[0]
        return [[answers[key] for key in row] for row in keys]

    def stop(self) -> None:
        self._questions.stop()
        self.judge.stop()


class RememberedSpeaker:
    """A `metrics.rewards.editscore.ServedSpeaker` around which the same holds as around the models of
    `Remembered`."""

    def __init__(self, speaker: Any, cache: RecordStore) -> None:
        self.speaker, self.usage = speaker, speaker.usage
        # As everywhere, where the server is does not count.
        space = json_digest({key: value for key, value in speaker.describe().items() if key != "reference"})
        limit = 2 * speaker.concurrent + 4
        self._questions = Questions(cache, space, at_once=speaker.concurrent, limit=limit)
        self.each = self._questions.each

    def describe(self) -> dict[str, Any]:
        return self.speaker.describe()

    def say(self, pictures: Sequence[np.ndarray], text: str, seed: int, temperature: float) -> str:
        """See `metrics.rewards.editscore.Speaker`. Raises NoAnswer, and UserError for a silent endpoint."""
        key = json.dumps([[pixel_hash(picture) for picture in pictures], text, seed, temperature])
        ask = lambda: {"text": self.speaker.say(pictures, text, seed, temperature)}  # noqa: E731
        return str(self._questions.answer(key, ask)["text"])

    def stop(self) -> None:
        self._questions.stop()
        self.speaker.stop()


def _keys(image: np.ndarray, row: Sequence[Asked], scorings: Sequence[str]) -> list[str]:
    """One per question: everything that decides the answer but the model."""
    picture = pixel_hash(image) if row else ""
    return [
        json.dumps(
            [
                picture,
                one.prompt.before,
                one.prompt.after,
                one.options,
                one.question,
                one.texts,
                sorted(scorings),
            ]
        )
        for one in row
    ]


def batched(loaded: Any) -> list[Any]:
    """The model behind wrappers that has a `batch_size`, if any has."""
    while loaded is not None and not hasattr(loaded, "batch_size"):
        loaded = getattr(loaded, "model", getattr(loaded, "_model", None))
    return [] if loaded is None else [loaded]
