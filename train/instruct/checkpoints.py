"""Checkpoints of a training run: all of it or nothing, the newest few kept, safetensors and JSON only.

    OUT/checkpoints/step-00000500/
      weights.safetensors     the parameters that learn, float32
      average.safetensors     their moving average
      optimizer.safetensors   every tensor of the optimiser's state, by parameter number
      state.json              step, schedule, the rest of the optimiser, loss scale, bytes of each file

There is no random state to keep: every number drawn is a function of the seed and the number of pairs seen.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file

from nein.engine import atomic
from nein.engine.errors import UserError

FORMAT = 1
NO_ROOM = ("no space left", "file too large", "quota exceeded", "os error 28", "os error 27", "os error 122")


class Checkpoints:
    """The checkpoints of a run folder. Writing is for the main process."""

    def __init__(self, out: Path, keep: int) -> None:
        self.folder = out / "checkpoints"
        self._keep = keep

    def latest(self) -> Path | None:
        """The newest whole checkpoint, or None."""
        found = self._all()
        return found[-1] if found else None

    def _all(self) -> list[Path]:
        return sorted(p for p in self.folder.glob("step-*") if (p / "state.json").is_file())

    def save(
        self,
        step: int,
        *,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        average: Any,
        optimizer: Any,
        schedule: Any,
        scaler: Any = None,
    ) -> Path:
        """Writes the state after `step` steps, then removes the oldest beyond the number to keep.

        Raises UserError when there is no room; earlier checkpoints are then untouched.
        """
        target = self.folder / f"step-{step:08d}"
        draft = self.folder / f".draft-{step:08d}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for rest in self.folder.glob(".draft-*"):
                shutil.rmtree(rest)
            draft.mkdir()
            weights = {n: p.detach().cpu().contiguous() for n, p in zip(names, parameters, strict=True)}
            _save(weights, draft / "weights.safetensors")
            about: dict[str, Any] = {"format": FORMAT, "step": step, "schedule": schedule.state_dict()}
            if average is not None:
                shadow = [value.detach().cpu().contiguous() for value in average.shadow_params]
                _save(dict(zip(names, shadow, strict=True)), draft / "average.safetensors")
                about["average_steps"] = average.optimization_step
            tensors, about["optimizer"] = _flatten(optimizer.state_dict())
            _save(tensors, draft / "optimizer.safetensors")
            about["scaler"] = scaler.state_dict() if scaler is not None else None
            about["bytes"] = {file.name: file.stat().st_size for file in draft.glob("*.safetensors")}
            atomic.write_json(draft / "state.json", about)
            if target.exists():
                shutil.rmtree(target)
            draft.replace(target)
        except (OSError, safetensors.SafetensorError) as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise self._complaint(step, error) from None
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old)
        return target

    def _complaint(self, step: int, error: Exception) -> UserError:
        last = self.latest()
        safe = f"the last good checkpoint is '{last}'" if last else "there is no earlier checkpoint"
        text = " ".join(str(error).split())
        if any(word in text.lower() for word in NO_ROOM):
            why, what = f"The disk is full ({text})", "free some space"
        else:
            why, what = f"'{self.folder}' cannot be written to ({text})", "make it writable"
        return UserError(
            f"{why}: the checkpoint at step {step} was not written, {safe}; {what} and run the same command "
            "again."
        )

    def restore(
        self,
        folder: Path,
        *,
        names: Sequence[str],
        parameters: Sequence[torch.nn.Parameter],
        average: Any,
        optimizer: Any,
        schedule: Any,
        scaler: Any = None,
    ) -> int:
        """Puts everything back as `save` found it; returns the number of steps done. Raises UserError."""
        about = atomic.read_json(folder / "state.json")
        if about.get("format") != FORMAT:
            raise UserError(f"'{folder}' was written by another version; choose another --out.")
        for name, size in about["bytes"].items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size:
                raise UserError(
                    f"'{file}' is damaged; remove '{folder}' to go on from the checkpoint before it."
                )
        weights = load_file(folder / "weights.safetensors")
        if set(weights) != set(names):
            raise UserError(
                f"'{folder}' holds other weights than --trainable now chooses; choose another --out."
            )
        with torch.no_grad():
            for name, parameter in zip(names, parameters, strict=True):
                parameter.copy_(weights[name])
            if average is not None:
                shadows = load_file(folder / "average.safetensors")
                for name, value in zip(names, average.shadow_params, strict=True):
                    value.copy_(shadows[name])
                average.optimization_step = about["average_steps"]
        optimizer.load_state_dict(_unflatten(load_file(folder / "optimizer.safetensors"), about["optimizer"]))
        _lay_out(optimizer)
        schedule.load_state_dict(about["schedule"])
        if scaler is not None and about["scaler"] is not None:
            scaler.load_state_dict(about["scaler"])
        return int(about["step"])


def _save(tensors: dict[str, torch.Tensor], file: Path) -> None:
    save_file(tensors, file)
    with file.open("rb") as written:  # a full disk may show only now
        os.fsync(written.fileno())


def _flatten(state: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """An optimiser's state_dict as named tensors and JSON; for any whose state is flat per parameter."""
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for number, entries in state["state"].items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                # 8-bit optimisers share a table among parameters, which safetensors refuses: a copy each.
                tensors[f"{number}/{key}"] = value.detach().cpu().contiguous().clone()
            else:
                plain.setdefault(str(number), {})[key] = value
    groups = json.loads(json.dumps(state["param_groups"]))
    return tensors, {"plain": plain, "groups": groups}


def _lay_out(optimizer: Any) -> None:
    """Gives every moment the memory layout of its parameter. Files know no layout, and PyTorch's fused
    optimisers pair up elements by their place in memory: channels-last weights would get others' moments."""
    for parameter, entries in optimizer.state.items():
        for key, value in entries.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                entries[key] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _unflatten(tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(k): dict(v) for k, v in about["plain"].items()}
    for name, value in tensors.items():
        number, _, key = name.partition("/")
        state.setdefault(int(number), {})[key] = value
    groups = [{k: tuple(v) if k == "betas" else v for k, v in group.items()} for group in about["groups"]]
    return {"state": state, "param_groups": groups}
