"""`magistrate show`: a run's report, or one sample of it with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import (
    full_option,
    gate_option,
    json_option,
    junit_option,
    open_store,
    store_option,
)
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.report import Report
    from magistrate.store import RunRecord

EXAMPLE = "Example: magistrate show last; magistrate show last --sample qs-007 --steps"

DAMAGED_TOLD = 10


@click.command(short_help="Show the report of RUN: an id, a name, or last.", epilog=EXAMPLE)
@click.argument("run")
@click.option("--sample", help="Show the sample with this id, with every judge's outcome.")
@click.option("--steps", is_flag=True, help="With --sample: show prompts and answers of the model.")
@click.option(
    "--flag",
    multiple=True,
    metavar="KIND",
    help="Recompute verdicts of a rubric with only these kinds of claims flagged, without asking a model; "
    "repeatable.",
)
@gate_option
@junit_option
@store_option
@full_option
@json_option
def command(
    run: str,
    sample: str | None,
    steps: bool,
    flag: tuple[str, ...],
    gates: tuple[str, ...],
    junit: Path | None,
    store: str | None,
    full: bool,
    as_json: bool,
) -> int:
    """Show the report of RUN (an id, the beginning of one, a name, or 'last'), on one screen or with --full.

    With --gate, exit with 1 if a metric of the stored run misses the gate.
    """
    from magistrate.api.run import report_of
    from magistrate.cli.exit_codes import DONE
    from magistrate.judges.rubric import reflagged
    from magistrate.report import outcome_panel
    from magistrate.report.export import fresh, outcome_data

    fresh(junit)
    if steps and sample is None:
        raise click.UsageError("--steps needs --sample ID")
    if sample is not None and (gates or junit):
        raise click.UsageError("--gate and --junit apply to the whole run; use them without --sample")
    with open_store(store) as opened:
        record = opened.find_run(run)
        if sample is None:
            report = report_of(opened, record.id, flag or None)
            return _shown(report, gates, junit, as_json, full, _limit(record))
        damaged: list[str] = []
        with opened.snapshot() as moment:
            found = moment.sample(record.id, sample)
            stored = moment.outcomes(record.id, sample_id=sample, with_steps=steps, damaged=damaged)
            outcomes = [reflagged(each, flag) if flag else each for each in stored]
    if as_json:
        judged = [outcome_data(each, steps=steps) for each in outcomes]
        print_json({"run": record.id, "sample": asdict(found), "outcomes": judged})
    else:
        outcome_panel(found, outcomes, console(), steps=steps)
    return _damaged(damaged) or DONE


def _limit(record: RunRecord) -> float | None:
    """Return the run's own limit on failures, or None for an old run without a stored specification."""
    from magistrate.runs.resume import stored_spec
    from magistrate.store.runs import SPEC

    return stored_spec(record).limits.max_failures if SPEC in record.settings else None


def _shown(
    report: Report,
    gates: tuple[str, ...],
    junit: Path | None,
    as_json: bool,
    full: bool,
    max_failures: float | None,
) -> int:
    """Print the report and check the gates."""
    from magistrate.cli.exit_codes import code_of_gates
    from magistrate.report import render
    from magistrate.report.export import junit as document
    from magistrate.report.export import write_junit
    from magistrate.report.gates import results
    from magistrate.report.screen import render_screen

    checked = results(gates, report)
    if junit is not None:
        write_junit(junit, document(report, checked, max_failures=max_failures))
    if as_json:
        print_json(report.to_dict() | ({"gates": [each.to_dict() for each in checked]} if checked else {}))
    else:
        (render if full else render_screen)(report, console())
    verdict = code_of_gates(checked)
    return _damaged(report.run.damaged) or verdict


def _damaged(damaged: Sequence[str]) -> int:
    """Print which stored data is damaged, and return the exit code; 0 if nothing is damaged."""
    from magistrate.cli.exit_codes import BAD_INPUT, DONE
    from magistrate.report.formatting import plain

    for told in damaged[:DAMAGED_TOLD]:
        click.echo(f"error: {plain(told)}", err=True)
    if len(damaged) > DAMAGED_TOLD:
        click.echo(f"… and {len(damaged) - DAMAGED_TOLD} more damaged ones", err=True)
    return BAD_INPUT if damaged else DONE
