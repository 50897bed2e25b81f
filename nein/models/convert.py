"""`nein convert`: a checkpoint in the original format, once, into a folder of tensors and configurations.

Training checkpoints of PyTorch Lightning hold callbacks, counters and optimizer state beside the tensors, as
pickled objects. Here every such object is replaced by an inert placeholder: no class of the file is imported
and no function of it is called: a file that would do harm does none. Written are safetensors and JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from nein.config.options import Options, argument, option
from nein.loading.digests import file_sha256
from nein.loading.errors import UserError
from nein.loading.references import TEXTS, Need


@dataclass(kw_only=True)
class ConvertConfig(Options):
    """Which file, and where to."""

    epilog = "Then: nein eval --editor FOLDER, or --editor magicbrush=FOLDER for that editor's settings."

    source: Path = argument("IN", "file you vouch for: .ckpt, .pt, .safetensors")
    folder: Path = argument("OUT", "folder to write; must not exist")
    ema: bool | None = option(None, "take averaged weights (or not); required if the file has both")
    base: str | None = option(None, "folder or hub id of configurations and tokenizer")

    def needs(self) -> list[Need]:
        from nein.editors import DEFAULT_CONFIG

        return [*filter(None, [Need.of(self.base or DEFAULT_CONFIG, files=TEXTS)])]


def run(options: ConvertConfig) -> None:
    """The command. Raises UserError or EditorError."""
    convert(options.source, options.folder, ema=options.ema, config=options.base)


def convert(source: Path, folder: Path, *, ema: bool | None = None, config: str | None = None) -> Path:
    """Write `source` as a folder in diffusers' layout, float32; returns it. Raises UserError, EditorError.

    source  .safetensors, .ckpt, .pt, .pth or .bin file in the original latent-diffusion format.
    folder  Must not exist; appears only once it is complete.
    ema     Which set of UNet weights, where the file holds both.
    config  Folder or hub id with the configurations and the tokenizer; default timbrooks/instruct-pix2pix.
    """
    if not source.is_file():
        raise UserError(f"There is no file '{source}'; give the checkpoint to convert.")
    if not folder.absolute().parent.is_dir():
        raise UserError(f"The parent of '{folder}' does not exist; make it first.")
    import torch

    from nein.editors.checkpoint import ORIGIN, explained, read_file
    from nein.metrics.loading import new_folder

    with new_folder(folder) as draft, explained(str(source)):
        pipeline, origin = read_file(source, ema=ema, config=config, vouched=True)
        pipeline.to(torch.float32)  # one type for every part, or plain `from_pretrained` mixes them
        pipeline.save_pretrained(draft, safe_serialization=True)
        facts = {**origin, "sha256": file_sha256(source)}
        if config is not None and Path(config).exists():
            facts["config"] = Path(config).name  # a path means nothing on another machine
        (draft / ORIGIN).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    sets = {True: "averaged (EMA)", False: "trained, not averaged (non-EMA)", None: "the file's only ones"}
    print(f"{folder}: a pipeline in diffusers' layout; weights of the UNet: {sets[origin['ema']]}.")
    if origin["left_out"]:
        print(f"Not read: {', '.join(origin['left_out'])}.")
    return folder
