"""The commands as functions of Python: what may be given, what comes back, what is said of mistakes."""

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

import nein
from nein import editors
from nein.benchmarks.nein.config import CompareConfig, EvalConfig
from nein.benchmarks.nein.runs import RunDir
from nein.engine.folder import sample_seed
from nein.loading.errors import UserError, fold_name
from nein.metrics import METRICS, dual
from nein.nano import zoo
from tests.helpers import commands
from tests.helpers.runs import edits_of

FEW = {"metrics": ["l1"], "limit": 8, "control": [], "device": "cpu"}
QUICK = {"metrics": ["l1", "removal_vqa"], "limit": 16, "device": "cpu", "batch_size": 8}


def blur(image, instruction):
    return image.filter(ImageFilter.GaussianBlur(2))


def torn_picture():
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).convert("RGB").save(file, "PNG")
    return Image.open(io.BytesIO(file.getvalue()[:300]))


class Texts:
    def encode_text(self, texts):
        return np.array([[len(text), text.count("a"), 1.0] for text in texts])


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return nein.evaluate(blur, out=tmp_path_factory.mktemp("api"), **QUICK)


def test_a_function_becomes_a_row_of_figures_that_its_samples_give(result):
    table = result.table()
    assert list(table["editor"]) == ["blur", "blur"]
    assert list(table["instruction"]) == ["negative", '"Remove the X."']
    assert {"L1 ↓", "Removal (VQA) ↑", "scored"} <= {*table.columns}
    assert list(table["scored"]) == ["16 of 16", "16 of 16"]
    assert "Removal (VQA)" in str(table)  # what print shows of many columns
    figures = result.figures.query("metric == 'l1' and variant == 'negative' and task == 'results'")
    values = result.samples().query("metric == 'l1' and track == 'negative'")["value"]
    assert len(values) == 16
    assert list(figures["value"]) == pytest.approx([values.mean()])

    gap = result.gap()  # of an editor that ignores the instruction
    assert list(gap["metric"]) == ["Removal (VQA)"]
    assert list(gap["value"]) == [0.0]
    assert gap["low"][0] <= 0 <= gap["high"][0]


def test_a_result_is_shown_in_a_notebook_as_a_grid_and_as_a_page(result, tmp_path):
    shown = result._repr_html_()
    assert "With blur, Removal (judged by VQA) goes from" in shown
    assert "data:image/png;base64," in shown
    assert "<table" in shown
    assert "Removal (VQA)" in repr(result)
    picture = result.grid(3, out=tmp_path / "grid.png")
    assert picture.mode == "RGB"
    assert picture.width > 300
    page = result.report(tmp_path / "page.html", thumbnails=0)
    assert "blur" in page.read_text(encoding="utf-8")
    assert {file.name for file in tmp_path.iterdir()} == {"grid.png", "page.html"}


def test_the_same_call_computes_nothing_again(capsys):
    called = []

    def counted(image, instruction):
        called.append(instruction)
        return image

    first, again = (nein.evaluate(counted, **FEW) for _ in range(2))
    assert len(called) == 8  # what is selected, and not whole blocks
    assert first.out == again.out
    assert capsys.readouterr().err.count("Nothing was computed") == 1


def test_another_function_of_the_same_name_gets_another_folder():
    def mine(image, instruction):
        return image.filter(ImageFilter.GaussianBlur(1))

    first = mine

    def mine(image, instruction):
        return image.filter(ImageFilter.GaussianBlur(3))

    one, two = nein.evaluate(first, **FEW), nein.evaluate(mine, **FEW)
    assert one.out != two.out
    assert one.table()["L1 ↓"][0] != two.table()["L1 ↓"][0]
    with pytest.raises(UserError, match=r"fingerprint.*overwrite"):
        nein.evaluate(mine, **FEW, out=one.out)


