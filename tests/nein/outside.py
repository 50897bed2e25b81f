"""A network of somebody else's package, and what is no metric."""

import numpy as np

from nein.metrics import METRICS


class Colours:
    """An encoder that can be worked out by hand: mean and spread of each channel, (N, 6) float32."""

    fingerprint = "colours-1"
    encoded = 0

    def describe(self):
        return {"kind": "colours"}

    def encode(self, images):
        Colours.encoded += len(images)
        return np.stack([np.r_[p.mean((0, 1)), p.std((0, 1))] / 255 for p in images]).astype(np.float32)


NETWORK = "tests.nein.outside:Colours"

#: Has the name of one of ours.
TAKEN = METRICS["dino"]
