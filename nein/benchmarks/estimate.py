"""What models behind an address will be asked, cost and take: what `--dry-run` says of a command."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from nein.config.options import dump

#: Tokens and seconds of a request to a model that OUT has no answer of: a question about a picture of 512
#: pixels, and an edit of 1024 pixels in medium quality.
QUESTION = ({"input_tokens": 600, "output_tokens": 10}, 2.0)
EDITED = {"input_tokens": 1500, "image_tokens": 1400, "output_tokens": 1100, "output_image_tokens": 1100}


def lines(config: Any) -> Iterator[str]:
    """A line for every model; none where all are local. Raises what making the runs does."""
    if not re.search(r"\bopenai:", dump(config)):
        return
    from nein.benchmarks import registry
    from nein.benchmarks.nein.runs import EDIT
    from nein.editors import split_address
    from nein.engine.folder import costs, spent
    from nein.loading.service import AT_ONCE, price
    from nein.models.references import named

    found = next(
        benchmark for benchmark in map(registry.get, registry.names()) if benchmark.config is type(config)
    )
    left, done, edits = Counter[str](), Counter[str](), set[str]()
    for run in found.runs(config, "cpu"):
        for stage in run.stages:
            blocks_done = set.intersection(*(run.folder.done(output) for output in stage.outputs))
            records_done = sum(index // stage.blocks.size in blocks_done for index in stage.blocks.wanted)
            for reference, each in stage.asks.items():
                done[reference] += each * records_done
                left[reference] += each * (len(stage.blocks.wanted) - records_done)
                edits |= {reference} if stage.name == EDIT else set()
    paid = spent(config.out_dir, above=0)
    for reference, count in left.items():
        address, model = split_address(named(reference)[1])
        so_far = paid.get(model)
        usage, seconds = (EDITED, 30.0) if reference in edits else QUESTION
        if so_far and done[reference]:
            requests = so_far["requests"]
            count = round(count * requests / done[reference])
            basis = f"as the {requests:,} so far"
            dollars = None if so_far["dollars"] is None else float(so_far["dollars"]) / requests
            seconds = so_far["seconds"] / requests
        else:
            amount = f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out, {seconds:g} s"
            basis = f"by a table: {amount} a request"
            cost = price(model, usage, address)
            dollars = None if cost is None else float(cost)
        at_once = config.endpoint.concurrency or AT_ONCE
        time = datetime.timedelta(seconds=round(count * seconds / at_once))
        total = "price unknown" if dollars is None else f"${dollars * count:.2f}"
        yield f"{model}: about {count:,} requests, {total}, {time} at {at_once} at a time ({basis})"
    yield from (f"so far: {sentence}" for sentence in costs(paid))
