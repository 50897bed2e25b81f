"""Slurm: jobs on this machine, jobs of a cluster that is made up, and one that is pre-empted."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from nein.config.groups import SlurmConfig
from nein.engine import attendance, jobs
from nein.engine.errors import UserError
from nein.engine.executors.slurm import Share, Slurm
from nein.engine.executors.threads import Threads
from nein.engine.folder import Folder
from nein.engine.stages import Planned
from tests.engine.squares import COUNT, SIZE, results, steps
from tests.helpers import commands
from tests.nein.conftest import write_data

BLOCKS = -(-COUNT // SIZE)

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
for index in $(seq 0 "$last"); do
    SLURM_JOB_ID=$((100 + index)) SLURM_ARRAY_JOB_ID=12 SLURM_ARRAY_TASK_ID=$index SLURM_PROCID=0 \\
        nohup bash "$script" >/dev/null 2>&1 &
done
echo "Submitted batch job 12"
"""
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do
    case "$1" in --unbuffered) shift ;; *) shift 2 ;; esac
done
exec "$@"
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """sbatch, srun, sacct and scancel on PATH."""
    place = tmp_path / "bin"
    place.mkdir()
    for name, text in {
        "sbatch": SBATCH,
        "srun": SRUN,
        "sacct": "#!/bin/bash\n",
        "scancel": "#!/bin/bash\n",
    }.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(place), os.environ["PATH"]]))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    path = os.pathsep.join([str(commands.ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    monkeypatch.setattr(jobs, "PATIENCE", 0.05)


def opened(path: Path) -> Folder:
    folder = Folder(path)
    folder.open({"numbers": COUNT}, {}, overwrite=False)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = opened(tmp_path_factory.mktemp("whole") / "run")
    Threads("cpu").compute(Planned(steps, (str(folder.path), 0.0)))
    return results(folder.path)


def test_jobs_give_what_threads_give_and_a_finished_run_submits_none(
    tmp_path: Path, cluster: None, whole: dict[str, bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    folder = opened(tmp_path / "run")
    plan = Planned(steps, (str(folder.path), 0.1))
    executor = Slurm("auto", slurm=SlurmConfig(array=2), out_dir=tmp_path)
    assert executor.device == "cpu"
    assert executor.compute(plan) == [BLOCKS]
    assert results(folder.path) == whole
    assert "Submitted 2 jobs, 12_0 to 12_1" in capfd.readouterr().err
    assert executor.compute(plan) == [0]
    assert "Submitted" not in capfd.readouterr().err


def test_a_job_that_is_pre_empted_begins_again_and_nobody_has_died(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder = opened(tmp_path / "run")
    plan = Planned(steps, (str(folder.path), 0.3))
    [job] = jobs.submit([Share(plan, "cpu", 0, 1)], SlurmConfig(), tmp_path / "slurm", "local")
    while not folder.done("squares"):
        time.sleep(0.05)
    [worker] = (folder.path / "workers").glob("*.json")
    os.kill(json.loads(worker.read_text().partition("\n")[0])["pid"], signal.SIGUSR1)
    jobs.wait_for_one([job])  # submitit itself looks once a second
    assert job.result() is None
    assert "Caught signal SIGUSR1" in (job.stderr() or "")
    assert results(folder.path) == whole
    assert attendance.workers(folder.path) == []


def test_what_slurm_says_is_said(tmp_path: Path, cluster: None) -> None:
    folder = opened(tmp_path / "run")
    executor = Slurm("cpu", slurm=SlurmConfig(partition="nowhere", array=2), out_dir=tmp_path)
    with pytest.raises(UserError, match="invalid partition specified: nowhere"):
        executor.compute(Planned(steps, (str(folder.path), 0.0)))


def test_without_slurm_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no srun on PATH"):
        Slurm("cpu", slurm=SlurmConfig(), out_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "minutes"), [("4:00:00", 240), ("90", 90), ("0:30", 1), ("1-12", 2160), ("1-0:30:01", 1471)]
)
def test_times_are_read_as_slurm_reads_them(text: str, minutes: int) -> None:
    assert jobs.minutes(text) == minutes


def test_a_time_that_is_none_is_a_sentence() -> None:
    with pytest.raises(UserError, match="--time is 'soon'"):
        jobs.minutes("soon")


def arguments(tmp_path: Path) -> list[str]:
    data = write_data(tmp_path / "data", 2, 2)
    return [
        "slurm", "eval", "--partition", "gpu", "--gres", "gpu:1", "--array", "2", "--time", "1:30:00",
        "--options.account", "lab", "--editor", "identity", "--data", str(data), "--metrics", "l1",
        "--device", "cpu", "--batch-size", "2", "--out", str(tmp_path / "out"),
        "--models.vqa", "openai:http://secretuser:secretpass@host/v1?tok=secrettoken#eye-7b",
    ]  # fmt: skip


def test_a_dry_run_prints_the_script_and_submits_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = commands.outcome(capsys, *arguments(tmp_path), "--dry-run")
    assert done.code == 0, done.stderr
    for flag in (
        "partition=gpu",
        "gres=gpu:1",
        "array=0-1%2",
        "time=90",
        "signal=USR1@90",
        "requeue",
        "account=lab",
    ):
        assert f"#SBATCH --{flag}\n" in done.stdout
    assert not (tmp_path / "out").exists()


def test_every_job_of_nein_slurm_is_the_command_and_status_follows_them(
    tmp_path: Path, cluster: None, capsys: pytest.CaptureFixture[str]
) -> None:
    done = commands.outcome(capsys, *arguments(tmp_path))
    assert done.code == 0, done.stderr
    assert "Submitted 2 jobs, 12_0 to 12_1; scripts and logs:" in done.stdout
    run = tmp_path / "out" / "identity" / "negative"
    deadline = time.monotonic() + 240
    while not (tmp_path / "out" / "table.md").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (run / "scores.csv").exists(), (tmp_path / "out" / "slurm" / "12_0_0_log.err").read_text()[-2000:]
    assert "edit: 2 of 2 blocks" in commands.outcome(capsys, "status", run).stdout
    command = Folder(run).manifest()["invocations"][0]["command"]
    for script in (tmp_path / "out" / "slurm").glob("*.sh"):
        assert "#SBATCH --signal=USR1@90\n" in script.read_text()  # what the jobs listen to
        assert "SUBMITIT_PREEMPT_SIGNAL=USR1" in script.read_text()
    for file in (tmp_path / "out").rglob("*"):  # jobs get credentials by their environment
        assert not file.is_file() or b"secret" not in file.read_bytes(), file
    assert command[:4] == ["slurm", "eval", "--partition", "gpu"]  # what `nein retry` gives again


def test_what_cannot_be_shared_is_not_submitted(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("grid", "x"), ("nothing",)):
        refused = commands.outcome(capsys, "slurm", *words)
        assert refused.code == 2
        assert "nein slurm submits eval, generate," in refused.stderr
