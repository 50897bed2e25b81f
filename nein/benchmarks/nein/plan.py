"""The samples of an evaluation on NeIn, cut into blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nein.datasets.nein.samples import Dataset, Sample
from nein.engine.blocks import Blocks


@dataclass(frozen=True)
class Plan:
    """A data set, the selected indices in data order, and the block size."""

    dataset: Dataset
    selected: tuple[int, ...]
    batch_size: int

    @property
    def blocks(self) -> Blocks:
        return Blocks(len(self.dataset.samples), self.batch_size, self.selected)

    def members(self, block: int) -> list[Sample]:
        """The samples of a block, selected or not."""
        return [self.dataset.samples[index] for index in self.blocks.members(block)]

    def all_members(self) -> list[Sample]:
        """The samples of every needed block: what will really be read."""
        return [self.dataset.samples[index] for index in self.blocks.all_members()]

    def selection(self) -> list[Sample]:
        """The selected samples: what tables count."""
        return [self.dataset.samples[index] for index in self.selected]

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says of its data."""
        return {
            **self.dataset.origin,
            "records_sha256": self.dataset.records_sha256,
            "n": len(self.dataset.samples),
            "selected": len(self.selected),
        }
