"""The number of cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup version 2: microseconds per period, and the period


def available_cores(quota: Path = QUOTA) -> int:
    """Return the cores that this process may run on, limited by a container's quota; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        most, period = quota.read_text(encoding="ascii").split()
        return allowed if most == "max" else max(1, min(allowed, round(int(most) / int(period))))
    except (OSError, ValueError):
        return allowed
