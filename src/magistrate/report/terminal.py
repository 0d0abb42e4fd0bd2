"""Print reports, several runs side by side, and single samples in the terminal, readable at 80 columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from magistrate._text import Heat
from magistrate.errors import InputError
from magistrate.metrics.classification import METRICS, Classification, Confusion
from magistrate.metrics.spans import characters
from magistrate.report.formatting import (
    CLOSE,
    OPEN,
    around,
    decimal,
    duration,
    estimated,
    heat_of,
    lines,
    marked,
    numbers,
    plain,
    with_interval,
    without_heat,
)
from magistrate.report.screen import print_head
from magistrate.report.trial import Said, TrialHeard, examination_of, trial_of
from magistrate.report.values import FOOTNOTE, NAMES, JudgeReport, Report, fact_lines
from magistrate.types import (
    FAITHFUL,
    HALLUCINATED,
    Abstention,
    Claim,
    Failure,
    Outcome,
    Sample,
    Span,
    Step,
    Verdict,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text


AROUND = 40  # characters shown on each side of a quote
LONGEST = 1_200  # characters of a quote that are shown whole
ROOMY = 100  # width in columns from which the comparison shows F1


def render(report: Report, console: Console) -> None:
    """Print the run, a comparison if there are several judges, and each judge's metrics."""
    from rich.text import Text

    print_head(report, console)
    if len(report.judges) > 1:
        console.print()
        console.print(_comparison(report, console.width))
    for judge in report.judges:
        console.print()
        console.print(Text(f"── {plain(judge.judge)} ", style="bold cyan"))
        for part in _judge(judge, console):
            console.print(part)
    if any(judge.result for judge in report.judges):
        console.print()
        console.print(Text(f"Brackets: 95 % intervals. Positive: hallucinated. {FOOTNOTE}", style="dim"))


def _comparison(report: Report, width: int) -> Table:
    """Return a table with one row per judge."""
    from rich.text import Text

    metrics = ["balanced_accuracy", "auroc"]
    if width >= ROOMY:
        metrics.insert(1, "f1")
    table = numbers("judge", "ok", *(NAMES[metric] for metric in metrics), "time")
    for judge in report.judges:
        table.add_row(
            Text(plain(judge.judge)),
            f"{judge.n_ok}/{judge.n_total}",
            *(estimated(judge.result.metrics[metric]) if judge.result else "-" for metric in metrics),
            duration(judge.seconds_per_sample),
        )
    return table


def _judge(judge: JudgeReport, console: Console) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    if judge.result is not None:
        metrics, matrix = _metrics(judge, judge.result), _matrix(judge.result.confusion)
        beside = Table.grid(padding=(0, 4, 0, 0), pad_edge=False)
        beside.add_row(metrics, matrix)
        room = console.options.update(width=10 * console.width)
        if console.measure(beside, options=room).maximum <= console.width:
            yield beside
        else:
            yield metrics
            yield ""
            yield matrix
        yield ""
    grid = lines(*fact_lines(judge))
    for remark in judge.remarks:
        grid.add_row("remark", Text(plain(remark), style="yellow"))
    yield grid


def _metrics(judge: JudgeReport, result: Classification) -> Table:
    """Return a table of metrics in rows, with the judge and the trivial rules in columns."""
    table = numbers("metric", "judge", *(NAMES.get(b.name, b.name) for b in judge.baselines))
    for metric in METRICS:
        table.add_row(
            NAMES.get(metric, metric),
            estimated(result.metrics[metric]),
            *(decimal(b.metrics[metric]) for b in judge.baselines),
        )
    return table


def _matrix(confusion: Confusion) -> Table:
    """Return the confusion matrix: true labels in rows, judged labels in columns."""
    table = numbers("truth \\ judged", HALLUCINATED, FAITHFUL)
    table.add_row(HALLUCINATED, str(confusion.true_positive), str(confusion.false_negative))
    table.add_row(FAITHFUL, str(confusion.false_positive), str(confusion.true_negative))
    return table


