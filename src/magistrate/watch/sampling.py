"""Which traces a rule takes: drawn by the trace's id, so that everybody who draws gets the same ones."""

from __future__ import annotations

from hashlib import sha256

_SALT = "magistrate:watch:v1"
_BITS = 53  # as many as a float holds exactly


def share(trace_id: str, *cohort: str) -> float:
    """Where a trace stands in [0, 1), uniform over traces; another cohort draws independently.

    A rule of rate .1 takes those below .1. Rules of one cohort take the same traces, those of a smaller rate
    a part of what those of a greater one take.

    >>> share("0af7651916cd43dd8448eb211c80319c", "refunds") < 1
    True
    """
    words = "\0".join((_SALT, *cohort, trace_id)).encode("utf-8", "surrogatepass")
    return (int.from_bytes(sha256(words).digest()[:8], "big") >> (64 - _BITS)) / (1 << _BITS)


def is_drawn(rate: float, trace_id: str, *cohort: str) -> bool:
    """Whether a trace is among the share `rate` of all."""
    return share(trace_id, *cohort) < rate
