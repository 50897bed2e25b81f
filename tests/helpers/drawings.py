"""Equal figures are equal files, as `tests/reporting` proves: most tests need not see them drawn."""

import hashlib
import io

import numpy as np
from PIL import Image

from nein.generate.nein import files
from nein.reporting.plots import Plot


def sketch(patch):
    """A drawing is a few pixels that follow from plot, figures and stamp: equal exactly where those are."""
    patch.setattr(Plot, "files", _files)
    patch.setattr(files, "EXAMPLE_SIDE", 16)


def _files(plot, figures, stamp, kinds):
    made_of = plot.title, plot.options, figures.to_csv(), stamp
    digest, buffer = hashlib.sha256(repr(made_of).encode()).hexdigest().encode(), io.BytesIO()
    Image.fromarray(np.frombuffer(digest, np.uint8).reshape(8, 8)).save(buffer, format="PNG")
    files = {"png": buffer.getvalue(), "svg": b"<svg><title>%b</title></svg>" % digest, "pdf": b"%PDF"}
    return {kind: files[kind] for kind in kinds}
