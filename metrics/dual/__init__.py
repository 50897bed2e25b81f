"""Models with one encoder for pictures and one for sentences, behind one protocol (`metrics.dual.base`)."""