def test_a_seed_belongs_to_the_sample():
    seen = set()
    result = nein.evaluate(lambda image, instruction, seed: seen.add(seed) or image, **FEW)
    edits = edits_of(result.runs[0])
    assert seen == {edit["seed"] for edit in edits} == {sample_seed(0, edit["id"]) for edit in edits}


BAD_EDITORS = [
    (lambda image, instruction: None, "returned a NoneType"),
    (lambda image, instruction: np.zeros((8, 8, 3)), "returned an array of shape"),
    (lambda image, instruction: image.convert("RGBA"), "returned an image in mode RGBA"),
    (lambda image, instruction: "done", "returned a str"),
    (lambda image, instruction: Image.new("RGB", (0, 8)), "returned an image in mode RGB"),
    (lambda image, instruction: torn_picture(), "raised OSError: image file is truncated"),
    (lambda image, instruction: {}["key"], "raised KeyError"),
]


def sometimes(edit):
    def sometimes_bad(image, instruction):
        return image if "cat" in instruction.lower() else edit(image, instruction)

    return sometimes_bad


def test_a_bad_result_is_the_samples_error_unless_all_are_bad():
    names = {f"bad{number}": bad for number, bad in enumerate(BAD_EDITORS)}
    result = nein.evaluate({name: sometimes(edit) for name, (edit, _) in names.items()}, **FEW)
    samples, notes = result.samples(), "".join(file.read_text() for file in result.out.rglob("notes/*.json"))
    assert "in sometimes_bad\\n" in notes
    for name, (edit, said) in names.items():
        own = samples[samples["editor"] == name]
        reasons = own.loc[own["value"].isna(), "reason"]
        assert reasons.str.contains(said, regex=False).all()
        if said == "raised KeyError":
            assert reasons.str.contains(r"test_api.py:\d+, in \S+").any()
        assert len(own) > len(reasons) > 0
        with pytest.raises(UserError, match=f"'bad' has made no image so far: bad {said}") as caught:
            nein.evaluate({"bad": edit}, **FEW)
        assert isinstance(caught.value.__cause__, KeyError | OSError) == ("raised" in said)


def test_a_function_may_change_what_it_is_given_and_give_another_size():
    def scribble(image, instruction):
        image.paste((255, 0, 0), (0, 0, 32, 32))
        return image.resize((48, 40))

    result = nein.evaluate(scribble, **FEW)
    assert result.samples()["value"].notna().all()
    [run] = map(RunDir, result.runs)
    assert Image.open(run.path / edits_of(run.path)[0]["image"]).size == (48, 40)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (3, "is of type int, not an editor; expected a function"),
        (object(), "not an editor; expected a function"),
        ([], "no editor or model to evaluate"),
        (None, "None is no editor or model"),
        ([blur, None], "None is no editor or model"),
        ("./absent.py:edit", "there is no file 'absent.py'"),
        ("./fails.py:edit", "fails.py:edit' raises RuntimeError when imported: no weights"),
        ("./ends.py:edit", "ends.py:edit' raises SystemExit when imported: "),
    ],
)
def test_what_is_no_editor_is_refused_in_one_sentence(thing, said):
    Path("fails.py").write_text("raise RuntimeError('no weights')")
    Path("ends.py").write_text("raise SystemExit(3)")
    with pytest.raises(ValueError, match=r".") as caught:
        nein.evaluate(thing, limit=8, metrics=["l1"], device="cpu")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()


def test_wrong_options_are_refused_as_on_the_command_line():
    with pytest.raises(UserError, match="Unknown key 'batchsize'; did you mean 'batch_size'"):
        nein.evaluate(blur, batchsize=3)
    with pytest.raises(UserError, match="on='ray' computes in other processes, which lack blur"):
        nein.evaluate(blur, limit=8, on="ray", device="cpu")


