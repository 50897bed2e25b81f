import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nein import metrics
from nein.benchmarks.negbench import models, report, scoring
from nein.benchmarks.negbench import runs as run
from nein.datasets.negbench import loading, registry
from nein.datasets.negbench.official import write as write_csv
from nein.datasets.negbench.records import ChoiceTask
from nein.engine.images import decode
from nein.engine.run import Executor
from nein.loading.errors import UserError
from nein.metrics.dual import ControlEncoder
from nein.models import references
from nein.reporting import figures as frames
from nein.reporting.scores import ScoreTable
from tests.helpers.commands import exit_code, outcome
from tests.negbench.conftest import evaluate, evaluated_in, items, questions, rows_of, settings
from tests.negbench.test_media import write_video


def test_the_released_files_are_evaluated_as_they_are_and_models_are_called_as_the_user_does(
    tmp_path, data, pictures, clip_folder
):
    names = [f"zeta={clip_folder}", "random", f"alpha={clip_folder}"]
    options = settings(tmp_path, data, pictures, "--model", ",".join(names))
    text = run.NEGBENCH(options, Executor(options.device))
    assert text.startswith("Text to image retrieval\n")
    assert [line.split()[0] for line in text.splitlines()[3:6]] == ["zeta", "random", "alpha"]
    found = evaluated_in(options.out_dir)
    assert set(found) == {f"{m}/{d}" for m in ("zeta", "random", "alpha") for d in ("coco", "chexpert")}
    about = {"task": "retrieval", "variant": "rephrased", "direction": "text_to_image"}
    for evaluated in (found["zeta/coco"], found["random/coco"]):
        assert frames.pick(evaluated.figures, **about, metric="gap@5")["n"] == 16
    binary = found["zeta/chexpert"]
    assert {(f["task"], f["metric"]) for f in frames.records(binary.figures)} == {
        (task, metric)
        for task in ("binary", "binary-control")
        for metric in ("accuracy", "chance", "text only", "picture only", "gain over text")
    } | {("binary", "drop")}
    both = [frames.pick(binary.figures, task=f"binary{c}", metric="accuracy") for c in ("-control", "")]
    drop = frames.pick(binary.figures, metric="drop")
    assert drop["value"] == pytest.approx(both[0]["value"] - both[1]["value"])
    assert drop["low"] < drop["value"] < drop["high"]
    text = (tmp_path / "out" / "table.md").read_text()
    assert text.count("a caption says what is absent") == 1  # what was found is said once
    assert "CheXpert binary-control" in text
    assert exit_code("report", tmp_path / "out", "-o", tmp_path / "page.html", "--formats", "html") == 0
    html = (tmp_path / "page.html").read_text()
    index = json.loads(html.partition('id="index">')[2].partition("</script>")[0])
    assert {name.rpartition("/")[0] for name in index["ids"]} == {
        "coco/mcq.rephrased",
        "coco/retrieval.rephrased",
        "chexpert/binary.templated",
        "chexpert/binary-control.templated",
    }
    # A caption's card says whether its image is among the first five, as the scores do.
    scored = ScoreTable.read(found["zeta/coco"].folder.path / "scores.csv")
    scored = scored.where(metric="recall@5", kind="negated", direction="text_to_image")
    recalls = dict(zip(scored.frame["id"], scored.values, strict=True))
    cards = {name: values[0][0] for name, values in zip(index["ids"], index["values"], strict=True)}
    start = "coco/retrieval.rephrased/"
    assert {name.removeprefix(start): x for name, x in cards.items() if name.startswith(start)} == recalls
    # An accuracy again by a plain loop over the model.
    model = metrics.load_dual(str(clip_folder))
    credit = []
    for question in questions():
        image = model.encode([decode(pictures / "deep" / question.image)])[0].astype(float)
        options = model.encode_text([o.text for o in question.options]).astype(float)
        cosine = options @ image / np.linalg.norm(options, axis=1) / np.linalg.norm(image)
        credit.append(float(np.argmax(cosine) == 0))
    accuracy = {"task": "mcq", "variant": "rephrased", "metric": "accuracy", "type": "all"}
    entry = frames.pick(found["zeta/coco"].figures, **accuracy)
    assert entry["value"] == pytest.approx(np.mean(credit))
    twice = settings(tmp_path, data, pictures, "--model", f"alpha={clip_folder},alpha=random")
    with pytest.raises(UserError, match="have the same name, 'alpha'"):
        run.NEGBENCH(twice, Executor("cpu"))


