"""Wraps editors, encoders and models that answer in remedies that need no training (`--mend`)."""
