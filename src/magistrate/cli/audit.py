"""`magistrate audit`: what flips a judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import (
    ABOVE_0,
    console,
    json_option,
    model_options,
    print_json,
    reading_options,
    store_option,
)

if TYPE_CHECKING:
    from magistrate.api.audit import Examination

EXAMPLE = "Example: magistrate audit faithfulness --data quickstart --sample 20 --html audit.html"


@click.command(epilog=EXAMPLE)
@click.argument("judge")
@click.option(
    "--data", required=True, help="A named or stored set, a file, or - for JSONL on standard input."
)
@reading_options
@click.option("--limit", type=click.IntRange(1), help="The first N samples only.")
@click.option("--sample", type=click.IntRange(1), help="N samples at random.")
@click.option("--balance", metavar="FIELD", help="With --sample: as many of each value, such as label.")
@click.option("--view", help="A view of a named set, such as article200.")
@click.option("--seed", type=int, default=0, show_default=True, help="For --sample, edits and intervals.")
@click.option("--check", "checks", multiple=True, metavar="NAME", help="Only this check; repeatable.")
@click.option(
    "--attacks", type=click.IntRange(1), default=8, show_default=True, help="How many hostile texts."
)
@click.option("--html", "html", type=click.Path(dir_okay=False, path_type=Path), help="Write the page there.")
@click.option("--force", is_flag=True, help="Replace the page if it is there.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=16, show_default=True, help="Judgements at once."
)
@click.option("--deadline", type=ABOVE_0, default=300.0, show_default=True, help="Seconds for one verdict.")
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
    concurrency: int,
    deadline: float,
    model: str | None,
    base_url: str | None,
    device: str | None,
    threads: int | None,
    timeout: float | None,
    store: str | None,
    as_json: bool,
) -> int:
    """Judge samples as they are and changed, and say how often the verdict of JUDGE flips.

    Checks: repeated, options_swapped, reasons, padding, contexts_shuffled, formatting, noise, hostile.
    Nothing is stored, and no cache is used.
    """
    from magistrate.api.audit import Examination, samples_of
    from magistrate.engines.settings import EngineSettings
    from magistrate.judges import registry
    from magistrate.runs.limits import Limits
    from magistrate.runs.progress import ProgressBar

    _writable(html, force)
    asked = registry.judge(judge)
    reading = {"map": dict(mapping), "labels": labels, "max_unread": max_unread}
    selection = {"limit": limit, "sample": sample, "balance": balance, "seed": seed, "view": view}
    dataset = samples_of(data, place=store, **reading, **selection)
    settings = EngineSettings(
        base_url=base_url, device=device, threads=threads, timeout=timeout, concurrency=concurrency
    )
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
    return _made(examination, html, as_json)


def _made(examination: Examination, html: Path | None, as_json: bool) -> int:
    """Judge, then print and write what came of it, also where Ctrl-C cuts it short."""
    from magistrate import _async
    from magistrate.cli import DONE, ENGINE_GONE, interrupted_code
    from magistrate.cli.ending import left_out
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
        render(audit, console())
    if html is not None:
        html.write_text(page(audit), encoding="utf-8")
        click.echo(f"wrote {html}", err=True)
    left_out(examination.dataset.problems)
    if cut_short:
        click.echo(f"interrupted: {_told(audit.n_judged, audit.n_planned)}", err=True)
        return interrupted_code()
    effects = [finding.effect for finding in audit.findings if finding.effect is not None]
    if effects and not any(effect.pairs for effect in effects):
        click.echo("no pair of judgements has its verdicts, so that nothing is known of the judge", err=True)
        return ENGINE_GONE
    return DONE


def _told(n: int, of: int) -> str:
    return f"{n} of {of} judgements were made, and none is kept"


def _writable(html: Path | None, force: bool) -> None:
    """Refuse a page that could not be written before anything is judged. Raises `SpecError`."""
    from magistrate.errors import SpecError

    if html is None:
        return
    if html.exists() and not force:
        raise SpecError(f"{html} is there already; replace it with --force, or name another file")
    if not html.absolute().parent.is_dir():
        raise SpecError(f"there is no folder {html.absolute().parent} to write {html.name} into")
