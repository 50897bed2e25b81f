from __future__ import annotations

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image
from transformers import AutoProcessor

from nein import metrics
from nein.datasets.negbench import official
from nein.datasets.negbench.sentences import Concepts
from nein.editors import EditResult
from nein.engine.folder import sample_seed
from nein.engine.images import decode
from nein.generate.negbench import pairs, stages
from nein.generate.negbench.pairs import Verifier, verify
from nein.loading.errors import UserError
from nein.metrics.base import MetricError
from nein.metrics.judges.base import Detection
from nein.metrics.judges.detectors import find_named_scores
from tests.editors.tiny import build_pipeline
from tests.loopback import say
from tests.metrics.tiny import make_owlv2, make_owlvit
from tests.rehearsal import ScriptedDetector

NAMES = ("dog", "cat", "car", "boat")
GONE = "unreadable image: the file is missing"


def shows(*names):
    """A picture whose k-th row is white where the k-th name is there."""
    picture = np.zeros((8, 8, 3), np.uint8)
    for name in names:
        picture[NAMES.index(name)] = 255
    return picture


def white(image, label):
    return float(image[NAMES.index(label.removeprefix("A photo of "))].mean() / 255)


def eye(query="{object}", threshold=0.5, rule=white):
    return Verifier(ScriptedDetector(rule), query, threshold)


class Hand:
    """Adds what it should from the second try on; before that nothing."""

    fingerprint, describe = "hand", dict

    def __init__(self, good_from=1):
        self.tries, self.seeds, self.good_from = 0, [], good_from

    def edit(self, requests):
        self.seeds += [request.seed for request in requests]
        extra = ("car",) if self.tries >= self.good_from else ()
        self.tries += 1
        assert [request.instruction for request in requests] == ["Add a car."] * len(requests)
        return [EditResult("p", shows("dog", "cat", *extra)) for _ in requests]


SAID = "A dog and a cat.", "A dog and a cat. There is a car."
PLAN = pairs.PairPlan("p", *SAID, ("dog", "cat"), "car", "boat", "p", None)


@pytest.fixture
def made(tmp_path):
    def make(maker, start, attempts=3, seen=None):
        tools = pairs.PairTools(pairs.EditorMaker(maker), seen or eye())
        plan = start if isinstance(start, str) else replace(PLAN, start=start)
        return pairs.make_pairs({"p": plan}, tools, folder=tmp_path, seed=0, attempts=attempts)

    return make


def test_a_pair_is_made_again_until_the_detector_sees_the_object_in_one_picture_only(made, tmp_path):
    hand = Hand()
    without, with_ = made(hand, shows("dog", "cat"))
    assert (decode(tmp_path / with_.path) == shows("dog", "cat", "car")).all()
    assert (without.positives, without.negatives) == (("dog", "cat"), ("car", "boat"))
    assert (with_.positives, with_.negatives) == (("dog", "cat", "car"), ("boat",))
    assert without.source_id == with_.source_id == "p"
    assert without.notes == ("made at try 2",)
    assert len(set(hand.seeds)) == 2


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (("dog", "cat", "car"), "the object is in the picture without it"),
        (("dog",), "another object is lost"),
        (("dog", "cat", "boat"), "the further absent object is there"),
        (None, "the object is not in the picture with it"),
    ],
)
def test_every_way_a_pair_can_be_wrong_is_seen(made, start, reason):
    hand = Hand(good_from=0 if start else 9)
    (image,) = made(hand, shows(*(start or ("dog", "cat"))), attempts=1)
    assert (image.problem, image.notes) == (pairs.NOT_MADE, (reason,))


def test_a_detector_or_a_picture_that_fails_costs_its_pair_only(made):
    def broken(*_):
        raise MetricError("out of order")

    (image,) = made(Hand(0), shows("dog", "cat"), 1, eye(rule=broken))
    assert (image.problem, image.notes) == (pairs.NOT_MADE, ("the detector failed: out of order",))
    (image,) = made(Hand(), GONE)
    assert image.problem == GONE


def test_what_is_added_is_drawn_from_what_is_absent():
    image = Concepts("i", "i.png", ("A dog",), ("dog",), unsure=("boat",))
    plans = [pairs.plan_edit((image, shows()), NAMES, seed) for seed in range(20)]
    assert {plan.extra for plan in plans} == {"cat", "car"}
    assert all(plan.caption_with.startswith("A dog. There is a c") for plan in plans)


