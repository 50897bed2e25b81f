"""A convolution of a doubled picture: what diffusers' layer gives, with fewer multiplications."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.upsampling import Upsample2D
from torch.utils.flop_counter import FlopCounterMode

from arithmetic import products
from editors import doubling


def layer(**options: object) -> Upsample2D:
    torch.manual_seed(0)
    return Upsample2D(6, use_conv=True, out_channels=10, **options).eval()


def installed(**options: object) -> Upsample2D:
    made = layer(**options)
    products.install(made, doubling.KINDS)
    return made


@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_gives_what_it_gave_with_fewer_multiplications(bias: bool) -> None:
    x = torch.randn(3, 6, 7, 5)
    with torch.inference_mode(), FlopCounterMode(display=False) as plain:
        before = layer(bias=bias)(x)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        after = installed(bias=bias)(x, None)  # as blocks of a UNet call it
    assert after.shape == (3, 10, 14, 10)
    # Sums of 54 products of numbers about 1 / 7: their last bits depend on the order of adding.
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    if products.AVAILABLE:
        assert counter.get_total_flops() / plain.get_total_flops() == pytest.approx(16 * 48 / (36 * 35))
    assert list(installed(bias=bias).state_dict()) == list(layer(bias=bias).state_dict())


def test_with_gradients_in_other_sizes_and_number_types_nothing_changes() -> None:
    x = torch.randn(2, 6, 4, 4)
    assert torch.equal(installed()(x), layer()(x))
    with torch.inference_mode():
        assert torch.equal(installed()(x, output_size=(9, 9)), layer()(x, output_size=(9, 9)))
        assert torch.equal(installed().bfloat16()(x.bfloat16()), layer().bfloat16()(x.bfloat16()))
        assert torch.equal(installed(kernel_size=1, padding=0)(x), layer(kernel_size=1, padding=0)(x))
