"""Validation: `nein eval` on the first samples of a data set, with the weights as they are."""

from __future__ import annotations

import shutil
from typing import Any

import torch

from nein.benchmarks.nein.config import EvalConfig
from nein.benchmarks.nein.run import NEIN
from nein.benchmarks.runner import FIGURES
from nein.editors.checkpoint import LoadedPipeline, quiet
from nein.engine.machine import Processes
from nein.engine.run import Executor
from nein.reporting import figures as frames
from nein.train.editor_finetuning.model import averaged_copy, save_pipeline
from nein.train.editor_finetuning.options import TuneConfig


class Validation:
    """The validation of one training run; does nothing when `--validate-every` is 0."""

    def __init__(
        self, config: TuneConfig, processes: Processes, device: torch.device, base: LoadedPipeline
    ) -> None:
        self._config, self._processes, self._device, self._base = config, processes, str(device), base
        if config.validate_every:  # anything wrong with the data shows now and not after hours of training
            NEIN.runs(self._settings("identity"), self._device)

    def _settings(self, editor: str) -> EvalConfig:
        return self._config.validation(editor=[editor], device=self._device, overwrite=True)

    def run(self, step: int, unet: Any, average: Any) -> dict[str, float]:
        """Figures by metric (main process; others get none). Writes OUT/validation.

        Training goes on undisturbed: this works on a copy of the weights, and every step seeds what it draws.
        """
        name, out = f"step-{step:08d}", self._config.out_dir / "validation"
        folder = out / "model"
        if self._processes.is_main:
            save_pipeline(self._base.pipeline, averaged_copy(unet, average), folder)
        self._processes.barrier()
        # One block at a time: more would turn off PyTorch's own threads, which training goes on with.
        with quiet():
            NEIN(self._settings(f"{name}={folder}"), Executor(self._device, self._processes, at_once=1))
        self._processes.barrier()
        if not self._processes.is_main:
            return {}
        shutil.rmtree(folder)
        results = frames.select(frames.read(out / name / "negative" / FIGURES), task="results")
        return {row["metric"]: row["value"] for row in frames.records(results) if row["value"] is not None}
