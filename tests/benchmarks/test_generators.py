"""Text-to-image models on prompts that deny something."""

import base64
import inspect
import io
import json
import re

import diffusers
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from nein.benchmarks import generators
from nein.benchmarks.generators_config import GeneratorsConfig
from nein.datasets import prompts
from nein.datasets.prompts import AFFIRMED, DENIED, UNMENTIONED, Prompt, Prompts
from nein.editors import EditRequest, text_to_image
from nein.editors.pipelines import DiffusersGenerator
from nein.editors.presets import TEXT_TO_IMAGE
from nein.engine import atomic
from nein.engine.folder import sample_seed
from nein.loading.errors import UserError
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from tests.helpers.commands import ROOT, exit_code

DEVICE = ["--device", "cpu", "--on", "debug"]
TESTPOINTS = {
    "Testpoints": ["Style", "Grammar - Negation", "Attribute - Quantity", "Text Generation"],
    "Testpoint Description": ["an ink drawing", "no lamp on the desk", "two mugs", "a sign that says 'no'"],
}
#: Images of 8 x 8 pixels, of which pixel k says whether category k is there; and judges that read them. What
#: is denied is there in every fourth image.
SCRIPT = """
import numpy as np
from nein.metrics.judges.base import Answer, Detection
from nein.nano.scenes import CATEGORIES


def draw(prompt, seed):
    text = prompt.lower()
    names = [name for name in CATEGORIES if f" {name}" in text]
    if " no " in text or "without" in text:
        shown = [name for name in names if f"no {name}" not in text and f"without a {name}" not in text]
        shown = [name for name in shown if f"without an {name}" not in text]
        names = names if seed % 4 == 0 else shown
    image = np.zeros((8, 8, 3), np.uint8)
    for name in names:
        image[divmod(CATEGORIES.index(name), 8)] = 255
    return image


def broken(prompt, seed):
    raise RuntimeError("no paint")


class Reads:
    template, fingerprint = "question", "reads"

    def __init__(self, **machine):
        pass

    def describe(self):
        return {"judge": "reads"}

    def there(self, image, name):
        return name in CATEGORIES and bool(image[divmod(CATEGORIES.index(name), 8)].any())

    def ask(self, images, questions):
        rows = zip(images, questions)
        said = [[any(self.there(i, c) for c in CATEGORIES if c in q) for q in row] for i, row in rows]
        return [[Answer("Yes" if yes else "No", 1) for yes in row] for row in said]

    def detect(self, images, labels, threshold=0.1):
        box = (0.0, 0.0, 8.0, 8.0)
        rows = zip(images, labels)
        return [{n: Detection(float(self.there(i, n)), 1, box) for n in row} for i, row in rows]
"""


def write(path, *rows):
    pd.DataFrame([dict(zip(rows[0], row, strict=True)) for row in rows[1:]]).to_csv(path, index=False)
    return path


# --- prompts -------------------------------------------------------------------------------------------


def test_a_table_has_things_ids_and_twins(tmp_path):
    head = ("id", "prompt", "wanted", "forbidden", "affirmed", "unmentioned")
    rows = ("a", "A mug, no lamp, no pen", "mug", "lamp; pen", "A mug, a lamp, a pen", "A mug"), (
        "b", "A calm sea", "", "the sea is rough.", "", "")  # fmt: skip
    found = prompts.load(str(write(tmp_path / "p.csv", head, *rows)))
    texts = {DENIED: rows[0][1], AFFIRMED: rows[0][4], UNMENTIONED: rows[0][5]}
    assert found.records == [
        Prompt("a", texts, ("lamp", "pen"), ("mug",)),
        Prompt("b", {DENIED: "A calm sea"}, ("the sea is rough.",)),
    ]
    assert found.facts["sentences"] == 1


@pytest.mark.parametrize(
    ("phrase", "things"),
    [
        ("no lamp on the desk", ("lamp",)),
        ("a man who did not have any umbrella", ("umbrella",)),
        ("the door is not open", ("the door is open.",)),
        ("not wearing a coat", ("wearing a coat.",)),
        ("not open, and it was not locked", ()),
        ("neither the cup nor the jug was broken", ()),
    ],
)
def test_what_a_test_point_denies_is_a_noun_a_sentence_or_left_out(tmp_path, phrase, things):
    points = {**TESTPOINTS, "Testpoint Description": ["an ink drawing", phrase, "two mugs", "a sign: 'no'"]}
    plain = json.dumps({"Testpoints": ["Style"], "Testpoint Description": ["ink"]})
    rows = ("index", "prompt_en", "sub_dims_en"), (7, "A desk.", json.dumps(points)), (8, "A sea.", plain)
    [record] = prompts.load(str(write(tmp_path / "unigen.csv", *rows))).records
    assert (record.id, record.forbidden, record.wanted) == ("7", things, ("an ink drawing.", "two mugs."))
    assert record.left_out == (() if things else (phrase,))


