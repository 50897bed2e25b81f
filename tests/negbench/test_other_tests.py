import functools
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import hmean
from sklearn.metrics import f1_score, precision_score, recall_score

from nein.benchmarks.negbench import estimates, scores, scoring, sections
from nein.benchmarks.negbench.config import EvalConfig
from nein.benchmarks.negbench.questions import Asking, Matching
from nein.datasets.negbench import loading, other_tests, registry
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.other_tests import KEPT, REMOVED
from nein.datasets.negbench.records import ChoiceTask, Option, Question
from nein.engine.folder import Blocks
from nein.engine.images import write_png
from nein.engine.stages import Model
from nein.loading.errors import UserError
from nein.models import references
from nein.reporting import figures as frames
from tests.negbench.conftest import Speaker, evaluate, measured

RETRIEVAL = "naturalbench-pairs"
SQUARES = np.kron([[0, 255], [255, 0]], np.ones((2, 2))).astype(np.uint8)[..., None].repeat(3, 2)


def as_json(content):
    return lambda path: path.write_text(json.dumps(content), encoding="utf-8") and None


def valse_item(caption, foil, votes):
    return {
        "dataset": "visual7w", "dataset_idx": "7", "image_file": "v7w_7.jpg", "caption": caption,
        "foil": foil, "linguistic_phenomena": "existence", "mturk": {"foil": 0, "caption": votes, "other": 0},
    }  # fmt: skip


def beaf_item(number, image, thing, removed, gt):
    asked, image = f"Is there a {thing} in the image?", f"COCO_val2014_000000001171{image}"
    return {"id": number, "image": image, "question": asked, "orig_img": image.endswith(".jpg"),
            "removed_q": removed, "gt": gt}  # fmt: skip


def natural(first, second, answers, kind):
    suffix = other_tests.SUFFIXES[kind == "mcq"]
    asked = [(first, "a.jpg"), (first, "b.jpg"), (second, "a.jpg"), (second, "b.jpg")]
    return [
        [text + suffix, name, said, kind] for (text, name), said in zip(asked, answers.split(), strict=True)
    ]


BEAF = [
    beaf_item(0, ".jpg", "car", True, "yes"), beaf_item(1, ".jpg", "train", True, "yes"),
    beaf_item(2, ".jpg", "spoon", False, "no"), beaf_item(3, "_00.png", "car", True, "no"),
    beaf_item(4, "_00.png", "train", True, "yes"), beaf_item(5, "_00.png", "spoon", False, "no"),
]  # fmt: skip
NATURALBENCH = [
    *natural("Is there no cake left?", "Is there a slice of cake?", "Yes No No Yes", "yes_no"),
    *natural("Is it a dog?", "Is it a cat?", "Yes No No Yes", "yes_no"),
    *natural(
        "What is it?\nOption: A:A cat; B:Not a cat;", "Where?\nOption:  A: In. B: Out.", "A B B A", "mcq"
    ),
]  # fmt: skip


SCOPE = {
    "image_0": "a.png", "image_1": "b.png", "caption_0": "Not all cups are red.",
    "caption_1": "All cups are red.", "denies_0": True, "denies_1": False, "construction": "not_all",
    "others": 2, "depth": 0,
}  # fmt: skip


def write_ccneg(path):
    note = {
        "json": {"caption": "a dog, on the grass"},
        "sop_data": {"negative-prompt": "a dog, not on the grass"},
    }
    names = [f"/workspace/datasets/cc3m/x/{k}.jpg" for k in range(3)]
    torch.save({"image_paths": names, "annotations": [note] * 3}, path)


