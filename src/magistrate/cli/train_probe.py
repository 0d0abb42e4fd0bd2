"""`magistrate train probe`: a linear probe on a model's hidden states, trained on labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import folds_option, json_option, model_options, reading_options
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.engines.base import EngineSettings
    from magistrate.features.hidden_states import Pooling

EXAMPLE = (
    "Example: magistrate train probe --data labelled.csv --to my-probe; "
    "magistrate run answers.jsonl --judge probe:my-probe"
)


@click.command(short_help="Fit a linear probe to a model's hidden states.", epilog=EXAMPLE)
@click.option("--data", multiple=True, required=True, metavar="FILE|NAME", help="Labelled data; repeatable.")
@click.option("--to", "target", type=click.Path(path_type=Path), help="Write the probe to this folder.")
@click.option("--force", is_flag=True, help="Replace an existing probe.")
@click.option(
    "--layer",
    type=click.IntRange(0),
    help="The layer whose states are used, 0 for the embedding (default: at two thirds of the depth).",
)
@click.option(
    "--pooling",
    type=click.Choice(["mean", "last"]),
    default="mean",
    show_default=True,
    help="Use the mean over the output's tokens, or its last token.",
)
@click.option(
    "--strength",
    type=click.FloatRange(0, min_open=True),
    default=0.01,
    show_default=True,
    help="C of the logistic regression: a higher value fits the labels more closely.",
)
@click.option("--sample", type=click.IntRange(1), help="N random samples of each --data.")
@reading_options
@folds_option
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of --sample and of folds.")
@model_options
@json_option
def command(
    data: tuple[str, ...],
    target: Path | None,
    force: bool,
    layer: int | None,
    pooling: Pooling,
    strength: float,
    sample: int | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    folds: int,
    seed: int,
    model: str | None,
    settings: EngineSettings,
    as_json: bool,
) -> None:
    """Fit a linear probe to the hidden states of a model that reads labelled outputs.

    Shows its accuracy on folds that share no context, and writes a folder that judges with this model only.
    States are cached in $MAGISTRATE_HOME/activations, so another layer or pooling needs no new model calls.
    """
    from magistrate.api.train import train_probe
    from magistrate.judges.folders import check_free
    from magistrate.judges.probe import FILE, write_probe
    from magistrate.judges.registry import engine as engine_of
    from magistrate.report.training import render_probe
    from magistrate.runs.progress import waiting
    from magistrate.training.probe import card_of

    if target is not None:
        check_free(target, FILE, "probe", replace=force)
    settings = replace(settings, hidden_states=True)
    engine = engine_of(model, settings)
    with waiting(engine, console(error=True)):
        found, left_out = train_probe(
            data,
            engine,
            sample=sample,
            mapping=dict(mapping),
            labels=labels,
            max_unread=max_unread,
            layer=layer,
            pooling=pooling,
            strength=strength,
            folds=folds,
            seed=seed,
        )
    if target is not None:
        write_probe(found.file, card_of(found.file), target, replace=force)
    if as_json:
        folder = None if target is None else str(target)
        print_json({**found.to_dict(), "left_out": left_out, "folder": folder})
        return
    render_probe(found, left_out, console())
    if target is not None:
        click.echo(f"\nwritten to {target}; use it with: magistrate run DATA --judge probe:{target}")
