"""Support for forked processes: threads and event loops end with a fork, and locks stay as they were.

`multiprocessing` with its start method `fork`, servers that fork their workers once the application is there,
and tests that run in forked processes copy a process in the middle of its work. What can be made anew in the
child is; what cannot says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Generic, TypeVar

from magistrate.errors import EngineGone

T = TypeVar("T")


def in_child(reset: Callable[[], None]) -> None:
    """Call `reset` in every process that is forked from this one; nothing where there is no `fork`."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)


def made_before_fork(what: str) -> EngineGone:
    """The error where `what` was made in the process that this one was forked from."""
    return EngineGone(
        f"this process was forked from one that had made {what}, whose threads and connections do not "
        "survive a fork: start processes with 'spawn' (multiprocessing.get_context('spawn')), or make it "
        "in each of them"
    )


def only_one(library: str) -> None:
    """Note that this process computes with a library whose threads cannot be started again after a fork.

    Raises `EngineGone` where the process that this one was forked from did so before.
    """
    if _computing.setdefault(library, os.getpid()) != os.getpid():
        raise made_before_fork(f"an engine of {library}")


class PerProcess(Generic[T]):
    """What `make` makes, made anew in a process that was forked. What the parent had is left alone."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[int, T] = {}

    def get(self) -> T:
        """This process's own."""
        if (process := os.getpid()) not in self._made:
            self._made[process] = self._make()
        return self._made[process]


_computing: dict[str, int] = {}
