"""`nein negbench convert`: a checkpoint file, once, into a folder of safetensors.

    nein negbench convert --architecture ViT-B-32 negclip.pth negclip
    nein negbench eval --preset paper --model negclip=negclip ...
    nein negbench convert --architecture dcsm dcsm_coco_ckpt.pt dcsm
    nein negbench eval --preset paper --match dcsm ...

NegCLIP, ConCLIP and NegBench's fine-tuned models are PyTorch pickles. They are read with `weights_only=True`,
which builds tensors and runs nothing else of the file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from nein.config.options import Options, argument, option
from nein.engine import atomic
from nein.engine.errors import UserError

#: Methods with a head of their own, `metrics.judges.methods.METHODS`.
METHODS = ("clipglasses", "dcsm")


@dataclass(kw_only=True)
class ConvertConfig(Options):
    """Which file, what it is, and where to."""

    epilog = (
        "Then: nein negbench eval --model FOLDER, or --model negclip=FOLDER for that model's name; of a "
        "method --match FOLDER."
    )

    source: Path = argument("IN", ".pt, .pth, .bin, .ckpt (tensors only) or .safetensors")
    folder: Path = argument("OUT", "folder to write; must not exist")
    architecture: str = option(
        "",
        "open_clip's name for it, such as ViT-B-32, a JSON file with its configuration, or a method: "
        "clipglasses, dcsm; needed",
    )
    quick_gelu: bool = option(
        False,
        "the model computes with QuickGELU, as OpenAI's do; the released scripts run the checkpoint files "
        "without",
    )
    base: str = option("", "of a method: folder or hub id of the CLIP it stands on (default: its authors')")

    def check(self) -> None:
        if not self.architecture:
            raise UserError("nein negbench convert needs --architecture NAME, such as ViT-B-32.")
        if self.architecture in METHODS and self.quick_gelu:
            raise UserError(f"--quick-gelu says nothing of {self.architecture}, whose CLIP says it itself.")
        if self.architecture not in METHODS and self.base:
            raise UserError(f"--base says what a method ({', '.join(METHODS)}) stands on.")


def run(options: ConvertConfig) -> None:
    """The command. Raises UserError or MetricError."""
    if not options.source.is_file():
        raise UserError(f"There is no file '{options.source}'; give the checkpoint to convert.")
    if not options.folder.absolute().parent.is_dir():
        raise UserError(f"The parent of '{options.folder}' does not exist; make it first.")
    from metrics.dual import openclip
    from metrics.judges import methods
    from nein.loading.digests import file_sha256

    if options.architecture in METHODS:
        facts = methods.convert(
            options.source, options.folder, method=options.architecture, base=options.base
        )
    else:
        facts = openclip.convert(
            options.source, options.folder, architecture=options.architecture, quick_gelu=options.quick_gelu
        )
    origin = {"file": options.source.name, "sha256": file_sha256(options.source), **facts}
    atomic.write_text(options.folder / "origin.json", json.dumps(origin, indent=2) + "\n")
    print(f"{options.folder}: {facts['tensors']} tensors of {options.architecture}, as safetensors.")
