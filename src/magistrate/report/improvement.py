"""What `improve` has tried, in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from magistrate._text import decimal, p_of, signed
from magistrate.metrics.classification import Estimate
from magistrate.report.calibration import NAMES
from magistrate.report.formatting import estimated, lines, numbers, plain, tally

if TYPE_CHECKING:
    from magistrate.analysis.improvement import Attempt
    from magistrate.api.improve import Improvement

BRIER = " (Brier score)"
FOOT = (
    "On samples that nothing was learnt from: folds that share no context. Brackets: 95 % intervals, which "
    "draw contexts anew, both sides alike; a gain above 0 is better, also of a Brier score. p is corrected "
    "for the number of attempts; above .05 nothing is shown."
)


def render_improvement(found: Improvement, console: Console) -> None:
    """Print what labels there are, each attempt beside the judge, and what to do next."""
    console.print(Text.assemble((plain(found.judge), "bold"), f" of run {plain(found.run)}, used now"))
    weighted = "; each counts 1 / its probability of being drawn" if found.weighted else ""
    console.print(
        lines(
            ("labels", f"{found.labels}{weighted}"),
            (
                "samples",
                f"{found.n} in {found.contexts} contexts: {found.hallucinated} hallucinated, "
                f"{found.n - found.hallucinated} faithful",
            ),
            ("compared by", NAMES.get(found.metric, found.metric)),
            *((("left out", tally(found.left_out)),) if found.left_out else ()),
        )
    )
    console.print()
    table = numbers("attempt", "now", "then", "gain", "AUROC", "p")
    for each in found.attempts:
        if each.gain.value is not None:
            table.add_row(
                Text(each.name + BRIER * (each.metric == "brier"), "bold" if each.shown else ""),
                decimal(each.now.value),
                estimated(each.then),
                _change(each.gain),
                signed(each.auroc.value),
                p_of(each.p),
            )
    if table.row_count:
        console.print(table)
        console.print()
    console.print(lines(*((each.name, verdict(each)) for each in found.attempts)))
    console.print()
    console.print(Text(FOOT, style="dim"))


def verdict(each: Attempt) -> str:
    """What came of an attempt, in one sentence."""
    if each.gain.value is None:
        return f"not tried: {each.reason}"
    if each.shown:
        return f"better, on {each.n} samples"
    if each.reason is not None:
        return f"not kept: {each.reason}"
    if each.gain.high is not None and each.gain.high < 0:
        return f"worse, on {each.n} samples"
    seen = f"; as many labels show a gain from {decimal(each.visible)} on" if each.visible else ""
    why = f" ({each.gain.undefined})" if each.gain.undefined else ""
    return f"not shown to be better{why}{seen}"


def _change(change: Estimate) -> str:
    if change.low is None:
        return signed(change.value)
    return f"{signed(change.value)} [{signed(change.low)}, {signed(change.high)}]"
