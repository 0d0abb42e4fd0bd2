"""`magistrate export`: write a run as a report, or as rows for other tools."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from magistrate.cli.options import json_option, open_store, store_option
from magistrate.cli.output import print_json

EXAMPLE = (
    "Example: magistrate export last --to report.html; magistrate export last --to verdicts.csv; "
    "magistrate export last --format sft --to chats.jsonl --test 0.1"
)


@click.command(short_help="Write RUN as an HTML report, as rows or as chats.", epilog=EXAMPLE)
@click.argument("run")
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    help="The file: an .html report, or rows as .jsonl, .csv (also .gz) or .parquet.",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["file", "sft"]),
    default="file",
    show_default=True,
    help="The format (default: by the file's extension); sft writes chats for fine-tuning as .jsonl.",
)
@click.option("--judge", metavar="NAME", help="Only outcomes of this judge.")
@click.option(
    "--rows",
    type=click.IntRange(0),
    default=2000,
    show_default=True,
    help="Outcomes listed in a .html report: wrong ones, failures and abstentions first.",
)
@click.option(
    "--agree/--corrected",
    "agree",
    default=True,
    help="sft: only verdicts that agree with people's labels, or also the others, with the person's label "
    "and without reasoning.  [default: agree]",
)
@click.option(
    "--test",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    help="sft: the share of contexts whose chats go to NAME.test.jsonl instead.",
)
@click.option("--seed", type=int, default=0, help="sft: seed of this choice of contexts.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@store_option
@json_option
def command(
    run: str,
    target: Path,
    kind: str,
    judge: str | None,
    rows: int,
    agree: bool,
    test: float,
    seed: int,
    force: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Write RUN as an HTML report, as rows (one per outcome, with its sample), or as chats for fine-tuning.

    The report is self-contained: no network, no other file. Its metrics cover all outcomes, listed or not.
    """
    from magistrate.api.run import export_run

    if kind == "sft":
        _export_sft(run, target, judge, not agree, test, seed, force, store, as_json)
        return
    if not agree or test or seed:
        raise click.UsageError("--corrected, --test and --seed need --format sft")

    with open_store(store) as opened:
        record = opened.find_run(run)
        written = export_run(opened, record.id, target, judge=judge, rows=rows, replace=force)
    is_report = target.name.lower().endswith(".html")
    listed = min(rows, written)
    if as_json:
        more = {"listed": listed} if is_report else {}
        print_json({"run": record.id, "file": str(target), "rows": written, **more})
    elif is_report:
        left = f", {listed:,} of them listed (--rows)" if listed < written else ""
        click.echo(f"wrote a report of {written:,} outcomes{left} to {target}")
    else:
        click.echo(f"{written} rows in {target}")


def _export_sft(
    run: str,
    target: Path,
    judge: str | None,
    corrected: bool,
    test: float,
    seed: int,
    force: bool,
    store: str | None,
    as_json: bool,
) -> None:
    from magistrate._paths import default_store
    from magistrate.api.sft import export_sft

    with open_store(store):
        pass  # its error explains what to do if there is no store
    written = export_sft(
        run,
        target,
        judge,
        corrected=corrected,
        test=test,
        seed=seed,
        replace=force,
        store=store or default_store(),
    )
    if as_json:
        print_json(asdict(written))
        return
    labels = ", ".join(f"{count:,} {label}" for label, count in written.labels.items())
    for file, count in zip(written.files, (written.n_train, written.n_test), strict=False):
        click.echo(f"{count:,} chats in {file}")
    click.echo(f"labels: {labels}" + (f"; {written.corrected:,} corrected" if written.corrected else ""))
    if written.escaped:
        click.echo(
            f"{written.escaped:,} contain texts that look like special tokens; these are escaped with U+2060"
        )
    for reason, count in written.left_out.items():
        click.echo(f"left out: {count:,} ({reason})")
