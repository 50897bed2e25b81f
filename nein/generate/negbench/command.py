"""`nein-negbench build`: what it does once its options are known.

OUT/build.json            manifest: configuration, models, environment, counts
OUT/list/                 the images, cut into shards once
OUT/work/journal/*.jsonl  append-only: one line per shard, stage and worker; OUT/work/claims: who is at work
OUT/work/answers.sqlite   every answer of the language model
OUT/dataset/              CSV files in the official layout, a card, and pictures that were drawn or made
OUT/unusable.jsonl        images that yield nothing, with the reason
"""

from __future__ import annotations

from collections.abc import Sequence

from nein.config.launch import launch
from nein.generate.negbench.config import parse


def main(argv: Sequence[str]) -> None:
    """`nein-negbench build ARGV`. Under `accelerate launch` the processes share the shards."""
    launch(*parse(argv), "nein.generate.negbench.build:build")
