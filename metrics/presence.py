"""Removal, Retention and AUC-Removal: was the object left out, and is everything else still there?

Source: NeIn (CVPRW 2025), section 4, and https://github.com/tanbuinhat/NeIn, evaluation_protocol. For a
sample with object S, unedited picture F and edited picture E:

    Removal      1 if the judge does not see S in E, else 0.
    AUC-Removal  1 - s, with s the detector's best score for S in E, or 0 where Removal is 1. The mean over
                 samples times 100 is the area that NeIn's script integrates (the integral of an empirical
                 distribution function over [0, 1] is one minus the mean).
    Retention    Of the objects that the caption names and the judge sees in F, the share it also sees in E.

A judge looks at a picture once for all of these metrics that are scored together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nein.loading.isolation import isolated, reason
from nein.metrics.base import Images, Score, Texts, paper_present, paper_removed, parse_yes_no
from nein.metrics.batch import Batch
from nein.metrics.judges.base import template
from nein.metrics.metric import Metric
from nein.metrics.objects import caption_objects
from nein.metrics.served.endpoint import NoAnswer

NOTHING_FOUND = "no object of the caption was found in the sample"
_PAPER = "NeIn (CVPRW 2025), Table 3; section 4"


@dataclass(frozen=True)
class NoReply:
    """Why a judge said nothing about a word. again: an endpoint gave no answer, and may another time."""

    reason: str
    again: bool

    @classmethod
    def of(cls, error: BaseException) -> NoReply:
        return cls(reason(error), isinstance(error, NoAnswer))

    def score(self, detail: Mapping[str, Any], about: str = "") -> Score:
        return Score(None, f"{about}{self.reason}", detail, again=self.again)


#: What a judge said about one word: a JSON object.
Reply = Mapping[str, Any] | NoReply
Kind = Literal["vqa", "ovd"]
#: The metrics that ask about the object that should be gone.
REMOVAL: dict[str, tuple[str, ...]] = {"vqa": ("removal_vqa",), "ovd": ("removal_ovd", "auc_removal")}


def removal_vqa(batch: Batch) -> list[Score]:
    """1 where the judge says that the object is not in the edited picture."""
    judged = _judged(batch, "vqa")
    return [judged.removal_by_answer(i) for i in range(len(batch.items))]


def removal_ovd(batch: Batch) -> list[Score]:
    """1 where the detector finds no object above the threshold in the edited picture."""
    judged = _judged(batch, "ovd")
    return [judged.removal_by_score(i, graded=False) for i in range(len(batch.items))]


def auc_removal(batch: Batch) -> list[Score]:
    """1 minus the detector's best score for the object, where that is above the threshold."""
    judged = _judged(batch, "ovd")
    return [judged.removal_by_score(i, graded=True) for i in range(len(batch.items))]


def retention_vqa(batch: Batch) -> list[Score]:
    """Of the caption's objects that the judge sees in the sample, the share it sees in the edited picture."""
    judged = _judged(batch, "vqa")
    return [judged.retention(i) for i in range(len(batch.items))]


def retention_ovd(batch: Batch) -> list[Score]:
    """Of the caption's objects that the detector finds in the sample, the share it finds in the edit."""
    judged = _judged(batch, "ovd")
    return [judged.retention(i) for i in range(len(batch.items))]


