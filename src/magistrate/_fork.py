"""Support for forked processes: threads and event loops do not survive a fork, and locks keep their state.

`multiprocessing` with its start method `fork`, servers that fork workers after loading the application, and
tests in forked processes copy a process in the middle of its work. State that can be recreated in the child
is recreated; for the rest an error is raised.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

from magistrate.errors import EngineGone


def in_child(reset: Callable[[], None]) -> None:
    """Call `reset` in every process forked from this one; does nothing on platforms without `fork`."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


# Native objects of the parent may depend on threads that the child lacks: the child never collects them.
in_child(gc.freeze)


def made_before_fork(what: str) -> EngineGone:
    """Return the error for `what` that was made in the parent process before a fork."""
    return EngineGone(
        f"this process was forked after {what} was created, and its threads and connections do not survive a "
        "fork: start processes with 'spawn' (multiprocessing.get_context('spawn')), or create it in each "
        "process"
    )


def only_one(library: str) -> None:
    """Record that this process uses a library whose threads cannot be restarted after a fork.

    Raises `EngineGone` if the parent process used it before the fork.
    """
    if _computing.setdefault(library, os.getpid()) != os.getpid():
        raise made_before_fork(f"an engine of {library}")


_computing: dict[str, int] = {}
