"""Which file the action classifier needs. Imports nothing heavy, so that it can be looked for before any
work.
"""

from __future__ import annotations

from pathlib import Path

WEIGHTS = "model.safetensors"


def find_missing(reference: str) -> str | None:
    """One sentence when there is no classifier at `reference`, a folder or file; None when there is."""
    path = Path(reference).expanduser()
    if (path / WEIGHTS).is_file() or path.is_file():
        return None
    return (
        f"ZONE's action classifier is not at {reference!r}; fetch ckpts/action_classifier.pth of "
        f"github.com/lsl001006/ZONE and give its path as the editor option 'action'"
    )
