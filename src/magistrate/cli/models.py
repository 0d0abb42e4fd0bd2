"""`magistrate models`: list the known models, download one, print its folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.completion import PULLABLE
from magistrate.cli.options import json_option
from magistrate.cli.output import console, is_pipe, print_json, print_table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

EXAMPLE = "Example: magistrate models pull smollm2-135m-instruct"


@click.group(short_help="List, download and locate the known models.", epilog=EXAMPLE)
def command() -> None:
    """List, download and locate the known models, which are pinned by hash."""


@command.command("list", epilog="Example: magistrate models list --json")
@json_option
def list_models(as_json: bool) -> None:
    """List the catalogue."""
    from magistrate.detectors import large
    from magistrate.engines.models import entries, pulled

    models = entries()
    here = {model.name: pulled(model) for model in models}
    if as_json:
        print_json(
            [
                {
                    "name": model.name,
                    "default": model.default,
                    "pulled": bool(here[model.name]),
                    "weights": here[model.name],
                    "selftest": model.selftest is not None,
                    "source": str(model.source),
                    "sha256": model.sha256,
                    "bytes": model.size,
                    "quantization": model.quantization,
                    "context_length": model.context_length,
                    "licence": model.licence,
                    "notes": model.notes,
                }
                for model in models
            ]
        )
        return
    print_table(
        ["model", "here", "size", "context", "notes", "licence"],
        [
            [
                model.name + (" (default)" if model.default else ""),
                "+".join(here[model.name]) or "no",
                f"{model.size / 1e6:,.0f} MB",
                f"{model.context_length:,}",
                model.notes + ("" if model.selftest else " Its logits were not self-tested."),
                model.licence,
            ]
            for model in models
        ],
        wrapped={"notes": 20, "licence": 12},
        spare=("licence",),
    )
    if not is_pipe(terminal := console()):
        got = "here" if large.is_pulled() else f"magistrate models pull {large.LARGE}"
        terminal.print(f"No language model, but for `combined:size=large` (438 MB): {got}", style="dim")


@command.command(
    short_help="Download, verify and convert a model.", epilog="Example: magistrate models pull qwen3-0.6b"
)
@click.argument("name", required=False, type=PULLABLE)
@json_option
def pull(name: str | None, as_json: bool) -> None:
    """Download, verify and convert the model NAME (default: the built-in one). This happens only once.

    `detector-large` is not a language model: `--judge combined:size=large` uses it. NAME:f16 is the same
    model with 16-bit instead of 8-bit weights: closer to the original, larger, slower.
    """
    from magistrate.detectors import large
    from magistrate.engines import models

    if name == large.LARGE:
        with Stages(console(error=True)) as stages:
            folder = large.pull(stages.report)
        _print_ready(name, folder, as_json=as_json)
        return
    entry = models.entry(name) if name else models.default()
    with Stages(console(error=True)) as stages:
        folder = models.pull(entry, stages.report)
    _print_ready(entry.spec, folder, as_json=as_json)


def _print_ready(name: str, folder: Path, *, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, "path": str(folder)})
    else:
        click.echo(f"{name} is ready in {folder}")


@command.command(
    short_help="Print the folder that the engine loads for NAME.",
    epilog="Example: magistrate models path smollm2-135m-instruct",
)
@click.argument("name", type=PULLABLE)
@json_option
def path(name: str, as_json: bool) -> None:
    """Print the folder that the engine loads for NAME (also a GGUF file or an OpenVINO folder).

    NAME and the GGUF file may end in :f16.
    """
    from magistrate.detectors import large
    from magistrate.engines.models import locate

    if name == large.LARGE:
        folder = large.folder_of_large()
    else:
        with Stages(console(error=True)) as stages:
            folder = locate(name, stages.report)
    if as_json:
        print_json({"name": name, "path": str(folder)})
    else:
        click.echo(folder)


class Stages:
    """Progress of a download: one bar per stage on a terminal, one line per stage elsewhere."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=24),
            DownloadColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Stages:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def report(self, stage: str, done: int, total: int | None) -> None:
        """Report that `done` of `total` bytes of a stage are finished."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
            if not self._console.is_terminal:
                click.echo(f"{stage} …", err=True)
        self._bars.update(self._tasks[stage], completed=done, total=total)
