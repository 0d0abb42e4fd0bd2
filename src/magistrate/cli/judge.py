"""`magistrate judge`: judge one output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import (
    TextOrFile,
    base_rate_option,
    calibration_option,
    json_option,
    judges_assuming,
    model_options,
    run_option,
    tell_unasked,
)
from magistrate.cli.output import console, print_json
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.runs.options import JUDGES, TIME_FOR_VERDICT

if TYPE_CHECKING:
    from magistrate.engines.base import EngineSettings

EXAMPLE = (
    "Example: magistrate judge --context @contract.txt --output 'Notice is two weeks.' --judge hallucination"
)


@click.command(epilog=EXAMPLE)
@click.option("--output", type=TextOrFile(), help="The text to judge.")
@click.option(
    "--context",
    multiple=True,
    type=TextOrFile(),
    help="The text that the output must be faithful to; repeatable.",
)
@click.option(
    "--input", type=TextOrFile(), help="The question that was asked; only background for the judge."
)
@click.option(
    "--expected", type=TextOrFile(), help="The correct answer, for judges that compare with a reference."
)
@click.option(
    "--messages",
    type=TextOrFile(),
    help='A conversation as JSON, [{"role": …, "content": …}, …], which the output may rely on; without '
    "--output, its last answer is judged.",
)
@run_option(JUDGES, default=[DEFAULT_JUDGE], show_default=True)
@calibration_option
@base_rate_option
@run_option(TIME_FOR_VERDICT, help="Time limit for the verdict, in seconds.", show_default=False)
@click.option("--steps", is_flag=True, help="Show prompts and answers of the model.")
@model_options
@json_option
@click.pass_context
def command(
    context_of: click.Context,
    /,
    output: str | None,
    context: tuple[str, ...],
    input: str | None,
    expected: str | None,
    messages: str | None,
    judges: tuple[str, ...],
    calibrations: tuple[Path, ...],
    base_rate: float | str | None,
    deadline: float,
    steps: bool,
    model: str | None,
    settings: EngineSettings,
    as_json: bool,
) -> int:
    """Judge one output. Prints label, score and probability; exits with 3 if a judge gives no verdict."""
    from magistrate.api import judge as judging
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.judges import registry
    from magistrate.runs.progress import waiting
    from magistrate.types import Abstention, Verdict

    if output is None and messages is None:
        raise click.UsageError(
            "nothing to judge: give --output TEXT, or --messages whose last message is the answer"
        )
    sample = judging.sample_of(
        output=output, context=context, input=input, expected=expected, messages=_turns(messages)
    )
    asked = registry.judges(judges_assuming(registry.calibrated(judges, calibrations), base_rate))
    tell_unasked(asked, context_of)
    engine = registry.engine_for(asked, model, settings)
    with waiting(engine, console(error=True)):
        outcomes = [
            judging.judge_sample(sample, judge=each, model=engine, deadline=deadline) for each in asked
        ]
    if as_json:
        from magistrate.report.export import outcome_data

        data = [outcome_data(each, steps=steps) for each in outcomes]
        print_json(data[0] if len(data) == 1 else data)
    else:
        from magistrate.report.terminal import print_outcome

        for outcome in outcomes:
            print_outcome(outcome, sample, console(), steps=steps)
        if any(isinstance(each, Abstention) and each.reason == "no_context" for each in outcomes):
            click.echo("give the context with --context TEXT, or --context @FILE", err=True)
    return DONE if all(isinstance(each, Verdict) for each in outcomes) else ENGINE_GONE


def _turns(text: str | None) -> list[Any]:
    if text is None:
        return []
    try:
        turns = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param_hint="--messages") from None
    if not isinstance(turns, list):
        raise click.BadParameter("must be a JSON list of messages", param_hint="--messages")
    return turns
