"""`magistrate train stack`: combine signals and judges, with weights learnt from labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import (
    Assignment,
    folds_option,
    json_option,
    limit_options,
    model_options,
    reading_options,
    store_option,
)
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.engines.base import EngineSettings

EXAMPLE = (
    "Example: magistrate train stack --data summedits:dev --data begin:dev --of signal:content_words "
    "--of signal:numbers --to my-stack; magistrate run answers.jsonl --judge stack:my-stack"
)


class Replacing(Assignment):
    """An assignment `PART=JUDGE`, where PART may have options with = in parentheses."""

    name = "PART=JUDGE"

    def convert(self, value: Any, parameter: Any, context: Any) -> tuple[str, str]:
        part, equals, judge = str(value).partition("=")
        if not equals or not part or not judge:
            self.fail(f"expected PART=JUDGE, such as detector:all=detector:without-{{family}}, got {value!r}")
        return part, judge


@click.command(short_help="Learn weights for signals and judges on labelled data.", epilog=EXAMPLE)
@click.option("--data", multiple=True, metavar="FILE|NAME", help="Labelled data; repeatable.")
@click.option(
    "--run", "runs", multiple=True, metavar="RUN", help="A stored run whose judges can be parts; repeatable."
)
@click.option(
    "--of",
    multiple=True,
    required=True,
    metavar="JUDGE|signal:NAME",
    help="A part of the stack: a judge or a text signal; repeatable. Few are better than many.",
)
@click.option("--to", "target", type=click.Path(path_type=Path), help="Write the stack to this folder.")
@click.option("--force", is_flag=True, help="Replace an existing stack.")
@click.option(
    "--instead",
    multiple=True,
    type=Replacing(),
    help="The judge that replaces a part in training; {family} stands for the data's family. Repeatable.",
)
@click.option("--non-negative", "positive", is_flag=True, help="Do not allow negative weights.")
@click.option(
    "--base-rate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.5,
    show_default=True,
    help="The share of hallucinated outputs to assume where the stack will be used.",
)
@click.option("--sample", type=click.IntRange(1), help="N random samples of each --data.")
@reading_options
@folds_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of --sample and of folds.")
@click.option("--seen", is_flag=True, help="Also fit weights on data of a family that a part was trained on.")
@limit_options
@model_options
@store_option
@json_option
def command(
    data: tuple[str, ...],
    runs: tuple[str, ...],
    of: tuple[str, ...],
    target: Path | None,
    force: bool,
    instead: tuple[tuple[str, str], ...],
    positive: bool,
    base_rate: float,
    sample: int | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    folds: int,
    seed: int,
    seen: bool,
    model: str | None,
    settings: EngineSettings,
    store: str | None,
    as_json: bool,
    **limits: Any,
) -> None:
    """Learn weights for signals and judges on labelled data, and write a judge that combines them.

    Shows the weight of each part, and how good the stack is on folds of the data and on each family of data
    that was left out of training. Judges that run code need no model. The others use --model, and the stack
    then works with that model only.
    """
    from magistrate.api.train import Asking, train_stack
    from magistrate.judges.folders import check_free
    from magistrate.judges.stack_folder import FILE
    from magistrate.report.training import render_stack
    from magistrate.runs.limits import Limits
    from magistrate.runs.progress import ProgressBar

    if not data and not runs:
        raise click.UsageError("give labelled data, --data FILE, or a stored run, --run RUN")
    if target is not None:
        check_free(target, FILE, "stack", replace=force)
    how = Asking(
        sample=sample,
        seed=seed,
        mapping=dict(mapping),
        labels=labels,
        max_unread=max_unread,
        model=model,
        base_url=settings.base_url,
        device=settings.device,
        threads=settings.threads,
        timeout=settings.timeout,
        store=store,
        limits=Limits(**limits),
        watcher=ProgressBar(console(error=True), lines=True),
    )
    found = train_stack(
        data,
        of,
        runs=runs,
        instead=dict(instead),
        positive=positive,
        base_rate=base_rate,
        folds=folds,
        seen=seen,
        how=how,
    )
    if target is not None:
        found.save(target, replace=force)
    if as_json:
        print_json({**found.to_dict(), "folder": None if target is None else str(target)})
        return
    render_stack(found.fit, found.file, found.left_out, console())
    if target is not None:
        click.echo(f"\nwritten to {target}; use it with: magistrate run DATA --judge stack:{target}")
