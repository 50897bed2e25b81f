"""What comes out of a run: a model folder in its library's layout, with a card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nein.nano.worlds import is_nano
from nein.train.contrast.options import ContrastConfig
from nein.train.contrast.towers import Tower
from nein.train.export import MODEL, card, finished_model, portable, without_paths

#: Options that a card states also where they have their defaults.
ALWAYS = (
    "alpha",
    "trainable",
    "batch_size",
    "questions_per_step",
    "learning_rate",
    "weight_decay",
    "precision",
)
NANO = (
    "Drawn scenes of 64x64 pixels are all it has learned: its figures are real measurements of a miniature "
    "model and not comparable with a paper's."
)


def place(part: Any, device: torch.device) -> Any:
    """A tensor, a dictionary of tensors, or None, on a device."""
    if isinstance(part, dict):
        return {key: value.to(device, non_blocking=True) for key, value in part.items()}
    return part.to(device, non_blocking=True) if isinstance(part, torch.Tensor) else part


def export(config: ContrastConfig, tower: Tower, facts: Mapping[str, Any]) -> Path:
    """Writes OUT/model, whole or not at all, and returns it."""
    facts = portable(facts)
    with finished_model(config.out_dir, facts, describe(config, facts)) as draft:
        tower.save(draft)
        without_paths(draft)
    return config.out_dir / MODEL


def describe(config: ContrastConfig, facts: Mapping[str, Any]) -> str:
    """The model card: what it is, what it learned from, how to use it."""
    data, alpha = facts["data"], config.alphas[0]
    words = [
        f"Started from `{facts['base']}` (weights {facts['base_weights_sha256'][:12]}). Trained with "
        f"NegBench's objective, {alpha:g} x contrastive loss over negated captions + {1 - alpha:g} x "
        "cross-entropy over multiple-choice options (Alhamoud et al., CVPR 2025).",
        f"{facts['steps']} steps of {config.batch_size} captions and {config.questions_per_step} questions, "
        f"from {data['rows_of_captions']} rows of captions ({data['captions']}) and "
        f"{data['number_of_questions']} questions ({data['questions']}), in {facts['seconds']} s on "
        f"{facts['processes']} process(es).",
        NANO if any(is_nano(data[key]) for key in ("captions", "questions")) else "",
        "Evaluate: `nein negbench eval --model FOLDER`.",
    ]
    tags = ["tags: [nein, negbench, clip, negation]"]
    return card(facts, tags, "A CLIP fine-tuned on negation", words, ContrastConfig().identity(), ALWAYS)
