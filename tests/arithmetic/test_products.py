"""Products of matrices by oneDNN: PyTorch's to the last bits, and its own where gradients are asked for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from arithmetic import processor, products


@pytest.fixture(params=[False, True], ids=["quick MKL", "slow MKL"])
def mkl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "has_narrow_mkl", lambda: request.param)


@pytest.mark.parametrize("rows", [(2, 5), (9,)])
def test_a_product_takes_a_number_along_and_is_added_to_what_is_there(
    rows: tuple[int, ...], mkl: None
) -> None:
    torch.manual_seed(0)
    layer, x, there = nn.Linear(24, 16), torch.randn(*rows, 24), torch.randn(*rows, 16)
    with torch.inference_mode(), FlopCounterMode(display=False) as plain:
        scaled, added = layer(x) * 1.7, there + layer.bias + layer(x).sub(layer.bias) * 0.3
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        found = products.scaled_product(x, layer.weight, layer.bias, 1.7)
        onto = there.clone()
        assert products.add_product(onto, x, layer.weight, layer.bias, 0.3) is onto
    assert counter.get_total_flops() == plain.get_total_flops() > 0
    # Sums of 24 products of numbers about 1: their last bits depend on the order of adding.
    torch.testing.assert_close(found, scaled, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(onto, added, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"stride": 2, "bias": False}, {"padding": 1}, {"groups": 2}])
def test_convolutions_of_one_pixel_give_what_they_gave(options: dict) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(32, 48, 1, **options), nn.Conv2d(48, 3, 1), nn.Conv2d(3, 2, 3))
    x = torch.randn(2, 32, 9, 7)
    with torch.inference_mode(), FlopCounterMode(display=False) as plain:
        before = layer(x)
    products.install(layer)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        after = layer(x)
    assert counter.get_total_flops() == plain.get_total_flops() > 0
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)  # as above


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "bias": False}, {"padding": 1}, {"padding": "same"}, {"groups": 2}]
)
@pytest.mark.parametrize("size", [1, 3])
def test_ordered_weights_give_the_same_bits(
    size: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Conv2d(32, 48, size, **options)).bfloat16()
    layer.to(memory_format=torch.channels_last)
    pictures = [torch.randn(2, 32, *shape).bfloat16() for shape in ((19, 17), (6, 8))]

    def seen() -> list[torch.Tensor]:
        with torch.inference_mode():
            return [layer(picture) for picture in pictures]

    before, names = seen(), list(layer.state_dict())
    products.install(layer)
    monkeypatch.setattr(processor, "has_matrix_unit", lambda: products.AVAILABLE)
    for again in (seen(), seen()):
        assert all(map(torch.equal, again, before))
    assert list(copy.deepcopy(layer).state_dict()) == names
    with torch.no_grad():
        layer[0].weight.zero_()  # weights that change are put into order again
    bias = layer[0].bias
    for made in seen():
        expected = 0 if bias is None else bias[:, None, None]
        assert torch.equal(made, torch.zeros_like(made) + expected)


@pytest.mark.parametrize("masked", [False, True])
def test_a_sequence_attends_to_itself_as_before(masked: bool) -> None:
    torch.manual_seed(0)
    layer = nn.ModuleList([nn.MultiheadAttention(32, 4, batch_first=True)]).eval()
    x = torch.randn(3, 21, 32)
    mask = torch.full((21, 21), float("-inf")).triu(1) if masked else None

    def attend() -> torch.Tensor:
        with torch.inference_mode():
            return layer[0](x, x, x, need_weights=False, attn_mask=mask)[0]

    before, names = attend(), list(layer.state_dict())
    products.install(layer)
    assert list(layer.state_dict()) == names
    assert type(layer[0]) is not nn.MultiheadAttention or not products.AVAILABLE
    # Sums of 32 products of numbers about 1: their last bits depend on the order of adding.
    torch.testing.assert_close(attend(), before, rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        other = torch.randn(3, 5, 32)
        apart = layer[0](x, other, other)  # other keys, and the weights are asked for
    assert apart[1].shape == (3, 21, 5)


@pytest.mark.parametrize("activation", [nn.GELU(), nn.GELU("tanh"), nn.SiLU()])
def test_a_gelu_behind_a_linear_layer_is_the_same_gelu(activation: nn.Module) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(24, 40), activation, nn.Linear(40, 8), nn.GELU())
    x = torch.randn(3, 7, 24)
    with torch.inference_mode():
        before = layers(x)
    products.install(holder := nn.ModuleList([layers]))
    with torch.inference_mode():
        after = holder[0](x)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    assert torch.equal(layers(x), nn.Sequential(*layers)(x))  # with gradients: layer by layer
