"""`magistrate run`: a dataset through judges, every outcome stored, and the report."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.base_rate import base_rate_option, spec_assuming
from magistrate.cli.options import (
    calibration_option,
    console,
    gate_option,
    json_option,
    junit_option,
    limit_options,
    model_options,
    open_store,
    price_option,
    print_json,
    reading_options,
    store_option,
    tell_unasked,
)
from magistrate.judges.registry import DEFAULT_JUDGE

if TYPE_CHECKING:
    from magistrate.runs.spec import RunSpec
    from magistrate.store import RunRecord

EXAMPLE = "Example: magistrate run answers.jsonl --judge hallucination --map context=docs --limit 100"
IN_DATASET = ("view", "limit", "sample", "balance", "seed", "max_unread", "labels")
IN_ENGINE = ("model", "base_url", "device", "threads", "timeout", "price")
IN_LIMITS = (
    *("concurrency", "deadline", "give_up_after"),
    *("max_tokens", "max_seconds", "max_cost", "max_failures"),
)


@click.command(epilog=EXAMPLE)
@click.argument("data", required=False)
@click.option(
    "--spec", "file", metavar="FILE", help="A run file; what is said here too replaces what it says."
)
@click.option(
    "--judge", "judges", multiple=True, default=[DEFAULT_JUDGE], show_default=True, help="Who judges."
)
@calibration_option
@base_rate_option
@click.option("--limit", type=click.IntRange(1), help="The first N samples only.")
@click.option("--sample", type=click.IntRange(1), help="N samples at random.")
@click.option("--balance", metavar="FIELD", help="With --sample: as many of each value, such as label.")
@click.option("--seed", type=int, default=0, show_default=True, help="For --sample.")
@click.option("--view", help="A view of a named set, such as article200.")
@reading_options
@click.option("--name", help="A name for the run.")
@click.option("--tag", "tags", multiple=True, help="A tag for the run; repeatable.")
@limit_options
@gate_option
@junit_option
@click.option(
    "--max-failures",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Exit with 3 if a greater share of a judge's outcomes failed.",
)
@click.option(
    "--cache/--no-cache", default=True, help="Use answers of earlier, equal calls (default), or not."
)
@click.option("--dry-run", is_flag=True, help="Say what the run would take, and ask no model.")
@click.option(
    "--resume/--new",
    "going_on",
    default=None,
    help="Where a run of the very same was not finished: go on with it, or begin anew, without asking.",
)
@model_options
@price_option
@store_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    data: str | None,
    file: str | None,
    dry_run: bool,
    going_on: bool | None,
    store: str | None,
    as_json: bool,
    **_: Any,
) -> int:
    """Judge DATA: a named or stored set, a file, or - for JSONL on standard input.

    Files are .jsonl, .csv, .json and .parquet, plain or compressed (.gz, .zst), or hf:// addresses.
    Exits with 0 only where everything was judged: 1 where a gate failed, 2 where the data or an option cannot
    be used, 3 where a limit (--max-seconds, --max-tokens, --max-cost) cut the run off, a judge gave no
    verdict, too many judgements failed or the engine is gone, and 130 after Ctrl-C.
    """
    from magistrate._paths import default_store
    from magistrate.api import evaluate as evaluation
    from magistrate.cli.ending import ended
    from magistrate.report.junit import fresh
    from magistrate.runs.progress import ProgressBar

    junit: Path | None = context.params["junit"]
    if not dry_run:
        fresh(junit)
    spec = _described(context)
    place = store or str(default_store())
    if dry_run:
        return _estimated(spec, place, as_json)
    bar = ProgressBar(console(error=True), lines=True)
    unfinished = None if going_on is False else evaluation.unfinished(spec, store=place)
    if unfinished is None and going_on:
        click.echo("there is no unfinished run of the very same; beginning one", err=True)
    if unfinished is None or not _goes_on(unfinished, going_on):
        judging = partial(evaluation.run, spec, store=place, watcher=bar)
        return ended(judging, bar, place, as_json, spec, junit=junit)
    with open_store(place) as opened:
        if spec.name is not None:
            opened.rename(unfinished.id, spec.name)
        opened.tag(unfinished.id, add=spec.tags)
    return ended(
        lambda: evaluation.resume(unfinished.id, store=place, spec=spec, watcher=bar),
        bar,
        place,
        as_json,
        spec,
        junit=junit,
    )


def _described(context: click.Context) -> RunSpec:
    """What the run file and the words of the command say together; the words win."""
    from magistrate.judges.registry import calibrated
    from magistrate.report.gates import Gate
    from magistrate.runs.spec import DEFAULT, judge_of, judges_of, read_spec, spec_from

    said = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    values: dict[str, Any] = {}
    if (file := context.params["file"]) is not None:
        values = read_spec(Path(file)).plain()
    elif "data" not in said:
        raise click.UsageError("name what to judge: DATA, or --spec FILE", context)
    dataset = dict(values.get("dataset", {})) | {name: said[name] for name in IN_DATASET if name in said}
    if "data" in said:
        dataset |= {"source": said["data"]}
    if "mapping" in said:
        dataset["map"] = dict(said["mapping"])
    if {"data", "mapping", *IN_DATASET} & said.keys():
        dataset.pop("digest", None)  # it was of another choice
    engines = dict(values.get("engines", {}))
    if words := {name: said[name] for name in IN_ENGINE if name in said}:
        engines[DEFAULT] = dict(engines.get(DEFAULT, {})) | words
    limits = dict(values.get("limits", {})) | {name: said[name] for name in IN_LIMITS if name in said}
    values |= {"dataset": dataset, "engines": engines, "limits": limits}
    for name in ("judges", "gates", "tags"):
        if name in said:
            values[name] = list(said[name])
    values |= {name: said[name] for name in ("name", "cache") if name in said}
    spec = spec_from(values)
    if files := context.params["calibrations"]:
        judges = calibrated(spec.judges, files, partial(judge_of, spec))
        spec = spec.model_copy(update={"judges": judges})
    spec = spec_assuming(spec, context.params["base_rate"], context.params["store"])
    asked = judges_of(spec)
    tell_unasked(asked, context)
    names = [judge.info.name for judge in asked]
    for gate in spec.gates:
        Gate.parse(gate, names)
    return spec


def _goes_on(unfinished: RunRecord, going_on: bool | None) -> bool:
    """Whether the unfinished run of the very same is to be resumed, asking where somebody can be asked."""
    known = unfinished.n_total or unfinished.n_samples
    told = (
        f"run {unfinished.id} judges the very same and was not finished "
        f"({unfinished.n_outcomes} of {known * len(unfinished.judges)} outcomes)"
    )
    if going_on:
        click.echo(f"{told}; going on with it", err=True)
        return True
    if somebody_is_there():
        return click.confirm(f"{told}. Go on with it?", default=True, err=True)
    click.echo(f"{told}; beginning anew. To go on with it instead: --resume", err=True)
    return False


def somebody_is_there() -> bool:
    """Whether there is a person who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _estimated(spec: RunSpec, store: str, as_json: bool) -> int:
    from magistrate.api import evaluate as evaluation
    from magistrate.cli import DONE, ENGINE_GONE
    from magistrate.report.estimate import render
    from magistrate.report.formatting import plain

    estimate = evaluation.estimated(spec, store=store)
    if as_json:
        print_json(estimate.to_dict())
    else:
        render(estimate, console())
    if told := estimate.without_verdict:
        click.echo(plain(told), err=True)
        return ENGINE_GONE
    return DONE
