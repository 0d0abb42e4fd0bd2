"""Tests as somebody whom file modes bind, which they do not bind root."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534
PR_SET_DUMPABLE = 4


@contextmanager
def unprivileged() -> Iterator[None]:
    """This thread reads and writes files as nobody in particular, where the process is root.

    On Linux only the thread changes: changing the process would signal every thread of every library in it.
    """
    if os.geteuid() != 0:
        yield
        return
    library = ctypes.CDLL(None)
    change = getattr(library, "setfsuid", os.seteuid)
    change(NOBODY)
    try:
        yield
    finally:
        change(0)
        if hasattr(library, "prctl"):
            library.prctl(
                PR_SET_DUMPABLE, 1
            )  # a process that was somebody else leaves no core, unless told to
