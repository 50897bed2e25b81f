"""Shared by all code that loads models: errors, references, digests, weights, and the client of services.
It imports nothing of ours; `editors` and `metrics` import nothing else of `nein`."""