# Removal does not look at the sample. It needs it all the same: where the sample is not the one that was
# edited, the edit says nothing, and both metrics are then asked for in one pass over the same edits.
_VQA, _OVD = ("edited", "sample", "vqa"), ("edited", "sample", "ovd")
METRICS = (
    Metric(
        "removal_vqa", "Removal (VQA)", "per cent", "higher", (0.0, 1.0), "proportion", _VQA, removal_vqa,
        settings=("protocol", "article"), source=_PAPER,
    ),
    Metric(
        "retention_vqa", "Retention (VQA)", "per cent", "higher", (0.0, 1.0), "bounded", _VQA, retention_vqa,
        settings=("protocol", "article"), source=_PAPER,
    ),
    Metric(
        "removal_ovd", "Removal (OVD)", "per cent", "higher", (0.0, 1.0), "proportion", _OVD, removal_ovd,
        settings=("protocol", "threshold"), source=_PAPER,
    ),
    Metric(
        "auc_removal", "AUC-Removal", "per cent", "higher", (0.0, 1.0), "bounded", _OVD, auc_removal,
        settings=("protocol", "threshold"), source=_PAPER,
    ),
    Metric(
        "retention_ovd", "Retention (OVD)", "per cent", "higher", (0.0, 1.0), "bounded", _OVD, retention_ovd,
        settings=("protocol", "threshold"), source=_PAPER,
    ),
)  # fmt: skip


def _judged(batch: Batch, kind: Kind) -> _Judged:
    return batch.once(("presence", kind), lambda: _ask_all(_Questions(batch, kind)))


@dataclass(frozen=True)
class _Questions:
    """One judge, and how it is asked and read for a batch."""

    batch: Batch
    kind: Kind

    @property
    def judge(self) -> Any:
        return self.batch.models[self.kind]

    def objects(self, protocol: str) -> list[list[str]]:
        """What every caption names under a protocol; nothing where Retention is not asked for."""
        if f"retention_{self.kind}" not in self.batch.names:
            return [[] for _ in self.batch.items]
        return caption_objects(
            [item.caption for item in self.batch.items],
            protocol="paper" if protocol == "paper" else "fixed",
            excluded=[item.object for item in self.batch.items],
        )

    def present(self, reply: Reply) -> bool | None:
        """Does the judge see it? None: it could not be asked, or said neither yes nor no."""
        settings = self.batch.settings
        if isinstance(reply, NoReply):
            return None
        if self.kind == "ovd":
            return bool(reply["score"] > settings.threshold)
        return (paper_present if settings.protocol == "paper" else parse_yes_no)(reply["answer"])

    def maybe(self, reply: Reply) -> bool:
        """Whether any protocol takes the reply for a sighting."""
        if isinstance(reply, NoReply) or self.kind == "ovd":
            return self.present(reply) is True
        return paper_present(reply["answer"]) or parse_yes_no(reply["answer"]) is True

    def question(self, word: str) -> str:
        return template(self.judge.template).ask_presence(word, self.batch.settings.article)

    def key(self, sample_key: str, word: str) -> str:
        """Of a reply about a sample in the store."""
        asked = self.question(word) if self.kind == "vqa" else f"label:{word}"
        return hashlib.sha256(f"{sample_key}\0{asked}".encode()).hexdigest()

    def replies(self, pictures: Images, words: Texts) -> list[dict[str, Reply]]:
        """What the judge says about every word in every picture; one pass per picture."""
        asked = [i for i, row in enumerate(words) if row]
        ask = self._answers if self.kind == "vqa" else self._detections
        made = isolated(
            lambda rows: ask([pictures[i] for i in rows], [words[i] for i in rows]), asked, NoReply.of
        )
        result: list[dict[str, Reply]] = [{} for _ in words]
        for i, replies in zip(asked, made, strict=True):
            result[i] = dict.fromkeys(words[i], replies) if isinstance(replies, NoReply) else replies
        return result

    def _answers(self, pictures: Images, words: Texts) -> list[dict[str, Reply]]:
        answers = self.judge.ask(pictures, [[self.question(word) for word in row] for row in words])
        return [
            {
                word: {"answer": a.text, "tokens": a.token_count, "p_yes": a.p_yes, "p_no": a.p_no}
                for word, a in zip(asked, row, strict=True)
            }
            for asked, row in zip(words, answers, strict=True)
        ]

    def _detections(self, pictures: Images, words: Texts) -> list[dict[str, Reply]]:
        detections = self.judge.detect(pictures, words, self.batch.settings.threshold)
        return [
            {word: {"score": row[word].score, "box": [round(x, 2) for x in row[word].box]} for word in asked}
            for asked, row in zip(words, detections, strict=True)
        ]


