"""Print the agreement of a judge with its reference in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from magistrate._text import counted, percent
from magistrate.analysis.agreement import Agreement, AgreementReport, Raters
from magistrate.report.formatting import cut, decimal, estimated, first_remark, lines, numbers, plain, tally

NAMES = {
    "observed": "observed agreement",
    "kappa": "Cohen's kappa",
    "linear": "kappa, linear weights",
    "quadratic": "kappa, quadratic weights",
    "alpha": "Krippendorff's alpha",
    "ac1": "Gwet's AC1",
    "scores": "concordance of scores",
}
SLICED = ("observed", "kappa", "alpha", "ac1")
SHORT = {"observed": "observed", "kappa": "kappa", "alpha": "alpha", "ac1": "AC1"}
LEAST_EXCERPT = 8  # width in columns below which no excerpt is shown
WIDE = 118  # width in columns from which slices show every metric


def render_agreement(
    report: AgreementReport, console: Console, listed: int = 10, *, full: bool = True
) -> None:
    """Print the agreement metrics, the table, the slices and the first `listed` disagreements.

    Unless `full`, print one screen: without the disagreements, and only the first remark.
    """
    if not full:
        for part in _short(report, console):
            console.print(part)
        return
    for part in _parts(report, console, listed):
        console.print(part)
    if report.overall.n:
        console.print()
        notes = ["Brackets: 95 % intervals, from a bootstrap of whole contexts."]
        if report.places is not None and len(report.labels) > 2:
            notes.append(_weights(report.labels, report.places))
        if "scores" in report.overall.figures:
            notes.append("Concordance (Lin): kappa of the scores, weighted by their squared distance.")
        console.print(Text(" ".join(notes), style="dim"))


def _weights(labels: tuple[str, ...], places: tuple[float, ...]) -> str:
    """Return a sentence that explains the weights of the weighted kappas."""
    order = " < ".join(map(plain, labels))
    if places == tuple(range(len(labels))):
        return (
            f"Weighted kappa: labels that are n places apart in {order} count as a disagreement of n, or "
            "of n squared."
        )
    return (
        "Weighted kappa: a disagreement counts as the difference of the labels as numbers, or as its "
        f"square ({order})."
    )


def _short(report: AgreementReport, console: Console) -> Iterator[RenderableType]:
    yield from _compared(report, console)
    if remark := first_remark(report.remarks):
        yield ""
        yield remark
    yield ""
    more = f" --full: {counted(len(report.disagreements), 'disagreement')}." if report.disagreements else ""
    yield Text(f"Brackets: 95 % intervals.{more}", style="dim")


def _parts(report: AgreementReport, console: Console, listed: int) -> Iterator[RenderableType]:
    yield from _compared(report, console)
    if report.remarks:
        yield ""
        yield lines(*(("remark", each) for each in report.remarks), style="yellow")
    yield from _disagreements(report, console.width, listed)


def _compared(report: AgreementReport, console: Console) -> Iterator[RenderableType]:
    overall = report.overall
    yield Text.assemble((plain(report.judge), "bold cyan"), " against ", (plain(report.reference), "bold"))
    contexts = counted(overall.n_contexts, "context")
    compared = f"{overall.n} of {counted(report.n_total, 'sample')} compared, {contexts}"
    yield Text(plain(f"run {report.run}  ·  {compared}"))
    if report.left_out:
        yield Text(plain(f"left out: {tally(report.left_out)}"))
    yield ""
    if overall.n:
        yield _matrix(report, console.width)
        yield ""
    yield _figures(overall)
    reasons = [(NAMES[name], each.undefined) for name, each in overall.figures.items() if each.undefined]
    if reasons:
        yield ""
        yield lines(*((name, reason or "") for name, reason in reasons))
    if report.raters is not None:
        yield ""
        yield from _raters(report.raters)
    if report.slices:
        yield ""
        yield _slices(report, console.width)


def _matrix(report: AgreementReport, width: int) -> Table:
    """Return the table of labels: reference in rows, judge in columns, with the base rates of both."""
    overall = report.overall
    room = max((width - 30) // len(report.labels) - 2, 3)
    table = numbers("reference \\ judge", *(cut(label, room) for label in report.labels), "share")
    for label, row in zip(report.labels, overall.table, strict=True):
        table.add_row(plain(label), *map(str, row), percent(sum(row) / overall.n))
    columns = [sum(row[at] for row in overall.table) for at in range(len(report.labels))]
    table.add_row("share", *(percent(count / overall.n) for count in columns), "")
    return table


def _figures(overall: Agreement) -> Table:
    table = numbers("agreement", "value")
    for name, estimate in overall.figures.items():
        table.add_row(NAMES[name], estimated(estimate))
    return table


def _raters(raters: Raters) -> Iterator[RenderableType]:
    ties = f", {raters.ties} of them tied" if raters.ties else ""
    yield f"{raters.n_labels} labels of {raters.n} samples by {raters.n_raters} people{ties}"
    table = numbers("raters", NAMES["alpha"], NAMES["ac1"])
    table.add_row("people among themselves", *(estimated(raters.people[name]) for name in ("alpha", "ac1")))
    table.add_row("people and the judge", *(estimated(raters.all_raters[name]) for name in ("alpha", "ac1")))
    yield table


def _slices(report: AgreementReport, width: int) -> Table:
    # Within one gold label the reference is constant, so kappa and similar metrics are always 0.
    constant = report.by == "label"
    shown = SLICED[:1] if constant else SLICED if width >= WIDE else SLICED[:2]
    table = numbers(report.by or "", "n", *(SHORT[name] for name in shown))
    for value, each in report.slices.items():
        table.add_row(plain(value), str(each.n), *(estimated(each.figures[name]) for name in shown))
    within = sum(each.n for each in report.slices.values())
    if lacking := report.overall.n - within:
        table.add_row(f"(without {plain(report.by or '')})", str(lacking), *[""] * len(shown))
    return table


def _disagreements(report: AgreementReport, width: int, listed: int) -> Iterator[RenderableType]:
    found = report.disagreements
    if not found:
        return
    yield ""
    shown = f", the {min(listed, len(found))} where the judge is surest" if len(found) > listed else ""
    if not listed:
        yield Text(f"{len(found)} disagreements; --list N shows them")
        return
    yield Text(f"{len(found)} disagreements{shown}", style="bold")
    head = ("sample", "probability", "score", "reference", "judge", "output")
    rows = [
        (
            cut(each.sample_id, 24),
            decimal(each.probability),
            decimal(each.score),
            cut(each.reference, 14),
            cut(each.said, 14),
        )
        for each in found[:listed]
    ]
    taken = sum(max(map(len, column)) + 2 for column in zip(head, *rows, strict=False))
    table = numbers(*head[:3])
    room = width - taken
    for name in head[3 : 6 if room >= LEAST_EXCERPT else 5]:
        table.add_column(name, overflow="fold")
    for row, each in zip(rows, found, strict=False):
        table.add_row(*row, *([cut(each.excerpt, room)] if room >= LEAST_EXCERPT else []))
    yield table
