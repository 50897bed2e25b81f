"""Save the state of a training run after a step, and restore it when the run resumes.

A checkpoint, OUT/checkpoints/step-N, has safetensors and a state.json, and exists whole or not at all. It
holds no random state: every random number is a function of the seed and the step.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file

from nein.engine import atomic
from nein.loading.errors import UserError

Tensors = dict[str, torch.Tensor]  # by name


@dataclass(frozen=True)
class State:
    """The state of a run that the next step depends on, besides the data and the step number."""

    names: Sequence[str]  # of the trained parameters
    parameters: Sequence[torch.nn.Parameter]
    optimizer: Any  # its state per parameter is a flat dictionary, as AdamW's
    schedule: Any  # of the learning rate
    average: Any = None  # has `shadow_params` and `optimization_step`, as diffusers' EMAModel
    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)  # changed without gradients


class Checkpoints:
    """The newest `keep` checkpoints of a run folder; only the main process writes. losses: (2,) float64 of
    `train.loop.Record`, saved and restored with the state."""

    def __init__(self, out: Path, keep: int, state: State, losses: torch.Tensor) -> None:
        self.folder = out / "checkpoints"
        self._keep, self._state, self._losses = keep, state, losses

    def latest(self) -> Path | None:
        return max(self.folder.glob("step-*"), default=None)  # eight digits: names sort as numbers

    def _list_tensors(self) -> dict[str, Tensors]:
        """File stem -> tensors by name: all that a step changes in place, except the optimizer's."""
        state = self._state
        others: Tensors = {"losses": self._losses}
        for name, module in state.modules.items():
            others |= {f"{name}/{key}": tensor for key, tensor in module.state_dict().items()}
        weights: Tensors = dict(zip(state.names, state.parameters, strict=True))
        files = {"weights": weights, "others": others}
        if state.average is not None:
            files["average"] = dict(zip(state.names, state.average.shadow_params, strict=True))
        return files

    def save(self, step: int) -> None:
        """Write the state after `step` steps, then remove the oldest checkpoints. Raises UserError if the
        disk is full; earlier checkpoints are kept."""
        draft = self.folder / f".draft-{step:08d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for old_draft in self.folder.glob(".draft-*"):
                shutil.rmtree(old_draft)
            draft.mkdir()
            self._write(step, draft)
            draft.replace(self.folder / f"step-{step:08d}")
        except (OSError, safetensors.SafetensorError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            newest = self.latest()
            cause = " ".join(str(error).split())  # on one line
            kept = f"the last good checkpoint is '{newest}'" if newest else "there is no earlier checkpoint"
            raise UserError(
                f"The checkpoint at step {step} was not written to '{self.folder}' ({cause}), {kept}; "
                "free some space, or make it writable, then rerun the command."
            ) from None
        for old in sorted(self.folder.glob("step-*"))[: -self._keep]:
            shutil.rmtree(old)

    def _write(self, step: int, folder: Path) -> None:
        # The optimizer's state: parameter number -> tensors (safetensors) and scalars (JSON) by key.
        tensors, scalars = Tensors(), dict[str, Any]()
        optimizer = _unwrap(self._state.optimizer).state_dict()
        for number, values in optimizer["state"].items():
            for key, value in values.items():
                # Cloned: 8-bit optimizers share a table among parameters, which safetensors refuses.
                if isinstance(value, torch.Tensor):
                    tensors[f"{number}/{key}"] = value.clone()
                else:
                    scalars.setdefault(str(number), {})[key] = value
        for name, content in {**self._list_tensors(), "optimizer": tensors}.items():
            _save(content, folder / f"{name}.safetensors")
        average = self._state.average
        facts = {
            "step": step,
            "schedule": self._state.schedule.state_dict(),
            "average_steps": None if average is None else average.optimization_step,
            "optimizer": {"plain": scalars, "groups": optimizer["param_groups"]},
            # A checkpoint counts only if its files have these sizes.
            "bytes": {file.name: file.stat().st_size for file in folder.glob("*.safetensors")},
        }
        atomic.write_json(folder / "state.json", facts)

    def restore(self, folder: Path) -> int:
        """Load a checkpoint into `state`; returns its number of steps. Raises UserError."""
        state = self._state
        facts = atomic.read_json(folder / "state.json", atomic.record({"step": int, "bytes": dict[str, int]}))
        for name, size in facts["bytes"].items():
            if not (folder / name).is_file() or (folder / name).stat().st_size != size:
                raise UserError(f"'{folder / name}' is damaged; remove '{folder}' and rerun the command.")
        # Weights, averages, losses are copied in place.
        for name, tensors in self._list_tensors().items():
            stored = load_file(folder / f"{name}.safetensors")
            if stored.keys() != tensors.keys():
                raise UserError(f"'{folder}' holds other weights than this run trains; pass another --out.")
            with torch.no_grad():
                for key, tensor in tensors.items():
                    tensor.copy_(stored[key])
        if state.average is not None:
            state.average.optimization_step = facts["average_steps"]
        # Optimizer: scalars and tensors of each parameter number are joined again.
        scalars, groups = facts["optimizer"]["plain"], facts["optimizer"]["groups"]
        entries: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in scalars.items()}
        for name, value in load_file(folder / "optimizer.safetensors").items():
            number, _, key = name.partition("/")
            entries.setdefault(int(number), {})[key] = value
        for group in groups:  # JSON has turned the tuple `betas` into a list
            if "betas" in group:
                group["betas"] = tuple(group["betas"])
        _unwrap(state.optimizer).load_state_dict({"state": entries, "param_groups": groups})
        state.schedule.load_state_dict(facts["schedule"])
        return facts["step"]


def _unwrap(optimizer: Any) -> Any:
    """The torch optimizer inside accelerate's wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def _save(tensors: Tensors, file: Path) -> None:
    save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, file)
    with file.open("rb") as stream:  # a full disk may be noticed only now
        os.fsync(stream.fileno())
