"""`magistrate watch status`: per rule the decisions, flag rates and problems."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from magistrate.cli.options import json_option, open_store, store_option
from magistrate.cli.output import print_json, print_table

if TYPE_CHECKING:
    from magistrate.store.outbox import Queue
    from magistrate.store.watched import AlertRecord
    from magistrate.watch.status import JudgeStatus, RuleStatus, Spending

EXAMPLE = "Example: magistrate watch status; magistrate watch status --since 24h --labelled checked --json"


@click.command(short_help="Show decisions, flag rates, queue and failures by rule.", epilog=EXAMPLE)
@click.option(
    "--since", default="7d", show_default=True, metavar="TIME", help="Only what was seen within this time."
)
@click.option("--rule", metavar="NAME", help="Only this rule.")
@click.option(
    "--labelled",
    metavar="RUN",
    help="The run whose labels measure the judges' errors (default: the rule's own run).",
)
@store_option
@json_option
def status(since: str, rule: str | None, labelled: str | None, store: str | None, as_json: bool) -> int:
    """Show the status of monitoring by rule: decisions, flag rates, queue, failures, spending.

    Rates are weighted by the probability with which each answer was sampled. If there are labels, you also
    see the rate corrected for the judge's errors on them (Rogan and Gladen).
    """
    from magistrate.cli.exit_codes import DONE
    from magistrate.watch.parts import duration
    from magistrate.watch.status import status as found_of

    time = duration(since)
    with open_store(store) as opened:
        found = found_of(opened, datetime.now(UTC), time, rule=rule, labelled=labelled)
    if as_json:
        print_json(found.to_dict())
        return DONE
    if not found.rules:
        click.echo("no rules have been run on this store yet; start with: magistrate watch run --rules FILE")
    for each in found.rules:
        _print_rule(each)
    _print_outbox(found.queues)
    _print_alerts(found.alerts, found.at)
    return DONE


def _print_rule(rule: RuleStatus) -> None:
    from magistrate.report.formatting import duration, plain

    since = f"{rule.since:%Y-%m-%d %H:%M} UTC"
    click.echo(f"{plain(rule.rule)} v{rule.version}: {rule.n:,} {rule.target}s since {since}")
    states = ", ".join(f"{n:,} {state}" for state, n in rule.states.items())
    click.echo(f"  decided    {states or 'no data'}")
    for judge in rule.judges:
        click.echo(f"  flagged    {plain(judge.judge)}: {_share(judge)}")
        click.echo(f"  corrected  {plain(_corrected(judge))}")
    age = "" if rule.queue_age is None else f", the oldest for {duration(rule.queue_age)}"
    click.echo(f"  queue      {rule.waiting:,} waiting{age}")
    for state, reason, n in rule.reasons:
        click.echo(f"  {state:<9}  {n:,}: {plain(reason)}")
    for name, each in (("this hour", rule.hour), ("today", rule.day)):
        click.echo(f"  {name:<9}  {_spent(each)}")
    click.echo()


def _share(judge: JudgeStatus) -> str:
    from magistrate._text import percent

    rate, share = judge.rate, judge.rate.share
    coverage = "no data" if rate.coverage is None else percent(rate.coverage)
    facts = f"n={rate.n:,} for {rate.of:,}, coverage {coverage}"
    if share.value is None:
        return f"{share.undefined} ({facts})"
    ends = share.undefined if share.low is None else f"[{percent(share.low)}, {percent(share.high)}]"
    return f"{percent(share.value)} {ends} ({facts})"


def _corrected(judge: JudgeStatus) -> str:
    from magistrate._text import percent

    share = judge.corrected
    if share.value is None:
        return f"no data: {share.undefined}" if share.undefined != "no data" else "no data"
    ends = share.undefined if share.low is None else f"[{percent(share.low)}, {percent(share.high)}]"
    return f"{percent(share.value)} {ends} (by {judge.labels})"


def _spent(spending: Spending) -> str:
    told = []
    for name in ("calls", "tokens", "dollars"):
        amount, limit = getattr(spending.spent, name), spending.budget.get(name)
        shown = "unknown" if amount is None else f"{amount:,.10g}"
        told.append(f"{shown}{'' if limit is None else f' of {limit:,.10g}'} {name}")
    return f"spent {', '.join(told)}"


def _print_outbox(queues: Sequence[Queue]) -> None:
    if queues:
        rows = [
            [each.destination, ", ".join(f"{n:,} {state}" for state, n in each.states.items()), each.remark]
            for each in queues
        ]
        print_table(["going out", "state", "remark"], rows, wrapped={"remark": 20})
        click.echo()


def _print_alerts(alerts: Sequence[AlertRecord], now: datetime) -> None:
    from magistrate.report.formatting import duration

    if alerts:
        rows = [
            [
                each.name,
                "firing" if each.firing else str(each.seen.get("state", "ok")),
                duration((now - each.changed_at).total_seconds()),
                str(each.seen.get("text", "")),
                f"{duration((now - each.checked_at).total_seconds())} ago",
            ]
            for each in alerts
        ]
        print_table(["alert", "state", "for", "seen", "checked"], rows, wrapped={"seen": 20})
