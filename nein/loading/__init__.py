"""What everything that loads models shares: user errors, references to models, credentials, digests, failing
one by one, what requests cost.

It imports nothing of ours; `editors` and `metrics` import nothing else of `nein`.
"""
