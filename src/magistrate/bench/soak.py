"""Many requests through one process: does its memory stay flat?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from magistrate.bench.contender import Measured
from magistrate.bench.process import Child
from magistrate.bench.workload import Workload
from magistrate.errors import EngineError

SOAKED = "magistrate"  # the contender that is soaked
IN_FLIGHT = 16
BATCH = 100  # requests between two words of progress


@dataclass(frozen=True, slots=True)
class Soak:
    """Resident set in MB after a tenth of `requests` and after all of them, which took `seconds`."""

    requests: int
    seconds: float
    early_mb: float
    late_mb: float

    @property
    def growth_mb(self) -> float:
        """How much more memory the later nine tenths took."""
        return self.late_mb - self.early_mb

    def to_dict(self, model: str) -> dict[str, Any]:
        """A row like those of the works, with the growth as its value."""
        row = {"engine": SOAKED, "model": model, "work": "soak", "in_flight": IN_FLIGHT}
        return {**row, "value": self.growth_mb, "unit": "MB", **asdict(self)}


def soak(
    open_child: Callable[[], Child], workload: Workload, requests: int, tell: Callable[[str], None]
) -> Soak:
    """Send `requests` short requests of all verbs and look at the memory on the way.

    Raises `EngineError` where a request fails or the system does not tell the memory.
    """
    early = max(requests // 10, 1)
    with open_child() as child:
        seconds = _sent(child, workload, early, tell)
        before = _resident(child.measure("memory"))
        seconds += _sent(child, workload, requests - early, tell)
        after = _resident(child.measure("memory"))
    return Soak(requests, seconds, before, after)


def _sent(child: Child, workload: Workload, requests: int, tell: Callable[[str], None]) -> float:
    """The seconds that so many requests took."""
    seconds = 0.0
    for start in range(0, requests, BATCH):
        tell(f"soak: {requests - start:,} requests to go")
        questions = workload.questions(min(BATCH, requests - start))
        seconds += child.measure("soak", questions, IN_FLIGHT).seconds
    return seconds


def _resident(measured: Measured) -> float:
    if "now" not in measured.extra:
        raise EngineError("this system does not tell how much memory a process has now")
    return measured.extra["now"]
