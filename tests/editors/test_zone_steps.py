"""Each step of ZONE against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diffusers.models.attention_processor import Attention
from torchvision.ops import nms

from editors import attention
from editors.attention import AttentionRecord, Processor
from editors.resize import zone, zone_frame
from editors.sampling import dpm_solver
from editors.zone import blend, fusion, masks
from editors.zone.action import ACTIONS, decide

BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}


def grid(*rows: str) -> np.ndarray:
    """A mask from rows of "#" and "."."""
    return np.array([[cell == "#" for cell in row] for row in rows])


# Step 0 -------------------------------------------------------------------------------------------------


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


# Step 1 -------------------------------------------------------------------------------------------------


def test_paper_takes_the_class_whose_peak_is_latest_and_fixed_the_largest_logit():
    logits = torch.full((6, 3), -1.0)
    logits[2, ACTIONS.index("REMOVE")] = 9.0
    logits[3, ACTIONS.index("CHANGE")] = 1.0
    logits[4, ACTIONS.index("ADD")] = 0.5
    assert decide(logits, 5, "fixed") == "REMOVE"
    assert decide(logits, 5, "paper") == "ADD"


def test_padding_counts_in_paper_and_not_in_fixed():
    logits = torch.zeros(6, 3)
    logits[1, ACTIONS.index("ADD")] = 3.0
    logits[5, ACTIONS.index("REMOVE")] = 4.0  # a position behind the text
    assert decide(logits, 3, "fixed") == "ADD"
    assert decide(logits, 3, "paper") == "REMOVE"


def test_equal_positions_give_the_first_class_in_paper():
    logits = torch.zeros(4, 3)
    logits[3] = torch.tensor([1.0, 5.0, 7.0])
    assert decide(logits, 4, "paper") == "CHANGE"
    assert decide(logits, 4, "fixed") == "REMOVE"


# Step 2 -------------------------------------------------------------------------------------------------


def solve_by_hand(start, share, gain, other_gain, steps):
    """DPM-Solver++(2M), arXiv:2211.01095 algorithm 2, on numbers; the models predict `gain * x` as noise."""
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    signal = np.cumprod(1 - betas)
    times = np.linspace(0, 999, steps + 1).round()[::-1][:-1].astype(int)
    levels = np.append(np.sqrt((1 - signal) / signal)[times], math.sqrt((1 - signal[0]) / signal[0]))
    alphas, sigmas = 1 / np.sqrt(1 + levels**2), levels / np.sqrt(1 + levels**2)
    lambdas = np.log(alphas / sigmas)

    def step(i, x, noise, before):
        clean = (x - sigmas[i] * noise) / alphas[i]
        h = lambdas[i + 1] - lambdas[i]
        if before is not None:
            r = (lambdas[i] - lambdas[i - 1]) / h
            clean_mean = clean + (clean - before) / (2 * r)
        else:
            clean_mean = clean
        return sigmas[i + 1] / sigmas[i] * x - alphas[i + 1] * math.expm1(-h) * clean_mean, clean

    x = y = start
    x_before = y_before = None
    for i in range(steps):
        y, y_before = step(i, y, other_gain * y, y_before)
        x, x_before = step(i, x, gain * x, x_before)
        x = (x + share * y) / (1 + share)
    return x


def test_fused_denoising_is_two_solvers_of_which_one_is_drawn_to_the_other():
    def sampler():
        made = dpm_solver(BETAS)
        made.set_timesteps(20)
        return made

    start = torch.tensor([1.3, -0.7]).view(2, 1, 1, 1)
    share = torch.tensor([0.2, 0.01])
    found = fusion.fuse(
        start, share, (sampler(), lambda x, t: 0.3 * x), (sampler(), lambda x, t: 0.9 * x)
    ).flatten()
    for value, first, weight in zip(found.tolist(), (1.3, -0.7), (0.2, 0.01), strict=True):
        assert value == pytest.approx(solve_by_hand(first, weight, 0.3, 0.9, 20), rel=2e-4)


def test_only_removal_gets_the_full_share():
    assert fusion.shares(["REMOVE", "ADD", "CHANGE"], 0.2) == [0.2, 0.01, 0.01]


def test_both_models_see_their_own_latent_and_the_same_timesteps():
    seen = {"first": [], "second": []}

    def model(name):
        def predict(x, t):
            seen[name].append((int(t), x.clone()))
            return torch.zeros_like(x)

        return predict

    samplers = [dpm_solver(BETAS), dpm_solver(BETAS)]
    for one in samplers:
        one.set_timesteps(3)
    fusion.fuse(
        torch.ones(1, 1, 1, 1),
        torch.tensor([0.5]),
        (samplers[0], model("first")),
        (samplers[1], model("second")),
    )
    assert [t for t, _ in seen["first"]] == [t for t, _ in seen["second"]] == [999, 666, 333]
    # Both predict no noise, so both latents are the same, and mixing equal ones changes nothing.
    for (_, x), (_, y) in zip(seen["first"], seen["second"], strict=True):
        torch.testing.assert_close(x, y)


# Steps 3 and 4 ------------------------------------------------------------------------------------------


def attend(branches, record=True):
    torch.manual_seed(0)
    layer = Attention(query_dim=8, cross_attention_dim=6, heads=2, dim_head=4)
    layer.set_processor(Processor(recorded=True))
    hidden, text = (
        torch.randn(6, 4, 8),
        torch.randn(6, 5, 6),
    )  # 3 branches of 2 samples, 2 x 2 cells, 5 tokens
    kept = AttentionRecord(2, (2, 2), branches)
    with torch.no_grad():
        output = layer(hidden, text, record=kept if record else None)
        query = layer.to_q(hidden).view(6, 4, 2, 4)
        key = layer.to_k(text).view(6, 5, 2, 4)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 4**0.5
    return output, kept, scores.softmax(-1).view(3, 2, 2, 4, 5)  # branch, sample, head, cell, token


@pytest.mark.parametrize("branches, rows", [("text", [0]), ("uncond", [1, 2]), ("all", [0, 1, 2])])
def test_recorded_attention_is_the_mean_over_heads_and_the_chosen_branches(branches, rows):
    _, kept, probabilities = attend(branches)
    expected = probabilities[rows].mean((0, 2)).view(2, 2, 2, 5)
    torch.testing.assert_close(kept.mean(), expected)


def test_recording_does_not_change_what_the_layer_gives():
    torch.testing.assert_close(attend("text")[0], attend("text", record=False)[0], atol=1e-6, rtol=1e-5)


def test_the_mean_is_over_steps_and_layers_by_their_heads_and_other_sizes_are_left_out():
    kept = AttentionRecord(1, (1, 2), "all")
    assert kept.wants(2)
    assert not kept.wants(4)
    kept.add(torch.full((3 * 1, 2, 1), 0.2), heads=1)
    kept.add(torch.full((3 * 3, 2, 1), 0.6), heads=3)
    torch.testing.assert_close(kept.mean(), torch.full((1, 1, 2, 1), (0.2 + 3 * 0.6) / 4))


def test_a_unet_without_the_grid_is_a_sentence():
    with pytest.raises(ValueError, match=r"no cross-attention of 3 x 5 cells.*map_stride"):
        AttentionRecord(1, (3, 5), "all").mean()


def test_cross_attention_on_the_way_down_and_up_is_recorded_and_nothing_else(checkpoint):
    from diffusers import UNet2DConditionModel

    unet = UNet2DConditionModel.from_pretrained(checkpoint / "unet")
    attention.install(unet)
    recorded = {name for name, processor in unet.attn_processors.items() if processor._recorded}
    assert recorded == {
        "down_blocks.1.attentions.0.transformer_blocks.0.attn2.processor",
        "up_blocks.0.attentions.0.transformer_blocks.0.attn2.processor",
        "up_blocks.0.attentions.1.transformer_blocks.0.attn2.processor",
    }
    assert any(name.startswith("mid_block") for name in unet.attn_processors)


# Step 5 -------------------------------------------------------------------------------------------------


def test_the_difference_stretches_each_map_and_never_falls_below_zero():
    first = np.array([[0.5, 0.25], [0.1, 0.0]])
    last = np.array([[0.2, 0.4], [0.05, 0.4]])
    # 255 * (1, .5, .2, 0) = 255, 127, 51, 0 and 255 * (.5, 1, .125, 1) = 127, 255, 31, 255
    np.testing.assert_array_equal(masks.difference(first, last), [[128, 0], [20, 0]])
    np.testing.assert_array_equal(masks.stretch(first), [[255, 127], [51, 0]])


def test_maps_may_be_stretched_from_their_own_least_value():
    first = np.array([[0.5, 0.25], [0.125, 0.0]]) + 0.5
    last = np.array([[0.25, 0.5], [0.0, 0.5]]) + 0.5
    np.testing.assert_array_equal(masks.stretch(first, "least"), [[255, 127], [63, 0]])
    np.testing.assert_array_equal(masks.difference(first, last, "least"), [[128, 0], [63, 0]])
    np.testing.assert_array_equal(masks.stretch(np.full((2, 2), 0.3), "least"), np.zeros((2, 2)))


def test_the_rival_is_the_end_mark_or_all_words_together():
    attention = np.array([[[0.5, 0.125, 0.25, 0.0625, 0.0625]]])  # start, two words, end, padding
    assert masks.rival(attention, 4, "last").tolist() == [[0.0625]]
    assert masks.rival(attention, 4, "words").tolist() == [[0.375]]
    assert masks.rival(attention, 2, "words").tolist() == [[0.125]]  # no word: the end mark


def test_maps_without_any_attention_give_no_difference():
    np.testing.assert_array_equal(masks.difference(np.zeros((2, 2)), np.zeros((2, 2))), np.zeros((2, 2)))


def test_the_region_is_where_the_doubled_difference_stays_at_or_below_the_threshold():
    found = np.array([[54, 55], [0, 200]], np.uint8)  # doubled: 108, 110, 0, 255 after saturation
    np.testing.assert_array_equal(masks.localise(found, (2, 2), 108), [[True, False], [True, False]])
    np.testing.assert_array_equal(masks.localise(found, (2, 2), 128), [[True, True], [True, False]])
    np.testing.assert_array_equal(masks.localise(found, (2, 2), 254), [[True, True], [True, False]])


def test_the_region_has_the_size_asked_for_as_width_and_height():
    found = np.array([[0, 255]], np.uint8)
    region = masks.localise(found, (8, 3), 108)
    assert region.shape == (3, 8)
    assert region[:, :3].all()
    assert not region[:, 5:].any()


# Step 6 -------------------------------------------------------------------------------------------------


def test_paper_weighs_an_area_by_the_number_of_its_component():
    mask = grid("##...##", ".......", "##.....")
    # Components 1, 2, 3 of two pixels each count 2, 4 and 6 in the released code.
    np.testing.assert_array_equal(masks.drop_small(mask, 4, "paper"), grid(".....##", ".......", "##....."))
    assert not masks.drop_small(mask, 4, "fixed").any()
    np.testing.assert_array_equal(masks.drop_small(mask, 2, "fixed"), mask)


def test_paper_clears_the_whole_box_of_a_small_component():
    mask = grid("###.#", "#...#", "#.#.#", "....#", "..###")
    # The angle of 5 pixels has a box of 3 x 3, which also holds the single pixel at (2, 2).
    hook = masks.drop_small(mask, 6, "paper")
    np.testing.assert_array_equal(hook, grid("....#", "....#", "....#", "....#", "..###"))
    np.testing.assert_array_equal(
        masks.drop_small(mask, 5, "fixed"), grid("###.#", "#...#", "#...#", "....#", "..###")
    )


def test_pixels_that_touch_at_a_corner_are_two_components():
    np.testing.assert_array_equal(masks.drop_small(grid("#.", ".#"), 2, "fixed"), grid("..", ".."))


def test_a_small_component_inside_the_box_of_a_large_one_goes_alone():
    mask = grid("####", "#...", "#.#.", "#...")
    np.testing.assert_array_equal(masks.drop_small(mask, 3, "fixed"), grid("####", "#...", "#...", "#..."))


# Step 7 -------------------------------------------------------------------------------------------------


def test_segments_are_those_of_a_grid_of_points_filtered_and_suppressed_by_hand(sam_folder, picture):
    from transformers import SamImageProcessor, SamModel

    from editors.zone.segments import Segmenter

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
    found = Segmenter(str(sam_folder), torch.device("cpu"), points=3, quality=quality, stability=stability)(
        image
    )
    assert len(found) == len(chosen)
    for segment, number in zip(found, chosen, strict=True):
        np.testing.assert_array_equal(segment, (logits[kept[number]] > 0).numpy())


def test_thresholds_that_nothing_passes_leave_no_segment(sam_folder, picture):
    from editors.zone.segments import Segmenter

    for options in ({"quality": 1e9, "stability": 0.0}, {"quality": 0.0, "stability": 1.0}):
        assert Segmenter(str(sam_folder), torch.device("cpu"), points=3, **options)(picture(0)) == []


# Step 8 -------------------------------------------------------------------------------------------------


def test_the_segment_with_the_best_overlap_is_chosen():
    rough = grid("###.", "###.")
    segments = [grid("#...", "...."), grid("####", "####"), grid("##..", "##..")]
    number, overlap = masks.best_segment(rough, segments)  # 1/6, 6/8, 4/6
    assert (number, overlap) == (1, 0.75)
    assert masks.best_segment(rough, segments[:1]) == (0, pytest.approx(1 / 6))


def test_of_equal_segments_the_first_is_chosen_and_without_overlap_none():
    rough = grid("##..")
    assert masks.best_segment(rough, [grid("#..."), grid(".#..")]) == (0, 0.5)
    assert masks.best_segment(rough, [grid("...#")]) == (None, 0.0)
    assert masks.best_segment(rough, []) == (None, 0.0)
    assert masks.best_segment(grid("...."), [grid("....")]) == (None, 0.0)


# Step 9 -------------------------------------------------------------------------------------------------


def test_dilation_grows_a_pixel_to_a_square_per_time():
    mask = np.zeros((7, 7), bool)
    mask[3, 3] = True
    for times in (0, 1, 2):
        expected = np.zeros((7, 7), bool)
        expected[3 - times : 4 + times, 3 - times : 4 + times] = True
        np.testing.assert_array_equal(masks.dilate(mask, times), expected)


# Step 10 ------------------------------------------------------------------------------------------------


def test_removal_pastes_the_dilated_segment_and_the_others_the_segment():
    fine, dilated = grid(".#.."), grid("###.")
    source, edited = np.full((1, 4, 3), 10, np.uint8), np.full((1, 4, 3), 90, np.uint8)
    for action, expected in (
        ("REMOVE", [90, 90, 90, 10]),
        ("ADD", [10, 90, 10, 10]),
        ("CHANGE", [10, 90, 10, 10]),
    ):
        pasted = blend.composite(source, edited, blend.layer(fine, dilated, action))
        assert pasted[0, :, 0].tolist() == expected


# Step 11 ------------------------------------------------------------------------------------------------


def smooth(edited, source, dilated, protocol="fixed", radius=1000.0, threshold=30, closing=1):
    return blend.smoother(
        source, edited, dilated, radius=radius, threshold=threshold, closing=closing, protocol=protocol
    )


def flat(value, shape=(8, 8)):
    return np.full((*shape, 3), value, np.uint8)


def test_with_every_frequency_kept_it_is_the_grey_difference_inside_the_dilated_segment():
    edited, source = flat(100), flat(100)
    edited[2, 2] = 131
    edited[3, 3] = 130  # not beyond the threshold
    edited[6, 6] = 255  # outside
    dilated = np.zeros((8, 8), bool)
    dilated[:5, :5] = True
    found = smooth(edited, source, dilated)
    assert np.argwhere(found).tolist() == [[2, 2]]


def test_with_only_the_mean_kept_it_is_all_or_nothing():
    edited, source = flat(0), flat(0)
    edited[:, :4] = 200
    assert smooth(edited, source, np.ones((8, 8), bool), radius=0.0, threshold=99).all()
    assert not smooth(edited, source, np.ones((8, 8), bool), radius=0.0, threshold=100).any()


@pytest.mark.parametrize(
    "colour, fixed, paper",
    [((0, 0, 200), False, True), ((90, 0, 0), False, False), ((120, 0, 0), True, False)],
)
def test_paper_weighs_red_as_blue(colour, fixed, paper):
    # Weights .299 and .114: blue 200 counts 23 or 60, red 90 counts 27 or 10, red 120 counts 36 or 14.
    edited = flat(0)
    edited[:] = colour
    everywhere = np.ones((8, 8), bool)
    assert smooth(edited, flat(0), everywhere, "fixed").all() == fixed
    assert smooth(edited, flat(0), everywhere, "paper").all() == paper


def test_paper_lets_what_overshoots_wrap_around():
    edited = flat(0, (64, 64))
    edited[:, :32] = 255
    everywhere = np.ones((64, 64), bool)
    # A step seen through its lowest eight frequencies, along one row, by the Fourier series.
    n = np.arange(64)
    series = np.full(64, 127.5)
    step = np.where(n < 32, 255.0, 0.0)
    for k in range(1, 9):
        wave = np.exp(-2j * np.pi * k * n / 64)
        series += 2 * np.real((step * wave).sum() / 64 * np.conj(wave))
    overshoot = np.abs(series).astype(int)
    assert (overshoot > 255).any()
    fixed = smooth(edited, flat(0, (64, 64)), everywhere, "fixed", radius=8)
    paper = smooth(edited, flat(0, (64, 64)), everywhere, "paper", radius=8)
    np.testing.assert_array_equal(fixed, np.tile(overshoot > 30, (64, 1)))
    np.testing.assert_array_equal(paper, np.tile(overshoot % 256 > 30, (64, 1)))
    assert (fixed != paper).any()


def test_the_disk_is_off_centre_in_paper_unless_the_picture_is_square():
    fixed, paper = blend.disk((6, 10), 1, "fixed"), blend.disk((6, 10), 1, "paper")
    assert np.argwhere(fixed).tolist() == [[2, 5], [3, 4], [3, 5], [3, 6], [4, 5]]
    assert np.argwhere(paper).tolist() == [
        [4, 3],
        [5, 2],
        [5, 3],
        [5, 4],
    ]  # row 5, column 3, cut by the border
    np.testing.assert_array_equal(blend.disk((8, 8), 2.5, "fixed"), blend.disk((8, 8), 2.5, "paper"))


def test_gaps_are_closed_holes_are_filled_and_the_border_is_no_gap():
    edited, source = flat(0, (9, 12)), flat(0, (9, 12))
    ring = grid(
        "............",
        "............",
        "..######....",
        "..#....#....",
        "..#....#....",
        "..######....",
        "............",
        "............",
        "............",
    )
    edited[ring] = 255
    everywhere = np.ones((9, 12), bool)
    filled = ring.copy()
    filled[3:5, 3:7] = True
    np.testing.assert_array_equal(smooth(edited, source, everywhere), filled)
    edited[2, 4] = 0  # a gap of one pixel opens the ring
    open_ring = ring.copy()
    open_ring[2, 4] = False
    np.testing.assert_array_equal(smooth(edited, source, everywhere), open_ring)
    np.testing.assert_array_equal(smooth(edited, source, everywhere, closing=3), filled)
    corner = flat(0, (9, 12))
    corner[:2, :2] = 255  # what reaches the border stays there
    np.testing.assert_array_equal(smooth(corner, source, everywhere, closing=3), corner[..., 0] > 0)


# Step 12 ------------------------------------------------------------------------------------------------


def test_the_final_blend_by_hand():
    source, edited = np.full((1, 5, 3), 11, np.uint8), np.full((1, 5, 3), 100, np.uint8)
    mixed = int(0.6 * 100 + 0.4 * 11)  # 64.4, cut
    fine, smooth_mask = grid("##..."), grid(".##..")

    def blended(protocol, where):
        result = blend.final(source, edited, fine, where, smooth_mask, alpha=0.6, protocol=protocol)
        return result[0, :, 0].tolist()

    # paper: edit on M, mixed on the symmetric difference of M and the segment, whatever was pasted before.
    assert blended("paper", fine) == blended("paper", grid("####.")) == [mixed, 100, mixed, 11, 11]
    # fixed: the layer stays, M beyond it is mixed.
    assert blended("fixed", fine) == [100, 100, mixed, 11, 11]
    assert blended("fixed", grid("####.")) == [100, 100, 100, 100, 11]