def test_features_serve_several_folders_and_are_made_again_where_they_vanished_or_are_damaged(
    tmp_path, data, pictures, monkeypatch
):
    words = ("--model", "random", "--datasets", "coco", "--cache", str(tmp_path / "cache"))
    evaluate(tmp_path / "a", data, pictures, *words)
    rows, kept = (
        rows_of(tmp_path / "a", "random", "coco"),
        sorted((tmp_path / "cache").rglob("*.safetensors")),
    )
    whole = [path.read_bytes() for path in kept]
    with monkeypatch.context() as patch:
        for name in ("encode", "encode_text"):
            patch.setattr(ControlEncoder, name, lambda *_: pytest.fail("again"))
        evaluate(tmp_path / "b", data, pictures, *words)
    assert rows_of(tmp_path / "b", "random", "coco") == rows
    kept[0].unlink()
    kept[-1].write_bytes(whole[-1][:-3])
    evaluate(tmp_path / "a", data, pictures, *words, "--overwrite")
    assert [path.read_bytes() for path in kept] == whole
    assert rows_of(tmp_path / "a", "random", "coco") == rows


def test_runs_of_several_folders_are_one_report_also_where_features_or_data_are_gone(
    tmp_path, data, pictures, capsys, caplog
):
    for name, model in (("a", "random"), ("b", "constant")):
        evaluate(tmp_path / name, data, pictures, "--model", model, "--datasets", "coco", "--tasks", "mcq")
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    outs = [tmp_path / name / "out" for name in "abc"]
    told = outcome(capsys, "report", *outs[:2], "-o", tmp_path / "two.html", "--formats", "csv,html")
    assert told.code == 0
    assert "Multiple choice" in told.stdout
    two = frames.read(tmp_path / "two.csv")
    assert set(two["model"]) == {"random", "constant"}
    assert "This image features car and surfboard" in (tmp_path / "two.html").read_text()
    assert exit_code("report", *outs, "-o", tmp_path / "three.html", "--formats", "csv") == 0
    three = frames.read(tmp_path / "three.csv")
    assert set(three["model"]) == {f"random ({outs[0]})", "constant", f"random ({outs[2]})"}
    page = tmp_path / "page.html"
    for gone, said in ((outs[2] / "cache", "Features have vanished"), (data, "no sample of")):
        shutil.rmtree(gone)
        assert exit_code("report", outs[2], "-o", page, "--formats", "html") == 0
        assert said in caplog.text
        assert "Multiple choice" in page.read_text()
        assert ("This image features" in page.read_text()) == (gone != data)


def test_the_protocols_differ_on_a_scorer_that_ties(tmp_path, data, pictures):
    fixed = evaluate(tmp_path / "a", data, pictures, "--model", "constant")["constant/coco"]
    line = ("--model", "constant", "--protocol", "paper")
    paper = evaluate(tmp_path / "b", data, pictures, *line, page=True)["constant/coco"]
    about = {"task": "mcq", "metric": "accuracy", "type": "all"}
    assert frames.pick(fixed.figures, **about)["value"] == 0.25
    assert not frames.pick(fixed.figures, **about).get("refused")
    assert frames.pick(paper.figures, **about)["value"] == 1.0
    assert frames.pick(paper.figures, task="mcq", metric="picture only", type="all")["value"] is None
    assert frames.pick(paper.figures, task="mcq", metric="right first")["value"] == 1
    assert frames.pick(fixed.figures, task="mcq", metric="right first") is None
    text = (tmp_path / "b" / "out" / "table.md").read_text()
    assert "ties go to the first" in text
    line = next(line for line in text.split("## Multiple choice")[1].splitlines() if "constant" in line)
    assert [cell.strip() for cell in line.split("|")[4:10]] == [*["all options tie"] * 4, "–", "always"]


