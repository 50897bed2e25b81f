"""Fine-tune an InstructPix2Pix-class editor on NeIn: from F and a negative sentence to I.

    python train/finetune_ip2p.py --recipe nano --out runs/finetune/nano          # minutes on two CPU cores
    accelerate launch train/finetune_ip2p.py --recipe nein-ip2p --data NEIN_FOLDER --out runs/finetune/ip2p
    accelerate launch train/finetune_ip2p.py --recipe nein-magicbrush --data shards:https://.../train
    torchrun --nproc-per-node 2 train/finetune_ip2p.py --recipe nano --device cpu  # several processes, CPU

Started again, the same command goes on where it stopped, bit for bit on a CPU. What comes out is a plain
diffusers folder, OUT/model, that `nein eval --editor OUT/model` takes.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from nein.cli import Terminated, finish  # noqa: E402
from nein.engine.errors import UserError  # noqa: E402
from train.instruct.options import TuneConfig, dump, parse  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Raises UserError for anything the user can mend."""
    config, dry_run = parse(sys.argv[1:] if argv is None else argv)
    if dry_run:
        print(dump(config), end="")
        return 0
    import torch

    from train.instruct.record import Session

    try:
        with Session(config) as session:
            train(config, session.accelerator, session.world)
    except torch.OutOfMemoryError:
        raise UserError(
            "The device's memory ran out; lower --micro-batch (the result changes by rounding only), or use "
            "--gradient-checkpointing, --precision bf16 or --precompute. Checkpoints are kept."
        ) from None
    return 0


