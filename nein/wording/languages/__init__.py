"""Negation in scope, by language."""
