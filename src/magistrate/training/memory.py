"""Memory for training: what was freed is used again and not given back to the system."""

from __future__ import annotations

import ctypes
import sys

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # numbers of glibc's options, from malloc.h
LARGE = 2**31 - 1


def keep_freed_memory() -> None:
    """Have glibc keep freed memory. A training step frees and allocates the same large arrays again and
    again; fetching fresh pages for each took half of the time. Elsewhere than with glibc it does nothing."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, LARGE)
