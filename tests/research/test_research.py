"""research/: what the documentation says of its scripts, what the models learn from, and a run of each."""

import importlib
import json
import random
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from nein import editors, metrics
from nein.editors.zone import Segmenter, Settings
from nein.engine.exits import Terminated
from nein.loading.errors import UserError
from nein.metrics.judges.base import find_template
from nein.nano import zoo
from nein.nano.data import source_scene
from nein.nano.scenes import HELD_OUT, render
from nein.nano.sentences import SIDES, WORDINGS, question_scene
from nein.reporting import figures as frames
from research import coverage, generalise, negbench_nano, negvqa_nano, nein_nano
from research.nano import __main__ as nano
from research.nano import data, job, llava, negvqa, ship, zone
from research.nano.judged import judge_editor
from tests.helpers.commands import ROOT
from tests.nano.words import negated
from tests.train.conftest import leave_torch_as_it_was

__all__ = ["leave_torch_as_it_was"]
TYPED = re.compile(r"(?:python -m |`)research\.([\w.]+\w)([^`\n#|;]*)")


def test_every_script_is_in_the_list_and_takes_what_the_documentation_gives_it(capsys):
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "research").rglob("*.md")]
    typed = {found for page in pages for found in TYPED.findall(page.read_text())}
    typed |= set(TYPED.findall(nano.__doc__))
    scripts = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__main__")
        for path in (ROOT / "research").rglob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    assert {name for name, _ in TYPED.findall((ROOT / "research" / "README.md").read_text())} == scripts
    for name, line in typed:
        module = importlib.import_module(f"research.{name}{'.__main__' if name == 'nano' else ''}")
        assert callable(module.main)
        words = line.split()
        if name == "nano":
            assert {word for word in words if word.isalpha()} <= {*nano.MODELS, "all", "cuda"}
        if options := [word for word in words if word.startswith("--")]:
            with pytest.raises(SystemExit):
                module.main(["--help"])
            shown = capsys.readouterr().out
            assert [option for option in options if f"{option} " not in shown] == []
    for study in (negbench_nano.StudyConfig, negvqa_nano.GeneraliseConfig, nein_nano.GeneraliseConfig):
        assert study().seed == ["0", "1", "2"]  # "mean over three training seeds"


@pytest.fixture(scope="module")
def corpus():
    return data.corpus()


