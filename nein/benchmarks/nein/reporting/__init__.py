"""The publishable report: everything about some runs in one page, with tables, plots and every sample.

collect     reads runs from disk, once
sections    figures and tables as plain data: results, coverage, gap, breakdowns, protocols
            (beside it comparisons, judges, costs)
tables      those tables as Markdown, CSV and LaTeX
plots       bars and curves as PNG and SVG
samples     what the sample browser shows: an index, and chunks of thumbnails and details
page        the HTML page
command     `nein report`
"""
