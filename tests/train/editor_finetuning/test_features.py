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

    def batch(self, positions=range(12)):
        order = Order(self.pairs, self.config.mix_affirmative, self.config.seed)
        shape = self.encoder.latent_shape(64)
        loader = Loader(self.config, order, self.features, shape=shape, timesteps=1000)
        return loader.collate(loader.read(positions), CPU), loader

    def made(self):
        """Files of pictures that a pass over everything wrote."""
        before = {*self.features.folder.glob("pictures-*")}
        self.features.make(self.encoder, Processes())
        return {*self.features.folder.glob("pictures-*")} - before


@pytest.fixture
def setup(config, base, tmp_path):
    return lambda **options: Setup(
        config(**{"feature_dtype": "float32", "feature_block": 5, "features": tmp_path / "kept", **options}),
        base,
    )


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_a_batch_is_what_the_encoders_make_of_its_pictures_and_sentences(flip, setup):
    """Flips turn input and target together, and "add" leads from the source to the sample."""
    s = setup(flip=flip, mix_affirmative=0.5, dropout=0.2)
    s.made()
    batch, loader = s.batch()
    members = loader.read(range(12))
    assert len({example.swapped for example, _, _ in members}) == 2
    assert {drawn.drop_image for _, _, drawn in members} == {True, False}
    for row, (example, _, drawn) in enumerate(members):
        assert example.swapped == example.instruction.startswith("Add ")
        assert drawn.flip == bool(flip)
        sides = s.pairs.images[example.pair].read()
        both = np.stack([side[:, ::-1] if flip else side for side in sides])
        with torch.no_grad():  # by the libraries' own calls
            pixels = torch.from_numpy(both / 127.5 - 1).permute(0, 3, 1, 2).float()
            posterior = s.pipeline.vae.encode(pixels).latent_dist
            tokens = s.pipeline.tokenizer(
                "" if drawn.drop_text else example.instruction, padding="max_length", return_tensors="pt",
                max_length=s.pipeline.text_encoder.config.max_position_embeddings, truncation=True,
            ).input_ids  # fmt: skip
            states = s.pipeline.text_encoder(tokens).last_hidden_state[0]
        means, logvars = posterior.mean, posterior.logvar
        assert s.encoder.latent_shape(64) == tuple(means[0].shape) == drawn.noise.shape
        source, target = (1, 0) if example.swapped else (0, 1)
        fresh = {
            "mean": means[target],
            "logvar": logvars[target],
            "condition": means[source] * (not drawn.drop_image),
            "states": states,
            "changed": (means[target] - means[source]).abs().mean(0, keepdim=True) > 0.4,
            "posterior": drawn.posterior,
            "noise": drawn.noise,
            "timestep": torch.tensor(drawn.timestep),
        }
        for name, expected in fresh.items():
            torch.testing.assert_close(getattr(batch, name)[row], expected, rtol=1e-4, atol=1e-5)


def test_half_features_are_half_as_large_and_nearly_the_same(setup, tmp_path):
    s, half = setup(), setup(feature_dtype="float16", features=tmp_path / "half")
    for one in (s, half):
        one.made()
    torch.testing.assert_close(half.batch()[0].mean, s.batch()[0].mean, rtol=1e-2, atol=1e-2)
    sizes = [sum(f.stat().st_size for f in one.features.folder.iterdir()) for one in (half, s)]
    assert sizes[0] < 0.6 * sizes[1]


def test_features_are_made_once_and_again_where_a_file_is_lost_or_a_picture_replaced(setup, data):
    def again():
        return setup(data=data, flip=0.0)

    s = again()
    assert len(s.made()) == -(-len(s.pairs.images) // 5)
    assert again().made() == set()
    lost = min(s.features.folder.glob("pictures-*"))
    lost.unlink()
    assert again().made() == {lost}
    file = min((data / "nein_train").iterdir())
    Image.fromarray(255 - np.asarray(Image.open(file).convert("RGB"))).save(file)
    changed = again()
    assert len(changed.made()) == 1


def test_processes_share_the_blocks_and_give_the_same_features(setup, tmp_path):
    def files(where, **shared):
        s = setup(flip=0.0, features=tmp_path / where)
        s.features.make(s.encoder, Processes(**shared))
        return {f.name: f.read_bytes() for f in s.features.folder.glob("*.safetensors")}

    first, second = files("rank-0", rank=0, size=2), files("rank-1", rank=1, size=2)
    assert not set(first) & set(second)
    assert {**first, **second} == files("alone")


def test_another_model_geometry_or_data_has_another_folder(setup, tmp_path, monkeypatch):
    varied = ({"flip": 0.0}, {"flip": 0.5}, {"flip": 0.0, "target_align": "none"}, {"flip": 0.0, "limit": 7})
    folders = {setup(**options).features.folder for options in varied}
    s = setup(flip=0.0)
    next(s.pipeline.vae.parameters()).data += 1
    folders.add(Features(s.config, s.pairs, s.pipeline).folder)
    assert len(folders) == 5
    monkeypatch.setenv("NEIN_CACHE", str(tmp_path / "cache"))
    assert setup(features=None).features.folder.parent == tmp_path / "cache" / "features"


def test_unreadable_pairs_are_passed_over(setup, data):
    files = sorted((data / "nein_train").iterdir())[2:4]
    for file in files:
        file.write_bytes(file.read_bytes()[:200])  # the header is whole, the pixels are not
    s = setup(data=data, flip=0.0, unreadable="skip", dropout=0.0)
    s.made()
    batch, loader = s.batch(range(30))
    assert loader.skipped == {file.stem for file in files}
    assert (batch.condition.flatten(1).abs().sum(1) > 0).all()