def taught(name, count):
    rng = random.Random(1)
    scenes = [question_scene("train", index) for index in range(40)]
    times = -(-count // len(negvqa.SLOTS))
    pairs = [negvqa._slots(rng, rng.choice(scenes), negvqa.RECIPES[name]) for _ in range(times)]
    return [pair for slots in pairs for pair in slots][:count]


def test_the_affirmative_models_learn_from_affirmative_text(corpus, monkeypatch):
    assert len(corpus) > 20_000
    assert negated(corpus) == []
    assert corpus[:100] == data.corpus(50)[:100]
    assert negated([f"{prompt} {reply}" for prompt, reply in taught("negvqa", 300)]) == []
    assert negated(negvqa._words()) == []
    assert negated(zone.labelled("dev", 600)[0]) == []
    monkeypatch.setattr(data, "corpus", lambda: corpus)
    monkeypatch.setattr("research.nano.vision.POOL", 300)
    found, count = negbench_nano.search(negbench_nano.training_texts())
    assert (bool(found), count > 1500) == (False, True)
    found, _ = negbench_nano.search(["There is no cat.", "It isn’t here, WITHOUT a hat", "A knot, a note"])
    assert found == {"no": 1, "n’t": 1, "without": 1}


def pattern(wording):
    slots = {"side": f"({'|'.join(SIDES)})", "thing": "([a-z ]+)"}
    text = re.sub(r"\\{(\w+)[^}]*\\}", lambda m: slots.get(m[1], "[a-z ]+"), re.escape(wording))
    return re.compile(text, re.IGNORECASE)


@pytest.mark.parametrize("name", ["negvqa-negated", "negvqa-varied"])
def test_no_negated_question_names_a_held_out_object_denying_word_or_wording(name):
    pairs = taught(name, 1500)
    asked = [(prompt, reply) for prompt, reply in pairs if "Options" in prompt]
    assert 0.4 < sum(reply == "A" for _, reply in asked) / len(asked) < 0.6  # no letter is favoured
    denied = negated([prompt for prompt, _ in asked])
    assert len(denied) > 100
    assert not any(re.search(rf"\b{noun}\b", prompt) for prompt in denied for noun in HELD_OUT)
    assert not any(re.search(r"missing|\black|absent|wrong|anywhere", prompt) for prompt, _ in pairs)
    for of_kind in WORDINGS.values():
        seen = [any(pattern(wording).search(prompt) for prompt in denied) for _, wording in of_kind]
        assert seen == [True] * (len(of_kind) - 1) + [False]


def test_a_pool_does_not_depend_on_where_its_chunks_are_cut(monkeypatch):
    weights = {"remove": 2.0, "add": 2.0, "keep": 1.0, "mark": 1.0, "restore": 1.0}
    monkeypatch.setattr(data, "_parallel", lambda function, jobs: [function(job) for job in jobs])
    made = []
    for cuts in ((0, 40), (0, 1, 13, 39, 40)):
        monkeypatch.setattr(data, "_chunks", lambda count, cuts=cuts: [*pairwise(cuts)])
        made.append((data.scene_pool("train", 40), data.pair_pool("train", "x", weights, "generated", 40)))
    (scenes, pairs), (again, others) = made
    assert torch.equal(scenes.images, again.images)
    assert (scenes.captions, pairs.instructions) == (again.captions, others.instructions)
    assert torch.equal(pairs.target, others.target)
    assert np.array_equal(scenes.images[3].numpy().transpose(1, 2, 0), render(scenes.scenes[3]))


def made_job(init, kill_at=None, **options):
    """A job with dropout and a teacher, whose loss raises in step `kill_at`."""
    torch.manual_seed(init)
    net, teacher = (nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)) for _ in range(2))
    teacher.requires_grad_(False)

    def loss(step, generator):
        if step == kill_at:
            raise Terminated
        x, y = torch.randn(5, 4, generator=generator), torch.randn(5, 2, generator=generator)
        return (net(x) - y).square().mean(), {}

    def after(step):
        for slow, fast in zip(teacher.parameters(), net.parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.1)

    options = {"steps": 6, "lr": 1e-2, "batch": 5, "warmup": 2, **options}
    followers = {"teacher": teacher}
    return job.Job("tiny", {"net": net}, loss, dict, after=after, followers=followers, **options), followers


def test_a_killed_run_goes_on_bit_for_bit_and_a_state_of_other_settings_is_refused(tmp_path, monkeypatch):
    def run(made, work):
        job.run(made[0], device=torch.device("cpu"), seed=11, work=tmp_path / work)
        return [value for part in (made[0].modules, made[1]) for value in part.popitem()[1].parameters()]

    monkeypatch.setattr(job, "SAVE_EVERY", 2)
    whole = run(made_job(0), "whole")
    with pytest.raises(Terminated):
        run(made_job(0, kill_at=3), "killed")
    again = run(made_job(99), "killed")  # other initial weights: all must come from the state
    assert all(map(torch.equal, whole, again))
    with pytest.raises(UserError, match="holds a run made with batch_size"):
        run(made_job(0, batch=7), "whole")


def test_the_table_of_a_study_has_the_mean_over_seeds_with_the_lowest_and_the_highest(tmp_path):
    choice = negbench_nano.METRICS["choices right"]
    what = {"unit": "%", "n": 4, **choice}
    cells = [("nano:taught", "0", 0.6), ("nano:taught", "1", 0.9), ("nano:unlike", "0", 0.1)]
    parts = [
        frames.frame([{"recipe": "nano", "seed": seed, "world": world, "value": value, **what}])
        for world, seed, value in cells
    ]
    text = generalise.write(tmp_path, "T", parts, negbench_nano.METRICS, command="nein x", sentences=["One."])
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if "|" in line]
    assert rows[0][3:5] == ["as taught", "wording, objects and style"]
    assert rows[2][1:5] == ["nano", "choices right", "75.0 (60.0 to 90.0)", "10.0"]


