"""Fine-tune a CLIP on negated captions and multiple-choice questions (NegBench).

    python train/finetune_clip.py --out runs/clip                        # nano: minutes on two CPU cores
    python train/finetune_clip.py --alpha 0,0.5,0.9,0.99,1 --out runs/sweep
    accelerate launch train/finetune_clip.py --preset paper --captions negcap.csv --questions negmcq.csv

The loss is alpha L_CLIP + (1 - alpha) L_MCQ (contrastive loss, multiple choice), one batch of each per step.
OUT/model is a model folder; with several alphas, OUT/alpha-<value>/model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # started as a file
    sys.path.insert(0, str(ROOT))

from nein.engine.exits import exit_with  # noqa: E402
from nein.loading.errors import UserError  # noqa: E402
from nein.train.clip_finetuning.options import ClipConfig, format_alpha  # noqa: E402

if TYPE_CHECKING:
    from nein.train.loop import Session


def main(argv: Sequence[str] | None = None) -> int:
    return ClipConfig.main(run, argv)


def run(config: ClipConfig) -> list[Path]:
    """Train at every value of alpha; returns the model folders in that order."""
    from nein.train.loop import Session

    models = []
    with Session(config) as session:
        for alpha in config.alphas:
            variant = config
            if len(config.alphas) > 1:
                variant = config.with_alpha(alpha, config.out_dir / f"alpha-{format_alpha(alpha)}")
            models.append(train(variant, session))
            session.free_models()
    return models


def train(config: ClipConfig, session: Session) -> Path:
    """Train at one alpha; called by every process of a group. Returns the model folder."""
    import torch
    from accelerate.utils import send_to_device

    from nein.train import loop
    from nein.train.checkpoints import State
    from nein.train.clip_finetuning import data, towers
    from nein.train.export import MODEL, write_model
    from nein.train.features import seed_step
    from nein.train.loop import Record

    # -------------------------------------------------------------------------------- processes and batches
    accelerator, processes, device = session.accelerator, session.processes, session.accelerator.device
    counts = {"--batch-size": config.batch_size, "--questions-per-step": config.questions_per_step}
    for flag, count in counts.items():
        if count % processes.size:
            raise UserError(
                f"{flag} {count} does not divide into {processes.size} processes; pass a multiple."
            )
    alpha = config.alphas[0]

    # ----------------------------------------------------------------------------------------- model and data
    tower = towers.load(config.base, str(device))
    if config.words:
        tower.add_words(config.words)
    corpus = data.load(config)
    steps = towers.count_steps(config, corpus)
    digest = tower.dual.source.digest  # of the weights
    record = Record(config, session, data=corpus.facts, base_sha256=digest, steps=steps)
    record.open()
    folder = config.out_dir / MODEL
    if folder.is_dir():
        record.complete()  # again: a kill may have come before
        record.say(f"Already finished: {folder}")
        return folder
    if config.warmup >= steps:
        record.say(
            f"Warning: --warmup {config.warmup} is at least the run's {steps} steps; the learning rate never "
            "reaches its peak. Lower it."
        )
    features = None
    if config.trainable == "text":
        features = data.Features(corpus, tower.dual, Path(config.features) if config.features else None)
        features.make(processes, config.workers)
    reader = data.Reader(config, corpus, features)

    # ---------------------------------------------------------------------------------------------- optimizer
    tower.choose_weights(config.trainable)
    tower.to(device).train()
    names = [name for name, parameter in tower.named_parameters() if parameter.requires_grad]
    parameters = [parameter for parameter in tower.parameters() if parameter.requires_grad]
    optimizer = config.adamw(tower.parameter_groups(config.weight_decay))
    schedule = towers.make_schedule(config, optimizer, corpus)
    network, optimizer = accelerator.prepare(tower, optimizer)
    state = State(names, parameters, optimizer, schedule)

    # -------------------------------------------------------------------------------------------------- loop
    def read(step: int) -> tuple[Any, ...]:
        """This process's part of a step, as inputs of the towers, on the CPU."""
        members = reader.read(step, processes.rank, processes.size)

        def prepare(images: list[Any]) -> towers.Inputs:
            if not images:
                return None
            if features is not None:
                return {"features": features.read_rows(images)}
            return tower.preprocess(images)

        # Distinct options, each encoded once, and the row of each.
        texts = list(dict.fromkeys(text for options in members.options for text in options))
        rows = {text: row for row, text in enumerate(texts)}
        return (
            prepare(members.images),
            tower.tokenize(members.captions) if members.captions else None,
            prepare(members.question_images),
            tower.tokenize(texts) if texts else None,
            torch.tensor(members.correct),  # (Q,) index of the right option
            torch.tensor([[rows[text] for text in options] for options in members.options]),  # (Q, options)
        )

    def learn(step: int, parts: tuple[Any, ...]) -> loop.Loss:
        *inputs, correct, option_rows = send_to_device(parts, device, non_blocking=True)
        seed_step(config.seed, processes.rank, step * config.batch_size)  # for towers with dropout
        # (B, D), (B, D), (Q, D), (distinct texts, D), ()
        image, text, question_image, options, scale = network(*inputs)
        loss = torch.zeros((), device=device)
        if image is not None:
            loss = loss + alpha * towers.contrastive_loss(image, text, scale)
        if options is not None:
            options = options[option_rows]  # (distinct texts, D) => (Q, options, D)
            loss = loss + (1 - alpha) * towers.choice_loss(
                question_image, options, correct, scale, config.protocol
            )
        accelerator.backward(loss)
        return loss.detach(), {}

    loop.run(
        record,
        state,
        read=read,
        step=learn,
        after=lambda step: tower.clamp_scale(),
        skipped=reader.skipped,
        title=f"alpha {format_alpha(alpha)}",
    )

    # ------------------------------------------------------------------------------------------------ export
    if processes.is_main:
        facts = record.facts()
        with write_model(config.out_dir, facts, towers.write_card(config, facts)) as draft:
            tower.save(draft)
        record.complete()
        record.say(f"Result: {folder}")
    processes.barrier()
    return folder


if __name__ == "__main__":
    exit_with(main)
