"""Layers in fewer calls: transformers' own values, alone and with one token of the last layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import CLIPModel, Owlv2ForObjectDetection, ViTModel

from arithmetic import products
from metrics import layers
from metrics.encoders import clip
from metrics.loading import load_model


def towers(folder: Path, cls: Any, kind: str) -> tuple[Any, Any]:
    """A model as transformers loads it, and as we do."""
    options = {"add_pooling_layer": False} if cls is ViTModel else {}
    ours, _ = load_model(
        cls, str(folder), model_type=kind, revision=None, device="cpu", dtype="float32", **options
    )
    return cls.from_pretrained(folder, **options).eval(), ours


@pytest.mark.parametrize(("cls", "kind", "folder"), [(CLIPModel, "clip", "clip"), (ViTModel, "vit", "vit")])
def test_a_tower_gives_what_it_gave_with_all_tokens_or_one(
    models: Path, cls: Any, kind: str, folder: str
) -> None:
    plain, ours = (getattr(one, "vision_model", one) for one in towers(models / folder, cls, kind))
    x = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        with FlopCounterMode(display=False) as all_of_it:
            expected = plain(pixel_values=x).last_hidden_state
        # Sums of some dozens of products of numbers about 1, through two layers.
        torch.testing.assert_close(ours(pixel_values=x).last_hidden_state, expected, rtol=1e-4, atol=1e-5)
        layers.read_first_only(ours)
        with FlopCounterMode(display=False) as part_of_it:
            first = ours(pixel_values=x).last_hidden_state
    torch.testing.assert_close(first[:, :1], expected[:, :1], rtol=1e-4, atol=1e-5)
    if products.AVAILABLE:
        assert first.shape == (3, 1, expected.shape[2])
        assert part_of_it.get_total_flops() < 0.8 * all_of_it.get_total_flops()


@pytest.mark.parametrize(("cls", "kind", "folder"), [(CLIPModel, "clip", "clip"), (ViTModel, "vit", "vit")])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_first_tokens_come_straight_from_the_pixels(
    models: Path, cls: Any, kind: str, folder: str, dtype: torch.dtype
) -> None:
    plain, ours = (getattr(one, "vision_model", one) for one in towers(models / folder, cls, kind))
    pixels = torch.randint(256, (3, 32, 32, 3), generator=torch.Generator().manual_seed(0)).to(dtype)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)
    shift, spread = (torch.tensor(row)[:, None, None] for row in (mean, std))
    with torch.inference_mode():
        with FlopCounterMode(display=False) as all_of_it:
            out = plain(pixel_values=(pixels.permute(0, 3, 1, 2) / 255 - shift) / spread)
        expected = out.pooler_output if cls is CLIPModel else out.last_hidden_state[:, 0]
        assert layers.first_tokens(ours, pixels, mean, std) is None  # every token may be read
        layers.read_first_only(ours)
        assert layers.first_tokens(ours, pixels[:, :24], mean, std) is None  # whose error is transformers'
        with FlopCounterMode(display=False) as part_of_it:
            found = layers.first_tokens(ours, pixels, mean, std)
    if products.AVAILABLE:
        assert found is not None
        # Sums of some dozens of products of numbers about 1, through two layers.
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert part_of_it.get_total_flops() < 0.7 * all_of_it.get_total_flops()
    assert layers.first_tokens(ours, pixels, mean, std) is None  # with gradients


@pytest.mark.parametrize("cls", [CLIPModel, Owlv2ForObjectDetection])
def test_sentences_are_masked_as_before(models: Path, cls: Any) -> None:
    kind = "clip" if cls is CLIPModel else "owlv2"
    plain, ours = (getattr(one, "owlv2", one).text_model for one in towers(models / kind, cls, kind))
    ids = torch.tensor([[5, 9, 11, 3], [7, 2, 3, 3]])
    for mask in (None, torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])):
        with torch.inference_mode():
            expected, found = (
                one(input_ids=ids, attention_mask=mask).last_hidden_state for one in (plain, ours)
            )
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_what_is_no_plain_linear_layer_any_more_is_asked_itself(models: Path) -> None:
    """As where an adapter stands in its place."""
    _, ours = towers(models / "clip", CLIPModel, "clip")
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    attention = ours.vision_model.encoder.layers[0].self_attn
    with torch.inference_mode():
        before = ours.vision_model(pixel_values=x).last_hidden_state
        attention.out_proj = torch.nn.Sequential(attention.out_proj, torch.nn.Dropout(1.0).train())
        after = ours.vision_model(pixel_values=x).last_hidden_state
    assert (after - before).abs().max() > 1e-3


def test_with_gradients_all_tokens_are_worked_out_by_transformers(models: Path) -> None:
    plain, ours = towers(models / "clip", CLIPModel, "clip")
    layers.read_first_only(ours.vision_model)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected, found = (one.vision_model(pixel_values=x).last_hidden_state for one in (plain, ours))
    assert torch.equal(found, expected)


def test_whoever_reads_patches_gets_them(models: Path) -> None:
    where = {"revision": None, "device": "cpu", "dtype": "float32"}
    x = torch.zeros(1, 3, 32, 32)
    tokens = []
    for patches in (False, True):
        model = clip.load(str(models / "clip"), **where, patches=patches).model  # type: ignore[arg-type]
        with torch.inference_mode():
            tokens.append(model.vision_model(pixel_values=x).last_hidden_state.shape[1])
    assert tokens == [1 if products.AVAILABLE else 17, 17]