def test_both_lists_of_spacevlm_are_read(tmp_path):
    single = {"Prompt": "a jug not tilted", "Question1": "Is this a jug?", "Question2": "Is the jug tilted?"}
    several = {"id": 4, "full_prompt": "A desk without a pen or a cup.", "affirmative_prompt": "A desk."}
    several |= {"negative_prompts": ["pen", "cup"], "Question1": "Is this a desk?", "Question2": []}
    (file := tmp_path / "space.json").write_text(json.dumps([single, several]))
    one, two = prompts.load(str(file)).records
    assert one == Prompt("1", {DENIED: "a jug not tilted"}, ("Is the jug tilted?",), ("Is this a jug?",))
    assert two.texts == {DENIED: "A desk without a pen or a cup.", UNMENTIONED: "A desk."}
    assert two.forbidden == ("pen", "cup")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.txt", "", "is no list of prompts; give nano"),
        ("p.csv", "prompt,wanted\na,b\n", "has no column forbidden"),
        ("p.csv", "prompt,wanted,forbidden\nA jug,jug,\n", "line 2: 'forbidden' is empty"),
        ("p.csv", "prompt,wanted,forbidden\n ,jug,pen\n", "line 2: the prompt is empty"),
        ("p.csv", "id,prompt,wanted,forbidden\na,A,,b\na,B,,c\n", "line 3: the id 'a' stands above"),
        ("p.csv", "index,prompt_zh,sub_dims_zh\n1,x,{}\n", "denials are read in English"),
        ("p.csv", "index,prompt_en,sub_dims_en\n1,x,{\n", "line 2"),
        ("p.json", '[{"Prompt": "a"}]', "entry 1 has no 'Question2'"),
        ("p.json", "{", "p.json"),
    ],
)
def test_wrong_prompts_are_a_sentence_with_the_line(tmp_path, name, content, said):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=said):
        prompts.load(str(tmp_path / name))


def test_a_thing_without_a_twin_is_looked_for_where_no_prompt_names_it():
    texts = ["no pen", "no pens", "no cup", "no dog"]
    given = [Prompt(str(k), {DENIED: text}, (text[3:],)) for k, text in enumerate(texts)]
    given.append(Prompt("4", {DENIED: "not open", UNMENTIONED: "a door"}, ("it is open.",)))
    drawn = generators.plan_images(Prompts(given, "p"), 2)
    asked = {p.id: [(q.id, q.variant) for q in p.questions if q.kind == "vqa"] for p in drawn}
    assert asked["2_1"] == [("0/pen_1", UNMENTIONED), ("1/pens_1", UNMENTIONED), ("2/cup_1", DENIED)]
    assert asked["4-unmentioned_0"] == [("4/it is open._0", UNMENTIONED)]
    assert [p.sample for p in drawn[-4:]] == ["4_0", "4_0", "4_1", "4_1"]  # twins share a seed


# --- estimates -----------------------------------------------------------------------------------------


def test_estimates_are_those_by_hand():
    """Of four prompts what is denied is absent in 1, what is affirmed there in 3, the unmentioned in none."""
    arms = {DENIED: [1, 0, 0, 0], AFFIRMED: [1, 1, 1, 0], UNMENTIONED: [1, 1, 1, 1]}
    rows = [
        {"id": f"{k}/x", "source": str(k), "metric": "forbidden_vqa", "variant": arm, "value": value}
        for arm, values in arms.items()
        for k, value in enumerate(values)
    ]
    rows.append({**rows[0], "id": "9/x", "source": "9", "value": None, "reason": "no image"})
    figures = generators.GENERATORS.estimates(ScoreTable.from_rows(rows), None)
    of = {(row.task, row.variant): (row.value, row.n, row.unscored) for row in figures.itertuples()}
    assert of["results", DENIED] == (0.25, 4, 1)
    assert of["gap", "gap"][0] == 0.5
    assert of["excess", ""][:2] == (0.75, 4)


# --- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def line(tmp_path):
    """Words of a command on drawn prompts, by the script's generator and judges."""
    file = tmp_path / "mine.py"
    file.write_text(SCRIPT)
    judges = ["--judge", f"{file}:Reads", "--detector", f"{file}:Reads"]
    return ["generators", "--generator", f"four={file}:draw", *judges, *DEVICE, "--out", tmp_path / "out"]


def seeds(count):
    records = prompts.load("nano").records[:count]
    return [sample_seed(0, record.id) for record in records]


