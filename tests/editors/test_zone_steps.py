from types import SimpleNamespace

import numpy as np
import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import Attention
from PIL import Image
from scipy import ndimage
from torchvision.ops import nms
from transformers import SamImageProcessor, SamModel

from nein.editors import zone as masks
from nein.editors.attention import AttentionRecord, Processor, install_processors
from nein.editors.resize import zone, zone_frame
from nein.editors.zone import ACTIONS, Segmenter, Settings, decide_action


def grid(*rows):
    """A mask from rows of "#" and "."."""
    return np.array([[cell == "#" for cell in row] for row in rows])


@pytest.mark.parametrize(
    "size, scaled, framed, corner",
    [
        ((512, 384), (512, 384), (512, 384), (0, 0)),
        ((500, 375), (500, 375), (512, 384), (6, 4)),
        ((640, 480), (512, 384), (512, 384), (0, 0)),
        ((1000, 333), (512, 170), (512, 192), (0, 11)),  # 333 * 512 / 1000 = 170.496
        ((333, 1000), (170, 512), (192, 512), (11, 0)),
        ((1, 1), (1, 1), (32, 32), (15, 15)),
        ((1, 5000), (1, 512), (32, 512), (15, 0)),
    ],
)
def test_the_frame_scales_down_and_pads_to_multiples_of_32(size, scaled, framed, corner):
    frame = zone_frame(*size)
    assert (frame.scaled, frame.size, frame.corner) == (scaled, framed, corner)


def test_the_picture_stands_in_the_frame_and_the_rest_is_black():
    image = np.full((20, 35, 3), 7, np.uint8)
    framed = zone(image, 512)
    assert framed.shape == (32, 64, 3)
    np.testing.assert_array_equal(framed[6:26, 14:49], image)
    assert framed.sum() == image.sum()


@pytest.mark.parametrize(
    "values, tokens, fixed, paper",
    [
        # The class whose peak is latest, and the one with the largest logit.
        ({(2, "REMOVE"): 9.0, (3, "CHANGE"): 1.0, (4, "ADD"): 0.5}, 5, "REMOVE", "ADD"),
        # A position behind the text counts in paper alone.
        ({(1, "ADD"): 3.0, (5, "REMOVE"): 4.0}, 3, "ADD", "REMOVE"),
        # Of equal positions the first class.
        ({(5, "CHANGE"): 1.0, (5, "ADD"): 5.0, (5, "REMOVE"): 7.0}, 6, "REMOVE", "CHANGE"),
    ],
)
def test_the_action_by_protocol(values, tokens, fixed, paper):
    logits = torch.full((6, 3), -1.0)
    for (position, action), value in values.items():
        logits[position, ACTIONS.index(action)] = value
    assert [decide_action(logits, tokens, name) for name in ("fixed", "paper")] == [fixed, paper]


def attend(branches, record=True):
    """3 branches of 2 samples, 2 x 2 cells, 5 tokens."""
    torch.manual_seed(0)
    layer = Attention(query_dim=8, cross_attention_dim=6, heads=2, dim_head=4)
    layer.set_processor(Processor(is_recorded=True))
    hidden, text = torch.randn(6, 4, 8), torch.randn(6, 5, 6)
    kept = AttentionRecord(2, (2, 2), branches)
    with torch.no_grad():
        output = layer(hidden, text, record=kept if record else None)
        query = layer.to_q(hidden).view(6, 4, 2, 4)
        key = layer.to_k(text).view(6, 5, 2, 4)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 4**0.5
    return output, kept, scores.softmax(-1).view(3, 2, 2, 4, 5)  # branch, sample, head, cell, token


@pytest.mark.parametrize("branches, rows", [("text", [0]), ("uncond", [1, 2])])
def test_recorded_attention_is_the_mean_over_heads_and_the_chosen_branches(branches, rows):
    output, kept, probabilities = attend(branches)
    torch.testing.assert_close(kept.mean(), probabilities[rows].mean((0, 2)).view(2, 2, 2, 5))
    # The layer gives what it gives without a record.
    torch.testing.assert_close(output, attend(branches, record=False)[0], atol=1e-6, rtol=1e-5)


def test_the_mean_is_over_steps_and_layers_by_their_heads_and_other_sizes_are_left_out():
    kept = AttentionRecord(1, (1, 2), "uncond")
    assert kept.has_grid(2)
    assert not kept.has_grid(4)
    kept.add(torch.full((3 * 1, 2, 1), 0.2), heads=1)
    kept.add(torch.full((3 * 3, 2, 1), 0.6), heads=3)
    torch.testing.assert_close(kept.mean(), torch.full((1, 1, 2, 1), (0.2 + 3 * 0.6) / 4))


def test_cross_attention_on_the_way_down_and_up_is_recorded_and_nothing_else(checkpoint):
    unet = UNet2DConditionModel.from_pretrained(checkpoint / "unet")
    install_processors(unet)
    recorded = {name for name, processor in unet.attn_processors.items() if processor._is_recorded}
    layers = ("down_blocks.1.attentions.0", "up_blocks.0.attentions.0", "up_blocks.0.attentions.1")
    assert recorded == {f"{layer}.transformer_blocks.0.attn2.processor" for layer in layers}
    assert any(name.startswith("mid_block") for name in unet.attn_processors)


