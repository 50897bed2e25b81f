"""Validation on a fixed subset: the benchmark's own editing and scoring, and a grid.

Works on a copy of the weights and draws from generators of its own, so training goes on undisturbed.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from nein import editors
from nein.benchmarks.nein import figures, score
from nein.benchmarks.nein.config import EvalConfig, GridConfig
from nein.benchmarks.nein.edit import Edit
from nein.benchmarks.nein.evaluate import scores
from nein.benchmarks.nein.reporting import grid
from nein.benchmarks.nein.runs import EDIT, RunDir, scores_of
from nein.benchmarks.nein.score import Score
from nein.benchmarks.runner import SCORES
from nein.datasets import nein as loading
from nein.datasets.nein import Dataset, records_hash, validate_images
from nein.editors.checkpoint import LoadedPipeline, content_hash, quiet
from nein.editors.instruct_pix2pix import InstructPix2Pix
from nein.engine.folder import COMPLETE, Blocks
from nein.engine.machine import Processes
from nein.engine.run import Executor
from nein.engine.stages import Model, Step
from nein.reporting import figures as frames
from nein.train.editor_finetuning.model import averaged_copy
from nein.train.editor_finetuning.options import TuneConfig

TRACKS = ("negative", "add")
GRID_ROWS, GRID_STEPS = 6, 4
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def swapped(dataset: Dataset) -> Dataset:
    """The same samples with F and I exchanged: "Add a X." is put to the picture that has no X."""
    samples = tuple(
        dataclasses.replace(s, sample_path=s.source_path, source_path=s.sample_path) for s in dataset.samples
    )
    return Dataset(samples, {**dataset.origin, "swapped": True}, dataset.records_sha256)


def subset(dataset: Dataset, count: int) -> Dataset:
    """`count` samples, evenly spread over the data set."""
    total = len(dataset.samples)
    chosen = sorted({round(i) for i in np.linspace(0, total - 1, min(count, total))})
    samples = tuple(dataset.samples[i] for i in chosen)
    return Dataset(samples, dataset.origin, records_hash(samples))


def assess(
    editor: editors.Editor,
    run: RunDir,
    dataset: Dataset,
    names: Sequence[str],
    config: EvalConfig,
    executor: Executor,
) -> dict[str, Any]:
    """Edits and scores `dataset` with the benchmark's stages, resuming what is there; every process calls it.

    The main process gets the run's figures by metric.
    """
    blocks = Blocks.first(len(dataset.samples), config.batch_size)
    if executor.is_main:
        identity = {"editor": editor.fingerprint, "track": run.track, "seed": config.seed}
        identity |= {"data": dataset.records_sha256, "batch_size": blocks.size}
        selected = {EDIT: blocks.selection}
        facts = {"config": dataclasses.asdict(config), "data": dataset.facts(blocks), "selected": selected}
        run.open(identity, facts, overwrite=True)
        for name in names:
            run.open_output(
                scores_of(name), score.score_identity(name, config, executor.device), overwrite=True
            )
    executor.processes.barrier()  # no process reads a folder that another is about to remove
    stages = (
        Edit(
            run=run,
            dataset=dataset,
            blocks=blocks,
            model=Model.one("editor", lambda: editor, kind="editor"),
            seed=config.seed,
        ),
        Score(
            run=run,
            dataset=dataset,
            edited=blocks,
            metrics=names,
            scorer=score.scorer_model(config, executor.device),
        ),
    )
    with quiet():
        executor.compute([Step(run, stage, run.label) for stage in stages])
    if not executor.is_main:
        return {}
    table = scores(run)
    table.write(run.path / SCORES)
    found = figures.of_table(table, run.corpus(), run.track)
    results = frames.records(frames.select(found, task="results"))
    run.update(status=COMPLETE)
    return {figure["metric"]: figure for figure in results}


class Validation:
    """The validation of one training run; does nothing when `--validate-every` is 0."""

    def __init__(
        self, config: TuneConfig, processes: Processes, device: torch.device, base: LoadedPipeline
    ) -> None:
        self._config, self._processes, self._device, self._base = config, processes, device, base
        if not config.validate_every:
            return
        # Anything wrong with the data shows now and not after hours of training.
        dataset = loading.load(config.validation_data, split=config.validation_split)
        self._dataset = subset(dataset, config.validation_samples)
        if processes.is_main:
            validate_images(self._dataset.samples, f"The validation data '{config.validation_data}'")
        # The paper preset insists on data of its own, which are not read from here.
        data = config.validation_data if config.validation_data != "nano" else "-"
        self._eval = EvalConfig.parse(["--preset", config.validation_preset, "--data", data])
        if processes.is_main:
            score.check_references(config.validation_metrics, self._eval)

    def run(self, step: int, unet: Any, average: Any) -> dict[str, float]:
        """Figures by name (main process; others get none). Writes OUT/validation."""
        twin = averaged_copy(unet, average)
        values: dict[str, float] = {}
        editor = self._editor(twin)
        out = self._config.out_dir / "validation"
        slug = f"step-{step:08d}"
        for track in TRACKS:
            dataset = self._dataset if track == "negative" else swapped(self._dataset)
            wanted = self._config.validation_metrics
            names = [n for n in wanted if track == "negative" or "retention" in n or "removal" in n]
            if not names:
                continue
            run_dir = RunDir((out if track == "negative" else out / "swapped") / slug / track)
            # One block at a time: more would turn off PyTorch's own threads, which training goes on with.
            executor = Executor(str(self._device), self._processes, at_once=1)
            summary = assess(editor, run_dir, dataset, names, self._eval, executor)
            for name, entry in summary.items():
                if entry["value"] is None:
                    continue
                if track == "negative":
                    values[name] = entry["value"]
                elif name.startswith("removal"):  # absent after "Add a X." is a failure
                    values[f"add_{name.removeprefix('removal_')}"] = 1 - entry["value"]
        if self._processes.is_main:
            ids = [sample.id for sample in subset(self._dataset, GRID_ROWS).samples]
            steps = sorted(out.glob("step-*/negative"))
            runs = steps if len(steps) <= GRID_STEPS else [steps[0], *steps[1 - GRID_STEPS :]]
            grid.grid(GridConfig(runs=runs, samples=ids, out=out / "grid.png"))
        self._processes.barrier()
        return values

    def _editor(self, twin: Any) -> InstructPix2Pix:
        pipeline = copy.copy(self._base.pipeline)
        pipeline.unet = twin
        # Copies: an editor moves and casts its modules, and training may still use these.
        pipeline.vae = copy.deepcopy(self._base.pipeline.vae)
        pipeline.text_encoder = copy.deepcopy(self._base.pipeline.text_encoder)
        base = self._config.base  # a file is one of its folder's kind
        base = base if "/" in base or ":" in base else f"./{base}"
        row = editors.preset_row(base, self._config.validation_preset)
        loaded = LoadedPipeline(pipeline, "memory", content_hash({"unet": twin}))
        return InstructPix2Pix(
            loaded,
            name="in training",
            device=str(self._device),
            dtype=DTYPES[self._config.precision] if self._device.type == "cuda" else "float32",
            batch_size=self._eval.batch_size,
            **row.options(),
        )