def test_planted_rates_come_back_and_a_known_error_is_corrected(line, tmp_path):
    assert exit_code(*line, "--limit", "40") == 0
    figures = frames.read(tmp_path / "out" / "four" / "figures.csv")
    planted = sum(seed % 4 == 0 for seed in seeds(40)) / 40
    assert 0 < planted < 0.5
    for metric in ("forbidden_vqa", "forbidden_ovd"):
        of = {(row["task"], row["variant"]): row["value"] for row in frames.records(figures, metric=metric)}
        assert of["results", DENIED] == pytest.approx(1 - planted)
        assert of["results", AFFIRMED] == of["results", UNMENTIONED] == 1
        assert of["gap", "gap"] == of["excess", ""] == pytest.approx(planted)
    assert frames.pick(figures, metric="wanted_vqa", variant=DENIED)["value"] == 1
    # The same by a detector that misses every fifth thing and sees every tenth that is not there.
    cases = [(True, k % 5 > 0) for k in range(500)] + [(False, k % 10 == 0) for k in range(500)]
    names = {"set": "known", "role": "object", "score": None, "verdict_paper": None}
    rows = [
        {**names, "cluster": str(k), "present": present, "verdict_fixed": seen}
        for k, (present, seen) in enumerate(cases)
    ]
    fingerprint = atomic.read_json(tmp_path / "out/four/models/ovd.json")["fingerprint"]
    facts = {"kind": "ovd", "fingerprint": fingerprint, "threshold": 0.1}
    atomic.write_json(tmp_path / "known" / "ovd.json", facts)
    atomic.write_lines(tmp_path / "known" / "ovd.jsonl", rows)
    page = tmp_path / "page.html"
    assert exit_code("report", tmp_path / "out", "--calibration", tmp_path / "known", "--out", page) == 0
    table = frames.select(frames.read(page.with_suffix(".csv")), task="corrected", statistic="corrected")
    found = {row["variant"]: row["value"] for row in frames.records(table, metric="forbidden_ovd")}
    assert found[DENIED] == pytest.approx((1 - planted + 0.8 - 1) / 0.7)
    assert found["more often if denied"] == pytest.approx(planted / 0.7)
    assert set(table["metric"]) == {"forbidden_ovd", "wanted_ovd"}
    assert "data:image" in page.read_text()


def test_a_sentence_is_for_the_vqa_judge_and_a_failed_image_is_unscored(line, tmp_path, capsys):
    rows = ("id", "prompt", "wanted", "forbidden"), ("a", "A dog, no cat.", "dog", "cat;the dog is brown.")
    file = write(tmp_path / "p.csv", *rows)
    broken = f"broken={line[2].partition('=')[2].replace(':draw', ':broken')}"
    words = [*line[:2], f"{line[2]},{broken}", *line[3:], "--prompts", file, "--samples", "2"]
    assert exit_code(*words) == 0
    table = pd.read_csv(tmp_path / "out" / "four" / "scores.csv")
    kinds = ("forbidden_vqa", "forbidden_sentence", "wanted_vqa", "forbidden_ovd", "wanted_ovd")
    assert {*zip(table["id"], table["metric"], strict=True)} == {
        (f"a/{thing}_{k}", metric)
        for thing, metric in zip(("cat", "the dog is brown.", "dog", "cat", "dog"), kinds, strict=True)
        for k in range(2)
    }
    lost = pd.read_csv(tmp_path / "out" / "broken" / "scores.csv")
    assert lost["value"].isna().all()
    assert lost["reason"].str.contains("no paint").all()
    assert "1 denied actions" in (tmp_path / "out" / "table.md").read_text()


def test_images_that_exist_are_judged_by_their_names_and_again_when_they_change(line, tmp_path, capsys):
    folder = tmp_path / "theirs"
    folder.mkdir()
    black, white = np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8)
    for name, image in (("0000_0", black), ("0000-affirmed", white), ("0001", white)):
        Image.fromarray(image).save(folder / f"{name}.png")
    words = [*line[:2], folder, *line[3:], "--limit", "2"]

    def shares():
        assert exit_code(*words) == 0
        table = pd.read_csv(next((tmp_path / "out").glob("*theirs/scores.csv")))
        scored = table[table["metric"] == "forbidden_ovd"]
        means = scored.dropna(subset="value").groupby(["source", "variant"])["value"].first()
        return means.to_dict(), table["value"].isna().sum()

    assert shares() == ({(0, AFFIRMED): 1, (0, DENIED): 1, (1, DENIED): 0}, 6)  # 6 have no image
    Image.fromarray(black).save(folder / "0001.png")
    assert shares()[0][1, DENIED] == 1
    Image.fromarray(black).save(folder / "0001.jpg")
    assert exit_code(*words) == 2
    assert "are of one prompt; remove one of them" in capsys.readouterr().err
    for file in folder.iterdir():
        file.rename(file.with_stem(f"x{file.stem}"))
    assert exit_code(*words, "--overwrite") == 2
    assert "is named after a prompt; expected '0000.png'" in capsys.readouterr().err


