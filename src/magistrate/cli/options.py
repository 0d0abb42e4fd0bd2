"""Options that several commands share, and how they read and print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from magistrate import _logging

if TYPE_CHECKING:
    from rich.console import Console

    from magistrate.judges.base import Judge
    from magistrate.store import Store

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
ABOVE_0 = click.FloatRange(0, min_open=True)


class TextOrFile(click.ParamType[str]):
    """A text, or `@FILE` for a file's contents (`@-` for standard input)."""

    name = "TEXT|@FILE"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        text = str(value)
        if not text.startswith("@"):
            return text
        try:
            data = sys.stdin.buffer.read() if text == "@-" else Path(text[1:]).read_bytes()
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self.fail(f"{text[1:]} is not UTF-8 text: {error}", parameter, context)
        except OSError as error:
            self.fail(f"cannot read {text[1:]}: {error.strerror}", parameter, context)


class Assignment(click.ParamType[tuple[str, str]]):
    """`name=value`."""

    name = "NAME=FIELD"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, str]:
        name, equals, field = str(value).partition("=")
        if not equals or not name or not field:
            self.fail(f"expected name=field, such as context=docs, got {value!r}", parameter, context)
        return name, field


class LabelMeanings(click.ParamType[dict[str, str]]):
    """`VALUE=MEANING,VALUE=MEANING`."""

    name = "VALUE=MEANING,…"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> dict[str, str]:
        from magistrate.datasets.fields import parse_labels
        from magistrate.errors import SpecError

        try:
            return parse_labels(str(value))
        except SpecError as error:
            self.fail(str(error), parameter, context)


def _all_meanings(
    context: click.Context, parameter: click.Parameter, given: Sequence[dict[str, str]]
) -> dict[str, str]:
    """What every `--labels` says together."""
    from magistrate.datasets.fields import check_labels
    from magistrate.errors import SpecError

    found: dict[str, str] = {}
    for each in given:
        for value, meaning in each.items():
            if found.setdefault(value, meaning) != meaning:
                raise click.BadParameter(f"says two things of {value!r}; keep one", context, parameter)
    try:
        check_labels(found)
    except SpecError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    return found


def reading_options(function: Decorated) -> Decorated:
    """`--map`, `--labels`, `--max-unread`: how rows are read."""
    return _reading_options(function, max_unread=0.1)


def whole_reading_options(function: Decorated) -> Decorated:
    """As `reading_options`, where unread rows are lost for good: none, unless `--max-unread` allows it."""
    return _reading_options(function, max_unread=0.0)


def _reading_options(function: Decorated, max_unread: float) -> Decorated:
    for option in (
        click.option(
            "--max-unread",
            type=click.FloatRange(0, 1),
            default=max_unread,
            show_default=True,
            help="Stop with 2 if a greater share of the rows cannot be read.",
        ),
        click.option(
            "--labels",
            multiple=True,
            type=LabelMeanings(),
            callback=_all_meanings,
            help="What the values of the label column mean: faithful, hallucinated or unlabelled, such as "
            "ok=faithful,bad=hallucinated; repeatable.",
        ),
        click.option(
            "--map",
            "mapping",
            multiple=True,
            type=Assignment(),
            help="Which column is which field; repeatable.",
        ),
    ):
        function = option(function)
    return function


def model_options(function: Decorated) -> Decorated:
    """`--model`, `--base-url`, `--device`, `--threads`, `--timeout`."""
    for option in (
        click.option("--timeout", type=ABOVE_0, help="Seconds for one call of the model."),
        click.option("--threads", type=click.IntRange(1), help="Cores to use (default: all it may run on)."),
        click.option(
            "--device", help="Where a model runs, such as CPU (default: $MAGISTRATE_DEVICE or CPU)."
        ),
        click.option(
            "--base-url", metavar="URL", help="Where the server of openai:MODEL or its like listens."
        ),
        click.option(
            "--model",
            help="Who is asked: a catalogue name, GGUF file or OpenVINO folder, openai:MODEL, ollama:MODEL, "
            "vllm:MODEL, anthropic:MODEL or transformers:FOLDER (default: the small built-in one).",
        ),
    ):
        function = option(function)
    return function


