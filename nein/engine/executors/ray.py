"""`--on ray`: every worker is a task of a Ray cluster and takes blocks from the folders as any worker does.

Ray starts tasks where there is room, also on nodes that join, and again where a node or a process has died.
The folders have to be on a file system that all nodes see. A worker that cannot work says why; when none is
left, the command ends with what the last one said.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from nein.engine import attempts, environment, processes
from nein.engine.errors import UserError, sentence
from nein.engine.executors.progress import Bars, announce
from nein.engine.executors.threads import Threads
from nein.engine.scheduler import Scheduler
from nein.engine.stages import Plan, Step

log = logging.getLogger(__name__)

#: Variables that workers get, and that are written nowhere.
SECRETS = ("OPENAI_API_KEY", "HF_TOKEN")
#: Where the libraries look for models.
HUB = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "TORCH_HOME")
TICK = 1.0  # seconds between two looks at the cluster
LEAVING = 10.0  # seconds for workers to leave in order


def work(
    plan: Plan, device: str, share: tuple[int, int], group: str, secrets: Mapping[str, str]
) -> list[int]:
    """What runs on a node. Raises UserError for what this node lacks."""
    os.environ.update(secrets)
    environment.look_for_garbage_seldom()
    threads = Threads(device, at_once=1, share=share, group=group)
    return threads.compute(plan(threads.device))


class Ray:
    """See `nein.engine.executors`.

    address          Of a running cluster; None: RAY_ADDRESS, or one that is started here.
    workers          At most so many (default: what there is room for).
    gpus_per_worker  0.25: four workers to a GPU.
    """

    is_main = True

    def __init__(
        self,
        device: str,
        address: str | None = None,
        workers: int | None = None,
        gpus_per_worker: float = 1.0,
    ) -> None:
        self._ray, self._limit, self._share = _connect(address), workers or 2**31, gpus_per_worker
        self.steps: Sequence[Step] = ()
        gpus = self._ray.cluster_resources().get("GPU", 0)
        if device.startswith("cuda") and not gpus:
            raise UserError(f"--device is '{device}', but no node of the Ray cluster has a GPU.")
        self.device = "cuda" if gpus and device != "cpu" else "cpu"
        environment.say_device(device, self.device)

    def barrier(self) -> None:
        """There is one process that opens folders."""

    def describe(self) -> dict[str, Any]:
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        return {"executor": "ray", "nodes": nodes, "gpus_per_worker": self._share}

    def close(self) -> None:
        self._ray.shutdown()

    def compute(self, steps: Sequence[Step], plan: Plan) -> list[int]:
        self.steps = steps
        announce(steps)
        scheduler = Scheduler(steps)  # only looks on
        bars = Bars(scheduler, quiet=False)
        on_gpu = self.device == "cuda" and any(step.stage.place == "device" for step in steps)
        # An object of the cluster, which no log and no page shows; a runtime environment is in both.
        secrets = self._ray.put({name: os.environ[name] for name in SECRETS if name in os.environ})
        group, shared, message = attempts.new_name(), self._ray.put(plan), ""
        size, begun, running = self._room(on_gpu), 0, []
        options = {"num_gpus": self._share, "num_cpus": 0} if on_gpu else {"num_cpus": 1}
        # Ray begins a task again whose process or node has died, and not one that raised something.
        task = self._ray.remote(work).options(max_retries=-1, **options)
        try:
            while not scheduler.look():
                while begun < self._room(on_gpu):
                    share = (begun, size) if begun < size else (0, 1)  # who joins later begins anywhere
                    running.append(task.remote(shared, "cuda" if on_gpu else "cpu", share, group, secrets))
                    begun += 1
                for reference in self._ray.wait(running, timeout=TICK)[0]:
                    running.remove(reference)
                    message = self._collect(reference, bars) or message
                bars.show()
                if not running and not scheduler.look():
                    raise UserError(message or "The workers of the Ray cluster ended before the work did.")
            for reference in (
                self._ray.wait(running, num_returns=len(running), timeout=LEAVING)[0] if running else ()
            ):
                running.remove(reference)
                self._collect(reference, bars)
        except SystemError as error:  # in it Ray wraps what a signal's handler raised
            raise error.__cause__ or error from None
        finally:
            for reference in running:  # still at something, none of which has died of it
                self._ray.cancel(reference)  # as Ctrl-C does
            if running:
                self._ray.wait(running, num_returns=len(running), timeout=LEAVING)
            for path in {step.folder.path for step in steps}:
                attempts.forget(path, group=group)
            bars.close()
        return bars.made

    def _room(self, on_gpu: bool) -> int:
        """How many workers the cluster holds at present."""
        total = self._ray.cluster_resources()
        room = math.floor(total.get("GPU", 0) / self._share + 1e-6) if on_gpu else int(total.get("CPU", 0))
        return min(room, self._limit)

    def _collect(self, reference: Any, bars: Bars) -> str:
        """Counts what a worker has made; or what it says that cannot work. Raises what is a defect."""
        try:
            for index, count in enumerate(self._ray.get(reference)):
                bars.made[index] += count
            return ""
        except self._ray.exceptions.RayTaskError as error:
            if (message := sentence(error.cause)) is None:
                raise error.cause from None
        except self._ray.exceptions.RayError as error:
            message = f"A worker of the Ray cluster is lost: {str(error).splitlines()[0]}"
        log.warning("a worker leaves: %s", message)
        return message


def _connect(address: str | None) -> Any:
    """Ray, connected to a cluster or to one that was started here. Telemetry is off unless it was asked for.

    Raises UserError without Ray, and where nobody answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do by default one day
    try:
        import ray
    except ImportError:
        raise UserError("--on ray needs Ray: pip install 'nein[ray]'.") from None
    address = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # A worker imports what this process could import, and reads models from where it does.
    passed_on = ("PYTHONPATH", "NEIN_MAX_PIXELS", *HUB)
    if variables := {name: os.environ[name] for name in passed_on if name in os.environ}:
        options["runtime_env"] = {"env_vars": variables}
    if address is None:
        _init(ray, address="local", num_cpus=processes.cores(), include_dashboard=False, **options)
        return ray
    try:
        host, _, port = address.rpartition(":")
        if host and port.isdigit() and "//" not in host:
            socket.create_connection((host, int(port)), timeout=10).close()  # Ray itself asks for minutes
        _init(ray, address=address, **options)
    except (OSError, RuntimeError, ValueError):
        raise UserError(
            f"No Ray cluster answers at '{address}'; give --address HOST:PORT of `ray start --head`, or "
            "leave it out (and RAY_ADDRESS) to start one here."
        ) from None
    return ray


def _init(ray: Any, **options: Any) -> None:
    """Connects, and leaves SIGTERM to `nein.engine.errors`."""
    before = signal.getsignal(signal.SIGTERM)
    ray.init(**options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
