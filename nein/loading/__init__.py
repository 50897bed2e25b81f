"""What everything that loads models shares: errors, references, credentials, services and their cost.

It imports nothing of ours; `editors` and `metrics` import nothing else of `nein`.
"""
