"""Every kind of model of the suite, in its nano edition, on a device and in a dtype."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from nein import editors, metrics
from nein.metrics.judges.base import find_template
from nein.nano import zoo
from nein.nano.data import iter_samples
from nein.nano.scenes import render
from tests.negvqa.tiny import answers, run


@dataclass(frozen=True)
class Outcome:
    """numbers: sample -> what a model computed; decisions: sample -> "yes", "B", the best caption."""

    numbers: Mapping[str, np.ndarray]
    decisions: Mapping[str, str] = field(default_factory=dict)


def compare(cpu, other):
    """(largest difference, as a share of the largest number; samples whose decision differs)."""
    assert cpu.numbers.keys() == other.numbers.keys()
    assert cpu.decisions.keys() == other.decisions.keys()
    assert cpu.numbers
    scale = max(float(np.abs(values).max()) for values in cpu.numbers.values())
    apart = [np.abs(np.asarray(other.numbers[key], float) - one).max() for key, one in cpu.numbers.items()]
    # NaN is larger than any number: the `max` of Python would pass over it.
    return np.max(apart) / scale, [key for key, was in cpu.decisions.items() if other.decisions[key] != was]


@dataclass(frozen=True)
class Subject:
    """tolerance  Of numbers in float32, as a share of the largest. Another order of additions is 1e-7 for
    each of some ten layers, which may enlarge it: 2e-6 between the instructions of one processor. A network
    that computes in half precision without being told to is off by 5e-3 and more. Pictures have 256 levels,
    and a value between two may go to either."""

    outcome: Callable[[str, str], Outcome]
    tolerance: float = 1e-4


@lru_cache
def _samples(sources=12):
    return tuple(iter_samples("test", sources))


@lru_cache
def _pictures():
    return {
        f"{sample.nein} {what}": render(scene)
        for sample in _samples()
        for what, scene in (("sample", sample.sample), ("source", sample.source))
    }


def _labels():
    return [sample.object for sample in _samples() for _ in range(2)]


def _editor(name):
    def outcome(device, dtype):
        editor = editors.get_editor(
            f"{name}-nano", checkpoint=str(zoo.path(name)), steps=4, device=device, dtype=dtype
        )
        requests = [
            editors.EditRequest(sample.nein, render(sample.sample), f"Remove the {sample.object}.", number)
            for number, sample in enumerate(_samples()[:4])
        ]
        results = editor.edit(requests)
        assert not [result.error for result in results if result.error]
        return Outcome({result.id: np.asarray(result.image, float) for result in results})

    return outcome


def _judge(kind, name, ask):
    def outcome(device, dtype):
        judge = metrics.load_judge(kind, str(zoo.path(name)), device=device, dtype=dtype)
        found = dict(zip(_pictures(), ask(judge, list(_pictures().values())), strict=True))
        numbers = {key: np.array(said) for key, (said, _) in found.items()}
        return Outcome(numbers, {key: decision for key, (_, decision) in found.items()})

    return outcome


def _vqa(judge, pictures):
    wording = find_template(judge.template)
    rows = judge.ask(pictures, [[wording.ask_presence(label)] for label in _labels()])
    return [((row.p_yes, row.p_no), row.text) for [row] in rows]


def _ovd(judge, pictures):
    rows = judge.detect(pictures, [[label] for label in _labels()])
    return [(row.score, "there" if row.count else "not there") for found in rows for row in found.values()]


def _itm(judge, pictures):
    rows = judge.match(pictures, [[f"a {label}"] for label in _labels()])
    return [(row, "fits" if row[0] > 0.5 else "does not") for row in rows]


def _clip(device, dtype):
    model = metrics.load_dual(str(zoo.path("clip")), device=device, dtype=dtype)
    captions = list(dict.fromkeys(sample.caption for sample in _samples()))
    texts, images = model.encode_text(captions), model.encode(list(_pictures().values()))
    cosines = images @ texts.T / np.outer(np.linalg.norm(images, axis=1), np.linalg.norm(texts, axis=1))
    numbers = dict(zip(_pictures(), cosines, strict=True))
    return Outcome(numbers, {key: captions[int(row.argmax())] for key, row in numbers.items()})


def _features(kind):
    def outcome(device, dtype):
        network = metrics.load_encoder(kind, str(zoo.path(kind)), device=device, dtype=dtype)
        return Outcome(dict(zip(_pictures(), network.encode(list(_pictures().values())), strict=True)))

    return outcome


def _lpips(device, dtype):
    network = metrics.load_encoder("lpips", str(zoo.path("lpips")), device=device, dtype=dtype)
    images = [render(sample.sample) for sample in _samples()]
    targets = [render(sample.source) for sample in _samples()]
    distances = network.distances(images, targets)
    return Outcome({sample.nein: np.array(d) for sample, d in zip(_samples(), distances, strict=True)})


def _negvqa(device, dtype):
    with tempfile.TemporaryDirectory() as folder:
        words = ("--model", "nano:negvqa", "--questions", 96, "--out", folder)
        assert run(*words, "--device", device, "--dtype", dtype) == 0
        [file] = Path(folder).glob("*/scores.csv")
        rows = {f"{row.id} {row.variant}": row for row in answers(file.parent)}
    numbers = {key: np.exp(np.array(row.logprobs, float)) for key, row in rows.items()}
    return Outcome(numbers, {key: str(row.text) for key, row in rows.items()})


SUBJECTS = {
    "editor ip2p": Subject(_editor("ip2p"), 1.5 / 255),
    "editor nein-magicbrush": Subject(_editor("nein-magicbrush"), 1.5 / 255),
    "VQA judge": Subject(_judge("vqa", "llava", _vqa)),
    "detector": Subject(_judge("ovd", "owlv2", _ovd)),
    "matcher": Subject(_judge("itm", "blip", _itm)),
    "CLIP": Subject(_clip),
    "DINO": Subject(_features("dino")),
    "FID network": Subject(_features("fid")),
    "LPIPS": Subject(_lpips),
    "NegVQA model": Subject(_negvqa),
}
