import numpy as np
import pytest
import torch
from PIL import Image

from nein.editors.checkpoint import load_pipeline
from nein.engine.machine import Processes
from nein.train.editor_finetuning.batches import Encoder, Features, Loader, Order
from nein.train.editor_finetuning.data import load

CPU = torch.device("cpu")


class Setup:
    """The parts of a run up to its batches."""

    def __init__(self, config, base):
        self.config = config
        self.pipeline = pipeline = load_pipeline(str(base)).pipeline
        self.pairs = load(config)
        self.encoder = Encoder(pipeline, CPU, torch.float32)
        self.features = Features(config, self.pairs, pipeline)

    def batch(self, stored, positions=range(12)):
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

    def made(self):
        """Files of pictures that a pass over everything wrote."""
        before = {*self.features.folder.glob("pictures-*")}
        self.features.make(self.encoder, Processes())
        return {*self.features.folder.glob("pictures-*")} - before


@pytest.fixture
def setup(config, base):
    return lambda **options: Setup(
        config(precompute=True, **{"feature_dtype": "float32", "feature_block": 5, **options}), base
    )


def test_a_batch_of_stored_features_equals_one_encoded_on_the_spot(setup, tmp_path):
    s = setup(flip=0.5, mix_affirmative=0.5, dropout=0.2)
    s.made()
    (stored, _), (fresh, _) = s.batch(True), s.batch(False)
    for name in ("condition", "mean", "logvar", "states", "posterior", "noise", "timestep", "changed"):
        torch.testing.assert_close(getattr(stored, name), getattr(fresh, name), rtol=1e-4, atol=1e-5)
    assert (stored.condition.flatten(1).abs().sum(1) == 0).any()  # some pictures were dropped
    texts = s.pairs.sentences()
    assert texts[0] == ""
    assert len(texts) == len(set(texts))
    half = setup(flip=0.5, mix_affirmative=0.5, feature_dtype="float16", features=tmp_path / "half")
    half.made()
    torch.testing.assert_close(half.batch(True)[0].mean, stored.mean, rtol=1e-2, atol=1e-2)
    sizes = [sum(f.stat().st_size for f in one.features.folder.iterdir()) for one in (half, s)]
    assert sizes[0] < 0.6 * sizes[1]


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_flips_turn_input_and_target_together_and_add_goes_from_the_source_to_the_sample(flip, setup):
    s = setup(flip=flip, mix_affirmative=0.5)
    members = s.batch(False)[1].read(range(24))
    assert len({example.swapped for example, _, _ in members}) == 2
    for example, found, drawn in members:
        pair = s.pairs.pictures[example.pair].read()
        assert example.swapped == example.instruction.startswith("Add ")
        assert drawn.flip == bool(flip)
        for side, picture in zip(("source", "target"), pair[::-1] if example.swapped else pair, strict=True):
            assert np.array_equal(found[side].numpy(), picture[:, ::-1] if flip else picture)


def test_features_are_made_once_and_again_where_a_file_is_lost_or_a_picture_replaced(setup, data):
    def again():
        return setup(data=data, flip=0.0)

    s = again()
    assert len(s.made()) == -(-len(s.pairs.pictures) // 5)
    assert again().made() == set()
    lost = min(s.features.folder.glob("pictures-*"))
    lost.unlink()
    assert again().made() == {lost}
    file = min((data / "nein_train").iterdir())
    Image.fromarray(255 - np.asarray(Image.open(file).convert("RGB"))).save(file)
    changed = again()
    assert len(changed.made()) == 1
    stored, fresh = changed.batch(True)[0], changed.batch(False)[0]
    torch.testing.assert_close(stored.condition, fresh.condition, rtol=1e-4, atol=1e-5)


def test_processes_share_the_blocks_and_give_the_same_features(setup, tmp_path):
    def files(where, **shared):
        s = setup(flip=0.0, features=tmp_path / where)
        s.features.make(s.encoder, Processes(**shared))
        return {f.name: f.read_bytes() for f in s.features.folder.glob("*.safetensors")}

    first, second = files("rank-0", rank=0, size=2), files("rank-1", rank=1, size=2)
    assert not set(first) & set(second)
    assert {**first, **second} == files("alone")


def test_another_model_geometry_or_data_has_another_folder(setup):
    varied = ({"flip": 0.0}, {"flip": 0.5}, {"flip": 0.0, "target_align": "none"}, {"flip": 0.0, "limit": 7})
    folders = {setup(**options).features.folder for options in varied}
    s = setup(flip=0.0)
    next(s.pipeline.vae.parameters()).data += 1
    folders.add(Features(s.config, s.pairs, s.pipeline).folder)
    assert len(folders) == 5


def test_unreadable_pairs_are_passed_over(setup, data):
    files = sorted((data / "nein_train").iterdir())[2:4]
    for file in files:
        file.write_bytes(file.read_bytes()[:200])  # the header is whole, the pixels are not
    s = setup(data=data, flip=0.0, unreadable="skip", dropout=0.0)
    s.made()
    for stored in (True, False):
        batch, loader = s.batch(stored, range(30))
        assert loader.skipped == {file.stem for file in files}
        assert (batch.condition.flatten(1).abs().sum(1) > 0).all()
