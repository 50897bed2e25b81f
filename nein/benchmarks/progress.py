"""`--dry-run`: estimated requests, cost and time of served models. `nein status`: progress of runs."""

from __future__ import annotations

import bisect
import datetime
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from nein.config.groups import Runs
from nein.config.options import dump
from nein.engine.answers import describe_spending, read_spending
from nein.engine.folder import Blocks, Folder, collect_runs
from nein.engine.run import is_locked

#: Tokens and seconds per request, until OUT has an answer of the model: a question about an image of 512
#: pixels, and an edit of 1024 pixels in medium quality.
QUESTION = ({"input_tokens": 600, "output_tokens": 10}, 2.0)
EDITED = {"input_tokens": 1500, "image_tokens": 1400, "output_tokens": 1100, "output_image_tokens": 1100}


def lines(config: Any) -> Iterator[str]:
    """A line per served model. Raises the errors of `Benchmark.runs`."""
    if not re.search(r"\bopenai:", dump(config)):
        return
    from nein.benchmarks import registry
    from nein.benchmarks.nein.runs import EDIT
    from nein.editors import split_address
    from nein.loading.service import AT_ONCE, price
    from nein.models.references import split_label

    benchmark = next(
        benchmark for benchmark in map(registry.get, registry.names()) if benchmark.config is type(config)
    )
    requests_left, requests_done, edits = Counter[str](), Counter[str](), set[str]()
    for run in benchmark.runs(config, "cpu"):
        for stage in run.stages:
            blocks_done = set.intersection(*(run.folder.list_blocks(output) for output in stage.outputs))
            records_done = sum(index // stage.blocks.size in blocks_done for index in stage.blocks.indices)
            for reference, count in stage.asks.items():
                requests_done[reference] += count * records_done
                requests_left[reference] += count * (len(stage.blocks.indices) - records_done)
                edits |= {reference} if stage.name == EDIT else set()
    paid = read_spending(config.out_dir, above=0)
    for reference, count in requests_left.items():
        address, model = split_address(split_label(reference)[1])
        so_far = paid.get(model)
        usage, seconds = (EDITED, 30.0) if reference in edits else QUESTION
        if so_far and requests_done[reference]:
            requests = so_far["requests"]
            count = round(count * requests / requests_done[reference])
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
    yield from (f"so far: {sentence}" for sentence in describe_spending(paid))


WINDOW = 600.0  # seconds over which the rate is measured


def status(config: Runs) -> str:
    """The command `nein status`: samples done, rate and time left of every stage, and the cost so far."""
    runs = {run: Folder(run) for path in config.runs for run in collect_runs([path])}
    stages = {run: _stages(folder) for run, folder in runs.items()}
    times_finished = sorted(
        at for stages_of_run in stages.values() for _, made in stages_of_run.values() for at, _ in made
    )
    lines, commands = [], []
    for run, folder in runs.items():
        calls = folder.manifest()["invocations"] or [{"started": "1970-01-01"}]
        start = datetime.datetime.fromisoformat(calls[-1]["started"]).timestamp()
        lines.append(f"{run}: {folder.manifest()['status']}")
        if is_locked(run):
            lines[-1] += ", at work"
            command = shlex.join(["nein", *calls[-1].get("command", [])])
            commands.append(f"At work: {command}, since {calls[-1]['started']}")
        lines += [
            f"  {name}: {_pace(*stages_of_run, start, times_finished)}"
            for name, stages_of_run in stages[run].items()
        ]
    paid = (line for path in config.runs for line in describe_spending(read_spending(path)))
    lines_shown = [*lines, *dict.fromkeys([*commands, *paid])]
    return "".join("".join(c if c.isprintable() else "?" for c in line) + "\n" for line in lines_shown)


Made = list[tuple[float, int]]  # when a block was made, and of how many samples


def _stages(folder: Folder) -> dict[str, tuple[list[int], Made]]:
    """Stage -> (samples that each of its outputs will have, finished blocks)."""
    stages: dict[str, tuple[list[int], Made]] = {}
    manifest = folder.manifest()
    for output in manifest.get("selected", {}):
        counts, blocks_made = stages.setdefault(output.partition("/")[0], ([], []))
        blocks = Blocks.read(manifest, output)
        counts.append(len(blocks.indices))
        for number in folder.list_blocks(output):
            if samples := blocks.count_selected(number):
                blocks_made.append((folder.block_path(output, number).stat().st_mtime, samples))
    return stages


def _pace(counts: list[int], blocks_made: Made, start: float, ends: list[float]) -> str:
    """Samples done, rate and time left of a stage. ends: when the blocks of all stages were made, sorted;
    work on this stage begins after the last block before its own."""
    samples_done, samples_left, time_now = (
        sum(samples for _, samples in blocks_made),
        sum(counts),
        time.time(),
    )
    text = f"{samples_done:,} of {samples_left:,} " + (
        "samples" if len(counts) == 1 else f"({len(counts)} x {counts[0]:,} samples)"
    )
    since = max(start, time_now - WINDOW)
    if (samples_left := samples_left - samples_done) and (
        recent := [block for block in blocks_made if block[0] > since]
    ):
        before = bisect.bisect_left(ends, min(recent)[0])
        since = max(since, ends[before - 1] if before else 0.0)
        rate = sum(samples for _, samples in recent) / max(time_now - since, 1.0)
        text += f", {rate:.3g} a second, {datetime.timedelta(seconds=round(samples_left / rate))} left"
    return text
