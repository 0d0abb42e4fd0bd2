"""`magistrate train detector`: train a small encoder that finds sentences without support in the context."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import json_option, reading_options
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from types import ModuleType

    from magistrate.types import Sample

EXAMPLE = (
    "Example: magistrate train detector --data labelled.csv --to my-detector --minutes 9; "
    "magistrate run answers.jsonl --judge detector:my-detector"
)
MILLION = 1_000_000
MOST_TOKENS = 10_000  # millions


def _in_millions(context: click.Context, parameter: click.Parameter, value: float) -> float:
    """Refuse a number of tokens that was meant as one of single tokens."""
    if value > MOST_TOKENS:
        raise click.BadParameter(
            f"counts millions of tokens: {value:,.12g} would be {value:,.12g} million, and at most "
            f"{MOST_TOKENS:,} are allowed; for {value:,.12g} tokens, give {value / MILLION:.12g}",
            context,
            parameter,
        )
    return value


@click.command(epilog=EXAMPLE)
@click.option("--data", multiple=True, required=True, metavar="FILE|NAME", help="Labelled data; repeatable.")
@click.option(
    "--to", "target", required=True, type=click.Path(path_type=Path), help="Folder to write the detector to."
)
@click.option("--force", is_flag=True, help="Start over, and replace an existing detector.")
@click.option(
    "--base",
    metavar="NAME|FOLDER",
    help="The model to start from: shipped, detector-large, minilm-l6, mpnet, the folder of a detector, or a "
    "Hugging Face folder of a BERT or MPNet (default: shipped, with --recipe minilm-l6).",
)
@click.option("--name", help="Name of the detector (default: the folder's name).")
@click.option(
    "--recipe",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file that describes a mixture of sources; --data is then the folder with their files, and "
    "--tokens sets the length.",
)
@click.option(
    "--tokens",
    type=click.FloatRange(0, min_open=True),
    default=100.0,
    show_default=True,
    callback=_in_millions,
    help="With --recipe: how many tokens to train on, in millions.",
)
@click.option(
    "--calibrate-on",
    multiple=True,
    metavar="FILE|NAME",
    help="With --recipe: labelled data for calibration, not used for training; repeatable.",
)
@click.option(
    "--wordnet",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --recipe: a folder with WordNet's files, which give more word replacements.",
)
@click.option("--epochs", type=click.FloatRange(0, min_open=True), help="Number of epochs (default: 4).")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Peak learning rate.")
@click.option(
    "--batch",
    type=click.IntRange(64),
    help="Tokens per step (default: 2048; with --recipe 8192; with a large base 1536).",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Device to train on (default: a GPU if there is one).",
)
@click.option(
    "--minutes",
    type=click.FloatRange(0, min_open=True),
    help="Stop after this time; the same command continues from there.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Seed of the held-out part and of draws."
)
@reading_options
@json_option
def command(
    data: tuple[str, ...],
    target: Path,
    force: bool,
    base: str | None,
    name: str | None,
    recipe: Path | None,
    tokens: float,
    calibrate_on: tuple[str, ...],
    wordnet: Path | None,
    epochs: float | None,
    rate: float | None,
    batch: int | None,
    device: str | None,
    minutes: float | None,
    seed: int,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    as_json: bool,
) -> None:
    """Train a small encoder on labelled data, and write its folder.

    It starts from the detector that comes with the package, and trains it on your labels (and spans, if
    there are any). It reports how well it ranks on held-out contexts, and whether that is better than
    before. The same data, options and seed give the same detector.
    """
    from magistrate.datasets.named import family_of

    bases, training = _libraries()
    begun = bases.base(
        base or ("shipped" if recipe is None else "minilm-l6"), target.with_name(f".{target.name}.base")
    )
    terminal = console(error=True)
    read = partial(_samples, mapping=dict(mapping), labels=labels, max_unread=max_unread)
    common: dict[str, Any] = {
        "name": name or target.name,
        "seconds": None if minutes is None else 60 * minutes,
        "device": device,
        "force": force,
    }
    steps = {key: value for key, value in (("rate", rate), ("batch", batch)) if value is not None}
    with terminal.status("reading") as status:

        def tell(now: Any, loss: float) -> None:
            status.update(f"{now.tokens:,} of {now.schedule.tokens:,} tokens, loss {loss:.3f}")

        if recipe is not None:
            found = _on_recipe(training, recipe, data, begun, target, tokens, steps, seed, wordnet,
                               read(calibrate_on), tell, common)  # fmt: skip
        else:
            schedule = replace(training.OWN, seed=seed, **steps)
            found = training.train_on_labels(
                read(data),
                begun,
                target,
                trained_on=tuple(dict.fromkeys(map(family_of, data))),
                schedule=schedule,
                epochs=epochs or training.EPOCHS,
                tell=tell,
                **common,
            )
    _print(found, target, force=force, as_json=as_json)


def _on_recipe(
    training: ModuleType,
    path: Path,
    data: tuple[str, ...],
    base: Any,
    target: Path,
    tokens: float,
    steps: dict[str, Any],
    seed: int,
    wordnet: Path | None,
    calibrate_on: list[Sample],
    tell: Any,
    common: dict[str, Any],
) -> Any:
    """Train on a mixture of sources, whose files are in the one folder of `data`."""
    from magistrate.training.detector.loop import Schedule
    from magistrate.training.detector.recipe import read_recipe
    from magistrate.training.synthetic import Lexicon

    if len(data) != 1 or not Path(data[0]).is_dir():
        raise click.UsageError("with --recipe, --data is the one folder that holds the files of its sources")
    if not calibrate_on:
        raise click.UsageError("with --recipe, name labelled data to calibrate on: --calibrate-on FILE")
    usual = training.LARGE if base.is_large else Schedule(tokens=0)
    return training.train_on_recipe(
        read_recipe(path),
        Path(data[0]),
        base,
        target,
        schedule=replace(usual, tokens=int(tokens * MILLION), seed=seed, **steps),
        lexicon=Lexicon.read(wordnet),
        calibrate_on=calibrate_on,
        tell=tell,
        **common,
    )


def _print(found: Any, target: Path, *, force: bool, as_json: bool) -> None:
    if as_json:
        gain = found.gain and [found.gain.value, found.gain.low, found.gain.high]
        print_json(
            {
                "share": found.share,
                "auroc": dict(found.auroc),
                "gain": gain,
                "better": found.better,
                "held_out": {"samples": found.n, "contexts": found.contexts},
                "folder": str(target),
            }
        )
        return
    if found.manifest is None:
        how = "the same command without --force" if force else "the same command"
        click.echo(f"{found.share:.0%} done; {how} continues from there")
        return
    held = f"{found.n:,} held-out samples of {found.contexts:,} contexts"
    for what, value in found.auroc.items():
        click.echo(f"AUROC {what} training: {value:.3f}, on {held}")
    if found.gain is not None:
        click.echo(_verdict(found))
    click.echo(f"written to {target}; use it with: magistrate run DATA --judge detector:{target}")


def _verdict(found: Any) -> str:
    """Return whether training has helped, with the measured difference."""
    gain = found.gain
    if gain.low is None:
        return f"difference {gain.value:+.3f}, without an interval: {gain.undefined}"
    told = f"difference {gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    if found.better is None:
        return f"{told}: not shown to be better or worse; more labels are needed to tell"
    return f"{told}: {'better' if found.better else 'worse'} than before training"


def _libraries() -> tuple[ModuleType, ModuleType]:
    """Import the heavy training modules. Raises `MissingExtra` with what to install."""
    from importlib import import_module

    from magistrate.errors import require_extra

    require_extra("train", "torch", "transformers", "sklearn")
    bases, training = (f"magistrate.training.detector.{name}" for name in ("bases", "training"))
    return import_module(bases), import_module(training)


def _samples(names: tuple[str, ...], **how: Any) -> list[Sample]:
    """Load the samples of files or named sets; `NAME:VIEW` selects a view of a set."""
    from magistrate.datasets import load

    return [sample for each in names for sample in load(each, **how)]
