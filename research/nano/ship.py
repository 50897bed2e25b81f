"""What goes into the zoo: changed tensors, records, cards; and fine-tuned editors as a whole.

python -m research.nano.ship runs/finetune/nein-ip2p nein-ip2p --report runs/report/figures.csv
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from nein.cli import launch
from nein.config.groups import Command
from nein.config.options import Options, argument, option
from nein.engine import atomic
from nein.engine.exits import exit_with
from nein.loading.errors import UserError, unknown
from nein.nano import zoo
from nein.reporting import figures as frames
from nein.reporting import tables
from research.nano.editors import save_half

#: The fine-tuned editors that ship.
NAMES = ("nein-ip2p", "nein-magicbrush")


@dataclass(kw_only=True)
class ShipConfig(Options):
    """What is put into the zoo."""

    run: Path = argument("RUN", "finished folder of train/finetune_ip2p.py")
    name: str = argument("NAME", f"one of {', '.join(NAMES)}")
    report: Path | None = option(
        None, "for the card: nein compare EVAL --track all --baseline BEFORE --format csv"
    )


METRICS = tuple(f"{what}_{judge}" for what in ("removal", "retention") for judge in ("vqa", "ovd"))
COMMAND = Command(
    "put a fine-tuned nano editor into the zoo", "research.nano.ship:ShipConfig", "research.nano.ship:run"
)


#: Records of a model's folder -> their headings in its card.
RECORDS = {
    "training-vae.json": "VAE",
    "training-base.json": "Base",
    "training-first.json": "First part",
    "training.json": "Training",
    "judged.json": "As judged",
}


def write_card(folder: Path) -> None:
    """README.md of a model that ships: the words of its shipped card, with tables from its records; nothing
    for a model that does not ship."""
    shipped = zoo.ZOO / folder.name / "README.md"
    if not shipped.is_file():
        return
    words = shipped.read_text(encoding="utf-8").rstrip("\n")
    story, reproduce = words.partition("\n\n## ")[0], words.rpartition("\n")[2]
    parts = [story]
    for file, heading in RECORDS.items():
        if (folder / file).exists():
            parts.append(
                f"## {heading}\n\n| | |\n|---|---|\n" + "\n".join(_rows(atomic.read_json(folder / file)))
            )
    (folder / "README.md").write_text("\n\n".join([*parts, reproduce]) + "\n", encoding="utf-8")


def _rows(record: dict[str, Any]) -> list[str]:
    cells = {
        key: ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        for key, value in record.items()
    }
    return [f"| {key.replace('_', ' ')} | {value} |" for key, value in cells.items()]


def changes(tuned: Path, base: Path) -> dict[str, np.ndarray]:
    """The tensors of a file, as float16, that differ from those of the base after the same rounding."""
    after, before = safetensors.numpy.load_file(tuned), safetensors.numpy.load_file(base)
    if after.keys() != before.keys():
        raise UserError(f"'{tuned}' and '{base}' are models of different layouts.")
    halves = {name: after[name].astype(np.float16) for name in sorted(after)}
    return {
        name: half
        for name, half in halves.items()
        if not np.array_equal(half, before[name].astype(np.float16))
    }


def keep_changes(model: Any, processor: Any, folder: Path, base: Path, files: Sequence[str] = ()) -> None:
    """Writes into `folder` what a model of transformers does not share with the one in the folder `base`:
    the tensors that differ, and `files` of what model and processor save."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as draft:
        save_half(model, Path(draft))
        processor.save_pretrained(draft)
        changed = changes(Path(draft) / zoo.MODEL, base / zoo.MODEL)
        folder.mkdir(parents=True, exist_ok=True)
        safetensors.numpy.save_file(changed, folder / zoo.MODEL_CHANGES, {"base": base.name})
        for name in files:
            shutil.copyfile(Path(draft) / name, folder / name)


def ship(run: Path, name: str, report: Path | None = None, root: Path = zoo.ZOO) -> Path:
    """Writes the folder of `name` below the zoo `root` from the finished run folder `run`."""
    if name not in NAMES:
        raise unknown("fine-tuned nano editor", name, NAMES)
    record = atomic.read_json(run / "model" / "training.json")
    base = str(record["base"]).removeprefix("nano:")
    if base != name.removeprefix("nein-"):
        raise UserError(f"'{run}' started from '{record['base']}', which is not what {name} is made from.")
    changed = changes(run / "model" / zoo.UNET, root / base / zoo.UNET)
    folder = root / name
    content = safetensors.numpy.save(changed, {"base": base})
    atomic.write_bytes(folder / zoo.CHANGES, content)
    atomic.write_json(folder / "training.json", shown(record))
    if report is not None:
        atomic.write_json(folder / "judged.json", judged(report, name))
    write_card(folder)
    return folder


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """What the card says of the training, from the record of the run."""
    options, data = record["options"], record["data"]
    return {
        "base": record["base"],
        "base_weights_sha256": record["base_weights_sha256"],
        "trainable": options["trainable"],
        "steps": record["steps"],
        "batch": options["batch_size"],
        "learning_rate": options["learning_rate"],
        "seconds": record["seconds"],
        "samples": data["used"],
        "hold_out_objects": ", ".join(data["hold_out_objects"]),
        "hold_out_templates": ", ".join(str(t) for t in data["hold_out_templates"]),
        "mix_affirmative": options["mix_affirmative"],
        "affirmative_pairs": (data.get("affirmative") or {}).get("pairs", 0),
        "seed": options["seed"],
        "torch": record["torch"],
    }


def judged(report: Path, name: str) -> dict[str, Any]:
    """The figures of a comparison with the editor before it, for the card: "track: metric" -> both."""
    told: dict[str, Any] = {}
    figures = frames.select(frames.read(report), task="comparisons", metric=METRICS)
    for gain in frames.records(frames.select(figures, statistic="difference")):
        pair = {key: gain[key] for key in ("first", "second", "metric")}
        sides = (frames.pick(figures, statistic=side, **pair) for side in ("second", "first"))
        before, after = (tables.format_estimate(side, interval="none") for side in sides if side is not None)
        told[f"{gain['first'].rpartition('/')[2]}: {gain['metric']}"] = (
            f"{before} before, {after} after, difference {tables.format_estimate(gain)}, n {gain['n']}"
        )
    if not told:
        raise UserError(f"'{report}' has no figures for {name}.")
    return told


def run(config: ShipConfig) -> str:
    folder = ship(config.run, config.name, config.report)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return json.dumps({"folder": str(folder), "bytes": size}) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    return launch("python -m research.nano.ship", COMMAND, argv)


if __name__ == "__main__":
    exit_with(main)
