"""Sentences with negation: writing them from templates (`families`), and reading them (`denials`)."""
