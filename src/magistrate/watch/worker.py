"""Reads new traces, applies the rules, and judges what is due with the engines, cache and store of runs.

Any number of workers may share a store. A leased decision is leased again only after its lease has expired,
as after `kill -9`. An outcome and its decision are stored in one transaction.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from magistrate import _async, _logging
from magistrate.datasets.spans.targets import Target, targets
from magistrate.errors import EngineError, MissingPackage, ModelError, SpecError, StoreError
from magistrate.judges.base import Judge
from magistrate.runs.execute import Judged, stream
from magistrate.runs.prepare import RunPlan
from magistrate.runs.resume import recipe_differences
from magistrate.store import Store
from magistrate.store.decisions import Change, Decide, Draft, Hour, Leased, RuleRecord, Spent, TargetRecord
from magistrate.store.rule_edits import RuleEdit
from magistrate.store.trace_deletion import WATCH_TAG
from magistrate.store.traces import Unread
from magistrate.types import Failure, Outcome, Sample
from magistrate.watch import decisions
from magistrate.watch.edits import in_force, plans_of
from magistrate.watch.events import with_events
from magistrate.watch.rules import Rule

MOST_WAIT = 300.0  # seconds after which a trace is read even if its root has not ended
LEASE = 120.0  # seconds; it is renewed while its work is in progress
AT_ONCE = 100  # traces read, and targets decided on, before anything is judged
BATCHES = 4  # leased at once, as a multiple of the rule's concurrency
POLL = 1.0  # seconds between steps that found nothing to do

_log = _logging.get("watch")


@dataclass(slots=True)
class Progress:
    """Counts of one step: traces read, decisions made, and decisions changed by judging."""

    traces: int = 0
    decided: int = 0
    settled: int = 0

    def __bool__(self) -> bool:
        return bool(self.traces or self.decided or self.settled)

    def __iadd__(self, other: Progress) -> Progress:
        self.traces += other.traces
        self.decided += other.decided
        self.settled += other.settled
        return self


@dataclass(slots=True)
class _Work:
    """A leased decision on its way through the judges of its rule."""

    leased: Leased
    sample: Sample
    asked: list[dict[str, object]]
    so_far: Spent = field(default_factory=Spent)


class Watcher:
    """A worker that applies rules to the traces of one store and judges what they select.

    `rules` are those of the rules file. What somebody saves of them on the page holds from the next step on.

    Call `register` first. Then `step` does what is due now, `drain` repeats that until nothing is due, and
    `run` repeats it until cancelled. `plans` overrides the judges and engines of a rule, by the rule's
    name, with one plan per judge. Outcomes are queued in the store's outbox for the destinations `send_to`.
    """

    def __init__(
        self,
        store: Store,
        rules: Sequence[Rule],
        *,
        clock: Callable[[], datetime],
        randomness: random.Random | None = None,
        plans: Mapping[str, Sequence[RunPlan]] | None = None,
        most_wait: float = MOST_WAIT,
        lease: float = LEASE,
        send_to: Sequence[str] = (),
    ) -> None:
        self._store = store
        self._traces = store.traces
        self._file = {rule.name: rule for rule in rules}
        self._edits: Mapping[str, RuleEdit] = {}
        self._current, self._rules = dict(self._file), dict(self._file)
        self._records: dict[str, RuleRecord] = {}
        self._clock = clock
        self._randomness = randomness or random.SystemRandom()
        self._plans = {name: list(each) for name, each in (plans or {}).items()}
        self._most_wait = most_wait
        self._lease = lease
        self._send_to = tuple(send_to)

    def register(self, since: datetime | None = None) -> None:
        """Register the rules in the store. With `since`, they also apply to traces seen from then on."""
        self._take_edits()
        for rule in self._rules.values():
            self._register(rule, since)

    def _register(self, rule: Rule, since: datetime | None = None) -> None:
        record = self._traces.register(rule.name, rule.plain(), rule.digest, self._clock(), since)
        self._records[rule.name] = record

    def _take_edits(self) -> None:
        """Take over what was saved on the page since the last call."""
        edits = self._store.rule_edits.newest()
        if edits == self._edits:
            return
        found = {name: in_force(rule, edits.get(name)) for name, rule in self._file.items()}
        for name, each in found.items():
            if each.problem:
                _log.warning("rule.unreadable", rule=name, error=each.problem)
            if each.rule.specs() != self._current[name].specs():
                self._plans.pop(name, None)
        self._current = {name: each.rule for name, each in found.items()}
        self._rules = {name: each.rule for name, each in found.items() if each.enabled}
        self._edits = edits

    async def prepare(self) -> None:
        """Create all judges and engines now instead of on first use.

        Raises `SpecError`, `ModelError` and the like if that fails.
        """
        self._take_edits()
        for rule in self._rules.values():
            await self._plans_of(rule)

    async def run(self, poll: float = POLL) -> None:
        """Do what is due, forever."""
        while True:
            if not await self.step():
                await asyncio.sleep(poll)

    async def drain(self) -> Progress:
        """Do what is due until nothing is left."""
        done = Progress()
        while step := await self.step():
            done += step
        return done

    async def step(self) -> Progress:
        """Read traces, make decisions, and judge one batch per rule."""
        done = Progress()
        self._take_edits()
        for rule in self._rules.values():
            if rule.name not in self._records or self._records[rule.name].digest != rule.digest:
                self._register(rule)
        if not self._rules:
            return done
        now, quiet = self._clock(), min(rule.quiet for rule in self._rules.values())
        for trace_id in self._traces.ready(now, quiet, self._most_wait, AT_ONCE):
            done.traces += self._read(trace_id)
        for rule in self._rules.values():
            record, decide = self._records[rule.name], self._decide_now(rule)
            done.decided += self._traces.wake(record, decide, self._clock(), AT_ONCE)
            done.decided += self._traces.cover(record, rule.target, decide, self._clock(), AT_ONCE)
            done.decided += self._give_up(rule)
        for rule in self._rules.values():
            done.settled += await self._judge(rule)
        return done

    def read_whole(self, trace_ids: Iterable[str]) -> int:
        """Read traces that are known to be complete, without waiting. Return how many were unread."""
        return sum(self._read(trace_id, whole=True) for trace_id in trace_ids)

    # --- reading and deciding -------------------------------------------------------------------

    def _read(self, trace_id: str, *, whole: bool = False) -> bool:
        unread = self._traces.unread(trace_id)
        if unread is None:
            return False
        # Those of rules that are off too: they decide of what came meanwhile once they are on again.
        kinds = sorted({rule.target for rule in (*self._file.values(), *self._current.values())})
        found: list[Target] | None
        try:
            found = targets(with_events(unread.spans), kinds)
        except Exception as error:  # one bad trace must not stop the others
            told = _logging.error_text(error)
            _log.warning("trace.unreadable", trace=trace_id, error=told)
            found = None if unread.known else [_unreadable(unread, kind, told) for kind in kinds]
        return self._traces.read(unread, found, self._decide_read(unread, whole), self._clock())

    def _decide_read(self, unread: Unread, whole: bool) -> Decide:
        """Return a function that makes the rules' decisions for a trace that was just read."""
        now = self._clock()
        late = unread.since <= now - timedelta(seconds=self._most_wait)
        note = "" if unread.ended or whole else f"its root had not ended after {self._most_wait:g} seconds"

        def decide(target: TargetRecord) -> list[Draft]:
            found = []
            for rule in self._rules.values():
                if rule.target == target.kind:
                    quiet_at = unread.last_at + timedelta(seconds=rule.quiet)
                    ready_at = now if whole or late else quiet_at
                    version = self._records[rule.name].version
                    found.append(decisions.first(rule, version, target, now, ready_at, note))
            return found

        return decide

    def _decide_now(self, rule: Rule) -> Decide:
        now, version = self._clock(), self._records[rule.name].version
        return lambda target: [decisions.first(rule, version, target, now, now)]

    def _give_up(self, rule: Rule) -> int:
        """Expire or shed the decisions beyond the rule's `keep` and `most_queued` limits."""
        record, now, done = self._records[rule.name], self._clock(), 0
        if rule.keep is not None:
            before = now - timedelta(seconds=rule.keep)
            why = f"it waited longer than {rule.keep:g} seconds"
            done += self._traces.give_up(record, "expired", why, now, made_before=before)
        if rule.most_queued is not None:
            oldest = self._traces.nth_newest_due(record, rule.most_queued)
            if oldest is not None:
                why = f"more than {rule.most_queued:,} were waiting"
                made, target = oldest
                done += self._traces.give_up(record, "shed", why, now, made_before=made, target_before=target)
        return done

    # --- judging --------------------------------------------------------------------------------

    async def _judge(self, rule: Rule) -> int:
        """Judge a batch of a rule's due decisions. Return how many decisions changed."""
        now, record = self._clock(), self._records[rule.name]
        lease, most = f"{self._randomness.getrandbits(64):016x}", BATCHES * rule.concurrency

        def room(hours: Sequence[Hour], under_way: int) -> int:
            return decisions.room(rule.budget, hours, under_way, now, most)

        leased = self._traces.lease(
            record, lease, self._until(now), now, room, newest_first=rule.order == "newest"
        )
        if not leased:
            spent = decisions.exhausted(rule.budget, self._traces.hours(rule.name, now), now)
            return 0 if spent is None else self._traces.defer(record, "budget_deferred", *spent, now)
        work = {each.sample.id: each for each in map(_work, leased)}
        for sample_id, each in list(work.items()):
            if decisions.next_judge(rule, each.asked, each.leased.trace_id) is None:
                self._end(work.pop(sample_id))
        try:
            plans = await self._plans_of(rule)
            run_id = self._run_of(rule, plans)
            async with self._renewed(lease):
                for place, plan in enumerate(plans):
                    await self._ask(rule, place, plan, run_id, work)
        except (EngineError, ModelError, MissingPackage, SpecError) as error:
            # The other targets would fail now too; all may succeed later.
            _log.warning("rule.put_off", rule=rule.name, error=_logging.error_text(error))
            for each in work.values():
                self._put_off(each, _logging.error_text(error))
        except BaseException:
            with suppress(StoreError):  # if the store itself failed, the leases expire on their own
                for each in work.values():
                    change = Change(state=each.leased.state, now=self._clock(), due_at=self._clock())
                    self._traces.settle(each.leased, replace(change, asked=each.asked, reason="interrupted"))
            raise
        return len(leased)

    async def _ask(self, rule: Rule, place: int, plan: RunPlan, run_id: str, work: dict[str, _Work]) -> None:
        """Call the judge at this place for the targets that need it next. Finished ones leave `work`."""
        (judge,) = plan.judges
        chances: dict[str, float] = {}
        for sample_id, each in work.items():
            if len(each.asked) == place:
                chance = decisions.next_judge(rule, each.asked, each.leased.trace_id)
                assert chance is not None, "what is ended is not in work any more"
                chances[sample_id] = chance
        undelivered = list[Judged]()
        samples = [work[sample_id].sample for sample_id in chances]
        answers = stream(samples, [judge], plan.engine, limits=plan.limits, undelivered=undelivered)
        try:
            async with aclosing(answers) as judged:  # type: ignore[type-var]
                async for each_judged in judged:
                    self._take(rule, judge, plan, run_id, work, chances, each_judged.outcome)
        finally:
            for each_judged in undelivered:  # their cost is already spent
                self._take(rule, judge, plan, run_id, work, chances, each_judged.outcome)

    def _take(
        self,
        rule: Rule,
        judge: Judge,
        plan: RunPlan,
        run_id: str,
        work: dict[str, _Work],
        chances: Mapping[str, float],
        outcome: Outcome,
    ) -> None:
        """Store an outcome and update its decision."""
        each, now = work[outcome.sample_id], self._clock()
        cost = None if plan.cost is None else plan.cost(outcome.usage)
        spent = decisions.spent(outcome.usage, cost)
        each.so_far += spent
        change = Change(state=each.leased.state, now=now, spent=spent, so_far=each.so_far, kept=True)
        if isinstance(outcome, Failure):
            attempts = each.leased.attempts
            state, due_at = decisions.after_failure(outcome, attempts, each.leased.target, now)
            change = replace(change, state=state, due_at=due_at, kept=False)
        else:
            each.asked.append(decisions.answer(outcome, judge.info, chances[outcome.sample_id]))
            if decisions.next_judge(rule, each.asked, each.leased.trace_id) is None:
                change = replace(change, state=decisions.ended(each.asked), kept=False)
        reason = "" if change.kept else decisions.told(outcome)
        is_final = not isinstance(outcome, Failure) or change.state == "failed"
        change = replace(
            change,
            reason=reason,
            asked=each.asked,
            send_to=self._send_to if is_final else (),
            by=judge.info.kind,
        )
        held = self._traces.settle(replace(each.leased, sample=each.sample), change, (run_id, outcome))
        if not held:
            _log.info("decision.lost", rule=rule.name, target=each.leased.target)
        if not held or not change.kept:
            del work[outcome.sample_id]

    def _end(self, each: _Work) -> None:
        """Settle a decision that has all results it needs, from an earlier attempt or for the same
        content.
        """
        change = Change(state=decisions.ended(each.asked), now=self._clock(), asked=each.asked)
        self._traces.settle(each.leased, change)

    def _put_off(self, each: _Work, reason: str) -> None:
        now = self._clock()
        due_at = now + decisions.pause(each.leased.attempts, each.leased.target)
        change = Change(state="retrying", now=now, reason=reason, due_at=due_at, asked=each.asked)
        self._traces.settle(each.leased, change)

    # --- plans, runs and leases -----------------------------------------------------------------

    async def _plans_of(self, rule: Rule) -> Sequence[RunPlan]:
        """Return one plan per judge of the rule, created once."""
        if rule.name not in self._plans:
            self._plans[rule.name] = list(await _async.in_thread(plans_of, rule))
        return self._plans[rule.name]

    def _run_of(self, rule: Rule, plans: Sequence[RunPlan]) -> str:
        """Return the run that stores the outcomes of this rule version; a new run if a model has changed."""
        record, store = self._records[rule.name], self._store
        recipes = {name: recipe for plan in plans for name, recipe in plan.recipes.items()}
        current = self._traces.rule(rule.name)
        if current is not None and current.version == record.version:
            record = current
        if record.run_id is not None:
            kept = store.find_run(record.run_id)
            if not list(recipe_differences(kept.recipes, recipes)):
                return record.run_id
        engine = plans[-1].engine.info
        run_id = store.create_run(
            dataset=f"watch {rule.name}",
            dataset_digest=rule.digest,
            model=engine.model,
            engine_fingerprint=engine.fingerprint,
            recipes=recipes,
            scoring={name: each for plan in plans for name, each in plan.scoring.items()},
            settings={WATCH_TAG: {"rule": rule.name, "version": record.version}},
            name=f"watch {rule.name} v{record.version}",
            tags=(WATCH_TAG,),
        )
        store.finish_run(run_id, "done")  # each of its samples has an outcome at any time
        chosen = self._traces.keep_run(record, run_id)
        if chosen != run_id:
            store.delete(run_id)
        return chosen

    def _until(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self._lease)

    @asynccontextmanager
    async def _renewed(self, lease: str) -> AsyncIterator[None]:
        """Renew a lease while its work is in progress."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(self._lease / 3)
                try:
                    self._traces.renew(lease, self._until(self._clock()))
                except StoreError as error:  # a locked store: the lease holds for two more tries
                    _log.warning("lease.unrenewed", error=_logging.error_text(error))

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing


def _work(leased: Leased) -> _Work:
    """Wrap a leased decision. Its sample id is built from trace, span and revision."""
    place = f"{leased.trace_id}.{leased.span_id}"
    name = place if leased.revision == 1 else f"{place}.{leased.revision}"
    sample = replace(leased.sample, id=name)
    return _Work(leased, sample, [dict(each) for each in leased.asked])


def _unreadable(unread: Unread, kind: str, told: str) -> Target:
    """Return a failed target for a trace that cannot be read, so that it is counted."""
    first = next((span for span in unread.spans if span.parent_id is None), unread.spans[0])
    why = f"the trace cannot be read: {told}"
    return Target(unread.trace_id, first.span_id, kind, first.name, None, "failed", why)
