"""The publishable report of runs on NeIn: everything about them in one page, with every sample.

comparisons     runs against each other
judge_tables    what the judges' verdicts are worth
costs           what the runs took
sample_browser  what the page shows of samples: an index, and chunks of thumbnails and details
command         `nein report` and `nein compare`

All of them give rows of the frame; `nein.benchmarks.nein.sections` says how they are shown.
"""
