"""What the engine costs: per block and executor, threads against Ray, blocks made twice, jobs of millions.

    python benchmarks/executors.py                          # the first two parts
    python benchmarks/executors.py --workers 2,4,16         # blocks made per block that there is
    python benchmarks/executors.py --sizes 10000,625000     # and jobs of so many blocks
    python benchmarks/executors.py --records 1000000 --processes 1,16     # and a data set of so many samples
    python benchmarks/executors.py --operations 48          # and the file operations of a sample
    python -m benchmarks.executors --served 24 --blocks 0 --limit 0        # models behind an address
    python -m benchmarks.executors --trouble 5,300 --blocks 0 --limit 0    # which make trouble, and a kill

1. Overhead. Blocks that do nothing but a row each, on every executor: what starting takes, and a block after
   that (a file of rows with fsync, a line of costs, an attempt).
2. `nein eval` over the nano world on threads and on two workers of Ray; the files have to be equal.
3. Workers that make one block at a time, as on GPUs, of 12 blocks each that sleep: numbered or not, started
   together or one after the other, and as in containers, where none sees the processes of another.
4. Planning, handing out and finishing N blocks of 16 records, beginning again when all are done, and `nein
   status`, each in a process of its own with its peak memory. Without fsync: the engine, and not the disk.
5. Reading NeIn's records at the start of a command: the first time, which looks through the file, and later,
   by several processes that start together.
6. File operations of one sample more: `nein eval` over the nano world, of so many samples and of twice as
   many. Python's audit events below the folders of data and results, and its calls of fsync and stat.
7. `nein eval` with an editor and a judge on the loopback address that take half a second: requests per scored
   sample, and the time with 1 and 16 at a time. With --trouble the editor answers 429 with each Retry-After
   once, refuses one in ten, fails once and returns another shape once; the judge refuses max_tokens, thinks
   and changes its version; the command is killed in the middle and given again. Then: what was paid.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import functools
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nein.engine import attempts
from nein.engine.blocks import Blocks
from nein.engine.executors import Executor, progress
from nein.engine.executors.worker import Worker
from nein.engine.folder import Folder
from nein.engine.images import encode_png
from nein.engine.scheduler import Scheduler
from nein.engine.stages import Stage, Step

RECORDS = 16  # per block
ROOT = Path(__file__).resolve().parents[1]


def idle(folder: Folder, blocks: int) -> Stage:
    """A stage that has nothing to do."""

    def rows(number: int) -> dict[str, list[dict[str, Any]]]:
        return {"rows": [{"id": number, "value": 1.0}]}

    return Stage(
        "idle", ("rows",), Blocks.first(blocks * RECORDS, RECORDS),
        read=lambda number: number,
        work=lambda model, number, missing: rows(number),
    )  # fmt: skip


def steps(job: tuple[str, int], device: str) -> list[Step]:
    path, blocks = job
    return [Step(Folder(Path(path)), idle(Folder(Path(path)), blocks))]


# --- overhead ----------------------------------------------------------------------------------


def executors() -> dict[str, Callable[[], Executor]]:
    """Name -> how it is begun. Imports happen before the clock runs."""
    import torch  # noqa: F401

    from nein.engine.executors.ray import Ray
    from nein.engine.executors.threads import Threads

    actors = functools.partial(Ray, "cpu", address=None, workers=2, gpus_per_worker=1.0)
    return {
        "debug": functools.partial(Threads, "cpu", debug=True),
        "threads, 2": functools.partial(Threads, "cpu", at_once=2),
        "ray, 2 workers": actors,
    }


def overhead(blocks: int) -> None:
    print(f"{'executor':20} {'start s':>8} {'ms a block':>11}   ({blocks} blocks)")
    with tempfile.TemporaryDirectory() as scratch:
        for number, (name, begin) in enumerate(executors().items()):
            whole, each = timed(begin, Path(scratch) / str(number), blocks)
            print(f"{name:20} {whole - blocks * each:8.2f} {1000 * each:11.2f}", flush=True)


def timed(begin: Callable[[], Executor], path: Path, blocks: int) -> tuple[float, float]:
    """Seconds in all, and from block to block once the first is there."""
    folder = Folder(path)
    folder.open({"blocks": blocks}, {}, overwrite=False)
    start = time.perf_counter()
    executor = begin()
    plan = functools.partial(steps, (str(path), blocks))
    executor.compute(plan("cpu"), plan)
    executor.close()
    seconds = time.perf_counter() - start
    assert len(folder.done("rows")) == blocks
    ends = [cost["at"] for cost in folder.costs()["idle"].values()]
    return seconds, (max(ends) - min(ends)) / (blocks - 1)


# --- the nano world ----------------------------------------------------------------------------


def nano(limit: int) -> None:
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for on, more in (("threads", ()), ("ray", ("--workers", "2"))):
            out = Path(scratch) / on
            words = ["eval", "--limit", str(limit), "--device", "cpu", "--out", str(out), "--on", on, *more]
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "nein", *words], cwd=ROOT, check=True, capture_output=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
            seconds = time.perf_counter() - start
            print(f"nein eval --limit {limit} --on {' '.join((on, *more)):18} {seconds:6.1f} s", flush=True)
            results[on] = {
                str(path.relative_to(out)): path.read_bytes()
                for pattern in ("*/*/*.jsonl", "*/*/images/*/*.png", "*/*/figures.csv", "table.md")
                for path in out.glob(pattern)
            }
    assert results["threads"], "nothing was compared"
    print(f"files equal byte by byte: {'yes' if results['threads'] == results['ray'] else 'NO'}")


# --- blocks made twice -------------------------------------------------------------------------


def shares(sizes: Sequence[int], seconds: float) -> None:
    print("\n workers  blocks  numbered      started   made  a block       s  ideal")
    cases = [(True, 0.0, False), (False, 0.0, False), (False, 0.3, False), (False, 0.0, True)]
    for size in sizes:
        for numbered, apart, containers in cases:
            blocks = 12 * size
            with tempfile.TemporaryDirectory() as scratch:
                folder = Folder(Path(scratch) / "run")
                folder.open({"blocks": blocks}, {}, overwrite=False)
                start, workers = time.perf_counter(), []
                for rank in range(size):
                    given = (blocks, rank if numbered else 0, size if numbered else 1, seconds, containers)
                    line = [sys.executable, __file__, "--share", str(folder.path), *map(str, given)]
                    workers.append(subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(ROOT)}))
                    time.sleep(apart * seconds)
                assert [worker.wait() for worker in workers] == [0] * size
                took = time.perf_counter() - start
                made = sum(len(path.read_text().splitlines()) for path, _ in folder.cost_files())
            how = "containers" if containers else "one by one" if apart else "together"
            print(f"{size:8} {blocks:7} {'yes' if numbered else 'no':>9} {how:>12} {made:6} "
                  f"{made / blocks:8.3f} {took:7.1f} {12 * seconds:6.1f}", flush=True)  # fmt: skip


def share(path: str, blocks: str, rank: str, size: str, seconds: str, containers: str) -> None:
    """One of the workers; in a container the processes of others have no number that means anything."""
    from nein.engine.executors.threads import Threads

    if containers == "True":
        attempts._machine = lambda: f"container of {os.getpid()}"  # type: ignore[assignment]

    def work(model: Any, number: int, missing: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
        time.sleep(float(seconds))
        return {"rows": [{"id": number, "value": 1.0}]}

    folder = Folder(Path(path))
    stage = dataclasses.replace(idle(folder, int(blocks)), work=work)
    one = Threads("cpu", at_once=1, share=(int(rank), int(size)))
    one.compute([Step(folder, stage)])


# --- millions ----------------------------------------------------------------------------------


def scale(sizes: Sequence[int]) -> None:
    print("\n  blocks  plan s  us a block  again us  status us    MiB  again MiB")
    for size in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            first, again = (part(scratch, size) for _ in range(2))
        print(
            f"{size:8} {first['plan']:7.3f} {first['work']:11.0f} {again['work']:9.1f} "
            f"{again['status']:10.1f} {first['peak']:6.0f} {again['peak']:10.0f}",
            flush=True,
        )


def part(path: str, size: int) -> dict[str, float]:
    line = [sys.executable, __file__, "--part", path, str(size)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def measured(path: str, size: int) -> dict[str, float]:
    """In a process of its own: what is open is done, by one worker."""
    os.fsync = lambda fd: None
    folder = Folder(Path(path) / "run")
    folder.open({"blocks": size}, {}, overwrite=False)
    start = time.perf_counter()
    job = steps((str(folder.path), size), "cpu")
    progress.announce(job)
    worker = Worker("cpu")
    scheduler = Scheduler(job, in_order=bool(folder.done("rows", [0])))
    plan = time.perf_counter() - start
    start = time.perf_counter()
    while not scheduler.over():
        task = scheduler.next()
        if task is not None:
            worker.make(task, task.step.stage.read(task.number))
            scheduler.finished(task)
    work = time.perf_counter() - start
    worker.note()
    start = time.perf_counter()
    [state] = progress.states(folder)
    assert state.done == size
    status = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"plan": plan, "work": 1e6 * work / size, "status": 1e6 * status / size, "peak": peak}


# --- records ------------------------------------------------------------------------------------

STARTING = """
import json, resource, sys, time
from pathlib import Path
from nein.datasets.nein.samples import load_folder
from nein.engine.blocks import Blocks
start = time.perf_counter()
data = load_folder(Path(sys.argv[1]))
blocks = Blocks(len(data.samples), 16, data.select(None, None))
data.members(blocks.members(len(blocks.numbers) - 1))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([time.perf_counter() - start, time.process_time(), peak]))
"""


def records(sizes: Sequence[int], processes: Sequence[int]) -> None:
    """Without pictures, which a start does not look for. Of several processes the slowest and the largest."""
    print(f"\n{'records':>10} {'processes':>10} {'start s':>10} {'CPU s':>8} {'peak MiB':>10}")
    for size in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            for name in ("coco_for_val", "nein_val"):
                (root / name).mkdir()
            with (root / "val.json").open("w") as file:
                for number in range(size):
                    record = {
                        "COCO": f"COCO_{number // 2:012d}", "NeIn": f"NeIn_{number // 2:012d}_{number % 2}",
                        "T_original": "A table.", "T_negative": "The image doesn't have any apple.",
                        "T_generated": "Add an apple.",
                    }  # fmt: skip
                    file.write(("," if number else "[") + json.dumps(record))
                file.write("]")
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "NEIN_CACHE": str(root / "cache")}
            for number in (0, *processes):  # 0: one, the first time
                line = [sys.executable, "-c", STARTING, scratch]
                started = [
                    subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
                    for _ in range(number or 1)
                ]
                found = [json.loads(process.communicate()[0]) for process in started]
                seconds, own, peak = map(max, zip(*found, strict=True))
                print(
                    f"{size:10} {number or 'first':>10} {seconds:10.2f} {own:8.2f} {peak:10.0f}", flush=True
                )


# --- file operations ----------------------------------------------------------------------------


def operations(size: int) -> None:
    few, many = (Counter[str](), Counter[str]())
    with tempfile.TemporaryDirectory() as scratch:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NEIN_CACHE": str(Path(scratch, "cache"))}
        for limit, counts in (
            (size, Counter[str]()),
            (size, few),
            (2 * size, many),
        ):  # the first draws the data
            out = Path(scratch, f"{limit}-{len(list(Path(scratch).iterdir()))}")
            line = [sys.executable, __file__, "--count", str(limit), str(out)]
            done = subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            counts.update(json.loads(done.stdout.splitlines()[-1]))
    print(f"\nfile operations of one sample more (nein eval, {size} and {2 * size} samples)")
    for name, count in sorted(many.items(), key=lambda item: -item[1]):
        if count > few[name]:
            print(f"{name:12} {(count - few[name]) / size:6.2f}")
    print(f"{'in all':12} {(many.total() - few.total()) / size:6.2f}")


def counted(limit: str, out: str) -> None:
    """In a process of its own: an evaluation without a model, and what it asks of the file system."""
    from nein import cli

    counts: Counter[str] = Counter()
    below = str(Path(out).parent)

    def audited(event: str, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], str | os.PathLike) and str(given[0]).startswith(below):
            if event == "open" or event.startswith(("os.", "shutil.")):
                counts[event.removeprefix("os.")] += 1

    def calls(name: str) -> None:
        whole = getattr(os, name)

        def call(place: Any, *given: Any, **options: Any) -> Any:
            counts[name] += isinstance(place, int) or str(place).startswith(below)
            return whole(place, *given, **options)

        setattr(os, name, call)

    sys.addaudithook(audited)
    for name in ("fsync", "stat", "lstat"):
        calls(name)
    words = [
        "eval",
        "--editor",
        "identity",
        "--metrics",
        "l1,l2,clip_i",
        "--control",
        "none",
        "--device",
        "cpu",
    ]
    try:
        cli.main([*words, "--stages", "edit,score", "--limit", limit, "--out", out])
    finally:
        print(json.dumps(counts))


EDITOR, JUDGE = "gpt-image-1.5", "gpt-5-mini"  # names that have a price
EDIT_USAGE = {"input_tokens": 1500, "output_tokens": 1100}
REFUSED: tuple[int, Any, dict[str, str]] = (
    400,
    {"error": {"message": "no", "code": "moderation_blocked", "type": "user_error"}},
    {},
)
TOO_LONG = {"message": "Use 'max_completion_tokens'", "type": "invalid_request_error", "param": "max_tokens"}


def answer(body: dict[str, Any], count: int, trouble: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
    """What a service says that edits and judges. trouble: what is still to go wrong; {} for nothing."""
    time.sleep(trouble.get("seconds", 0.5))
    if "messages" in body:
        if trouble and "max_tokens" in body:
            return 400, {"error": TOO_LONG}, {}
        text = "<think>Is it there?</think>Yes" if trouble else "Yes"
        usage = {"prompt_tokens": 600, "completion_tokens": 20}
        said = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}], "usage": usage}
        return 200, {**said, "model": f"{JUDGE}-{1 + (count > trouble.get('change', 1e9))}"}, {}
    if waits := trouble.get("waits"):
        return 429, {"error": {"message": "slow down"}}, {"Retry-After": str(waits.pop(0))}
    edits = trouble.setdefault("edits", []) if trouble else []
    if trouble and body not in edits:
        edits.append(body)
        if len(edits) == 3:
            return 500, {}, {}
    if trouble and edits.index(body) % 10 == 4:
        return REFUSED
    picture = 255 - np.asarray(Image.open(io.BytesIO(body["image"])))
    if trouble and edits.index(body) == 5:
        picture = picture[: len(picture) // 2]
    trouble.setdefault("paid", []).append(body["image"] + body["prompt"].encode()) if trouble else None
    return (
        200,
        {"data": [{"b64_json": base64.b64encode(encode_png(picture)).decode()}], "usage": EDIT_USAGE},
        {},
    )


def served(count: int, trouble: dict[str, Any], at_once: Sequence[int]) -> None:
    """Part 7."""
    from tests.loopback import Server

    for number in at_once:
        server = Server()
        server.models = (200, {"data": [{"id": EDITOR}, {"id": JUDGE}]}, {})
        server.rule = lambda body, place: answer(body, place, trouble)
        with tempfile.TemporaryDirectory() as out:
            words = [
                "eval",
                "--editor",
                f"openai:{server.url}#{EDITOR}",
                "--control",
                "none",
                "--device",
                "cpu",
            ]
            words += [
                "--models.vqa",
                f"openai:{server.url}#{JUDGE}",
                "--metrics",
                "removal_vqa,retention_vqa",
            ]
            words += ["--limit", str(count), "--concurrency", str(number), "--out", out]
            line, start = [sys.executable, "-m", "nein", *words], time.perf_counter()
            environment = {**os.environ, "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)}
            if trouble:
                first = subprocess.Popen(line, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
                while len(trouble.get("paid", [])) < count // 2:
                    time.sleep(0.05)
                first.kill()
                first.wait()
                trouble["change"] = len(server.requests) + 2 * count
            text = subprocess.run(line, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
            seconds = time.perf_counter() - start
            asked = sum("messages" in body for body in server.requests)
            edits = len(server.requests) - asked
            each = (edits + asked) / count
            told = f"{count} samples, {edits} edits and {asked} questions, {each:.1f} requests a sample"
            print(f"{number} at a time: {told}, {seconds:.1f} s")
            if trouble:
                paid = Counter(trouble["paid"])
                print(f"{len(paid)} pictures paid, {sum(paid.values()) - len(paid)} of them twice")
                print(subprocess.run([*line[:3], "status", out], cwd=ROOT, env=environment, check=True,
                                     capture_output=True, text=True).stdout)  # fmt: skip
                print(
                    text.stdout,
                    *text.stderr.splitlines()[-8:],
                    (Path(out) / "table.md").read_text(),
                    sep="\n",
                )
        server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--blocks", type=int, default=400, help="of the first part (default 400)")
    parser.add_argument("--limit", type=int, default=64, help="samples of the second part; 0: not at all")
    parser.add_argument("--sizes", default="", help="blocks of the fourth part: 10000,625000")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--workers", default="", help="numbers of workers of the third part: 2,4,16")
    parser.add_argument("--seconds", type=float, default=0.5, help="of a block of the third part")
    parser.add_argument("--records", default="", help="of the fifth part: 100000,1000000,10000000")
    parser.add_argument("--processes", default="1", help="of the fifth part: how many start together: 1,16")
    parser.add_argument("--operations", type=int, default=0, help="samples of the sixth part: 48")
    parser.add_argument("--served", type=int, default=0, help="samples of the seventh part: 24")
    parser.add_argument("--trouble", default="", help="of the seventh part: seconds of Retry-After: 5,300")
    parser.add_argument("--share", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--count", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.share:
        share(*options.share)
        return
    if options.count:
        counted(*options.count)
    if options.part:
        print(json.dumps(measured(options.part[0], int(options.part[1]))))
        return
    if options.blocks:
        overhead(options.blocks)
    if options.limit:
        nano(options.limit)
    if options.workers:
        shares([int(size) for size in options.workers.split(",")], options.seconds)
    if options.sizes:
        scale([int(size) for size in options.sizes.split(",")])
    if options.records:
        processes = [int(count) for count in options.processes.split(",")]
        records([int(size) for size in options.records.split(",")], processes)
    if options.operations:
        operations(options.operations)
    if options.served:
        served(options.served, {}, (1, 16))
    if options.trouble:
        waits = [int(wait) for wait in options.trouble.split(",")]
        served(40, {"waits": waits, "seconds": 0.2}, (4,))


if __name__ == "__main__":
    main()
