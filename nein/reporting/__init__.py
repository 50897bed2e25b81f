"""Reports: from the scores of a run to estimates, tables, plots and pages. Knows no benchmark.

scores: the table of scores. figures: the tidy frame, a row per estimate. tables, plots: views of the frame.
page, cards: a report, and the samples of its page. labels: pages for raters. contact_sheet, tracking.
"""
