"""The executor of `--on ray`: computes the shares of a command as tasks of a Ray cluster. All nodes must see
the folders. Ray starts tasks where there is room, also on nodes that join later, and restarts dead ones."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from nein.engine import machine
from nein.engine.run import Executor, reads_all_of
from nein.engine.stages import Plan, Step, open_tasks
from nein.loading.digests import Json
from nein.loading.errors import UserError

SECRETS = ("OPENAI_API_KEY", "HF_TOKEN")  # environment variables that workers get, and nothing writes
SHARES_PER_WORKER = 4  # more are better balanced, but each loads the models
RETRIES = 3  # of a share whose worker died
GRACE = 10.0  # seconds that canceled workers have to finish


def compute_share(
    plan: Plan,
    device: str,
    share: tuple[int, int],
    part: tuple[int, int],
    secrets: Mapping[str, str],
    threads: int | None,
) -> list[int]:
    """The task, which runs on a node: computes share (r, n) of the steps part[0] to part[1] - 1 of a plan;
    returns the number of blocks made, by step. Raises UserError for what the node lacks."""
    os.environ.update(secrets)
    machine.tune_process()
    executor = Executor(device, share=share, threads=threads or (1 if device == "cpu" else None))
    return executor.compute(plan(executor.device)[part[0] : part[1]])


class Ray(Executor):
    """An executor whose blocks are made by workers of a cluster.

    address          A running cluster, "HOST:PORT"; None: RAY_ADDRESS, or a cluster that is started here.
    workers          Maximum (default: as many as fit).
    gpus_per_worker  0.25: four workers on one GPU.
    """

    def __init__(
        self,
        device: str,
        address: str | None = None,
        workers: int | None = None,
        gpus_per_worker: float = 1.0,
        threads: int | None = None,
    ) -> None:
        super().__init__("cpu", threads=threads)
        self._ray = _connect(address)
        self._max_workers = workers or math.inf
        self._gpus_per_worker = gpus_per_worker
        gpus = self._ray.cluster_resources().get("GPU", 0)
        if device.startswith("cuda") and not gpus:
            raise UserError(f"--device is '{device}', but no node of the Ray cluster has a GPU.")
        self.device = "cuda" if gpus and device != "cpu" else "cpu"
        machine.print_device(device, self.device)

    def describe(self) -> Json:
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        return {"executor": "ray", "nodes": nodes, "gpus_per_worker": self._gpus_per_worker}

    def close(self) -> None:
        self._ray.shutdown()

    def compute(self, steps: Sequence[Step], plan: Plan | None = None) -> list[int]:
        assert plan is not None, "workers on other nodes make the steps again"
        # The parts run one after the other: a step that reads all blocks of an earlier one begins a new part.
        counts: list[int] = []
        first = 0  # the first step of the current part
        for end in range(1, len(steps) + 1):
            if end == len(steps) or any(reads_all_of(steps[end], other) for other in steps[first:end]):
                counts += self._compute_part(steps[first:end], plan, (first, end))
                first = end
        return counts

    def _compute_part(self, steps: Sequence[Step], plan: Plan, part: tuple[int, int]) -> list[int]:
        """Computes the steps part[0] to part[1] - 1; none reads all blocks of another."""
        if not any(next(open_tasks(step), None) for step in steps):
            return [0] * len(steps)
        # --- choose the number of shares
        models = [step.stage.model for step in steps if step.stage.model]
        on_gpu = self.device == "cuda" and any(model.place == "device" for model in models)
        resources = self._ray.cluster_resources()
        cores = self.threads or 1  # per worker
        room = math.floor(resources.get("CPU", 0) / cores)  # workers that fit
        if on_gpu:
            room = math.floor(resources.get("GPU", 0) / self._gpus_per_worker + 1e-6)  # 1e-6: rounding
        max_blocks = max((len(step.stage.blocks.numbers) for step in steps), default=0)
        share_count = max(1, min(SHARES_PER_WORKER * room, max_blocks))  # a share without blocks is no use
        # --- what every task gets: objects of the cluster, which logs and dashboards do not show
        secrets = self._ray.put({name: os.environ[name] for name in SECRETS if name in os.environ})
        shared_plan = self._ray.put(plan)
        device = "cuda" if on_gpu else "cpu"
        options = {"num_gpus": self._gpus_per_worker, "num_cpus": 0} if on_gpu else {"num_cpus": cores}
        # Ray restarts a task whose process or node died, but not one that raised an exception.
        task = self._ray.remote(compute_share).options(max_retries=RETRIES, **options)
        # --- run the tasks
        waiting = [(index, share_count) for index in range(share_count)]  # shares without a task
        running: list[Any] = []  # references to results of tasks
        counts = [0] * len(steps)
        with tqdm(total=share_count, desc="shares", unit="share", disable=not sys.stderr.isatty()) as bar:
            try:
                while waiting or running:
                    while waiting and len(running) < self._max_workers:
                        share = waiting.pop(0)
                        running.append(task.remote(shared_plan, device, share, part, secrets, self.threads))
                    [finished], running = self._ray.wait(running)
                    counts = [total + new for total, new in zip(counts, self._result(finished), strict=True)]
                    bar.update()
            except SystemError as error:  # Ray's wrapper of what a signal handler raised
                raise error.__cause__ or error from None
            finally:
                for reference in running:
                    self._ray.cancel(reference)  # as Ctrl-C does
                if running:
                    self._ray.wait(running, num_returns=len(running), timeout=GRACE)
        return counts

    def _result(self, reference: Any) -> list[int]:
        """What `compute_share` returned. Raises what it raised, and UserError if its workers died."""
        try:
            return list(self._ray.get(reference))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise UserError(
                f"Workers of the Ray cluster died {RETRIES + 1} times at one share "
                f"({str(error).splitlines()[0]}); rerun the command to resume."
            ) from None


#: Environment variables for a worker: what it imports, and where libraries look for models.
PASSED_ON = ("PYTHONPATH", "NEIN_MAX_PIXELS", "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TORCH_HOME")


def _connect(address: str | None) -> Any:
    """The module `ray`, connected to a running cluster or to a new one on this machine. Telemetry is off
    unless the environment says otherwise. Raises UserError without Ray, and if no cluster answers."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # keep CUDA_VISIBLE_DEVICES of CPU tasks
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray: pip install -e '.[ray]'.") from None
    address = address or os.environ.get("RAY_ADDRESS")
    options: Json = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options |= {"address": "local", "num_cpus": machine.count_cores(), "include_dashboard": False}
    if variables := {name: os.environ[name] for name in PASSED_ON if name in os.environ}:
        options["runtime_env"] = {"env_vars": variables}
    old_handler = signal.getsignal(signal.SIGTERM)
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdigit() and "//" not in host:
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself tries for minutes
        ray.init(**options)
    except (OSError, RuntimeError, ValueError):
        if address is None:
            raise
        raise UserError(
            f"No Ray cluster answers at '{address}'; set RAY_ADDRESS to HOST:PORT of `ray start --head`, or "
            "unset it to start a cluster here."
        ) from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, old_handler)  # Ray sets its own; ours is of `nein.engine.exits`
    return ray
