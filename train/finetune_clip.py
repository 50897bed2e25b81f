"""Fine-tune a CLIP on negated captions and multiple-choice questions, as NegBench does.

    python train/finetune_clip.py --out runs/clip                        # nano: minutes on two CPU cores
    python train/finetune_clip.py --alpha 0,0.5,0.9,0.99,1 --out runs/sweep
    accelerate launch train/finetune_clip.py --preset paper --captions negcap.csv --questions negmcq.csv

L = alpha L_CLIP + (1 - alpha) L_MCQ, one batch of each per step. OUT/model is a model folder.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from nein.engine.machine import exit_with  # noqa: E402
from nein.loading.errors import UserError  # noqa: E402
from nein.train.clip_finetuning.options import ContrastConfig, spelled  # noqa: E402

if TYPE_CHECKING:
    from nein.train.loop import Session


def main(argv: Sequence[str] | None = None) -> int:
    return ContrastConfig.main(run, argv)


def run(config: ContrastConfig) -> list[Path]:
    """Trains at every value of alpha; the folders of the models, in that order."""
    from nein.train.loop import Session

    single = len(config.alphas) == 1
    models = []
    with Session(config) as session:
        for alpha in config.alphas:
            variant = config if single else config.at(alpha, config.out_dir / f"alpha-{spelled(alpha)}")
            models.append(train(variant, session))
            session.forget()
    return models


def train(config: ContrastConfig, session: Session) -> Path:
    """One run, at one alpha. Every process of a group calls it. Returns the folder of the model."""
    import torch
    from accelerate.utils import send_to_device

    from nein.train import loop
    from nein.train.clip_finetuning import data, towers
    from nein.train.export import finished_model
    from nein.train.features import reseed
    from nein.train.loop import Record, State

    # -------------------------------------------------------------------------------- processes and batches
    accelerator, world, device = session.accelerator, session.processes, session.accelerator.device
    for flag in ("batch_size", "questions_per_step"):
        if getattr(config, flag) % world.size:
            raise UserError(
                f"--{flag.replace('_', '-')} {getattr(config, flag)} cannot be shared by {world.size} "
                "processes; make it a multiple."
            )
    alpha = config.alphas[0]

    # ----------------------------------------------------------------------------------------- model and data
    tower = towers.load(config.base, str(device))
    if config.words:
        tower.teach(config.words)
    corpus = data.load(config)
    steps = towers.steps(config, corpus)
    record = Record(config, session, corpus.facts, tower.dual.source.digest, steps)
    record.open()
    folder = config.out_dir / "model"
    if folder.is_dir():
        record.complete()
        record.say(f"Finished before: {folder}")
        return folder
    if config.warmup >= steps:
        record.say(
            f"Warning: the warm-up of {config.warmup} steps outlasts the run's {steps}; the learning rate "
            "never reaches its peak. Lower --warmup."
        )
    features = None
    if config.trainable == "text":
        features = data.Features(corpus, tower.dual, Path(config.features) if config.features else None)
        features.make(world, config.workers)
    reader = data.Reader(config, corpus, features)

    # ---------------------------------------------------------------------------------------------- optimiser
    tower.learn(config.trainable)
    tower.to(device).train()
    names = [name for name, parameter in tower.named_parameters() if parameter.requires_grad]
    parameters = [parameter for parameter in tower.parameters() if parameter.requires_grad]
    optimizer = config.adamw(tower.groups(config.weight_decay))
    rate = towers.make_schedule(config, optimizer, corpus)
    network, optimizer = accelerator.prepare(tower, optimizer)
    state = State(names, parameters, optimizer, rate)

    # -------------------------------------------------------------------------------------------------- loop
    def read(step: int) -> tuple[Any, ...]:
        """This process's part of a step, as the towers take it, on the CPU."""
        members = reader.read(step, world.rank, world.size)

        def inputs(pictures: list[Any]) -> Any:
            if not pictures:
                return None
            return {"features": features.rows(pictures)} if features is not None else tower.pixels(pictures)

        texts = {text: None for options in members.options for text in options}  # each is read once
        places = {text: index for index, text in enumerate(texts)}
        return (
            inputs(members.images),
            tower.tokens(members.captions) if members.captions else None,
            inputs(members.asked),
            tower.tokens(list(texts)) if texts else None,
            torch.tensor(members.correct),  # (questions,)
            torch.tensor([[places[text] for text in options] for options in members.options]),
        )

    def learn(step: int, parts: tuple[Any, ...]) -> loop.Loss:
        *inputs, correct, places = send_to_device(parts, device, non_blocking=True)
        reseed(config.seed, world.rank, step * config.batch_size)  # for towers with dropout
        image, text, asked_about, options, scale = network(*inputs)  # (B, D), (B, D), (Q, D), (texts, D), ()
        loss = torch.zeros((), device=device)
        if image is not None:
            loss = loss + alpha * towers.contrastive_loss(image, text, scale)
        if options is not None:
            options = options[places]  # texts, D => Q, options, D
            loss = loss + (1 - alpha) * towers.choice_loss(
                asked_about, options, correct, scale, config.protocol
            )
        accelerator.backward(loss)
        return loss.detach(), {}

    loop.run(
        record,
        state,
        read=read,
        step=learn,
        after=lambda step: tower.clamp(),
        skipped=reader.skipped,
        title=f"alpha {spelled(alpha)}",
    )

    # ------------------------------------------------------------------------------------------------ export
    if world.is_main:
        with finished_model(config.out_dir, record.facts(), partial(towers.describe, config)) as draft:
            tower.save(draft)
        record.complete()
        record.say(f"Result: {folder}")
    world.barrier()
    return folder


if __name__ == "__main__":
    exit_with(main)