def _ask_all(questions: _Questions) -> _Judged:
    """Asks what the caption names in the sample, then what is seen there in the edit."""
    batch, kind, protocol = questions.batch, questions.kind, questions.batch.settings.protocol
    retention = f"retention_{kind}" in batch.names
    removal = any(name in batch.names for name in REMOVAL[kind])
    objects = questions.objects(protocol)
    others = None
    if batch.settings.evidence == "both":
        others = questions.objects("paper" if protocol == "fixed" else "fixed")
    if kind == "ovd":
        objects = [list(dict.fromkeys(row)) for row in objects]
    asked = [list(dict.fromkeys([*row, *(others[i] if others else [])])) for i, row in enumerate(objects)]
    before = _look_at_samples(questions, asked)
    in_sample = [
        [word for word in row if questions.present(before[i][word]) is True] for i, row in enumerate(objects)
    ]
    again = [
        [word for word in row if word in in_sample[i] or (others and questions.maybe(before[i][word]))]
        for i, row in enumerate(asked)
    ]
    wanted = [
        list(dict.fromkeys([*([item.object] if removal else []), *(again[i] if retention else [])]))
        for i, item in enumerate(batch.items)
    ]
    after = questions.replies([item.edited for item in batch.items], wanted)  # type: ignore[misc]
    of_object = removal and batch.settings.before
    unedited = _look_at_samples(questions, [[item.object] if of_object else [] for item in batch.items])
    return _Judged(questions, objects, others, before, in_sample, again, after, unedited)


def _look_at_samples(questions: _Questions, words: Texts) -> list[dict[str, Reply]]:
    """What the judge sees in the unedited samples: from the store, or asked once and stored."""
    items, store, space = questions.batch.items, questions.batch.records, questions.judge.fingerprint
    replies: dict[tuple[str, str], Reply] = {}
    missing: dict[str, list[str]] = {}
    pictures: dict[str, Any] = {}
    for item, row in zip(items, words, strict=True):
        pictures.setdefault(item.sample_key, item.sample)
        for word in row:
            place = (item.sample_key, word)
            if place in replies or word in missing.get(item.sample_key, ()):
                continue
            record = store.get(space, questions.key(*place))
            if record is not None:
                replies[place] = record
            else:
                missing.setdefault(item.sample_key, []).append(word)
    made = questions.replies([pictures[key] for key in missing], list(missing.values()))
    for sample_key, row_of_replies in zip(missing, made, strict=True):
        for word, reply in row_of_replies.items():
            replies[sample_key, word] = reply
            if not isinstance(reply, NoReply):
                store.put(space, questions.key(sample_key, word), dict(reply))
    return [
        {word: replies[item.sample_key, word] for word in row} for item, row in zip(items, words, strict=True)
    ]