# --- one sample -----------------------------------------------------------------------------------

MARK = {HALLUCINATED: "bold red", FAITHFUL: "bold green"}


def outcome_panel(
    sample: Sample, outcomes: Iterable[Outcome], console: Console, *, steps: bool = False
) -> None:
    """Print a sample with its gold spans marked, then each judge's outcome.

    With `steps`, every engine call follows: its prompt by role and its raw result.
    """
    from rich.text import Text

    console.print(Text.assemble(("sample ", "dim"), (plain(sample.id), "bold")))
    console.print(Text.assemble(("gold label ", "dim"), _label(sample.label or "none")))
    for turn in sample.messages:
        _block(console, turn.role, plain(turn.text))
    if sample.input is not None:
        _block(console, "input", plain(sample.input))
    for number, context in enumerate(sample.context, 1):
        _block(console, "context" if len(sample.context) == 1 else f"context {number}", plain(context))
    if sample.output is None:
        _block(console, "output", "not produced yet")
    else:
        _block(console, "output", marked(sample.output, sample.spans, "bold red underline"))
    if sample.expected is not None:
        _block(console, "expected", plain(sample.expected))
    for outcome in outcomes:
        console.print()
        print_outcome(outcome, sample, console, steps=steps)


def _label(label: str) -> tuple[str, str]:
    return plain(label), MARK.get(label, "bold")


def _block(console: Console, title: str, body: str | Text, indent: int = 0) -> None:
    """Print a title and, indented below it, a text of any number of lines."""
    from rich.padding import Padding
    from rich.text import Text

    console.print()
    console.print(Padding(Text(plain(title), style="dim"), (0, 0, 0, indent), expand=False))
    text = Text(body) if isinstance(body, str) else body
    console.print(Padding(text, (0, 0, 0, indent + 2), expand=False))


def print_outcome(outcome: Outcome, sample: Sample, console: Console, *, steps: bool = False) -> None:
    """Print a judge's outcome for `sample`; with `steps` also its details and every engine call."""
    from rich.text import Text

    line = Text.assemble((f"── {plain(outcome.judge)}  ", "bold cyan"))
    match outcome:
        case Verdict():
            line.append_text(Text.assemble(_label(outcome.label), f"  score {decimal(outcome.score)}"))
            line.append(f"  probability {decimal(outcome.probability)}")
            if outcome.mass is not None:
                line.append(f"  mass {decimal(outcome.mass)}")
        case Failure():
            line.append(f"failed: {outcome.code}", style="bold yellow")
        case Abstention():
            line.append(f"abstained: {outcome.reason}", style="bold yellow")
    console.print(line.append(f"  {duration(outcome.seconds)}", style="dim"))
    if isinstance(outcome, Verdict):
        _verdict(outcome, sample, console)
    else:
        _block(console, "message", plain(outcome.message))
    if not steps:
        return
    if isinstance(outcome, Verdict) and (noted := without_heat(outcome.details)):
        _block(console, "details", _json(noted))
    for number, step in enumerate(outcome.steps, 1):
        _step(number, step, console)


def _verdict(verdict: Verdict, sample: Sample, console: Console) -> None:
    if verdict.explanation:
        flipped = ", which contradicts the label" if verdict.explanation_agrees is False else ""
        _block(console, f"explanation{flipped}", plain(verdict.explanation))
    colour = console.color_system is not None and not console.no_color
    if sample.output and (heat := heat_block(sample.output, verdict.details, colour=colour)) is not None:
        _block(console, "heat map of the output", heat)
    for number, claim in enumerate(verdict.claims, 1):
        sure = "" if claim.probability is None else f", probability {decimal(claim.probability)}"
        _block(console, f"claim {number}: {claim.kind}{sure}", _claim(claim, sample))
    if (trial := trial_of(verdict.details)) is not None:
        _trial(trial, console)
    if (examination := examination_of(verdict.details)) is not None:
        from rich.text import Text

        ended, said = examination
        lines = [Text(plain(ended), style="dim"), *map(_said, said)]
        _block(console, "cross-examination", Text("\n").join(lines))


