"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # control groups, version 2: microseconds of a period, and the period


def available_cores(quota: Path = QUOTA) -> int:
    """Cores that this process may run on, no more than a container's quota pays for; at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        most, period = quota.read_text(encoding="ascii").split()
        return allowed if most == "max" else max(1, min(allowed, round(int(most) / int(period))))
    except (OSError, ValueError):
        return allowed
