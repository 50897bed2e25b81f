"""What everything that loads models shares: user errors, references, credentials, services and what they
cost.

It imports nothing of ours; `editors` and `metrics` import nothing else of `nein`.
"""
