"""Print trained stacks and probes in the terminal: their weights and measured quality."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from magistrate._text import decimal
from magistrate.report.formatting import estimated, numbers, plain
from magistrate.report.values import name_of

if TYPE_CHECKING:
    from magistrate.judges.stack_folder import StackFile
    from magistrate.training.probe import Probed
    from magistrate.training.stack import Held, StackFit

PART_HEAD = ("part", "weight", "AUROC alone")
HELD_HEAD = ("judged", "n", "balanced accuracy", "AUROC", "F1", "ECE (by chance)", "coverage")
WITHIN = "same data, in folds"
READING_STACK = (
    "Measured on samples that were not used for the fit: in folds that share no context, and each family of "
    "data with a stack of all others. Labels use a probability of .5 at a base rate of .5, so nothing is "
    "chosen on the measured samples; the ECE uses the same base rate. Brackets: 95 % intervals over whole "
    "contexts. A weight is the change of the log odds for one standard deviation of a part."
)


def render_stack(fit: StackFit, file: StackFile, left_out: Mapping[str, int], console: Console) -> None:
    """Print the tables of a stack, the data behind them, and the remarks."""

    def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for number, name in enumerate(head):
            made.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
        for line in lines:
            made.add_row(*map(plain, line))
        return made

    console.print(Text(plain(_stack_line(fit, file)), style="bold"))
    for reason, n in left_out.items():
        console.print(Text(plain(f"left out: {n} ({reason})")))
    console.print()
    console.print(table(PART_HEAD, part_lines(fit)))
    console.print()
    console.print(table(HELD_HEAD, held_lines(fit)))
    if fit.remarks:
        console.print()
    for remark in fit.remarks:
        console.print(Text(plain(f"- {remark}")))
    console.print()
    console.print(Text(READING_STACK, style="dim"))


def part_lines(fit: StackFit) -> list[tuple[str, ...]]:
    """Return a line under `PART_HEAD` for every part, the largest weight first."""
    weights = dict(zip(fit.table.names, fit.weights.weights.tolist(), strict=True))
    order = sorted(weights, key=lambda name: -abs(weights[name]))
    return [(name, f"{weights[name]:+.2f}", decimal(fit.alone[name]["all"])) for name in order]


def held_lines(fit: StackFit) -> list[tuple[str, ...]]:
    """Return a line under `HELD_HEAD` for the folds, and one for each family that was left out."""
    lines = [_held_line(WITHIN, fit.out_of_fold)]
    return lines + [_held_line(f"{name}, left out", held) for name, held in fit.left_out.items()]


def _held_line(name: str, held: Held) -> tuple[str, ...]:
    chance = "" if held.ece_by_chance is None else f" ({decimal(held.ece_by_chance)})"
    return (
        name,
        str(held.n),
        str(held.figures["balanced_accuracy"]),
        str(held.figures["auroc"]),
        decimal(held.figures["f1"].value),
        f"{decimal(held.ece)}{chance}",
        f"{held.judged}/{held.n}",
    )


def _stack_line(fit: StackFit, file: StackFile) -> str:
    table = fit.table
    contexts = len(set(table.groups.tolist()))
    families = len(set(table.families.tolist()))
    sets = "1 data set" if len(file.data) == 1 else f"{len(file.data)} data sets"
    making = "1 family" if families == 1 else f"{families} families"
    return (
        f"{len(table.names)} parts on {table.n} labelled samples ({int(table.truth.sum())} hallucinated) in "
        f"{contexts} contexts, {sets} of {making}"
    )


# --- the card -------------------------------------------------------------------------------------


def card(fit: StackFit, file: StackFile) -> str:
    """Return the model card that is saved in the folder, in Markdown."""
    return "\n".join(_card(fit, file)) + "\n"


def _card(fit: StackFit, file: StackFile) -> Iterator[str]:
    yield "# A stack that judges whether an output is faithful to its context"
    yield ""
    yield f"{_stack_line(fit, file)}. Use it with `magistrate run DATA --judge stack:FOLDER`."
    yield ""
    yield (
        f"Its score is the probability that an output is hallucinated, at a base rate of {file.base_rate:g}; "
        "set another one with `base_rate=`. Its label is the likelier one. It abstains at a distance of more "
        f"than {file.limit:.1f} from the centre of its training data (standardized Mahalanobis distance; 1.2 "
        "times the distance within which 999 of 1,000 training samples are)."
    )
    yield ""
    yield "## Weights"
    yield ""
    yield from _markdown(PART_HEAD, part_lines(fit))
    yield ""
    if file.model is not None:
        yield f"Its judges need the model {file.model.name} ({file.model.fingerprint[:12]})."
        yield ""
    yield "## Quality"
    yield ""
    yield from _markdown(HELD_HEAD, held_lines(fit))
    yield ""
    yield READING_STACK
    for remark in fit.remarks:
        yield ""
        yield f"- {remark}"
    yield ""
    yield "## Training data"
    yield ""
    lines = [(each.dataset, str(each.n), str(each.hallucinated), each.digest[:12]) for each in file.data]
    yield from _markdown(("data", "samples", "hallucinated", "digest"), lines)
    yield ""
    options = f"seed {file.seed}, {file.folds} folds, penalty 1/{file.strength:g}"
    signs = ", no weight below zero" if file.positive else ""
    yield f"Magistrate {file.package}: {options}{signs}. `stack.json` has all details."


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *lines):
        yield f"| {' | '.join(plain(cell).replace('|', chr(92) + '|') for cell in cells)} |"


# --- a probe --------------------------------------------------------------------------------------


READING_PROBE = (
    "Held out: folds that share no context. Brackets: 95 % intervals. Both labels are assumed to be equally "
    "likely; otherwise the score is not a calibrated probability. A probe says little about other kinds of "
    "text."
)


def render_probe(found: Probed, left_out: Mapping[str, int], console: Console) -> None:
    """Print what a probe reads, its metrics, and how to read them."""
    file = found.file
    console.print(Text(plain(file.line()), style="bold"))
    told = [f"{sum(each.hallucinated for each in file.data)} hallucinated", f"{file.contexts} contexts"]
    told += [f"left out: {n} ({reason})" for reason, n in left_out.items()]
    console.print(Text(plain("  ·  ".join(told))))
    console.print()
    table = numbers("figure", "held out")
    for name in file.figures:
        table.add_row(Text(plain(name_of(name))), estimated(found.figures.metrics[name]))
    console.print(table)
    console.print()
    console.print(Text(READING_PROBE, style="dim"))
