"""Building a NeIn data set from a captioned image set: clauses, generation, two filters, split, card."""
