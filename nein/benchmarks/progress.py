"""What models behind an address will be asked, cost and take: what `--dry-run` says of a command."""

from __future__ import annotations

import datetime
import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from nein.config.groups import Runs
from nein.config.options import dump
from nein.engine.folder import Blocks, Folder, costs, runs_at, spent

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


WINDOW = 600.0  # seconds over which the rate is measured


def status(config: Runs) -> str:
    folders = (Folder(folder) for path in config.runs for folder in runs_at([path]))
    paid = dict.fromkeys(line for path in config.runs for line in costs(spent(path)))
    lines = [*(line for folder in folders for line in _lines(folder)), *paid]
    return "".join("".join(c if c.isprintable() else "?" for c in line) + "\n" for line in lines)


def _lines(folder: Folder, now: float | None = None) -> Iterator[str]:
    manifest, now = folder.manifest(), time.time() if now is None else now
    yield f"{folder.path}: {manifest['status']}"
    for stage, outputs in itertools.groupby(
        manifest.get("selected", {}), lambda name: name.partition("/")[0]
    ):
        yield f"  {stage}: {_progress(folder, {name: manifest['selected'][name] for name in outputs}, now)}"


def _progress(folder: Folder, selected: dict[str, Any], now: float) -> str:
    wanted, times = 0, list[float]()
    for output, entry in selected.items():
        numbers = Blocks.read(entry).numbers
        wanted += len(numbers)
        kept = numbers if isinstance(numbers, range) else frozenset(numbers)
        times += [file.stat().st_mtime for number, file in folder.files(output) if number in kept]
    text = f"{len(times)} of {wanted} blocks"
    recent = [at for at in times if at > now - WINDOW]
    if (left := wanted - len(times)) and recent:
        rate = len(recent) / max(now - min(recent), 1.0)
        text += f", {60 * rate:.3g} a minute, {datetime.timedelta(seconds=round(left / rate))} left"
    return text
