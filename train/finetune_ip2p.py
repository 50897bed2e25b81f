"""Fine-tune an InstructPix2Pix-like editor on NeIn: image and negative sentence -> image without the object.

    python train/finetune_ip2p.py --recipe nano --out runs/finetune/nano          # minutes on two CPU cores
    accelerate launch train/finetune_ip2p.py --recipe nein-ip2p --data NEIN_FOLDER --out runs/finetune/ip2p

If interrupted, rerun the command: it resumes, bit for bit on a CPU. OUT/model is a plain diffusers folder.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from nein.engine.exits import exit_with  # noqa: E402
from nein.loading.errors import UserError  # noqa: E402
from nein.train.editor_finetuning.options import TuneConfig  # noqa: E402

if TYPE_CHECKING:
    from nein.train.loop import Session


def main(argv: Sequence[str] | None = None) -> int:
    return TuneConfig.main(run, argv)


def run(config: TuneConfig) -> None:
    """Open the session of this process, then train."""
    from nein.train.loop import Session

    with Session(config) as session:
        train(config, session)


def train(config: TuneConfig, session: Session) -> None:
    """One training run; called by every process of a group."""
    import torch
    from diffusers.training_utils import EMAModel

    from nein.benchmarks.nein.run import NEIN
    from nein.train import loop
    from nein.train.checkpoints import State
    from nein.train.editor_finetuning import batches, model
    from nein.train.editor_finetuning.batches import Encoder, Features
    from nein.train.editor_finetuning.data import load
    from nein.train.features import list_positions, seed_step
    from nein.train.loop import Record

    # -------------------------------------------------------------------------------- processes and batches
    accelerator, processes, device = session.accelerator, session.processes, session.accelerator.device
    per_process = config.batch_size // processes.size
    micro = min(config.micro_batch or per_process, per_process)
    if config.batch_size % processes.size or per_process % micro:
        raise UserError(
            f"--batch-size {config.batch_size} does not divide into {processes.size} processes and "
            f"micro-batches of {micro}; pass a multiple of both."
        )

    # ----------------------------------------------------------------------------------------- base and data
    pairs = load(config, check_images=processes.is_main)
    base = model.load_base(config)
    unet, scheduler = base.pipeline.unet, model.make_noise_scheduler(base.pipeline)
    order = batches.Order(pairs, config.mix_affirmative, config.seed)
    steps = config.steps or math.ceil(order.count_positions(config.epochs or 0) / config.batch_size)
    record = Record(config, session, data=pairs.facts, base_sha256=base.weights_sha256, steps=steps)
    record.open()
    if config.validate_every:  # fail now if the validation cannot run, not after hours of training
        NEIN.runs(config.build_validation(editor=["identity"]), str(device))

    # ---------------------------------------------------------------------------------------------- features
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float32
    encoder = Encoder(base.pipeline, device, dtype)
    latent_shape = encoder.latent_shape(config.resolution)  # (C, h, w)
    scaling_factor = encoder.scaling_factor
    features = Features(config, pairs, base.pipeline)
    features.make(encoder, processes)
    del encoder  # frees memory for the UNet
    timesteps = scheduler.config.num_train_timesteps
    loader = batches.Loader(config, order, features, shape=latent_shape, timesteps=timesteps)

    # -------------------------------------------------------------------------- weights, optimizer, averaging
    torch.manual_seed(config.seed)  # the same initial LoRA matrices in every process
    model.choose_weights(unet, config)
    if config.gradient_checkpointing:
        unet.enable_gradient_checkpointing()
    unet.to(device).train()
    trained = model.list_trained(unet)
    names, parameters = [name for name, _ in trained], [parameter for _, parameter in trained]
    optimizer = config.adamw(parameters, fused=device.type in ("cuda", "cpu"))
    schedule = loop.make_schedule(config.schedule, config.warmup, optimizer, steps)
    # Decay min(ema, (1 + n) / (10 + n)), as LitEma in the original code.
    average = EMAModel(parameters, decay=config.ema, foreach=True) if config.ema else None
    network, optimizer = accelerator.prepare(unet, optimizer)
    state = State(names, parameters, optimizer, schedule, average)

    # -------------------------------------------------------------------------------------------------- loop
    def read(step: int) -> list[Any]:
        """Members of this process's part of a step, in micro-batches."""
        positions = list_positions(step, config.batch_size, processes.rank, processes.size)
        return [loader.read(positions[start : start + micro]) for start in range(0, len(positions), micro)]

    def learn(step: int, micro_batches: list[Any]) -> loop.Loss:
        seed_step(config.seed, processes.rank, step * config.batch_size)
        total = torch.zeros((), device=device)  # mean loss of this process
        for number, members in enumerate(micro_batches, start=1):
            batch = loader.collate(members, device)
            is_last = number == len(micro_batches)  # gradients are averaged over processes once per step
            with contextlib.nullcontext() if is_last else accelerator.no_sync(network):
                losses = model.compute_losses(
                    network,
                    batch,
                    scheduler,
                    scaling_factor=scaling_factor,
                    snr_gamma=config.snr_gamma,
                    changed_weight=config.changed_weight,
                )  # (micro-batch,)
                loss = losses.mean() / len(micro_batches)
                accelerator.backward(loss)
            total += loss.detach()
        return total, {}

    def validate(step: int) -> dict[str, float]:
        learned = model.copy_averaged(accelerator.unwrap_model(network), average)  # as it would be exported
        return model.validate(config, session, base.pipeline, step, learned)

    loop.run(
        record,
        state,
        read=read,
        step=learn,
        after=None if average is None else lambda step: average.step(parameters),
        validate=validate,
        validate_every=config.validate_every,
        skipped=loader.skipped,
    )

    # ------------------------------------------------------------------------------------------------ export
    if processes.is_main:
        unwrapped = accelerator.unwrap_model(network)
        folder = model.export(config, base.pipeline, unwrapped, average, record.facts())
        record.complete()
        record.say(f"Result: {folder}")
    processes.barrier()


if __name__ == "__main__":
    exit_with(main)
