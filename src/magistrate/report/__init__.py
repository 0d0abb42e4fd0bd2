"""Reports of a run: metrics computed from outcomes, shown in the terminal, as HTML and in files.

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magistrate._lazy import attributes

if TYPE_CHECKING:
    from magistrate.report.export import table, to_pandas
    from magistrate.report.summary import baselines, summarize
    from magistrate.report.terminal import outcome_panel, render
    from magistrate.report.values import Baseline, JudgeReport, Report, RunFacts

_MODULE_OF = {
    "table": "export",
    "to_pandas": "export",
    "baselines": "summary",
    "summarize": "summary",
    "outcome_panel": "terminal",
    "render": "terminal",
    "Baseline": "values",
    "JudgeReport": "values",
    "Report": "values",
    "RunFacts": "values",
}

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

if not TYPE_CHECKING:  # hidden from type checkers, which would accept every misspelt name
    __getattr__ = attributes(__name__, _MODULE_OF)