def test_verification_asks_by_the_query_and_counts_the_threshold_itself_as_present():
    image = Concepts("i", "i.png", ("A dog",), ("dog", "cat"), ("car", "boat"))
    for also, there in ((True, ("dog",)), (False, ("dog", "cat"))):
        asked = eye("A photo of {object}", 1.0)
        (found,) = verify(asked, [(image, shows("dog", "car"))], also_present=also)
        assert (found.positives, found.negatives) == (there, ("boat",))


class Boxes:
    """A detector of two boxes: the first is a dog (0.6) rather than a cat (0.3), the second nothing much."""

    LOGITS: ClassVar = {"dog": (0.4, -4.0), "cat": (-0.8, -3.0), "boat": (-5.0, -5.0)}

    def detect(self, images, labels, threshold):
        rows = []
        for row in labels:
            logits = torch.tensor([self.LOGITS[name] for name in row]).T  # boxes, labels
            scores = torch.sigmoid(logits).amax(0).tolist()
            named = find_named_scores(logits).tolist()
            found = zip(row, scores, named, strict=True)
            rows.append({name: Detection(s, 1, (0, 0, 1, 1), n) for name, s, n in found})
        return rows


def test_by_paper_an_object_is_there_where_a_box_has_it_for_its_best_label():
    image = Concepts("i", "i.png", ("A",), ("cat",), ("dog", "cat", "boat"))

    def absent(protocol, negatives):
        asked = replace(image, negatives=negatives)
        verifier = Verifier(Boxes(), "{object}", 0.1, protocol, len(negatives))
        (seen,) = verify(verifier, [(asked, shows())], also_present=False)
        return seen.negatives

    assert absent("fixed", ("dog", "cat", "boat")) == ("boat",)
    assert absent("paper", ("dog", "cat", "boat")) == ("cat", "boat")  # the cat's box is the dog's
    assert absent("paper", ("cat", "boat")) == ("boat",)
    for protocol, left in (("fixed", ()), ("paper", ())):  # present objects do not compete with absent ones
        verifier = Verifier(Boxes(), "{object}", 0.1, protocol, 1)
        both = replace(image, positives=("dog",), negatives=("cat",))
        (seen,) = verify(verifier, [(both, shows())], also_present=True)
        assert (seen.positives, seen.negatives) == (("dog",), left)


def test_by_paper_what_cannot_be_looked_at_keeps_its_absent_objects():
    image = Concepts("i", "i.png", ("A",), ("cat",), ("dog", "boat"))
    seen = {
        (protocol, wanted): verify(
            Verifier(Boxes(), "{object}", 0.1, protocol, wanted),
            [(image, GONE if wanted == 2 else shows())],
            also_present=False,
        )[0]
        for protocol in ("paper", "fixed")
        for wanted in (2, 5)
    }
    assert (seen["paper", 2].negatives, seen["paper", 2].problem) == (("dog", "boat"), "")
    assert "unreadable image" in seen["paper", 2].notes[0]
    assert seen["fixed", 2].problem == "unreadable image: the file is missing"
    assert seen["paper", 5].negatives == ("dog", "boat")  # the script looks at lists of the wanted length
    assert "not as many as wanted" in seen["paper", 5].notes[0]
    assert seen["fixed", 5].negatives == ("boat",)


def test_a_detector_whose_boxes_have_no_label_is_no_detector_of_the_paper():
    verifier = Verifier(ScriptedDetector(lambda *_: 0.5), "{object}", 0.1, "paper")
    with pytest.raises(UserError, match="or --protocol fixed"):
        verifier.detect([shows()], [["dog"]])