@pytest.mark.parametrize(
    "floor, first, last, stretched, difference",
    [
        # 255 * (1, .5, .2, 0) = 255, 127, 51, 0 and 255 * (.5, 1, .125, 1) = 127, 255, 31, 255
        ("zero", [0.5, 0.25, 0.1, 0.0], [0.2, 0.4, 0.05, 0.4], [255, 127, 51, 0], [128, 0, 20, 0]),
        ("least", [1.0, 0.75, 0.625, 0.5], [0.75, 1.0, 0.5, 1.0], [255, 127, 63, 0], [128, 0, 63, 0]),
        ("zero", [0.0] * 4, [0.0] * 4, [0] * 4, [0] * 4),
        ("least", [0.3] * 4, [0.3] * 4, [0] * 4, [0] * 4),
    ],
)
def test_the_difference_stretches_each_map(floor, first, last, stretched, difference):
    first, last = np.array(first).reshape(2, 2), np.array(last).reshape(2, 2)
    assert masks.stretch(first, floor).flatten().tolist() == stretched
    assert masks.subtract_maps(first, last, floor).flatten().tolist() == difference


def test_the_rival_is_the_end_mark_or_all_words_together():
    attention = np.array([[[0.5, 0.125, 0.25, 0.0625, 0.0625]]])  # start, two words, end, padding
    assert masks.choose_rival(attention, 4, "last").tolist() == [[0.0625]]
    assert masks.choose_rival(attention, 4, "words").tolist() == [[0.375]]
    assert masks.choose_rival(attention, 2, "words").tolist() == [[0.125]]  # no word: the end mark


@pytest.mark.parametrize("threshold, region", [(108, ["#.", "#."]), (128, ["##", "#."]), (254, ["##", "#."])])
def test_the_region_is_where_the_doubled_difference_stays_at_or_below_the_threshold(threshold, region):
    found = np.array([[54, 55], [0, 200]], np.uint8)  # doubled: 108, 110, 0, 255 after saturation
    np.testing.assert_array_equal(masks.make_rough_mask(found, (2, 2), threshold), grid(*region))


THREE = ("##...##", ".......", "##.....")
ANGLE = ("###.#", "#...#", "#.#.#", "....#", "..###")


@pytest.mark.parametrize(
    "mask, least, protocol, left",
    [
        # Components 1, 2, 3 of two pixels each count 2, 4 and 6 in the released code.
        (THREE, 4, "paper", (".....##", ".......", "##.....")),
        (THREE, 4, "fixed", (".......",) * 3),
        (THREE, 2, "fixed", THREE),
        # The angle of 5 pixels has a box of 3 x 3, which also holds the single pixel at (2, 2).
        (ANGLE, 6, "paper", ("....#", "....#", "....#", "....#", "..###")),
        (ANGLE, 5, "fixed", ("###.#", "#...#", "#...#", "....#", "..###")),
        (("#.", ".#"), 2, "fixed", ("..", "..")),  # what touches at a corner are two
        (("####", "#...", "#.#.", "#..."), 3, "fixed", ("####", "#...", "#...", "#...")),
    ],
)
def test_small_components_are_dropped(mask, least, protocol, left):
    np.testing.assert_array_equal(masks.drop_small(grid(*mask), least, protocol), grid(*left))


def test_segments_are_those_of_a_grid_of_points_filtered_and_suppressed_by_hand(sam_folder, picture):
    image = picture(3, 32, 32)
    model = SamModel.from_pretrained(sam_folder)
    inputs = SamImageProcessor.from_pretrained(sam_folder)(images=image, return_tensors="pt")
    centres = [(i + 0.5) / 3 * 32 for i in range(3)]
    points = torch.tensor([[x, y] for y in centres for x in centres])
    with torch.no_grad():
        out = model(pixel_values=inputs["pixel_values"], input_points=points.view(1, 9, 1, 2))
    # Masks of 16 x 16 are enlarged to the picture.
    logits = torch.nn.functional.interpolate(out.pred_masks[0], (32, 32), mode="bilinear").flatten(0, 1)
    rated = out.iou_scores[0].flatten()
    steady = (logits > 1).sum((1, 2)) / (logits > -1).sum((1, 2))
    # Thresholds between the values, so that some pass either and some pass both.
    quality, stability = (float(v.sort().values[5:7].mean()) for v in (rated, steady))
    kept = [i for i in range(27) if rated[i] > quality and steady[i] > stability]
    boxes = []
    for i in kept:
        y, x = torch.nonzero(logits[i] > 0, as_tuple=True)
        boxes.append([float(v) for v in (x.min(), y.min(), x.max(), y.max())])
    chosen = nms(torch.tensor(boxes), rated[kept], 0.7).tolist()
    assert 0 < len(chosen) < len(kept) < 21
    settings = SimpleNamespace(points_per_side=3, segment_quality=quality, segment_stability=stability)
    segment = Segmenter(str(sam_folder), torch.device("cpu"), settings)
    for found, number in zip(segment(image), chosen, strict=True):
        np.testing.assert_array_equal(found, (logits[kept[number]] > 0).numpy())


