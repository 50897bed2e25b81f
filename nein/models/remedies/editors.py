"""Wraps editors in remedies (`--mend`), which change a request's instruction, negative prompt or attention,
or choose the best of several edits.

Remedies see only what a user would type: a rule (`nein.wording.denials`) or a rewriter finds in the sentence
what it denies. Parts: names of remedies; wrappers of editors.
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

# --- names of remedies -----------------------------------------------------------------------------------

#: Rule of attention guidance (`editors.attention.RULES`) -> exclusive lower bound of its scale: "nag:8".
GUIDED = {"vsf": 0, "nag": 1}
#: Remedies of `ByRule`, the cheapest first -> the feature of the editor that they need (`editors.supports`).
BY_RULE = {
    "rewrite": "",
    "attention": "weights",
    "negative-prompt": "negative_prompt",
    "negative-prompt-alone": "negative_prompt",
    "vsf": "guided",
    "nag": "guided",
}
REWRITE = "rewrite"  # by the rule; `rewrite:REWRITER` by another one (`nein.models.rewriters`)
BEST_OF = "best-of:"  # `best-of:N:JUDGE` chooses among N edits
MAX_CANDIDATES = 64


def check(remedy: str, row: str) -> None:
    """Raises UserError or MetricError for a remedy that the editor `row` does not support. Loads nothing."""
    name, colon, argument = remedy.partition(":")
    if remedy.startswith(BEST_OF):
        judges.check_reward(parse_best_of(remedy)[1])
        return
    if name == REWRITE:
        if colon:
            rewriters.check(argument)
        return
    if name in GUIDED and colon:
        if not re.fullmatch(r"\d{1,4}(\.\d+)?", argument) or float(argument) <= GUIDED[name]:
            scales = f"{name}:SCALE with a scale above {GUIDED[name]}"
            raise UserError(f"'{remedy}' is not a remedy; expected {name}, or {scales}.")
        remedy = name
    rewrite_forms = [f"{REWRITE}:{form}" for form in rewriters.FORMS[1:]]  # the first is the rule
    forms = [*BY_RULE, *rewrite_forms, f"{BEST_OF}N:JUDGE"]
    feature = BY_RULE[match_name("remedy", remedy, forms)]
    if feature and not editors.supports(row, feature):
        raise UserError(
            f"--mend {remedy} needs an editor that takes '{feature}', which '{row}' does not; "
            "use --mend rewrite."
        )


def parse_best_of(remedy: str) -> tuple[int, str]:
    """(candidates, judge) of "best-of:4:removal". Raises UserError for another form."""
    count, _, judge = remedy.removeprefix(BEST_OF).partition(":")
    if not (count.isascii() and count.isdigit() and 2 <= int(count) <= MAX_CANDIDATES) or not judge:
        form = f"{BEST_OF}N:JUDGE, N from 2 to {MAX_CANDIDATES} and JUDGE one of {', '.join(judges.FORMS)}"
        raise UserError(f"'{remedy}' is not a remedy; expected {form}.")
    return int(count), judge


def add_remedy(
    editor: editors.Editor, remedy: str, *, services: Services, device: str, **judge_options: Any
) -> editors.Editor:
    """`editor` with a remedy. services: for the model of a rewriter, or a judge behind an endpoint.
    judge_options: of the judge that chooses (`nein.models.judges.load_reward`)."""
    if remedy.startswith(BEST_OF):
        count, reference = parse_best_of(remedy)
        judge = judges.load_reward(reference, services=services, device=device, **judge_options)
        return BestOf(editor, judge, count, remedy)
    kind, _, reference = remedy.partition(":")
    if kind == REWRITE:
        dtype = judge_options.get("dtype", "float32")
        rewriter = rewriters.load(reference or "rule", services=services, device=device, dtype=dtype)
        return Rewrite(editor, remedy, {"arm": REWRITE, **rewriter.describe()}, rewriter)
    return ByRule(editor, remedy)


# --- wrappers of editors ---------------------------------------------------------------------------------

#: Notes of requests that a remedy leaves alone: sent unchanged, or answered with a copy of the image.
AS_IT_IS = "the sentence denies nothing: sent as it is"
AFFIRMED = "the sentence denies a denial: the picture stays as it is"
AWAY = -2.0  # factor of the attention to the absent thing: the extreme of Prompt-to-Prompt
#: A request to send to the editor, or a result that is made without it; and a note.
Prepared = tuple[EditRequest | EditResult, str]


class WithRemedy(editors.Editor):
    """An editor with a remedy: subclasses change its requests. helper: a further model to ask, or None."""

    rewrites = False  # whether results note the instruction that was sent

    def __init__(self, editor: Any, remedy: str, facts: Json, helper: Any = None) -> None:
        self.name = f"{editor.name}+{remedy}"
        self.seeded = getattr(editor, "seeded", True)
        self._editor, self._facts, self._helper = editor, facts, helper

    def describe(self) -> Json:
        return {**self._editor.describe(), "mended": self._facts}

    @property
    def fingerprint(self) -> str:
        return json_digest({"editor": self._editor.fingerprint, "mended": self._facts})

    def usage(self) -> Json:
        total: Json = {}
        for model in (self._editor, self._helper):
            if hasattr(model, "usage"):
                total = add_usage(total, model.usage())
        return total

    def stop(self) -> None:
        for model in (self._editor, self._helper):
            if hasattr(model, "stop"):
                model.stop()

    def prepare(self, requests: Sequence[EditRequest]) -> list[Prepared]:
        """What to send for each request, in order."""
        raise NotImplementedError

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        prepared = self.prepare(requests)
        sent = [item for item, _ in prepared if isinstance(item, EditRequest)]
        edited = iter(self._editor.edit(sent) if sent else ())  # results of `sent`, in order
        results = []
        for item, note in prepared:
            if isinstance(item, EditResult):
                results.append(_add_note(item, note))
                continue
            result = _add_note(next(edited), note)
            if self.rewrites and result.rewritten is None:  # else the editor rewrote it once more
                result = dataclasses.replace(result, rewritten=item.instruction)
            results.append(result)
        return results


def _add_note(result: EditResult, note: str) -> EditResult:
    notes = "; ".join(text for text in (note, result.note) if text)
    return dataclasses.replace(result, note=notes)


def _change(request: EditRequest, **changes: Any) -> Prepared:
    listed = "; ".join(f"{name} {value!r}" for name, value in changes.items())
    return dataclasses.replace(request, **changes), f"sent with {listed}"


def _keep_image(request: EditRequest, rewritten: str | None = None) -> Prepared:
    return EditResult(request.id, request.image.copy(), rewritten=rewritten), AFFIRMED


def add_usage(first: Mapping[str, Any], second: Mapping[str, Any]) -> Json:
    """The usage of two models: numbers of one name are summed, and mappings likewise."""
    total = {**first, **second}
    for name in first.keys() & second.keys():
        if isinstance(first[name], Mapping):
            total[name] = add_usage(first[name], second[name])
        elif isinstance(first[name], int | float):
            total[name] = first[name] + second[name]
    return total


class ByRule(WithRemedy):
    """A remedy of `BY_RULE`, for the objects that a sentence denies (`nein.wording.denials`)."""

    def __init__(self, editor: Any, remedy: str) -> None:
        super().__init__(editor, remedy, {"arm": remedy, "reads": "nein.wording.denials"})
        self._remedy = remedy
        if remedy.partition(":")[0] in GUIDED:
            from nein.editors.attention import parse_rule

            self._facts["rule"] = dataclasses.asdict(parse_rule(remedy))

    def prepare(self, requests: Sequence[EditRequest]) -> list[Prepared]:
        readings = denials.read([request.instruction for request in requests])
        prepared: list[Prepared] = []
        for request, reading in zip(requests, readings, strict=True):
            if reading.absent:
                prepared.append(_change(request, **self._make_changes(reading.absent)))
            elif reading.doubled:
                prepared.append(_keep_image(request))
            else:
                prepared.append((request, AS_IT_IS))
        return prepared

    def _make_changes(self, absent: Sequence[str]) -> Json:
        """Fields of `EditRequest` to change."""
        if self._remedy == "attention":  # Prompt-to-Prompt, arXiv:2208.01626
            return {"weights": dict.fromkeys(absent, AWAY)}
        negative_prompt = ", ".join(absent)
        if self._remedy == "negative-prompt":
            return {"negative_prompt": negative_prompt}
        if self._remedy == "negative-prompt-alone":
            return {"instruction": "", "negative_prompt": negative_prompt}
        return {"negative_prompt": negative_prompt, "guided": self._remedy}


class Rewrite(WithRemedy):
    """Sends the text of a rewriter in place of the instruction."""

    rewrites = True

    def prepare(self, requests: Sequence[EditRequest]) -> list[Prepared]:
        instructions = [request.instruction for request in requests]
        rewordings = self._helper.rewrite(instructions, [request.image for request in requests])
        prepared: list[Prepared] = []
        for request, (text, error, again) in zip(requests, rewordings, strict=True):
            if text is None:
                result = EditResult(request.id, None, f"no rewriting: {error}", transient=again)
                prepared.append((result, ""))
            elif text == request.instruction:
                prepared.append((request, AS_IT_IS))
            elif text:
                prepared.append(_change(request, instruction=text))
            else:
                prepared.append(_keep_image(request, rewritten=""))
        return prepared


class BestOf(WithRemedy):
    """Edits every request `count` times; a judge chooses one of them. Candidate 1 is the edit without the
    remedy. The candidates of a sample are judged together, without other samples, so that batches do not
    change a choice. Of equal scores the first wins. A candidate that cannot be judged is not chosen; if none
    can, the sample has no edit. The note has all scores."""

    def __init__(self, editor: editors.Editor, judge: RewardJudge, count: int, remedy: str) -> None:
        facts = {"arm": "best-of", "candidates": count, "judge": judge.fingerprint}
        super().__init__(editor, remedy, facts, judge)
        self._count = count
        self._remedy = remedy

    def describe(self) -> Json:
        return {**self._editor.describe(), "mended": {**self._helper.describe(), **self._facts}}

    def edit(self, requests: Sequence[EditRequest]) -> list[EditResult]:
        candidates = []  # per candidate: a result per request
        for k in range(self._count):
            seeded = [dataclasses.replace(request, seed=make_seed(request, k)) for request in requests]
            candidates.append(self._editor.edit(seeded))
        return [
            self._choose(request, [results[index] for results in candidates])
            for index, request in enumerate(requests)
        ]

    def _choose(self, request: EditRequest, results: Sequence[EditResult]) -> EditResult:
        """The best of a request's candidates."""
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
        return _add_note(results[best], f"{self._remedy}: candidate {best + 1} of {len(results)} ({listed})")


def make_seed(request: EditRequest, candidate: int) -> int:
    """The sample's seed for candidate 0; for others a seed from it and the sample's id."""
    return request.seed if candidate == 0 else sample_seed(int(request.seed), request.id, candidate)
