"""Judges: models that answer questions about images (`base` has their interface)."""
