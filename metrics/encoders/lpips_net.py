"""LPIPS through the `lpips` package, with every picture passed through the trunk once."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from nein.loading.digests import DTYPES, folder_digest, torch_dtype
from nein.loading.errors import choose
from nein.loading.references import Origin
from nein.metrics import loading
from nein.metrics.base import Images, MetricError, alike

NETS = ("alex", "vgg", "squeeze")
_KEYS = {"net", "lpips", "version"}


class LpipsNetwork:
    """An `lpips.LPIPS` module, taken apart at its own seams: trunk, normalisation, linear layers.

    `distances` equals `module(a, b)` on pictures in [-1, 1]; the trunk sees a shared target once.

    Source: Zhang et al., arXiv:1801.03924, eq. 1; https://github.com/richzhang/PerceptualSimilarity.
    """

    def __init__(self, module: Any, source: loading.Source, batch_size: int = 16) -> None:
        self.module, self.source, self.batch_size = module, source, batch_size
        self._parameter = next(module.parameters())
        self.fingerprint = loading.fingerprint(self.describe())

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "lpips",
            "class": "lpips.LPIPS",
            "net": self.module.pnet_type,
            "linear_layers": bool(self.module.lpips),
            "version": self.module.version,
            **loading.source_fields(self.source),
            "preprocess": "pixels / 127.5 - 1, at the target's size",
            "dtype": str(self._parameter.dtype).removeprefix("torch."),
            "device": str(self._parameter.device),
        }

    def distances(self, images: Images, targets: Images, target_of: Sequence[int]) -> np.ndarray:
        """Distance of `images[i]` to `targets[target_of[i]]`: (N,) float64, >= 0.

        Every picture is (H, W, 3) uint8 and has the size of its target.
        """
        result = np.full(len(images), np.nan)
        for row, owner in enumerate(target_of):
            if images[row].shape != (shape := targets[owner].shape):
                raise MetricError(f"LPIPS needs equal sizes, not {images[row].shape} and {shape}.")
        # Samples of one target stand together.
        rows = sorted(range(len(images)), key=lambda row: (target_of[row], row))
        with loading.exact():
            for chunk in alike(rows, lambda row: images[row].shape, self.batch_size):
                owned = dict.fromkeys(target_of[row] for row in chunk)
                places = {owner: k for k, owner in enumerate(owned)}
                pictures = [*(targets[owner] for owner in places), *(images[row] for row in chunk)]
                owners = [places[target_of[row]] for row in chunk]
                result[chunk] = self._compared(self._scaled(pictures), owners, len(places))
        return result

    def _scaled(self, images: Images) -> torch.Tensor:
        """(N, 3, H, W) as the trunk expects it. Version 0.0 had no input scaling."""
        pixels = torch.from_numpy(np.stack(list(images))).to(self._parameter.device)  # N H W 3
        x = pixels.permute(0, 3, 1, 2).to(self._parameter.dtype) / 127.5 - 1
        return self.module.scaling_layer(x) if self.module.version == "0.1" else x

    def _compared(self, x: torch.Tensor, owners: Sequence[int], count: int) -> np.ndarray:
        """Distances of the pictures behind the first `count`, which are targets; owners: whose each is."""
        import lpips

        total: Any = 0
        for level, features in enumerate(self.module.net(x)):
            unit = lpips.normalize_tensor(features)  # N C h w
            squared = (unit[count:] - unit[:count][list(owners)]) ** 2
            weighted = self.module.lins[level](squared) if self.module.lpips else squared
            total = total + weighted.sum(1).mean((1, 2)).double()
        return total.cpu().numpy()


def build(net: str, *, linear: bool, version: str, pretrained: bool) -> Any:
    """An `lpips.LPIPS` in evaluation mode; `pretrained` takes trunk and linear layers from their packages."""
    import lpips

    # Weights are drawn before they are loaded; nobody else's random numbers should change by that.
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        # lpips 0.1.4 still calls torchvision with the argument it had before 0.13.
        warnings.filterwarnings("ignore", message=".*pretrained.*|.*weight enum.*", category=UserWarning)
        module = lpips.LPIPS(
            net=net, lpips=linear, version=version, pretrained=pretrained, pnet_rand=not pretrained,
            verbose=False,
        )  # fmt: skip
    return module.eval().requires_grad_(False)


def load(
    path_or_id: str, *, revision: str | None, device: str, dtype: str, batch_size: int = 16
) -> LpipsNetwork:
    """ "alex", "vgg" or "squeeze" with the library's own weights, or a folder.

    A folder holds `config.json` with exactly {"net": ..., "lpips": true|false, "version": "0.1"|"0.0"} and
    `model.safetensors` with the module's whole state dictionary.
    """
    choose("dtype", dtype, DTYPES)
    if path_or_id in NETS:
        try:
            module = build(path_or_id, linear=True, version="0.1", pretrained=True)
        except (OSError, RuntimeError) as error:
            raise MetricError(
                f"The weights of LPIPS '{path_or_id}' could not be fetched ({error}); "
                "give a local folder or leave out the metric 'lpips'."
            ) from error
        digest = hashlib.sha256()
        for name, tensor in sorted(module.state_dict().items()):
            digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        source = loading.Source(path_or_id, "0.1", digest.hexdigest())
    else:
        loading.check_folder(path_or_id)
        folder = Path(path_or_id)
        if not folder.is_dir():
            raise MetricError(f"LPIPS '{path_or_id}': give one of {', '.join(NETS)} or a local folder.")
        module = _from_folder(folder)
        source = loading.Source(path_or_id, None, folder_digest(folder))
    return LpipsNetwork(module.to(device, torch_dtype(dtype)), source, batch_size)


def origins(path_or_id: str, revision: str | None) -> list[Origin]:
    """The trunk of one of the library's own networks, which torchvision publishes; the rest ships with it."""
    if path_or_id not in NETS:
        return []
    from torchvision import models

    trunks: dict[str, Any] = {
        "alex": models.AlexNet_Weights.IMAGENET1K_V1,
        "vgg": models.VGG16_Weights.IMAGENET1K_V1,
        "squeeze": models.SqueezeNet1_1_Weights.IMAGENET1K_V1,
    }
    url = trunks[path_or_id].url
    # torchvision's files carry the beginning of their digest: alexnet-owt-7be5be79.pth.
    return [Origin("torch", url, url.rpartition("-")[2].partition(".")[0])]


def _from_folder(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict) or set(config) != _KEYS:
        raise MetricError(f"'{folder / 'config.json'}' must hold exactly the keys {sorted(_KEYS)}.")
    choose("LPIPS network", config["net"], NETS)
    choose("LPIPS version", config["version"], ("0.1", "0.0"))
    module = build(config["net"], linear=bool(config["lpips"]), version=config["version"], pretrained=False)
    try:
        state = load_file(folder / "model.safetensors")
        module.load_state_dict({k: v.float() for k, v in state.items()})
    except loading.UNREADABLE as error:
        raise MetricError(f"Cannot load LPIPS from '{folder}': {loading.first_line(error)}") from error
    return module
