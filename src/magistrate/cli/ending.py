"""How a run ends on the command line: its report, what is said of it, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import console, hush, print_json

if TYPE_CHECKING:
    from magistrate.datasets import Problem
    from magistrate.report import Report
    from magistrate.report.progress import ProgressBar
    from magistrate.runs import Run
    from magistrate.specs import RunSpec

PROBLEMS_TOLD = 10


def ended(
    judging: Callable[[], Run],
    bar: ProgressBar,
    store: str,
    as_json: bool,
    spec: RunSpec,
    *,
    again: str = "resume",
) -> int:
    """Judge, print the report and answer the exit code, also where Ctrl-C or an error cuts it short.

    `bar` watches the run; `spec` says what its figures must reach; `again` is the command that goes on.
    """
    from magistrate.cli import interrupted_code
    from magistrate.runs import Run

    cut_short = False
    with _kept(bar, again):
        try:
            run = judging()
        except KeyboardInterrupt:
            if bar.run_id is None:
                raise
            cut_short = True
            run = Run(bar.run_id, store)
    try:
        report = run.summary()
        show(report, bar.problems, as_json)
    except KeyboardInterrupt:
        click.echo(f"interrupted while the report was made; see: magistrate show {run.id}", err=True)
        return interrupted_code()
    if cut_short:
        click.echo(f"interrupted; {_kept_in(run, again)}", err=True)
        return interrupted_code()
    if bar.stopped is not None:
        click.echo(f"stopped: {bar.stopped}; {_kept_in(run, again)}", err=True)
    elif report.run.status != "done":
        click.echo(f"run {run.id} is not finished; go on with: magistrate resume {run.id}", err=True)
    return code(report, spec)


def _kept_in(run: Run, again: str) -> str:
    """What to say where a run, or a second try of its failures, ended before its time."""
    record = run.record
    left = record.status != "done" if again == "resume" else record.n_failures > 0
    told = f"what was judged is kept in run {run.id}"
    return f"{told}; go on with: magistrate {again} {run.id}" if left else f"{told}, which is done"


@contextmanager
def _kept(bar: ProgressBar, again: str) -> Iterator[None]:
    """Say beside an error that what was judged before it is not lost."""
    from magistrate.errors import InputError, MagistrateError

    try:
        yield
    except MagistrateError as error:
        if bar.run_id is not None and not (isinstance(error, InputError) and not bar.seen):
            told = f"what was judged is kept in run {bar.run_id}; go on with: magistrate {again} {bar.run_id}"
            click.echo(told, err=True)
        raise


def show(report: Report, problems: Sequence[Problem], as_json: bool) -> None:
    """The report and the rows that were left out; whoever has stopped reading misses it, no more."""
    from magistrate.report import render

    try:
        if as_json:
            print_json({**report.to_dict(), "problems": [str(problem) for problem in problems]})
        else:
            render(report, console())
            click.echo(f"\nrun {report.run.id}: see 'magistrate show {report.run.id}'")
        sys.stdout.flush()
    except BrokenPipeError:
        hush()
    left_out(problems)


def left_out(problems: Sequence[Problem]) -> None:
    """Say on standard error which rows could not be read."""
    from magistrate.report.plain import plain

    for problem in problems[:PROBLEMS_TOLD]:
        click.echo(f"left out {plain(str(problem))}", err=True)
    if len(problems) > PROBLEMS_TOLD:
        click.echo(f"… and {len(problems) - PROBLEMS_TOLD} more rows that cannot be read", err=True)


def code(report: Report, spec: RunSpec) -> int:
    """What a script should see of the figures; why it is not 0 is said on standard error.

    Figures of a run that is not finished pass no gate.
    """
    from magistrate.cli import DONE, ENGINE_GONE, GATE_FAILED
    from magistrate.report.gates import Gate

    most = spec.limits.max_failures
    failed = sum(sum(judge.failures.values()) for judge in report.judges)
    total = sum(judge.n_judged for judge in report.judges)
    if total and failed / total > most:
        click.echo(
            f"{failed} of {total} judgements failed, more than --max-failures {most:g}; "
            f"judge them again with: magistrate retry {report.run.id}",
            err=True,
        )
        return ENGINE_GONE
    if spec.gates and report.run.status != "done":
        click.echo(f"gate failed: the run is {report.run.status}, so that its figures are not all", err=True)
        return GATE_FAILED
    names = [judge.judge for judge in report.judges]
    checks = [Gate.parse(gate, names) for gate in spec.gates]
    broken = [reason for check in checks for reason in check.broken(report)]
    for reason in broken:
        click.echo(f"gate failed: {reason}", err=True)
    return GATE_FAILED if broken else DONE
