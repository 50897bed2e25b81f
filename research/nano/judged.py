"""How well the nano editors do what they are told, affirmatively, as the nano judges see it.

    python -m research.nano.judged          # every shipped editor; writes judged.json and the card

On the development split only, and with affirmative instructions only: "Remove the X." on samples that hold X,
"Add a X." on the source pictures without it. Recipes are tuned by this.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from nein import editors, metrics
from nein.engine import atomic
from nein.engine.folder import sample_seed
from nein.metrics.judges.base import find_template
from nein.nano import zoo
from nein.nano.data import iter_samples
from nein.nano.scenes import render
from nein.wording.families import a_or_an
from research.nano.ship import write_card

EDITORS = ("ip2p", "magicbrush", "hqedit", "instructdiffusion")


def judge_editor(name: str, sources: int = 50, **overrides: Any) -> dict[str, Any]:
    """Shares in [0, 1]: removals and additions that succeed by each judge, and how often bystanders stay."""
    vqa = metrics.load_judge("vqa", str(zoo.ZOO / "llava"), device="cpu", dtype="float32")
    ovd = metrics.load_judge("ovd", str(zoo.ZOO / "owlv2"), device="cpu", dtype="float32")
    row = f"{name}-nano" if f"{name}-nano" in editors.PRESETS else "ip2p-nano"
    place = str(zoo.path(name))
    editor = editors.get_editor(row, checkpoint=place, device="cpu", dtype="float32", **overrides)
    samples = list(iter_samples("dev", sources))
    prompt = find_template(vqa.template)
    report: dict[str, Any] = {"samples": len(samples), "split": "dev"}
    for task in ("remove", "add"):
        pictures = [render(s.sample if task == "remove" else s.source) for s in samples]
        texts = [
            f"Remove the {s.object}." if task == "remove" else f"Add {a_or_an(s.object)}." for s in samples
        ]
        requests = [
            editors.EditRequest(s.nein, p, t, sample_seed(0, s.nein))
            for s, p, t in zip(samples, pictures, texts, strict=True)
        ]
        outputs: list[np.ndarray] = []
        for start in range(0, len(requests), 16):
            for result in editor.edit(requests[start : start + 16]):
                if result.image is None:
                    raise SystemExit(f"{name}: {result.error}")
                outputs.append(result.image)
        names = [[s.object, *(c for c in s.source.categories if c != s.object)] for s in samples]
        answers = vqa.ask(outputs, [[prompt.ask_presence(n) for n in row] for row in names])
        detected = ovd.detect(outputs, names)
        there = {
            "vqa": [[a.text.lower().startswith("yes") for a in row] for row in answers],
            "ovd": [[f[n].count > 0 for n in row] for f, row in zip(detected, names, strict=True)],
        }
        for judge, rows in there.items():
            hit = [row[0] == (task == "add") for row in rows]
            bystanders = [k for row in rows for k in row[1:]]
            report[f"{task}_{judge}"] = round(float(np.mean(hit)), 4)
            report[f"{task}_bystanders_{judge}"] = round(float(np.mean(bystanders)), 4)
    return report


def main() -> None:
    for name in EDITORS:
        record = judge_editor(name)
        atomic.write_json(zoo.ZOO / name / "judged.json", record)
        write_card(zoo.ZOO / name)
        print(name, json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
