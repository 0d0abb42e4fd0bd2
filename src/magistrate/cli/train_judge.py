"""`magistrate train judge`: fine-tune a small instruct model as a judge, with LoRA."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import ABOVE_0, json_option, reading_options
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.training.judge.loop import Progress
    from magistrate.training.judge.training import Outcome

EXAMPLE = (
    "Example: magistrate train judge --data labelled.csv --to my-judge --minutes 9; "
    "magistrate train judge --sft chats.jsonl --base HuggingFaceTB/SmolLM2-360M-Instruct --to my-judge"
)


@click.command(short_help="Fine-tune a small instruct model on labels.", epilog=EXAMPLE)
@click.option("--data", multiple=True, metavar="FILE|NAME", help="Labelled samples; repeatable.")
@click.option(
    "--sft",
    "chats",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Chats instead of samples, as written by 'magistrate export RUN --format sft'; repeatable.",
)
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder for the model, and for the state of its training until it is done.",
)
@click.option(
    "--base",
    metavar="MODEL",
    help="The model to start from: a Hugging Face folder, a GGUF file, OWNER/NAME of the hub, or a catalogue "
    "name (default: the small built-in one).",
)
@click.option(
    "--judge",
    default="faithfulness",
    show_default=True,
    help="The judge whose prompts it learns to answer.",
)
@click.option("--epochs", type=ABOVE_0, default=3.0, show_default=True, help="Number of epochs.")
@click.option("--rate", type=ABOVE_0, default=2e-4, show_default=True, help="Peak learning rate.")
@click.option(
    "--rank",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="Rank of LoRA; alpha is twice the rank.",
)
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True, help="Examples per update.")
@click.option(
    "--together",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Tokens computed at the same time; a lower number needs less memory and does not change the result.",
)
@click.option(
    "--longest",
    type=click.IntRange(16),
    default=2048,
    show_default=True,
    help="Examples with more tokens are skipped.",
)
@click.option(
    "--test",
    type=click.FloatRange(0, 0.5, min_open=True),
    default=0.1,
    show_default=True,
    help="The share of contexts that is held out to decide when to stop.",
)
@click.option(
    "--patience",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    help="Stop after this many quarters of an epoch without a lower held-out loss.",
)
@click.option(
    "--checkpointing",
    is_flag=True,
    help="Recompute activations instead of keeping them: slower, needs less memory.",
)
@click.option("--precise", is_flag=True, help="Compute in 32 bits even if 16 bits would be faster.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything random."
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Device to train on (default: cuda if available).",
)
@click.option("--minutes", type=ABOVE_0, help="Stop after this time; the same command continues from there.")
@reading_options
@click.option("--force", is_flag=True, help="Start over, and replace an existing model.")
@json_option
def command(
    data: tuple[str, ...],
    chats: tuple[Path, ...],
    target: Path,
    base: str | None,
    judge: str,
    minutes: float | None,
    mapping: tuple[tuple[str, str], ...],
    labels: dict[str, str],
    max_unread: float,
    device: str | None,
    force: bool,
    as_json: bool,
    **numbers: Any,
) -> None:
    """Fine-tune a small instruct model on labels, so that it judges better with the prompt of a judge.

    Writes a Hugging Face folder with the merged weights, the LoRA adapter, a recipe, a model card, and a
    model.gguf for --model. Needs the extra 'train'.
    """
    from magistrate.datasets import load
    from magistrate.judges import registry
    from magistrate.training.judge.loop import Settings
    from magistrate.training.judge.training import train_judge

    if bool(data) == bool(chats):
        raise click.UsageError("give either labelled data or chats: --data FILE, or --sft FILE")
    settings = Settings(most=numbers.pop("longest"), alpha=2 * numbers["rank"], **numbers)
    outcome = train_judge(
        target,
        judge=registry.judge(judge) if data else None,
        data=[load(each, mapping=dict(mapping), labels=labels, max_unread=max_unread) for each in data],
        chats=chats,
        base=base,
        settings=settings,
        seconds=None if minutes is None else 60 * minutes,
        force=force,
        device=device,
        tell=None if as_json else _tell,
    )
    if as_json:
        print_json(asdict(outcome))
    elif outcome.recipe is None:
        how = "the same command without --force" if force else "the same command"
        click.echo(f"update {outcome.update:,} of {outcome.updates:,}; {how} continues from there")
    else:
        _render(outcome)


def _tell(progress: Progress) -> None:
    if progress.held_out is None:
        return
    loss = "" if progress.loss is None else f"loss {progress.loss:.3f}, "
    click.echo(
        f"update {progress.update:,} of {progress.updates:,}: {loss}held out {progress.held_out:.3f}",
        err=True,
    )


def _render(outcome: Outcome) -> None:
    from rich.table import Table

    from magistrate.training.judge.model_folder import GGUF, figures

    recipe = outcome.recipe
    assert recipe is not None
    examples = recipe.examples
    table = Table(box=None, pad_edge=False)
    for heading in (f"{examples['test']:,} held-out examples", "before", "after"):
        table.add_column(heading, justify="left" if heading[0].isdigit() else "right")
    for row in figures(recipe):
        table.add_row(*row)
    shown = console()
    shown.print(table)
    early = ", stopped early" if recipe.stopped_early else ""
    click.echo(
        f"\n{examples['train']:,} examples of {examples['train_contexts']:,} contexts; best of "
        f"{recipe.updates:,} updates: {recipe.best_update:,}{early}"
    )
    for reason, count in recipe.left_out.items():
        click.echo(f"left out: {count:,} ({reason})")
    if recipe.no_gguf:
        click.echo(
            f"{GGUF} was not written: {recipe.no_gguf}; convert the folder with other tools, such as "
            "optimum-cli"
        )
        return
    words = f"--judge {recipe.judge['words'].rpartition('@')[0]} " if recipe.judge else ""
    click.echo(f"use it with: magistrate run DATA {words}--model {outcome.folder / GGUF}")
