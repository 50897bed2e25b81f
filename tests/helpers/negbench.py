"""NegBench's files, written for a test."""

import contextlib

from nein.datasets.negbench.official import Table


def write(path, records, **form):
    options = max((len(getattr(record, "options", ())) for record in records), default=0)
    with contextlib.ExitStack() as files:
        table = Table(path, files, options, **form)
        for record in records:
            table.add(record)
