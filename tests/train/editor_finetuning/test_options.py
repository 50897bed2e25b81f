from pathlib import Path

import pytest

from nein.config.options import dump
from nein.train.editor_finetuning.options import RECIPES, TuneConfig

parse = TuneConfig.parse_line
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_read_and_survives_a_round_trip(name, tmp_path):
    config, _ = parse(["--recipe", name, *([] if name == "nano" else ["--data", "somewhere"])])
    file = tmp_path / "again.yaml"
    file.write_text(dump(config))
    assert parse(["--config", str(file)])[0] == config


def test_the_published_recipes_hold_the_published_values():
    ip2p, mb = (parse(["--recipe", name, "--data=x"])[0] for name in ("nein-ip2p", "nein-magicbrush"))
    assert (ip2p.epochs, mb.epochs) == (8, 8)
    assert (ip2p.batch_size, ip2p.learning_rate, ip2p.warmup) == (1024, 1e-4, 0)
    assert (mb.batch_size, mb.learning_rate, mb.warmup) == (32, 5e-5, 1000)
    for config in (ip2p, mb):
        assert (config.resolution, config.flip, config.dropout, config.ema) == (256, 0.5, 0.05, 0.9999)
        assert (config.clip, config.weight_decay, config.seed, config.precision) == (0, 0.01, 23, "fp32")


def test_a_command_line_that_names_no_base_and_no_data_is_of_the_recipe_for_the_nano_world(tmp_path):
    assert parse([]) == parse(["--recipe", "nano"])
    assert parse(["--steps=3", "--device=cpu"])[0] == parse(["--recipe=nano", "--steps=3", "--device=cpu"])[0]
    (file := tmp_path / "mine.yaml").write_text("steps: 3\n")
    for words in (["--steps=3", "--base", "x"], ["--steps=3", "--data=nano"], ["--config", str(file)]):
        config, _ = parse(words)
        assert (config.recipe, config.resolution) == (None, 256)


def test_only_what_decides_the_weights_belongs_to_the_identity():
    one, other = (parse(["--steps=3"])[0], parse(["--steps=3", "--workers=1", "--out=x"])[0])
    assert one.identity() == other.identity()
    assert parse(["--steps=3", "--seed=1"])[0].identity() != one.identity()
    assert set(one.identity()) < set(vars(one))
