"""Outcomes become numbers with their recipe, and are shown."""

from magistrate.report.baselines import Baseline, baselines
from magistrate.report.frames import table, to_pandas
from magistrate.report.summary import summarize
from magistrate.report.terminal import outcome_panel, render
from magistrate.report.values import JudgeReport, Report, RunFacts

__all__ = [
    "Baseline",
    "JudgeReport",
    "Report",
    "RunFacts",
    "baselines",
    "outcome_panel",
    "render",
    "summarize",
    "table",
    "to_pandas",
]
