"""Slurm: jobs on this machine, jobs of a cluster that is made up, and one that is pre-empted."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from nein.config.groups import SlurmJobs
from nein.engine import slurm
from nein.engine.folder import Folder
from nein.loading.errors import UserError
from tests.helpers import commands
from tests.nein.conftest import write_data

#: What there is to know of a cluster: sbatch runs the script of every job of an array at once. As Slurm
#: does, it keeps the script: submitit gives its file another name as soon as sbatch has returned.
SBATCH = """#!/bin/bash
script="$1.spooled"
cp "$1" "$script"
if grep -q partition=nowhere "$script"; then
    echo "sbatch: error: invalid partition specified: nowhere" >&2
    exit 1
fi
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$script")
jobs="$(dirname "$0")/jobs"
if [ -z "$last" ]; then  # the job after the array
    grep -q -- "--dependency=afterany:12$" "$script" || exit 1
    (for pid in $(cat "$jobs"); do while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done; done
     SLURM_JOB_ID=200 SLURM_PROCID=0 exec bash "$script") >/dev/null 2>&1 &
    echo "Submitted batch job 200"
    exit
fi
for index in $(seq 0 "$last"); do
    SLURM_JOB_ID=$((100 + index)) SLURM_ARRAY_JOB_ID=12 SLURM_ARRAY_TASK_ID=$index \\
    SLURM_ARRAY_TASK_MIN=0 SLURM_ARRAY_TASK_COUNT=$((last + 1)) SLURM_PROCID=0 \\
        nohup bash "$script" >/dev/null 2>&1 &
    echo $! >>"$jobs"
done
echo "Submitted batch job 12"
"""
SRUN = """#!/bin/bash
log() { echo "$1" | sed "s/%A/12/; s/%a/$SLURM_ARRAY_TASK_ID/; s/%t/0/"; }
while [ "${1#--}" != "$1" ]; do
    case "$1" in
        --unbuffered) shift ;;
        --output) exec >"$(log "$2")"; shift 2 ;;
        --error) exec 2>"$(log "$2")"; shift 2 ;;
        *) shift 2 ;;
    esac
done
exec "$@"
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    place = tmp_path / "bin"
    place.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SRUN[:12], "scancel": SRUN[:12]}.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(place), os.environ["PATH"]]))


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    path = os.pathsep.join([str(commands.ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")


def test_a_job_that_is_pre_empted_begins_again_and_nobody_has_died(tmp_path):
    data = write_data(tmp_path / "data", 40, 2)
    words = ("eval", "--editor", "identity", "--data", str(data), "--metrics", "l1", "--device", "cpu",
             "--batch-size", "1", "--control", "none", "--out", str(tmp_path / "out"))  # fmt: skip
    [job] = slurm.submit([slurm.Job(words, words)], SlurmJobs(), tmp_path / "slurm", cluster="local")
    folder = Folder(tmp_path / "out" / "identity" / "negative")
    while not folder.list_blocks("edit"):
        assert not job.done(), job.stderr()
        time.sleep(0.02)
    children = Path(f"/proc/{job.job_id}/task/{job.job_id}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGUSR1)
    job.result()
    assert "Caught signal SIGUSR1" in (job.stderr() or "")
    assert len(folder.manifest()["invocations"]) == 2
    assert folder.manifest()["status"] == "complete"


def test_what_slurm_says_is_said_and_what_is_missing(tmp_path, cluster, monkeypatch, capsys):
    refused = commands.outcome(capsys, *arguments(tmp_path), "--partition", "nowhere")
    assert (refused.code, "invalid partition specified: nowhere" in refused.stderr) == (2, True)
    monkeypatch.setenv("PATH", str(tmp_path))
    refused = commands.outcome(capsys, *arguments(tmp_path))
    assert (refused.code, "no srun on PATH" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("text", "minutes"), [("4:00:00", 240), ("90", 90), ("0:30", 1), ("1-12", 2160), ("1-0:30:01", 1471)]
)
def test_times_are_read_as_slurm_reads_them(text, minutes):
    assert slurm.parse_minutes(text) == minutes
    with pytest.raises(UserError, match="--time is 'soon'"):
        slurm.parse_minutes("soon")


def arguments(tmp_path):
    data = write_data(tmp_path / "data", 2, 2)
    return [
        "slurm", "eval", "--partition", "gpu", "--gres", "gpu:1", "--array", "2", "--time", "1:30:00",
        "--options.account", "lab", "--editor", "identity", "--data", str(data), "--metrics", "l1",
        "--device", "cpu", "--batch-size", "2", "--out", str(tmp_path / "out"),
        "--models.vqa", "openai:http://host/v1#eye-7b",
    ]  # fmt: skip


def test_every_job_of_nein_slurm_makes_its_share_and_a_last_one_the_report(tmp_path, cluster, capsys):
    done = commands.outcome(capsys, *arguments(tmp_path))
    assert done.code == 0, done.stderr
    assert "Submitted 2 jobs, 12_0 to 12_1, one share each.\n" in done.stdout
    assert "which makes missing blocks and the report, which starts when 12 has ended." in done.stdout
    run = tmp_path / "out" / "identity" / "negative"
    deadline = time.monotonic() + 240
    while not (tmp_path / "out" / "table.md").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (run / "scores.csv").exists(), (tmp_path / "out" / "slurm" / "12_0_0_log.err").read_text()[-2000:]
    notes = [json.loads(path.read_text())["stages"] for path in (run / "notes").iterdir()]
    assert [note["edit"]["blocks"] for note in notes] == [1, 1]  # none twice, and the last job made none
    assert re.search(r"edit: (\d+) of \1 samples", commands.outcome(capsys, "status", run).stdout)
    command = Folder(run).manifest()["invocations"][0]["command"]
    scripts = [path.read_text() for path in (tmp_path / "out" / "slurm").glob("*.sh")]
    array = next(text for text in scripts if "#SBATCH --array" in text)
    flags = "partition=gpu gres=gpu:1 array=0-1%2 time=90 signal=USR1@90 requeue account=lab"
    assert [flag for flag in flags.split() if f"#SBATCH --{flag}\n" not in array] == []
    assert "SUBMITIT_PREEMPT_SIGNAL=USR1" in array
    for file in (tmp_path / "out").rglob("*"):  # jobs get credentials by their environment
        assert not file.is_file() or b"secret" not in file.read_bytes(), file
    assert command[:4] == ["slurm", "eval", "--partition", "gpu"]
