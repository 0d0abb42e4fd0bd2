"""Gates: a figure that must be reached, for scripts and CI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from magistrate.errors import SpecError
from magistrate.report.values import Report
from magistrate.stats.classification import METRICS

PATTERN = re.compile(r"(?:(?P<judge>.+)\.)?(?P<metric>[a-z0-9_]+)\s*>=\s*(?P<least>[0-9.]+)")
FIGURES = (*METRICS, "coverage")


@dataclass(frozen=True, slots=True)
class Gate:
    """`METRIC>=VALUE` for every judge, or `JUDGE.METRIC>=VALUE` for one; values are in [0, 1].

    A figure that could not be measured fails its gate.
    """

    metric: str
    least: float
    judge: str | None = None

    @classmethod
    def parse(cls, text: str) -> Gate:
        """Read a gate. Raises `SpecError` with what is known."""
        match = PATTERN.fullmatch(text.strip())
        if match is None or match["metric"] not in FIGURES:
            raise SpecError(
                f"a gate is written METRIC>=VALUE, such as f1>=0.7; got {text!r}; known: {', '.join(FIGURES)}"
            )
        try:
            least = float(match["least"])
        except ValueError:
            raise SpecError(f"{match['least']!r} in the gate {text!r} is not a number") from None
        return cls(match["metric"], least, match["judge"])

    def broken(self, report: Report) -> Iterator[str]:
        """In words, every judge that does not reach the figure."""
        judges = [judge for judge in report.judges if self.judge in (None, judge.judge)]
        if not judges:
            yield f"no judge {self.judge!r} in this run"
        for judge in judges:
            if self.metric == "coverage":
                value = judge.coverage
            else:
                value = judge.result.metrics[self.metric].value if judge.result else None
            if value is None:
                yield f"{judge.judge}: {self.metric} could not be measured"
            elif value < self.least:
                yield f"{judge.judge}: {self.metric} is {value:.3f}, not at least {self.least:g}"
