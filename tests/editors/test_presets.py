import json

import pytest

from nein import editors
from nein.editors import PRESETS, EditorError, find_preset_row, get_editor

# Literal copies of the published settings: a change of the table has to be made twice, on purpose.
FIELDS = ("steps", "guidance_scale", "image_guidance_scale", "resize", "resolution")
PUBLISHED = {
    "ip2p": ("timbrooks/instruct-pix2pix", 100, 7.5, 1.5, "r64", 512),
    "magicbrush": ("vinesmsuic/magicbrush-jul7", 100, 7.5, 1.5, "r64", 512),
    "magicbrush-ema": ("vinesmsuic/magicbrush-ema", 100, 7.5, 1.5, "r64", 512),
    "magicbrush-paper": ("vinesmsuic/magicbrush-paper", 100, 7.5, 1.5, "r64", 512),
    "hqedit-readme": ("MudeHui/HQ-Edit", 30, 1.5, 1.5, "squash", 512),
    "hqedit-readme-intended": ("MudeHui/HQ-Edit", 30, 7.0, 1.5, "squash", 512),
    "hqedit-space": ("MudeHui/ip2p-warp-gpt4v", 20, 7.0, 1.5, "r64", 512),
    "instructdiffusion": (None, 100, 5.0, 1.25, "r64", 512),
    "zone": ("timbrooks/instruct-pix2pix", 20, 7.5, 1.5, None, 512),
}
# The rest of ZONE's row: the other models and every constant of its masks.
PUBLISHED_ZONE = {
    "magicbrush": "vinesmsuic/magicbrush-jul7", "sam": "facebook/sam-vit-huge",
    "action": "ckpts/action_classifier.pth", "rounding": "round", "protocol": "paper", "blend_beta": 0.2,
    "map_stride": 32, "against": "last", "floor": "zero", "mask_threshold": 108, "least_area": 64,
    "points_per_side": 32, "segment_quality": 0.88, "segment_stability": 0.95, "dilation": 4,
    "smooth_radius": 200.0, "smooth_threshold": 30, "smooth_closing": 21, "edge_alpha": 0.6,
}  # fmt: skip


def test_paper_rows_hold_the_published_settings():
    rows = [row for row in PRESETS.values() if row.preset == "paper" and not row.pipeline]
    assert {row.name: (row.checkpoint, *map(row.settings.get, FIELDS)) for row in rows} == PUBLISHED
    for name in ("instructdiffusion", "instructdiffusion-nano"):
        assert [PRESETS[name].settings[key] for key in ("guidance", "output")] == [
            "instructdiffusion",
            "input",
        ]


def test_zones_row_holds_the_published_constants_and_nano_only_shrinks_lengths():
    paper, nano = (PRESETS[name].options() for name in ("zone", "zone-nano"))
    assert {key: value for key, value in paper.items() if key not in FIELDS} == PUBLISHED_ZONE
    assert set(nano) == set(paper)
    assert {key for key in paper if nano[key] != paper[key]} <= {
        "guidance_scale", "resolution", "magicbrush", "sam", "action", "protocol", "map_stride", "against",
        "floor", "least_area", "points_per_side", "segment_quality", "segment_stability", "dilation",
        "smooth_radius", "smooth_closing",
    }  # fmt: skip


def test_every_row_names_its_sources_and_the_nano_ones_are_embedded():
    # A wheel has no package of another name, and a user's editors.py may lie beside the script.
    assert {row.class_path.partition(":")[0].rpartition(".")[0] for row in PRESETS.values()} == {
        "nein.editors"
    }
    for row in PRESETS.values():
        assert row.sources["*"], row
        assert row.note, row
        models = (row.checkpoint or "", *map(row.settings.get, row.models))
        assert row.preset != "nano" or all(model.startswith("nano:") for model in models), row


@pytest.mark.parametrize(
    "name, preset, row",
    [
        ("ip2p", "paper", "ip2p"), ("ip2p", "nano", "ip2p-nano"), ("hqedit", "paper", "hqedit-readme"),
        ("hqedit", "nano", "hqedit-nano"), ("hqedit-space", "paper", "hqedit-space"),
        ("ip2p-nano", "nano", "ip2p-nano"),
    ],
)  # fmt: skip
def test_editor_and_preset_pick_the_row(name, preset, row):
    found = find_preset_row(name, preset)
    assert (found.name, found.preset) == (row, preset)


@pytest.mark.parametrize("name", ["owner/model", "./folder", "nano:ip2p"])
def test_a_checkpoint_gets_the_values_of_instruct_pix2pix_and_its_own_resolution(name):
    paper, nano = find_preset_row(name, "paper"), find_preset_row(name, "nano")
    assert paper.checkpoint == nano.checkpoint == name
    for row, parent in ((paper, "ip2p"), (nano, "ip2p-nano")):
        assert row.options() == {k: v for k, v in PRESETS[parent].options().items() if k != "resolution"}


@pytest.mark.parametrize("distilled, steps, scale", [(True, 4, 1.0), (False, 50, 4.0)])
def test_a_distilled_klein_gets_a_recipe_of_its_own(distilled, steps, scale, tmp_path):
    index = {"_class_name": "Flux2KleinPipeline", "is_distilled": distilled}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    values = find_preset_row(str(tmp_path), "paper").settings
    assert (values["pipeline"], values["steps"], values["guidance_scale"]) == (
        "Flux2KleinPipeline", steps, scale,
    )  # fmt: skip


@pytest.mark.parametrize(
    "act, sentence",
    [
        (
            lambda: find_preset_row("hqedit-space", "nano"),
            r"of --preset nano 'hqedit-space'; .*'hqedit-nano'",
        ),
        (lambda: find_preset_row("ip2p", "papr"), r"Unknown preset 'papr'; .*Allowed: nano, paper"),
        (lambda: find_preset_row("identity", "paper"), "Unknown editor of --preset paper 'identity'"),
        (lambda: get_editor("magicbrsh"), r"did you mean 'magicbrush'\?.*identity.*folder or hub id"),
        (lambda: editors.check("ip2p", guidence_scale=3), r"option 'guidence_scale'; did you mean"),
        (lambda: get_editor("solid", checkpoint="x/y"), "'solid' has no model"),
        (lambda: get_editor("ip2p-nano", checkpoint="nano:ip2q"), "'nano:ip2q' cannot be resolved"),
    ],
)
def test_a_wrong_name_is_one_sentence(act, sentence):
    with pytest.raises(EditorError, match=sentence):
        act()
