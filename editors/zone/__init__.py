"""ZONE (arXiv:2312.16794): InstructPix2Pix and MagicBrush together, confined to one segment of the picture.

Steps: 0 picture into its frame (`editors.resize`); 1 change, add or remove?, 2 fused denoising, 7 segments of
SAM (`models`); 3, 4 cross-attention of the UNets (`editors.sampling`); 5 attention difference to rough mask,
6 small components removed, 8 segment with the best Region-IoU, 9 dilation, 10 layer pasted by kind of action,
11 spectral edge smoother, 12 final blend (`masks`).

Every function that `protocol` changes says how: "paper" does what the released code does
(github.com/lsl001006/ZONE @ 9788584), "fixed" what the paper means.
"""

from nein.loading.references import expanded

WEIGHTS = "model.safetensors"


def find_missing(reference: str) -> str | None:
    """One sentence when there is no classifier at `reference`, a folder or file; None when there is."""
    path = expanded(reference)
    if (path / WEIGHTS).is_file() or path.is_file():
        return None
    return (
        f"ZONE's action classifier is not at {reference!r}; fetch ckpts/action_classifier.pth of "
        f"github.com/lsl001006/ZONE and give its path as the editor option 'action'"
    )
