"""`magistrate generate`: generate text that matches a schema; `magistrate check`: check a partial text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import TextOrFile, json_option, model_options
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.constraints import Constraint
    from magistrate.engines.base import EngineSettings, Generation


EXAMPLE = "Example: magistrate generate --schema person.json 'Invent a person.' --trace"


@click.command(short_help="Let the model answer PROMPT under a schema or a pattern.", epilog=EXAMPLE)
@click.argument("prompt", type=TextOrFile())
@click.option(
    "--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A JSON Schema file."
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    metavar="NAME=TEXT",
    help="A source text for x-quote in the schema, as TEXT or @FILE; repeatable, also with the same NAME.",
)
@click.option("--depth", type=click.IntRange(1), help="Maximum depth of a recursive schema.")
@click.option("--regex", help="A regular expression, instead of a schema.")
@click.option(
    "--choice", "choices", multiple=True, help="An allowed answer, instead of a schema; repeatable."
)
@click.option(
    "--unconstrained",
    is_flag=True,
    help="Do not constrain the model; only check the result against the schema.",
)
@click.option(
    "--trace", is_flag=True, help="Show for each step what the model preferred and what the mask removed."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Maximum length of the answer.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="0 always takes the likeliest token.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for a temperature above 0.")
@model_options
@json_option
def command(
    prompt: str,
    schema: Path | None,
    texts: tuple[str, ...],
    depth: int | None,
    regex: str | None,
    choices: tuple[str, ...],
    unconstrained: bool,
    trace: bool,
    max_tokens: int,
    temperature: float,
    seed: int,
    model: str | None,
    settings: EngineSettings,
    as_json: bool,
) -> None:
    """Let the model answer PROMPT (a text or @FILE) under a schema, a regular expression or choices."""
    from magistrate import _async
    from magistrate.constraints import check
    from magistrate.engines.base import Sampling
    from magistrate.judges import registry
    from magistrate.types import Prompt

    constraint = _constraint(schema, depth, regex, choices)
    if texts:
        constraint = _over(constraint, texts)
    if constraint is not None and not unconstrained:
        constraint.require_bounds()
    engine = registry.engine(model, settings)
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=seed, trace=trace)
    masked = None if unconstrained else constraint
    generation = _async.run(engine.generate(Prompt.of(prompt), masked, sampling=sampling))
    verdict = None if constraint is None else check(generation.text, constraint)
    if as_json:
        answer = {
            key: value for key, value in asdict(generation).items() if key not in ("value", "tokens", "trace")
        }
        if trace:
            answer["trace"] = [asdict(step) for step in generation.trace]
        print_json({**answer, "check": verdict})
        return
    if trace:
        _print_trace(generation)
    click.echo(generation.text)
    if generation.finish == "length":
        click.echo(f"cut off after --max-tokens {max_tokens}", err=True)
    if verdict is not None and unconstrained:
        click.echo(f"without constraint this is {verdict} for the schema", err=True)


def read_schema(path: Path) -> Any:
    """Read a JSON file. Raises `SpecError` with the place of an error."""
    from magistrate.errors import SpecError

    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text: {error}") from None
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno})") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise SpecError(f"{path} has a number with too many digits to be read") from None
    except RecursionError:
        raise SpecError(f"{path} is nested too deeply") from None


def _over(constraint: Constraint | None, texts: tuple[str, ...]) -> Constraint:
    """Return the constraint with the texts that it may quote."""
    if constraint is None:
        raise click.UsageError("--text needs a --schema that uses x-quote")
    given: dict[str, list[str]] = {}
    for each in texts:
        name, sign, text = each.partition("=")
        if not sign:
            raise click.BadParameter(f"{each[:60]!r} is not NAME=TEXT", param_hint="--text")
        given.setdefault(name, []).append(TextOrFile().convert(text, None, None))
    return constraint.over(**given)


def _constraint(schema: Path | None, depth: int | None, regex: str | None, choices: tuple[str, ...]) -> Any:
    import re

    from magistrate.constraints import constraint
    from magistrate.constraints.regex import quoted
    from magistrate.errors import SpecError

    if sum((schema is not None, regex is not None, bool(choices))) > 1:
        raise click.UsageError("give exactly one of --schema, --regex and --choice")
    if schema is not None:
        return constraint(read_schema(schema), depth=depth)
    if regex is not None:
        try:
            return constraint(re.compile(regex))
        except (re.error, OverflowError, RecursionError) as error:
            raise SpecError(f"{quoted(regex)} is not a regular expression: {error}") from None
    return constraint(list(choices)) if choices else None


def _print_trace(generation: Generation) -> None:
    """Print one row per token: text so far, the model's candidates, the probability masked, the choice."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from magistrate.report.formatting import plain

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False)
    for column in ("text so far", "model preferred", "removed", "written"):
        table.add_column(column, overflow="fold", justify="right" if column == "removed" else "left")
    for step in generation.trace:
        wanted = "  ".join(f"{_shown(text)} {share:.0%}" for text, share in step.wanted[:3])
        tail = step.text if len(step.text) <= 32 else "…" + step.text[-31:]
        table.add_row(
            Text(plain(tail).replace("\n", "⏎")),
            Text(wanted or "(not asked)", style="" if wanted else "dim"),
            Text(f"{step.removed_mass:.1%}" if step.wanted else ""),
            Text(_shown(step.chosen), style="dim" if step.forced else "bold"),
        )
    console().print(table)
    console().print(
        Text(
            "Dim: only one continuation was allowed. Removed: probability mass that the mask removed.", "dim"
        )
    )


def _shown(token: str) -> str:
    from magistrate.report.formatting import plain

    return plain(token).replace("\n", "⏎").replace(" ", "·") or "∅"


CHECK_EXAMPLE = (
    "Example: magistrate check '[1, 2, 3'; magistrate check --schema person.json @answer.json --exit-code"
)


@click.command("check", short_help="Check TEXT: valid, incomplete or invalid.", epilog=CHECK_EXAMPLE)
@click.argument("text", type=TextOrFile())
@click.option(
    "--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A JSON Schema file."
)
@click.option("--exit-code", is_flag=True, help="Exit with 1 unless the text is valid.")
@json_option
def check_text(text: str, schema: Path | None, exit_code: bool, as_json: bool) -> int:
    """Check TEXT (or @FILE): valid, incomplete (it can still be continued) or invalid."""
    from magistrate.cli.exit_codes import DONE, GATE_FAILED
    from magistrate.constraints import check

    answer = check(text) if schema is None else check(text, read_schema(schema))
    if as_json:
        print_json({"check": answer})
    else:
        click.echo(answer)
    return GATE_FAILED if exit_code and answer != "valid" else DONE
