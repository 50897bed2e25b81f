"""Fine-tune a CLIP on negated captions and multiple-choice questions, as NegBench does.

    python train/finetune_clip.py --out runs/clip                        # nano: minutes on two CPU cores
    python train/finetune_clip.py --alpha 0 0.5 0.9 0.99 1 --out runs/sweep --evaluate nano
    accelerate launch train/finetune_clip.py --preset paper --captions negcap.csv --questions negmcq.csv
    torchrun --nproc-per-node 2 train/finetune_clip.py --device cpu      # several processes, CPU

L = alpha L_CLIP + (1 - alpha) L_MCQ, one batch of each per step. Started again, the same command goes on
where it stopped, bit for bit on a CPU. What comes out is a model folder, OUT/model, that `nein negbench
eval --model OUT/model` takes; a sweep makes OUT/alpha-A for every A and shows recall against accuracy.
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
from train.contrast.options import ContrastConfig, dump, parse, spelled  # noqa: E402


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command. Raises UserError for anything the user can mend."""
    config, dry_run = parse(sys.argv[1:] if argv is None else argv)
    if dry_run:
        print(dump(config), end="")
        return 0
    run(config)
    return 0


def run(config: ContrastConfig) -> list[Path]:
    """Trains at every value of alpha; the folders of the models, in that order."""
    import torch

    from train.contrast import sweep
    from train.instruct.record import Session

    single = len(config.alphas) == 1
    found = []
    with Session(config) as session:
        for alpha in config.alphas:
            one = config if single else config.at(alpha, config.out_dir / f"alpha-{spelled(alpha)}")
            try:
                found.append(train(one, session.accelerator, session.world))
            except torch.OutOfMemoryError:
                raise UserError(
                    "The device's memory ran out; lower --batch-size and --questions-per-step, or use "
                    "--precision bf16. Checkpoints are kept."
                ) from None
            for tracker in session.accelerator.trackers:
                tracker.finish()
            session.accelerator.trackers = []
            session.accelerator.free_memory()
        main_process = session.world.is_main
    if config.evaluate and main_process:
        print(sweep.trade_off(config, found), end="", flush=True)
    return found


def train(config: ContrastConfig, accelerator: Any, world: Any) -> Path:
    """One run, at one alpha. Every process of a group calls it. Returns the folder of the model."""
    import torch
    from tqdm import tqdm

    from nein.engine import environment
    from nein.engine.executors import read_ahead
    from train.contrast import data, export, objective, towers
    from train.contrast.features import Features
    from train.instruct import model, record
    from train.instruct.checkpoints import Checkpoints
    from train.instruct.order import reseed

    # ---------------------------------------------------------------------------------- processes and device
    environment.keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = accelerator.device
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for flag in ("batch_size", "questions_per_step"):
        if getattr(config, flag) % world.size:
            raise UserError(
                f"--{flag.replace('_', '-')} {getattr(config, flag)} cannot be shared by {world.size} "
                "processes; make it a multiple."
            )
    alpha = config.alphas[0]

    # ----------------------------------------------------------------------------------------- model and data
    tower = towers.load(config.base, str(device))
    corpus = data.load(config)
    reader = data.Reader(config, corpus)
    steps = reader.steps()
    run = record.Record(config, world, corpus.about, tower.dual.source.digest, steps)
    run.open()
    folder = config.out_dir / "model"
    if run.finished and folder.is_dir():
        run.say(f"Finished before: {folder}")
        return folder
    if config.warmup >= steps:
        run.say(
            f"Warning: the warm-up of {config.warmup} steps outlasts the run's {steps}; the learning rate "
            "never reaches its peak. Lower --warmup."
        )
    features = None
    if config.trainable == "text":
        features = Features(corpus, tower.dual, Path(config.features) if config.features else None)
        features.make(world)
        reader = data.Reader(config, corpus, features)

    # ---------------------------------------------------------------------------------------------- optimiser
    tower.learn(config.trainable)
    tower.to(device).train()
    names = [name for name, parameter in tower.named_parameters() if parameter.requires_grad]
    parameters = [parameter for parameter in tower.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        tower.groups(float(config.weight_decay)),
        lr=float(config.learning_rate),
        betas=(float(config.beta1), float(config.beta2)),
        eps=float(config.epsilon),
    )
    schedule = model.make_schedule(config, optimizer, steps)
    network, optimizer = accelerator.prepare(tower, optimizer)
    state: dict[str, Any] = {
        "names": names,
        "parameters": parameters,
        "average": None,
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
        members = reader.read(step, world.rank, world.size)

        def pictures(found: list[Any]) -> Any:
            if not found:
                return None
            return {"features": features.rows(found)} if features is not None else tower.pixels(found)

        texts = {text: None for options in members.options for text in options}  # each is read once
        places = {text: place for place, text in enumerate(texts)}
        return (
            pictures(members.pictures),
            tower.tokens(members.captions) if members.captions else None,
            pictures(members.question_pictures),
            tower.tokens(list(texts)) if texts else None,
            torch.tensor(members.correct),
            torch.tensor([[places[text] for text in options] for options in members.options]),
        )

    bar = tqdm(
        total=steps, initial=done, desc=f"alpha {spelled(alpha)}", unit="step", disable=not world.is_main
    )
    pending: list[tuple[int, Any]] = []  # tallies still on the device: reading one at once would stall it
    with record.terminable() as asked, contextlib.closing(bar):
        for step, parts in read_ahead(read, range(done, steps), config.workers):
            *inputs, correct, places = (export.place(part, device) for part in parts)
            reseed(config.seed, world.rank, step * config.batch_size)  # for towers with dropout
            image, text, asked_about, options, scale = network(*inputs)
            loss = torch.zeros((), device=device)
            if image is not None:
                loss = loss + alpha * objective.contrastive_loss(image, text, scale)
            if options is not None:
                options = options[places]  # (distinct sentences, D) -> (questions, options, D)
                loss = loss + (1 - alpha) * objective.choice_loss(asked_about, options, correct, scale)
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(parameters, config.clip or math.inf)
            rate = schedule.get_last_lr()[0]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if not accelerator.optimizer_step_was_skipped:
                schedule.step()
                tower.clamp()
            # ------------------------------------------------------------------------------------------------
            tally = torch.stack(
                [loss.detach(), torch.as_tensor(norm, device=device), loss.new_tensor(float(asked()))]
            )
            pending.append((step, accelerator.reduce(tally, "mean")))
            ends, saves = step + 1 == steps, (step + 1) % config.save_every == 0
            logs = (step + 1) % config.log_every == 0 or ends
            stops = False
            while len(pending) > (0 if logs or saves else 1):
                stops |= run.tally(*pending.pop(0), checkpoints.latest())
            if logs:
                run.log(step + 1, rate, bar, accelerator, reader.skipped)
            bar.update()
            if stops:
                while pending:
                    run.tally(*pending.pop(0), checkpoints.latest())
            if saves or ends or stops:
                if world.is_main:
                    checkpoints.save(step + 1, **state)
                world.barrier()
            if stops and not ends:
                raise Terminated

    # ------------------------------------------------------------------------------------------------ export
    if world.is_main:
        export.export(config, tower, run.facts())
        run.complete()
        run.say(f"Result: {folder}")
    world.barrier()
    return folder


if __name__ == "__main__":
    finish(main)
