"""From figures to what people read. Knows no benchmark and recomputes nothing.

figures        the tidy frame: one row per figure, with what it is of, its interval, n and unscored
format         the one way in which a figure becomes text
tables         a table is a specification over the frame: Markdown, LaTeX, HTML
plots          a plot is a specification over the frame: PNG and SVG, the same bytes every time
page           the HTML page: one skeleton, one policy, sections of tables and plots, and a sample browser
thumbnails     pictures as a page shows them, of many files in processes beside this one
cards          a small sample browser: one card per sample, filtered in the page
report         all of them written beside each other
contact_sheet  pictures in a grid

A benchmark gives rows, a function from rows to the frame, and the specifications; the files come from here.
"""
