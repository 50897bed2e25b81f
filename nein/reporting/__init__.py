"""From figures to what people read. Knows no benchmark and recomputes nothing.

scores: the table that figures are made of. figures: the tidy frame, a row per figure. tables: figures as
text, and pivots. plots: functions of the frame. page, cards: a report, and the samples of its page. labels:
pages on which people label. contact_sheet: images in a grid. tracking: figures for trackers.
"""
