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
    judging: Callable[[], Run], bar: ProgressBar, store: str, as_json: bool, spec: Callable[[Run], RunSpec]
) -> int:
    """Judge, print the report and answer the exit code, also where Ctrl-C or an error cuts it short.

    `bar` knows the run's id and the rows that could not be read; `spec` what the run's figures must reach.
    """
    from magistrate.cli import interrupted_code
    from magistrate.runs import Run

    stopped = False
    with _kept(bar):
        try:
            run = judging()
        except KeyboardInterrupt:
            if bar.run_id is None:
                raise
            stopped = True
            run = Run(bar.run_id, store)
    report = run.summary()
    show(report, bar.problems, as_json)
    if stopped:
        click.echo(f"interrupted; {kept_in(run.id)}", err=True)
        return interrupted_code()
    if report.run.status != "done":
        click.echo(f"stopped: {report.run.reason}; {kept_in(run.id)}", err=True)
    return code(report, spec(run))


def kept_in(run_id: str) -> str:
    """What to say where a run ended before its time."""
    return f"what was judged is kept in run {run_id}; go on with: magistrate resume {run_id}"


@contextmanager
def _kept(bar: ProgressBar) -> Iterator[None]:
    """Say beside an error that what was judged before it is not lost."""
    from magistrate.errors import InputError, MagistrateError

    try:
        yield
    except MagistrateError as error:
        if bar.run_id is not None and not (isinstance(error, InputError) and not bar.seen):
            click.echo(kept_in(bar.run_id), err=True)
        raise


def show(report: Report, problems: Sequence[Problem], as_json: bool) -> None:
    """The report and the rows that were left out; whoever has stopped reading misses it, no more."""
    from magistrate.report import render
    from magistrate.report.plain import plain

    try:
        if as_json:
            print_json({**report.to_dict(), "problems": [str(problem) for problem in problems]})
        else:
            render(report, console())
            click.echo(f"\nrun {report.run.id}: see 'magistrate show {report.run.id}'")
        sys.stdout.flush()
    except BrokenPipeError:
        hush()
    for problem in problems[:PROBLEMS_TOLD]:
        click.echo(f"left out {plain(str(problem))}", err=True)
    if len(problems) > PROBLEMS_TOLD:
        click.echo(f"… and {len(problems) - PROBLEMS_TOLD} more rows that cannot be read", err=True)


def code(report: Report, spec: RunSpec) -> int:
    """What a script should see of the figures; why it is not 0 is said on standard error."""
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
    names = [judge.judge for judge in report.judges]
    checks = [Gate.parse(gate, names) for gate in spec.gates]
    broken = [reason for check in checks for reason in check.broken(report)]
    for reason in broken:
        click.echo(f"gate failed: {reason}", err=True)
    return GATE_FAILED if broken else DONE
