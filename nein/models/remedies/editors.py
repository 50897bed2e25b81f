"""Remedies for editors: another instruction, negative prompt or attention in place of the request (`--mend`).

They see only what a user would type: a rule (`nein.wording.denials`) or a rewriter reads the name
of the object, and whether the sentence is negative, from the sentence.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nein import editors
from nein.editors import EditRequest, EditResult
from nein.engine.folder import sample_seed
from nein.loading.digests import Json, json_digest
from nein.loading.errors import UserError, match_name
from nein.metrics.rewards import RewardJudge, rank_edits
from nein.models import judges, rewriters
from nein.models.cached import Services
from nein.wording import denials

#: Rules that guide attention away from the absent thing (`editors.attention.RULES`), alone or with a scale,
#: "nag:8" -> exclusive lower bound of the scale.
GUIDED = {"vsf": 0, "nag": 1}
#: Remedies by rule, the cheapest first -> the capability that they need.
BY_RULE = {
    "rewrite": "",
    "attention": "weights",
    "negative-prompt": "negative_prompt",
    "negative-prompt-alone": "negative_prompt",
    **dict.fromkeys(GUIDED, "guided"),
}
REWRITE = "rewrite"  # by the rule; `rewrite:REWRITER` by another one (`nein.models.rewriters`)
BEST_OF, MOST = "best-of:", 64  # `best-of:N:JUDGE` chooses among N edits, at most MOST
AWAY = -2.0  # factor of the attention to the absent thing: the extreme of Prompt-to-Prompt
AS_IT_IS = "the sentence denies nothing: sent as it is"
AFFIRMED = "the sentence denies a denial: the picture stays as it is"
#: A request for the editor, or already its result; and a note.
Sent = tuple[EditRequest | EditResult, str]


def check(arm: str, row: str) -> None:
    """Raises UserError or MetricError for a remedy that this editor does not support; loads nothing."""
    if arm.startswith(BEST_OF):
        return judges.check_reward(parse_best_of(arm)[1])
    kind, colon, scale = arm.partition(":")
    if kind == REWRITE:
        return rewriters.check(scale) if colon else None
    if kind in GUIDED and colon:
        if not re.fullmatch(r"\d{1,4}(\.\d+)?", scale) or float(scale) <= GUIDED[kind]:
            raise UserError(
                f"'{arm}' is not a remedy; expected {kind}, or {kind}:SCALE with a scale above "
                f"{GUIDED[kind]}."
            )
        arm = kind
    forms = [*BY_RULE, *(f"{REWRITE}:{form}" for form in rewriters.FORMS[1:]), f"{BEST_OF}N:JUDGE"]
    needs = BY_RULE[match_name("remedy", arm, forms)]
    if needs and not editors.supports(row, needs):
        raise UserError(
            f"--mend {arm} needs an editor that takes '{needs}', which '{row}' does not; use --mend rewrite."
        )


def parse_best_of(arm: str) -> tuple[int, str]:
    """(candidates, judge) of "best-of:4:removal". Raises UserError for another form."""
    count, _, judge = arm.removeprefix(BEST_OF).partition(":")
    if not (count.isascii() and count.isdigit() and 2 <= int(count) <= MOST) or not judge:
        raise UserError(
            f"'{arm}' is not a remedy; expected {BEST_OF}N:JUDGE, N from 2 to {MOST} and JUDGE one of "
            f"{', '.join(judges.FORMS)}."
        )
    return int(count), judge


def add_remedy(
    editor: editors.Editor, name: str, *, services: Services, device: str, **judge: Any
) -> editors.Editor:
    """`editor` with a remedy before it or, for `best-of`, after it.

    services  Of a rewriter's model or a judge behind an endpoint.
    judge     Settings of the judge that chooses: see `nein.models.judges.load_reward`.
    """
    if name.startswith(BEST_OF):
        count, reference = parse_best_of(name)
        chooser = judges.load_reward(reference, services=services, device=device, **judge)
        return Best(editor, chooser, count, name)
    if name.partition(":")[0] == REWRITE:
        reference, dtype = name.partition(":")[2] or "rule", judge.get("dtype", "float32")
        rewriter = rewriters.load(reference, services=services, device=device, dtype=dtype)
        return Rewrite(editor, name, {"arm": REWRITE, **rewriter.describe()}, rewriter)
    return ByRule(editor, name)


class WithRemedy(editors.Editor):
    """An editor with a remedy: `send` makes its requests, and notes describe them. helper: a further model
    that it asks; rewrites: results have the instruction that was sent."""

    rewrites = False

    def __init__(self, editor: Any, name: str, facts: Json, helper: Any = None) -> None:
        self.name = f"{editor.name}+{name}"
        self.seeded = getattr(editor, "seeded", True)
        self._editor, self._facts, self._helper = editor, facts, helper

    def describe(self) -> Json:
        return {**self._editor.describe(), "mended": self._facts}

    @property
    def fingerprint(self) -> str:
        return json_digest({"editor": self._editor.fingerprint, "mended": self._facts})

    def usage(self) -> Json:
        used: list[Json] = [getattr(model, "usage", dict)() for model in (self._editor, self._helper)]
        return add_usage(*used)

    def stop(self) -> None:
        for model in (self._editor, self._helper):
            if hasattr(model, "stop"):
                model.stop()

    def send(self, requests: Sequence[EditRequest]) -> list[Sent]:
        raise NotImplementedError

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        sent = self.send(requests)
        forwarded = [item for item, _ in sent if isinstance(item, EditRequest)]
        edited = iter(self._editor.edit(forwarded) if forwarded else ())
        results = []
        for item, note in sent:
            if isinstance(item, EditRequest):
                result = _add_note(next(edited), note)
                if self.rewrites and result.rewritten is None:  # else the editor rewrote it once more
                    result = dataclasses.replace(result, rewritten=item.instruction)
            else:
                result = _add_note(item, note)
            results.append(result)
        return results


def _add_note(result: EditResult, note: str) -> EditResult:
    return dataclasses.replace(result, note="; ".join(filter(None, (note, result.note))))


def _change(request: EditRequest, **changes: Any) -> Sent:
    told = "; ".join(f"{name} {value!r}" for name, value in changes.items())
    return dataclasses.replace(request, **changes), f"sent with {told}"


def _keep_image(request: EditRequest, **facts: Any) -> Sent:
    return EditResult(request.id, request.image.copy(), **facts), AFFIRMED


class ByRule(WithRemedy):
    """A remedy of `BY_RULE`, for the objects that `nein.wording.denials` reads as absent."""

    def __init__(self, editor: Any, name: str) -> None:
        super().__init__(editor, name, {"arm": name, "reads": "nein.wording.denials"})
        self._arm = name
        if name.partition(":")[0] in GUIDED:
            from nein.editors.attention import parse_rule

            self._facts["rule"] = dataclasses.asdict(parse_rule(name))

    def send(self, requests: Sequence[EditRequest]) -> list[Sent]:
        readings = denials.read([request.instruction for request in requests])
        sent: list[Sent] = []
        for request, reading in zip(requests, readings, strict=True):
            if reading.absent:
                sent.append(_change(request, **self._changes(reading.absent)))
            else:
                sent.append(_keep_image(request) if reading.doubled else (request, AS_IT_IS))
        return sent

    def _changes(self, absent: Sequence[str]) -> Json:
        if self._arm == "attention":  # Prompt-to-Prompt, arXiv:2208.01626
            return {"weights": dict.fromkeys(absent, AWAY)}
        changes: Json = {"instruction": ""} if self._arm == "negative-prompt-alone" else {}
        changes["negative_prompt"] = ", ".join(absent)
        return changes if self._arm.startswith("negative-prompt") else {**changes, "guided": self._arm}


class Rewrite(WithRemedy):
    """ "rewrite": the editor is told the text of a rewriter."""

    rewrites = True

    def send(self, requests: Sequence[EditRequest]) -> list[Sent]:
        instructions = [request.instruction for request in requests]
        rewordings = self._helper.rewrite(instructions, [request.image for request in requests])
        sent: list[Sent] = []
        for request, (text, error, again) in zip(requests, rewordings, strict=True):
            if text is None:
                sent.append((EditResult(request.id, None, f"no rewriting: {error}", transient=again), ""))
            elif text == request.instruction:
                sent.append((request, AS_IT_IS))
            elif text:
                sent.append(_change(request, instruction=text))
            else:
                sent.append(_keep_image(request, rewritten=""))
        return sent


class Best(WithRemedy):
    """Edits every request `count` times; a judge chooses one of the edits.

    Candidate 1 is the edit without the remedy. The candidates of a sample are judged together, without other
    samples, so that batches and order do not change a choice. The first of equals is taken. A candidate that
    cannot be judged is counted; if none can, the sample has no edit. The note has all scores.
    """

    def __init__(self, editor: editors.Editor, judge: RewardJudge, count: int, arm: str) -> None:
        facts = {"arm": "best-of", "candidates": count, "judge": judge.fingerprint}
        super().__init__(editor, arm, facts, judge)
        self._count, self._arm = count, arm

    def describe(self) -> Json:
        return {**self._editor.describe(), "mended": {**self._helper.describe(), **self._facts}}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        candidates = []
        for k in range(self._count):
            seeded = [dataclasses.replace(request, seed=seed_of(request, k)) for request in requests]
            candidates.append(self._editor.edit(seeded))
        return [self._choose(*edits) for edits in zip(requests, *candidates, strict=True)]

    def _choose(self, request: EditRequest, *results: EditResult) -> EditResult:
        images = {k: result.image for k, result in enumerate(results) if result.image is not None}
        if not images:
            return results[0]
        scores = rank_edits(self._helper, request.image, list(images.values()), request.instruction)
        values = {k: score.value for k, score in zip(images, scores, strict=True) if score.value is not None}
        if not values:
            why = f"none of {len(scores)} edits could be judged: {scores[0].reason}"
            return EditResult(request.id, None, why)
        best = max(values, key=lambda k: values[k])  # the first of equals
        listed = ", ".join(f"{values[k]:.4g}" if k in values else "unscored" for k in range(len(results)))
        return _add_note(results[best], f"{self._arm}: candidate {best + 1} of {len(results)} ({listed})")


def add_usage(first: Mapping[str, Any], second: Mapping[str, Any]) -> Json:
    """The usage of two models: numbers of one name are summed, and mappings likewise."""
    total = {**first, **second}
    for name in first.keys() & second.keys():
        a, b = first[name], second[name]
        total[name] = (
            add_usage(a, b) if isinstance(a, Mapping) else a + b if isinstance(a, int | float) else b
        )
    return total


def seed_of(request: EditRequest, candidate: int) -> int:
    """The sample's seed for candidate 0; for others a seed from it and the sample's id."""
    return request.seed if candidate == 0 else sample_seed(int(request.seed), request.id, candidate)
