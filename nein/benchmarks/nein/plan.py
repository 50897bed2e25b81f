"""The samples of an evaluation on NeIn, cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass

from nein.datasets.nein.samples import Dataset, Sample


@dataclass(frozen=True)
class Plan:
    """A data set, the selected indices in data order, and the block size."""

    dataset: Dataset
    selected: tuple[int, ...]
    batch_size: int

    @property
    def blocks(self) -> list[int]:
        """Numbers of the blocks that hold a selected sample, ascending; block b is samples [b*B, (b+1)*B)."""
        return sorted({index // self.batch_size for index in self.selected})

    def members(self, block: int) -> list[Sample]:
        start = block * self.batch_size
        return list(self.dataset.samples[start : start + self.batch_size])

    def all_members(self) -> list[Sample]:
        """The samples of every needed block: what will really be read."""
        return [sample for block in self.blocks for sample in self.members(block)]

    def selection(self) -> list[Sample]:
        """The selected samples: what tables count."""
        return [self.dataset.samples[index] for index in self.selected]
