"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from magistrate import _logging
from magistrate.runs.options import ENGINE, GATES, LABELS, LIMITS, MAP, PRICE, UNREAD, Option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from click.shell_completion import CompletionItem

    from magistrate.judges.base import Judge
    from magistrate.runs.spec import RunSpec
    from magistrate.store import Store
    from magistrate.types import Sample


Decorated = TypeVar("Decorated", bound=Callable[..., Any])
ABOVE_0 = click.FloatRange(0, min_open=True)
ESTIMATE = "estimate"
CAUTION = (
    "It is only as good as this judge's probabilities on such data; to measure the share, label some outputs "
    "and use 'magistrate prevalence'"
)


class OneOrCommand(click.Group):
    """A group that treats an unknown command as the name of something to show."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            return "show", self.commands["show"], args
        return super().resolve_command(context, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands that begin like this, and what the command that shows one would propose."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return found
        (named,) = (each for each in self.commands["show"].params if isinstance(each, click.Argument))
        shown = named.shell_complete(ctx, incomplete)
        return [*found, *(each for each in shown if not found or each.type != "file")]


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
    """An assignment: `name=value`."""

    name = "NAME=FIELD"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[str, str]:
        name, equals, field = str(value).partition("=")
        if not equals or not name or not field:
            self.fail(f"expected name=field, such as context=docs, got {value!r}", parameter, context)
        return name, field


class LabelMeanings(click.ParamType[dict[str, str]]):
    """The meanings of labels: `VALUE=MEANING,VALUE=MEANING`."""

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
    """Merge the values of every `--labels`, and reject contradictions."""
    if not given:
        return {}
    from magistrate.datasets.fields import check_labels
    from magistrate.errors import SpecError

    found: dict[str, str] = {}
    for each in given:
        for value, meaning in each.items():
            if found.setdefault(value, meaning) != meaning:
                raise click.BadParameter(f"gives two values for {value!r}; keep one", context, parameter)
    try:
        check_labels(found)
    except SpecError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    return found


def run_option(option: Option, **changes: Any) -> Callable[[Decorated], Decorated]:
    """Return the click decorator for a run option. `changes` override click's arguments."""
    flag = f"--{(option.flag or option.name).replace('_', '-')}"
    said: dict[str, Any] = {"help": option.help}
    low = option.least if option.above is None else option.above
    if low is None and option.most is None:
        said |= {"type": option.type} if option.type in (int, float) else {}
    elif option.type is int:
        said["type"] = click.IntRange(None if low is None else int(low))
    else:
        said["type"] = click.FloatRange(low, option.most, min_open=option.above is not None)
    if option.type in (list, dict):
        said["multiple"] = True
    elif option.default is not None:
        said |= {"default": option.default, "show_default": True}
    if option.metavar is not None:
        said["metavar"] = option.metavar
    return click.option(flag, option.name, **(said | changes))


def run_options(function: Decorated, options: Sequence[Option]) -> Decorated:
    """Add the flags of several options, in this order."""
    for option in reversed(options):
        function = run_option(option)(function)
    return function


def reading_options(function: Decorated) -> Decorated:
    """Add `--map`, `--labels` and `--max-unread`, which control how rows are read."""
    return _reading_options(function, UNREAD.default)


def whole_reading_options(function: Decorated) -> Decorated:
    """Add `reading_options` with a default of no unread rows, because these would be lost for good."""
    return _reading_options(function, 0.0)


def _reading_options(function: Decorated, max_unread: float) -> Decorated:
    function = run_option(UNREAD, default=max_unread)(function)
    function = run_option(LABELS, type=LabelMeanings(), callback=_all_meanings)(function)
    return click.option("--map", "mapping", multiple=True, type=Assignment(), help=MAP.help)(function)


def model_options(function: Decorated) -> Decorated:
    """Add `--model`, and, passed as `settings`, `--base-url`, `--device`, `--threads`, `--timeout`."""

    @functools.wraps(function)
    def with_settings(*args: Any, **kwargs: Any) -> Any:
        from magistrate.engines.base import EngineSettings

        named = {option.name: kwargs.pop(option.name) for option in ENGINE[1:]}
        return function(*args, settings=EngineSettings(**named), **kwargs)

    return run_options(cast("Decorated", with_settings), ENGINE)


def tell_unasked(judges: Sequence[Judge], context: click.Context) -> None:
    """Print on standard error which engine options have no effect, if no judge calls an engine.

    Raises `SpecError` for an unknown model, as a call of the engine would.
    """
    from magistrate.engines.models.pull import check_named
    from magistrate.judges.registry import asks_none, engine_kind
    from magistrate.report.formatting import plain

    names = [option.name for option in ENGINE]
    given = [f"--{name.replace('_', '-')}" for name in names if context.params.get(name) is not None]
    if given and asks_none(judges):
        if context.params["model"] is not None and engine_kind(context.params["model"]) is None:
            check_named(context.params["model"])
        named = ", ".join(judge.info.name for judge in judges)
        told = f"{named}: needs no model; ignored: {', '.join(given)}"
        click.echo(f"note: {plain(told)}", err=True)


def price_option(function: Decorated) -> Decorated:
    """Add `--price`."""
    return run_option(PRICE)(function)


def calibration_option(function: Decorated) -> Decorated:
    """Add `--calibration`."""
    return click.option(
        "--calibration",
        "calibrations",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A calibration of one of the judges, from 'magistrate calibrate'; repeatable.",
    )(function)