def tell_unasked(judges: Sequence[Judge], context: click.Context) -> None:
    """Say on standard error which options of an engine change nothing, where no judge asks one.

    Raises `SpecError` for a model that nobody knows, as where it is asked.
    """
    from magistrate.engines.catalog import check_named
    from magistrate.judges.registry import asks_none, engine_kind
    from magistrate.report.formatting import plain

    options = ("model", "base_url", "device", "threads", "timeout")
    given = [f"--{name.replace('_', '-')}" for name in options if context.params.get(name) is not None]
    if given and asks_none(judges):
        if context.params["model"] is not None and engine_kind(context.params["model"]) is None:
            check_named(context.params["model"])
        names = ", ".join(judge.info.name for judge in judges)
        told = f"{names}: decided by code, no model is asked; not used: {', '.join(given)}"
        click.echo(f"note: {plain(told)}", err=True)


def price_option(function: Decorated) -> Decorated:
    """`--price`."""
    return click.option(
        "--price", metavar="IN/OUT", help="What tokens cost, in dollars a million (default: what is known)."
    )(function)


def calibration_option(function: Decorated) -> Decorated:
    """`--calibration`."""
    return click.option(
        "--calibration",
        "calibrations",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A calibration of one of the judges, from 'magistrate calibrate'; repeatable.",
    )(function)


def limit_options(function: Decorated) -> Decorated:
    """How much at once, and how much in all."""
    for option in (
        click.option("--max-cost", type=ABOVE_0, help="Begin nothing more once so many dollars are spent."),
        click.option(
            "--max-seconds",
            type=ABOVE_0,
            help="Stop after so many seconds, counted anew when the run is resumed.",
        ),
        click.option(
            "--max-tokens", type=click.IntRange(1), help="Begin nothing more once so many are spent."
        ),
        click.option(
            "--give-up-after",
            type=click.IntRange(1),
            default=20,
            show_default=True,
            help="Stop with 3 once the engine failed so often in a row.",
        ),
        click.option(
            "--deadline", type=ABOVE_0, default=300.0, show_default=True, help="Seconds for one verdict."
        ),
        click.option(
            "--concurrency",
            type=click.IntRange(1),
            default=16,
            show_default=True,
            help="Samples under way at once.",
        ),
    ):
        function = option(function)
    return function


def store_option(function: Decorated) -> Decorated:
    """`--store`."""
    return click.option(
        "--store",
        metavar="FILE|URL",
        help="Where runs are kept: a file, or postgresql://… (default: magistrate.db in $MAGISTRATE_HOME).",
    )(function)


def gate_option(function: Decorated) -> Decorated:
    """`--gate`."""
    return click.option(
        "--gate",
        "gates",
        multiple=True,
        metavar="METRIC>=X",
        help="Exit with 1 if a figure is worse: f1>=0.7, failures<=0.02, lower(f1)>=0.6; repeatable.",
    )(function)


def junit_option(function: Decorated) -> Decorated:
    """`--junit`."""
    return click.option(
        "--junit",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the gates as JUnit XML there, in place of what is there.",
    )(function)


def json_option(function: Decorated) -> Decorated:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print data for machines.")(function)


def open_store(place: str | None) -> Store:
    """The store named by `--store`, or the usual one; unlike a run, reading makes none.

    Raises `SpecError` where there is no such file.
    """
    from magistrate._paths import default_store
    from magistrate.errors import SpecError
    from magistrate.store import Store
    from magistrate.store.connect import exists

    chosen = place or default_store()
    if not exists(chosen):
        advice = "check --store" if place else "make one with: magistrate run quickstart"
        raise SpecError(f"there is no store of runs at {chosen}; {advice}")
    return Store.open(chosen)


def print_json(value: Any) -> None:
    """One JSON document on standard output, in ASCII; what JSON has no word for is a text."""
    from magistrate.report.export import json_values

    click.echo(json.dumps(json_values(value), indent=2, allow_nan=False))


def console(*, error: bool = False) -> Console:
    """A terminal that neither reads markup in what is printed nor turns `:smile:` into something else.

    A reader that has seen enough is for `main` to notice, as everywhere else.
    """
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Terminal(stderr=error, markup=False, emoji=False, highlight=False)


def talking(command: click.Command) -> None:
    """Give a command and all below it `--verbose`."""
    if not any(parameter.name == "verbose" for parameter in command.params):
        command.params.append(
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                expose_value=False,
                callback=_talk,
                help="Say on standard error what is done.",
            )
        )
    if isinstance(command, click.Group):
        for each in command.commands.values():
            talking(each)


def _talk(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        _logging.configure(verbose=True)


def hush() -> None:
    """Let nothing more be written to standard output, whose reader is gone."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
