"""Reports: from the scores of a run to estimates, tables, plots and pages. Knows no benchmark.

scores: the table of scores. figures: the frame of estimates, a row each. tables, plots: views of the frame.
page, cards: a report, and the samples of its page. labels: pages for raters. contact_sheet: a grid of images.
"""
