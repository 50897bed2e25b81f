"""Commands of `nein` that train something, by entry points of pyproject.toml. Imports nothing heavy."""

from nein.config.commands import Command

NEGBENCH_NANO = Command(
    "the whole study on drawn scenes: measure, fine-tune, trade-off",
    "train.contrast.options:StudyConfig",
    "train.study:study",
)
