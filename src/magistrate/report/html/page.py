"""Render a run's report as HTML: a self-contained file, and a fragment for notebooks.

The file needs no network, and contains no event handlers and only one script. Its content security policy
has the hashes of the one style sheet and the one script, so a browser runs nothing else, whatever the
judged texts contain. Everything that a template prints is escaped, after control characters are made
visible.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from magistrate._text import NEUTRAL, card, safe, table
from magistrate._version import __version__
from magistrate.engines.prices import Price
from magistrate.judges.rubric import KINDS
from magistrate.metrics.classification import METRICS
from magistrate.report.charts import charts_of
from magistrate.report.counts import Scores
from magistrate.report.formatting import decimal, duration, template_environment
from magistrate.report.html.outcomes import Listed, judged_right, listed, outcome_text, row_of
from magistrate.report.values import (
    FOOTNOTE,
    JudgeReport,
    Report,
    comparison,
    fact_lines,
    figure,
    judge_view,
    matrix,
    name_of,
    run_facts,
)
from magistrate.store.runs import RunRecord
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment


ROWS = 2_000
"""Outcomes listed in a page, unless another number is asked for."""


def page(
    report: Report,
    record: RunRecord,
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    *,
    rows: int = ROWS,
    price: Price | None = None,
) -> Iterator[str]:
    """Yield the pieces of the file, in order. The same arguments give the same pieces.

    `outcomes` of `samples` (by id) are read once. At most `rows` of them are listed, and the page states
    what is left out. The metrics are those of `report`. `price` is the price of tokens, or None if unknown.
    """
    scores = Scores(samples)
    listing = listed(samples, scores.collect(outcomes), rows)
    judges = [
        judge_view(judge, number, charts_of(scores.of(judge.judge), judge), price)
        for number, judge in enumerate(report.judges, 1)
    ]
    yield from document(
        "page.html",
        title=report.run.name,
        run_id=report.run.id,
        facts=run_facts(report, record),
        unfinished=_unfinished(report),
        judges=judges,
        several=len(judges) > 1,
        comparison=list(comparison(report)),
        measured=any(judge.result for judge in report.judges),
        footnote=FOOTNOTE,
        listing=listing,
        choices=_choices(samples, listing),
        kinds=_kinds(samples, listing),
        rows=(row_of(samples[outcome.sample_id], outcome) for outcome in listing.outcomes),
    )


def document(template: str, *, title: str, script: str | None = None, **values: Any) -> Iterator[str]:
    """Render a template of this package that extends `base.html`, with its policy, style and script.

    `script` replaces the default one, which filters a listing; an empty text means no script.
    """
    from markupsafe import Markup

    style, script = text_of("style.css"), text_of("script.js") if script is None else script
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    filled = _environment().get_template(template)
    yield from filled.generate(
        title=title, policy=policy, style=Markup(style), script=Markup(script), version=__version__, **values
    )


@cache
def text_of(name: str) -> str:
    """Return the text of a file of this package."""
    return files("magistrate.report.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    from jinja2 import FunctionLoader

    made = template_environment(FunctionLoader(text_of))
    made.globals["matrix"] = matrix
    return made


def _unfinished(report: Report) -> str | None:
    run = report.run
    if run.status == "done":
        return None
    judged = sum(judge.n_judged for judge in report.judges)
    asked = run.n_total * len(report.judges)
    told = f"{judged:,} of {asked:,} judgements are done, and all figures are based on them"
    return f"This run is {run.status}: {told}."


def _choices(samples: Mapping[str, Sample], listing: Listed) -> dict[str, list[str]]:
    """Return the options of each filter."""
    found: dict[str, set[str]] = {name: set() for name in ("judge", "judged", "gold", "right")}
    for outcome in listing.outcomes:
        sample = samples[outcome.sample_id]
        found["judge"].add(outcome.judge)
        found["judged"].add(outcome_text(outcome).judged)
        found["gold"] |= {sample.label} if sample.label else set()
        found["right"] |= set() if judged_right(sample, outcome) is None else {"known"}
    return {name: sorted(values) for name, values in found.items()}


def _kinds(samples: Mapping[str, Sample], listing: Listed) -> list[str]:
    """Return the kinds of marks on the page, in the order of the legend."""
    found: set[str] = {c.kind for o in listing.outcomes if isinstance(o, Verdict) for c in o.claims}
    gold = any(samples[o.sample_id].spans for o in listing.outcomes)
    kinds = [kind for kind in KINDS if kind in found]
    return [*kinds, "gold"] if gold else kinds


# --- a fragment for notebooks ---------------------------------------------------------------------


def report_html(report: Report) -> str:
    """Render the run, a comparison of several judges, and each judge's metrics, matrix and remarks."""
    run = report.run
    facts = [("data", run.dataset), ("samples", f"{run.n_total:,}"), ("status", run.status)]
    if run.unread is not None and run.unread.n:
        facts.append(("unread", str(run.unread)))
    if run.seconds is not None:
        facts.append(("time", duration(run.seconds)))
    if run.name != run.id:
        facts.append(("run", run.id))
    parts = [card(run.name, NEUTRAL, facts, run.reason)]
    if len(report.judges) > 1:
        metrics = ("balanced_accuracy", "f1", "auroc")
        rows = (
            (j.judge, f"{j.n_ok:,}/{j.n_total:,}", *(figure(j, metric) for metric in metrics))
            for j in report.judges
        )
        parts.append(table(("judge", "verdicts", *map(name_of, metrics)), rows))
    for judge in report.judges:
        parts += _judge_html(judge)
    return f'<div style="max-width:60em">{"".join(parts)}</div>'


def _judge_html(judge: JudgeReport) -> Iterator[str]:
    name = safe(judge.judge)
    yield f'<h4 style="margin:1.2em 0 .2em;font-family:system-ui,sans-serif">{name}</h4>'
    if judge.result is not None:
        yield table(
            ("figure", "judge", *(name_of(each.name) for each in judge.baselines)),
            (
                (
                    name_of(metric),
                    figure(judge, metric),
                    *(decimal(b.metrics[metric]) for b in judge.baselines),
                )
                for metric in METRICS
            ),
        )
        c = judge.result.confusion
        yield table(
            ("truth \\ judged", HALLUCINATED, FAITHFUL),
            (
                (HALLUCINATED, f"{c.true_positive:,}", f"{c.false_negative:,}"),
                (FAITHFUL, f"{c.false_positive:,}", f"{c.true_negative:,}"),
            ),
        )
    remarks = [("remark", remark) for remark in judge.remarks]
    yield table(("", ""), [*remarks, *fact_lines(judge)], left=2)
