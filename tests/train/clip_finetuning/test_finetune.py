import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from nein import metrics
from nein.datasets.negbench import drawn
from nein.datasets.negbench.official import write as write_csv
from nein.engine.images import write_png
from nein.loading.errors import UserError
from nein.train.clip_finetuning import towers
from nein.train.clip_finetuning.data import Reader
from nein.train.clip_finetuning.data import load as load_corpus
from nein.train.clip_finetuning.options import ClipConfig
from nein.train.clip_finetuning.towers import contrastive_loss, load
from tests.helpers import plain
from tests.metrics import tiny
from tests.train.runs import dies_at, in_two_processes, logged, raising, same


def weights(run):
    (file,) = (run / "model").glob("*.safetensors")
    return load_file(file)


def test_the_loss_falls_and_the_model_that_comes_out_is_loaded_by_evaluation(tune, clip_folder, tmp_path):
    run = tune(steps=15, save_every=15, log_every=5, learning_rate=5e-3)
    found = logged(run)
    assert found[-1] < found[0] - 0.2
    before, after = metrics.load_dual(str(clip_folder)), metrics.load_dual(str(run / "model"))
    picture = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    assert before.preprocess == after.preprocess
    assert not np.allclose(before.encode([picture]), after.encode([picture]))
    assert not np.allclose(before.encode_text(["a dog"]), after.encode_text(["a dog"]))
    files = {path.name for path in (run / "model").iterdir()}
    assert {"README.md", "training.json", "model.safetensors", "config.json"} <= files
    assert not [
        path for path in (run / "model").iterdir() if str(tmp_path) in path.read_bytes().decode("latin-1")
    ]
    assert "drawn scenes" in (run / "model" / "README.md").read_text()


@pytest.mark.parametrize("kind", ["siglip", "open_clip", "half_clip"])
def test_models_of_every_kind_are_trained_and_come_out_as_folders_that_plain_libraries_run(
    kind, tune, request
):
    folder = request.getfixturevalue(f"{kind}_folder")
    run = tune(base=folder, steps=2)
    before, after = metrics.load_dual(str(folder)), metrics.load_dual(str(run / "model"))
    assert type(before) is type(after)
    picture = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    assert not np.allclose(before.encode([picture]), after.encode([picture]))
    old, new = load(str(folder)), load(str(run / "model"))
    assert torch.equal(old.preprocess([picture])[next(iter(old.preprocess([picture])))],
                       new.preprocess([picture])[next(iter(new.preprocess([picture])))])  # fmt: skip
    if kind == "siglip":
        assert torch.equal(old.model.logit_bias, new.model.logit_bias)
    assert plain.number_types(folder) == {"float16" if kind == "half_clip" else "float32"}
    assert plain.number_types(run / "model") == {"float32"}
    plain.runs(run / "model", "open_clip" if kind == "open_clip" else "transformers")


def test_a_model_whose_tokenizer_is_of_transformers_is_saved_with_it(tmp_path):
    folder = tiny.make_medical(tmp_path)
    (tmp_path / "out").mkdir()
    load(str(folder)).save(tmp_path / "out")
    before = metrics.load_dual(str(folder)).encode_text(["There is no dog.", "a cat"])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "bert" / name).unlink()
    after = metrics.load_dual(str(tmp_path / "out")).encode_text(["There is no dog.", "a cat"])
    np.testing.assert_array_equal(before, after)


def test_the_contrastive_loss_is_the_mean_of_both_directions_written_out():
    torch.manual_seed(0)
    image, text, scale = torch.randn(3, 4), torch.randn(3, 4), torch.tensor(5.0)
    found = contrastive_loss(image, text, scale)
    cosine = [[float(i @ t / (i.norm() * t.norm())) for t in text] for i in image]  # a pair at a time
    total = 0.0
    for k in range(3):
        row = [math.exp(5 * cosine[k][j]) for j in range(3)]
        column = [math.exp(5 * cosine[j][k]) for j in range(3)]
        total -= math.log(row[k] / sum(row)) + math.log(column[k] / sum(column))
    assert float(found) == pytest.approx(total / 6, abs=1e-5)


def test_by_paper_a_batch_of_questions_has_the_loss_of_the_released_code(tune, line, tmp_path):
    options = {"base": "nano:clip", "alpha": 0, "steps": 1, "schedule": "cosine"}
    paper = logged(tune(protocol="paper", out=tmp_path / "paper", **options))
    fixed = logged(tune(protocol="fixed", out=tmp_path / "fixed", **options))
    # process_mcq_batch and MCQLoss of the released code, written out: nothing is normalised.
    config, _ = ClipConfig.parse_line(line(**options))
    batch, tower = Reader(config, load_corpus(config)).read(0, 0, 1), load("nano:clip")
    with torch.no_grad():
        pictures = tower.model.get_image_features(**tower.preprocess(batch.question_images))
        texts = tower.model.get_text_features(**tower.tokenize([t for row in batch.options for t in row]))
        pictures, texts = (getattr(found, "pooler_output", found) for found in (pictures, texts))
        texts = texts.view(len(batch.correct), -1, texts.shape[1])  # Q, options, D
        scale, correct = tower.model.logit_scale.exp(), torch.tensor(batch.correct)
        logits = torch.einsum("bf,bnf->bn", pictures, texts) * scale
        cosines = torch.nn.functional.cosine_similarity(pictures[:, None], texts, dim=-1) * scale
    assert paper == [pytest.approx(float(torch.nn.functional.cross_entropy(logits, correct)), rel=1e-4)]
    assert fixed == [pytest.approx(float(torch.nn.functional.cross_entropy(cosines, correct)), rel=1e-4)]
    assert paper[0] > 20 * fixed[0]


