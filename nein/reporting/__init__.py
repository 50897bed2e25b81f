"""From figures to what people read. Knows no benchmark and recomputes nothing.

figures: the tidy frame, a row per figure. scores: the table that figures are made of. tables: pivots of the
frame. plots: functions of it. page, cards: the HTML page with its samples. report: all of them beside each
other. contact_sheet: pictures in a grid. status: runs as files.
"""
