"""`magistrate show`: a run's report, or one sample of it with its evidence."""

from __future__ import annotations

from dataclasses import asdict

import click

from magistrate.cli.options import as_data, console, json_option, open_store, print_json, store_option

EXAMPLE = "Example: magistrate show last; magistrate show last --sample qs-007 --steps"


@click.command(epilog=EXAMPLE)
@click.argument("run")
@click.option("--sample", help="The id of a sample: show it with every judge's outcome.")
@click.option("--steps", is_flag=True, help="With --sample: what the model was asked and what it answered.")
@click.option(
    "--flag",
    multiple=True,
    metavar="KIND",
    help="Decide a rubric's verdicts anew by these kinds of claims, without asking a model; repeatable.",
)
@store_option
@json_option
def command(
    run: str, sample: str | None, steps: bool, flag: tuple[str, ...], store: str | None, as_json: bool
) -> None:
    """Show the report of RUN (an id, the beginning of one, a name, or 'last')."""
    from magistrate.judges.flagging import reflagged
    from magistrate.report import outcome_panel, render
    from magistrate.runs import report_of

    if steps and sample is None:
        raise click.UsageError("--steps goes with --sample ID")
    with open_store(store) as opened:
        record = opened.find_run(run)
        if sample is None:
            report = report_of(opened, record.id, flag or None)
            if as_json:
                print_json(report.to_dict())
            else:
                render(report, console())
            return
        found = opened.sample(record.id, sample)
        stored = opened.outcomes(record.id, sample_id=sample, with_steps=steps)
        outcomes = [reflagged(each, flag) if flag else each for each in stored]
    if as_json:
        judged = [as_data(each, steps=steps) for each in outcomes]
        print_json({"run": record.id, "sample": asdict(found), "outcomes": judged})
    else:
        outcome_panel(found, outcomes, console(), steps=steps)