def test_coverage_tells_a_good_interval_from_a_bad_one():
    rows = coverage.study("shares", [8], 60, 0).splitlines()
    lowest = {cells[1].strip(): float(cells[2]) for row in rows[4:] if (cells := row.split("|"))}
    assert lowest["ours"] > 80 > 60 > lowest["bootstrap"]


def studied(script, *words):
    def run(folder, capsys):
        out = folder / script.__name__
        for _ in range(2):  # the second time nothing is trained
            script.main([*words, "--seed", "0", "--out", str(out)])
        text = (out / "generalise.md").read_text()
        assert "| before " in text
        assert "wording, objects and style" in text

    return run


def zoo_is_trained_judged_and_shipped(folder, capsys):
    trained, seen = folder / "zoo", [render(source_scene("val", i)) for i in range(2)]
    nano.main(["all", "--scale", "0.001", "--device", "cpu", f"--work={folder / 'work'}", f"--zoo={trained}"])
    for name in nano.MODELS:
        place = trained / ("ip2p" if name == "vae" else name)
        record = json.loads((place / ("training-vae.json" if name == "vae" else "training.json")).read_text())
        assert (record["seed"], record["device"], record["torch"]) == (nano.SEED, "CPU", torch.__version__)
        assert all(np.isfinite(value) for value in record.get("held_out", {}).values())
        assert (place / "README.md").exists() == (zoo.ZOO / place.name / "README.md").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "ZOO", trained)
        assert judge_editor("ip2p", sources=1, steps=2)["samples"] > 0
        from nein.train import finetune_ip2p

        words = "--recipe nano --nano-sources 30 --steps 1 --batch-size 2 --trackers none --workers 1".split()
        finetune_ip2p.main([*words, "--device", "cpu", "--out", str(folder / "tuned")])
        (trained / "nein-ip2p").mkdir()
        card = (ROOT / "nein/nano/weights/nein-ip2p/README.md").read_text(encoding="utf-8")
        (trained / "nein-ip2p" / "README.md").write_text(card, encoding="utf-8")
        ship.ship(folder / "tuned", "nein-ip2p", root=trained)
        for name in ("magicbrush", "nein-ip2p"):
            editor = editors.get_editor("ip2p-nano", checkpoint=str(zoo.path(name)), steps=2)
            [edit] = editor.edit([editors.EditRequest("a", seen[0], "Remove the dog.", seed=1)])
            assert np.shape(edit.image) == (64, 64, 3)
    for kind in ("clip", "dino"):
        assert np.isfinite(np.asarray(metrics.load_encoder(kind, str(trained / kind)).encode(seen))).all()
    vqa = metrics.load_judge("vqa", str(trained / "llava"))
    question = find_template(vqa.template).ask_presence("fire hydrant")
    assert question == llava.HEAD + llava.CONTAIN.format("fire hydrant")
    assert len(vqa.ask(seen, [[question], [question]])) == 2
    [found] = metrics.load_judge("ovd", str(trained / "owlv2")).detect(seen[:1], [["dog", "cat"]])
    assert set(found) == {"dog", "cat"}
    settings = Settings(points_per_side=4, segment_quality=0.0, segment_stability=0.0)
    segmenter = Segmenter(str(trained / "sam"), torch.device("cpu"), settings)
    assert all(segment.shape == (64, 64) for segment in segmenter(seen[0]))


def coverage_is_printed(folder, capsys):
    coverage.main(["--repeats", "2", "--n", "24"])
    text = capsys.readouterr().out
    assert text.count("| ours") == sum(f"### {kind.title}" in text for kind in coverage.KINDS.values()) > 3
    assert "### FID" in text


@pytest.mark.slow
@pytest.mark.parametrize("script", [
    zoo_is_trained_judged_and_shipped, coverage_is_printed,
    studied(negbench_nano, "--recipe", "nano", "--scenes", "8", "--steps", "2"),
    studied(negvqa_nano, "--scale", "0.001", "--questions", "4"),
    studied(nein_nano, "--recipe", "nano", "--samples", "2"),
], ids=["nano", "coverage", "negbench", "negvqa", "nein"])  # fmt: skip
def test_a_script_runs_at_its_smallest_size(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("research.nano.vision.POOL", 50)
    script(tmp_path, capsys)