def test_videos_are_four_frames_and_a_truncated_one_is_unscored(tmp_path, clip_folder):
    folder = tmp_path / "data"
    folder.mkdir()
    asked = [replace(q, image=f"/vtt/video{i}.mp4") for i, q in enumerate(questions(4, 4))]
    write_csv(folder / "msr_vtt_mcq_rephrased_llama.csv", asked)
    for i in range(4):
        whole = write_video(folder / f"video{i}.mp4", 12 + i).read_bytes()
        (folder / f"video{i}.mp4").write_bytes(whole[: len(whole) // 2] if i == 2 else whole)
    model = str(clip_folder)
    found = evaluate(tmp_path, folder, folder, "--model", model)["clip/msr-vtt"]
    entry = frames.pick(found.figures, task="mcq", metric="accuracy", type="all")
    assert (entry["n"], entry["unscored"]) == (3, 1)
    (reason,) = frames.read_reasons(entry)
    assert "video2.mp4" in reason


def test_every_registered_file_is_found_by_its_name(tmp_path):
    asked, (original, negated) = questions(), items()
    rows = [row for row in registry.ROWS.values() if row.suite == registry.NEGBENCH]
    for row in rows:
        folder = tmp_path / row.name
        folder.mkdir()
        for part in row.parts:
            if part.task == registry.RETRIEVAL:
                write_csv(folder / part.files[-1], original)
                write_csv(folder / part.negated[-1], negated)
            else:
                write_csv(folder / part.files[-1], asked)
        (found,) = loading.load(str(folder), names=[row.name])
        expected = {(f"{row.name}/{part.task}", part.variant) for part in row.parts}
        assert {(task.name, task.variant) for task in found.tasks} == expected
    # Table 2, less the 10,000 paraphrased captions of HardNeg-Syn, which have no file, and one row of VOC's.
    sizes = [row.sizes[part.task] for row in rows for part in row.parts if row.sizes]
    assert sum(sizes) + 10_000 + 2 == 79_549
    names = "coco voc2007 hardneg-syn msr-vtt chexpert ham10000 own"
    assert [row.name for row in rows] == names.split()


def test_all_that_the_authors_print_is_there():
    rows = report.paper_numbers()
    for source, count in (("repo_baseline", 5), ("repo_scaling", 3)):
        mine = frames.select(rows, source=source)
        assert mine["row"].nunique() == count
        assert len(mine) == count * 2 * 4  # two data sets; the total and three types
    huge = {"row": "CLIP-Laion2B-Huge", "source": "repo_scaling", "dataset": "voc2007", "type": "hybrid"}
    assert frames.pick(rows, **huge)["value"] == 0.477110
    named = {(source, row) for one in models.MODELS.values() for source, row in one.published.items()}
    assert named <= set(zip(rows["source"], rows["row"], strict=True))


def test_a_model_of_the_users_has_the_users_name(tmp_path, clip_folder):
    choice = models.choose(f"mine={clip_folder}")
    assert (choice.name, choice.slug, choice.reference) == ("mine", "mine", str(clip_folder))
    assert choice.row is None
    assert references.identify(choice.asked) == str(clip_folder)  # another name would give the same rows
    plain, twin = (models.choose(str(shutil.copytree(clip_folder, tmp_path / n / "clip"))) for n in "ab")
    assert plain.slug != twin.slug
    row = models.choose(f"negclip={clip_folder}")
    assert (row.name, row.row) == ("negclip", models.MODELS["negclip"])
    assert row.slug.startswith("negclip-")
    both = models.choose(f"mine=negclip={clip_folder}")
    assert (both.slug, both.row) == ("mine", models.MODELS["negclip"])


def card_run(data, **changes):
    """A model that takes the last caption shown of every question; `changes` of the first row."""
    shares = [0.0, 0.0, 1.0, 0.0]

    def rows(task):
        made = [
            {"id": question.id, "shown": [3, 1, 0, 2], "shares": shares, "reason": "",
             "credit": shares[question.correct]}
            for question in task.questions
        ]  # fmt: skip
        made[0] |= changes
        return made

    tasks = [task for task in data.tasks if task.name.endswith("/mcq")]
    return SimpleNamespace(data=data, tasks=tasks, rows=rows, folder=SimpleNamespace(path=Path("run")))


def test_a_card_says_what_was_offered_chosen_and_right(monkeypatch):
    monkeypatch.setattr(scoring, "read_rows", lambda run, task: run.rows(task))
    (data,) = loading.load("nano", scenes=8)
    tied = {"shares": [0.5, 0.5, 0, 0], "credit": 0.5, "scores": [1.25, 1.25, 0.0, -1.0]}
    mute = {"shares": None, "credit": None, "reason": "no letter", "answer": "Hm."}
    runs = {"sure": [card_run(data)], "tied": [card_run(data, **tied)], "mute": [card_run(data, **mute)]}
    card = next(report.make_question_cards(runs))
    first = next(task for task in data.tasks if isinstance(task, ChoiceTask)).questions[0]
    assert card.id == f"nano/mcq.templated/{first.id}"
    options = [option.text for option in first.options]
    right = first.correct
    assert card.title == options[right]
    assert "none" in card.facets["Chosen"]
    assert [values[0] for values in card.values] == [float(right == 2), 0.5, None]
    assert card.lines[right] == f"{options[right]} (right)"
    assert isinstance(card.pictures[0][1], str)
    sure, both, none = card.said
    assert sure.cells[0].text == options[2]
    assert sure.cells[0].mark == ("right" if right == 2 else "wrong")
    assert [row[0] for row in sure.rows] == [
        f"{a}: {options[k]}" for a, k in zip("ABCD", (3, 1, 0, 2), strict=True)
    ]
    assert both.cells[0].mark == "none"
    assert both.rows[2][2:] == ("50 %", "1.250")
    assert (none.cells[0].aside, none.line) == ("no letter", "Hm.")
    other = card_run(data)
    other.rows = lambda task: []  # it was not asked
    drawn = list(report.make_question_cards({"a": [card_run(data)], "b": [other]}, limit=3))
    assert [card.values[1] for card in drawn] == [[None]] * 3
