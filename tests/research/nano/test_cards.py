"""Model cards: one for every model that ships, with the figures that were recorded."""

from __future__ import annotations

import json

import pytest

from nein.nano import zoo
from research.nano.__main__ import MODELS as TRAINED
from research.nano.cards import ABOUT, COMMANDS, write_card
from tests.nano.test_shipped_zoo import MODELS, TUNED

RECORD = {
    "model": "x",
    "seed": 20250519,
    "scale": 1.0,
    "device": "CPU",
    "steps": 1234,
    "learning_rate": 0.0015,
    "seconds": 5678,
    "held_out": {"scenes": 500, "presence_accuracy": 0.9375},
}


def test_every_shipped_model_has_an_entry_and_a_recipe():
    assert set(ABOUT) >= set(MODELS)
    assert set(MODELS) - set(TUNED) <= set(TRAINED)
    assert set(TRAINED) - set(ABOUT) == {
        "vae",
        "backbone",
        "base",
        "ip2p-first",
        "magicbrush-first",
    }
    assert {zoo.BASE, *zoo.VARIANTS, *zoo.ALIASES.values()} <= set(ABOUT)


@pytest.mark.parametrize("name", sorted(ABOUT))
def test_a_card_says_what_the_model_is_and_every_recorded_figure(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps({**RECORD, "model": name}))
    write_card(folder)
    card = (folder / "README.md").read_text()
    title, class_name, stands_for, story = ABOUT[name]
    assert f"\n# {title}\n" in card
    assert f"`{class_name}`" in card
    assert f"`{stands_for}`" in card
    assert story in card
    for line in (
        "| steps | 1234 |",
        "| learning rate | 0.0015 |",
        "| seconds | 5678 |",
        f"| model | {name} |",
    ):
        assert line in card
    assert "| held out | scenes 500, presence_accuracy 0.9375 |" in card
    command = f"python -m research.nano {COMMANDS.get(name, name)}"
    if name.startswith("nein-"):
        command = f"python train/finetune_ip2p.py --recipe nano --base nano:{name.removeprefix('nein-')}"
    assert f"{command}`" in card
    library = "diffusers" if name in (zoo.BASE, *zoo.VARIANTS) else "transformers"
    assert card.startswith(f"---\nlibrary_name: {library}\nlicense: apache-2.0\ntags: [nein, nano]\n---\n")


def test_a_card_shows_the_records_there_are_and_no_others(tmp_path):
    folder = tmp_path / "ip2p"
    folder.mkdir()
    write_card(folder)
    bare = (folder / "README.md").read_text()
    assert "## Training" not in bare
    (folder / "training-vae.json").write_text(json.dumps({"held_out": {"psnr_db": 30.25}}))
    (folder / "training.json").write_text(json.dumps(RECORD))
    (folder / "judged.json").write_text(json.dumps({"remove_vqa": 0.8125, "split": "dev"}))
    write_card(folder)
    card = (folder / "README.md").read_text()
    assert card.index("## VAE") < card.index("psnr_db 30.25") < card.index("## Training")
    assert card.index("## Training") < card.index("1234") < card.index("## As judged")
    assert card.index("## As judged") < card.index("| remove vqa | 0.8125 |")


def test_titles_are_all_different_and_stories_are_not_empty():
    assert len({row[0] for row in ABOUT.values()}) == len(ABOUT)
    assert all(len(row[3]) > 60 for row in ABOUT.values())


def test_a_folder_of_no_known_model_has_no_card(tmp_path):
    (tmp_path / "bogus").mkdir()
    with pytest.raises(KeyError, match="bogus"):
        write_card(tmp_path / "bogus")
