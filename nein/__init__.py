"""nein: how well image editors and vision-language models understand what is *not* there.

The commands are in `nein.cli`; `nein.benchmarks.nein.evaluate` is the main job. Importing this package
loads nothing heavy.
"""
