"""The command `nein-negbench`: a table of subcommands, each imported only when it is called."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence

from nein.engine.errors import unknown

PROG = "nein-negbench"

#: Name -> (where its function of the remaining arguments is, what `--help` says).
SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "eval": (
        "nein.benchmarks.negbench.command:evaluate",
        "retrieval and multiple choice, with negated captions",
    ),
    "analyse": (
        "nein.benchmarks.negbench.analysis.command:main",
        "how text encoders place negated templates",
    ),
    "build": ("nein.generate.negbench.command:main", "data: negated captions, questions, hard pairs"),
    "nano": ("train.contrast.study:main", "the whole study on drawn scenes: measure, fine-tune, trade-off"),
    "convert": (
        "nein.benchmarks.negbench.convert:main",
        "a checkpoint file of open_clip as a folder of safetensors",
    ),
}


def main(argv: Sequence[str]) -> int | None:
    """Runs `nein-negbench argv`. Raises UserError for an unknown subcommand."""
    arguments = list(argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0 if arguments else 2
    name = arguments[0]
    if name not in SUBCOMMANDS:
        raise unknown(f"subcommand of {PROG}", name, SUBCOMMANDS)
    return pkgutil.resolve_name(SUBCOMMANDS[name][0])(arguments[1:])


def evaluate(argv: Sequence[str]) -> None:
    """`nein-negbench eval`."""
    from nein.benchmarks.negbench.config import parse
    from nein.config.launch import launch

    launch(*parse(argv), "nein.benchmarks.negbench.run:evaluate", results=True)


def _help() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in SUBCOMMANDS.items()]
    return (
        f"usage: {PROG} SUBCOMMAND [OPTIONS]\n\n"
        "NegBench: how well vision-language models understand negation.\n\n"
        + "\n".join(lines)
        + f"\n\n{PROG} SUBCOMMAND --help says more. Documentation: README.md."
    )
