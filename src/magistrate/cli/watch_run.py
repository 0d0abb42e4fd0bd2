"""`magistrate watch run`: judge by rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from magistrate.cli.options import json_option, store_option
from magistrate.cli.output import console, print_json

if TYPE_CHECKING:
    from magistrate.datasets.spans.span import Span
    from magistrate.store import Store
    from magistrate.store.decisions import TargetRecord
    from magistrate.store.outbox import Queue
    from magistrate.watch.rules import Rule, RuleFile

RUN = (
    "Example: magistrate watch run --rules rules.yaml --from spans.jsonl --once; "
    "magistrate watch run --rules rules.yaml --since 7d --dry-run"
)
UNFINISHED = ("retrying", "failed", "budget_deferred")


@click.command(epilog=RUN)
@click.option("--rules", "file", required=True, metavar="FILE", help="The rules file (YAML).")
@click.option(
    "--from", "source", metavar="FILE", help="First store the spans in this file: OTLP as JSON or JSONL."
)
@click.option(
    "--since",
    metavar="TIME",
    help="Also apply the rules to traces that were stored within this time, such as 7d.",
)
@click.option(
    "--dry-run", is_flag=True, help="Print what would be judged and what it costs; do not ask a model."
)
@click.option(
    "--keep-days",
    type=click.FloatRange(0, 36_500, min_open=True),
    metavar="DAYS",
    help="Delete traces that have received no span for this long, with everything derived from them "
    "(default: as the rules say, else never).",
)
@click.option("--once", is_flag=True, help="Stop when nothing is due, instead of waiting for more.")
@store_option
@json_option
def run(
    file: str,
    source: str | None,
    since: str | None,
    dry_run: bool,
    keep_days: float | None,
    once: bool,
    store: str | None,
    as_json: bool,
) -> int:
    """Judge an application's stored traces, by rules, until Ctrl-C.

    Every rule decides about every answer or call: it is judged, or there is a reason why not. With --once,
    the counts are printed, and the exit code is 3 if something failed, is still to be retried or sent, or
    did not fit a budget.
    """
    from magistrate._paths import default_store
    from magistrate.watch.parts import duration
    from magistrate.watch.rules import read_rule_file

    read = read_rule_file(Path(file))
    if keep_days is not None:
        read = read.model_copy(update={"keep_days": keep_days})
    begin = None if since is None else datetime.now(UTC) - duration(since)
    spans, problems = ([], []) if source is None else _read(source)
    for problem in problems:
        click.echo(f"left out: {problem}", err=True)
    place = store or str(default_store())
    if dry_run:
        return _print_estimate(read.rules, spans, begin, place, as_json)
    from magistrate.store import Store

    with Store.open(place) as opened:
        return _work(opened, read, spans, begin, once, as_json)


def _work(
    store: Store,
    file: RuleFile,
    spans: Sequence[Span],
    since: datetime | None,
    once: bool,
    as_json: bool,
) -> int:
    """Run the watcher until nothing is due, or forever."""
    from magistrate import _async
    from magistrate.cli.exit_codes import DONE, ENGINE_GONE
    from magistrate.watch.upkeep import Upkeep, UpkeepThread, destinations
    from magistrate.watch.worker import Watcher

    def now() -> datetime:
        return datetime.now(UTC)

    watcher = Watcher(store, file.rules, clock=now, send_to=destinations(file))
    upkeep = Upkeep(store, file, clock=now)
    _async.run(watcher.prepare())
    watcher.register(since)
    if spans:
        store.traces.put(spans, now())
        watcher.read_whole(sorted({span.trace_id for span in spans}))
    if not once:
        beside = UpkeepThread(store.place, file)
        beside.start()
        try:
            _async.run(watcher.run())
        finally:
            beside.stop()
    _async.run(watcher.drain())
    upkeep.finish()
    counts = {rule.name: store.traces.counts(rule.name) for rule in file.rules}
    unsent = [queue for queue in store.outbox.queues() if queue.waiting]
    _print_counts(counts, unsent, as_json)
    left = sum(count.get(state, 0) for count in counts.values() for state in UNFINISHED)
    return ENGINE_GONE if left or unsent else DONE


def _read(source: str) -> tuple[list[Span], list[str]]:
    """Read the spans of a file, and report what could not be read."""
    from magistrate.datasets.files import open_file
    from magistrate.datasets.rows import Problem
    from magistrate.datasets.spans.samples import spans_of_rows
    from magistrate.errors import SpecError

    spans: list[Span] = []
    problems: list[str] = []
    for found in spans_of_rows(open_file(source).objects()):
        if isinstance(found, Problem):
            problems.append(str(found))
        else:
            spans.append(found[0])
    if not spans:
        raise SpecError(f"{source} contains no spans" + (f": {problems[0]}" if problems else ""))
    return spans, problems


# --- estimate --------------------------------------------------------------------------------------


def _print_estimate(
    rules: Sequence[Rule], spans: Sequence[Span], since: datetime | None, place: str, as_json: bool
) -> int:
    """Print what each rule would decide, and what judging would cost, with the estimator of runs."""
    from magistrate.api.rule_estimate import estimate_rule
    from magistrate.cli.exit_codes import DONE
    from magistrate.report.estimate import render

    found = []
    for rule in rules:
        states, estimates = estimate_rule(rule, list(_targets(rule, spans, since, place)))
        found.append({"rule": rule.name, "decisions": dict(states), "judges": estimates})
        if not as_json:
            click.echo(f"{rule.name}: {_counted(states)}")
            for estimate in estimates:
                render(estimate, console())
            if len(estimates) > 1:
                click.echo(f"An upper bound: judges after {rule.judges[0].judge} get only some of these.")
            click.echo()
    if as_json:
        print_json({"rules": [_with_dicts(each) for each in found]})
    return DONE


def _with_dicts(found: Mapping[str, Any]) -> dict[str, Any]:
    return {**found, "judges": [estimate.to_dict() for estimate in found["judges"]]}


def _targets(rule: Rule, spans: Sequence[Span], since: datetime | None, place: str) -> Iterator[TargetRecord]:
    """Yield the targets a rule would decide on: those of a file and, with `since`, stored ones."""
    from magistrate.api.rule_estimate import undecided_targets
    from magistrate.datasets.spans.targets import targets
    from magistrate.store import Store
    from magistrate.store.connection import exists
    from magistrate.store.targets import record_of

    traces: dict[str, list[Span]] = {}
    for span in spans:
        traces.setdefault(span.trace_id, []).append(span)
    for each in traces.values():
        yield from (record_of(target, datetime.now(UTC)) for target in targets(each, (rule.target,)))
    if since is not None and exists(place):
        with Store.open(place) as store:
            yield from undecided_targets(store, rule, since)


# --- output ----------------------------------------------------------------------------------------


def _print_counts(counts: Mapping[str, Mapping[str, int]], unsent: Sequence[Queue], as_json: bool) -> None:
    from magistrate.report.formatting import plain

    if as_json:
        told = [{"rule": name, "decisions": dict(each)} for name, each in counts.items()]
        waiting = [
            {"destination": each.destination, "unsent": each.waiting, "remark": each.remark}
            for each in unsent
        ]
        print_json({"rules": told} | ({"unsent": waiting} if waiting else {}))
        return
    for name, each in counts.items():
        click.echo(f"{plain(name)}: {_counted(each)}")
    for queue in unsent:
        click.echo(f"{plain(queue.destination)}: {queue.waiting:,} unsent: {plain(queue.remark)}", err=True)


def _counted(states: Mapping[str, int]) -> str:
    """Format counts: `12 targets: 10 judged, 2 filtered`."""
    live = {state: n for state, n in states.items() if state != "superseded"}
    total = sum(live.values())
    told = ", ".join(f"{n:,} {state}" for state, n in sorted(live.items(), key=lambda item: -item[1]))
    return f"{total:,} target{'' if total == 1 else 's'}{': ' + told if told else ''}"
