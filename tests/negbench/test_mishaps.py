import pytest

from nein import metrics
from nein.benchmarks.negbench import report
from nein.datasets.negbench import loading
from nein.datasets.negbench.official import write as write_csv
from nein.engine.images import decode
from nein.loading.errors import UserError
from nein.metrics.dual import ControlEncoder
from nein.reporting import figures as frames
from tests.negbench.conftest import evaluate, questions, rows_of


def test_the_last_model_is_looked_at_and_its_run_opened_before_the_first_is_run(tmp_path, data, pictures):
    (tmp_path / "empty").mkdir()
    line = ("--datasets", "coco", "--tasks", "mcq")
    with pytest.raises((UserError, metrics.MetricError), match=r"has no config\.json"):
        evaluate(tmp_path, data, pictures, "--model", f"random,{tmp_path / 'empty'}", *line)
    evaluate(tmp_path, data, pictures, "--model", "constant", *line)
    with pytest.raises(UserError, match="made with protocol fixed, not paper"):
        evaluate(tmp_path, data, pictures, "--model", "random,constant", "--protocol", "paper", *line)
    assert not (tmp_path / "out" / "random" / "coco" / "scores.csv").exists()


def test_captions_that_are_cut_are_counted_in_a_note(tmp_path, data, pictures, open_clip_folder):
    file = data / "images" / "COCO_val_retrieval.csv"
    file.write_text(file.read_text().replace("A car", "A long " * 90 + "car"))
    line = ("--model", str(open_clip_folder), "--datasets", "coco", "--tasks", "retrieval")
    found = evaluate(tmp_path, data, pictures, *line)
    said = report.make_notes(list(found.values()))
    assert any(": 2 of 32 captions are longer than the model's input" in note for note in said), said


def test_what_the_model_fails_on_is_unscored_and_tried_again(tmp_path, data, pictures, monkeypatch):
    bad = decode(pictures / "deep" / "002.png")
    images, texts = ControlEncoder.encode, ControlEncoder.encode_text

    def encode_images(self, shown):
        if any((image == bad).all() for image in shown):
            raise RuntimeError("too hot")
        return images(self, shown)

    def encode_texts(self, said):
        if any(text.startswith("This image features car and") for text in said):
            raise RuntimeError("too cold")
        return texts(self, said)

    arguments = (data, pictures, "--model", "random", "--datasets", "coco")
    monkeypatch.setattr(ControlEncoder, "encode", encode_images)
    monkeypatch.setattr(ControlEncoder, "encode_text", encode_texts)
    found = evaluate(tmp_path, *arguments)["random/coco"]
    hot = {q.id for q in questions() if q.image == "002.png"}
    cold = {q.id for q in questions() for o in q.options if o.text.startswith("This image features car and")}
    assert hot - cold
    assert cold - hot
    entry = frames.pick(found.figures, task="mcq", metric="accuracy", type="all")
    assert (entry["n"], entry["unscored"]) == (12 - len(hot | cold), len(hot | cold))
    assert any("too hot" in reason for reason in frames.read_reasons(entry))
    assert any(f"mcq, rephrased: {len(hot | cold)} unscored;" in note for note in report.make_notes([found]))
    monkeypatch.undo()
    evaluate(tmp_path, *arguments)
    evaluate(tmp_path / "b", *arguments)
    assert rows_of(tmp_path, "random", "coco") == rows_of(tmp_path / "b", "random", "coco")


def test_a_file_with_another_number_of_rows_says_so(tmp_path, caplog):
    write_csv(tmp_path / "VOC2007_mcq.csv", questions())
    loading.load(str(tmp_path))
    assert "has 12 rows; as published it has 5031" in caplog.text