def test_a_pipeline_in_memory_edits_as_its_folder_does():
    from diffusers import StableDiffusionInstructPix2PixPipeline

    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(
        zoo.path("ip2p"), safety_checker=None, torch_dtype=torch.float32
    )
    memory = editors.make_editor(pipeline, name="mine", preset="nano", steps=4)
    folder = editors.get_editor("ip2p-nano", checkpoint=str(zoo.path("ip2p")), steps=4)
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    request = editors.EditRequest("a", image, "Remove the dog.", 7)
    assert (memory.edit([request])[0].image == folder.edit([request])[0].image).all()
    assert memory.describe()["weights"]["sha256"] == folder.describe()["weights"]["sha256"]


def test_options_go_to_the_editors_that_have_a_use_for_them():
    class Stepping(type(editors.get_editor("identity"))):
        def __init__(self, name, steps=20):
            super().__init__(name=name)
            made.append(steps)

    made = []
    both = nein.evaluate({"made": Stepping, "blur": blur}, **FEW, editor_options={"steps": 4})
    assert set(both.table()["editor"]) == {"made", "blur"}
    assert made == [4]


def test_a_notebook_shows_how_far_it_is(capsys, monkeypatch):
    nein.evaluate("identity", **FEW, out="quiet")
    assert "edit identity" not in capsys.readouterr().err  # nobody looks at a file
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    nein.evaluate("identity", **FEW, out="shown")
    assert "edit identity" in capsys.readouterr().err


def test_the_shell_takes_a_function_by_its_module_and_by_its_file(tmp_path):
    (tmp_path / "helper.py").write_text("RADIUS = 2\n")
    (tmp_path / "mine.py").write_text(
        "from PIL import ImageFilter\nfrom helper import RADIUS\n\n"
        "def edit(image, instruction):\n    return image.filter(ImageFilter.GaussianBlur(RADIUS))\n"
    )
    for reference, out in (("./mine.py:edit", "file"), ("mine:edit", "module")):
        line = ["eval", "--editor", reference, "--limit", "8", "--metrics", "l1", "--device", "cpu"]
        done = commands.in_a_fork(*line, "--control", "none", "--out", out, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / out / "edit" / "negative" / "manifest.json").exists()
    assert (tmp_path / "file" / "figures.csv").read_text() == (
        tmp_path / "module" / "figures.csv"
    ).read_text()


def test_metrics_are_found_however_their_names_are_written():
    metrics = EvalConfig.create(
        metrics=["CLIP-I", "L1", "AUC-Removal", "Removal (VQA)", "removal-vqa"]
    ).metrics
    assert metrics == ["l1", "clip_i", "removal_vqa", "auc_removal"]
    options = CompareConfig(runs=[Path()], metrics=["LPIPS"])
    options.check()
    assert options.metrics == ["lpips"]
    assert len({fold_name(name) for name in METRICS}) == len(METRICS)


def test_a_function_answers_questions_and_their_negations(tmp_path):
    asked = []

    def always_a(image, question, options):
        asked.append((image.mode, question, tuple(options)))
        return "A"

    result = nein.negvqa(always_a, limit=16, questions=32, device="cpu")
    # Sixteen questions and their negations, with the picture and without, and the options alone.
    assert len(asked) == 16 * 5
    assert {mode for mode, _, _ in asked} == {"RGB"}
    assert set(result.table()["model"]) == {"always_a"}
    # Each question has two options, and the right letter of one is the wrong letter of its negation.
    figures = result.figures.query("task == 'gap' and category == 'Average' and protocol == 'fixed'")
    by = dict(zip(figures["metric"], figures["value"], strict=False))
    assert by["original"] + by["negated"] == pytest.approx(1.0)
    assert result.gap()["value"].to_numpy() == pytest.approx([100 * by["gap"]])
    assert {"original", "negated"} <= set(result.samples().query("model == 'always_a'")["variant"])
    assert result.report(tmp_path / "page.html").is_file()
    (tmp_path / "mine.py").write_text("def always_a(image, question, options):\n    return 'A'\n")
    same = nein.negvqa(
        f"{tmp_path}/mine.py:always_a", limit=16, questions=32, device="cpu", out=tmp_path / "out"
    )
    assert same.gap().drop(columns="model").equals(result.gap().drop(columns="model"))