def write_nein(path):
    """NeIn's annotations, with the folders of pictures beside them; of the second sample the object stays."""
    for name in ("coco_for/COCO_1", "nein/NeIn_1_1", "nein/NeIn_1_2"):
        image = path.parent / name.replace("/", f"_{path.stem}/")
        image.parent.mkdir(exist_ok=True)
        write_png(image.with_suffix(".png"), SQUARES)
    rows = [
        {"COCO": "COCO_1", "T_original": "A cat.", "T_negative": "The image lacks owl.",
         "T_generated": "Add an owl.", "NeIn": "NeIn_1_1"},
        {"COCO": "COCO_1", "T_original": "A cat.", "T_negative": "The image is not without a dog.",
         "T_generated": "Add a dog.", "NeIn": "NeIn_1_2", "family": "double_negation"},
    ]  # fmt: skip
    as_json(rows)(path)


PUBLISHED = {
    "valse": as_json(
        {
            "existence_visual7w_1": valse_item("There are no dogs.", "There are dogs.", 3),
            "existence_visual7w_2": valse_item("There are cats.", "There are no cats.", 2),
            "existence_visual7w_3": valse_item("There are no cows.", "There are cows.", 1),
        }
    ),
    "cc-neg": write_ccneg,
    "sugarcrepe": as_json(
        {
            "0": {"filename": "1.jpg", "caption": "A man with it.", "negative_caption": "A man without it."},
            "1": {"filename": "2.jpg", "caption": "A man on it.", "negative_caption": "A man under it."},
        }
    ),
    "negrefcocog": as_json(
        [{"image": "COCO_train2014_1.jpg", "phrase": "a cup with no lid", "ref_bbox": [1.5, 2, 30, 40],
          "bbox_list": [[0, 0, 9, 9], [1.5, 2, 30, 40]]}]
    ),
    "beaf": as_json(BEAF),
    "naturalbench": as_json(NATURALBENCH),
    "naturalbench-pairs": as_json(
        [{"index": k, "image_0": "a.jpg", "image_1": "b.jpg", "caption_0": text, "caption_1": "A cat."}
         for k, text in enumerate(("A dog.", "No cat."))]
    ),
    "scope": as_json([SCOPE]),
    "nein": write_nein,
    "beaf-pairs": as_json(BEAF),
}  # fmt: skip


@pytest.fixture
def published(tmp_path):
    def read(reader, protocol="fixed"):
        path = tmp_path / "file.json"
        PUBLISHED[reader.removesuffix("-asked")](path)
        return other_tests.read(reader, path, protocol)

    return read


def texts(question):
    return [option.text for option in question.options]


def right(questions):
    return [question.options[question.correct].text for question in questions]


def test_there_is_a_published_form_of_every_reader_and_a_reader_for_every_row():
    parts = [part for row in registry.ROWS.values() for part in row.parts if part.reader]
    named = {part.reader.removesuffix("-asked") for part in parts if part.task != registry.RETRIEVAL}
    assert set(PUBLISHED) == set(other_tests.READERS) == named


def test_cc_neg_is_its_last_items_and_loses_the_commas_of_its_negations_in_the_paper_protocol_only(
    published, monkeypatch
):
    fixed, paper = (texts(published("cc-neg", protocol)[0]) for protocol in ("fixed", "paper"))
    assert fixed == ["a dog, on the grass", "a dog, not on the grass"]
    assert paper == ["a dog, on the grass", "a dog not on the grass"]
    monkeypatch.setattr(other_tests, "EVALUATED", 2)
    assert [question.id for question in published("cc-neg")] == ["1", "2"]


