"""Layers that write into what they have made: the bits of diffusers' layers, from fewer operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.resnet import ResnetBlock2D
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from editors import inplace

Call = Callable[[nn.Module], torch.Tensor]


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[function.__name__.partition(".")[0]] += 1
        return function(*args, **(kwargs or {}))


def residual(**options: Any) -> tuple[nn.Module, Call]:
    made = ResnetBlock2D(in_channels=8, groups=4, **{"temb_channels": 6, "out_channels": 12, **options})
    x, time = torch.randn(2, 8, 5, 3), torch.randn(2, 6) if options.get("temb_channels", 6) else None
    return made, lambda layer: layer(x, time)


def transformer(**options: Any) -> tuple[nn.Module, Call]:
    made = BasicTransformerBlock(8, 2, 4, cross_attention_dim=6, **options)
    x, told = torch.randn(2, 5, 8), torch.randn(2, 3, 6)
    return made, lambda layer: layer(x, encoder_hidden_states=told, timestep=torch.tensor(3))


LAYERS: dict[str, Callable[[], tuple[nn.Module, Call]]] = {
    "residual": residual,
    "without a time": lambda: residual(temb_channels=None),
    "of equal channels": lambda: residual(out_channels=8),
    "scaled": lambda: residual(output_scale_factor=2.0),
    "transformer": transformer,
}
OTHERS: dict[str, Callable[[], tuple[nn.Module, Call]]] = {
    "scale and shift": lambda: residual(time_embedding_norm="scale_shift"),
    "doubling": lambda: residual(up=True),
    "another activation": lambda: residual(non_linearity="gelu"),
    "an adaptive norm": lambda: transformer(norm_type="ada_norm", num_embeds_ada_norm=9),
}


def counted(layer: nn.Module, call: Call) -> tuple[torch.Tensor, Counter[str]]:
    with torch.inference_mode(), Operations() as operations:
        return call(layer), operations.count


def both(make: Callable[[], tuple[nn.Module, Call]]) -> tuple[nn.Module, Call, type]:
    torch.manual_seed(0)
    layer, call = make()
    return layer.eval(), call, inplace.KINDS[type(layer)]


@pytest.mark.parametrize("name", LAYERS)
def test_the_bits_are_the_same_with_fewer_new_tensors(name: str) -> None:
    layer, call, kind = both(LAYERS[name])
    before, plain = counted(layer, call)
    layer.__class__ = kind
    after, operations = counted(layer, call)
    assert torch.equal(after, before)
    assert torch.equal(counted(layer, call)[0], before)  # what came in was not written into
    new = ("add", "silu", "div")
    assert sum(operations[one] for one in new) < sum(plain[one] for one in new)


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_stay_as_they_are(name: str) -> None:
    layer, call, kind = both(OTHERS[name])
    before, plain = counted(layer, call)
    layer.__class__ = kind
    after, operations = counted(layer, call)
    assert torch.equal(after, before)
    assert operations == plain


@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_with_gradients_and_in_training_nothing_is_written_into(name: str) -> None:
    layer, call, kind = both(LAYERS[name])
    before = call(layer)
    layer.__class__ = kind
    after = call(layer)
    assert torch.equal(after, before)
    after.sum().backward()
    assert all(weight.grad is not None for weight in layer.parameters())


@pytest.mark.parametrize("shape", [(3, 24, 16, 16), (2, 40, 24, 32), (1, 8, 1, 1)])
@pytest.mark.parametrize("affine", [True, False])
def test_few_pixels_of_bfloat16_are_normed_as_near_to_the_truth(shape: tuple[int, ...], affine: bool) -> None:
    torch.manual_seed(0)
    layer = nn.GroupNorm(4, shape[1], affine=affine)
    if affine:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    x = torch.randn(shape).mul_(2).add_(1).bfloat16().to(memory_format=torch.channels_last)
    half = nn.GroupNorm(4, shape[1], affine=affine).bfloat16()
    half.load_state_dict(layer.state_dict())
    with torch.inference_mode():
        truth = layer.bfloat16().float()(x.float())
        before = half(x)
        half.__class__ = inplace.KINDS[nn.GroupNorm]
        after, of_rows = half(x), half(x.contiguous())
    assert after.dtype == torch.bfloat16
    assert after.is_contiguous(memory_format=torch.channels_last)
    # Both are rounded once, to 8 bits.
    assert (after - truth).abs().max() <= 1.05 * (before - truth).abs().max() + 1e-6
    torch.testing.assert_close(of_rows, before, rtol=2**-7, atol=1e-2)
