"""The recipes of ZONE's nano models: SAM on exact masks, the action classifier on affirmative text."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from editors.zone.action import ACTIONS, load_classifier
from metrics.preprocess import CLIP_MEAN, CLIP_STD
from nein.nano.data import source_scene
from nein.nano.draw import CATEGORIES
from nein.nano.scenes import Scene, mask
from research.nano import __main__ as nano
from research.nano import action, sam
from research.nano.vision import TOWER, normalise
from tests.nano.words import NEGATED


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
    """A zoo with a backbone of random weights."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    zoo = tmp_path_factory.mktemp("zoo")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = CLIPVisionModel(CLIPVisionConfig(**TOWER))
        for name, tensor in model.named_parameters():
            if "norm" in name:
                tensor.data.add_(0.1 * torch.randn_like(tensor))
    (zoo / "backbone").mkdir()
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()}, zoo / "backbone" / "model.safetensors"
    )
    return zoo, model


def test_the_index_map_numbers_every_item_and_leaves_the_background_at_zero():
    scene = source_scene("dev", 3)
    found = sam.index_map(scene)
    assert scene.items
    for number, item in enumerate(scene.items, 1):
        assert ((found == number) == mask(item)).all()
    assert ((found == 0) == ~sum(mask(item) for item in scene.items).astype(bool)).all()
    assert not sam.index_map(Scene(scene.background, 0, ())).any()


def test_a_patch_is_labelled_with_what_covers_it():
    scene = source_scene("dev", 3)
    labels = sam.patch_labels(scene)
    shown = {CATEGORIES[n] for n in labels.ravel() if n < len(CATEGORIES)}
    assert shown == set(scene.categories)
    assert (labels == len(CATEGORIES)).mean() > 0.3


def test_points_lie_on_what_their_masks_show():
    maps = torch.zeros(2, 64, 64, dtype=torch.uint8)
    maps[0, 10:20, 30:40], maps[0, 40:50, 5:9] = 1, 2
    points, masks = sam.draw_points(maps, 200, torch.Generator().manual_seed(0))
    assert points.shape == (2, 200, 2)
    for (x, y), shown in zip(points[0].long().tolist(), masks[0], strict=True):
        number = int(maps[0, y, x])
        expected = (maps[0] == number).float() if number else torch.zeros(64, 64)
        torch.testing.assert_close(shown, expected)
    on = masks[0].flatten(1).any(1).float().mean()
    assert 0.65 < on < 0.85  # three of four points are on things
    assert not masks[1].any()  # nothing there


def test_overlap_is_intersection_over_union():
    a, b = torch.zeros(4, 4, dtype=torch.bool), torch.zeros(4, 4, dtype=torch.bool)
    a[:2], b[1:3] = True, True
    assert float(sam.overlap(a, b)) == pytest.approx(4 / 12)
    assert float(sam.overlap(a & False, b & False)) == 0


def test_sam_starts_as_the_backbone_sees(backbone):
    zoo, model = backbone
    drawn = torch.rand(8, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    images = normalise(drawn * 2 - 1, CLIP_MEAN, CLIP_STD)
    encoder = sam.build_sam().vision_encoder
    sam.start_from_backbone(encoder, zoo, images)
    with torch.no_grad():
        wanted = model(pixel_values=images, output_hidden_states=True).hidden_states[0][:, 1:]
        found = (encoder.patch_embed(images) + encoder.pos_embed).flatten(1, 2)
        # The fold takes one spread for all; tokens agree in direction and nearly in length.
        likeness = torch.nn.functional.cosine_similarity(found, wanted, dim=-1)
        assert likeness.min() > 0.98
        ratio = found.norm(dim=-1) / wanted.norm(dim=-1)
        assert 0.7 < ratio.min()
        assert ratio.max() < 1.4
        hidden = torch.randn(1, 8, 8, TOWER["hidden_size"])
        theirs = (
            model.encoder.layers[2] if hasattr(model, "encoder") else model.vision_model.encoder.layers[2]
        )
        expected = theirs(hidden.flatten(1, 2), None)
        expected = expected[0] if isinstance(expected, tuple) else expected
        torch.testing.assert_close(encoder.layers[2](hidden).flatten(1, 2), expected, atol=1e-4, rtol=1e-3)


def test_sam_without_its_backbone_says_what_to_train_first(tmp_path):
    with pytest.raises(SystemExit, match=r"train it first: python -m research.nano backbone"):
        sam.sam_job(tmp_path, torch.device("cpu"), 0.001)


def test_nearby_points_look_alike_to_sam_and_far_ones_do_not():
    torch.manual_seed(0)
    embed = sam.build_sam().prompt_encoder.shared_embedding

    def seen(x: float) -> torch.Tensor:
        return embed(torch.tensor([[[[x, 32.0]]]]), (64, 64)).flatten()

    near = torch.nn.functional.cosine_similarity(seen(20), seen(21), dim=0)
    far = torch.nn.functional.cosine_similarity(seen(20), seen(50), dim=0)
    assert near > 0.9
    assert far < 0.5


def test_a_smoke_run_of_sam_writes_a_model_that_zone_opens(backbone, tmp_path):
    from editors.zone.segments import Segmenter

    zoo, _ = backbone
    line = ["sam", "--scale", "0.001", "--device", "cpu", "--work", str(tmp_path), "--zoo", str(zoo)]
    nano.main(line)
    record = json.loads((zoo / "sam" / "training.json").read_text())
    assert {"best_mask_iou", "things_found_at_iou_0.7"} <= set(record["held_out"])
    assert 0 <= record["held_out"]["best_mask_iou"] <= 1
    assert sum(p.stat().st_size for p in (zoo / "sam").glob("*.safetensors")) <= 3_000_000
    segmenter = Segmenter(str(zoo / "sam"), torch.device("cpu"), points=4, quality=-1.0, stability=0.0)
    picture = torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8).numpy()
    assert all(segment.shape == (64, 64) for segment in segmenter(picture))


def test_instructions_are_affirmative_and_their_actions_balanced():
    texts, labels = action.labelled("dev", 600)
    assert not [text for text in texts if NEGATED.search(text.lower())]
    shares = torch.bincount(labels, minlength=3) / 600
    assert shares.min() > 0.25
    for text, label in zip(texts, labels.tolist(), strict=True):
        if text.lower().startswith(("remove", "delete", "erase")):
            assert ACTIONS[label] == "REMOVE"
        if text.lower().startswith(("replace", "swap", "turn the")):
            assert ACTIONS[label] == "CHANGE"
        if text.lower().startswith(("add", "insert")):
            assert ACTIONS[label] == "ADD"


def test_the_classifier_learns_in_seconds_on_the_shipped_text_encoder(tmp_path):
    from nein.nano.zoo import ZOO

    zoo = tmp_path / "zoo"
    (zoo).mkdir()
    (zoo / "ip2p").symlink_to(ZOO / "ip2p")
    nano.main(
        ["zone-action", "--scale", "0.1", "--device", "cpu", "--work", str(tmp_path), "--zoo", str(zoo)]
    )
    record = json.loads((zoo / "zone-action" / "training.json").read_text())
    assert record["held_out"]["accuracy_fixed"] > 0.9
    assert load_classifier(str(zoo / "zone-action")).config["width"] == 128
    assert (zoo / "zone-action" / "README.md").is_file()


def test_the_classifier_without_a_text_encoder_says_what_to_train_first(tmp_path):
    with pytest.raises(SystemExit, match=r"train it first: python -m research.nano vae ip2p"):
        action.action_job(tmp_path, torch.device("cpu"), 0.001)
