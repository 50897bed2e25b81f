"""Removal, Retention and AUC-Removal: was the object left out, and is everything else still there?

Source: NeIn (CVPRW 2025), section 4, and https://github.com/tanbuinhat/NeIn, evaluation_protocol. For a
sample with object S, unedited picture F and edited picture E:

    Removal      1 if the judge does not see S in E, else 0.
    AUC-Removal  1 - s, with s the detector's best score for S in E, or 0 where Removal is 1. The mean over
                 samples times 100 is the area that NeIn's script integrates (the integral of an empirical
                 distribution function over [0, 1] is one minus the mean).
    Retention    Of the objects that the caption names and the judge sees in F, the share it also sees in E.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from metrics import NEEDS, PRESENCE_METRICS
from metrics.answers import paper_present, paper_removed, parse_yes_no
from metrics.base import (
    MODEL_ERRORS,
    MemoryRecords,
    MetricError,
    RecordStore,
    Score,
    check_image,
    choose,
    reason,
)
from metrics.judges.base import Detector, VqaJudge
from metrics.judges.templates import template
from metrics.objects import caption_objects

NOTHING_FOUND = "no object of the caption was found in the sample"


@dataclass(frozen=True)
class PresenceItem:
    """One edit to be judged.

    id          Identifies the sample.
    edited      (H, W, 3) uint8: what the editor made; None where it failed.
    sample      (H', W', 3) uint8: the unedited picture F; None if unreadable.
    object      What the instruction said should not be there, e.g. "traffic light".
    caption     Of the source image: names the objects to retain.
    sample_key  SHA-256 of the sample's pixels, hexadecimal: equal keys mean equal samples.
    """

    id: str
    edited: np.ndarray | None
    sample: np.ndarray | None
    object: str
    caption: str
    sample_key: str


#: What a judge said about one word: a JSON object, or a string that says why there is none.
Reply = Mapping[str, Any] | str


class Presence:
    """Scores edits with judges that see objects.

    names      Any of removal_vqa, retention_vqa (need `vqa`), removal_ovd, auc_removal, retention_ovd (need
               `detector`).
    protocol   "paper": the released scripts. Removed if the answer is exactly "No"; present if it is "yes" in
               any case; every other answer counts as the opposite. Objects are the roots of noun chunks as
               written, repetitions kept for VQA. "fixed": the first word decides, whatever its case and
               punctuation, and any other answer leaves the sample unscored; objects are distinct nouns
               (`metrics.objects`).
    threshold  A detection counts when its score is strictly above this; 0.1 is the default of the pipeline
               that NeIn uses.
    article    In questions: "none" as in the released code, "a_an" as in the paper's text.
    evidence   "own": ask what this protocol needs. "both": ask for Retention also about the objects that the
               other protocol would ask about, and keep all replies, so that the other protocol's figure can
               be worked out without the judge (`objects_of` in the detail). The scores are the same.
    store      Cache of what judges said about unedited samples, so that it is asked once and not once per
               editor.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        vqa: VqaJudge | None = None,
        detector: Detector | None = None,
        protocol: Literal["paper", "fixed"] = "paper",
        threshold: float = 0.1,
        article: Literal["none", "a_an"] = "none",
        evidence: Literal["own", "both"] = "own",
        store: RecordStore | None = None,
    ) -> None:
        for name in names:
            choose("presence metric", name, PRESENCE_METRICS)
            if (vqa if NEEDS[name] == "vqa" else detector) is None:
                kind = (
                    "vqa=load_judge('vqa', ...)"
                    if NEEDS[name] == "vqa"
                    else "detector=load_judge('ovd', ...)"
                )
                raise MetricError(f"The metric '{name}' needs a judge; give {kind}.")
        if not 0 <= threshold < 1:
            raise MetricError(f"The detection threshold must be at least 0 and below 1, not {threshold}.")
        self.names = tuple(dict.fromkeys(names))
        self.vqa = vqa
        self.detector = detector
        self.protocol = choose("protocol", protocol, ("paper", "fixed"))
        self.threshold = threshold
        self.article = choose("article", article, ("none", "a_an"))
        self.evidence = choose("evidence", evidence, ("own", "both"))
        self.store: RecordStore = store if store is not None else MemoryRecords()

    def describe(self) -> dict[str, Any]:
        """Names, protocol and judges, JSON-serialisable."""
        return {
            "metrics": list(self.names),
            "protocol": self.protocol,
            "threshold": self.threshold,
            "article": self.article,
            "vqa": self.vqa.describe() if self.vqa is not None else None,
            "ovd": self.detector.describe() if self.detector is not None else None,
        }

    def score(self, items: Sequence[PresenceItem]) -> dict[str, list[Score]]:
        """One Score per metric and item, in item order; an item that fails gets a reason, not the others."""
        scores: dict[str, list[Score]] = {}
        objects = self._objects(items, self.protocol)
        other = "paper" if self.protocol == "fixed" else "fixed"
        besides = self._objects(items, other) if self.evidence == "both" else None
        for kind in ("vqa", "ovd"):
            names = [name for name in self.names if NEEDS[name] == kind]
            if names:
                scores.update(self._score_kind(kind, names, items, objects, besides))
        return {name: scores[name] for name in self.names}

    # ----------------------------------------------------------------------------------------- judging

    def _objects(self, items: Sequence[PresenceItem], protocol: str) -> list[list[str]]:
        if not any(name.startswith("retention") for name in self.names):
            return [[] for _ in items]
        return caption_objects(
            [item.caption for item in items],
            protocol="paper" if protocol == "paper" else "fixed",
            excluded=[item.object for item in items],
        )

    def _score_kind(
        self,
        kind: str,
        names: Sequence[str],
        items: Sequence[PresenceItem],
        objects: Sequence[list[str]],
        besides: Sequence[list[str]] | None,
    ) -> dict[str, list[Score]]:
        """`besides`: objects the other protocol asks about, or None; their replies go into the details
        only."""
        retention = f"retention_{kind}" in names
        removal = any(not name.startswith("retention") for name in names)
        if kind == "ovd":
            objects = [list(dict.fromkeys(row)) for row in objects]
        asked = [
            list(dict.fromkeys([*row, *(besides[i] if besides else [])])) for i, row in enumerate(objects)
        ]
        before = self._look_at_samples(kind, items, asked) if retention else [{} for _ in items]
        kept = [
            [name for name in row if self._present(kind, before[i].get(name, "")) is True]
            for i, row in enumerate(objects)
        ]
        again = [
            [
                name
                for name in row
                if name in kept[i] or (besides and self._maybe(kind, before[i].get(name, "")))
            ]
            for i, row in enumerate(asked)
        ]
        wanted = [
            list(dict.fromkeys([*([item.object] if removal else []), *(again[i] if retention else [])]))
            for i, item in enumerate(items)
        ]
        after = self._judge(kind, [item.edited for item in items], wanted, "no edited picture")
        result: dict[str, list[Score]] = {}
        for name in names:
            if name == f"retention_{kind}":
                result[name] = [
                    self._retention(kind, objects[i], before[i], kept[i], after[i], item)
                    for i, item in enumerate(items)
                ]
                if besides is not None:
                    for i, score in enumerate(result[name]):
                        lists = (
                            (objects[i], besides[i]) if self.protocol == "fixed" else (besides[i], objects[i])
                        )
                        both = {
                            "objects_of": {"fixed": lists[0], "paper": lists[1]},
                            "before": {name: _plain(reply) for name, reply in before[i].items()},
                            "after": {name: _plain(after[i][name]) for name in again[i]},
                        }
                        result[name][i] = Score(score.value, score.reason, {**score.detail, **both})
            else:
                result[name] = [self._removal(name, item, after[i]) for i, item in enumerate(items)]
        return result

    def _look_at_samples(
        self, kind: str, items: Sequence[PresenceItem], objects: Sequence[list[str]]
    ) -> list[dict[str, Reply]]:
        """What the judge sees in the unedited samples: from the store, or asked once and stored."""
        judge: Any = self.vqa if kind == "vqa" else self.detector
        known: dict[tuple[str, str], Reply] = {}
        missing: dict[str, list[str]] = {}
        pictures: dict[str, np.ndarray | None] = {}
        for item, row in zip(items, objects, strict=True):
            pictures.setdefault(item.sample_key, item.sample)
            for name in row:
                place = (item.sample_key, name)
                if place in known or name in missing.get(item.sample_key, ()):
                    continue
                record = self.store.get(judge.fingerprint, self._key(kind, *place))
                if record is not None:
                    known[place] = record
                else:
                    missing.setdefault(item.sample_key, []).append(name)
        replies = self._judge(
            kind, [pictures[k] for k in missing], list(missing.values()), "no sample picture"
        )
        for sample_key, found in zip(missing, replies, strict=True):
            for name, reply in found.items():
                known[sample_key, name] = reply
                if not isinstance(reply, str):
                    self.store.put(judge.fingerprint, self._key(kind, sample_key, name), dict(reply))
        return [
            {name: known[item.sample_key, name] for name in row}
            for item, row in zip(items, objects, strict=True)
        ]

    def _key(self, kind: str, sample_key: str, name: str) -> str:
        asked = self._question(name) if kind == "vqa" else f"label:{name}"
        return hashlib.sha256(f"{sample_key}\0{asked}".encode()).hexdigest()

    def _question(self, name: str) -> str:
        assert self.vqa is not None
        return template(self.vqa.template).ask_presence(name, self.article)

    def _judge(
        self,
        kind: str,
        images: Sequence[np.ndarray | None],
        words: Sequence[Sequence[str]],
        absent: str,
    ) -> list[dict[str, Reply]]:
        """What the judge says about every word in every picture; one pass per picture."""
        result: list[dict[str, Reply]] = [dict.fromkeys(row, absent) for row in words]
        jobs: list[tuple[int, np.ndarray]] = []
        for i, image in enumerate(images):
            if image is None or not words[i]:
                continue
            try:
                jobs.append((i, check_image(image)))
            except MetricError as error:
                result[i] = dict.fromkeys(words[i], str(error))
        run = self._ask if kind == "vqa" else self._detect
        for i, found in _attempt(run, jobs, words):
            result[i] = found
        return result

    def _ask(
        self, jobs: Sequence[tuple[int, np.ndarray]], words: Sequence[Sequence[str]]
    ) -> list[dict[str, Reply]]:
        assert self.vqa is not None
        prompts = [[self._question(word) for word in words[i]] for i, _ in jobs]
        answers = self.vqa.ask([image for _, image in jobs], prompts)
        return [
            {
                word: {"answer": a.text, "tokens": a.token_count, "p_yes": a.p_yes, "p_no": a.p_no}
                for word, a in zip(words[i], row, strict=True)
            }
            for (i, _), row in zip(jobs, answers, strict=True)
        ]

    def _detect(
        self, jobs: Sequence[tuple[int, np.ndarray]], words: Sequence[Sequence[str]]
    ) -> list[dict[str, Reply]]:
        assert self.detector is not None
        found = self.detector.detect(
            [image for _, image in jobs], [words[i] for i, _ in jobs], self.threshold
        )
        return [
            {
                word: {"score": row[word].score, "box": [round(x, 2) for x in row[word].box]}
                for word in words[i]
            }
            for (i, _), row in zip(jobs, found, strict=True)
        ]

    # ----------------------------------------------------------------------------------------- reading

    def _present(self, kind: str, reply: Reply) -> bool | None:
        """Does the judge see it? None: it could not be asked, or said neither yes nor no."""
        if isinstance(reply, str):
            return None
        if kind == "ovd":
            return bool(reply["score"] > self.threshold)
        return paper_present(reply["answer"]) if self.protocol == "paper" else parse_yes_no(reply["answer"])

    def _maybe(self, kind: str, reply: Reply) -> bool:
        """Whether any protocol takes the reply for a sighting."""
        if isinstance(reply, str) or kind == "ovd":
            return self._present(kind, reply) is True
        return paper_present(reply["answer"]) or parse_yes_no(reply["answer"]) is True

    def _removal(self, name: str, item: PresenceItem, replies: Mapping[str, Reply]) -> Score:
        reply = replies[item.object]
        detail: dict[str, Any] = {"object": item.object, "protocol": self.protocol}
        if isinstance(reply, str):
            return Score(None, reply, detail)
        detail.update(reply)
        if name == "removal_vqa":
            detail["question"] = self._question(item.object)
            answer = reply["answer"]
            seen = parse_yes_no(answer)
            if self.protocol == "paper":
                seen = not paper_removed(answer)
            if seen is None:
                return Score(None, f"the answer {answer!r} is neither yes nor no", detail)
            return Score(float(not seen), f"the judge answered {answer!r}", detail)
        detail["threshold"] = self.threshold
        best = reply["score"] if reply["score"] > self.threshold else 0.0
        compared = "above" if best else "not above"
        why = f"best score {reply['score']:.3f} is {compared} {self.threshold}"
        return Score(float(not best) if name == "removal_ovd" else 1.0 - best, why, detail)

    def _retention(
        self,
        kind: str,
        objects: Sequence[str],
        before: Mapping[str, Reply],
        kept: Sequence[str],
        after: Mapping[str, Reply],
        item: PresenceItem,
    ) -> Score:
        detail: dict[str, Any] = {
            "objects": list(objects),
            "in_sample": list(kept),
            "protocol": self.protocol,
            "before": {name: _plain(before[name]) for name in dict.fromkeys(objects)},
            "after": {name: _plain(after[name]) for name in kept},
        }
        if kind == "ovd":
            detail["threshold"] = self.threshold
        if item.edited is None:
            return Score(None, "no edited picture", detail)
        broken = next((f"{name}: {before[name]}" for name in objects if isinstance(before[name], str)), None)
        broken = broken or next(
            (f"{name}: {after[name]}" for name in kept if isinstance(after[name], str)), None
        )
        if broken:
            return Score(None, broken, detail)
        if not kept:
            return Score(None, NOTHING_FOUND, detail)
        verdicts = {name: self._present(kind, after[name]) for name in kept}
        unclear = next((name for name in kept if verdicts[name] is None), None)
        if unclear is not None:
            said = after[unclear]
            answer = said["answer"] if not isinstance(said, str) else said
            return Score(None, f"the answer {answer!r} about '{unclear}' is neither yes nor no", detail)
        found = sum(bool(verdicts[name]) for name in kept)
        lost = [name for name in dict.fromkeys(kept) if not verdicts[name]]
        why = f"{found} of {len(kept)} objects are still there" + (
            f"; lost: {', '.join(lost)}" if lost else ""
        )
        return Score(found / len(kept), why, detail)


def _plain(reply: Reply) -> Any:
    """The part of a reply worth keeping in a list of many."""
    if isinstance(reply, str):
        return {"error": reply}
    # Nine digits tell every float32 from every other: a verdict worked out later is the verdict given now.
    return reply["answer"] if "answer" in reply else float(f"{reply['score']:.9g}")


def _attempt(
    run: Callable[[Any, Any], list[dict[str, Reply]]],
    jobs: Sequence[tuple[int, np.ndarray]],
    words: Sequence[Sequence[str]],
) -> list[tuple[int, dict[str, Reply]]]:
    """`run` on all jobs; where that fails, one at a time, so that only the culprit has no replies."""
    if not jobs:
        return []
    try:
        return [(i, found) for (i, _), found in zip(jobs, run(jobs, words), strict=True)]
    except MODEL_ERRORS as error:
        if len(jobs) == 1:
            i = jobs[0][0]
            return [(i, dict.fromkeys(words[i], reason(error)))]
    return [pair for job in jobs for pair in _attempt(run, [job], words)]
