"""Remedies that need no training (`--mend`): wrappers of editors, encoders and models that answer."""
