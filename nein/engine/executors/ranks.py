"""`--on ranks`: the processes of `accelerate launch` or torchrun, each with its threads or its GPU.

They meet once, when the folders are open. From then on each takes its own share of the blocks first and then
what others have left, so that one which dies is missed by nobody.
"""

from __future__ import annotations

from nein.engine import processes
from nein.engine.errors import UserError
from nein.engine.executors.threads import Threads


class Ranks(Threads):
    """See `nein.engine.executors.Executor`."""

    name = "ranks"

    def __init__(self, device: str) -> None:
        if not processes.launched():
            raise UserError("--on ranks is for commands that accelerate launch or torchrun starts.")
        super().__init__(device, processes.from_environment())