@pytest.mark.parametrize("make", [make_owlvit, make_owlv2])
def test_the_label_of_a_box_is_that_of_the_librarys_post_processing(make, tmp_path):
    """What the released filter_negative_objects.py counts: labels of `post_process` at 0.1 and above."""
    detector = metrics.load_judge("ovd", str(make(tmp_path / "owl")))
    names = ["dog", "cat", "car", "boat"]
    differ = 0
    for seed in range(6):
        image = np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        (seen,) = detector.detect([image], [names])
        scores = [seen[name].score for name in names]
        named = [seen[name].named or 0.0 for name in names]
        processor = AutoProcessor.from_pretrained(tmp_path / "owl")
        inputs = processor(text=[names], images=Image.fromarray(image), return_tensors="pt")
        with torch.no_grad():
            outputs = detector.model(**inputs)
        (boxes,) = processor.image_processor.post_process_object_detection(outputs, 0.0)
        best = [0.0] * len(names)
        for score, label in zip(boxes["scores"].tolist(), boxes["labels"].tolist(), strict=True):
            best[label] = max(best[label], score)
        np.testing.assert_allclose(named, best, atol=1e-5)
        assert max(named) == max(scores)
        differ += named != scores
    assert differ


@pytest.mark.slow
def test_a_nano_editor_and_the_nano_detector_make_pairs(negbench, tmp_path):
    given = ["generate", "--source", "pairs", "--scenes", "6", "--out", tmp_path, "--device", "cpu"]
    given += ["--steps", "12"]
    done = negbench(*given, "--attempts", "2")
    assert done.code == 0, done.stderr
    items = official.read_retrieval(tmp_path / "dataset" / "retrieval.csv")
    assert len(items) % 2 == 0
    assert all((tmp_path / "dataset" / item.image).is_file() for item in items)
    assert {item.id.rpartition("-")[2] for item in items} == {"with", "without"}
    vanished = tmp_path / "dataset" / items[0].image
    before = vanished.read_bytes()
    vanished.unlink()
    assert negbench(*given, "--attempts", "2").code == 0
    assert vanished.read_bytes() == before


SCENE = {
    "caption": "A dog sits by a chair.",
    "objects": ["dog", "chair"],
    "extra": "a ball",
    "caption_with_extra": "A dog sits by a chair with a ball.",
    "other": "cup",
}
#: What is wrong with the scenes after the first.
WRONG = {"objects": ["dog", "lamp"]}, {"other": "Balls"}, {"caption_with_extra": "A dog, a chair, no ball."}


class AsPlanned:
    """Sees what a pair should show, whatever it does."""

    fingerprint, describe = "planned", dict

    def detect(self, images, labels, threshold):
        shown = {"dog", "chair"}, {"dog", "chair", "ball"}
        box = 1, (0, 0, 1, 1)
        return [{name: Detection(float(name in shown[k]), *box) for name in labels[k]} for k in (0, 1)]


def test_a_pipeline_draws_pairs_from_text_that_a_language_model_imagines(
    server, negbench, tmp_path, monkeypatch
):
    # the parts of a tiny editor whose UNet reads noise alone
    index = build_pipeline(tmp_path / "sd", seed=1, in_channels=4) / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"_class_name": "StableDiffusionPipeline"}))

    def imagined(body, _):
        number = int(body["messages"][0]["content"].partition("number pair-")[2][:6])
        return 200, say(json.dumps(SCENE | ({}, *WRONG)[number])), {}

    server.rule, out = imagined, tmp_path / "out"
    monkeypatch.setattr(stages.MakePairs, "load_verifier", lambda *_: Verifier(AsPlanned(), "{object}", 0.5))
    given = ["--maker", f"text:{tmp_path / 'sd'}", "--llm.model", f"openai:{server.url}#eye-7b", "--out", out]
    done = negbench("generate", "--source", "pairs", "--scenes", "4", "--steps", "2", *given)
    assert done.code == 0, done.stderr
    assert "3 unusable: the sentences of a scene contradict its objects" in done.stdout
    items = official.read_retrieval(out / "dataset" / "negated_retrieval.csv")
    without, with_ = ((item.id, item.source, item.negatives) for item in items)
    assert without == ("pair-000000-without", "pair-000000", ("ball",))
    assert with_ == ("pair-000000-with", "pair-000000", ("cup",))
    pipeline = StableDiffusionPipeline.from_pretrained(tmp_path / "sd", requires_safety_checker=False)
    for end, text in (("without", SCENE["caption"]), ("with", SCENE["caption_with_extra"])):
        noise = torch.Generator().manual_seed(sample_seed(0, "pair/pair-000000", 0))
        drawn = pipeline(text, generator=noise, num_inference_steps=2).images[0]
        made = decode(out / "dataset" / "pictures" / f"pair-000000-{end}.png")
        np.testing.assert_allclose(made, np.array(drawn), atol=1)
