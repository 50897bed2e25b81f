"""The workers of `--on ray`: actors that come and go, and what each is at.

There are as many as the cluster has room for at the moment: a node that joins gets some, one that dies takes
its own along, and their blocks go to others. A worker that cannot work (a model's folder is not on its node,
its disk is full) says why and is not used again.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics.served import credentials
from nein.engine import environment
from nein.engine.attendance import declare_dead, new_name
from nein.engine.errors import UserError
from nein.engine.processes import Processes
from nein.engine.progress import Bars
from nein.engine.stages import Plan, Step, Task
from nein.engine.walk import Walk
from nein.engine.worker import Worker

log = logging.getLogger(__name__)

#: Variables that workers get, and that are written nowhere.
SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", credentials.VARIABLE)
TICK = 1.0  # seconds between two looks at the cluster
#: Where the stages work that an actor is for: one with a GPU, one beside GPUs, and one where there are none.
DEVICE, HOST = frozenset({"device"}), frozenset({"host", "remote"})
EVERYWHERE = DEVICE | HOST


class Actor:
    """What runs on a node: a worker with the steps made again out of the configuration."""

    def __init__(self, plan: Plan, device: str, name: str, secrets: Mapping[str, str]) -> None:
        os.environ.update(secrets)
        self._plan, self._device, self._name = plan, device, name
        self._worker: Worker | None = None

    def begin(self) -> None:
        """Raises UserError for what this node lacks."""
        environment.look_for_garbage_seldom()
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


@dataclass
class Hand:
    """An actor and what it does: a block, or None while it begins or has nothing."""

    actor: Any
    name: str
    places: frozenset[str]
    task: Task | None = None


class Crew:
    """The actors of one computation.

    ray    The library, connected. `share` and `limit`: `gpus_per_worker` and `workers` of the executor.
    """

    def __init__(
        self, ray: Any, device: str, share: float, limit: int | None, plan: Plan, steps: Sequence[Step]
    ) -> None:
        self._ray, self._device, self._share, self._limit = ray, device, share, limit or 2**31
        self._plan, self._steps = ray.put(plan), steps
        # An object of the cluster, which no log and no page shows; a runtime environment is in both.
        self._secrets = ray.put({name: os.environ[name] for name in SECRETS if name in os.environ})
        self._hands: dict[Any, Hand] = {}  # by the reference to what is under way
        self._idle: list[Hand] = []
        self._retired: list[frozenset[str]] = []
        self._grown = float("-inf")
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
        for places, room in self._room().items():
            there = sum(hand.places == places for hand in hands) + self._retired.count(places)
            for _ in range(room - there if places & wanted else 0):
                hand = self._spawn(places)
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
        if not self._hands:
            time.sleep(TICK / 5)
            return
        for reference in self._ray.wait(list(self._hands), timeout=TICK)[0]:
            hand = self._hands.pop(reference)
            task, hand.task = hand.task, None
            try:
                made = self._ray.get(reference)
            except self._ray.exceptions.RayError as error:
                self._lose(hand, error)
                if task is not None:
                    walk.failed(task)
                continue
            self._idle.append(hand)
            if task is not None:
                walk.finished(task)
                bars.one(task.step, made=made)

    def close(self) -> None:
        """Lets the actors leave in order, and ends those that do not."""
        idle = [hand.actor.close.remote() for hand in self._idle]
        if idle:
            self._ray.wait(idle, num_returns=len(idle), timeout=10)
        for hand in [*self._idle, *self._hands.values()]:
            self._dismiss(hand)

    def _room(self) -> dict[frozenset[str], int]:
        """How many actors of each kind the cluster holds at present."""
        total = self._ray.cluster_resources()
        cores = int(total.get("CPU", 0))
        if self._device == "cpu":
            return {EVERYWHERE: min(cores, self._limit)}
        devices = math.floor(total.get("GPU", 0) / self._share + 1e-6)
        return {DEVICE: min(devices, self._limit), HOST: max(1, cores // 2)}

    def _spawn(self, places: frozenset[str]) -> Hand:
        name = new_name()
        options = {"num_gpus": self._share, "num_cpus": 0} if places == DEVICE else {"num_cpus": 1}
        actor = self._ray.remote(Actor).options(max_restarts=0, **options)
        device = "cuda" if places == DEVICE else "cpu"
        return Hand(actor.remote(self._plan, device, name, self._secrets), name, places)

    def _lose(self, hand: Hand, error: Any) -> None:
        """A worker that is gone, or that cannot do what another may be able to."""
        from nein.engine.exits import sentence

        if not isinstance(error, self._ray.exceptions.RayTaskError):  # the process, or its node
            for path in self._folders():  # nobody has to wait for a minute of silence to know it
                declare_dead(path, hand.name)
            return
        said = sentence(error.cause)
        if said is None:
            raise error.cause
        self._said = said
        self._retired.append(hand.places)
        log.warning("a worker leaves: %s", said)
        self._dismiss(hand)

    def _dismiss(self, hand: Hand) -> None:
        """Ends an actor, which has not died of its block."""
        self._ray.kill(hand.actor)
        for path in self._folders():
            (path / "workers" / f"{hand.name}.json").unlink(missing_ok=True)

    def _folders(self) -> set[Any]:
        return {step.folder.path for step in self._steps}