def limit_options(function: Decorated) -> Decorated:
    """Add `--concurrency`, `--deadline`, `--give-up-after`, and limits on calls, tokens, seconds and cost."""
    return run_options(function, LIMITS)


def store_option(function: Decorated) -> Decorated:
    """Add `--store`."""
    return click.option(
        "--store",
        metavar="FILE|URL",
        help="Where runs are stored: a file, or postgresql://… (default: magistrate.db in $MAGISTRATE_HOME).",
    )(function)


def gate_option(function: Decorated) -> Decorated:
    """Add `--gate`."""
    return run_option(GATES)(function)


def junit_option(function: Decorated) -> Decorated:
    """Add `--junit`."""
    return click.option(
        "--junit",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Write the gates as JUnit XML to this file; an existing file is replaced.",
    )(function)


def json_option(function: Decorated) -> Decorated:
    """Add `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def folds_option(function: Decorated) -> Decorated:
    """Add `--folds`."""
    return click.option(
        "--folds",
        type=click.IntRange(2, 20),
        default=5,
        show_default=True,
        help="Number of cross-validation folds.",
    )(function)


def full_option(function: Decorated) -> Decorated:
    """Add `--full`."""
    return click.option("--full", is_flag=True, help="Print all figures and remarks, not one screen.")(
        function
    )


def require_store(place: str | None) -> str:
    """Return the place of the store named by `--store`, or of the default one.

    Raises `SpecError` if there is no store: unlike a run, a read does not create one.
    """
    from magistrate._paths import default_store
    from magistrate.errors import SpecError
    from magistrate.store.connection import exists

    chosen = place or str(default_store())
    if not exists(chosen):
        advice = "check --store" if place else "create one with: magistrate run quickstart"
        raise SpecError(f"there is no store of runs at {chosen}; {advice}")
    return chosen


def open_store(place: str | None) -> Store:
    """Open the store that `require_store` returns."""
    from magistrate.store import Store

    return Store.open(require_store(place))


def add_verbose(command: click.Command) -> None:
    """Add `--verbose` to a command and all its subcommands."""
    if not any(parameter.name == "verbose" for parameter in command.params):
        command.params.append(
            click.Option(
                ["-v", "--verbose"],
                is_flag=True,
                expose_value=False,
                callback=_be_verbose,
                help="Log to standard error what is done.",
            )
        )
    if isinstance(command, click.Group):
        for each in command.commands.values():
            add_verbose(each)


def _be_verbose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        _logging.configure(verbose=True)


# --- the base rate ----------------------------------------------------------------------------------


class BaseRate(click.ParamType[float | str]):
    """A base rate: a share between 0 and 1, or the word `estimate`."""

    name = "SHARE"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float | str:
        if value == ESTIMATE:
            return ESTIMATE
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            self.fail(
                f"must be a share between 0 and 1, such as 0.2, or {ESTIMATE}; got {value!r}",
                parameter,
                context,
            )
        return share


def base_rate_option(function: Decorated) -> Decorated:
    """Add `--base-rate`."""
    return click.option(
        "--base-rate",
        type=BaseRate(),
        metavar=f"SHARE|{ESTIMATE}",
        help="The assumed share of hallucinated outputs, for judges that use it, such as novelty.",
    )(function)


def judges_assuming(judges: Sequence[str], base_rate: float | str | None) -> list[str]:
    """Return the judge names with the given base rate. Rejects `estimate`, which needs many outputs."""
    from magistrate.api.base_rate import assuming

    if base_rate is None:
        return list(judges)
    if isinstance(base_rate, str):
        raise click.BadParameter(
            "a base rate cannot be estimated from one output; give a share, such as 0.2",
            param_hint="--base-rate",
        )
    told = assuming(judges, base_rate)
    return [words if each is None else each.words for words, each in zip(judges, told, strict=True)]


def spec_assuming(spec: RunSpec, base_rate: float | str | None, store: str | None) -> RunSpec:
    """Set the judges' base rate in a run: the given one, or one estimated by reading its samples."""
    from magistrate.api.base_rate import assuming
    from magistrate.runs.spec import STDIN, judge_of

    if base_rate is None:
        return spec
    if base_rate == ESTIMATE and spec.dataset.source == STDIN:
        raise click.BadParameter(
            "standard input can be read only once, but the estimate must read all of it before the first "
            "verdict; save it to a file, or give a share, such as 0.2",
            param_hint="--base-rate",
        )
    share = None if isinstance(base_rate, str) else base_rate
    told = assuming(spec.judges, share, samples=partial(_samples, spec, store), make=partial(judge_of, spec))
    for words, each in zip(spec.judges, told, strict=True):
        if each is None:
            click.echo(f"{words} uses no base rate; the option has no effect on it", err=True)
        elif each.n_verdicts:
            without = f"; {each.n_without:,} had no verdict" if each.n_without else ""
            found = f"base rate {each.base_rate:g}, estimated from {each.n_verdicts:,} outputs{without}"
            click.echo(f"{words}: {found}. {CAUTION}", err=True)
    kept = [words if each is None else each.words for words, each in zip(spec.judges, told, strict=True)]
    return spec.model_copy(update={"judges": kept})


def _samples(spec: RunSpec, store: str | None) -> Iterable[Sample]:
    from magistrate._paths import default_store
    from magistrate.runs.prepare import open_data
    from magistrate.store import Store
    from magistrate.store.connection import exists

    place = store or str(default_store())
    if not exists(place):
        yield from open_data(None, spec.dataset)[0]
        return
    with Store.open(place) as opened:
        yield from open_data(opened, spec.dataset)[0]
