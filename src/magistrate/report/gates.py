"""Gates: a figure that must be reached, for scripts and CI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from magistrate.errors import SpecError
from magistrate.report.values import JudgeReport, Report
from magistrate.stats.classification import METRICS

PATTERN = re.compile(r"(?:(?P<judge>.+)\.)?(?P<metric>[a-z0-9_]+)\s*>=\s*(?P<least>[0-9.]+)")
FIGURES = (*METRICS, "coverage")


LEAST_COVERAGE = 0.9  # a figure that rests on less of the run is no figure of the run


@dataclass(frozen=True, slots=True)
class Gate:
    """`METRIC>=VALUE` for every judge, or `JUDGE.METRIC>=VALUE` for one; values are in [0, 1].

    A figure that could not be measured fails its gate, and so does one of a judge that has verdicts
    for less than `LEAST_COVERAGE` of the samples.
    """

    metric: str
    least: float
    judge: str | None = None

    @classmethod
    def parse(cls, text: str, judges: Sequence[str]) -> Gate:
        """Read a gate on these judges. Raises `SpecError` with what is known."""
        match = PATTERN.fullmatch(text.strip())
        if match is None or match["metric"] not in FIGURES:
            raise SpecError(
                f"a gate is written METRIC>=VALUE, such as f1>=0.7; got {text!r}; known: {', '.join(FIGURES)}"
            )
        try:
            least = float(match["least"])
        except ValueError:
            raise SpecError(f"{match['least']!r} in the gate {text!r} is not a number") from None
        if least > 1:
            raise SpecError(f"figures are in [0, 1], so the gate {text!r} can never be passed")
        if match["judge"] not in (None, *judges):
            raise SpecError(f"the gate {text!r} is on no judge of this run; it has: {', '.join(judges)}")
        return cls(match["metric"], least, match["judge"])

    def broken(self, report: Report) -> Iterator[str]:
        """In words, every judge that does not reach the figure."""
        for judge in report.judges:
            if self.judge in (None, judge.judge) and (reason := self._broken(judge)):
                yield f"{judge.judge}: {reason}"

    def _broken(self, judge: JudgeReport) -> str | None:
        coverage = judge.coverage or 0.0
        if self.metric == "coverage":
            value: float | None = coverage
        elif coverage < LEAST_COVERAGE:
            return f"{self.metric} rests on {coverage:.1%} of the samples, less than {LEAST_COVERAGE:.0%}"
        else:
            value = judge.result.metrics[self.metric].value if judge.result else None
        if value is None:
            return f"{self.metric} could not be measured"
        return f"{self.metric} is {value:.3f}, not at least {self.least:g}" if value < self.least else None
