"""Print an audit in the terminal or as a page: what flips the judge, the most serious first.

Changes that may legitimately flip it come after those that should not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

from magistrate._text import counted
from magistrate.analysis.audit import Audit, Effect, Finding
from magistrate.metrics.classification import LEAST_GROUPS, Estimate
from magistrate.report.formatting import decimal, duration, lines, numbers, plain, tally, with_interval
from magistrate.types import FAITHFUL, HALLUCINATED

OPENINGS = {
    "repeated": "Asked the same question again",
    "options_swapped": "With its labels offered in the opposite order",
    "reasons": "With reasons written before the decision instead of after it",
    "padding": "With true sentences of the context added to the output",
    "contexts_shuffled": "With the context in another order",
    "formatting": "With the same words as a Markdown list",
    "noise": "With typos in function words, doubled spaces and typographic quotes",
    "hostile output": "With a hostile text in the output",
    "hostile context": "With a hostile text in the context",
}
MAY_DIFFER = ("reasons",)
"""Checks whose flips are not errors of the judge, because the question is different."""
FAULTS = "What should not flip the judge"
NO_FAULTS = "What may flip it, and is not an error"
KEY = (
    "Flipped: the share of pairs whose label changed; control: the same with harmless words of the same "
    "size; score: its mean change. Most serious first: by flips beyond the control. Brackets: 95 % intervals "
    "over other contexts (and attacks)."
)
SHORT_KEY = (
    "Flipped: the share of pairs whose label changed; control: the same with harmless words of the same "
    "size. --full: every check in words, those that do not apply too, and the recipe."
)
SURE = 0.005  # smaller changes of scores are reported as none


def words(finding: Finding, audit: Audit) -> str:
    """Return what a check found, in a sentence or two."""
    effect = finding.effect
    if effect is None:
        return f"Not applicable: {finding.not_applicable}."
    told = f"{OPENINGS.get(finding.name, finding.name)}, {_flips(effect)}"
    parts = [told, *_score(effect, audit), *_lost(effect)]
    if finding.check == "repeated" and audit.repeatable and effect.n_flips:
        parts.append("The engine promises the same answer to the same question, so no flip was expected.")
    if finding.note:
        parts.append(f"Done: {finding.note}.")
    return " ".join(parts)


def _flips(effect: Effect) -> str:
    if not effect.pairs:
        return "no result: no pair has a verdict on each side."
    ways = (
        f" ({tally({way.replace(' -> ', ' to '): n for way, n in effect.flips.items()})})"
        if effect.flips
        else ""
    )
    told = f"{effect.n_flips} of {counted(effect.pairs, 'label')} {_flip(effect.n_flips)}{ways}"
    if effect.under_control is not None and effect.under_control.value is not None:
        n = round(effect.under_control.value * effect.pairs)
        told += f"; {n} {_flip(n)} with harmless words of the same size"
        told += (
            "" if effect.excess is None else f" ({signed(effect.excess)} beyond them{_why(effect.excess)})"
        )
    return f"{told}."


def _flip(n: int) -> str:
    """Return the verb after a number of labels.

    >>> _flip(1), _flip(0)
    ('flips', 'flip')
    """
    return "flips" if n == 1 else "flip"


def _why(excess: Estimate) -> str:
    """Return why there is no interval, if it is missing for a reason that is not obvious."""
    return f", {excess.undefined}" if excess.low is None and excess.value and excess.undefined else ""


def _score(effect: Effect, audit: Audit) -> Iterator[str]:
    moved = effect.moved
    if moved.value is None:
        return
    if abs(moved.value) < SURE:
        yield "Scores do not change on average."
        return
    told = f"Scores change by {signed(moved)} on average"
    if moved.low is not None and moved.high is not None and moved.low <= 0 <= moved.high:
        told += ", which may be chance"
    elif audit.direction == "minimize" and _one_way(effect):
        told += f", towards {HALLUCINATED if moved.value > 0 else FAITHFUL}"
    control = effect.moved_under_control
    if control is not None and control.value is not None:
        told += f"; under the control by {signed(control)}"
    yield f"{told}."


def _one_way(effect: Effect) -> bool:
    """Return whether the direction of change is known: by an interval, or by agreement in enough contexts."""
    enough = effect.contexts >= LEAST_GROUPS and (effect.changes == 1 or effect.changes >= LEAST_GROUPS)
    return effect.moved.low is not None or enough


def _lost(effect: Effect) -> Iterator[str]:
    if effect.n_lost:
        reasons = [tally({f"failed ({name})": n for name, n in effect.failures.items()})]
        reasons.append(tally({f"abstained ({name})": n for name, n in effect.abstentions.items()}))
        reasons.append(
            f"{effect.unjudged} without a verdict on the unchanged sample" if effect.unjudged else ""
        )
        told = "; ".join(each for each in reasons if each)
        verb = "is" if effect.n_lost == 1 else "are"
        yield f"{effect.n_lost} of {counted(effect.trials, 'pair')} {verb} not counted: {told}."
    if effect.unchanged:
        verbs = ("does", "is") if effect.unchanged == 1 else ("do", "are")
        yield f"{counted(effect.unchanged, 'sample')} {verbs[0]} not change and {verbs[1]} not counted."


def signed(estimate: Estimate) -> str:
    """Format as `+.03 [-.01, +.07]`; a dash if there is no value."""
    if estimate.value is None:
        return "-"
    if estimate.low is None or estimate.high is None:
        return _signed(estimate.value)
    return f"{_signed(estimate.value)} [{_signed(estimate.low)}, {_signed(estimate.high)}]"


def _signed(value: float) -> str:
    sign = "-" if value < -SURE else "+"
    return f"{sign}{decimal(abs(value))}"


def facts(audit: Audit) -> list[tuple[str, str]]:
    """Return the facts that make the audit reproducible, as pairs of name and text."""
    known = [("judge", audit.judge), ("data", f"{audit.dataset}, n={audit.n_samples}")]
    known.append(("judgements", f"{audit.n_judged:,} of {audit.n_planned:,} in {duration(audit.seconds)}"))
    if audit.attacks:
        known.append(("attacks", f"{len(audit.attacks)}: {', '.join(audit.attacks)}"))
    known += [("recipe", audit.recipe), ("data sha256", audit.digest), ("seed", str(audit.seed))]
    return known


def render(audit: Audit, console: Console, *, full: bool = True) -> None:
    """Print the audit: a line per check, most serious first, then an explanation of each, then the recipe.

    Unless `full`, print one screen: only the most serious check is explained, and the recipe and checks that
    do not apply are left out.
    """
    console.print(Text.assemble("audit of ", (plain(audit.judge), "bold")))
    if not audit.complete:
        console.print(
            Text(f"not complete: {audit.n_judged} of {audit.n_planned} judgements", style="bold yellow")
        )
    for heading, found in groups(audit):
        findings = found if full else [each for each in found if each.effect is not None]
        if not findings:
            continue
        console.print()
        console.print(Text(heading, style="bold cyan"))
        table = numbers("check", "pairs", "flipped", "control", "score")
        for finding in findings:
            table.add_row(finding.name, *row(finding))
        console.print(table)
        for finding in findings if full else findings[: heading == FAULTS]:
            console.print()
            console.print(
                Text(f"{finding.name}: ", style="bold").append(plain(words(finding, audit)), style="not bold")
            )
    console.print()
    console.print(Text(KEY if full else SHORT_KEY, style="dim"))
    if full:
        console.print()
        console.print(lines(*facts(audit)))


def groups(audit: Audit) -> list[tuple[str, list[Finding]]]:
    """Return the findings by heading: what should not flip the judge, then what may; no empty groups."""
    found = (
        (FAULTS, [each for each in audit.findings if each.check not in MAY_DIFFER]),
        (NO_FAULTS, [each for each in audit.findings if each.check in MAY_DIFFER]),
    )
    return [(heading, findings) for heading, findings in found if findings]


def row(finding: Finding) -> tuple[str, str, str, str]:
    """Return pairs, flips, control and score of a finding; dashes if it does not apply."""
    effect = finding.effect
    if effect is None:
        return ("-", "-", "-", "-")
    pairs = f"{effect.pairs}/{effect.trials}"
    control = "" if effect.under_control is None else with_interval(effect.under_control)
    return pairs, with_interval(effect.flipped), control, signed(effect.moved)


def page(audit: Audit) -> str:
    """Return the audit as one self-contained HTML page. All untrusted text is escaped."""
    from magistrate.report.html import document

    def said(finding: Finding) -> dict[str, Any]:
        effect = finding.effect
        return {
            "name": finding.name,
            "cells": row(finding),
            "flipped": None if effect is None else effect.flipped,
            "control": None if effect is None else effect.under_control,
            "words": plain(words(finding, audit)),
        }

    found = [(heading, [said(each) for each in findings]) for heading, findings in groups(audit)]
    told = [(name, plain(value)) for name, value in facts(audit)]
    title = f"Audit of {audit.judge}"
    return "".join(
        document("audit.html", title=title, script="", audit=audit, groups=found, facts=told, key=KEY)
    )