@pytest.mark.parametrize("kind", ["clip", "siglip", "open_clip"])
def test_training_sees_the_features_that_evaluation_sees(kind, request):
    tower = load(str(request.getfixturevalue(f"{kind}_folder")))
    pictures = [np.random.default_rng(k).integers(0, 255, (40, 50, 3), dtype=np.uint8) for k in range(3)]
    texts = ["There is no dog in the image. A cat.", "A cat"]
    with torch.no_grad():
        image, text, _, _, scale = tower(tower.preprocess(pictures), tower.tokenize(texts), None, None)
    np.testing.assert_allclose(image.numpy(), tower.dual.encode(pictures), atol=1e-5)
    np.testing.assert_allclose(text.numpy(), tower.dual.encode_text(texts), atol=1e-5)
    assert float(scale) == pytest.approx(tower.dual.scale)


def test_with_the_vision_tower_frozen_it_stays_and_kept_features_give_the_same_loss(
    tune, whole, clip_folder, tmp_path
):
    frozen = tune(trainable="text", out=tmp_path / "text")
    assert logged(frozen)[0] == pytest.approx(logged(whole)[0], abs=1e-5)
    base, found = load_file(clip_folder / "model.safetensors"), weights(frozen)
    moved = {name for name in base if not torch.equal(base[name].float(), found[name].float())}
    assert any(name.startswith("text_model.") for name in moved)
    assert not any(name.startswith(("vision_model.", "visual_projection.")) for name in moved)
    kept = list((tmp_path / "features").rglob("*.safetensors"))
    stamps = [path.stat().st_mtime_ns for path in kept]
    assert kept
    tune(trainable="text", out=tmp_path / "again")
    assert [path.stat().st_mtime_ns for path in kept] == stamps


def test_an_interrupted_run_goes_on_from_its_checkpoint(tune, tmp_path, monkeypatch):
    how = {"precision": "bf16", "log_every": 3}  # a checkpoint between two lines of the log
    unbroken = tune(out=tmp_path / "unbroken", **how)
    with monkeypatch.context() as patch:
        dies_at(patch, towers, "contrastive_loss", 4, raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            tune(**how)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    resumed = tune(**how)
    assert same(weights(unbroken), weights(resumed))
    assert logged(unbroken) == logged(resumed)


def test_alpha_weighs_the_two_losses_and_a_sweep_trains_a_model_per_value(tune):
    run = tune(alpha="0,0.25,1", steps=1)
    first = {a: logged(run / f"alpha-{a:g}")[0] for a in (0, 0.25, 1)}
    assert all((run / f"alpha-{a:g}" / "model" / "model.safetensors").is_file() for a in first)
    assert first[0.25] == pytest.approx(0.25 * first[1] + 0.75 * first[0], abs=1e-5)
    assert abs(first[0] - first[1]) > 0.01


def test_files_are_read_an_unreadable_picture_stops_or_is_passed_over(tune, tmp_path):
    captions, questions = tmp_path / "negcap.csv", tmp_path / "negmcq.csv"
    items = drawn.draw_negcap(12)
    write_csv(captions, items, training=True)
    write_csv(questions, drawn.draw_negmcq(12))
    for item in items:
        write_png(tmp_path / item.image, drawn.draw_image(item.image))
    broken = tmp_path / items[1].image
    broken.write_bytes(b"no picture")
    given = {"captions": captions, "questions": questions, "steps": 4}
    given |= {"trainable": "text"}
    with pytest.raises(UserError, match="--unreadable skip"):
        tune(out=tmp_path / "stop", **given)
    run = tune(out=tmp_path / "skip", unreadable="skip", **given)
    assert logged(run, "skipped")[-1] == 1
    write_png(broken, drawn.draw_image(items[0].image))
    with pytest.raises(UserError, match="holds a run made with images"):
        tune(out=run, unreadable="skip", **given)


def test_crops_change_what_is_seen_and_depend_on_the_position_alone(tune, whole, tmp_path):
    one, again = (logged(tune(out=tmp_path / name, augment="crop")) for name in ("one", "again"))
    assert one == again != logged(whole)


@pytest.mark.slow
def test_two_processes_end_in_the_weights_of_one(tune, line, tmp_path):
    alone = tune(out=tmp_path / "one", alpha="0.5,1") / "alpha-0.5"
    words = line(out=tmp_path / "two", features=tmp_path / "other", alpha="0.5,1")
    in_two_processes("train/finetune_clip.py", 29641, words)
    np.testing.assert_allclose(logged(alone), logged(tmp_path / "two" / "alpha-0.5"), atol=1e-5, rtol=0)
    first, second = weights(alone), weights(tmp_path / "two" / "alpha-0.5")
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)
    manifest = json.loads((tmp_path / "two" / "alpha-1" / "manifest.json").read_text())
    assert (manifest["status"], manifest["invocations"][0]["processes"]) == ("complete", 2)
