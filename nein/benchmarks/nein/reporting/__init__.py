"""What is shown of runs on NeIn: tables and page, grid, comparisons.

sections        the tables and plots, as specifications over figures
tables          what an evaluation writes, and what is to be said of it in words
command         `nein report` and `nein compare`
comparisons     runs against each other
judge_tables    what the judges' verdicts are worth
protocols       the paper's protocol beside the mended one
costs           what the runs took
sample_browser  what the page shows of samples: an index, and chunks of thumbnails and details
grid            `nein grid`
"""
