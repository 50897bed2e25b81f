"""Loads models by name: references, editors, judges, language models, remedies, converted checkpoints."""
