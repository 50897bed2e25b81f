"""Fixtures: a small world of pictures with official files about it, and tiny models of every kind."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from nein.benchmarks.negbench import config, estimates, report, scores, scoring, stages
from nein.benchmarks.negbench import folder as files
from nein.benchmarks.negbench import runs as run
from nein.benchmarks.negbench.encoding import Encoded
from nein.datasets.negbench import records
from nein.datasets.negbench.media import Drawn
from nein.datasets.negbench.official import write as write_csv
from nein.engine.run import Executor
from nein.metrics.choices import Reply
from nein.metrics.dual import openclip, prepare, products
from nein.reporting import figures as frames
from tests.metrics import tiny

NOUNS = ("car", "dog", "bench", "surfboard", "cell phone", "man", "traffic light", "it")


def items(count=8, captions=2):
    """(original, negated) items about pictures "000.png", ..., with captions that all differ."""
    original, negated = [], []
    for i in range(count):
        texts = tuple(f"A {NOUNS[i % 8]} and {NOUNS[(i + 3) % 8]}, view {i} {k}." for k in range(captions))
        absent = NOUNS[(i + 5) % 8]
        name = f"{i:03d}.png"
        original.append(records.RetrievalItem(name, name, texts, source=name))
        denied = tuple(f"There is no {absent} in the image. {text}" for text in texts)
        negated.append(
            records.RetrievalItem(name, name, denied, records.NEGATED, negatives=(absent,), source=name)
        )
    return tuple(original), tuple(negated)


def questions(count=12, pictures=8):
    """Questions in the released order: the right option first, then hybrid, affirmation, negation."""
    found = []
    for i in range(count):
        a, b, n = (NOUNS[(i + shift) % 8] for shift in (0, 3, 5))
        type_ = (records.AFFIRMATION, records.NEGATION, records.HYBRID)[i % 3]
        right = {
            records.AFFIRMATION: f"This image features {a} and {b}",
            records.NEGATION: f"This image does not feature {n}",
            records.HYBRID: f"This image features {b}, but not {n}",
        }[type_]
        options = (
            records.Option(right, type_),
            records.Option(f"This image features {n}, but not {b}", records.HYBRID),
            records.Option(f"This image features {n}", records.AFFIRMATION),
            records.Option(f"This image does not feature {a}", records.NEGATION),
        )
        name = f"{i % pictures:03d}.png"
        found.append(records.Question(f"q{i}", name, options, 0, type_, source=name))
    return tuple(found)


NOTHING = Drawn(lambda _: np.zeros((2, 2, 3), np.uint8))


def encoded(names, seed, reasons=None):
    """Random features of unequal length for all names but those with a reason."""
    rng = np.random.default_rng(seed)
    kept = [name for name in dict.fromkeys(names) if name not in (reasons or {})]
    features = rng.standard_normal((len(kept), 6)) * rng.uniform(0.1, 10, (len(kept), 1))
    return Encoded(features.astype(np.float32), {name: i for i, name in enumerate(kept)}, reasons or {})


def encode(task, **reasons):
    names = {"pictures": task.references, "texts": task.sentences}
    pictures, texts = (encoded(each, k, reasons.get(name)) for k, (name, each) in enumerate(names.items()))
    return pictures, texts


def write_data(folder):
    """The released files of COCO and CheXpert's binary sets, by hand, below a new folder."""
    (folder / "images").mkdir(parents=True)
    original, negated = items()
    write_csv(folder / "images" / "COCO_val_retrieval.csv", original)
    name = "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true.csv"
    write_csv(folder / "images" / name, negated)
    asked = [dataclasses.replace(question, image=f"/cluster/{question.image}") for question in questions()]
    path = folder / "images" / "COCO_val_mcq_llama3.1_rephrased.csv"
    write_csv(path, asked)
    released = [*(f"caption_{k}" for k in range(4)), "correct_answer_template", "image_path"]
    pd.read_csv(path)[["correct_answer", *released]].to_csv(path, index=False)  # without columns of ours
    for k, name in enumerate(("chexpert_binary_mcq.csv", "chexpert_binary_mcq_control.csv")):
        lines = [f'0,"There is no {n}","There is a {n}",/x/{i:03d}.png' for i, n in enumerate("abcdefgh")]
        if k:
            lines = [line.replace("There is no", "We see a") for line in lines]
        lines.insert(0, "correct_answer,caption_0,caption_1,image_path")
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def write_beaf(folder):
    """BEAF's file and pictures: four pictures with a dog and a cup, each with a copy without the dog."""
    rows = []
    folder.mkdir(exist_ok=True)
    for number in range(4):
        for copy, things in ((".jpg", ("dog", "cup")), ("_00.png", ("cup",))):
            name = f"COCO_val2014_{number:012d}{copy}"
            Image.fromarray(tiny.picture(2 * number + len(things))).save(folder / name)
            for thing in ("dog", "cup", NOUNS[number]):
                rows.append({
                    "id": len(rows), "image": name, "question": f"Is there a {thing} in the image?",
                    "orig_img": copy == ".jpg", "removed_q": thing == "dog",
                    "gt": "yes" if thing in things else "no",
                })  # fmt: skip
    (folder / "beaf_qna.json").write_text(json.dumps(rows))
    return folder


