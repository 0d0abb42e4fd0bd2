"""What counting needs, imported before the first page asks for it."""

from __future__ import annotations

from threading import Lock

_one_at_a_time = Lock()
_is_done = False


def prepare() -> None:
    """Return when everything is there; call this before counting in a thread.

    Some libraries look at others that are loaded and fail where one is half imported by another thread.
    """
    global _is_done
    if _is_done:
        return
    with _one_at_a_time:
        from magistrate.metrics.classification import classification

        classification([True, False], [True, False], [1.0, 0.0], [0, 1])
        _is_done = True
