import importlib.util
import json
import re
import resource

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionInstructPix2PixPipeline
from safetensors.torch import load_file

from nein import editors
from nein.loading.errors import UserError
from nein.nano.sentences import names, plural
from nein.train import checkpoints
from nein.train.editor_finetuning import data as loading
from nein.train.editor_finetuning import model
from nein.train.editor_finetuning.drawn import draw_pairs
from tests.helpers import plain
from tests.helpers.runs import scores_in
from tests.train.runs import ROOT, dies_at, in_two_processes, logged, raising, same


def mentions(sentence, words):
    return any(re.search(rf"\b{word}\b", sentence, re.IGNORECASE) for word in words)


def weights(run):
    return load_file(run / "model" / "unet" / "diffusion_pytorch_model.safetensors")


class Killed(BaseException):
    """Stands for a kill that no code of ours could handle."""


def test_a_run_leaves_an_editor_that_edits_a_card_a_manifest_and_a_log(again, tune, base):
    run, folder = again, again / "model"
    assert {p.name for p in folder.iterdir()} == {
        "README.md", "model_index.json", "scheduler", "text_encoder",
        "tokenizer", "training.json", "unet", "vae",
    }  # fmt: skip
    editor = editors.get_editor(str(folder), steps=2, resolution=64)
    request = editors.EditRequest("a", np.full((64, 64, 3), 90, np.uint8), "The image lacks dog.", 1)
    assert editor.edit([request])[0].image.shape == (64, 64, 3)
    assert editor.describe()["scheduler"]["timestep_spacing"] == "linspace"
    before = load_file(base / "unet" / "diffusion_pytorch_model.safetensors")
    after = weights(run)
    assert before.keys() == after.keys()
    assert not same(before, after)
    assert same(
        load_file(base / "vae" / "diffusion_pytorch_model.safetensors"),
        load_file(folder / "vae" / "diffusion_pytorch_model.safetensors"),
    )
    for text in ((folder / "README.md").read_text(), *(p.read_text() for p in folder.rglob("*.json"))):
        assert str(ROOT) not in text
        assert str(base) not in text
    card = (folder / "README.md").read_text()
    assert "6 steps of 4 pairs" in card
    assert "No affirmative instructions were used" in card
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["config"]["steps"] == 6
    rows = [json.loads(row) for row in (run / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(row["loss"] > 0 and row["memory_gib"] > 0 and row["pairs_per_second"] > 0 for row in rows)
    stats = {p: p.stat().st_mtime_ns for p in (run / "checkpoints").rglob("*")}
    tune()  # again: nothing is left to do
    assert {p: p.stat().st_mtime_ns for p in (run / "checkpoints").rglob("*")} == stats


def test_a_result_from_a_base_in_half_precision_is_one_that_plain_diffusers_runs(tune, base, tmp_path):
    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(base, safety_checker=None)
    pipeline.to(torch.float16).save_pretrained(tmp_path / "half")
    run = tune(base=tmp_path / "half", steps=1, trainable="lora", lora_rank=2)
    assert plain.number_types(tmp_path / "half") == {"float16"}
    assert plain.number_types(run / "model") == {"float32"}
    plain.runs(run / "model", "edit")


def test_learning_lowers_the_loss(tune):
    run = tune(steps=30, flip=0.0, dropout=0.0, learning_rate=1e-2, ema=0)
    found = logged(run)
    assert {*logged(run, "learning_rate")} == {1e-2}
    assert 0.9 < found[0] < 1.5  # an untrained UNet predicts about 0, and the noise has variance 1
    assert np.mean(found[-10:]) < 0.8 * np.mean(found[:10])


def test_the_average_is_exported_and_the_last_weights_without_it_and_a_tracker_has_the_losses(tune, whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    newest = max((whole / "checkpoints").glob("step-*"))
    last, average = (load_file(newest / f"{name}.safetensors") for name in ("weights", "average"))
    assert same(weights(whole), average)
    assert not same(average, last)
    curves = EventAccumulator(str(whole / "tracking")).Reload().Scalars("train/loss")
    np.testing.assert_allclose([item.value for item in curves], logged(whole), rtol=1e-6)
    assert same(weights(tune(ema=0)), last)  # averaging watches, and does not steer


def test_accumulated_parts_give_the_losses_and_the_weights_of_the_whole_batch(tune, whole, base):
    """Adam moves a weight without a gradient by its rounding: all weights together are compared. Another
    seed moves them 1.2 times as far apart as training moves them."""
    parts = tune(micro_batch=1)
    np.testing.assert_allclose(logged(whole), logged(parts), rtol=1e-5)
    first, second = weights(whole), weights(parts)
    before = load_file(base / "unet" / "diffusion_pytorch_model.safetensors")
    apart, moved = (sum(float((first[k] - x[k]).square().sum()) for k in first) for x in (second, before))
    assert apart**0.5 < 1e-3 * moved**0.5


@pytest.mark.parametrize("trainable, part", [("cross_attention", ".attn2."), ("transformer", ".attentions.")])
def test_only_what_was_chosen_learns(tune, base, trainable, part):
    before = load_file(base / "unet" / "diffusion_pytorch_model.safetensors")
    after = weights(tune(trainable=trainable, steps=2))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(part in name for name in changed)
    assert any(".ff." in name for name in changed) == (trainable == "transformer")


def test_lora_is_merged_in_the_pipeline_and_written_apart_as_well(tune, base):
    run = tune(trainable="lora", lora_rank=2, lora_dropout=0.1, ema=0.5, learning_rate=0.05)
    before = load_file(base / "unet" / "diffusion_pytorch_model.safetensors")
    merged = weights(run)
    changed = {name for name in before if not torch.equal(before[name], merged[name])}
    assert changed
    assert all(any(part in name for part in ("to_q", "to_k", "to_v", "to_out.0")) for name in changed)
    pipeline = StableDiffusionInstructPix2PixPipeline.from_pretrained(base, safety_checker=None)
    pipeline.load_lora_weights(run / "model" / "lora")
    pipeline.fuse_lora()
    pipeline.unload_lora_weights()
    loaded = pipeline.unet.state_dict()
    assert max(float((loaded[name] - merged[name]).abs().max()) for name in merged) < 1e-5


def test_bf16_gradient_checkpointing_and_min_snr_run_together(tune):
    run = tune(precision="bf16", gradient_checkpointing=True, snr_gamma=5.0, schedule="cosine", warmup=2)
    cosine = [0, 0.5, *(0.5 + 0.5 * np.cos(np.pi * np.arange(4) / 4))]
    np.testing.assert_allclose(logged(run, "learning_rate"), np.multiply(cosine, 1e-3), rtol=1e-6)
    assert all(tensor.dtype == torch.float32 for tensor in weights(run).values())


def test_a_killed_run_goes_on_bit_for_bit(tune, tmp_path, monkeypatch):
    options = {
        "steps": 5, "trainable": "lora", "mix_affirmative": 0.4, "schedule": "linear", "precision": "bf16",
        "lora_dropout": 0.2,  # draws from the global generator, which is reseeded
        "limit": 7,  # more than one epoch
        "save_every": 2,
    }  # fmt: skip
    unbroken = tune(out=tmp_path / "unbroken", **options)
    for kill in (0, 3):
        with monkeypatch.context() as patch:
            dies_at(patch, model, "compute_losses", kill + 1, raising(Killed()))
            with pytest.raises(Killed):
                tune(**options)
    resumed = tune(**options)
    assert same(weights(unbroken), weights(resumed))
    assert logged(unbroken) == logged(resumed)
    np.testing.assert_allclose(logged(resumed, "learning_rate"), np.arange(5, 0, -1) / 5e3)
    assert sorted(p.name for p in (resumed / "checkpoints").iterdir()) == ["step-00000004", "step-00000005"]


def test_a_full_disk_or_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(
    whole, tune, tmp_path, monkeypatch
):
    folder, limits = tmp_path / "run" / "checkpoints", resource.getrlimit(resource.RLIMIT_FSIZE)
    save, write = checkpoints.Checkpoints.save, checkpoints._save

    def limited(self, step):
        if step == 4:  # no file may grow beyond 50 kB: writing fails in the middle, as on a disk nearly full
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        try:
            return save(self, step)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def torn(tensors, file):
        write(tensors, file)
        if file.name.startswith("average") and "00000004" in str(file.parent):
            file.write_bytes(file.read_bytes()[:100])
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Checkpoints, "save", limited)
        with pytest.raises(UserError) as caught:
            tune(save_every=2)
    assert "The checkpoint at step 4 was not written" in str(caught.value)
    assert "step-00000002" in str(caught.value)
    assert [p.name for p in folder.iterdir()] == ["step-00000002"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "_save", torn)
        with pytest.raises(Killed):
            tune(save_every=2)
    assert sorted(p.name for p in folder.iterdir()) == [".draft-00000004", "step-00000002"]
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write('{"step": 3, "loss"')  # a full disk, or a power cut
    resumed = tune(save_every=2)
    assert same(weights(whole), weights(resumed))
    assert logged(whole) == logged(resumed)
    assert not list(folder.glob(".draft*"))


@pytest.mark.slow
def test_two_processes_with_half_the_batch_each_equal_one_process(tune, line, tmp_path, world):
    options = {"steps": 20, "batch_size": 4, "mix_affirmative": 0.5, "save_every": 10, "validate_every": 20,
               "validation_data": world, "validation_split": "train", "validation_samples": 2,
               "validation_metrics": "l1"}  # fmt: skip
    alone = tune(out=tmp_path / "one", **options)
    words = line(out=tmp_path / "two", features=tmp_path / "other", **options)
    in_two_processes("train/finetune_ip2p.py", 29613, words)
    np.testing.assert_allclose(logged(alone), logged(tmp_path / "two"), atol=1e-5, rtol=0)
    one, two = (json.loads((run / "validation.jsonl").read_text().splitlines()[-1])["l1"]
                for run in (alone, tmp_path / "two"))  # fmt: skip
    assert one == pytest.approx(two, abs=1e-2)
    manifest = json.loads((tmp_path / "two" / "manifest.json").read_text())
    assert manifest["invocations"][0]["processes"] == 2


def test_validation_uses_the_benchmark_and_leaves_training_as_it_was(whole, tune, world):
    watched = tune(
        precision="fp32", validate_every=6, validation_data=world, validation_split="train",
        validation_samples=1, validation_metrics="l1,removal_vqa",
    )  # fmt: skip
    assert same(weights(whole), weights(watched))
    assert logged(whole) == logged(watched)
    rows = [json.loads(row) for row in (watched / "validation.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 6]
    assert all({"step", "l1", "removal_vqa"} == row.keys() for row in rows)
    scores = scores_in(watched / "validation" / "step-00000006" / "negative")
    l1 = [row["value"] for row in scores if row["metric"] == "l1"]
    assert np.mean(l1) == pytest.approx(rows[1]["l1"])
    assert "| 6 |" in (watched / "model" / "README.md").read_text()


def test_held_out_objects_and_templates_are_in_no_instruction(config):
    everything = loading.load(config())
    ids = [example.id for example in everything.negative]
    assert ids == sorted(ids)  # the file's order, not that of --limit in an evaluation
    words = {e.instruction for e in everything.negative}
    noun = next(n for n in ("cat", "dog", "car", "cup", "bird", "book") if any(f" {n}" in w for w in words))
    held = loading.load(config(hold_out_objects=noun, hold_out_templates="0,3,7", mix_affirmative=0.5))
    assert 0 < len(held.negative) < len(everything.negative)
    for example in (*held.negative, *held.affirmative):
        assert not mentions(example.instruction, [noun])
    assert not any(e.instruction.startswith("The image doesn't have") for e in held.negative)
    assert len(held.affirmative) == 2 * len(held.negative)
    assert held.facts["hold_out_objects"] == [noun]


def test_drawn_affirmative_pairs_never_name_what_is_held_out():
    drawn, _ = draw_pairs(300, "nano:ip2p", ("bus", "cup"))
    words = [w for n in ("bus", "cup") for form in names(n) for w in (form, plural(form))]
    sentences = [pair.edit.instruction for pair in drawn]
    assert not any(mentions(s, words) for s in sentences)
    assert any(mentions(s, ["car"]) for s in sentences)
    first, second = drawn[7].read()
    again, _ = draw_pairs(300, "nano:ip2p", ("bus", "cup"))[0][7].read()
    assert np.array_equal(first, again)
    assert first.shape == second.shape == (64, 64, 3)
    kinds = {s.split()[0] for s in sentences}
    assert {"Add", "Remove"} <= kinds


@pytest.mark.parametrize(
    "options, said",
    [
        ({"base": "./nowhere/unet"}, "'./nowhere/unet'"),
        ({"base": "nano:ip3p"}, "'nano:ip3p' cannot be resolved"),
        ({"data": "nowhere"}, "'nowhere' is not a folder; pass a folder in NeIn's"),
        ({"split": "trian"}, "has no trian.json"),
        ({"hold_out_objects": "dragon"}, "Unknown object to hold out 'dragon'"),
        ({"exclude": "NeIn_1"}, "--exclude has 'NeIn_1', which is not a sample"),
        ({"trackers": "wandb"}, "The tracker 'wandb' is not installed"),
        ({"trainable": "lora", "lora_targets": "to_z"}, "--lora-targets to_z cannot be used"),
        ({"validate_every": 2, "validation_data": "nowhere"}, "'nowhere' is not a folder"),
        ({"resolution": 66}, "--resolution is 66; the VAE needs a multiple of 4"),
    ],
)
def test_a_mistake_is_one_sentence_before_any_training(options, said, tune, monkeypatch):
    if options.get("trackers") == "wandb" and importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed")
    dies_at(monkeypatch, model, "compute_losses", 1, raising(AssertionError("training began")))
    with pytest.raises(ValueError) as caught:
        tune(**options)
    assert said in str(caught.value)
    assert type(caught.value).__name__ in ("UserError", "EditorError")


def test_a_picture_that_breaks_off_stops_the_run_or_is_replaced(tune, data, tmp_path):
    for file in (data / "nein_train").iterdir():
        if file.stem.endswith("_1"):
            file.write_bytes(file.read_bytes()[:150])
    with pytest.raises(UserError, match=r"--exclude NeIn.*_1 or --unreadable skip"):
        tune(data=data, steps=12, out=tmp_path / "stop")
    run = tune(data=data, steps=12, out=tmp_path / "skip", unreadable="skip")
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    assert last["skipped"] > 0


def test_a_loss_that_is_not_finite_stops_with_the_steps_and_the_last_checkpoint(tune, tmp_path):
    with pytest.raises(UserError) as caught:
        tune(learning_rate=1e30, steps=30, save_every=1, clip=0, ema=0)
    said = str(caught.value)
    assert "not finite between steps" in said
    assert "a lower learning rate" in said
    kept = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert not kept or str(kept[-1]) in said


def test_a_damaged_checkpoint_is_named_and_another_configuration_in_the_same_folder_refused(again, tune):
    (again / "checkpoints" / "step-00000006" / "weights.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="is damaged; remove"):
        tune(save_every=2)
    with pytest.raises(UserError, match=r"holds a run made with learning_rate 0.001, not 0.5"):
        tune(learning_rate=0.5)
    tune(learning_rate=0.5, steps=1, overwrite=True)
    assert len(logged(again)) == 1


def test_other_images_under_their_names_are_refused(tune, data):
    tune(data=data, steps=1)
    file = min((data / "nein_train").iterdir())
    file.write_bytes(file.read_bytes() + b"\0")  # a byte after the image's end: another size, nothing else
    with pytest.raises(UserError, match="holds a run made with images"):
        tune(data=data, steps=1)
