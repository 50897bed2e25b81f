"""`python killer.py STEP ARGS...`: the training command, killed in the middle of its STEP-th step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from train import finetune_ip2p
from train.instruct import objective


def main() -> None:
    step, losses, calls = int(sys.argv[1]), objective.losses, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return losses(*args, **options)

    objective.losses = counted
    finetune_ip2p.main(sys.argv[2:])


if __name__ == "__main__":
    main()
