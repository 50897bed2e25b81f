"""What tests of training read of a run, and how they break it off."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


def words(defaults, options):
    """The arguments of a run; options by keyword, None leaves one out."""
    chosen = {**defaults, **{key.replace("_", "-"): value for key, value in options.items()}}
    return [
        f"--{'' if value else 'no-'}{key}" if isinstance(value, bool) else f"--{key}={value}"
        for key, value in chosen.items()
        if value is not None
    ]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def logged(run, key="loss"):
    return [json.loads(row)[key] for row in (run / "log.jsonl").read_text().splitlines()]


def dies_at(monkeypatch, place, name, call, action):
    """`action` in the CALL-th call (from 1) of a function."""
    whole, seen = getattr(place, name), []

    def counted(*args, **options):
        seen.append(1)
        if len(seen) == call:
            action()
        return whole(*args, **options)

    monkeypatch.setattr(place, name, counted)


def raising(error):
    def action():
        raise error

    return action


def in_two_processes(script, port, words):
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, script, *words]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
