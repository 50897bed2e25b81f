"""Which of two edits a judge of edits prefers, where it is known which one obeys: part of `nein calibrate`.

OUT/rewards/<kind>-<fingerprint>.json    the judge, how often it prefers the right edit, by set and wording
OUT/rewards/<kind>-<fingerprint>.jsonl   one line per question: sentence, preference, what was said
OUT/answers.sqlite                       finished batches
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nein import statistics
from nein.engine import atomic
from nein.engine.blocks import sample_seed
from nein.judges import asking
from nein.judges.known import AFFIRMED, NEGATED, Pair
from nein.loading.errors import isolated
from nein.metrics.base import Score
from nein.metrics.rewards import RewardJudge
from nein.reporting.scores import ScoreTable

Row = dict[str, Any]
ROW = {**dict.fromkeys(("set", "id", "cluster", "wording"), str), "right": (float, None), "detail": {}}


def calibrate(
    reference: str, judge: RewardJudge, pairs: Sequence[Pair], out: Path, batch_size: int = 16
) -> Path:
    """Asks a judge about the pairs and writes what came of it; returns the .json file."""
    kind = reference.partition(":")[0]
    listed = asking.answered(
        out,
        json.dumps(["calibration", "rewards", judge.fingerprint]),
        pairs,
        lambda pair: [_key(pair, wording) for wording in pair.sentences],
        lambda batch: _ask(judge, batch),
        batch_size=batch_size,
        title=kind,
        unit="pair",
    )
    target = out / "rewards" / f"{kind}-{judge.fingerprint[:12]}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    lines, current = target.with_suffix(".jsonl"), {pair.set for pair in pairs}
    if lines.exists():  # sets of an earlier command stay
        listed = [row for row in atomic.read_lines(lines, ROW) if row["set"] not in current] + listed
    atomic.write_lines(lines, listed)
    sets = dict.fromkeys(row["set"] for row in listed)
    result = {
        "kind": "reward", "reference": reference, "fingerprint": judge.fingerprint, "judge": judge.describe(),
        "sets": {name: rates([row for row in listed if row["set"] == name]) for name in sets},
    }  # fmt: skip
    atomic.write_json(target, result)
    return target


def _key(pair: Pair, wording: str) -> str:
    return json.dumps([pair.set, pair.id, wording, pair.sentences[wording]])


def _ask(judge: RewardJudge, batch: Sequence[Pair]) -> dict[str, tuple[Row, bool]]:
    """The right edit stands first or second by a draw, so that a liking for a place is no merit."""
    decoded = [(pair, asking.decoded(pair.pictures)) for pair in batch]
    questions = [(pair, wording, pictures) for pair, pictures in decoded for wording in pair.sentences]
    swapped = [sample_seed(0, _key(pair, wording)) % 2 == 1 for pair, wording, _ in questions]
    edits = [
        (images.wrong, images.right) if turned else (images.right, images.wrong)
        for (_, _, images), turned in zip(questions, swapped, strict=True)
    ]
    answers = isolated(
        lambda places: judge.prefer(
            [questions[k][2].source for k in places],
            [edits[k][0] for k in places],
            [edits[k][1] for k in places],
            [questions[k][0].sentences[questions[k][1]] for k in places],
        ),
        range(len(questions)),
    )
    rows = {}
    for (pair, wording, _), turned, answer in zip(questions, swapped, answers, strict=True):
        score = Score(None, answer, again=True) if isinstance(answer, str) else answer
        right = 1 - score.value if turned and score.value is not None else score.value
        rows[_key(pair, wording)] = {
            "set": pair.set, "id": pair.id, "cluster": pair.cluster, "object": pair.object,
            "wording": wording, "sentence": pair.sentences[wording],
            "right": right, "reason": score.reason, "detail": dict(score.detail),
        }, not score.again  # fmt: skip
    return rows


def rates(rows: Sequence[Row]) -> dict[str, Any]:
    """Of the questions of one set.

    affirmed, negated  Share of pairs in which the right edit is preferred; no preference counts as half.
    gap                affirmed - negated, over the pairs scored in both.
    all                Of sets whose pairs are told in one way each, for which the gap is that of both shares.
    ties, n_unscored   Questions without a preference, and without an answer that can be read.
    position           Of a judge that compares: how much oftener it says A, the edit in the middle, than B: a
                       difference of shares, 0 for no preference of a place; None for other judges.
    """
    table = ScoreTable.of(
        {"id": row["id"], "source": row["cluster"], "variant": row["wording"], "metric": "right",
         "value": row["right"], "reason": row.get("reason")}
        for row in rows
    )  # fmt: skip
    affirmed, negated = (table.where(variant=wording) for wording in (AFFIRMED, NEGATED))
    first, second, clusters = affirmed.pair(negated)
    gap, every = statistics.bounded_mean(first - second, clusters, -1.0, 1.0), None
    if not clusters:
        every = table.estimate()
        plain, denied = affirmed.scored, negated.scored
        gap = statistics.difference_of_means(plain.values, plain.clusters, denied.values, denied.clusters)
    shares = {"all": every, AFFIRMED: affirmed.estimate(), NEGATED: negated.estimate(), "gap": gap}
    letters = [
        (letter, row["cluster"]) for row in rows for letter in row["detail"].get("letters", ()) if letter
    ]
    signs = [1.0 if letter == "A" else -1.0 for letter, _ in letters]
    shares["position"] = statistics.bounded_mean(signs, [cluster for _, cluster in letters], -1.0, 1.0)
    return {
        **{name: share and share.as_dict() for name, share in shares.items()},
        "ties": sum(row["right"] == 0.5 for row in rows),
        "n_unscored": sum(row["right"] is None for row in rows),
    }


def summary(file: Path) -> str:
    result = atomic.read_json(file)
    lines = []
    for name, shares in result["sets"].items():
        parts = [asking.shown("all", shares["all"])] if shares["all"] else []
        parts += [asking.shown(wording, shares[wording]) for wording in (AFFIRMED, NEGATED)]
        parts += [asking.shown("gap", shares["gap"], "points")]
        parts += [asking.shown("A rather than B", shares["position"], "points")] if shares["position"] else []
        unscored = f"ties {shares['ties']}, unscored {shares['n_unscored']}"
        lines.append(f"{result['reference']}, {name}: {', '.join(parts)}, {unscored}")
    return "\n".join([*lines, str(file)])
