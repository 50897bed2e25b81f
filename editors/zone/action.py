"""Step 1: what an instruction asks for, read from the states of the text encoder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from nein.editors.base import EditorError
from nein.editors.checkpoint import explained
from nein.editors.zone import WEIGHTS, find_missing

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


@dataclass(frozen=True)
class Reading:
    """An instruction as read: its action, and its number of tokens with both end marks, as far as they
    were read.
    """

    action: str
    tokens: int


def decide(logits: torch.Tensor, tokens: int, protocol: str) -> str:
    """The action of an instruction.

    logits: (T, 3), a row per position including padding; tokens: how many of them are not padding.

    "fixed" takes the class with the largest logit at any real token. "paper" looks up, for each class, at
    which of all T positions its logit is largest, and takes the class whose position is latest (the first of
    equal ones): the released code keeps the indices that torch.max returns where the values were meant.
    """
    if protocol == "paper":
        # The first of equal positions, whatever the device.
        positions = [int((column == column.max()).nonzero()[0]) for column in logits.T]
        return ACTIONS[max(range(len(ACTIONS)), key=positions.__getitem__)]
    return ACTIONS[int(logits[:tokens].amax(0).argmax())]


def save_classifier(classifier: ActionClassifier, folder: Path) -> None:
    """Write `folder`/config.json and model.safetensors (fp16)."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        name: tensor.detach().half().cpu().contiguous() for name, tensor in classifier.state_dict().items()
    }
    save_file(state, folder / WEIGHTS, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(classifier.config, indent=2) + "\n")


def load_classifier(reference: str) -> ActionClassifier:
    """The classifier of a folder (`save_classifier`), a .safetensors file, or the released .pth file.

    The .pth file is read as plain tensors (weights_only=True). Raises EditorError.
    """
    missing = find_missing(reference)
    if missing:
        raise EditorError(missing)
    path = Path(reference).expanduser()
    file = path / WEIGHTS if path.is_dir() else path
    with explained(reference):
        if file.suffix == ".safetensors":
            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
        names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
        if (
            not isinstance(state, dict)
            or set(state) != set(names)
            or state["fc2.weight"].shape[0] != len(ACTIONS)
        ):
            raise EditorError(
                f"{reference!r} is not ZONE's action classifier; expected exactly the tensors "
                f"{', '.join(names)} and {len(ACTIONS)} classes"
            )
        hidden, width = state["fc1.weight"].shape
        classifier = ActionClassifier(width, hidden)
        classifier.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return classifier.eval().requires_grad_(False)
