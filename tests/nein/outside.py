"""Two metrics of somebody else's package: one of pixels, one with a network of its own."""

from __future__ import annotations

import numpy as np

from nein.metrics import Metric
from nein.metrics.images import cosines, each_pair


def darkening(image, target):
    """How much darker the edited picture is than the target: 0 (not at all) to 1."""
    return max(0.0, float(target.mean() - image.mean()) / 255)


DARKENING = Metric(
    "darkening", "Darkening", "per cent", "lower", (0.0, 1.0), "mean", ("edited", "target"),
    each_pair(darkening), settings=("align",), source="made up",
)  # fmt: skip


class Colours:
    """A network, of sorts: the mean colour of each quarter of a picture."""

    fingerprint = "colours-1"
    encoded = 0

    def describe(self):
        return {"kind": "colours"}

    def encode(self, images):
        """(N, 12) float32."""
        Colours.encoded += len(images)
        rows = []
        for image in images:
            halves = np.array_split(image, 2)
            quarters = [quarter for half in halves for quarter in np.array_split(half, 2, axis=1)]
            rows.append(np.concatenate([quarter.mean((0, 1)) for quarter in quarters]))
        return np.asarray(rows, np.float32)


def load_colours(*, device):
    return Colours()


NETWORK = "tests.nein.outside:load_colours"


def palette(batch):
    """Cosine of the quarters' colours."""
    return cosines(batch.edited_features(NETWORK), batch.target_features(NETWORK))


PALETTE = Metric(
    "palette", "Palette", "raw", "higher", (-1.0, 1.0), "mean", ("edited", "target", NETWORK), palette,
    settings=("align",), source="made up",
)  # fmt: skip
