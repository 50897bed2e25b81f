"""Reports: from the scores of a run to estimates, tables, plots and pages. Knows no benchmark.

scores: the table of scores. figures: the tidy frame, a row per estimate. tables: pivots of the frame. plots:
functions of the frame. page, cards: a report, and the samples of its page. labels: pages on which people
label. contact_sheet: images in a grid. tracking: estimates for trackers.
"""
