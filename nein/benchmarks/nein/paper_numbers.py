"""Gives Table 3 of the NeIn paper, as printed, to `nein reproduce` and the leaderboard.

Source: Bui et al., "NeIn: Telling What You Don't Want" (CVPR Workshops 2025), Table 3. Units as printed
there: per cent, except FID and LPIPS. Rows "+ NeIn" are the authors' fine-tuned models, whose weights are
not published. Possible misprint: Retention (OVD) of "InstructPix2Pix + NeIn", 95.83 against 98.07 of its
sister row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from nein.benchmarks.runner import PaperEstimate
from nein.datasets.hub import PUBLISHED
from nein.metrics import METRICS

COLUMNS = (
    "l1", "l2", "clip_i", "dino", "fid", "lpips",
    "removal_vqa", "retention_vqa", "removal_ovd", "auc_removal", "retention_ovd",
)  # fmt: skip

# fmt: off
TABLE_3: dict[str, tuple[float, ...]] = {  # model -> a value per column
    "InstructPix2Pix":        (11.24, 3.59, 81.68, 73.53, 10.60, 0.43,  3.83, 81.96,  6.70, 50.11, 81.63),
    "InstructPix2Pix + NeIn": ( 8.32, 2.32, 93.11, 91.67,  4.08, 0.33, 93.62, 98.26, 92.66, 97.89, 95.83),
    "MagicBrush":             ( 8.95, 2.69, 88.29, 84.91,  7.80, 0.36,  5.06, 93.86,  8.13, 52.48, 91.39),
    "MagicBrush + NeIn":      ( 8.38, 2.35, 93.04, 91.53,  4.15, 0.33, 92.18, 98.21, 91.24, 97.34, 98.07),
    "ZONE":                   (11.95, 3.67, 74.12, 63.18, 14.95, 0.46,  2.93, 72.38,  6.47, 46.04, 69.07),
    "HQ-Edit":                (23.48, 9.61, 62.84, 46.60, 27.61, 0.67, 32.23, 54.75, 40.42, 70.29, 57.43),
    "InstructDiffusion":      ( 8.54, 2.54, 90.57, 88.62,  6.89, 0.34, 31.46, 97.55, 30.00, 67.99, 97.58),
}
# fmt: on

# Editor (`--editor`) -> its row of the table.
ROW_OF = {
    "ip2p": "InstructPix2Pix", "magicbrush": "MagicBrush", "hqedit": "HQ-Edit", "zone": "ZONE",
    "instructdiffusion": "InstructDiffusion",
}  # fmt: skip
SAMPLES = 24182  # of the validation set: every value of Table 3 is over all of them


def paper_estimates(source: str, run: Mapping[str, Any] | None) -> Iterator[PaperEstimate]:
    """Table 3 for `nein reproduce`: the row of a run, by the editor and track of its manifest; without a run
    all rows. A fine-tuned editor is named nein-ip2p or nein-magicbrush, maybe with "-" and more."""
    tuned = {f"nein-{editor}": f"{ROW_OF[editor]} + NeIn" for editor in ("ip2p", "magicbrush")}
    for editor, row in (ROW_OF | tuned).items():
        if run is None or (run["track"] == "negative" and f"{run['editor']}-".startswith(f"{editor}-")):
            for metric, value in zip(COLUMNS, TABLE_3[row], strict=True):
                unit = "%" if METRICS[metric].unit == "per cent" else ""
                key = {"task": "results", "metric": metric, "variant": "negative"}
                value = value / 100 if unit == "%" else value
                yield PaperEstimate(row, key, value, unit, n=SAMPLES, needs_all=metric == "fid")


def paper_gaps() -> Iterator[dict[str, Any]]:
    """The rows of Table 3 for a leaderboard: Removal with negative instructions. The paper did not give its
    editors the instruction "Remove the X.", so no row has the affirmed value of a gap."""
    for model, values in TABLE_3.items():
        value_of = dict(zip(COLUMNS, values, strict=True))
        for metric, measure in (("removal_vqa", "Removal (VQA)"), ("removal_ovd", "Removal (OVD)")):
            labels = {"model": model, "data": PUBLISHED["nein"], "measure": measure}
            yield {**labels, "affirmed": None, "negated": value_of[metric] / 100}
