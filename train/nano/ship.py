"""Puts a fine-tuned nano editor into the zoo: the tensors of its UNet that changed, its record, its card.

python -m train.nano.ship runs/finetune/nein-ip2p nein-ip2p
python -m train.nano.ship runs/finetune/nein-ip2p nein-ip2p --report runs/report/report.csv
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from nein.engine import atomic
from nein.engine.errors import UserError, unknown
from nein.nano import zoo
from train.nano.cards import write_card

NAMES = ("nein-ip2p", "nein-magicbrush")
KEPT = ("removal_vqa", "removal_ovd", "retention_vqa", "retention_ovd")


def changes(tuned: Path, base: Path) -> dict[str, np.ndarray]:
    """The tensors of a UNet file, as float16, that differ from those of the base after the same rounding."""
    after, before = safetensors.numpy.load_file(tuned), safetensors.numpy.load_file(base)
    if after.keys() != before.keys():
        raise UserError(f"'{tuned}' and '{base}' are UNets of different layouts.")
    halves = {name: after[name].astype(np.float16) for name in sorted(after)}
    return {
        name: half
        for name, half in halves.items()
        if not np.array_equal(half, before[name].astype(np.float16))
    }


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
    """The figures of a report.csv for the card: "task, group: metric" -> before and after."""
    figures: dict[str, Any] = {}
    for row in csv.DictReader(report.read_text(encoding="utf-8").splitlines()):
        if row["metric"] not in KEPT or not row["after"] or not row["before"]:
            continue
        key = f"{row['task']}, {row['group']}: {row['metric']}"
        if row["task"] == "add":
            key = key.replace("removal", "added")
        interval = f"[{100 * float(row['after_low']):.1f}, {100 * float(row['after_high']):.1f}]"
        before, after = 100 * float(row["before"]), 100 * float(row["after"])
        figures[key] = f"{before:.1f} before, {after:.1f} {interval} after, n {row['n']}"
    if not figures:
        raise UserError(f"'{report}' has no figures for {name}.")
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m train.nano.ship", description="Put a fine-tuned nano editor into the zoo."
    )
    parser.add_argument("run", type=Path, help="finished folder of train/finetune_ip2p.py")
    parser.add_argument("name", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--report", type=Path, help="report.csv of train.instruct.report, for the card")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    folder = ship(options.run, options.name, options.report)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(json.dumps({"folder": str(folder), "bytes": size}))
    return 0


if __name__ == "__main__":
    from nein.engine.exits import exit_with

    exit_with(main)
