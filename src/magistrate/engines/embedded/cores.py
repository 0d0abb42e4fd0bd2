"""The number of cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_processes = 1  # that share the cores

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup version 2: microseconds per period, and the period


def available_cores(quota: Path = QUOTA) -> int:
    """Return the cores that this process may run on, limited by a container's quota; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        most, period = quota.read_text(encoding="ascii").split()
        allowed = allowed if most == "max" else min(allowed, round(int(most) / int(period)))
    except (OSError, ValueError):
        pass
    return max(1, allowed // _processes)


def share_cores(processes: int) -> None:
    """Let this process count only its part of the cores, as one of so many processes."""
    global _processes
    _processes = processes
