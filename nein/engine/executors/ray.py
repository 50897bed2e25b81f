"""`--on ray`: actors of a Ray cluster make the blocks, this process hands them out.

Ray Core, not Ray Data: blocks keep their members and their files, so that the bytes are those of any other
executor, and what is done is done whatever becomes of the cluster. An actor keeps its models from stage to
stage. There are as many as the cluster has room for at the moment: a node that joins gets some, one that
dies takes its own along, and their blocks go to others. A worker that cannot work (a model's folder is not on
its node, its disk is full) says why and is not used again; when none is left, the command ends with what the
last one said. The folders have to be on a file system that all nodes see.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nein.engine import environment, store
from nein.engine.attendance import declare_dead, new_name
from nein.engine.errors import UserError
from nein.engine.processes import Processes
from nein.engine.progress import Bars, announce
from nein.engine.stages import Plan, Step, Task
from nein.engine.walk import Order, Walk
from nein.engine.worker import Worker

log = logging.getLogger(__name__)

TICK = 1.0  # seconds between two looks at the cluster
DEVICE, HOST = frozenset({"device"}), frozenset({"host", "remote"})


@dataclass
class Hand:
    """An actor and what it does: a block, or None while it begins or has nothing."""

    actor: Any
    name: str
    places: frozenset[str] | None
    task: Task | None = None


class Actor:
    """What runs on a node: a worker with the steps made again out of the configuration."""

    def __init__(self, plan: Plan, device: str, name: str) -> None:
        self._plan, self._device, self._name = plan, device, name
        self._worker: Worker | None = None

    def begin(self) -> None:
        """Raises UserError for what this node lacks."""
        Processes().workers(self._device)
        self._worker = Worker(self._plan(self._device), self._device, name=self._name)

    def make(self, task: Task) -> bool:
        """Whether the block was made here; someone else had made it otherwise."""
        assert self._worker is not None
        inputs = self._worker.read(task)
        if inputs is not None:
            self._worker.make(task, inputs)
        return inputs is not None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()


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
        ray = _connect(address)
        self._ray, self._limit, self._share = ray, workers, gpus_per_worker
        gpus = ray.cluster_resources().get("GPU", 0)
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
        crew = Crew(self, plan, steps)
        try:
            while not walk.over():
                crew.grow()
                crew.hand_out(walk)
                crew.collect(walk, bars)
        finally:
            crew.close()
            bars.close()
        return bars.made

    def room(self) -> dict[frozenset[str] | None, int]:
        """How many actors of each kind the cluster holds at present: with a device, and with a core alone."""
        total = self._ray.cluster_resources()
        limit = self._limit or 2**31
        cores = int(total.get("CPU", 0))
        if self.device == "cpu":
            return {None: min(cores, limit)}
        devices = min(math.floor(total.get("GPU", 0) / self._share + 1e-6), limit)
        return {DEVICE: devices, HOST: max(1, cores // 2)}

    def spawn(self, plan: Plan, places: frozenset[str] | None) -> Hand:
        on_device = self.device == "cuda" and places != HOST
        name = new_name()
        options = {"num_gpus": self._share, "num_cpus": 0} if on_device else {"num_cpus": 1}
        actor = self._ray.remote(Actor).options(max_restarts=0, **options)
        return Hand(actor.remote(plan, "cuda" if on_device else "cpu", name), name, places)


class Crew:
    """The actors of one computation."""

    def __init__(self, executor: Ray, plan: Plan, steps: Sequence[Step]) -> None:
        self._ray, self._executor, self._plan, self._steps = executor._ray, executor, plan, steps
        self._plan_there = self._ray.put(plan)
        self._hands: dict[Any, Hand] = {}  # by the reference to what is under way
        self._idle: list[Hand] = []
        self._retired: list[frozenset[str] | None] = []
        self._grown = 0.0
        self._said = ""

    def grow(self) -> None:
        """Begins actors where the cluster has room for more. Raises UserError when no one can work."""
        if time.monotonic() < self._grown + TICK:
            return
        self._grown = time.monotonic()
        wanted = {step.stage.place for step in self._steps}
        hands = [*self._idle, *self._hands.values()]
        if self._retired and not hands:
            raise UserError(self._said)
        for places, room in self._executor.room().items():
            there = sum(hand.places == places for hand in hands) + self._retired.count(places)
            if places is None or places & wanted:
                for _ in range(room - there):
                    hand = self._executor.spawn(self._plan_there, places)
                    self._hands[hand.actor.begin.remote()] = hand

    def hand_out(self, walk: Walk) -> None:
        """A block to everybody who has none, as long as there are some."""
        for hand in list(self._idle):
            hand.task = walk.next(hand.places)
            if hand.task is not None:
                self._idle.remove(hand)
                self._hands[hand.actor.make.remote(hand.task)] = hand

    def collect(self, walk: Walk, bars: Bars) -> None:
        """Waits for somebody to be ready, a moment at most."""
        from ray.exceptions import RayError, RayTaskError

        if not self._hands:
            time.sleep(TICK / 5)
            return
        for reference in self._ray.wait(list(self._hands), timeout=TICK)[0]:
            hand = self._hands.pop(reference)
            task, hand.task = hand.task, None
            try:
                made = self._ray.get(reference)
            except RayTaskError as error:
                self._retire(hand, error)
                if task is not None:
                    walk.failed(task)
            except RayError:  # the process, or its node
                self._died(hand)
                if task is not None:
                    walk.failed(task)
            else:
                if task is not None:
                    walk.finished(task)
                    bars.one(task.step, made=made)
                self._idle.append(hand)

    def close(self) -> None:
        """Lets the actors leave in order, and ends those that do not."""
        idle = [hand.actor.close.remote() for hand in self._idle]
        if idle:
            self._ray.wait(idle, num_returns=len(idle), timeout=10)
        for hand in [*self._idle, *self._hands.values()]:
            self._ray.kill(hand.actor)
            self._died(hand, forget=True)

    def _died(self, hand: Hand, *, forget: bool = False) -> None:
        """Nobody has to wait for a minute of silence to know it. `forget`: it was ended, not by its block."""
        for path in {step.folder.path for step in self._steps}:
            if forget:
                (path / "workers" / f"{hand.name}.json").unlink(missing_ok=True)
            else:
                declare_dead(path, hand.name)

    def _retire(self, hand: Hand, error: Any) -> None:
        """What a worker could not do another may be able to do: its block goes back."""
        from nein.engine.exits import sentence

        said = sentence(error.cause)
        if said is None:
            raise error.cause
        self._said = said
        self._retired.append(hand.places)
        log.warning("a worker leaves: %s", said)
        self._ray.kill(hand.actor)
        self._died(hand, forget=True)


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
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        _init(ray, num_cpus=cores, include_dashboard=False, **options)
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
