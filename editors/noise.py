"""Noise that belongs to a sample: one CPU generator each, float32, whatever the batch, device or dtype.

A sample's stream of numbers is a function of its seed and the latent shape alone, so an edit depends neither
on the other samples of its batch, nor on their order, nor on the device. The global random state is not
touched.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class SampleNoise:
    """Successive standard-normal draws for a batch of samples.

    seeds   One per sample, 0 <= seed < 2**63.
    shape   Shape of one sample's latent, e.g. (4, 64, 64).
    device  Where the draws are wanted; they are always made on the CPU, since generators of different
            devices give different numbers.
    """

    def __init__(self, seeds: Sequence[int], shape: tuple[int, ...], device: torch.device) -> None:
        self._generators = [torch.Generator("cpu").manual_seed(int(seed)) for seed in seeds]
        self._shape = shape
        self._device = device

    def draw(self) -> torch.Tensor:
        """The next draw: (B, *shape) float32 on the device."""
        # Pinned memory lets the copy run while the GPU is still busy with the previous step.
        batch = torch.empty((len(self._generators), *self._shape), pin_memory=self._device.type == "cuda")
        for row, generator in zip(batch, self._generators, strict=True):
            row.normal_(generator=generator)
        return batch.to(self._device, non_blocking=True)
