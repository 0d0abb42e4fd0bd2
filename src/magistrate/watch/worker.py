"""Reads new traces, applies the rules, and judges what is due with the engines, cache and store of runs.

Any number of workers may share a store. A leased decision is leased again only after its lease has expired,
as after `kill -9`. An outcome and its decision are stored in one transaction.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from magistrate import _async, _logging
from magistrate.errors import EngineError, InputError, MissingPackage, ModelError, SpecError, StoreError
from magistrate.judges.base import Judge
from magistrate.runs.execute import Judged, stream_groups
from magistrate.runs.prepare import RunPlan
from magistrate.runs.resume import recipe_differences
from magistrate.store import Store
from magistrate.store.decisions import (
    Change,
    Decide,
    Draft,
    Hour,
    Leased,
    RuleRecord,
    Settled,
    Spent,
    TargetRecord,
)
from magistrate.store.rule_edits import RuleEdit
from magistrate.store.trace_deletion import WATCH_TAG
from magistrate.store.traces import Content, Read
from magistrate.types import Failure, Outcome, Sample
from magistrate.watch import decisions
from magistrate.watch.edits import in_force, plans_of
from magistrate.watch.reading import find, read_again
from magistrate.watch.rules import Rule

MOST_WAIT = 300.0  # seconds after which a trace is read even if its root has not ended
LEASE = 120.0  # seconds; it is renewed while its work is in progress
AT_ONCE = 100  # traces read, and targets decided on, before anything is judged
READ_TOGETHER = 25  # traces in memory at once
COVER_EVERY = 10.0  # seconds between searches for targets without a decision
COVER_PAUSE = 50  # that pause as a multiple of what the search takes, in a store of millions
BATCHES = 4  # leased at once, as a multiple of the rule's concurrency
QUICK = 1.0  # seconds for a batch, below which the next one is larger
MOST_LEASED = 256  # at once, by one worker
POLL = 1.0  # seconds between steps while there is nothing to do
FIRST_POLL = 0.02  # seconds after the first step that found nothing, then twice as many each time

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
        self._cover_at: dict[str, datetime] = {}  # when to look for targets without a decision, by rule
        self._most: dict[str, int] = {}  # leased at once, by rule
        self._unstored: dict[str, list[Settled]] = {}  # what the store could not take, by rule
        self._tried_late: Counter[str] = Counter()

    def register(self, since: datetime | None = None) -> None:
        """Register the rules in the store. With `since`, they also apply to traces seen from then on."""
        self._take_edits()
        for rule in self._rules.values():
            self._register(rule, since)

    def _register(self, rule: Rule, since: datetime | None = None) -> None:
        record = self._traces.register(rule.name, rule.plain(), rule.digest, self._clock(), since)
        self._records[rule.name] = record
        self._cover_at.pop(rule.name, None)

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
        self._cover_at.clear()
        self._edits = edits

    async def prepare(self) -> None:
        """Create all judges and engines now instead of on first use.

        Raises `SpecError`, `ModelError` and the like if that fails.
        """
        self._take_edits()
        for rule in self._rules.values():
            await self._plans_of(rule)

    async def run(self, poll: float = POLL) -> None:
        """Do what is due, forever. A slow judge does not delay the reading of traces or other rules."""
        judging: dict[str, asyncio.Task[int]] = {}
        pause = FIRST_POLL
        try:
            while True:
                done = self._decide()
                for rule in self._rules.values():
                    if rule.name not in judging:
                        judging[rule.name] = asyncio.create_task(self._judge(rule))
                if judging:
                    await asyncio.wait(judging.values(), timeout=poll, return_when=asyncio.FIRST_COMPLETED)
                over = [name for name, task in judging.items() if task.done()]
                done.settled += sum(judging.pop(name).result() for name in over)
                if not done and (over or not judging):  # else that took as long
                    await asyncio.sleep(min(pause, poll))
                    pause = min(2 * pause, poll)
                else:
                    pause = FIRST_POLL
        finally:
            for task in judging.values():
                task.cancel()
            await asyncio.gather(*judging.values(), return_exceptions=True)

    async def drain(self) -> Progress:
        """Do what is due until nothing is left."""
        done = Progress()
        while step := await self.step():
            done += step
        return done

    async def step(self) -> Progress:
        """Read traces, make decisions, and judge one batch per rule."""
        done = self._decide()
        for rule in self._rules.values():
            done.settled += await self._judge(rule)
        if not done:
            done.decided += sum(map(self._cover, self._rules.values()))
        return done

    def read_whole(self, trace_ids: Iterable[str]) -> int:
        """Read traces that are known to be complete, without waiting. Return how many were unread."""
        return self._read(list(trace_ids), whole=True)

    # --- reading and deciding -------------------------------------------------------------------

    def _decide(self) -> Progress:
        """Read traces that are ready, and make the decisions that are due."""
        done = Progress()
        self._take_edits()
        for rule in self._rules.values():
            if rule.name not in self._records or self._records[rule.name].digest != rule.digest:
                self._register(rule)
        if not self._rules:
            return done
        now, quiet = self._clock(), min(rule.quiet for rule in self._rules.values())
        done.traces += self._read(self._traces.ready(now, quiet, self._most_wait, AT_ONCE))
        for rule in self._rules.values():
            record, decide = self._records[rule.name], self._decide_now(rule)
            done.decided += self._traces.wake(record, decide, self._clock(), AT_ONCE)
            if rule.name not in self._cover_at or now >= self._cover_at[rule.name]:
                done.decided += self._cover(rule)
            done.decided += self._give_up(rule)
        return done

    def _cover(self, rule: Rule) -> int:
        """Decide on a batch of targets without a decision of this rule, as of traces that were read before
        there was the rule, or by a worker that does not have it.
        """
        now, record, begun = self._clock(), self._records[rule.name], time.monotonic()
        early = self._traces.lacking(rule.target, record.since, AT_ONCE, only_read=True)
        for some in _batches(early, READ_TOGETHER):
            read = [each for each in self._traces.content(some) if not each.is_unread]
            found = [read_again(each, rule.target, lambda _: ()) for each in read]
            self._traces.read(found, now)
        covered = self._traces.cover(record, rule.target, self._decide_now(rule), now, AT_ONCE)
        if len(early) < AT_ONCE and covered < AT_ONCE:
            pause = max(COVER_EVERY, COVER_PAUSE * (time.monotonic() - begun))
            self._cover_at[rule.name] = now + timedelta(seconds=pause)
        return len(early) + covered

    def _read(self, trace_ids: Sequence[str], *, whole: bool = False) -> int:
        # Those of rules that are off too: they decide of what came meanwhile once they are on again.
        kinds = {rule.target for rule in (*self._file.values(), *self._current.values())}
        done = 0
        for some in _batches(trace_ids, READ_TOGETHER):
            now, found = self._clock(), []
            for each in self._traces.content(some):
                if each.is_unread:
                    looked_for, seen = find(each, {*kinds, *each.kinds})
                    found.append(Read(each, looked_for, seen, self._decide_read(each, whole), now))
            done += self._traces.read(found, self._clock())
        return done

    def _decide_read(self, unread: Content, whole: bool) -> Decide:
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
        self._store_late(rule.name)
        now, record = self._clock(), self._records[rule.name]
        lease = f"{self._randomness.getrandbits(64):016x}"
        least = BATCHES * rule.concurrency
        most, begun = max(least, self._most.get(rule.name, 0)), time.monotonic()

        def room(hours: Sequence[Hour], under_way: int) -> int:
            return decisions.room(rule.budget, hours, under_way, now, most)

        leased = self._traces.lease(
            record, lease, self._until(now), now, room, newest_first=rule.order == "newest"
        )
        if not leased:
            spent = decisions.exhausted(rule.budget, self._traces.hours(rule.name, now), now)
            return 0 if spent is None else self._traces.defer(record, "budget_deferred", *spent, now)
        work = {each.sample.id: each for each in map(_work, leased)}
        # Some have all results they need, from an earlier attempt or for the same content.
        over = [
            name
            for name, each in work.items()
            if decisions.next_judge(rule, each.asked, each.leased.trace_id) is None
        ]
        try:
            self._settle((each, _ended(each, now)) for each in map(work.pop, over))
            plans = await self._plans_of(rule)
            run_id = self._run_of(rule, record, plans)
            async with self._renewed(lease):
                for place, plan in enumerate(plans):
                    await self._ask(rule, place, plan, run_id, work)
        except (EngineError, ModelError, MissingPackage, SpecError) as error:
            # The other targets would fail now too; all may succeed later.
            _log.warning("rule.put_off", rule=rule.name, error=_logging.error_text(error))
            self._settle((each, self._put_off(each, _logging.error_text(error))) for each in work.values())
        except BaseException:
            with suppress(StoreError):  # it is stored later, or the leases expire on their own
                self._settle((each, self._released(each)) for each in work.values())
            raise
        # Quick judges get more at once, so that the store is asked less often.
        seconds = time.monotonic() - begun
        if len(leased) == most and seconds < QUICK:
            self._most[rule.name] = min(2 * most, MOST_LEASED)
        elif seconds > 2 * QUICK:
            self._most[rule.name] = most // 2
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
        groups = stream_groups(samples, [judge], plan.engine, limits=plan.limits, undelivered=undelivered)
        try:
            async with aclosing(groups) as judged:  # type: ignore[type-var]
                async for group in judged:
                    self._take(rule, judge, plan, run_id, work, chances, group)
        finally:
            if undelivered:  # their cost is already spent
                self._take(rule, judge, plan, run_id, work, chances, undelivered)

    def _take(
        self,
        rule: Rule,
        judge: Judge,
        plan: RunPlan,
        run_id: str,
        work: dict[str, _Work],
        chances: Mapping[str, float],
        judged: Sequence[Judged],
    ) -> None:
        """Store outcomes and update their decisions, in one transaction."""
        settled = []
        for outcome in (each.outcome for each in judged):
            each = work[outcome.sample_id]
            change = self._change(rule, judge, plan, each, chances[outcome.sample_id], outcome)
            settled.append(Settled(replace(each.leased, sample=each.sample), change, run_id, outcome))
        try:
            stored = self._stored(settled)
        except InputError as error:  # of one of them, which must not take the others with it
            for each_judged in judged:
                self._take(rule, judge, plan, run_id, work, chances, [_storable(each_judged, judged, error)])
            return
        except StoreError:
            for each_settled in settled:  # they are not to be released: what was said of them is kept
                del work[each_settled.leased.sample.id]
            raise
        for each_settled, held in zip(settled, stored, strict=True):
            sample_id = each_settled.leased.sample.id
            if not held:
                _log.info("decision.lost", rule=rule.name, target=each_settled.leased.target)
            if not held or not each_settled.change.kept:
                del work[sample_id]
            else:
                work[sample_id].asked = list(map(dict, each_settled.change.asked))

    def _change(
        self, rule: Rule, judge: Judge, plan: RunPlan, each: _Work, chance: float, outcome: Outcome
    ) -> Change:
        """Return how an outcome changes its decision."""
        now, asked = self._clock(), list(each.asked)
        cost = None if plan.cost is None else plan.cost(outcome.usage)
        spent = decisions.spent(outcome.usage, cost)
        each.so_far += spent
        change = Change(state=each.leased.state, now=now, spent=spent, so_far=each.so_far, kept=True)
        if isinstance(outcome, Failure):
            attempts = each.leased.attempts
            state, due_at = decisions.after_failure(outcome, attempts, each.leased.target, now)
            change = replace(change, state=state, due_at=due_at, kept=False)
        else:
            asked.append(decisions.answer(outcome, judge.info, chance))
            if decisions.next_judge(rule, asked, each.leased.trace_id) is None:
                change = replace(change, state=decisions.ended(asked), kept=False)
        reason = "" if change.kept else decisions.told(outcome)
        is_final = not isinstance(outcome, Failure) or change.state == "failed"
        return replace(
            change,
            reason=reason,
            asked=asked,
            send_to=self._send_to if is_final else (),
            by=judge.info.kind,
        )

    def _settle(self, changes: Iterable[tuple[_Work, Change]]) -> None:
        """Store changes of decisions without an outcome."""
        self._stored([Settled(each.leased, change) for each, change in changes])

    def _stored(self, settled: Sequence[Settled]) -> list[bool]:
        """Store changes, and return which decisions were still held. If that fails, they are kept for later.

        A judge is not asked again, then, because the disk was full, and no lease is left to expire.
        """
        try:
            return self._traces.settle(settled)
        except StoreError:
            for each in settled:
                now, kept = self._clock(), each.change.kept  # its next judge is asked in another batch
                change = replace(each.change, due_at=now, kept=False) if kept else each.change
                self._unstored.setdefault(each.leased.rule, []).append(replace(each, change=change))
            raise

    def _store_late(self, rule: str) -> None:
        """Store what could not be stored. Of what another worker has taken since, only the cost is kept.

        It is tried for as long as nothing can be written, but only a few times where only this cannot.
        """
        late = self._unstored.get(rule)
        if not late:
            return
        try:
            self._traces.settle(late)
        except StoreError:
            for lease in {each.leased.lease for each in late}:
                self._traces.renew(lease, self._until(self._clock()))
            self._tried_late[rule] += 1
            if self._tried_late[rule] < decisions.ATTEMPTS:
                raise
            _log.warning("decisions.unstored", rule=rule, n=len(late))
        del self._unstored[rule], self._tried_late[rule]

    def _released(self, each: _Work) -> Change:
        now = self._clock()
        return Change(state=each.leased.state, now=now, due_at=now, asked=each.asked, reason="interrupted")

    def _put_off(self, each: _Work, reason: str) -> Change:
        now = self._clock()
        due_at = now + decisions.pause(each.leased.attempts, each.leased.target)
        return Change(state="retrying", now=now, reason=reason, due_at=due_at, asked=each.asked)

    # --- plans, runs and leases -----------------------------------------------------------------

    async def _plans_of(self, rule: Rule) -> Sequence[RunPlan]:
        """Return one plan per judge of the rule, created once."""
        plans = self._plans.get(rule.name)
        if plans is None:
            plans = list(await _async.in_thread(plans_of, rule))
            if self._current[rule.name].digest == rule.digest:  # not edited in the meantime
                self._plans[rule.name] = plans
        return plans

    def _run_of(self, rule: Rule, record: RuleRecord, plans: Sequence[RunPlan]) -> str:
        """Return the run that stores the outcomes of this rule version; a new run if a model has changed."""
        store = self._store
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


def _ended(each: _Work, now: datetime) -> Change:
    return Change(state=decisions.ended(each.asked), now=now, asked=each.asked)


def _storable(each: Judged, among: Sequence[Judged], error: InputError) -> Judged:
    """Return a failure instead of the only outcome, which cannot be stored; one of several as it is."""
    if len(among) > 1:
        return each
    outcome = each.outcome
    if isinstance(outcome, Failure):
        raise error
    told = _logging.error_text(error)
    failure = Failure(outcome.sample_id, outcome.judge, "invalid_output", told)
    return replace(each, outcome=replace(failure, usage=outcome.usage, seconds=outcome.seconds))


def _batches(items: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))
