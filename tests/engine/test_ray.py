"""Ray: the same bytes as threads, whoever dies and whoever joins."""

import errno
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nein.engine import ray as executors
from nein.engine.folder import Folder
from nein.engine.ray import Ray
from nein.engine.stages import Step
from nein.loading.errors import UserError
from tests.engine.squares import BLOCKS, COUNT, SIZE, results, squares, totals, two_stages
from tests.helpers import commands


@pytest.fixture(scope="module")
def cluster():
    """A head of one core; what only watches, and takes seconds to start, is left out."""
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(commands.ROOT))
        bare = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **bare})
        yield made
        ray.shutdown()
        made.shutdown()


def executor(cluster, **changed):
    return Ray("cpu", cluster.address, **changed)


def compute(one, make, given):
    return one.compute(make(given, "cpu"), functools.partial(make, given))


def steps(given, device):
    """Of a folder; with a pause in every block. At the block `deadly` its worker dies, the first time or, of
    "every", each time."""
    path, pause, deadly = given
    first, second = two_stages(Folder(Path(path)), pause=pause)
    work = first.stage.work

    def dying(model, numbers, missing):
        mark = Path(path) / "died"
        if deadly == "every" or (numbers[0] // SIZE == deadly and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return work(model, numbers, missing)

    first.stage.work = dying
    return [first, second]


@pytest.mark.slow
def test_two_nodes_give_what_threads_give_and_one_may_die_and_another_join_half_way(cluster, folder, whole):
    # Ray before 2.51 connects to any node of this machine, and ends the connection where that one goes.
    one, made = executor(cluster), []  # while the head is the only one
    doomed = cluster.add_node(num_cpus=1)
    computing = threading.Thread(target=lambda: made.extend(compute(one, steps, (str(folder.path), 0.3, -1))))
    computing.start()
    while len(list(folder.path.glob("squares/*/*.jsonl"))) < 2:
        time.sleep(0.05)
    cluster.remove_node(doomed, allow_graceful=False)
    cluster.add_node(num_cpus=1)
    computing.join(200)
    one.close()
    assert all(made)  # what the dead node had made and not yet told is in the folder, and in no count
    assert results(folder.path) == whole


def test_a_worker_that_dies_is_started_again_and_one_that_always_dies_ends_the_command(
    cluster, folder, whole, monkeypatch
):
    one = executor(cluster, workers=1)
    compute(one, steps, (str(folder.path), 0.0, 2))
    assert (folder.path / "died").exists()
    assert results(folder.path) == whole
    for path in folder.path.rglob("*.jsonl"):
        path.unlink()
    monkeypatch.setattr(executors, "RETRIES", 1)
    with pytest.raises(UserError, match=r"died 2 times at one share.*rerun the command"):
        compute(one, steps, (str(folder.path), 0.0, "every"))
    one.close()


def test_what_needs_a_stage_as_a_whole_is_made_when_all_shares_of_that_are(cluster, folder):
    one = executor(cluster)
    assert compute(one, summed, str(folder.path)) == [BLOCKS, 3]
    assert [row["value"] for row in folder.rows("totals", range(3))] == [sum(n * n for n in range(COUNT))] * 3
    one.close()


def summed(path, device):
    folder = Folder(Path(path))
    return [Step(folder, squares(folder)), Step(folder, totals(folder))]


def test_workers_that_cannot_write_end_the_command_with_what_they_say(cluster, folder):
    one = executor(cluster, workers=1)
    with pytest.raises(OSError, match="No space left on device"):
        compute(one, full, str(folder.path))
    one.close()


def full(path, device):
    def work(model, numbers, missing):
        raise OSError(errno.ENOSPC, "No space left on device")

    return [Step(Folder(Path(path)), squares(Folder(Path(path)), work=work))]


@pytest.mark.slow
def test_a_cluster_started_here_stands_beside_another_and_ends_in_order_when_terminated(cluster, tmp_path):
    words = ["negvqa", "--questions", "64", "--device", "cpu", "--out", str(tmp_path / "out")]
    line = [sys.executable, "-m", "nein", *words, "--on", "ray", "--executor.workers", "1"]
    env = {name: value for name, value in commands.environment().items() if name != "RAY_ADDRESS"}
    driver = subprocess.Popen(line, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("out/*/answers/*/*.jsonl")) and driver.poll() is None:
        time.sleep(0.05)
    driver.terminate()
    said = driver.communicate(timeout=120)[1]
    assert "Traceback" not in said, said
    assert driver.returncode == 143, said


def test_workers_get_keys_that_no_runtime_environment_shows_and_end_the_command_when_they_refuse(
    cluster, folder, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-SECRETKEY123")
    one = executor(cluster, workers=1)
    shown = str(one._ray.get_runtime_context().runtime_env)
    with pytest.raises(UserError, match="this node has the key"):
        compute(one, keyed, str(folder.path))
    one.close()
    assert "sk-SECRETKEY123" not in shown


def keyed(path, device):
    if os.environ.get("OPENAI_API_KEY") == "sk-SECRETKEY123" and "ray" in sys.argv[0]:
        raise UserError("this node has the key")
    return steps((path, 0.0, -1), device)


@pytest.mark.parametrize(
    ("module", "address", "said"),
    [({"ray": None}, None, "--on ray needs Ray"), ({}, "127.0.0.1:9", "No Ray cluster answers at")],
)
def test_without_ray_or_its_cluster_there_is_a_sentence(monkeypatch, module, address, said):
    for name, value in module.items():
        monkeypatch.setitem(sys.modules, name, value)
    with pytest.raises(UserError, match=said):
        Ray("cpu", address)
