"""Deterministic sampling of traces by a hash of the trace id, so that every process draws the same ones."""

from __future__ import annotations

from hashlib import sha256

_SALT = "magistrate:watch:v1"
_BITS = 53  # a float represents integers of this many bits exactly


def share(trace_id: str, *cohort: str) -> float:
    """Map a trace to a number in [0, 1), uniform over traces and independent between cohorts.

    A rule with rate .1 takes the traces below .1. Rules of one cohort take nested sets: the traces of a
    smaller rate are a subset of those of a larger one.

    >>> share("0af7651916cd43dd8448eb211c80319c", "refunds") < 1
    True
    """
    words = "\0".join((_SALT, *cohort, trace_id)).encode("utf-8", "surrogatepass")
    return (int.from_bytes(sha256(words).digest()[:8], "big") >> (64 - _BITS)) / (1 << _BITS)


def is_drawn(rate: float, trace_id: str, *cohort: str) -> bool:
    """Return whether a trace is in the sample of share `rate`."""
    return share(trace_id, *cohort) < rate
