"""`magistrate run`: judge a dataset, store every outcome, and print the report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import (
    base_rate_option,
    calibration_option,
    full_option,
    gate_option,
    json_option,
    junit_option,
    limit_options,
    model_options,
    price_option,
    reading_options,
    run_option,
    spec_assuming,
    store_option,
    tell_unasked,
)
from magistrate.cli.output import console, print_json
from magistrate.judges.registry import DEFAULT_JUDGE
from magistrate.runs.options import (
    BALANCE,
    CACHE,
    DATA,
    ENGINE,
    FAILURES,
    JUDGES,
    LIMIT,
    LIMITS,
    MAP,
    NAME,
    PRICE,
    SAMPLE,
    SEED,
    SHARD,
    TAGS,
    VIEW,
    WORKERS,
)

if TYPE_CHECKING:
    from magistrate.judges.base import Judge
    from magistrate.report import Report
    from magistrate.runs.prepare import RunPlan
    from magistrate.runs.progress import ProgressBar
    from magistrate.runs.spec import RunSpec
    from magistrate.store import RunRecord, Store

EXAMPLE = "Example: magistrate run answers.jsonl --judge hallucination --map context=docs --limit 100"
IN_DATASET = tuple(option.name for option in DATA if option is not MAP)  # --map is parsed into pairs
# Options that require a single data set.
ONE_SET = {
    "file": "--spec",
    "junit": "--junit",
    "dry_run": "--dry-run",
    "as_json": "--json",
    "name": "--name",
}
IN_ENGINE = tuple(option.name for option in (*ENGINE, PRICE))
IN_LIMITS = tuple(option.name for option in (*LIMITS, FAILURES))


@click.command(short_help="Judge DATA: a set, a file, or - for standard input.", epilog=EXAMPLE)
@click.argument("data", nargs=-1)
@click.option("--spec", "file", metavar="FILE", help="A run file; options on the command line override it.")
@run_option(JUDGES, default=[DEFAULT_JUDGE], show_default=True)
@calibration_option
@base_rate_option
@run_option(LIMIT)
@run_option(SAMPLE)
@run_option(BALANCE)
@run_option(SEED)
@run_option(VIEW)
@reading_options
@run_option(NAME)
@run_option(TAGS)
@limit_options
@run_option(WORKERS)
@run_option(SHARD)
@gate_option
@junit_option
@run_option(FAILURES)
@click.option("--cache/--no-cache", default=CACHE.default, help=CACHE.help)
@click.option("--dry-run", is_flag=True, help="Print what the run would cost, without asking a model.")
@click.option(
    "--resume/--new",
    "going_on",
    default=None,
    help="If there is an unfinished run with the same data and options: continue it, or start a new one, "
    "without asking.",
)
@model_options
@price_option
@store_option
@full_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    data: tuple[str, ...],
    **_: Any,
) -> int:
    """Judge DATA: a named or stored set, a file, or - for JSONL on standard input.

    Several data sets are judged one after the other, each in a run of its own, and compared in one table.

    Files are .jsonl, .csv, .json and .parquet, plain or compressed (.gz, .zst), or hf:// addresses. Exits
    with 0 only if everything was judged: 1 if a gate failed, 2 if the data or an option cannot be used, 3
    if a limit (--max-seconds, --max-calls, --max-tokens, --max-cost) cut the run off, a judge gave no
    verdict, too many judgements failed or the engine is gone, 4 if this share is judged and others (--shard)
    are missing, and 130 after Ctrl-C.
    """
    from magistrate.runs.progress import ProgressBar

    if len(data) > 1:
        return _several(context, data)
    context.params["data"] = data[0] if data else None
    return _one(context, ProgressBar(console(error=True), lines=True))


def _several(context: click.Context, data: Sequence[str]) -> int:
    """Execute one run per data set, print a table of all, and return the highest exit code."""
    from magistrate._paths import default_store
    from magistrate.api.run import Run
    from magistrate.cli.exit_codes import SIGNALLED
    from magistrate.report.terminal import render_sets
    from magistrate.runs.progress import ProgressBar

    for name, option in ONE_SET.items():
        if context.params[name]:
            raise click.UsageError(f"{option} works with one data set; {len(data)} were given", context)
    for each in data:  # reject an unusable option before anything is judged
        context.params["data"] = each
        _spec(context)
    store = context.params["store"] or str(default_store())
    codes: list[int] = []
    reports: list[Report] = []
    for each in data:
        context.params["data"] = each
        bar = ProgressBar(console(error=True), lines=True)
        codes.append(_one(context, bar))
        if bar.run_id is not None:
            reports.append(Run(bar.run_id, store).summary())
        if codes[-1] > SIGNALLED:
            break
        click.echo()
    render_sets(reports, console())
    return max(codes)


def _one(context: click.Context, bar: ProgressBar) -> int:
    """Execute the run that the options describe, or estimate it."""
    from magistrate import _async
    from magistrate.api.evaluate import RunSession
    from magistrate.cli.exit_codes import finish_run
    from magistrate.report.export import fresh
    from magistrate.report.gates import Gate
    from magistrate.runs.spec import judges_of

    junit: Path | None = context.params["junit"]
    dry_run: bool = context.params["dry_run"]
    going_on: bool | None = context.params["going_on"]
    as_json: bool = context.params["as_json"]
    if junit is not None and not dry_run:
        fresh(junit)
    spec, made = _spec(context)
    _check_shard(context, spec)
    judges = made or judges_of(spec)
    tell_unasked(judges, context)
    for gate in spec.gates:
        Gate.parse(gate, [judge.info.name for judge in judges])
    with RunSession(context.params["store"]) as session:
        plan = session.prepare(spec, judges=judges)
        if dry_run:
            return _print_estimate(plan, session.existing_store, as_json)
        unfinished = None
        if going_on is not False and spec.shard is None:
            unfinished = session.unfinished(plan)
        if unfinished is None and going_on and spec.shard is None:
            click.echo(
                "there is no unfinished run with the same data and options; starting a new one", err=True
            )
        if unfinished is not None and _goes_on(unfinished, going_on):
            if spec.name is not None:
                session.store.rename(unfinished.id, spec.name)
            session.store.tag(unfinished.id, add=spec.tags)
            work = session.resume(unfinished, plan, bar)
        else:
            if spec.shard is None:
                _tell_same_name(session.existing_store, spec.name)
            work = session.start(plan, bar)
        full: bool = context.params["full"]
        return finish_run(lambda: _async.run(work), bar, session, spec, as_json, junit=junit, full=full)


def _spec(context: click.Context) -> tuple[RunSpec, list[Judge] | None]:
    """Build the specification from the run file and the command's options, which take precedence.

    Also return the judges of the run file, already constructed to check them, if they are still the same.
    """
    from magistrate.engines.base import DEFAULT
    from magistrate.judges.registry import calibrated
    from magistrate.runs.spec import judge_of, read_spec, same_judges, spec_from

    said = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    }
    values: dict[str, Any] = {}
    written, made = None, None
    if (file := context.params["file"]) is not None:
        written, made = read_spec(Path(file))
        values = written.plain()
    elif "data" not in said:
        raise click.UsageError("nothing to judge: give DATA, or --spec FILE", context)
    dataset = dict(values.get("dataset", {})) | {name: said[name] for name in IN_DATASET if name in said}
    if "data" in said:
        dataset |= {"source": said["data"]}
    if "mapping" in said:
        dataset["map"] = dict(said["mapping"])
    if {"data", "mapping", *IN_DATASET} & said.keys():
        dataset.pop("digest", None)  # the digest belongs to another selection of rows
    engines = dict(values.get("engines", {}))
    if words := {name: said[name] for name in IN_ENGINE if name in said}:
        engines[DEFAULT] = dict(engines.get(DEFAULT, {})) | words
    limits = dict(values.get("limits", {})) | {name: said[name] for name in IN_LIMITS if name in said}
    values |= {"dataset": dataset, "engines": engines, "limits": limits}
    for name in ("judges", "gates", "tags"):
        if name in said:
            values[name] = list(said[name])
    values |= {name: said[name] for name in ("name", "cache", "workers", "shard") if name in said}
    spec = spec_from(values)
    if files := context.params["calibrations"]:
        judges = calibrated(spec.judges, files, partial(judge_of, spec))
        spec = spec.model_copy(update={"judges": judges})
    spec = spec_assuming(spec, context.params["base_rate"], context.params["store"])
    return spec, made if written is not None and same_judges(spec, written) else None


def _check_shard(context: click.Context, spec: RunSpec) -> None:
    """Reject a share that does not exist, and options that need the whole run."""
    from magistrate.store.shares import Part

    if spec.shard is None:
        return
    Part.parse(spec.shard)
    if context.params["junit"] is not None:
        told = "--junit needs the whole run; with --shard, give it to: magistrate merge"
        raise click.UsageError(told, context)
    if context.params["going_on"] is False:
        told = (
            "--new does not work with --shard, whose run is that of the other shares; give it another --name"
        )
        raise click.UsageError(told, context)


def _tell_same_name(store: Store | None, name: str | None) -> None:
    """Print a note if another run has this name, because the name alone finds neither of them."""
    from magistrate.report.formatting import plain

    if store is not None and name is not None and any(each.name == name for each in store.runs()):
        told = f"note: another run is named {plain(name)!r} too; name this one by its id, or 'last'"
        click.echo(told, err=True)


def _goes_on(unfinished: RunRecord, going_on: bool | None) -> bool:
    """Return whether to resume the unfinished run. Asks a person at a terminal unless an option decides."""
    known = unfinished.n_total or unfinished.n_samples
    told = (
        f"run {unfinished.id} has the same data and options and is not finished ({unfinished.n_outcomes} of "
        f"{known * len(unfinished.judges)} outcomes)"
    )
    if going_on:
        click.echo(f"{told}; continuing it", err=True)
        return True
    if somebody_is_there():
        return click.confirm(f"{told}. Continue it?", default=True, err=True)
    click.echo(f"{told}; starting a new one. To continue it instead: --resume", err=True)
    return False


def somebody_is_there() -> bool:
    """Return whether there is a person at a terminal to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _print_estimate(plan: RunPlan, store: Store | None, as_json: bool) -> int:
    from magistrate.api.estimate import estimate_plan
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.report.estimate import render
    from magistrate.report.formatting import plain

    estimate = estimate_plan(plan, store)
    if as_json:
        print_json(estimate.to_dict())
    else:
        render(estimate, console())
    if told := estimate.without_verdict:
        click.echo(plain(told), err=True)
        return ENGINE_GONE
    return DONE