@pytest.mark.parametrize(
    "rough, segments, best",
    [
        (
            ["###.", "###."],
            [["#...", "...."], ["####", "####"], ["##..", "##.."]],
            (1, 0.75),
        ),  # 1/6, 6/8, 4/6
        (["###.", "###."], [["#...", "...."]], (0, pytest.approx(1 / 6))),
        (["##.."], [["#..."], [".#.."]], (0, 0.5)),
        (["##.."], [["...#"]], (None, 0.0)),
        (["##.."], [], (None, 0.0)),
        (["...."], [["...."]], (None, 0.0)),
    ],
)
def test_the_first_segment_with_the_best_overlap_is_chosen(rough, segments, best):
    assert masks.best_segment(grid(*rough), [grid(*one) for one in segments]) == best


def smooth(edited, source, dilated=None, protocol="fixed", radius=1000.0, threshold=30, closing=1):
    dilated = np.ones(edited.shape[:2], bool) if dilated is None else dilated
    lengths = {"smooth_radius": radius, "smooth_threshold": threshold, "smooth_closing": closing}
    return masks.find_smooth_edge(source, edited, dilated, Settings(protocol=protocol, **lengths))


def flat(value, shape=(8, 8)):
    return np.full((*shape, 3), value, np.uint8)


def test_with_every_frequency_kept_it_is_the_grey_difference_inside_the_dilated_segment():
    edited, dilated = flat(100), np.zeros((8, 8), bool)
    edited[2, 2] = 131
    edited[3, 3] = 130  # not beyond the threshold
    edited[6, 6] = 255  # outside
    dilated[:5, :5] = True
    assert np.argwhere(smooth(edited, flat(100), dilated)).tolist() == [[2, 2]]


@pytest.mark.parametrize(
    "colour, fixed, paper",
    [((0, 0, 200), False, True), ((90, 0, 0), False, False), ((120, 0, 0), True, False)],
)
def test_paper_weighs_red_as_blue(colour, fixed, paper):
    # Weights .299 and .114: blue 200 counts 23 or 60, red 90 counts 27 or 10, red 120 counts 36 or 14.
    edited = flat(0)
    edited[:] = colour
    assert smooth(edited, flat(0)).all() == fixed
    assert smooth(edited, flat(0), protocol="paper").all() == paper


def test_paper_lets_what_overshoots_wrap_around():
    edited = flat(0, (64, 64))
    edited[:, :32] = 255
    # A step seen through its lowest eight frequencies, along one row, by the Fourier series.
    n = np.arange(64)
    series = np.full(64, 127.5)
    step = np.where(n < 32, 255.0, 0.0)
    for k in range(1, 9):
        wave = np.exp(-2j * np.pi * k * n / 64)
        series += 2 * np.real((step * wave).sum() / 64 * np.conj(wave))
    overshoot = np.abs(series).astype(int)
    assert (overshoot > 255).any()
    for protocol, seen in (("fixed", overshoot), ("paper", overshoot % 256)):
        found = smooth(edited, flat(0, (64, 64)), protocol=protocol, radius=8)
        np.testing.assert_array_equal(found, np.tile(seen > 30, (64, 1)))


def test_the_disk_is_off_centre_in_paper_unless_the_picture_is_square():
    numbers = np.random.default_rng(0).integers(0, 256, (6, 10, 3), dtype=np.uint8)
    grey = np.asarray(Image.fromarray(numbers).convert("L"), np.float64)
    for protocol, centre in (("fixed", (3, 5)), ("paper", (5, 3))):
        y, x = np.ogrid[:6, :10]
        keep = (y - centre[0]) ** 2 + (x - centre[1]) ** 2 <= 4
        coarse = np.abs(np.fft.ifft2(np.fft.ifftshift(np.fft.fftshift(np.fft.fft2(grey)) * keep))).astype(int)
        shown = numbers[..., ::-1] if protocol == "paper" else numbers  # weighed as if it were BGR
        found = smooth(shown, flat(0, (6, 10)), protocol=protocol, radius=2, threshold=100)
        np.testing.assert_array_equal(found, ndimage.binary_fill_holes(coarse % 256 > 100))


def test_gaps_are_closed_holes_are_filled_and_the_border_is_no_gap():
    edited, source, corner = (flat(0, (9, 12)) for _ in range(3))
    ring = np.zeros((9, 12), bool)
    ring[2:6, 2:8] = True
    filled = ring.copy()
    ring[3:5, 3:7] = False
    edited[ring] = 255
    np.testing.assert_array_equal(smooth(edited, source), filled)
    edited[2, 4] = 0  # a gap of one pixel opens the ring
    ring[2, 4] = False
    np.testing.assert_array_equal(smooth(edited, source), ring)
    np.testing.assert_array_equal(smooth(edited, source, closing=3), filled)
    corner[:2, :2] = 255  # what reaches the border stays there
    np.testing.assert_array_equal(smooth(corner, source, closing=3), corner[..., 0] > 0)
