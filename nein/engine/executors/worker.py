"""Worker: runs the stage on a block, writes rows, records the cost. Every executor has one or many."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nein.engine.attempts import new_name
from nein.engine.environment import peak_memory
from nein.engine.folder import Folder
from nein.engine.stages import Model, Step, Task

CUDA = "largest amount allocated on the device during the stage"
PROCESS = "peak of the process"
SMALL = 4 * 2**30  # bytes: for less, no collection of garbage is worth the third of a second that it takes


@dataclass
class _Loaded:
    """A model in memory. name: that no other has; folders: for which it worked."""

    model: Model
    thing: Any
    name: str = field(default_factory=new_name)
    folders: dict[Path, Folder] = field(default_factory=dict)


class Worker:
    """Makes blocks with models of one device, which are loaded when first needed and kept; threads may share
    it. On a GPU with less than half of its memory free, the others are dropped before the next is loaded.

    device  Of the models: see `nein.engine.processes.Processes.device`.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._mutex = threading.RLock()  # `model` calls `keep`
        self._loaded: dict[str, _Loaded] = {}
        self._measured = ""
        self._peaks: dict[tuple[Path, str], tuple[Folder, dict[str, Any]]] = {}

    def make(self, task: Task, inputs: Any) -> bool:
        """The block's files are there when this returns; whether they were made here, and not by another
        worker that took this one for dead since the inputs were read."""
        folder, stage = task.step.folder, task.step.stage
        if task.made_elsewhere():
            return False
        model = self.model(task.step)
        start = time.perf_counter()
        task.put(stage.work(model, inputs, task.missing))
        seconds, peaks = time.perf_counter() - start, peak_memory(self._device)
        cost = {"seconds": round(seconds, 3), "at": round(time.time(), 1), "peak_memory": peaks}
        folder.cost(stage.name, task.number, cost)
        if peaks:  # a CPU has no counter that could be reset: what was needed before is in its figure
            kind, what = ("device", CUDA) if "device" in peaks else ("host", PROCESS)
            self._peaks[folder.path, stage.name] = folder, {"bytes": peaks[kind], "what": what}
        return True

    def model(self, step: Step) -> Any:
        """What a step needs, noted in its folder."""
        model, folder = step.stage.model, step.folder
        if model is None:
            return None
        with self._mutex:
            if self._device.startswith("cuda") and self._measured != model.name:
                import torch

                self._measured = model.name
                torch.cuda.reset_peak_memory_stats(self._device)
            if model.name not in self._loaded:
                if model.place == "device" and _free_share(self._device) < 0.5:
                    self.keep(())
                self._loaded[model.name] = _Loaded(model, model.load())
            loaded = self._loaded[model.name]
            if folder.path not in loaded.folders:
                folder.note_models(model.describe(loaded.thing))
                loaded.folders[folder.path] = folder
            return loaded.thing

    def keep(self, names: Collection[str]) -> None:
        """Gives the memory of all other models back."""
        with self._mutex:
            if self._loaded.keys() <= set(names):
                return
            _note_usage(one for name, one in self._loaded.items() if name not in names)
            self._loaded = {name: one for name, one in self._loaded.items() if name in names}
            if self._device == "cpu" and 0 < peak_memory().get("host", 0) < SMALL:
                return
            gc.collect()
            torch = sys.modules.get("torch")  # never the reason to import it
            if torch is not None and torch.cuda.is_available():
                torch.cuda.empty_cache()

    def stop(self) -> None:
        """Ends waiting for answers in all models."""
        for loaded in list(self._loaded.values()):
            if (stop := getattr(loaded.thing, "stop", None)) is not None:
                stop()

    def note(self) -> None:
        """Notes the peaks of memory and what models say of their work."""
        for (_, stage), (folder, peak) in self._peaks.items():
            folder.note("peak_memory", stage, peak)
        self._peaks.clear()
        _note_usage(self._loaded.values())


def _note_usage(models: Iterable[_Loaded]) -> None:
    """In every folder that a model worked for, under a name of its own each time it was loaded."""
    for loaded in models:
        for kind, usage in loaded.model.usage(loaded.thing).items():
            for folder in loaded.folders.values():
                folder.note("usage", f"{kind}-{loaded.name}", usage)


def _free_share(device: str) -> float:
    """How much of a device's memory is free, 0 to 1; 0 where it does not tell, 1 for a CPU."""
    if not device.startswith("cuda"):
        return float(device == "cpu")
    import torch

    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return free / total
