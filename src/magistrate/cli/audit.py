"""`magistrate audit`: how often an irrelevant change of a sample flips a judge's verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import (
    full_option,
    json_option,
    model_options,
    reading_options,
    run_option,
    store_option,
)
from magistrate.cli.output import console, print_json
from magistrate.runs.options import BALANCE, CONCURRENT, LIMIT, SAMPLE, SEED, TIME_FOR_VERDICT, VIEW

if TYPE_CHECKING:
    from magistrate.api.audit import Examination
    from magistrate.engines.base import EngineSettings

EXAMPLE = "Example: magistrate audit faithfulness --data quickstart --sample 20 --html audit.html"


@click.command(short_help="Change samples, and report how often the verdict flips.", epilog=EXAMPLE)
@click.argument("judge")
@click.option(
    "--data", required=True, help="A named or stored set, a file, or - for JSONL on standard input."
)
@reading_options
@run_option(LIMIT)
@run_option(SAMPLE)
@run_option(BALANCE)
@run_option(VIEW)
@run_option(SEED, help="Seed of --sample, edits and intervals.")
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Run only this check; repeatable.")
@click.option(
    "--attacks", type=click.IntRange(1), default=8, show_default=True, help="How many hostile texts to try."
)
@click.option(
    "--html",
    "html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write an HTML report to this file.",
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@full_option
@run_option(CONCURRENT, help="How many judgements to run at the same time.")
@run_option(TIME_FOR_VERDICT)
@model_options
@store_option
@json_option
def command(
    judge: str,
    data: str,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    limit: int | None,
    sample: int | None,
    balance: str | None,
    view: str | None,
    seed: int,
    checks: tuple[str, ...],
    attacks: int,
    html: Path | None,
    force: bool,
    full: bool,
    concurrency: int,
    deadline: float,
    model: str | None,
    settings: EngineSettings,
    store: str | None,
    as_json: bool,
) -> int:
    """Judge original and changed samples, and report how often the verdict of JUDGE flips.

    Checks: repeated, options_swapped, reasons, padding, contexts_shuffled, formatting, noise, hostile.
    Nothing is stored, and no cache is used.
    """
    from magistrate.api.audit import Examination, samples_of
    from magistrate.judges import registry
    from magistrate.runs.limits import Limits
    from magistrate.runs.progress import ProgressBar

    _writable(html, force)
    asked = registry.judge(judge)
    reading = {"map": dict(mapping), "labels": labels, "max_unread": max_unread}
    selection = {"limit": limit, "sample": sample, "balance": balance, "seed": seed, "view": view}
    dataset = samples_of(data, place=store, **reading, **selection)
    settings = replace(settings, concurrency=concurrency)
    examination = Examination(
        asked,
        registry.engine_for([asked], model, settings),
        dataset,
        checks=checks,
        attacks=attacks,
        seed=seed,
        limits=Limits(concurrency=concurrency, deadline=deadline),
        watcher=ProgressBar(console(error=True), lines=True),
    )
    return _made(examination, html, as_json, full)


def _made(examination: Examination, html: Path | None, as_json: bool, full: bool) -> int:
    """Judge, then print and write the results, even after Ctrl-C."""
    from magistrate import _async
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE, interrupted_code, print_problems
    from magistrate.errors import MagistrateError
    from magistrate.report.audit import page, render

    cut_short = False
    try:
        _async.run(examination.go())
    except KeyboardInterrupt:
        cut_short = True
    except MagistrateError:
        click.echo(_told(len(examination.outcomes), len(examination.plan.jobs)), err=True)
        raise
    audit = examination.result()
    if as_json:
        print_json(audit.to_dict())
    else:
        render(audit, console(), full=full)
    if html is not None:
        html.write_text(page(audit), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)
    print_problems(examination.dataset.problems)
    if cut_short:
        click.echo(f"interrupted: {_told(audit.n_judged, audit.n_planned)}", err=True)
        return interrupted_code()
    effects = [finding.effect for finding in audit.findings if finding.effect is not None]
    if effects and not any(effect.pairs for effect in effects):
        click.echo("no pair of judgements has two verdicts, so nothing can be said about the judge", err=True)
        return ENGINE_GONE
    return DONE


def _told(n: int, of: int) -> str:
    return f"{n} of {of} judgements were made; none of them is stored"


def _writable(html: Path | None, force: bool) -> None:
    """Raise `SpecError` before judging if the HTML page cannot be written."""
    from magistrate.errors import SpecError

    if html is None:
        return
    if html.exists() and not force:
        raise SpecError(f"{html} already exists; replace it with --force, or choose another file")
    if not html.absolute().parent.is_dir():
        raise SpecError(f"cannot write {html.name}: there is no folder {html.absolute().parent}")
