"""How numbers are written in reports."""

from __future__ import annotations

from collections.abc import Mapping

from magistrate._text import decimal as decimal
from magistrate.metrics.classification import Estimate


def interval(estimate: Estimate) -> str:
    """The 95 % interval of an estimate, `[.55, .69]`; empty where there is none."""
    if estimate.low is None:
        return ""
    return f"[{decimal(estimate.low)}, {decimal(estimate.high)}]"


def duration(seconds: float | None) -> str:
    """Seconds as a person would say them.

    >>> duration(0.0421), duration(3.14), duration(200), duration(None)
    ('42 ms', '3.1 s', '3 min 20 s', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 0.9995:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def tally(counts: Mapping[str, int]) -> str:
    """Counts by name: `5 timeout, 1 budget`."""
    return ", ".join(f"{n} {name}" for name, n in counts.items())