def _trial(trial: TrialHeard, console: Console) -> None:
    """Print the statements on every charge, in order, and the votes of the arbiters."""
    from rich.text import Text

    _block(console, "trial", f"{plain(trial.opening)}; {plain(trial.ended)}")
    for charge in trial.charges:
        lines = [Text.assemble("against the words  ", (plain(charge.words), "bold underline"))]
        lines += map(_said, charge.said)
        lines += [Text(f"arbiter  {plain(vote)}", style="dim") for vote in charge.votes]
        title = f"charge {charge.number}: {charge.kind}, {charge.ruling}"
        _block(console, title, Text("\n").join(lines), indent=2)


def _said(said: Said) -> Text:
    """Return a statement with its quote as one line."""
    from rich.text import Text

    line = Text.assemble((f"{plain(said.side)}  ", "cyan"), plain(said.does))
    if said.quote:
        line.append(f"quotes {OPEN}{plain(said.quote)}{CLOSE}", style="bold underline")
    if said.argument:
        line.append(f": {plain(said.argument)}")
    return line


def _claim(claim: Claim, sample: Sample) -> Text:
    """Return the quotes from output and context, one below the other, then the reasoning."""
    from rich.text import Text

    if claim.output_quote.start == claim.output_quote.end and claim.output_text:
        quote: Text | str = (
            f"{OPEN}{plain(claim.output_text[:LONGEST])}{CLOSE}"  # a quote from a call, not from the output
        )
    else:
        quote = _excerpt(sample.output or "", claim.output_quote)
    lines = [Text.assemble("output   ", quote)]
    if claim.context_quote is not None:
        index = claim.context_index or 0
        source = sample.sources[index] if index < len(sample.sources) else ""
        lines.append(Text.assemble("context  ", _excerpt(source, claim.context_quote)))
    if claim.reasoning:
        lines.append(Text(plain(claim.reasoning), style="italic"))
    return Text("\n").join(lines)


def _excerpt(text: str, span: Span) -> Text:
    """Return a quote, marked, with the words around it. The middle of a long one is left out."""
    from rich.text import Text

    start, end = around(text, span.start, span.end, AROUND)
    shown = Text("… " if start else "")
    if span.end - span.start <= LONGEST:
        inner = Span(span.start - start, span.end - start)
        shown.append_text(marked(text[start:end], [inner], "bold underline"))
    else:
        half = LONGEST // 2
        shown.append(plain(text[start : span.start]))
        quote = f"{plain(text[span.start : span.start + half])} … {plain(text[span.end - half : span.end])}"
        shown.append(f"{OPEN}{quote}{CLOSE}", style="bold underline")
        shown.append(plain(text[span.end : end]))
    return shown.append(" …" if end < len(text) else "")


def _step(number: int, step: Step, console: Console) -> None:
    _block(console, f"step {number}: {step.verb}, {duration(step.seconds)}", _tokens(step), indent=2)
    for role, text in step.prompt:
        _block(console, role, plain(text), indent=4)
    _block(console, "result", _json(step.result), indent=4)


def _tokens(step: Step) -> str:
    usage = step.usage
    if usage.reused:
        return "answered from the cache of earlier calls"
    return f"{usage.prompt} tokens read ({usage.cached} from cache), {usage.generated} generated"


def _json(value: object) -> str:
    return plain(json.dumps(value, ensure_ascii=False, indent=2, default=str))


# --- heat maps ------------------------------------------------------------------------------------


