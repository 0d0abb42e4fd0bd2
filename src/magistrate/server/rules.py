"""Pages of rules: what each did, its YAML to edit and check, what it would take, and its revisions.

What is saved is a revision in the store, which workers take over at their next step; the rules file is never
written. It cannot name code, files, models or addresses that are not in the file already
(`watch.rules.edited_rule`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Query, Request, Response
from fastapi.responses import RedirectResponse

from magistrate.api.rule_estimate import estimate_rule, undecided_targets
from magistrate.errors import MagistrateError, SpecError
from magistrate.report.estimate import Estimate, dollars, notes
from magistrate.server.responses import link, page
from magistrate.server.roles import visitor_of
from magistrate.server.state import RequestStore
from magistrate.server.watch import STATES, WORDS, list_address, now_of
from magistrate.store import Store
from magistrate.store.decisions import SUPERSEDED, RuleRecord
from magistrate.store.rule_edits import RuleEdit
from magistrate.watch.edits import InForce, in_force, plans_of
from magistrate.watch.parts import duration
from magistrate.watch.rules import Rule, edited_rule
from magistrate.watch.status import UNDECIDED, Spending, spending

SINCE = "7d"  # of decisions that are counted, and of answers that an estimate is of
LONGEST = 20_000  # characters of a rule
MOST_ESTIMATED = 10_000  # answers that an estimate on the page may be of

router = APIRouter()
_estimating = threading.Lock()  # counting tokens takes all of a core

Words = Annotated[str, Form(max_length=1000)]


# --- what is shown --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleLine:
    """What a rule did since a moment. The `states` sum to `n`.

    `current` is None for a rule that is not in this server's rules file; `record` is None for one that no
    worker has registered yet.
    """

    rule: Rule
    current: InForce | None
    record: RuleRecord | None
    since: datetime
    n: int
    states: Mapping[str, int]
    waiting: int
    spent: Mapping[str, Spending]

    @property
    def name(self) -> str:
        """The name of the rule."""
        return self.rule.name


def rule_lines(store: Store, file: Sequence[Rule], now: datetime) -> list[RuleLine]:
    """Return all rules of the file and of the store, by name."""
    records = {each.name: each for each in store.watched.rules()}
    known, edits = {rule.name: rule for rule in file}, store.rule_edits.newest()
    found = []
    for name in sorted(known | records):
        record = records.get(name)
        current = in_force(known[name], edits.get(name)) if name in known else None
        found.append(_line(store, current, record, now))
    return found


def _line(store: Store, current: InForce | None, record: RuleRecord | None, now: datetime) -> RuleLine:
    since, states, waiting = now - duration(SINCE), dict[str, int](), 0
    if current is not None:
        rule = current.rule
    else:
        assert record is not None, "a rule is in the file or in the store"
        rule = Rule.model_validate(record.spec, strict=False)
    if record is not None:
        since = max(since, record.since)
        counts = store.traces.counts(rule.name, since)
        states = {state: counts[state] for state in STATES if state in counts and state != SUPERSEDED}
        if undecided := store.watched.n_undecided(rule.name, rule.target, since):
            states[UNDECIDED] = undecided
        waiting = store.watched.waiting(rule.name)[0]
    hour, day = spending(store, rule, now)
    return RuleLine(
        rule=rule,
        current=current,
        record=record,
        since=since,
        n=sum(states.values()),
        states=states,
        waiting=waiting,
        spent={"this hour": hour, "today": day},
    )


def amounts(each: Spending) -> list[str]:
    """Return what was spent in a window, with the budget of each measure that has one."""
    told = []
    for name in ("calls", "tokens", "dollars"):
        amount, limit = getattr(each.spent, name), each.budget.get(name)
        shown = "unknown" if amount is None else f"{amount:,.10g}"
        told.append(f"{shown}{'' if limit is None else f' of {limit:,.10g}'} {name}")
    return told


def rule_address(name: str, **query: object) -> str:
    """Return the address of a rule's page."""
    return link("/watch/rule", name=name, **query)


@router.get("/watch/rules")
def rules_page(request: Request, store: RequestStore) -> Response:
    """Show all rules with what they did."""
    lines = rule_lines(store, request.app.state.settings.rules, now_of(request))
    return page(
        request, "rules.html", lines=lines, address=rule_address, answers=list_address, amounts=amounts
    )


@router.get("/watch/rule")
def rule_page(
    request: Request,
    store: RequestStore,
    name: Annotated[str, Query(max_length=1000)],
    revision: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    saved: bool = False,
) -> Response:
    """Show a rule. `revision` is the one whose text is shown, 0 for that of the file."""
    return _page(request, store, name, revision=revision, saved=saved)


