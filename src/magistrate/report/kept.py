"""Figures that a store keeps: a judge's report and scores as it holds them, and back."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from magistrate._version import __version__
from magistrate.report.scores import JudgeScores
from magistrate.report.values import JudgeReport
from magistrate.store.figures import KeptFigures

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MADE_BY = f"{__version__}/4"
"""The code that counts; the number goes up with every change of what is counted or how it is kept."""

HEADING = ("balanced_accuracy", "accuracy")
SHARE = "hallucinated_share"


def kept(judge: JudgeReport, place: int, scores: JudgeScores) -> KeptFigures:
    """What the store keeps of a judge's part in a run, the judge at `place` in it."""
    metric, value, low, high = _heading(judge)
    return KeptFigures(
        judge=judge.judge,
        place=place,
        made_by=MADE_BY,
        n_total=judge.n_total,
        n_ok=judge.n_ok,
        n_failures=sum(judge.failures.values()),
        n_abstentions=sum(judge.abstentions.values()),
        metric=metric,
        value=value,
        low=low,
        high=high,
        # Not pydantic's own JSON, which has no word for half of a surrogate pair.
        body=json.dumps(_adapter().dump_python(judge, mode="json")),
        scores=scores.to_bytes(),
    )


def report_from(figures: KeptFigures) -> JudgeReport:
    """The report that was kept."""
    report: JudgeReport = _adapter().validate_python(json.loads(figures.body))
    return report


def scores_from(figures: KeptFigures) -> JudgeScores:
    """The scores that were kept."""
    return JudgeScores.from_bytes(figures.scores)


def _heading(judge: JudgeReport) -> tuple[str | None, float | None, float | None, float | None]:
    """The figure that heads a judge's part: how well it judges, else how much it calls hallucinated."""
    if judge.result is not None:
        for metric in HEADING:
            found = judge.result.metrics[metric]
            if found.value is not None:
                return metric, found.value, found.low, found.high
    if judge.hallucinated_share is not None:
        return SHARE, judge.hallucinated_share, None, None
    return None, None, None, None


@cache
def _adapter() -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(JudgeReport)
