"""`--on debug`: one block after the other, in order, in the thread that called; a debugger stops anywhere."""

from __future__ import annotations

from nein.engine.executors.threads import Threads
from nein.engine.walk import AsTheyAre, Order


class Debug(Threads):
    """See `nein.engine.executors.Executor`."""

    name = "debug"
    ahead = 0

    def __init__(self, device: str) -> None:
        super().__init__(device, at_once=1)
        self.processes.workers(self.device)  # on a CPU, the bits of any other executor

    def order(self) -> Order:
        return AsTheyAre()