@dataclass(frozen=True)
class _Judged:
    """What one judge said about the items of a batch; lists hold one entry per item.

    objects    What the caption names by the protocol in force.
    others     What it names by the other protocol, where evidence for that is wanted too; else None.
    before     Word -> reply about the sample.
    in_sample  The `objects` that the judge sees in the sample.
    again      The words of the caption that were asked about again in the edited picture.
    after      Word -> reply about the edited picture.
    unedited   The object -> reply about the sample, where that is asked.
    """

    questions: _Questions
    objects: list[list[str]]
    others: list[list[str]] | None
    before: list[dict[str, Reply]]
    in_sample: list[list[str]]
    again: list[list[str]]
    after: list[dict[str, Reply]]
    unedited: list[dict[str, Reply]]

    def removal_by_answer(self, i: int) -> Score:
        item, settings = self.questions.batch.items[i], self.questions.batch.settings
        reply = self.after[i][item.object]
        detail = self._about_object(i)
        if isinstance(reply, NoReply):
            return reply.score(detail)
        answer = reply["answer"]
        detail |= {**reply, "question": self.questions.question(item.object)}
        seen = not paper_removed(answer) if settings.protocol == "paper" else parse_yes_no(answer)
        if seen is None:
            return Score(None, f"the answer {answer!r} is neither yes nor no", detail)
        return Score(float(not seen), f"the judge answered {answer!r}", detail)

    def removal_by_score(self, i: int, *, graded: bool) -> Score:
        item, settings = self.questions.batch.items[i], self.questions.batch.settings
        reply = self.after[i][item.object]
        detail = self._about_object(i)
        if isinstance(reply, NoReply):
            return reply.score(detail)
        detail |= {**reply, "threshold": settings.threshold}
        best = reply["score"] if reply["score"] > settings.threshold else 0.0
        compared = "above" if best else "not above"
        why = f"best score {reply['score']:.3f} is {compared} {settings.threshold}"
        return Score(1.0 - best if graded else float(not best), why, detail)

    def _about_object(self, i: int) -> dict[str, Any]:
        """What is kept beside a Removal score whatever the judge says of the edit."""
        item, unedited = self.questions.batch.items[i], self.unedited[i]
        detail: dict[str, Any] = {"object": item.object, "protocol": self.questions.batch.settings.protocol}
        if unedited:
            detail["before"] = {word: _plain(reply) for word, reply in unedited.items()}
            detail["present_before"] = self.questions.present(unedited[item.object])
        return detail

    def retention(self, i: int) -> Score:
        """The share of `in_sample` that is still seen; unscored where a reply is missing or unclear."""
        objects, before, after, in_sample = self.objects[i], self.before[i], self.after[i], self.in_sample[i]
        detail = self._evidence(i)
        replies = [*((word, before[word]) for word in objects), *((word, after[word]) for word in in_sample)]
        failed = [(word, reply) for word, reply in replies if isinstance(reply, NoReply)]
        if failed:
            word, reply = failed[0]
            return reply.score(detail, f"{word}: ")
        if not in_sample:
            return Score(None, NOTHING_FOUND, detail)
        verdicts = {word: self.questions.present(after[word]) for word in in_sample}
        unclear = next((word for word in in_sample if verdicts[word] is None), None)
        if unclear is not None:
            answer = _plain(after[unclear])
            return Score(None, f"the answer {answer!r} about '{unclear}' is neither yes nor no", detail)
        still = sum(bool(verdicts[word]) for word in in_sample)
        lost = [word for word in dict.fromkeys(in_sample) if not verdicts[word]]
        why = f"{still} of {len(in_sample)} objects are still there"
        return Score(still / len(in_sample), why + (f"; lost: {', '.join(lost)}" if lost else ""), detail)

    def _evidence(self, i: int) -> dict[str, Any]:
        """What was asked and said, as it is kept beside a Retention score."""
        settings, before, after = self.questions.batch.settings, self.before[i], self.after[i]
        detail: dict[str, Any] = {
            "objects": list(self.objects[i]),
            "in_sample": list(self.in_sample[i]),
            "protocol": settings.protocol,
            "before": {word: _plain(before[word]) for word in dict.fromkeys(self.objects[i])},
            "after": {word: _plain(after[word]) for word in self.in_sample[i]},
        }
        if self.questions.kind == "ovd":
            detail["threshold"] = settings.threshold
        if self.others is not None:
            by_protocol = [self.objects[i], self.others[i]]
            fixed, paper = by_protocol if settings.protocol == "fixed" else by_protocol[::-1]
            detail |= {
                "objects_of": {"fixed": fixed, "paper": paper},
                "before": {word: _plain(reply) for word, reply in before.items()},
                "after": {word: _plain(after[word]) for word in self.again[i]},
            }
        return detail


def _plain(reply: Reply) -> Any:
    """The part of a reply worth keeping in a list of many."""
    if isinstance(reply, NoReply):
        return {"error": reply.reason}
    # Nine digits tell every float32 from every other: a verdict worked out later is the verdict given now.
    return reply["answer"] if "answer" in reply else float(f"{reply['score']:.9g}")
