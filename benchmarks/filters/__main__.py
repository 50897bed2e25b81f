"""How right every stage of a miniature build was, and how often the measurement of that errs.

    nein generate --preset nano --out runs/build; python -m benchmarks.filters runs/build [--editor nano:ip2p]

What a source scene of the nano world holds is known; what a generated picture holds is measured from its
pixels (`benchmarks.filters.truth`). A candidate is good when its object is there and so are all others.
Precision: share of the passed that are good; recall: share of the good that passed; 95 % intervals,
clustered by source image. Prints two tables in Markdown. Results: research/notes/nein-data.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.filters import truth
from nein import statistics
from nein.engine import atomic, images
from nein.engine.processes import cores
from nein.generate.nein import algorithms
from nein.generate.nein.sources import NANO_SPLIT
from nein.models import references
from nein.nano.data import source_scene
from nein.nano.draw import SIZE
from nein.reporting import format
from nein.reporting.tables import pipes

Row = Mapping[str, Any]
TESTS = "object there", "all others there", "both"


def stages_right(
    candidates: Sequence[Row], queried: Iterable[Row], below: float, pictures: Path, threads: int = 1
) -> dict[str, dict[str, Any]]:
    """Per stage the share of right decisions, each {"value", "low", "high", "n"}.

    candidates  Lines of candidates.jsonl; queried: its lines about images; below: `--absent-below`.
    """

    def look(way: Row) -> dict[str, Any] | None:
        """Whether the picture shows the object asked for, and every other of the source as it was, and which
        stages it came through; None for pictures that are missing or of another size."""
        made = way["generated_picture"]
        if way["match"] is None or made["image"] is None or (made["width"], made["height"]) != (SIZE, SIZE):
            return None
        scene, picture = _scene(way["source"]), images.decode(pictures / made["image"])
        there, intact = truth.is_present(picture, scene, way["object"]), truth.all_intact(picture, scene)
        return {
            "image": way["source"], "object there": there, "all others there": intact,
            "both": there and intact, "generated": True, "filter 1": way["ask"] is not None,
            "filter 2": way["verdict"] == algorithms.ACCEPTED,
        }  # fmt: skip

    with ThreadPoolExecutor(threads) as pool:
        seen = [row for row in pool.map(look, candidates) if row is not None]

    def share(name: str, *stages: str) -> dict[str, Any]:
        """Of the pictures that came through the stages."""
        return _share((row[name], row["image"]) for row in seen if all(row[stage] for stage in stages))

    def filtered(before: str, after: str) -> dict[str, Any]:
        rates = {"precision": share("both", after), "recall": share(after, before, "both")}
        for name in TESTS[:2]:
            rates |= {f"{name}, before": share(name, before), f"{name}, after": share(name, after)}
        return rates

    lacking = [
        (row["cosine"] < below, image["image"])
        for image in queried
        for row in image["queried"]
        if row["object"] not in _scene(image["image"]).categories
    ]
    right = [(way["object"] not in _scene(way["source"]).categories, way["source"]) for way in candidates]
    both = filtered("generated", "filter 2")
    return {
        "clauses": {"precision": _share(right), "recall of the threshold": _share(lacking)},
        "generate": {name: share(name, "generated") for name in TESTS},
        "filter 1": filtered("generated", "filter 1"),
        "filter 2": filtered("filter 1", "filter 2"),
        "both filters": {name: both[name] for name in ("precision", "recall")},
    }


def _scene(name: str) -> Any:
    """The scene of a source image, by its number in the list from 1."""
    return source_scene(NANO_SPLIT, int(name[-12:]) - 1)


def _share(right: Iterable[tuple[bool, str]]) -> dict[str, Any]:
    """Of (whether it is right, source image)."""
    pairs = list(right)
    estimate = statistics.bounded_mean([float(ok) for ok, _ in pairs], [image for _, image in pairs])
    return {name: getattr(estimate, name, None) for name in ("value", "low", "high")} | {"n": len(pairs)}


def autoencoder(editor: str) -> Callable[[np.ndarray], np.ndarray]:
    """An editor's own encoder and decoder as a function of a picture."""
    import torch
    from diffusers import AutoencoderKL

    vae = AutoencoderKL.from_pretrained(Path(references.resolve(editor)) / "vae").eval()

    @torch.no_grad()
    def rebuild(picture: np.ndarray) -> np.ndarray:
        pixels = torch.from_numpy(picture.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1
        back = vae.decode(vae.encode(pixels).latent_dist.mode()).sample[0].permute(1, 2, 0)
        return ((back.clamp(-1, 1) + 1) * 127.5).round().byte().numpy()

    return rebuild


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="of nein generate --preset nano")
    parser.add_argument("--editor", default="nano:ip2p", help="the editor of that build")
    options = parser.parse_args()
    below = atomic.read_json(options.out / "card.json")["configuration"]["absent_below"]
    lines = list(atomic.checked_lines(options.out / "candidates.jsonl"))
    candidates, asked = [row for row in lines if "verdict" in row], [row for row in lines if "queried" in row]
    found = stages_right(candidates, asked, below, options.out / "work" / "pictures", cores())
    rows = [
        [stage, name, format.text({**entry, "unit": "%"}), entry["n"]]
        for stage, figures in found.items()
        for name, entry in figures.items()
    ]
    print(pipes(rows, ["stage", "figure", "%", "n"]))
    made = {"drawn": truth.trials(25), "rebuilt": truth.trials(25, autoencoder(options.editor), seed=1)}
    errors = [
        [how, kind, f"{100 * r['presence_wrong']:.1f}", f"{100 * r['intactness_wrong']:.1f}", r["pictures"]]
        for how, trials in made.items()
        for kind, r in truth.error_rates(list(trials)).items()
    ]
    print(pipes(errors, ["pictures", "change", "presence wrong, %", "others wrong, %", "n"]))


if __name__ == "__main__":
    main()