def write_pictures(root):
    (root / "deep").mkdir(parents=True)
    for i in range(8):
        Image.fromarray(tiny.picture(i)).save(root / "deep" / f"{i:03d}.png")
    return root


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory):
    return tiny.make_clip(tmp_path_factory.mktemp("models") / "clip", seed=3)


#: A ViT of open_clip, small enough for a test.
OPEN_CLIP = {
    "embed_dim": 24,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="session")
def open_clip_checkpoint(tmp_path_factory):
    """(a training checkpoint as a torch pickle of tensors, the JSON of its architecture)."""
    from open_clip.factory import CLIP

    folder = tmp_path_factory.mktemp("open_clip")
    with tiny.seeded(5):
        model = CLIP(**OPEN_CLIP)
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 3, "state_dict": state}, folder / "tiny.pt")
    (folder / "tiny.json").write_text(json.dumps(OPEN_CLIP))
    return folder / "tiny.pt", folder / "tiny.json"


@pytest.fixture(scope="session")
def open_clip_folder(open_clip_checkpoint):
    source, architecture = open_clip_checkpoint
    openclip.convert(source, source.parent / "folder", architecture=str(architecture))
    return source.parent / "folder"


def brute_force(images, texts):
    pairs = [[(a.astype(float), b.astype(float)) for b in texts] for a in images]
    return np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in row] for row in pairs])


def cosines(images, texts):
    return products(prepare(images)[:, None], prepare(texts)[None])


class Speaker:
    """A generative model that answers by a rule of picture and prompt; `heard`: what it was asked."""

    def __init__(self, rule, **more):
        self.rule, self.heard = rule, list[str]()
        self.fingerprint, self.scorings, self.concurrent = "speaker", ("generated",), 0
        self.__dict__ |= more

    def describe(self):
        return {"model": "Speaker"}

    def answer(self, images, asked, scorings):
        return [[self._reply(image, one.prompt.text) for one in row]
                for image, row in zip(images, asked, strict=True)]  # fmt: skip

    def _reply(self, image, prompt):
        self.heard.append(prompt)
        reply = self.rule(image, prompt)
        return Reply(text=reply) if isinstance(reply, str) else reply

    def stop(self):
        """Nothing waits here."""


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data")


def settings(tmp_path, data, pictures, *extra):
    line = ["--data", str(data), "--out", str(tmp_path / "out")]
    line += [] if pictures is None else ["--image-root", str(pictures)]
    line += ["--batch-size", "3", "--device", "cpu", *extra]
    return config.EvalConfig.parse(line)


#: `nein negbench eval` without page, table and plots, which take longer than all else of it here.
class FiguresAlone(run.NegBench):
    reports_all = False

    def page(self, finished, options):
        return None


def evaluate(tmp_path, data, pictures, *extra, page=False, **models):
    """Runs the command; (model/data set) -> what the report reads. models: option -> references."""
    options = dataclasses.replace(settings(tmp_path, data, pictures, *extra), **models)
    benchmark = run.NEGBENCH if page else FiguresAlone()
    benchmark(options, Executor(options.device))
    return evaluated_in(options.out_dir)


def evaluated_in(out):
    found = report.load_evaluated(files.find(out))
    return {f"{run.facts['row'] or run.facts['model']}/{run.facts['dataset']}": run for run in found}


def asked_by(folder):
    return stages.ModelTasks.load([folder])[0]


def rows_of(tmp_path, model, dataset):
    """Task and wording -> the rows of a run, from its blocks."""
    asked = asked_by(files.ResultsDir(tmp_path / "out" / model / dataset))
    return {task.key: [json.dumps(row) for row in scoring.read_rows(asked, task)] for task in asked.tasks}


def measured(rows):
    """The figures of rows of retrieval or of multiple choice."""
    every = list(rows)
    of = scores.tabulate_retrieval if "direction" in every[0] else scores.tabulate_choices
    table = scores.make_table({"task": "x", "variant": "y", **row} for row in of(every))
    return frames.records(estimates.make_estimates(table))
