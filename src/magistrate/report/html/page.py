"""A run's report as one HTML file that stands alone: no network, no handler, no script but its own.

A policy in the file names the hashes of the one style sheet and the one script, so a browser runs nothing
else, whatever stands in the texts on trial. Everything that a template prints is escaped, after every control
character was made visible.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from magistrate._text import seen
from magistrate._version import __version__
from magistrate.engines.prices import Price
from magistrate.report.baselines import FOOTNOTE
from magistrate.report.figures import decimal
from magistrate.report.html.listing import Listed, is_right, listed
from magistrate.report.html.rows import row_of, said_of
from magistrate.report.html.views import comparison, judge_view, matrix, run_facts
from magistrate.report.scores import Scores
from magistrate.report.values import Report
from magistrate.store.runs import RunRecord
from magistrate.types import Outcome, Sample, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment

ROWS = 2_000
"""Outcomes listed in a page, unless somebody asks for another number."""

LOOKS = ("faithful", "hallucinated", "failed", "abstained")  # what the style sheet knows


def page(
    report: Report,
    record: RunRecord,
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    *,
    rows: int = ROWS,
    price: Price | None = None,
) -> Iterator[str]:
    """The pieces of the file, in order; the same arguments give the same pieces.

    `outcomes` of `samples` (by id) are gone through once; at most `rows` of them are listed, and the page
    says what is left out. The figures are those of `report`; `price` is what tokens cost, None where nobody
    knows.
    """
    scores = Scores(samples)
    listing = listed(samples, scores.noting(outcomes), rows)
    judges = [
        judge_view(judge, number, scores.of(judge.judge).charts(judge, f"c{number}"), price)
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
    """A template of this package that extends `base.html`, filled in, with its policy, style and script.

    `script` takes the place of the one that filters a listing; an empty one leaves the page without any.
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
    """A file of this package."""
    return files("magistrate.report.html").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup

    def visible(value: Any) -> Any:
        """What every expression of a template goes through before it is escaped."""
        return seen(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    made = Environment(
        loader=FunctionLoader(text_of),
        autoescape=True,
        finalize=visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"matrix": matrix, "css": _look, "decimal": decimal}
    made.filters["drawn"] = Markup  # pictures are our own, see `report.charts`
    return made


def _look(label: str | None) -> str:
    """The class of a label: a word of ours, never one of somebody else's."""
    return label if label in LOOKS else "other"


def _unfinished(report: Report) -> str | None:
    run = report.run
    if run.status == "done":
        return None
    judged = sum(judge.n_judged for judge in report.judges)
    asked = run.n_total * len(report.judges)
    told = f"{judged:,} of {asked:,} judgements are made, and every figure is of those"
    return f"This run is {run.status}: {told}."


def _choices(samples: Mapping[str, Sample], listing: Listed) -> dict[str, list[str]]:
    """What can be chosen in each filter."""
    found: dict[str, set[str]] = {name: set() for name in ("judge", "judged", "gold", "right")}
    for outcome in listing.outcomes:
        sample = samples[outcome.sample_id]
        found["judge"].add(outcome.judge)
        found["judged"].add(said_of(outcome).judged)
        found["gold"] |= {sample.label} if sample.label else set()
        found["right"] |= set() if is_right(sample, outcome) is None else {"known"}
    return {name: sorted(values) for name, values in found.items()}


def _kinds(samples: Mapping[str, Sample], listing: Listed) -> list[str]:
    """The kinds of marks that the page has, in the order of the legend."""
    found: set[str] = {c.kind for o in listing.outcomes if isinstance(o, Verdict) for c in o.claims}
    gold = any(samples[o.sample_id].spans for o in listing.outcomes)
    kinds: list[str] = [kind for kind in ("contradiction", "unsupported", "agreement") if kind in found]
    return [*kinds, "gold"] if gold else kinds
