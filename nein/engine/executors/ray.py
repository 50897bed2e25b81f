"""`--on ray`: actors of a Ray cluster make the blocks, this process hands them out.

Ray Core, not Ray Data: blocks keep their members and their files, so that the bytes are those of any other
executor, and what is done is done whatever becomes of the cluster. An actor keeps its models from stage to
stage (`nein.engine.executors.crew`). When none is left that can work, the command ends with what the last one
said. The folders have to be on a file system that all nodes see.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from typing import Any

from nein.engine import cores, environment, store
from nein.engine.errors import UserError
from nein.engine.executors.crew import Crew
from nein.engine.progress import Bars, announce
from nein.engine.stages import Plan
from nein.engine.walk import Order, Walk


class Ray:
    """See `nein.engine.executors.Executor`.

    address          Of a running cluster; None: RAY_ADDRESS, or one that is started here.
    workers          At most so many actors on devices (or, without devices, on cores); None: what there is
                     room for.
    gpus_per_worker  0.25: four workers to a GPU.
    """

    name, is_main = "ray", True

    def __init__(
        self, device: str, *, address: str | None, workers: int | None, gpus_per_worker: float
    ) -> None:
        self._ray, self._limit, self._share = _connect(address), workers, gpus_per_worker
        gpus = self._ray.cluster_resources().get("GPU", 0)
        if device.startswith("cuda") and not gpus:
            raise UserError(f"--device is '{device}', but no node of the Ray cluster has a GPU.")
        self.device = "cuda" if gpus and device != "cpu" else "cpu"
        environment.say_device(device, self.device)

    def barrier(self) -> None:
        """There is one process that opens folders."""

    def describe(self) -> dict[str, Any]:
        nodes = sum(node["Alive"] for node in self._ray.nodes())
        return {"executor": self.name, "nodes": nodes, "gpus_per_worker": self._share}

    def close(self) -> None:
        self._ray.shutdown()

    def compute(self, plan: Plan) -> list[int]:
        steps = plan(self.device)
        announce(steps)
        walk = Walk(steps, Order())
        bars = Bars(steps, walk, quiet=False)
        crew = Crew(self._ray, self.device, self._share, self._limit, plan, steps)
        try:
            while not walk.over():
                crew.grow()
                crew.hand_out(walk)
                crew.collect(walk, bars)
        except SystemError as error:  # in it Ray wraps what a signal's handler raised
            raise error.__cause__ or error from None
        finally:
            crew.close()
            bars.close()
        return bars.made


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
    passed_on = {name: os.environ[name] for name in ("PYTHONPATH", *store.VARIABLES) if name in os.environ}
    if passed_on:
        options["runtime_env"] = {"env_vars": passed_on}
    if address is None:
        _init(ray, address="local", num_cpus=cores.count(), include_dashboard=False, **options)
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
    """Connects, and leaves SIGTERM to `nein.engine.exits`."""
    before = signal.getsignal(signal.SIGTERM)
    ray.init(**options)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
