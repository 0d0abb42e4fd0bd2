"""Reports of a run: metrics computed from outcomes, shown in the terminal, as HTML and in files."""

from magistrate.report.export import table, to_pandas
from magistrate.report.summary import baselines, summarize
from magistrate.report.terminal import outcome_panel, render
from magistrate.report.values import Baseline, JudgeReport, Report, RunFacts

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
