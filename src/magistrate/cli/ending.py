"""How a run ends on the command line: its report, what is said of it, and the exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import console, hush, print_json

if TYPE_CHECKING:
    from magistrate.api.run import Run
    from magistrate.datasets import Problem
    from magistrate.report import Report
    from magistrate.report.gates import GateResult
    from magistrate.runs.progress import ProgressBar
    from magistrate.runs.spec import RunSpec

PROBLEMS_TOLD = 10


def ended(
    judging: Callable[[], Run],
    bar: ProgressBar,
    store: str,
    as_json: bool,
    spec: RunSpec,
    *,
    again: str = "resume",
    junit: Path | None = None,
) -> int:
    """Judge, print the report and answer the exit code, also where Ctrl-C or an error cuts it short.

    `bar` watches the run; `spec` says what its figures must reach; `again` is the command that goes on;
    `junit` is where a document for CI goes, whatever ends the run; the command has taken away an earlier one.
    """
    from magistrate.api.run import Run
    from magistrate.cli import ENGINE_GONE, interrupted_code

    cut_short = False
    with _kept(bar, again), _told(bar, store, spec, junit):
        try:
            run = judging()
        except KeyboardInterrupt:
            if bar.run_id is None:
                raise
            cut_short = True
            run = Run(bar.run_id, store)
    try:
        report = run.summary()
        checked = gates_of(report, spec)
        tell_ci(junit, report, checked, spec, error="interrupted" if cut_short else None)
        show(report, bar.problems, as_json, checked)
    except KeyboardInterrupt:
        click.echo(f"interrupted while the report was made; see: magistrate show {run.id}", err=True)
        return interrupted_code()
    if cut_short:
        click.echo(f"interrupted; {_kept_in(run, again)}", err=True)
        return interrupted_code()
    answer = code(report, spec, checked)
    if bar.stopped is not None:
        click.echo(f"stopped: {bar.stopped}; {_kept_in(run, again)}", err=True)
    elif report.run.status != "done":
        click.echo(f"run {run.id} is not finished; go on with: magistrate resume {run.id}", err=True)
    cut_off = report.run.status != "done" or bar.stopped is not None
    return ENGINE_GONE if cut_off else answer


@contextmanager
def _told(bar: ProgressBar, store: str, spec: RunSpec, junit: Path | None) -> Iterator[None]:
    """Write for CI what an error left of a run."""
    from magistrate.api.run import Run
    from magistrate.errors import MagistrateError

    try:
        yield
    except MagistrateError as error:
        if junit is not None and bar.run_id is not None:
            report = Run(bar.run_id, store).summary()
            tell_ci(junit, report, gates_of(report, spec), spec, error=str(error))
        raise


def gates_of(report: Report, spec: RunSpec) -> list[GateResult]:
    """What the gates of a run say of its figures."""
    from magistrate.report.gates import results

    return results(spec.gates, report)


def tell_ci(
    target: Path | None,
    report: Report,
    checked: Sequence[GateResult],
    spec: RunSpec,
    error: str | None = None,
) -> None:
    """Write the JUnit document, if one is wanted."""
    from magistrate.report.junit import junit, write_junit

    if target is not None:
        write_junit(target, junit(report, checked, max_failures=spec.limits.max_failures, error=error))


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


def show(
    report: Report, problems: Sequence[Problem], as_json: bool, checked: Sequence[GateResult] = ()
) -> None:
    """The report and the rows that were left out; whoever has stopped reading misses it, no more."""
    from magistrate.report import render

    try:
        if as_json:
            data = {**report.to_dict(), "problems": [str(problem) for problem in problems]}
            print_json(data | ({"gates": [each.to_dict() for each in checked]} if checked else {}))
        else:
            render(report, console())
            click.echo(f"\nrun {report.run.id}: see 'magistrate show {report.run.id}'")
        sys.stdout.flush()
    except BrokenPipeError:
        hush()
    left_out(problems)


def left_out(problems: Sequence[Problem | str]) -> None:
    """Say on standard error which rows could not be read."""
    from magistrate.report.formatting import plain

    for problem in problems[:PROBLEMS_TOLD]:
        click.echo(f"left out {plain(str(problem))}", err=True)
    if len(problems) > PROBLEMS_TOLD:
        click.echo(f"… and {len(problems) - PROBLEMS_TOLD} more rows that cannot be read", err=True)


def code(report: Report, spec: RunSpec, checked: Sequence[GateResult]) -> int:
    """What a script should see of the figures; what the gates say stands on standard error.

    Too many failures and a judge without a verdict win over a gate: they are no measurement.
    """
    from magistrate.cli import ENGINE_GONE
    from magistrate.report.formatting import plain
    from magistrate.report.gates import too_many_failures, without_verdict

    answer = passed(checked)
    if told := too_many_failures(report, spec.limits.max_failures):
        click.echo(f"{plain(told)}; judge them again with: magistrate retry {report.run.id}", err=True)
        answer = ENGINE_GONE
    if told := without_verdict(report):
        click.echo(plain(told), err=True)
        answer = ENGINE_GONE
    return answer


def passed(checked: Sequence[GateResult]) -> int:
    """Say on standard error what gates say, and answer what a script should see of it."""
    from magistrate.cli import DONE, GATE_FAILED
    from magistrate.report.formatting import plain

    for gate in checked:
        word = "passed" if gate.passed else "failed"
        click.echo(f"gate {word}: {plain(gate.judge)}: {plain(gate.reason)}", err=True)
    return DONE if all(gate.passed for gate in checked) else GATE_FAILED
