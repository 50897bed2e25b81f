"""ZONE (arXiv:2312.16794): InstructPix2Pix and MagicBrush together, confined to one segment of the picture.

The twelve steps and where they are:

     0  picture into its frame                 editors.resize.zone
     1  change, add or remove?                 action
     2  fused denoising of the two models      fusion
     3  cross-attention of the UNets           attention
     4  mean over layers, heads, branches      attention
     5  attention difference to rough mask     masks.difference, masks.localise
     6  small components removed               masks.drop_small
     7  segments of SAM                        segments
     8  segment with the best Region-IoU       masks.best_segment
     9  dilation                               masks.dilate
    10  layer pasted by kind of action         blend.composite
    11  spectral edge smoother                 blend.smoother
    12  final blend                            blend.final

Every function that `protocol` changes says how: "paper" does what the released code does
(github.com/lsl001006/ZONE @ 9788584), "fixed" what the paper means.
"""

from pathlib import Path

PROTOCOLS = ("paper", "fixed")
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
