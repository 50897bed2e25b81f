"""Stored features are what the encoder would give, are made once, and notice changed pictures."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image

from editors.checkpoint import load_pipeline
from nein.engine.errors import UserError
from nein.engine.processes import Processes
from train.instruct.batches import Loader
from train.instruct.data import load
from train.instruct.encoder import Encoder, frozen_hash
from train.instruct.features import DTYPES, Features, complain
from train.instruct.order import Order

CPU = torch.device("cpu")


class Setup:
    """The parts of a run up to its batches."""

    def __init__(self, config, base):
        self.config = config
        pipeline = load_pipeline(str(base)).pipeline
        self.pairs = load(config)
        self.encoder = Encoder(pipeline, CPU, torch.float32)
        self.features = Features(config, self.pairs, frozen_hash(pipeline))

    def batch(self, stored: bool, positions=range(12)):
        loader = Loader(
            self.config,
            self.pairs,
            Order(self.pairs, self.config.mix_affirmative, self.config.seed),
            encoder=None if stored else self.encoder,
            features=self.features if stored else None,
            shape=self.encoder.latent_shape(64),
            timesteps=1000,
        )
        return loader.to_batch(loader.read(positions), CPU), loader


@pytest.fixture
def setup(config, base):
    return lambda **options: Setup(
        config(precompute=True, feature_dtype="float32", feature_block=5, **options), base
    )


def made(setup):
    """(number of pairs encoded, unreadable) of a pass over everything."""
    count = 0
    encode = Encoder.pictures

    def counted(self, pictures):
        nonlocal count
        count += len(pictures)
        return encode(self, pictures)

    Encoder.pictures = counted
    try:
        setup.features.make(setup.encoder, Processes())
    finally:
        Encoder.pictures = encode
    return count, setup.features.unreadable()


def test_a_batch_of_stored_features_equals_one_encoded_on_the_spot(setup):
    s = setup(flip=0.5, mix_affirmative=0.5, dropout=0.2)
    made(s)
    stored, _ = s.batch(True)
    fresh, _ = s.batch(False)
    for name in ("condition", "mean", "logvar", "states", "posterior", "noise", "timestep", "changed"):
        torch.testing.assert_close(getattr(stored, name), getattr(fresh, name), rtol=1e-4, atol=1e-5)
    assert (stored.condition.flatten(1).abs().sum(1) == 0).any()  # some pictures were dropped
    assert stored.mean.std() > 0


def test_flips_turn_input_and_target_together_and_add_goes_from_the_source_to_the_sample(setup):
    plain, mirrored = setup(flip=0.0, mix_affirmative=0.5), setup(flip=1.0, mix_affirmative=0.5)
    one, loader = plain.batch(False)
    two, _ = mirrored.batch(False)
    assert not torch.allclose(one.mean, two.mean, atol=1e-3)
    members = loader.read(range(24))
    swapped = [m for m in members if m[0].swapped]
    assert swapped
    for example, drawn, found in members:
        first, second = plain.pairs.pictures.read(example.pair)
        wanted = (second, first) if example.swapped else (first, second)
        assert example.swapped == example.instruction.startswith("Add ")
        assert not drawn.flip
        assert np.array_equal(found["source"].numpy(), wanted[0])
        assert np.array_equal(found["target"].numpy(), wanted[1])
    _, loader = mirrored.batch(False)
    for example, drawn, found in loader.read(range(6)):
        first, second = plain.pairs.pictures.read(example.pair)
        wanted = (second, first) if example.swapped else (first, second)
        assert drawn.flip
        assert np.array_equal(found["source"].numpy(), wanted[0][:, ::-1])
        assert np.array_equal(found["target"].numpy(), wanted[1][:, ::-1])


def test_the_second_pass_makes_nothing_and_a_lost_file_is_made_again(setup):
    s = setup(flip=0.0)
    count, faults = made(s)
    assert faults == []
    assert count == 2 * len(s.pairs.pictures)
    assert made(setup(flip=0.0))[0] == 0
    files = sorted(s.features.folder.glob("pictures-*"))
    files[1].unlink()
    assert made(setup(flip=0.0))[0] == 2 * 5
    assert sorted(s.features.folder.glob("pictures-*")) == files
    assert list(s.features.folder.glob("*.tmp")) == []


def test_a_changed_picture_is_encoded_again_and_a_touched_one_is_not(setup, data):
    s = setup(data=data, flip=0.0)
    made(s)
    file = next(iter(sorted((data / "nein_train").iterdir())))
    os.utime(file, (1, 1))
    assert made(setup(data=data, flip=0.0))[0] == 0
    Image.fromarray(255 - np.asarray(Image.open(file).convert("RGB"))).save(file)
    changed = setup(data=data, flip=0.0)
    assert made(changed)[0] == 2 * 5
    torch.testing.assert_close(
        changed.batch(True)[0].condition, changed.batch(False)[0].condition, rtol=1e-4, atol=1e-5
    )


def test_processes_share_the_blocks_and_give_the_same_features(setup, tmp_path):
    alone = setup(flip=0.0)
    made(alone)
    blocks = {}
    for rank in (0, 1):
        s = setup(flip=0.0, features=tmp_path / f"rank-{rank}")
        s.features.make(s.encoder, Processes(rank=rank, size=2))
        blocks[rank] = {f.name: f.read_bytes() for f in s.features.folder.glob("*.safetensors")}
    assert not set(blocks[0]) & set(blocks[1])
    everything = {f.name: f.read_bytes() for f in alone.features.folder.glob("*.safetensors")}
    assert {**blocks[0], **blocks[1]} == everything


def test_another_model_geometry_or_data_has_another_folder(setup, base, monkeypatch):
    folders = {setup(flip=0.0).features.folder, setup(flip=0.5).features.folder}
    folders.add(setup(flip=0.0, target_align="none").features.folder)
    folders.add(setup(flip=0.0, limit=7).features.folder)
    s = setup(flip=0.0)
    folders.add(Features(s.config, s.pairs, "another model").folder)
    assert len(folders) == 5


def test_unreadable_pairs_are_all_named_or_skipped(setup, data):
    files = sorted((data / "nein_train").iterdir())
    whole = {file: file.read_bytes() for file in files[2:4]}
    for file in whole:
        file.write_bytes(whole[file][:200])  # the header is whole, the pixels are not
    s = setup(data=data, flip=0.0, unreadable="skip", dropout=0.0)
    _, faults = made(s)
    assert len(faults) == 2
    with pytest.raises(UserError) as caught:
        complain(s.features.unreadable(), "The data")
    assert all(file.stem in str(caught.value) for file in files[2:4])
    assert "--exclude" in str(caught.value)
    for stored in (True, False):
        batch, loader = s.batch(stored, range(30))
        assert loader.skipped == {file.stem for file in files[2:4]}
        assert (batch.condition.flatten(1).abs().sum(1) > 0).all()
    complain([], "The data")
    assert made(setup(data=data, flip=0.0))[0] == 0  # nothing has changed
    for file in whole:
        file.write_bytes(whole[file])
    count, faults = made(setup(data=data, flip=0.0))
    assert (count, faults) == (2 * 5, [])


def test_sentences_are_stored_once_each(setup):
    s = setup(mix_affirmative=0.5)
    made(s)
    texts = s.pairs.sentences()
    assert len(texts) == len(set(texts))
    assert texts[0] == ""
    for text in texts[:5]:
        torch.testing.assert_close(s.features.sentence(text), s.encoder.sentence(text), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(s.features.sentence(texts[1]), s.features.sentence(texts[2]))


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_drawn_pictures_which_cannot_be_written_to_are_encoded_without_a_warning(setup):
    s = setup(data="nano", nano_sources=2, flip=0.0, mix_affirmative=0.5, affirmative_pairs=2)
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else only once in a process
    try:
        count, unreadable = made(s)
    finally:
        torch.set_warn_always(before)
    assert count == 2 * len(s.pairs.pictures) > 0
    assert unreadable == []


def test_half_precision_halves_the_files(setup, config, base, tmp_path):
    small = Setup(
        config(precompute=True, feature_dtype="float16", flip=0.0, features=tmp_path / "half"), base
    )
    large = Setup(
        config(precompute=True, feature_dtype="float32", flip=0.0, features=tmp_path / "full"), base
    )
    sizes = []
    for s in (small, large):
        made(s)
        sizes.append(sum(f.stat().st_size for f in s.features.folder.iterdir()))
    assert sizes[0] < 0.6 * sizes[1]
    torch.testing.assert_close(small.batch(True)[0].mean, large.batch(True)[0].mean, rtol=1e-2, atol=1e-2)
    assert DTYPES["float16"] is torch.float16
