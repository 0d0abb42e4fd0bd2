"""Print a calibration and the share of hallucinated outputs (prevalence), in terminal and notebook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from magistrate import _text
from magistrate._text import counted, decimal
from magistrate.analysis.calibration import LOSS_NAMES
from magistrate.metrics.reliability import LOSSES, Bin, Reliability
from magistrate.metrics.thresholds import RATES
from magistrate.report.formatting import (
    change,
    estimated,
    first_remark,
    interval,
    lines,
    numbers,
    plain,
    tally,
    with_interval,
)

if TYPE_CHECKING:
    from magistrate.analysis.calibration import Fit
    from magistrate.judges.calibration_file import CalibrationFile
    from magistrate.metrics.prevalence import Prevalence


NAMES = {
    **LOSS_NAMES,
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "flagged": "share flagged",
    "cost": "cost a sample",
}
SHORT_FACTS = ("samples", "left out", "base rate", "threshold")
BAR = 24  # width in columns of a bar of 1
KEY = (
    "Bar: the share of these samples that is really hallucinated. │: their mean score. If scores are "
    "probabilities, the bar ends there."
)
SHORT_FOOT = (
    "After: on held-out samples only. Brackets: 95 % intervals; in parentheses the ECE by chance. --full: "
    "reliability by score, and how the calibration was fitted."
)
FOOT = (
    "After: on held-out samples only, with calibrations and thresholds fitted to the other folds. Brackets: "
    "95 % intervals; for a bin as if each sample had its own context, otherwise from a bootstrap of "
    "contexts. In parentheses after the ECE: its value by chance for perfectly calibrated scores."
)


def render_calibration(fit: Fit, told: CalibrationFile, console: Console, *, full: bool = True) -> None:
    """Print the fit, the reliability of scores before and after it, metrics and remarks.

    Unless `full`, print one screen: the samples and the threshold, the metrics, and one remark.
    """
    head = Text.assemble((plain(told.judge.words), "bold"), f"  {fit.method} on {plain(told.data.dataset)}")
    console.print(head)
    if not full:
        console.print(lines(*((name, each) for name, each in _facts(fit, told) if name in SHORT_FACTS)))
        console.print()
        console.print(_figures(fit))
        if remark := first_remark(fit.remarks):
            console.print()
            console.print(remark)
        console.print()
        console.print(Text(SHORT_FOOT, style="dim"))
        return
    console.print(lines(*_facts(fit, told)))
    for name, measured in (("before", fit.before), ("after, held out", fit.after)):
        console.print()
        console.print(Text(f"── {name} ", style="bold cyan"))
        console.print(diagram(measured.reliability))
    console.print(Text(KEY, style="dim"))
    console.print()
    console.print(_figures(fit))
    if fit.remarks:
        console.print()
        console.print(lines(*(("remark", each) for each in fit.remarks), style="yellow"))
    console.print()
    console.print(Text(FOOT, style="dim"))


def diagram(found: Reliability) -> Table:
    """Return a reliability diagram with one row per bin of scores."""
    table = numbers("scores", "n", "mean", "hallucinated")
    table.add_column("0" + " " * (BAR - 1) + "1", no_wrap=True)
    for each in found.bins:
        ends = f"{decimal(each.low)} to {decimal(each.high)}"
        table.add_row(ends, str(each.n), decimal(each.mean_score), estimated(each.observed), _bar(each))
    return table


def figures_html(fit: Fit, told: CalibrationFile) -> str:
    """Return metrics and remarks as escaped HTML."""
    rows = [
        [
            NAMES.get(name, name),
            *(
                with_interval(each.figures[name]) + _chance(name, each.reliability)
                for each in (fit.before, fit.after)
            ),
            change(each),
        ]
        for name, each in fit.change.items()
    ]
    head = [f"{told.judge.words}, {fit.method}", "before", "after, held out", "change"]
    facts = [["remark", each] for each in fit.remarks]
    facts = [[name, words] for name, words in _facts(fit, told)] + facts
    return _text.table(head, rows) + _text.table(["", ""], facts, left=2)


def _bar(each: Bin) -> Text:
    share, mark = round(BAR * (each.observed.value or 0)), min(round(BAR * each.mean_score), BAR)
    cells = ["█" if at < share else " " for at in range(BAR + 1)]
    cells[mark] = "│"
    return Text("".join(cells))


def _figures(fit: Fit) -> Table:
    table = numbers("figure", "before", "after", "change")
    for name in (*LOSSES, *RATES, "cost"):
        if name in fit.change:
            before, after = fit.before.figures[name], fit.after.figures[name]
            cells = [estimated(before), estimated(after)]
            if name == "ece":
                cells = [_beside_chance(each.reliability) for each in (fit.before, fit.after)]
            table.add_row(NAMES.get(name, name), *cells, change(fit.change[name]))
    return table


def _beside_chance(found: Reliability) -> Text:
    """Return an ECE, and in parentheses the ECE that perfectly calibrated scores would show at this n."""
    return Text.assemble((decimal(found.ece), "bold"), " ", (f"({decimal(found.ece_by_chance)})", "dim"))


def _chance(name: str, found: Reliability) -> str:
    return f" ({decimal(found.ece_by_chance)} by chance)" if name == "ece" else ""


def _facts(fit: Fit, told: CalibrationFile) -> Iterator[tuple[str, str]]:
    yield (
        "samples",
        f"{fit.n} in {counted(fit.contexts, 'context')}: {fit.positives} hallucinated, "
        f"{fit.n - fit.positives} faithful",
    )
    if fit.left_out:
        yield "left out", tally(fit.left_out)
    yield "model", f"{told.model.name} #{told.model.fingerprint[:12]}" if told.model.fingerprint else "none"
    yield "folds", f"{fit.folds} without shared contexts, seed {fit.seed}"
    if fit.base_rate is not None:
        yield (
            "base rate",
            f"{fit.base_rate:g} hallucinated where it will be used; fits and figures are weighted",
        )
    if fit.method == "isotonic":
        yield "fitted", f"isotonic steps with {len(fit.calibrator.parameters['scores'])} points"
    else:
        values = (f"{name} {value[0]:.3f}" for name, value in fit.calibrator.parameters.items())
        yield "fitted", ", ".join(values)
    aim = "no aim: the likelier label" if fit.aim is None else f"chosen {_aim(fit)}"
    yield "threshold", f"{fit.threshold:.3f} of the calibrated score; {aim}"


def _aim(fit: Fit) -> str:
    aim = fit.aim
    assert aim is not None
    match aim.kind:
        case "maximize":
            return f"to maximize {NAMES.get(aim.metric, aim.metric)}"
        case "precision":
            return f"for the highest recall with a precision of at least {aim.least:g}"
        case "recall":
            return f"for the highest precision with a recall of at least {aim.least:g}"
        case "costs":
            return (
                f"for the lowest cost, with {aim.miss:g} for a miss and {aim.false_alarm:g} for a false alarm"
            )


# --- the share of hallucinated outputs --------------------------------------------------------------


PREVALENCE_ROWS = {
    "corrected": "corrected (PPI++)",
    "labelled": "labels alone",
    "naive": "the judge alone",
    "rogan_gladen": "Rogan-Gladen",
}
PREVALENCE_ASSUMES = (
    "Assumption: the labelled samples are a random sample of the estimated outputs. Brackets: 95 % "
    "intervals, in which samples of one context count together; the one of the judge alone ignores its "
    "errors."
)


def render_prevalence(
    found: Prevalence,
    head: str,
    facts: tuple[tuple[str, str], ...],
    remarks: tuple[str, ...],
    console: Console,
) -> None:
    """Print the four estimates, the data behind them, and their limitations."""
    console.print(Text(plain(head), style="bold"))
    console.print()
    table = numbers("share that is hallucinated", "estimate")
    for name, words in PREVALENCE_ROWS.items():
        estimate = getattr(found, name)
        table.add_row(words, estimated(estimate) if estimate.value is not None else "-")
    console.print(table)
    console.print()
    console.print(lines(*facts, *_prevalence_facts(found)))
    if remarks:
        console.print(lines(*(("remark", each) for each in remarks), style="yellow"))
    console.print()
    console.print(Text(PREVALENCE_ASSUMES, style="dim"))


def prevalence_html(
    found: Prevalence, head: str, facts: tuple[tuple[str, str], ...], remarks: tuple[str, ...]
) -> str:
    """Return the estimates of `render_prevalence` as escaped HTML."""
    rows = [
        [words, decimal(getattr(found, name).value), interval(getattr(found, name))]
        for name, words in PREVALENCE_ROWS.items()
    ]
    told = [
        *facts,
        *_prevalence_facts(found),
        *(("remark", each) for each in remarks),
        ("assumed", PREVALENCE_ASSUMES),
    ]
    return _text.table([head, "share", "95 %"], rows) + _text.table(["", ""], told, left=2)


def _prevalence_facts(found: Prevalence) -> Iterator[tuple[str, str]]:
    worth = ""
    if found.worth is not None and found.worth > found.n_labelled:
        worth = f"; with the judge, the {found.n_labelled} labels are worth {found.worth:.0f}"
    yield "tuning", f"λ {decimal(found.tuning)}: 0 ignores the judge, 1 uses it fully{worth}"
    for name, words in PREVALENCE_ROWS.items():
        if reason := getattr(found, name).undefined:
            yield "undefined" if getattr(found, name).value is None else "no interval", f"{words}: {reason}"
