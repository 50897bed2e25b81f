"""Estimates the cost of served models for `--dry-run`, and shows the progress of runs for `nein status`."""

from __future__ import annotations

import bisect
import datetime
import re
import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from nein.config.groups import Runs
from nein.config.options import dump
from nein.engine.answers import describe_spending, read_spending
from nein.engine.folder import Blocks, Folder, collect_runs
from nein.engine.run import is_locked

# --- nein COMMAND --dry-run ------------------------------------------------------------------
#: Tokens and seconds per request, until OUT has an answer of the model.
QUESTION = ({"input_tokens": 600, "output_tokens": 10}, 2.0)  # about an image of 512 pixels
EDIT_TOKENS = {"input_tokens": 1500, "image_tokens": 1400, "output_tokens": 1100, "output_image_tokens": 1100}
EDITING = (EDIT_TOKENS, 30.0)  # of an image of 1024 pixels, in medium quality


def estimate_requests(config: Any) -> Iterator[str]:
    """Yields a line per served model: requests, cost and time. Raises the errors of `Benchmark.runs`."""
    if not re.search(r"\bopenai:", dump(config)):
        return
    from nein.benchmarks import registry
    from nein.benchmarks.nein.runs import EDIT
    from nein.editors import split_address
    from nein.loading.service import AT_ONCE, compute_price
    from nein.models.references import split_label

    benchmark = next(each for each in map(registry.get, registry.names()) if each.config is type(config))
    # Count requests by model: the work left, and the work done, by the same rule.
    requests_left, requests_done = Counter[str](), Counter[str]()
    editors = set[str]()  # references
    for run in benchmark.runs(config, "cpu"):
        for stage in run.stages:
            blocks_done = set.intersection(*(run.folder.list_blocks(output) for output in stage.outputs))
            records_done = sum(index // stage.blocks.size in blocks_done for index in stage.blocks.indices)
            for reference, count in stage.asks.items():
                requests_done[reference] += count * records_done
                requests_left[reference] += count * (len(stage.blocks.indices) - records_done)
                if stage.name == EDIT:
                    editors.add(reference)
    # Multiply by the means so far, or by those of the tables above.
    paid = read_spending(config.out_dir, above=0)
    for reference, count in requests_left.items():
        address, model = split_address(split_label(reference)[1])
        so_far = paid.get(model)
        if so_far and requests_done[reference]:
            requests = so_far["requests"]
            count = round(count * requests / requests_done[reference])
            basis = f"as the {requests:,} so far"
            dollars = None if so_far["dollars"] is None else float(so_far["dollars"]) / requests
            seconds = so_far["seconds"] / requests
        else:
            usage, seconds = EDITING if reference in editors else QUESTION
            amount = f"{usage['input_tokens']:,} tokens in, {usage['output_tokens']:,} out, {seconds:g} s"
            basis = f"by a table: {amount} a request"
            cost = compute_price(model, usage, address)
            dollars = None if cost is None else float(cost)
        at_once = config.endpoint.concurrency or AT_ONCE
        duration = datetime.timedelta(seconds=round(count * seconds / at_once))
        total = "price unknown" if dollars is None else f"${dollars * count:.2f}"
        yield f"{model}: about {count:,} requests, {total}, {duration} at {at_once} at a time ({basis})"
    yield from (f"so far: {sentence}" for sentence in describe_spending(paid))


# --- nein status -----------------------------------------------------------------------------
@dataclass
class StageProgress:
    """A stage of a run, and what is finished of it."""

    counts: list[int] = field(default_factory=list)  # samples of each output
    blocks: list[tuple[float, int]] = field(default_factory=list)  # (time, samples) of each finished block


def status(config: Runs) -> str:
    """The command `nein status`: samples done, rate and time left of every stage, and the cost so far."""
    runs = {run: Folder(run) for path in config.runs for run in collect_runs([path])}
    stages = {run: _read_stages(folder) for run, folder in runs.items()}
    every = [stage for of_run in stages.values() for stage in of_run.values()]
    block_times = sorted(at for stage in every for at, _ in stage.blocks)
    lines, commands = [], []  # commands: those at work
    for run, folder in runs.items():
        calls = folder.manifest()["invocations"] or [{"started": "1970-01-01"}]
        start = datetime.datetime.fromisoformat(calls[-1]["started"]).timestamp()
        lines.append(f"{run}: {folder.manifest()['status']}")
        if is_locked(run):
            lines[-1] += ", at work"
            command = shlex.join(["nein", *calls[-1].get("command", [])])
            commands.append(f"At work: {command}, since {calls[-1]['started']}")
        for name, stage in stages[run].items():
            lines.append(f"  {name}: {_describe_progress(stage, start, block_times)}")
    paid = (line for path in config.runs for line in describe_spending(read_spending(path)))
    lines += dict.fromkeys([*commands, *paid])
    # Names in folders are not ours: no control character reaches the terminal.
    return "".join("".join(c if c.isprintable() else "?" for c in line) + "\n" for line in lines)


def _read_stages(folder: Folder) -> dict[str, StageProgress]:
    stages: dict[str, StageProgress] = {}
    manifest = folder.manifest()
    for output in manifest.get("selected", {}):
        stage = stages.setdefault(output.partition("/")[0], StageProgress())
        blocks = Blocks.read(manifest, output)
        stage.counts.append(len(blocks.indices))
        for number in folder.list_blocks(output):
            if samples := blocks.count_selected(number):
                stage.blocks.append((folder.block_path(output, number).stat().st_mtime, samples))
    return stages


WINDOW = 600.0  # seconds over which the rate is measured


def _describe_progress(stage: StageProgress, start: float, block_times: list[float]) -> str:
    """Samples done, rate, time left. start: of the command; block_times: of blocks of all stages, sorted."""
    now, outputs = time.time(), len(stage.counts)
    done, total = sum(samples for _, samples in stage.blocks), sum(stage.counts)
    text = f"{done:,} of {total:,} "
    text += "samples" if outputs == 1 else f"({outputs} x {stage.counts[0]:,} samples)"
    since = max(start, now - WINDOW)
    recent = [block for block in stage.blocks if block[0] > since]
    if recent and done != total:
        # Work on this stage began after the last block before its own.
        before = bisect.bisect_left(block_times, min(recent)[0])
        since = max(since, block_times[before - 1] if before else 0.0)
        rate = sum(samples for _, samples in recent) / max(now - since, 1.0)
        text += f", {rate:.3g} a second, {datetime.timedelta(seconds=round((total - done) / rate))} left"
    return text
