"""Worker: reads a block, runs the stage, writes rows, records the cost. Every executor has one or many."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from nein.engine.attempts import new_name
from nein.engine.environment import peak_memory
from nein.engine.executors import memory
from nein.engine.stages import Model, Step, Task, made_elsewhere, put


class Loaded:
    """Models by name, made when first needed and kept; threads may share it.

    On a GPU with less than half of its memory free, the others are dropped before the next is loaded.

    leaving  Called with every model that `tell` names, and with each before it is dropped.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._models: dict[str, Any] = {}
        self._kinds: dict[str, Model] = {}
        self.leaving: Callable[[Model, Any], None] = lambda model, loaded: None
        self._mutex = threading.Lock()

    def get(self, model: Model) -> Any:
        with self._mutex:
            if model.name not in self._models:
                if model.place == "device" and memory.free_share(self._device) < 0.5:
                    self._keep(())
                self._models[model.name] = model.load()
                self._kinds[model.name] = model
            return self._models[model.name]

    def keep(self, names: Collection[str]) -> None:
        """Gives the memory of all other models back."""
        with self._mutex:
            self._keep(names)

    def tell(self, names: Collection[str] | None = None) -> None:
        """Calls `leaving` with these models, or with all that are loaded."""
        for name in list(self._models):
            if names is None or name in names:
                self.leaving(self._kinds[name], self._models[name])

    def stop(self) -> None:
        """Ends waiting for answers in all of them."""
        for model in list(self._models.values()):
            if (stop := getattr(model, "stop", None)) is not None:
                stop()

    def _keep(self, names: Collection[str]) -> None:
        if self._models.keys() <= set(names):
            return
        self.tell(set(self._models) - set(names))
        self._models = {name: model for name, model in self._models.items() if name in names}
        memory.release(self._device)


class Worker:
    """Makes blocks of `steps` with the models of one device; threads may share it.

    device  Of the models: see `nein.engine.processes.Processes.device`.
    """

    def __init__(self, steps: Sequence[Step], device: str, loaded: Loaded | None = None) -> None:
        self._name = new_name()
        self.loaded = loaded or Loaded(device)
        self._steps, self._device = steps, device
        self._mutex = threading.Lock()
        self._noted: set[tuple[Any, str]] = set()
        self._measured: str | None = None
        self._said: Counter[str] = Counter()
        self.loaded.leaving = self._note_usage
        self.peaks: dict[int, dict[str, Any]] = {}

    def read(self, task: Task) -> Any:
        """The inputs of a block."""
        return self._steps[task.step].stage.read(task.number)

    def make(self, task: Task, inputs: Any) -> bool:
        """The block's files are there when this returns; whether they were made here, and not by another
        worker that took this one for dead since the inputs were read."""
        step = self._steps[task.step]
        folder, stage = step.folder, step.stage
        if made_elsewhere(folder, task):
            return False
        model = self._model(step)
        start = time.perf_counter()
        put(step, task.number, stage.work(model, inputs, task.missing), task.missing)
        seconds = round(time.perf_counter() - start, 3)
        cost = {"seconds": seconds, "at": round(time.time(), 1), "peak_memory": peak_memory()}
        folder.cost(stage.name, task.number, cost)
        if (peak := memory.peak(self._device)) is not None:
            self.peaks[task.step] = peak
        return True

    def close(self) -> None:
        """Notes the peaks of memory and what models say of their work."""
        for index, peak in self.peaks.items():
            self._steps[index].folder.note("peak_memory", self._steps[index].stage.name, peak)
        self.loaded.tell()
        self.loaded.leaving = lambda model, loaded: None

    def _note_usage(self, model: Model, loaded: Any) -> None:
        """In every folder that the model worked for here, under a name of its own each time it was loaded."""
        folders = {
            step.folder.path: step.folder
            for step in self._steps
            if (step.folder.path, model.name) in self._noted
        }
        for kind, usage in model.usage(loaded).items() if folders else ():
            self._said[kind] += 1
            for folder in folders.values():
                folder.note("usage", f"{kind}-{self._name}-{self._said[kind]}", usage)

    def _model(self, step: Step) -> Any:
        model = step.stage.model
        if model is None:
            return None
        with self._mutex:
            if self._measured != model.name:
                self._measured = model.name
                memory.reset(self._device)
        loaded = self.loaded.get(model)
        place = (step.folder.path, model.name)
        with self._mutex:
            if place not in self._noted:
                step.folder.note_models(model.describe(loaded))
                self._noted.add(place)
        return loaded
