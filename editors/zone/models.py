"""Steps 1, 2 and 7: what an instruction asks for, two models denoising together, segments of a picture."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from transformers import SamImageProcessor, SamModel
from transformers.pipelines import MaskGenerationPipeline

from nein.editors.base import EditorError
from nein.editors.checkpoint import content_hash, explained, locate, whole
from nein.editors.zone import WEIGHTS, find_missing
from nein.loading.references import expanded
from nein.loading.weights import read_checkpoint

#: In the order of the classifier's outputs.
ACTIONS = ("CHANGE", "ADD", "REMOVE")


class ActionClassifier(nn.Module):
    """States (..., width) to logits (..., 3) over `ACTIONS`; two linear layers, as in the released file."""

    def __init__(self, width: int, hidden: int = 128) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, len(ACTIONS))

    @property
    def config(self) -> dict[str, Any]:
        return {"width": self.fc1.in_features, "hidden": self.fc1.out_features, "actions": list(ACTIONS)}

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(states)))


class Reading(NamedTuple):
    """An instruction's action, and its number of tokens read, with both end marks."""

    action: str
    tokens: int


def decide(logits: torch.Tensor, tokens: int, protocol: str) -> str:
    """The action of an instruction. logits: (T, 3); tokens: how many of the positions are not padding.

    "fixed" takes the class with the largest logit at any real token. "paper" takes the class whose largest
    logit stands latest of all T positions (the first of equal ones): the released code keeps the indices that
    torch.max returns where the values were meant.
    """
    if protocol == "paper":
        # The first of equal positions, whatever the device.
        positions = [int((column == column.max()).nonzero()[0]) for column in logits.T]
        return ACTIONS[max(range(len(ACTIONS)), key=positions.__getitem__)]
    return ACTIONS[int(logits[:tokens].amax(0).argmax())]


def save_classifier(classifier: ActionClassifier, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor.detach().half().cpu().contiguous() for name, tensor in classifier.state_dict().items()
    }
    save_file(state, folder / WEIGHTS, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(classifier.config, indent=2) + "\n")


def load_classifier(reference: str) -> ActionClassifier:
    """The classifier of a folder, a .safetensors file, or the released .pth file. Raises EditorError."""
    if missing := find_missing(reference):
        raise EditorError(missing)
    path = expanded(reference)
    file = path / WEIGHTS if path.is_dir() else path
    state, _ = read_checkpoint(file)
    names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    if not isinstance(state, dict) or set(state) != {*names} or len(state["fc2.weight"]) != len(ACTIONS):
        raise EditorError(
            f"{reference!r} is not ZONE's action classifier; expected exactly the tensors "
            f"{', '.join(names)} and {len(ACTIONS)} classes"
        )
    with explained(reference):
        classifier = ActionClassifier(*reversed(state["fc1.weight"].shape))
        classifier.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return classifier.eval().requires_grad_(False)


#: Weight of MagicBrush in the mixture for everything that is not removed; the released code overrides its
#: option.
OTHER_SHARE = 0.01

Predict = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def fuse(
    start: torch.Tensor,
    share: torch.Tensor,
    first: tuple[Any, Predict],
    second: tuple[Any, Predict],
) -> torch.Tensor:
    """Clean latents (B, 4, h, w) float32 of the first model, from noise.

    share   (B,) weight b of the second model: after each step z <- (z + b y) / (1 + b), where y is the second
            model's own latent, to which nothing flows back.
    first, second   A sampler with its steps set (it has a memory), and the model's guided prediction.
    """
    (sampler, predict), (other_sampler, other_predict) = first, second
    share = share.to(start).view(-1, 1, 1, 1)
    x, y = start * float(sampler.init_noise_sigma), start * float(other_sampler.init_noise_sigma)
    for timestep in sampler.timesteps:
        guided = other_predict(other_sampler.scale_model_input(y, timestep), timestep)
        y = other_sampler.step(guided, timestep, y, return_dict=False)[0]
        guided = predict(sampler.scale_model_input(x, timestep), timestep)
        x = sampler.step(guided, timestep, x, return_dict=False)[0]
        x = (x + share * y) / (1 + share)
    return x


class Segmenter:
    """Every segment of a picture, by SAM (arXiv:2304.02643) asked at a grid of `points` squared.

    quality, stability  Lowest IoU that a segment predicts, and has with itself at shifted cut-offs.

    The rest is as in SamAutomaticMaskGenerator of github.com/facebookresearch/segment-anything: cut-off shift
    1, boxes suppressed at an IoU of 0.7, no crops. Always float32.
    """

    def __init__(
        self, checkpoint: str, device: torch.device, *, points: int, quality: float, stability: float
    ) -> None:
        source, revision = locate(checkpoint)
        with explained(checkpoint):
            model: Any = whole(SamModel, checkpoint, source, revision, True, dtype=torch.float32)
            processor = SamImageProcessor.from_pretrained(source, revision=revision or "main")
            if type(model.config).__name__ != "SamConfig" or not hasattr(model, "mask_decoder"):
                raise EditorError(f"{checkpoint!r} is not a SamModel, which ZONE takes its segments from")
            self.sha256 = content_hash({"sam": model})
            model.eval().requires_grad_(False)
            self._generate = MaskGenerationPipeline(model=model, image_processor=processor, device=device)
        self._points, self._quality, self._stability = points, quality, stability

    def __call__(self, image: np.ndarray) -> list[np.ndarray]:
        """Segments (H, W) bool of an (H, W, 3) uint8 picture, the surest first; often none of a plain one."""
        # Not `self._generate(image)`: that goes through a data loader, which draws from the global generator.
        result = self._generate.run_single(
            Image.fromarray(image),
            {"points_per_crop": self._points, "points_per_batch": 64},
            {"pred_iou_thresh": self._quality, "stability_score_thresh": self._stability},
            {"crops_nms_thresh": 0.7},
        )
        return [np.asarray(mask, dtype=bool) for mask in result["masks"]]