def test_half_a_character_in_an_answer_is_a_sentence():
    with pytest.raises(UserError, match="unpaired surrogate"):
        nein.negvqa(lambda image, question, options: "A \ud83d", limit=4, questions=8, device="cpu")


def test_an_object_with_two_encoders_is_measured_beside_a_named_model():
    class Colours(Texts):
        fingerprint = "colours-1"

        def encode_image(self, images):
            return np.array([np.asarray(image).mean((0, 1)) for image in images])

    result = nein.negbench({"mine": Colours(), "none": "random"}, limit=8, scenes=16, device="cpu")
    table = result.table()
    assert len(result.gap()) == len(result.gap().drop_duplicates(["model", "metric"])) > 2
    assert set(table["model"]) == {"mine", "none"}
    assert not table.duplicated(["model", *table.columns[1:4]]).any()
    assert all(table["data"])
    assert {"retrieval", "mcq"} <= set(result.figures["task"]) or len(result.figures) > 4
    with pytest.raises(ValueError, match="not a two-tower model"):
        nein.negbench(lambda images: images, limit=8, scenes=16, device="cpu")
    with pytest.raises(ValueError, match=r"mine does not take \(image, question, options\)"):
        nein.negvqa({"mine": lambda image, question: "A"}, limit=8, questions=16, device="cpu")


def test_an_object_with_other_weights_is_another_model():
    class Towers(Texts):
        def __init__(self, factor):
            self.net = torch.nn.Linear(3, 3, bias=False).requires_grad_(False)
            self.net.weight.copy_(torch.eye(3) * torch.tensor([1.0, factor, 1.0]))

    one, same, other = (dual.fingerprint_object(Towers(factor)) for factor in (1.0, 1.0, -9.0))
    assert one == same != other


def test_a_model_with_its_processor_goes_by_the_name_of_the_model():
    from transformers import AutoProcessor, CLIPModel

    folder = zoo.path("clip")
    pair = (CLIPModel.from_pretrained(folder), AutoProcessor.from_pretrained(folder))
    result = nein.negbench(pair, limit=8, scenes=16, device="cpu", datasets=["nano"])
    assert set(result.table()["model"]) == {"CLIPModel"}


def test_a_judge_is_asked_about_pictures():
    pictures = [Image.new("RGB", (64, 64), colour) for colour in ("white", "green")]
    questions = [f"Does this image contain {thing}? Answer only yes or no" for thing in ("dog", "cat")]
    frame = nein.judge(pictures, questions, device="cpu")
    assert list(frame["image"]) == [0, 0, 1, 1]
    assert frame["p_yes"].between(0, 1).all()
    one = nein.judge(pictures[0], questions[0], device="cpu")
    assert one.loc[0, "answer"] == frame.loc[0, "answer"]


@pytest.mark.parametrize(
    ("questions", "options", "said"),
    [
        (3, {}, "A question is 3; give a sentence"),
        (["Is it a dog?", ["Is it a cat?"]], {}, "A question is ['Is it a cat?']; give"),
        ("A dog?", {"model": "nano:lava"}, "there is no nano model 'lava' (did you mean 'llava'?)"),
    ],
)
def test_what_a_judge_cannot_be_asked_is_refused_in_one_sentence(questions, options, said):
    with pytest.raises(ValueError, match=r".") as caught:
        nein.judge(Image.new("RGB", (64, 64)), questions, **{"device": "cpu", **options})
    assert said in str(caught.value)


def test_cures_stand_beside_the_editor():
    told = []

    def paint(image, instruction):
        told.append(instruction)
        return image

    edited = nein.evaluate(paint, mend=["rewrite"], control=[], **{**QUICK, "metrics": ["l1"], "limit": 8})
    assert list(edited.table()["editor"]) == ["paint", "paint+rewrite"]
    assert sum(text.startswith("Remove the ") for text in told) == len(told) / 2 == 8
