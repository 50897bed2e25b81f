"""`nein ARGUMENTS`, inside the process of the tests, in a fork of it or in a new one."""

import functools
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from nein import cli, editors, metrics
from tests.helpers import forks

ROOT = Path(__file__).resolve().parents[2]
#: What the tests offer by entry points, as an installed package would.
PLUGINS = ROOT / "tests" / "plugins"


def with_code(code):
    """For `pytest.raises(UserError, check=with_code("locked"))`: sentences may change, codes do not."""
    return lambda error: error.code == code


class Outcome(NamedTuple):
    """Exit code and what the command printed."""

    code: int
    stdout: str
    stderr: str


def exit_code(*words):
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    return int(ended.value.code or 0)


def outcome(capture, *words):
    capture.readouterr()
    code = exit_code(*words)
    printed = capture.readouterr()
    return Outcome(code, printed.out, printed.err)


def environment(path=()):
    """Of a process of its own: this working tree and the folders of `path` to import from, one thread."""
    places = os.pathsep.join(map(str, (ROOT, PLUGINS, *path)))
    return {**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def on_two_processes(port):
    # "multi_gpu" is how accelerate says "several processes without MPI"; it works without a GPU as well.
    options = "--multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
    launcher = ("-m", "accelerate.commands.launch", *options.split(), "--main_process_port", str(port))
    return (*launcher, "-m", "nein")


def in_a_process(*words, script=("-m", "nein"), cwd=ROOT, path=()):
    """Runs `python -m nein WORDS`, or another script, in a process of its own."""
    line = [sys.executable, *(str(part) for part in (*script, *words))]
    return subprocess.run(
        line, env=environment(path), capture_output=True, text=True, timeout=600, cwd=cwd, check=False
    )


def in_a_fork(*words, cwd=ROOT, path=()):
    """Runs `nein WORDS` as `in_a_process` does, but with the libraries that this process has loaded."""
    line = [str(word) for word in words]
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        process = forks.start(functools.partial(_elsewhere, cwd, path), line, said)
        process.join(600)
        printed, complaints = (said.with_suffix(end).read_text(encoding="utf-8") for end in (".out", ".err"))
    return subprocess.CompletedProcess(line, process.exitcode, printed, complaints)


def _elsewhere(cwd, path, words):
    os.chdir(cwd)
    sys.path[:0] = map(str, (cwd, *path))
    importlib.invalidate_caches()
    vars(metrics.METRICS).pop("_all", None)  # entry points that were not there when it was read
    editors.find_plugins.cache_clear()
    sys.argv = ["nein", *words]
    cli.main(words)
