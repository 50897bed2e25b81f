"""What a process may use of the processor."""

from __future__ import annotations

import os


def count() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