#: Reader -> its questions: id, source, right option, type, and each option with its picture.
READ = {
    "valse": [
        ("existence_visual7w_1", "v7w_7.jpg", 0, "negation", ["There are no dogs.", "There are dogs."]),
        ("existence_visual7w_2", "v7w_7.jpg", 0, "affirmation", ["There are cats.", "There are no cats."]),
    ],
    "sugarcrepe": [("0", "1.jpg", 0, "affirmation", ["A man with it.", "A man without it."])],
    "negrefcocog": [
        ("0", "COCO_train2014_1.jpg", 1, "negation",
         ["a cup with no lid 0,0,9,9", "a cup with no lid 1.5,2,30,40"]),
    ],
    "naturalbench-pairs": [
        ("1/text0", "a.jpg b.jpg", 0, "negation", ["No cat.", "A cat."]),
        ("1/image0", "a.jpg b.jpg", 0, "negation", ["No cat. a.jpg", "No cat. b.jpg"]),
        ("1/text1", "a.jpg b.jpg", 1, "affirmation", ["No cat.", "A cat."]),
        ("1/image1", "a.jpg b.jpg", 1, "affirmation", ["A cat. a.jpg", "A cat. b.jpg"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("reader", READ)
def test_a_published_file_gives_these_questions(published, reader):
    """VALSE where annotators agree, SugarCrepe where one caption denies, a phrase for every box."""
    found = [
        (q.id, q.cluster, q.correct, q.type,
         [f"{option.text} {option.image.rpartition('=')[2]}".strip() for option in q.options])
        for q in published(reader)
    ]  # fmt: skip
    assert found == READ[reader]


def test_beaf_pairs_a_removed_thing_with_its_original_and_no_other(published):
    by_id = {question.id: question for question in published("beaf")}
    assert by_id["0"].groups == by_id["3"].groups == (("thing removed", "3", 2),)
    assert by_id["2"].groups == by_id["5"].groups == (("thing kept", "5", 2),)
    assert by_id["1"].groups == by_id["4"].groups == ()  # the train is removed from another copy
    assert len({question.source for question in by_id.values()}) == 1
    assert right([by_id["0"], by_id["3"]]) == ["Yes", "No"]
    # copies without a thing are minimal pairs
    first, second = published("beaf-pairs")[:2]
    assert len(published("beaf-pairs")) == len(published("beaf-pairs-asked")) == 4
    assert texts(first) == ["There is a car in the image.", "There is no car in the image."]
    assert [option.image[-6:] for option in second.options] == ["71.jpg", "00.png"]


def test_of_naturalbench_the_fours_are_read_in_which_something_is_denied(published):
    questions = published("naturalbench")
    expected = [f"{n}/q{q}i{i}" for n in (0, 2) for q in (0, 1) for i in (0, 1)]
    assert [question.id for question in questions] == expected
    first, last = questions[0], questions[-1]
    assert (first.asked, first.type) == ("Is there no cake left?", "negation")
    assert (last.asked, texts(last), last.correct) == ("Where?", ["In", "Out"], 0)
    names = ("a question, both pictures", "a picture, both questions", "all four")
    found = Counter(score for question in questions for score, _, _ in question.groups)
    assert found == dict.fromkeys(names, 8)


def test_pairs_in_scope_are_right_together_and_know_how_difficult_they_are(published):
    asked = published("scope-asked")
    for questions in (published("scope"), asked):
        assert Counter(group for q in questions for group in q.groups)["not_all", "0", 4] == 4
        assert {q.difficulty for q in questions} == {(("other things", 2), ("denials above", 0))}
    assert asked[1].asked == "Is it true of the picture? Not all cups are red."
    assert right(asked) == ["Yes", "No", "No", "Yes"]
    assert [question.type for question in asked] == ["negation", "negation", "affirmation", "affirmation"]


def test_nein_gives_the_pictures_with_and_without_and_both_sentences(published):
    compared, asked = published("nein"), published("nein-asked")
    assert [q.id for q in compared] == [f"NeIn_1_1/{x}" for x in "text0 image0 text1 image1".split()]
    said = [(option.text, option.template) for option in compared[0].options]
    assert said == [("The image has an owl.", "affirmation"), ("The image lacks owl.", "negation")]
    assert [option.image for option in compared[1].options] == [
        "nein_file/NeIn_1_1.png",
        "coco_for_file/COCO_1.png",
    ]
    assert {question.source for question in (*compared, *asked)} == {"COCO_1"}
    assert asked[3].asked == "Is it true of the picture? The image lacks owl."
    assert right(asked) == ["Yes", "No", "No", "Yes"]


def test_what_makes_pairs_difficult_has_a_figure_for_each_level():
    rows = [
        {**row(f"{pair}{k}", float(pair != "c" or k > 0), ("past", pair, 4)),
         "difficulty": {"other things": level, "denials above": depth}}
        for pair, level, depth in (("a", 0, 0), ("b", 1, 0), ("c", 1, 0), ("d", 1, 1)) for k in range(4)
    ]  # fmt: skip
    made = frames.frame(measured(rows))
    found = frames.records(frames.select(made, metric="joint by difficulty"))
    assert [(f["axis"], f["level"], f["value"], f["n"]) for f in found] == [
        ("other things", "0", 1.0, 1), ("other things", "1", 0.5, 2),
        ("denials above", "0", pytest.approx(2 / 3), 3), ("denials above", "1", 1.0, 1),
    ]  # fmt: skip
    assert len(frames.select(made, **sections.SECTIONS[2].plots[0].where)) == 2
    assert sections.DIFFICULTY.sheet(made).rows[0][-3:] == ["100.0 [2.5, 100.0]", "50.0 ± 48.7", "1, 2"]


def test_neins_files_are_read_only_by_name(tmp_path):
    write_nein(tmp_path / "val.json")
    PUBLISHED["valse"](tmp_path / "existence.json")
    assert [data.name for data in loading.load(str(tmp_path))] == ["valse"]
    assert [data.name for data in loading.load(str(tmp_path), names=["all", "nein"])] == ["valse", "nein"]
    (alone,) = loading.load(str(tmp_path), names=["nein"])
    loading.check_images(alone)
    assert [task.name for task in alone.tasks] == ["nein/pairs", "nein/yes-no"]


@pytest.mark.parametrize(
    ("reader", "content", "said"),
    [
        ("cc-neg", {"image_paths": [Path("x")]}, "is not plain data"),  # nothing in it is run
        ("valse", [], "Input should be an object"),
        ("valse", {"x": {"caption": "A"}}, "'x.image_file': Field required"),
        ("beaf", [{**BEAF[0], "gt": "maybe"}], "gt is 'maybe'; it must be yes or no"),
        ("beaf-pairs", [BEAF[0], {**BEAF[3], "question": "Do you see cars?"}], '"Do you see cars'),
        ("naturalbench", NATURALBENCH[:3], "four per pair"),
        ("naturalbench", [["Is it?", "a.jpg", "Perhaps", "yes_no"]] * 4, "'Perhaps', not Yes or No"),
        ("sugarcrepe", {}, "no item for this test"),
        (
            "negrefcocog",
            [{"image": "a.jpg", "phrase": "x", "ref_bbox": [1, 1, 2, 2], "bbox_list": [[0, 0, 1, 1]]}],
            "ref_bbox must be one of them",
        ),
    ],
)  # fmt: skip
def test_a_file_in_another_form_is_one_sentence(tmp_path, reader, content, said):
    torch.save(content, tmp_path / "file") if reader == "cc-neg" else as_json(content)(tmp_path / "file")
    with pytest.raises(UserError, match=said):
        other_tests.read(reader, tmp_path / "file", "fixed")


def row(name, credit, *groups):
    return {"id": name, "source": name, "credit": credit, "templates": [None, None], "reason": "why",
            "difficulty": {}, "groups": [list(group) for group in groups], "type": None, "correct": 0,
            "shown": [0, 1], "shares": None if credit is None else [credit, 1 - credit]}  # fmt: skip


def test_questions_that_belong_together_count_where_all_are_right():
    rows = [
        row("a", 1.0, ("pair", "1", 2), ("pair", "2", 2)), row("b", 1.0, ("pair", "1", 2)),
        row("c", 0.0, ("pair", "2", 2)), row("d", None, ("pair", "3", 2)), row("e", 1.0, ("pair", "3", 2)),
        row("f", 0.0, ("pair", "4", 2)), row("g", 1.0, ("pair", "4", 2)), row("h", 1.0, ("pair", "5", 2)),
    ]  # fmt: skip
    made, third = frames.frame(measured(rows)), pytest.approx(1 / 3)
    joint = frames.pick(made, metric="joint", type="pair")
    assert (joint["value"], joint["n"], joint["unscored"]) == (third, 3, 1)  # "5" was cut off
    outcomes = [f["value"] for f in frames.records(frames.select(made, metric="pair"))]
    assert outcomes == [third, third, third, 0]  # both, first alone, second alone, neither
    assert frames.pick(made, metric="joint chance")["value"] == 0.25
    constant = [row(f"{k}", 0.5, ("four", f"{k // 4}", 4)) for k in range(8)]
    assert frames.pick(frames.frame(measured(constant)), metric="joint")["value"] == 1 / 16


@pytest.mark.parametrize("name", ["nein", "scope"])
def test_drawn_pairs_are_read_with_their_pictures(name):
    (data,) = loading.load("nano", names=[name], scenes=10)
    assert data.name == f"nano-{name}"
    for task in data.tasks:
        assert isinstance(task, ChoiceTask)
        assert len(task.questions) >= 5
        assert all(data.media.frames(reference)[0].ndim == 3 for reference in task.references[:4])
        sizes = Counter(group for question in task.questions for group in question.groups)
        assert all(count == size for (_, _, size), count in sizes.items())
        together = [question.id.partition("/")[0] for question in task.limit(8).questions]
        assert len(set(together)) == 2  # a limit leaves whole pairs


def test_a_limit_takes_a_question_of_every_image_first():
    (data,) = loading.load("nano", scenes=10)
    images = [question.image for question in data.tasks[1].questions]
    assert len(images) > len(set(images)) == len(set(images[: len(set(images))]))


def test_beafs_figures_are_those_of_its_script():
    rng, asked, rows = random.Random(5), [], []
    for pair in range(40):
        removed = bool(pair % 2)
        for copy in range(2):
            there, right = not (removed and copy), rng.random() < 0.7
            asked.append((there, right == there))
            group = (REMOVED if removed else KEPT, str(pair), 2)
            rows.append({**row(f"{pair}.{copy}", float(right), group), "correct": int(not there)})
    table = scores.make_table(
        {"task": "yes-no", **one} for one in scores.tabulate_choices(rows, is_yes_no=True)
    )
    figure = functools.partial(frames.pick, estimates.make_estimates(table))
    truth, said = zip(*asked, strict=True)
    for metric, own in (("precision", precision_score), ("recall", recall_score), ("F1", f1_score)):
        assert figure(metric=metric)["value"] == pytest.approx(own(truth, said))
    tu = figure(metric="joint", type=REMOVED)["value"]
    undecided = sum(
        figure(metric="pair", type=KEPT, outcome=outcome)["value"] for outcome in scores.OUTCOMES[1:3]
    )
    assert figure(metric="F1 (TU, ID)")["value"] == pytest.approx(hmean([tu, 1 - undecided]))


@pytest.mark.parametrize(
    ("protocol", "name", "read"),
    [("fixed", "beaf", [1, 0, None, None, None]), ("paper", "beaf", [1, 1, 1, 0, None]),
     ("paper", "naturalbench", [1, 0, None, None, None])],
)  # fmt: skip
def test_answers_in_words_are_read_by_the_first_word_and_under_paper_as_beafs_release_reads_them(
    protocol, name, read
):
    said = ["Yes, I see no dog.", "No. Yes?", "I see eyes.", "I do not know.", "It depends."]

    options = (Option("Yes"), Option("No"))
    asked = tuple(Question(text, "a", options, 0, asked="Is there a dog?") for text in said)
    task = ChoiceTask(f"{name}/yes-no", asked, Drawn(lambda _: SQUARES))
    speaker = Speaker(lambda image, prompt: said[len(speaker.heard) - 1])
    config, model = EvalConfig(protocol=protocol), Model.one("m", lambda: speaker)
    stage = Asking("answers", task, Blocks.first(5, 5), config=config, model=model)
    rows = stage.work(speaker, stage.read(0), ())["answers"]
    assert [None if row["chosen"] is None else 1 - row["chosen"] for row in rows] == read
    reasons = [row["reason"] for row in rows if row["chosen"] is None]
    assert reasons == ["the answer is neither yes nor no"] * read.count(None)


class Longest:
    """A matcher for which the longest sentence fits best, and nothing fits a picture of one colour."""

    fingerprint = "longest"

    def describe(self):
        return {"model": "Longest"}

    def match(self, images, texts, head="itm"):
        if any(not image.std() for image in images):
            raise ValueError("nothing to see")
        return [np.array([float(len(text)) for text in row]) for row in texts]


def test_a_model_with_a_head_of_its_own_scores_pictures_with_sentences(tmp_path):
    files = {"existence.json": "valse", "NaturalBench-Retrieval/metadata.json": RETRIEVAL}
    for file, reader in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        PUBLISHED[reader](tmp_path / file)
    for name in ("v7w_7.jpg", "a.jpg", "b.jpg"):
        Image.fromarray(SQUARES).save(tmp_path / name)
    match = [references.InMemory("longest", Longest())]
    found = evaluate(tmp_path, tmp_path, tmp_path, "--model", "none", "--match", "longest", match=match)
    valse = found["longest/valse"].figures  # "There are no dogs." is longer than "There are dogs."
    assert frames.pick(valse, metric="accuracy", type="negation")["value"] == 1
    assert frames.pick(valse, metric="accuracy", type="affirmation")["value"] == 0
    assert frames.pick(valse, metric="selected", template="negation")["value"] == 1
    # Of one sentence for two pictures both are as long: chance.
    joint = frames.pick(found["longest/naturalbench"].figures, metric="joint", type="image")
    assert joint["value"] == 0.25


def test_a_picture_that_a_matcher_fails_on_leaves_one_question_unscored():
    media = Drawn(lambda name: np.full((4, 4, 3), 9, np.uint8) if name == "grey" else SQUARES)
    asked = [Question(name, name, (Option("a dog"), Option("no dog")), 0) for name in ("a", "grey", "b")]
    task = ChoiceTask("x/caption", tuple(asked), media)
    stage = Matching("answers", task, Blocks.first(3, 3), config=EvalConfig(), model=None)
    rows = stage.work(Longest(), stage.read(0), ())["answers"]
    assert [row["scores"] for row in rows] == [[5.0, 6.0], None, [5.0, 6.0]]
    assert "nothing to see" in rows[1]["reason"]
    assert not stage.is_valid("answers", 0, rows)
    scored = list(scoring.score_answers(task, {row["id"]: row for row in rows}))
    assert [row["credit"] for row in scored] == [0.0, None, 0.0]


def test_files_are_found_below_a_folder_some_of_them_by_the_folder_too(tmp_path):
    retrieval = "NaturalBench-Retrieval/metadata.json"
    places = {"x/data/existence.json": "valse", retrieval: RETRIEVAL,
              "y/metadata.json": "valse", "y/test_set.json": "valse"}  # fmt: skip
    for place, reader in places.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        PUBLISHED[reader](tmp_path / place)
    sets = loading.load(str(tmp_path))
    assert [task.name for data in sets for task in data.tasks] == ["valse/caption", "naturalbench/pairs"]
    assert loading.load(str(tmp_path / retrieval))[0].name == "naturalbench"
    PUBLISHED["valse"](tmp_path / "y/existence.json")
    with pytest.raises(UserError, match=r"--data contains .*existence.json, .*existence.json"):
        loading.load(str(tmp_path))
    (tmp_path / "y/existence.json").unlink()
    for where, name, said in (
        (str(tmp_path), "beaf", r"none of the files of BEAF \(beaf_qna.json\): beaf_qna"),
        ("nano", "valse", "is not drawn in 'nano'; --data nano draws nein and scope"),
        ("nano:style", "valse", "is not drawn in 'nano:style'"),
    ):
        with pytest.raises(UserError, match=said):
            loading.load(where, names=[name])
