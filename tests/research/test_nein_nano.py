"""The verdict that asks no judge: is an edit nearer to the target than to the sample?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nein.datasets.nein.samples import load_folder
from nein.engine import images
from nein.nano import data
from nein.nano.worlds import WORLDS
from research.nein_nano import nearer


def test_an_edit_counts_where_sample_and_target_differ_and_nowhere_else(tmp_path: Path) -> None:
    folder = data.ensure("dev", 3, tmp_path, WORLDS["nano:style"])
    for sample in load_folder(folder, split="dev").samples:
        before, after = images.decode(sample.sample_path), images.decode(sample.source_path)
        assert nearer(after, sample) == 1.0
        assert nearer(before, sample) == 0.0
        apart = (before != after).any(-1)
        noisy = np.where(apart[..., None], after, 255 - after)  # all else is ruined, the thing is gone
        assert nearer(noisy.astype(np.uint8), sample) == 1.0
        mostly = (0.4 * after + 0.6 * before).astype(np.uint8)
        assert nearer(mostly, sample) == 0.0