def test_a_served_model_gets_prompt_size_and_seed_and_what_it_made_is_kept(line, server, tmp_path, capsys):
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(buffer, format="PNG")
    content = {"data": [{"b64_json": base64.b64encode(buffer.getvalue()).decode()}]}
    server.models = (200, {"data": [{"id": "paint-1"}]}, {})
    # One request at a time; the third prompt fails once.
    server.rule = lambda body, count: (500, {}, {}) if count == 3 else (200, content, {})
    sending = ["--endpoint.retries", "0", "--endpoint.concurrency", "1", "--generator-options.size", "64x64"]
    words = [*line[:2], f"openai:{server.url}#paint-1", *line[3:], *sending, "--limit", "2"]
    assert exit_code(*words, "--dry-run") == 0
    assert "# paint-1: about 6 requests" in capsys.readouterr().out
    assert exit_code(*words) == 0
    assert {path for path in server.paths if "images" in path} == {"/v1/images/generations"}
    record = prompts.load("nano").records[0]
    body = {"model": "paint-1", "prompt": record.texts[DENIED], "size": "64x64", "seed": seeds(1)[0] % 2**31}
    assert server.requests[0] == body
    assert len(server.requests) == 6
    assert exit_code(*words) == 0  # only what failed is asked for again
    assert len(server.requests) == 7
    assert pd.read_csv(next((tmp_path / "out").glob("*/scores.csv")))["value"].notna().all()


def test_the_embedded_pipeline_draws_offline_and_batches_change_no_pixel_much(tmp_path):
    draw = text_to_image.get_generator("nano:sd", steps=2)
    canvas = np.zeros((4, 4, 3), np.uint8)
    requests = [EditRequest(str(k), canvas, "A dog on a beach.", k) for k in range(3)]
    together = [result.image for result in draw.edit(requests)]
    assert [image.shape for image in together] == [(64, 64, 3)] * 3
    [alone] = draw.edit(requests[1:2])
    assert np.abs(alone.image.astype(int) - together[1]).max() <= 2
    assert (together[0] != together[1]).any()


def test_what_is_fetched_is_what_is_loaded(tmp_path, monkeypatch):
    config = GeneratorsConfig(generator=["a=diffusers:o/a", "openai:m"], judge="o/j", detector="none")
    assert {need.reference for need in config.needs()} == {"o/a", "o/j"}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    config = GeneratorsConfig(
        generator=["diffusers:here", "tests.rehearsal:paint"], out=str(tmp_path / "out")
    )
    places = [run.stages[0].model.place for run in generators.GENERATORS.runs(config, "cpu")]
    assert places == ["device", "remote"]  # "diffusers:here" has the form of module:function


@pytest.mark.parametrize("name", TEXT_TO_IMAGE)
def test_every_class_of_the_table_takes_a_text_alone(name):
    recipe = DiffusersGenerator.recipes[name]
    parameters = inspect.signature(getattr(diffusers, name).__call__).parameters
    wanted = {"prompt", "generator", "num_inference_steps", "output_type", recipe.guidance}
    assert wanted - {""} <= {*parameters}
    assert recipe.image == ""


def test_the_page_s_table_and_line_work(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "howto" / "generators.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^```csv\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    [line] = re.findall(
        r"^nein (generators --prompts mine\.csv --generator my_file.py:draw) ", page, re.MULTILINE
    )
    (tmp_path / "mine.csv").write_text(table)
    (tmp_path / "my_file.py").write_text("from tests.rehearsal import paint as draw\n")
    monkeypatch.chdir(tmp_path)
    judges = ["--judge", "tests.rehearsal:yes", "--detector", "tests.rehearsal:score_025"]
    assert exit_code(*line.split(), *judges, *DEVICE) == 0
    [scores] = (tmp_path / "runs" / "generators-nano").glob("*/scores.csv")
    assert pd.read_csv(scores).groupby("metric").size()["forbidden_sentence"] == 1


def test_the_miniature_runs_from_prompts_to_a_page(tmp_path):
    words = ["--limit", "2", "--generator-options.steps", "2", "--out", tmp_path / "out"]
    assert exit_code("generators", *words, *DEVICE) == 0
    assert exit_code("report", tmp_path / "out", "--out", tmp_path / "page.html") == 0
    assert "a miniature generator of drawn scenes" in (tmp_path / "page.html").read_text()
    assert exit_code("leaderboard", tmp_path / "out", "--out", tmp_path / "board") == 0
