from benchmarks.filters.__main__ import stages_right
from nein.engine.images import write_png
from nein.generate.nein import algorithms
from nein.generate.nein.sources import NANO_SPLIT
from nein.nano.data import iter_samples
from nein.nano.scenes import render

ACCEPTED, LOW, NO = algorithms.ACCEPTED, algorithms.LOW_MATCH, algorithms.REJECTED_OBJECT
#: (stage, share) -> (value, of how many).
EXPECTED = {
    ("clauses", "precision"): (1, 5), ("clauses", "recall of the threshold"): (0.8, 5),
    ("generate", "object there"): (0.5, 4), ("generate", "both"): (0.5, 4),
    ("generate", "all others there"): (1, 4),
    ("filter 1", "precision"): (0.333, 3), ("filter 1", "recall"): (0.5, 2),
    ("filter 2", "precision"): (0.5, 2), ("filter 2", "recall"): (1, 1),
    ("filter 2", "object there, before"): (0.333, 3), ("filter 2", "object there, after"): (0.5, 2),
    ("both filters", "precision"): (0.5, 2), ("both filters", "recall"): (0.5, 2),
}  # fmt: skip


def test_precision_and_recall_of_the_filters_are_those_of_what_was_drawn(tmp_path):
    samples = {int(sample.coco[-12:]) - 1: sample for sample in iter_samples(NANO_SPLIT, 5)}
    ways, queried = [], []
    for index, (added, verdict) in enumerate(
        [(True, ACCEPTED), (True, LOW), (False, NO), (False, ACCEPTED), (None, "the editor failed")]
    ):
        sample, source = samples[index], f"COCO_{index + 1:012d}"
        made = {"image": None}
        if added is not None:
            made = {"image": f"{index}.png", "width": 64, "height": 64}
            write_png(tmp_path / made["image"], render(sample.sample if added else sample.source))
        match = None if added is None else {"verdict": LOW if verdict == LOW else ACCEPTED}
        ask = {"verdict": verdict} if verdict in (NO, ACCEPTED) else None
        facts = {"generated_picture": made, "match": match, "ask": ask, "verdict": verdict}
        ways.append({"source": source, "object": sample.object, **facts})
        cosine = {"object": sample.object, "cosine": 0.4 if index == 0 else 0.3}
        queried.append({"image": source, "queried": [cosine]})
    found = stages_right(ways, queried, 0.4, tmp_path)
    values = {
        (stage, name): (round(share["value"], 3), share["n"])
        for stage, shares in found.items()
        for name, share in shares.items()
    }
    assert {key: values[key] for key in EXPECTED} == EXPECTED
