"""The evaluation of a sweep: the base and every alpha, by name and in order, whatever the command's order."""

from __future__ import annotations

from pathlib import Path

from train.contrast import sweep
from train.contrast.options import ContrastConfig


def models_of(text: str) -> list[str]:
    """The first column of a table."""
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")][2:]


def test_a_sweep_goes_by_alpha_with_the_base_first(clip_folder: Path, tmp_path: Path) -> None:
    config = ContrastConfig(base="random", out=str(tmp_path), preset="nano", device="cpu")
    config.alpha = ["0.9", "0.05"]
    text = sweep.trade_off(config, [clip_folder, clip_folder], scenes=8)
    assert models_of(text) == ["base", "alpha-0.05", "alpha-0.9"]
    assert (tmp_path / "tradeoff.png").is_file()
    table = (tmp_path / "evaluation" / "table.md").read_text()
    assert models_of(table.partition("## Image to text")[0]) == models_of(text)
    manifest = tmp_path / "evaluation" / "alpha-0.9" / "nano" / "manifest.json"
    assert str(clip_folder) in manifest.read_text()
