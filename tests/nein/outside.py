"""Two metrics of somebody else's package: one of pixels, one with a network of its own."""

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
    """An encoder that can be worked out by hand: mean and spread of each channel, (N, 6) float32."""

    fingerprint = "colours-1"
    encoded = 0

    def describe(self):
        return {"kind": "colours"}

    def encode(self, images):
        Colours.encoded += len(images)
        return np.stack([np.r_[p.mean((0, 1)), p.std((0, 1))] / 255 for p in images]).astype(np.float32)


def load_colours(*, device):
    return Colours()


NETWORK = "tests.nein.outside:load_colours"


def palette(batch):
    return cosines(batch.edited_features(NETWORK), batch.target_features(NETWORK))


PALETTE = Metric(
    "palette", "Palette", "raw", "higher", (-1.0, 1.0), "mean", ("edited", "target", NETWORK), palette,
    settings=("align",), source="made up",
)  # fmt: skip