HEAT_LONGEST = 1_200  # characters of a text that are shown whole
HEAT_AROUND = 60  # characters shown on each side of a hot place in a longer text
WORST = 8  # number of places marked if there are no colours, and shown of a long text
# Text and background colour are both set, so that the words are readable on light and dark terminals.
STYLES = (
    "",
    "black on #f8e2db",
    "black on #f2c3b5",
    "black on #e79a84",
    "white on #b04a33",
    "white on #7a2a15",
)


def heat_text(text: str, heat: Heat, *, colour: bool) -> Text:
    """Return `text` with its hot places coloured; without colour, the worst ones are between ⟦ ⟧ with their
    values.

    Of a long text, only the parts near the worst places are shown. A legend follows below.
    """
    from rich.text import Text

    runs = heat.runs(text)
    worst = {(start, end) for start, end, _ in heat.hottest(text, WORST)}
    shown = Text()
    for first, last in _shown(text, worst):
        shown.append("… " if first else "")
        for start, end, value in runs:
            words = plain(text[max(start, first) : min(end, last)])
            if not words:
                continue
            if value is None or not heat.level(value):
                shown.append(words)
            elif colour:
                shown.append(words, style=STYLES[heat.level(value)])
            elif (start, end) in worst:
                shown.append(f"{OPEN}{words} {heat.figure(value)}{CLOSE}")
            else:
                shown.append(words)
        shown.append(" …\n" if last < len(text) else "")
    below = f"({plain(heat.legend)}"
    below += f"; {plain(heat.told(text))})" if colour or not worst else "; highest in brackets)"
    return shown.append(("" if shown.plain.endswith("\n") else "\n") + below, style="dim")


def heat_block(text: str, details: Mapping[str, Any], *, colour: bool) -> Text | None:
    """Return the heat map in a verdict's details over `text`, or the reason why it cannot be shown."""
    from rich.text import Text

    try:
        heat = heat_of(details)
    except InputError as error:
        return Text(plain(str(error)))
    return None if heat is None else heat_text(text, heat, colour=colour)


def _shown(text: str, worst: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the stretches to show, in order and without overlap, cut at nearby spaces if there are any."""
    if len(text) <= HEAT_LONGEST:
        return [(0, len(text))]
    wanted = sorted(worst) or [(0, HEAT_LONGEST)]
    return characters(
        around(text, start, min(end, start + HEAT_LONGEST), HEAT_AROUND) for start, end in wanted
    )


# --- several runs side by side ---------------------------------------------------------------------


SHOWN = {"auroc": "AUROC", "balanced_accuracy": "bal. acc."}
NONE = "–"
NOTE = (
    "AUROC is about scores; balanced accuracy (bal. acc.) is about labels. Brackets: 95 % intervals. n: "
    "samples of the set; figures of a judge are based on its verdicts on labelled samples."
)


def render_sets(reports: Sequence[Report], console: Console) -> None:
    """Print AUROC and balanced accuracy of every judge on every data set. Each report is of one data set."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    judges = list(dict.fromkeys(judge.judge for report in reports for judge in report.judges))
    table = Table(
        box=box.SIMPLE_HEAD, header_style="bold", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )
    table.add_column("set", no_wrap=True)
    table.add_column("n", justify="right")
    for name in judges:
        table.add_column(plain(name), overflow="fold")
    for report in reports:
        found = {judge.judge: judge for judge in report.judges}
        cells = [_cell(found[name]) if name in found else NONE for name in judges]
        table.add_row(Text(plain(report.run.dataset)), str(report.run.n_total), *map(Text, cells))
    console.print(table)
    console.print(Text(NOTE, style="dim"))


def _cell(judge: JudgeReport) -> str:
    """Return a line per metric, and one for missing verdicts."""
    if judge.result is None:
        return NONE
    found = [(word, judge.result.metrics[name]) for name, word in SHOWN.items()]
    lines = [f"{word} {with_interval(figure)}" for word, figure in found]
    if judge.n_ok < judge.n_total:
        lines.append(f"{judge.n_ok} of {judge.n_total} judged")
    return "\n".join(lines)