def train(config: TuneConfig, accelerator: Any, world: Any) -> None:
    """The whole run. Every process of a group calls it."""
    import torch
    from tqdm import tqdm

    from nein.engine import environment
    from nein.engine.executors import read_ahead
    from train.instruct import batches, model, record
    from train.instruct.checkpoints import Checkpoints
    from train.instruct.encoder import Encoder, frozen_hash
    from train.instruct.export import export, push
    from train.instruct.objective import losses
    from train.instruct.order import Order, reseed
    from train.instruct.pairs import load
    from train.instruct.precompute import Features, complain
    from train.instruct.validate import Validation

    # ---------------------------------------------------------------------------------- processes and device
    environment.keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = accelerator.device
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    own = config.batch_size // world.size
    micro = min(config.micro_batch or own, own)
    if config.batch_size % world.size or own % micro:
        raise UserError(
            f"--batch-size {config.batch_size} cannot be shared by {world.size} processes in parts "
            f"of {micro}; make it a multiple of both."
        )

    # ----------------------------------------------------------------------------------------- base and data
    pairs = load(config, check_images=world.is_main)
    base = model.load_base(config)
    unet, scheduler = base.pipeline.unet, model.noise_scheduler(base.pipeline)
    order = Order(pairs, config.mix_affirmative, config.seed)
    steps = config.steps or math.ceil(order.length(config.epochs or 0) / config.batch_size)
    run = record.Record(config, world, pairs.about, base.weights_sha256, steps)
    run.open()
    validation = Validation(config, world, device, base)

    # ---------------------------------------------------------------------------------------------- features
    half = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[config.precision]
    encoder: Encoder | None = Encoder(base.pipeline, device, half)
    assert encoder is not None
    shape = encoder.latent_shape(config.resolution)
    scaling = encoder.scaling_factor
    features = None
    if config.precompute or config.precompute_only:
        features = Features(config, pairs, frozen_hash(base.pipeline))
        features.make(encoder, world)
        if config.unreadable == "stop":
            complain(features.unreadable(), f"The data set '{config.data}'")
        encoder = None  # its memory is the UNet's from here on
        if config.precompute_only:
            run.say(f"Features: {features.folder}")
            return
    loader = batches.Loader(
        config,
        pairs,
        order,
        encoder=encoder,
        features=features,
        shape=shape,
        timesteps=scheduler.config.num_train_timesteps,
    )

    # -------------------------------------------------------------------------- weights, optimiser, averaging
    torch.manual_seed(config.seed)  # the same LoRA matrices in every process
    model.choose_weights(unet, config)
    if config.gradient_checkpointing:
        unet.enable_gradient_checkpointing()
    unet.to(device, memory_format=torch.channels_last).train()  # faster convolutions on CPU and GPU alike
    names = [name for name, _ in model.trainable(unet)]
    parameters = [parameter for _, parameter in model.trainable(unet)]
    optimizer = model.make_optimizer(config, parameters, device)
    schedule = model.make_schedule(config, optimizer, steps)
    average = model.make_average(config, parameters)
    network, optimizer = accelerator.prepare(unet, optimizer)
    state: dict[str, Any] = {
        "names": names,
        "parameters": parameters,
        "average": average,
        "optimizer": optimizer.optimizer,
        "schedule": schedule,
        "scaler": accelerator.scaler,
    }

    # ------------------------------------------------------------------------------------------------ resume
    checkpoints = Checkpoints(config.out_dir, config.keep)
    newest = checkpoints.latest()
    done = checkpoints.restore(newest, **state) if newest is not None else 0
    run.resume(done, newest)
    world.barrier()

    # -------------------------------------------------------------------------------------------------- loop
    def read(step: int) -> Any:
        parts = batches.slices(step, batch=config.batch_size, micro=micro, rank=world.rank, size=world.size)
        return [loader.read(part) for part in parts]

    def watch(step: int) -> None:
        figures = validation.run(step, accelerator.unwrap_model(network), average, scheduler, scaling)
        run.validated(step, figures, accelerator)

    def save(step: int) -> None:
        if world.is_main:
            checkpoints.save(step, **state)
        world.barrier()

    if done == 0 and config.validate_every:
        watch(0)
    bar = tqdm(total=steps, initial=done, desc="train", unit="step", disable=not world.is_main)
    pending: list[tuple[int, Any]] = []  # tallies still on the device: reading one at once would stall it
    with record.terminable() as asked, contextlib.closing(bar):
        for step, parts in read_ahead(read, range(done, steps), config.workers):
            reseed(config.seed, world.rank, step * config.batch_size)
            total = torch.zeros((), device=device)
            for number, members in enumerate(parts):
                batch = loader.finish(members, device)
                last = number + 1 == len(parts)
                with contextlib.nullcontext() if last else accelerator.no_sync(network):
                    each = losses(
                        network,
                        batch,
                        scheduler,
                        scaling_factor=scaling,
                        snr_gamma=config.snr_gamma,
                        changed_weight=config.changed_weight,
                    )
                    loss = each.mean() / len(parts)
                    accelerator.backward(loss)
                total += loss.detach()
            norm = accelerator.clip_grad_norm_(parameters, config.clip or math.inf)
            rate = schedule.get_last_lr()[0]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if not accelerator.optimizer_step_was_skipped:
                schedule.step()
                if average is not None:
                    average.step(parameters)
            # ------------------------------------------------------------------------------------------------
            tally = torch.stack(
                [total, torch.as_tensor(norm, device=device), total.new_tensor(float(asked()))]
            )
            pending.append((step, accelerator.reduce(tally, "mean")))
            ends, saves = step + 1 == steps, (step + 1) % config.save_every == 0
            watches = config.validate_every and ((step + 1) % config.validate_every == 0 or ends)
            logs = (step + 1) % config.log_every == 0 or ends
            stops = False
            while len(pending) > (0 if logs or saves or watches else 1):
                stops |= run.tally(*pending.pop(0), checkpoints.latest())
            if logs:
                run.log(step + 1, rate, bar, accelerator, loader.skipped)
            bar.update()
            if stops:
                while pending:
                    run.tally(*pending.pop(0), checkpoints.latest())
            if saves or ends or stops:
                save(step + 1)
            if stops and not ends:
                raise Terminated
            if watches:
                watch(step + 1)

    # ------------------------------------------------------------------------------------------------ export
    if world.is_main:
        twin = model.averaged_copy(accelerator.unwrap_model(network), average)
        folder = export(config, base.pipeline, twin, accelerator.unwrap_model(network), average, run.facts())
        run.complete()
        if config.push:
            push(folder, config.push)
        run.say(f"Result: {folder}")
    world.barrier()


if __name__ == "__main__":
    finish(main)
