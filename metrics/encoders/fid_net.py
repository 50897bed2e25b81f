"""Features for FID: the Inception network of clean-fid, or a small ViT that stands in for it offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from nein.loading.digests import file_sha256
from nein.loading.references import Origin
from nein.metrics.base import Images, MetricError
from nein.metrics.encoders import vit
from nein.metrics.encoders.clip import in_batches
from nein.metrics.loading import Source, fingerprint, source_fields
from nein.metrics.preprocess import CleanResize, map_images

INCEPTION_FILE = "inception-2015-12-05.pt"
#: The file is TorchScript, that is a program, and clean-fid downloads and runs it unchecked. The digest is
#: the one k-diffusion checks against for the same address (crowsonkb/k-diffusion, k_diffusion/evaluation.py).
INCEPTION_SHA256 = "f58cb9b6ec323ed63459aa4fb441fe750cfe39fafad6da5cb504a16f19e958f4"


class InceptionEncoder:
    """Clean-FID's Inception (2048 features) on its `clean` resize to 299x299.

    Source: https://github.com/GaParmar/clean-fid, mode="clean", model_name="inception_v3".
    """

    def __init__(self, model: Any, source: Source, device: str, batch_size: int = 32) -> None:
        self.model, self.source, self.device, self.batch_size = model, source, device, batch_size
        self.preprocess = CleanResize(299)
        self.fingerprint = fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "fid",
            "class": "cleanfid.InceptionV3W",
            **source_fields(self.source),
            "preprocess": self.preprocess.name,
            "feature": "pool3, 2048",
            "dtype": "float32",
            "device": self.device,
        }

    def encode(self, images: Images) -> np.ndarray:
        """(H, W, 3) uint8 pictures -> (N, 2048) float32."""

        def run(resized: Images) -> torch.Tensor:
            x = torch.from_numpy(np.stack(resized)).to(self.device)
            return self.model(x.permute(0, 3, 1, 2).contiguous())  # N 3 299 299

        return in_batches(run, map_images(self.preprocess, images), self.batch_size, 2048)


def load_inception(path: Path | None, device: str, batch_size: int) -> InceptionEncoder:
    """clean-fid's network from `path`, or from torch's cache of weights, downloaded there if need be. Raises
    MetricError when the file is not the published one; it is not run then."""
    from cleanfid.downloads_helper import inception_url
    from cleanfid.inception_torchscript import InceptionV3W

    if path is None:
        path = Path(torch.hub.get_dir(), "checkpoints", INCEPTION_FILE)
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                torch.hub.download_url_to_file(inception_url, str(path), hash_prefix=INCEPTION_SHA256)
            except (OSError, RuntimeError) as error:
                raise MetricError(
                    f"The Inception network of FID could not be fetched from {inception_url} ({error}); "
                    f"put the file at '{path}', or leave out the metric 'fid'."
                ) from error
    digest = file_sha256(path)
    if digest != INCEPTION_SHA256:
        raise MetricError(
            f"'{path}' is not the published Inception network (SHA-256 {digest[:12]}..., expected "
            f"{INCEPTION_SHA256[:12]}...); delete it and run again."
        )
    if path.name != INCEPTION_FILE:
        raise MetricError(f"clean-fid looks for a file named {INCEPTION_FILE}; rename '{path}'.")
    model = InceptionV3W(str(path.parent), download=False, resize_inside=False).to(device).eval()
    return InceptionEncoder(model, Source("inception", "2015-12-05", digest), device, batch_size)


def origins(path_or_id: str, revision: str | None) -> list[Origin]:
    """clean-fid's network, or the repository of a ViT."""
    if path_or_id != "inception":
        origin = Origin.of("transformers", path_or_id, revision)
        return [origin] if origin else []
    from cleanfid.downloads_helper import inception_url

    return [Origin("torch", inception_url, INCEPTION_SHA256)]


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 32
) -> InceptionEncoder | vit.ViTEncoder:
    """ "inception" (or the path of its file) for clean-fid's network; a folder or hub id for a ViT."""
    path = Path(path_or_id)
    if path_or_id == "inception" or path.is_file():
        if dtype != "float32":
            raise MetricError(f"The Inception network runs in float32 only, not '{dtype}'.")
        return load_inception(path if path.is_file() else None, device, batch_size)
    return vit.load(
        path_or_id, revision=revision, device=device, dtype=dtype, batch_size=batch_size, kind="fid"
    )
