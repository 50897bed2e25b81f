"""Python code in a fork of this process, which has the libraries loaded: a new one imports for seconds."""

import multiprocessing
import os
import runpy
import sys
import threading

from tqdm.auto import tqdm


def start(main, arguments, said=None):
    """A process to join, in which `main(arguments)` runs. It prints to SAID.out and SAID.err."""
    given = (main, list(arguments), said)
    process = multiprocessing.get_context("fork").Process(target=_child, args=given)
    process.start()
    return process


def _child(main, arguments, said):
    for number, name in ((1, "out"), (2, "err")):
        place = os.devnull if said is None else f"{said}.{name}"
        file = open(place, "w", encoding="utf-8", buffering=1)  # noqa: PTH123
        os.dup2(file.fileno(), number)
        setattr(sys, f"std{name}", file)
    # The lock of bars is one for all processes: a killed one would keep it, and the others wait for ever.
    tqdm.set_lock(threading.RLock())
    main(arguments)


def script(words):
    sys.argv = list(words)
    runpy.run_path(words[0], run_name="__main__")
