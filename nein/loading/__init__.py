"""What everything that loads models shares: user errors, references to models, failing one by one, digests.

It imports nothing of ours; `editors` and `metrics` import nothing else of `nein`.
"""
