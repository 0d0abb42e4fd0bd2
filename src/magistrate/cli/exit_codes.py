"""The exit codes of commands, and the end of a run: its report, gates, JUnit document and exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.output import console, hush, print_json
from magistrate.errors import EngineError, InputError, MagistrateError, ModelError

if TYPE_CHECKING:
    from magistrate.api.evaluate import RunSession
    from magistrate.api.run import Run
    from magistrate.datasets import Problem
    from magistrate.report import Report
    from magistrate.report.gates import GateResult
    from magistrate.runs.progress import ProgressBar
    from magistrate.runs.spec import RunSpec
    from magistrate.store.shares import RunShares

DONE, GATE_FAILED, BAD_INPUT, ENGINE_GONE, PART = 0, 1, 2, 3, 4
SIGNALLED = 128  # plus the signal's number, as shells report what ended a program
UNREAD = SIGNALLED + 13  # as after SIGPIPE: the reader of the pipe closed it early
PROBLEMS_TOLD = 10

_received = [signal.SIGINT]


def exit_code(error: MagistrateError) -> int:
    """Return the exit code for an error: 3 if no model can answer, else 2."""
    return ENGINE_GONE if isinstance(error, ModelError | EngineError) else BAD_INPUT


def note_signal(number: int) -> None:
    """Remember the signal that ends the program."""
    _received.append(signal.Signals(number))


def interrupted_code() -> int:
    """Return the exit code after the last signal, or after Ctrl-C if none was noted."""
    return SIGNALLED + _received[-1]


def finish_run(
    execute: Callable[[], Run],
    bar: ProgressBar,
    session: RunSession,
    spec: RunSpec,
    as_json: bool,
    *,
    again: str = "resume",
    junit: Path | None = None,
    full: bool = False,
) -> int:
    """Execute a run, print its report and return the exit code, also if Ctrl-C or an error cuts it short.

    `bar` shows the progress. `spec` contains the gates. `again` is the command that continues the run.
    `junit` is the path of the JUnit document, which is written even if the run fails. With `full`, the
    whole report is printed instead of one screen.
    """
    from magistrate.api.run import Run
    from magistrate.report.counts import counted
    from magistrate.store.shares import SHARES, shares_of

    cut_short = False
    with _say_what_is_kept(bar, again), _junit_of_failed_run(bar, session, spec, junit):
        try:
            run = execute()
        except KeyboardInterrupt:
            if bar.run_id is None:
                raise
            cut_short = True
            run = Run(bar.run_id, session.place)
    try:
        # After a second Ctrl-C the run may still be writing, so its store is opened again.
        report = run.summary() if cut_short else counted(session.store, run.id).report
        record = run.record if cut_short else session.find(run)
        shares = shares_of(record) if SHARES in record.settings else None
        # The gates of a run in shares hold for all of it.
        checked = gates_of(report, spec) if shares is None or shares.whole else []
        write_gates(junit, report, checked, spec, error="interrupted" if cut_short else None)
        show(report, bar.problems, as_json, checked, full=full)
    except KeyboardInterrupt:
        click.echo(f"interrupted while writing the report; see: magistrate show {run.id}", err=True)
        return interrupted_code()
    if cut_short:
        click.echo(f"interrupted; {_kept_in(run, again)}", err=True)
        return interrupted_code()
    if shares is not None and bar.run_id is None:
        click.echo(f"nothing was judged: what was begun of run {run.id} here is judged already", err=True)
    if shares is not None and not shares.whole and bar.stopped is None:
        return code_of_part(report, spec, shares)
    answer = code_of_report(report, spec, checked)
    if bar.stopped is not None:
        click.echo(f"stopped: {bar.stopped}; {_kept_in(run, again)}", err=True)
    elif report.run.status != "done":
        click.echo(f"run {run.id} is not finished; continue with: magistrate resume {run.id}", err=True)
    cut_off = report.run.status != "done" or bar.stopped is not None
    return ENGINE_GONE if cut_off else answer


@contextmanager
def _junit_of_failed_run(
    bar: ProgressBar, session: RunSession, spec: RunSpec, junit: Path | None
) -> Iterator[None]:
    """Write the JUnit document of a run that an error has ended."""
    from magistrate.api.run import Run

    try:
        yield
    except MagistrateError as error:
        if junit is not None and bar.run_id is not None:
            report = Run(bar.run_id, session.place).summary()
            write_gates(junit, report, gates_of(report, spec), spec, error=str(error))
        raise


def gates_of(report: Report, spec: RunSpec) -> list[GateResult]:
    """Evaluate the gates of a run on its report."""
    if not spec.gates:
        return []
    from magistrate.report.gates import results

    return results(spec.gates, report)


def write_gates(
    target: Path | None,
    report: Report,
    checked: Sequence[GateResult],
    spec: RunSpec,
    error: str | None = None,
) -> None:
    """Write the JUnit document, if a path is given."""
    if target is not None:
        from magistrate.report.export import junit, write_junit

        write_junit(target, junit(report, checked, max_failures=spec.limits.max_failures, error=error))


def _kept_in(run: Run, again: str) -> str:
    """Return the message for a run, or a retry of its failures, that ended early."""
    from magistrate.store.shares import shares_of

    record = run.record
    left = record.status != "done" if again == "resume" else record.n_failures > 0
    told = f"verdicts so far are stored in run {run.id}"
    if shares_of(record) is not None and left and again == "resume":
        return f"{told}; continue its share with the same command"
    return f"{told}; continue with: magistrate {again} {run.id}" if left else f"{told}, which is done"


@contextmanager
def _say_what_is_kept(bar: ProgressBar, again: str) -> Iterator[None]:
    """After an error, print on standard error that finished judgements are kept."""
    try:
        yield
    except MagistrateError as error:
        if bar.run_id is not None and not (isinstance(error, InputError) and not bar.seen):
            told = (
                f"verdicts so far are stored in run {bar.run_id}; continue with: magistrate {again} "
                f"{bar.run_id}"
            )
            click.echo(told, err=True)
        raise


def show(
    report: Report,
    problems: Sequence[Problem],
    as_json: bool,
    checked: Sequence[GateResult] = (),
    *,
    full: bool = False,
) -> None:
    """Print the report, on one screen or in full, and the rows that were left out.

    A closed pipe is not an error.
    """
    from magistrate.report import render
    from magistrate.report.screen import render_screen

    try:
        if as_json:
            data = {**report.to_dict(), "problems": [str(problem) for problem in problems]}
            print_json(data | ({"gates": [each.to_dict() for each in checked]} if checked else {}))
        else:
            (render if full else render_screen)(report, console())
        sys.stdout.flush()
    except BrokenPipeError:
        hush()
    print_problems(problems)


def print_problems(problems: Sequence[Problem | str]) -> None:
    """Print on standard error which rows could not be read."""
    from magistrate.report.formatting import plain

    for problem in problems[:PROBLEMS_TOLD]:
        click.echo(f"left out {plain(str(problem))}", err=True)
    if len(problems) > PROBLEMS_TOLD:
        click.echo(f"… and {len(problems) - PROBLEMS_TOLD} more rows that cannot be read", err=True)


def code_of_report(report: Report, spec: RunSpec, checked: Sequence[GateResult]) -> int:
    """Return the exit code for a report, and print the gates' results on standard error.

    Too many failures, or a judge without a verdict, take precedence over a gate: its metrics are moot.
    """
    from magistrate.report.formatting import plain

    answer = code_of_gates(checked)
    if told := report.too_many_failures(spec.limits.max_failures):
        click.echo(f"{plain(told)}; retry them with: magistrate retry {report.run.id}", err=True)
        answer = ENGINE_GONE
    if told := report.without_verdict:
        click.echo(plain(told), err=True)
        answer = ENGINE_GONE
    return answer


def code_of_part(report: Report, spec: RunSpec, shares: RunShares) -> int:
    """Return the exit code of a run of which shares are missing, and print which on standard error."""
    failed = any(judge.n_judged for judge in report.judges) and code_of_report(report, spec, ())
    told = (
        f"run {report.run.id} is {shares.told}; judge these into this store with --shard, or join the stores "
        "of all shares: magistrate merge FILE… --to STORE"
    )
    click.echo(told, err=True)
    return failed or PART


def code_of_gates(checked: Sequence[GateResult]) -> int:
    """Print the gates' results on standard error, and return the exit code for them."""
    from magistrate.report.formatting import plain

    for gate in checked:
        word = "passed" if gate.passed else "failed"
        click.echo(f"gate {word}: {plain(gate.judge)}: {plain(gate.reason)}", err=True)
    return DONE if all(gate.passed for gate in checked) else GATE_FAILED