def _page(
    request: Request,
    store: Store,
    name: str,
    *,
    revision: int | None = None,
    text: str | None = None,
    error: str = "",
    told: str = "",
    estimates: Sequence[Estimate] = (),
    counts: Mapping[str, int] | None = None,
    saved: bool = False,
    status: int = 200,
) -> Response:
    now, file = now_of(request), request.app.state.settings.rules
    line = next((each for each in rule_lines(store, file, now) if each.name == name), None)
    if line is None:
        raise SpecError("there is no rule of this name")
    history = store.rule_edits.history(name)
    original = next((rule.yaml() for rule in file if rule.name == name), line.rule.yaml())
    edit = line.current.edit if line.current is not None else None
    if revision is not None:
        edit = next((each for each in history if each.revision == revision), None)
        if edit is None and revision:
            raise SpecError("the rule has no revision of this number")
    return page(
        request,
        "rule.html",
        status=status,
        line=line,
        history=history,
        text=text if text is not None else original if edit is None else edit.text,
        written=text is not None,
        shown=edit.revision if edit is not None else 0,
        newest=history[0].revision if history else 0,
        words=WORDS | {UNDECIDED: "no worker has looked at them yet"},
        address=rule_address,
        answers=list_address,
        amounts=amounts,
        dollars=dollars,
        notes=notes,
        error=error,
        told=told,
        estimates=estimates,
        counts=counts,
        saved=saved,
        since=SINCE,
        longest=LONGEST,
    )


# --- what is changed ------------------------------------------------------------------------------


@router.post("/watch/rule")
def change_rule(
    request: Request,
    store: RequestStore,
    name: Words,
    do: Words,
    text: Annotated[str, Form(max_length=LONGEST)] = "",
    newest: Annotated[int, Form(ge=0, lt=2**31)] = 0,
) -> Response:
    """Check the text of a rule, estimate what it takes, or save it; or switch the rule `on` or `off`.

    `newest` is the last revision that the visitor has seen. If there is a later one, nothing is saved.
    """
    current = next((rule for rule in request.app.state.settings.rules if rule.name == name), None)
    if current is None:
        raise HTTPException(422, "only rules in the rules file of this server (--watch FILE) can be changed")
    text = text.replace("\r\n", "\n")
    held = in_force(current, store.rule_edits.newest().get(name))
    try:
        if do in ("on", "off"):
            text = held.rule.yaml() if held.edit is None else held.edit.text
        rule = edited_rule(text, current)
        if do == "check":
            return _page(
                request, store, name, text=text, told="The rule can be read, and its judges are here."
            )
        if do == "estimate":
            counts, estimates = _estimate(store, rule, now_of(request) - duration(SINCE))
            return _page(request, store, name, text=text, counts=counts, estimates=estimates)
        if do not in ("save", "on", "off"):
            raise HTTPException(422, "known are check, estimate, save, on, off")
        if do == "save":
            plans_of(rule)  # what cannot be made would keep workers from starting
    except MagistrateError as error:
        if do in ("on", "off"):
            raise HTTPException(422, str(error)) from error
        return _page(request, store, name, text=text, error=str(error), status=422)
    edit = RuleEdit(
        rule=name,
        revision=newest + 1,
        made_at=now_of(request),
        base=current.digest,
        text=text,
        enabled=do == "on" or (do == "save" and held.enabled),
    )
    if not store.rule_edits.add(edit, by=visitor_of(request).who):
        told = "somebody else has saved a revision meanwhile; it is in the list below, and yours is not saved"
        return _page(request, store, name, text=text, error=told, status=409)
    return RedirectResponse(rule_address(name, saved=1), 303)


def _estimate(store: Store, rule: Rule, since: datetime) -> tuple[Mapping[str, int], list[Estimate]]:
    """Return how many answers since a moment would be in each state, and what judging them would take."""
    found = undecided_targets(store, rule, since, MOST_ESTIMATED + 1)
    if len(found) > MOST_ESTIMATED:
        raise SpecError(
            f"these are more than {MOST_ESTIMATED:,} answers; on a machine with the store run: "
            f"magistrate watch run --rules FILE --since {SINCE} --dry-run"
        )
    if not _estimating.acquire(blocking=False):
        raise SpecError("another estimate is being worked out; try again in a moment")
    try:
        return estimate_rule(rule, found)
    finally:
        _estimating.release()
