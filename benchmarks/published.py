"""Published architectures at their published widths with seeded random weights, as folders that loaders read.

Speed does not depend on the values of weights, so these stand in for what has to be downloaded. Vocabularies
are small ones (a few hundred words), which changes a thousandth of the arithmetic. Sources: the config.json
of the repositories named beside each. `layers` caps depth where memory or time ask for it; widths stay.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nein.metrics.encoders import InceptionEncoder
from nein.metrics.loading import Source
from tests.editors import tiny as pipelines
from tests.metrics import tiny as models

CLIP_L = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "patch_size": 14,
}  # fmt: skip

#: timbrooks/instruct-pix2pix: Stable Diffusion 1.5 with 8 input channels.
IP2P: dict[str, Any] = {
    "unet_sizes": {
        "sample_size": 64, "block_out_channels": (320, 640, 1280, 1280), "cross_attention_dim": 768,
        "attention_head_dim": 8,
    },
    "vae_sizes": {
        "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "sample_size": 512,
        "down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4,
    },
    "text_sizes": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    },
}  # fmt: skip

#: llava-hf/llava-v1.6-mistral-7b-hf: Mistral-7B behind CLIP-L/14 at 336 pixels, up to five crops.
LLAVA: dict[str, Any] = {
    "language": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 32768, "initializer_range": 0.02,
    },
    "vision": {**CLIP_L, "image_size": 336, "initializer_range": 0.02},
    "pinpoints": ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008)),
}  # fmt: skip

#: google/owlv2-large-patch14-ensemble.
OWLV2: dict[str, Any] = {
    "text": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    },
    "vision": {**CLIP_L, "image_size": 1008},
    "projection_dim": 768,
}  # fmt: skip

#: openai/clip-vit-base-patch32.
CLIP_B32: dict[str, Any] = {
    "text": {
        "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
        "max_position_embeddings": 77,
    },
    "vision": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 32,
    },
    "projection_dim": 512,
}  # fmt: skip

#: facebook/dino-vits16.
DINO: dict[str, Any] = {
    "vision": {
        "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 12, "num_attention_heads": 6,
        "image_size": 224, "patch_size": 16,
    }
}  # fmt: skip

_BUILD: dict[str, tuple[Callable[..., Path], dict[str, Any]]] = {
    "ip2p": (pipelines.build_pipeline, IP2P),
    "vqa": (models.make_llava, LLAVA),
    "ovd": (models.make_owlv2, OWLV2),
    "clip": (models.make_clip, CLIP_B32),
    "dino": (models.make_vit, DINO),
    "lpips": (models.make_lpips, {"net": "alex"}),
}
#: The deep part of those that `layers` may cap: the entry that holds its configuration.
_DEEP = {"vqa": "language", "ovd": "vision"}


def make(kind: str, folder: Path, *, layers: int | None = None, tiny: bool = False) -> str:
    """Writes the model of `kind`, a key of `_BUILD`; the folder. tiny: as small as the tests have them."""
    build, sizes = _BUILD[kind]
    if tiny:
        return str(build(folder))
    if kind in _DEEP and layers is not None:
        part = sizes[_DEEP[kind]]
        fewer = min(layers, part["num_hidden_layers"])
        sizes = {**sizes, _DEEP[kind]: {**part, "num_hidden_layers": fewer}}
    return str(build(folder, **sizes))


def describe(kind: str, *, layers: int | None = None, tiny: bool = False) -> str:
    """What `make` builds, in words."""
    if tiny:
        return f"tiny {kind}"
    names = {
        "ip2p": "InstructPix2Pix (SD 1.5), whole",
        "vqa": "LLaVA-NeXT-Mistral-7B, vision tower whole, {} of 32 layers of language",
        "ovd": "OWLv2-L, {} of 24 layers of vision",
    }
    part = _BUILD[kind][1][_DEEP[kind]]["num_hidden_layers"] if kind in _DEEP else 0
    return names[kind].format(part if layers is None else min(layers, part))


def inception(device: str) -> InceptionEncoder:
    """clean-fid's encoder around torchvision's Inception-v3 with random weights: the published file is one
    program with one digest, which no other weights can have."""
    from torchvision.models import inception_v3

    with models.seeded(0):
        network = inception_v3(weights=None, aux_logits=False, init_weights=False)
        network.fc = torch.nn.Identity()
        # One batch gives the normalisations statistics, without which signals die out within fifty layers.
        norms = [part for part in network.modules() if isinstance(part, torch.nn.BatchNorm2d)]
        for part in norms:
            part.momentum = 1.0
        with torch.no_grad():
            network.train()(255 * torch.rand(2, 3, 299, 299))
    network.eval().requires_grad_(False).to(device)
    return InceptionEncoder(network, Source("inception", "random", "random"))
