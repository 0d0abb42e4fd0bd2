"""A run that many workers judge in one store, simulated: how fast it is, and what happens when some die.

Run: python -m benchmarks.cluster [--workers 1,10,100,400] [--samples N] [--die 0.1] [--dying 100] [--seed 1]
         [--stores 1] [--store-ms A,B | --measure [--postgres URL]]

Nothing is judged and no time passes: clock, latencies and deaths are simulated. A worker is what
`magistrate run --shard I/N --workers 1` is. It locks its share, looks up what is judged already, and stores
what became ready together in one transaction. Until that has ended it takes no outcome, and begins no sample
in place of one that became ready meanwhile. Which share a sample is in, the size of a group and the patience
of locks are taken from the program. The transactions of one run take turns, on a server too, because each
locks the run's row. One takes A ms + B ms for each outcome, which `--measure` measures now. With `--stores K`
the shares are in K stores that do not wait for each other.

The scheduler starts a worker again whenever it ended before its share was judged. A process that dies frees
its lock at once. A host that vanishes keeps it until the server's keepalives notice, and a transaction that
it had begun or waits for until the server ends what is silent.
"""

from __future__ import annotations

import argparse
import inspect
import random
import re
import tempfile
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf, log
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import Mock

import simpy

from benchmarks.million import new_run, timed
from benchmarks.store import connect, head, outcome, samples
from magistrate.engines.base import CONCURRENCY
from magistrate.runs.execute import GROUP
from magistrate.store import Store, postgres
from magistrate.store.runs import SampleRow
from magistrate.store.shares import share_of

Steps = Generator[simpy.Event, Any, None]
Cost = tuple[float, float]  # of a transaction: seconds, and seconds for each outcome

SPREAD = 0.5  # of the logarithm of a sample's seconds
START = 5.0  # seconds from the start of a process until it asks for its lock
BACKOFF, LONGEST = 10.0, 360.0  # seconds until a worker is started again, twice as many each time: Kubernetes
ASSUMED = {False: (0.002, 0.0001), True: (0.002, 0.0002)}  # A and B in seconds; True: with recorded calls
BUSY: float = inspect.signature(Store.open).parameters["busy_seconds"].default
REPEATS = 9


@dataclass(frozen=True, slots=True)
class Load:
    """How a worker judges: the mean seconds of a sample, and how many it has in progress.

    `serial`: one after another without a pause, so that outcomes gather until a group is full. `asks`: the
    calls of a model are stored too. `samples` are those of a worker, unless another number is asked for.
    """

    seconds: float
    in_flight: int
    samples: int
    serial: bool = False
    asks: bool = False

    @property
    def rate(self) -> float:
        """Samples a second of one worker that never waits for the store."""
        return (1 if self.serial else self.in_flight) / self.seconds

    @property
    def group(self) -> int:
        """The most outcomes that a worker stores together."""
        return min(self.in_flight, GROUP)

    @property
    def cycle(self) -> float:
        """Seconds until a worker has judged as many samples as it has in progress."""
        return self.in_flight / self.rate


# Detectors judge in threads, which share the core of a worker.
JUDGES = {
    "novelty, 2 ms": Load(0.002, GROUP, 5000, serial=True),
    "detector, 110 ms": Load(0.110 * CONCURRENCY, CONCURRENCY, 400),
    "combined:size=large, 400 ms": Load(0.400 * CONCURRENCY, CONCURRENCY, 200),
    "a model on a server, 2 s, 8 at once": Load(2.0, 8, 200, asks=True),
}


class Ended(Exception):
    """A process ended with an error of the store; the scheduler starts it again."""


@cache
def shares(n: int, of: int) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of `n` samples by their share."""
    found: list[list[int]] = [[] for _ in range(of)]
    for number in range(n):
        found[share_of(f"s{number}", of) - 1].append(number)
    return tuple(map(tuple, found))


@cache
def noticed_after() -> float:
    """Return the seconds after which a server notices that a host is gone, as the program sets them."""
    connection = Mock()
    postgres._configure(connection, BUSY)
    said = dict(re.findall(r"tcp_keepalives_(\w+) = (\d+)", connection.execute.call_args.args[0]))
    return float(said["idle"]) + float(said["interval"]) * float(said["count"])


class Commit(NamedTuple):
    """A transaction: when it ended, how long it waited and took, and its outcomes."""

    when: float
    waited: float
    took: float
    outcomes: int


@dataclass
class Work:
    """What one process judges: samples `left`, those `begun` (ready when, begun when, which), those `taken`
    from them into a transaction that has not ended.
    """

    load: Load
    chance: random.Random
    left: deque[int] = field(default_factory=deque)
    begun: list[tuple[float, float, int]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)

    @property
    def awaited(self) -> float:
        """When the next group is ready."""
        return (max(self.begun) if self.load.serial else self.begun[0])[0]

    def begin(self, now: float) -> None:
        """Begin samples, as many as may be in progress."""
        while self.left and len(self.begun) < self.load.in_flight:
            ready = now + self.chance.lognormvariate(log(self.load.seconds) - SPREAD**2 / 2, SPREAD)
            heappush(self.begun, (ready, now, self.left.popleft()))
            now = ready if self.load.serial else now

    def take(self, now: float) -> None:
        """Take what is ready, at most a group."""
        while self.begun and self.begun[0][0] <= now + 1e-9 and len(self.taken) < GROUP:
            self.taken.append(heappop(self.begun)[2])

    def unstored(self, now: float) -> int:
        """Return how many samples were begun whose outcomes are not stored."""
        return len(self.taken) + sum(start <= now for _, start, _ in self.begun)


@dataclass(kw_only=True)
class Cluster:
    """One simulated run and its figures. `die` of the workers die when half of the samples are judged."""

    load: Load
    workers: int
    n: int
    cost: Cost
    seed: int = 1
    stores: int = 1
    die: float = 0.0
    dies: str = "process"

    seconds: float = field(init=False)  # until all was judged
    stored: Counter[int] = field(init=False, default_factory=Counter)  # how often each sample was inserted
    commits: list[Commit] = field(init=False, default_factory=list)
    refused: int = field(init=False, default=0)  # restarts whose share was still locked
    ended: int = field(init=False, default=0)  # processes that waited for the store longer than its patience
    lost: int = field(init=False, default=0)  # samples that a process had begun, not stored, when it ended
    steady: tuple[float, float] = field(init=False, default=(0.0, inf))  # when every worker was in full work

    def run(self) -> Cluster:
        """Simulate until everything is judged."""
        self.env = simpy.Environment()
        self.runs = [simpy.Resource(self.env) for _ in range(self.stores)]
        self.locked = set[int]()
        self.half = self.env.event()
        self.alive = [self.env.process(self._worker(share)) for share in range(self.workers)]
        self.judging = set[int]()
        if self.die:
            self.env.process(self._death())
        self.env.run(self.env.all_of(self.alive))
        self.seconds = self.env.now
        return self

    # --- what the program and its scheduler do ------------------------------------------------------

    def _worker(self, share: int) -> Steps:
        chance = random.Random(f"{self.seed} {share}")
        delay = BACKOFF
        yield self.env.timeout(chance.uniform(0, self.load.cycle))
        while True:
            work = Work(self.load, chance)
            self.judging.add(share)
            try:
                yield from self._process(share, work)
                return
            except (Ended, simpy.Interrupt):
                self.lost += work.unstored(self.env.now)
            finally:
                self.judging.remove(share)
            yield self.env.timeout(delay + START)
            delay = min(2 * delay, LONGEST)

    def _process(self, share: int, work: Work) -> Steps:
        """Judge what is left of a share, in a process."""
        if share in self.locked:
            self.refused += 1
            raise Ended
        self.locked.add(share)
        vanished = False
        try:
            yield from self._commit(share, [])
            yield from self._judge(share, work)
            yield from self._commit(share, [])
        except simpy.Interrupt as death:
            vanished = death.cause == "host"
            raise
        finally:
            self.env.process(self._unlock(share, noticed_after() if vanished else 0.0))

    def _judge(self, share: int, work: Work) -> Steps:
        begun = self.env.now
        groups = 0
        work.left.extend(each for each in shares(self.n, self.workers)[share] if not self.stored[each])
        work.begin(self.env.now)
        while work.begun:
            yield self.env.timeout(max(0.0, work.awaited - self.env.now))
            work.take(self.env.now)
            if not self.load.serial:  # what is in progress elsewhere goes on during the transaction
                work.begin(self.env.now)
            yield from self._commit(share, work.taken)
            work.taken = []
            groups += 1
            if groups == 2 and self.steady[1] == inf:  # the first one is small, and so is the second's wait
                self.steady = max(self.steady[0], self.env.now, begun + 2 * self.load.cycle), inf
            work.begin(self.env.now)
            if not work.left:
                self.steady = self.steady[0], min(self.steady[1], self.env.now)

    def _commit(self, share: int, group: Sequence[int]) -> Steps:
        """Store outcomes, or change the run's row, in one transaction, when it is this process's turn."""
        run, asked, vanished = self.runs[share % self.stores], self.env.now, False
        turn = run.request()
        try:
            if not turn.triggered:
                yield turn | self.env.timeout(BUSY)
            if not turn.triggered:
                self.ended += 1
                raise Ended
            waited, took = self.env.now - asked, self.cost[0] + self.cost[1] * len(group)
            yield self.env.timeout(took)
        except simpy.Interrupt as death:
            vanished = death.cause == "host"
            raise
        finally:
            if vanished:
                self.env.process(self._dangle(run, turn, asked))
            else:
                _let_go(run, turn)
        self.stored.update(group)
        self.commits.append(Commit(self.env.now, waited, took, len(group)))
        if len(self.stored) * 2 >= self.n and not self.half.triggered:
            self.half.succeed()

    # --- deaths -------------------------------------------------------------------------------------

    def _death(self) -> Steps:
        chance = random.Random(self.seed)
        yield self.half
        yield self.env.timeout(chance.uniform(0, self.load.cycle))
        doomed = min(ceil(self.die * self.workers), len(self.judging))
        for share in chance.sample(sorted(self.judging), doomed):
            self.alive[share].interrupt(self.dies)

    def _unlock(self, share: int, seconds: float) -> Steps:
        yield self.env.timeout(seconds)
        self.locked.remove(share)

    def _dangle(self, run: simpy.Resource, turn: Any, asked: float) -> Steps:
        """Keep the transaction of a host that is gone, or its place in the queue, as the server does."""
        if not turn.triggered:
            yield turn | self.env.timeout(asked + BUSY - self.env.now)
        if turn.triggered:
            yield self.env.timeout(min(noticed_after(), postgres.ABANDONED))
        _let_go(run, turn)

    # --- figures ------------------------------------------------------------------------------------

    @property
    def doubled(self) -> int:
        """Outcomes that a sample had already: the store refuses them."""
        return self.stored.total() - len(self.stored)

    @property
    def counted(self) -> list[Commit]:
        """The transactions while every worker was in full work, from one with outcomes to the last such."""
        found = [each for each in self.commits if self.steady[0] < each.when <= self.steady[1]]
        full = [at for at, each in enumerate(found) if each.outcomes]
        if len(full) < 2:
            raise SystemExit("there are too few samples for a rate; ask for more")
        return found[full[0] : full[-1] + 1]

    @property
    def span(self) -> float:
        """The seconds from the first to the last of them."""
        return self.counted[-1].when - self.counted[0].when

    @property
    def rate(self) -> float:
        """Samples a second in that time."""
        return sum(each.outcomes for each in self.counted[1:]) / self.span

    @property
    def busy(self) -> float:
        """The share of that time in which a store worked."""
        return sum(each.took for each in self.counted[1:]) / self.span / self.stores


def _let_go(run: simpy.Resource, turn: Any) -> None:
    turn.cancel()
    run.release(turn)


# --- the cost of a transaction ------------------------------------------------------------------


def measured(place: str, asks: bool) -> Cost:
    """Return A and B in seconds, from transactions of 1 and of `GROUP` outcomes with their new samples."""
    chance, numbers = random.Random(1), count()
    with Store.open(place) as store:
        run = new_run(store, REPEATS * (GROUP + 1))

        def transaction(size: int) -> float:
            new = [replace(each, id=f"s{next(numbers)}") for each in samples(chance, size)]
            rows = [SampleRow.of(each) for each in new]
            said = [outcome(chance, each.id) for each in new]
            if not asks:
                said = [replace(each, steps=()) for each in said]
            return timed(lambda: store.add_outcomes(run, said, samples=rows))[0]

        one, many = (median(transaction(size) for _ in range(REPEATS)) for size in (1, GROUP))
    each = (many - one) / (GROUP - 1)
    return one - each, each


def connections(url: str) -> int:
    """Return how many connections to a server one worker has while it judges a share."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    with closing(connect(url)) as own, Store.open(url) as store:
        run = new_run(store, 1)
        with store.hold(run, 1):
            store.judged(run)
            return int(own.execute(asked).fetchone()[0]) - 1


# --- what is printed ----------------------------------------------------------------------------


def capacity(group: int, cost: Cost) -> float:
    """Return the outcomes a second that one store takes in groups of this size."""
    return group / (cost[0] + cost[1] * group)


def limit(load: Load, cost: Cost, group: int) -> float:
    """Return how many workers fill all the time of one store with groups of this size."""
    return 1 + capacity(group, cost) / load.rate


def growing(name: str, load: Load, asked: argparse.Namespace, cost: Cost) -> None:
    """Print how fast more and more workers are, and where the store is the limit."""
    print(f"### {name}: {load.rate:,.1f} samples a second and worker\n")
    print("| workers | samples a second | of the linear rate | store busy | wait, median ms | 95 % ms |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for workers in map(int, asked.workers):
        n = workers * (asked.samples or load.samples)
        done = Cluster(load=load, workers=workers, n=n, cost=cost, seed=asked.seed, stores=asked.stores).run()
        waits = sorted(1000 * each.waited for each in done.counted if each.outcomes)
        share = f"{done.rate:,.0f} | {done.rate / workers / load.rate:.0%} | {done.busy:.0%}"
        print(f"| {workers:,} | {share} | {median(waits):,.1f} | {waits[int(0.95 * len(waits))]:,.1f} |")
    first, last = (asked.stores * limit(load, cost, group) for group in (1, load.group))
    most, ever = asked.stores * capacity(load.group, cost), asked.stores / cost[1]
    if not load.serial:
        print(f"\n{first:,.0f} workers fill the store; more make the groups larger.", end="")
    print(f"\nFrom {last:,.0f} workers on the store is the limit, and more add nothing.")
    print(
        f"It takes {most:,.0f} outcomes a second, {load.group} at once; {ever:,.0f} however many at once.\n"
    )


def dying(asked: argparse.Namespace, costs: dict[bool, Cost]) -> None:
    """Print what it costs when some of the workers die half-way."""
    print(f"### {asked.die:.0%} of {asked.dying} workers die half-way\n")
    print(
        "| judge | what dies | refused: locked | ended: no turn | judged twice | lost | doubled | seconds |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, load in JUDGES.items():
        n, cost = asked.dying * (asked.samples or load.samples), costs[load.asks]
        whole = Cluster(load=load, workers=asked.dying, n=n, cost=cost, seed=asked.seed, stores=asked.stores)
        least = whole.run().seconds
        for dies in ("process", "host"):
            done = replace(whole, die=asked.die, dies=dies).run()
            counts = (
                f"{done.refused} | {done.ended} | {done.lost:,} | {n - len(done.stored)} | {done.doubled}"
            )
            print(f"| {name} | {dies} | {counts} | {least:,.0f} → {done.seconds:,.0f} |")
    print()


def numbers(words: str) -> list[float]:
    return [float(each) for each in words.split(",")]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=numbers, default=[1, 10, 100, 400])
    parser.add_argument("--samples", type=int, help="of a worker; by default another number for each judge")
    parser.add_argument("--die", type=float, default=0.1, help="the share of the workers that dies")
    parser.add_argument("--dying", type=int, default=100, help="the workers of whom some die")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stores", type=int, default=1)
    parser.add_argument("--store-ms", type=numbers, metavar="A,B", help="the cost of a transaction")
    parser.add_argument("--measure", action="store_true", help="measure the cost on SQLite, now and here")
    parser.add_argument("--postgres", metavar="URL", help="with --measure: an empty database, used instead")
    return parser


def main() -> None:
    asked = parser().parse_args()
    print(f"{head()}; seed {asked.seed}, stores: {asked.stores}")
    costs, origin = ASSUMED, "assumed"
    if asked.store_ms:
        once, each = asked.store_ms
        costs, origin = dict.fromkeys((False, True), (once / 1000, each / 1000)), "given"
    elif asked.measure:
        origin = f"measured on {'PostgreSQL' if asked.postgres else 'SQLite'}"
        with tempfile.TemporaryDirectory() as folder:
            place = asked.postgres or f"{folder}/runs.db"
            costs = {asks: measured(place, asks) for asks in (False, True)}
    for asks, (once, each) in costs.items():
        what = "outcomes with the calls of a model" if asks else "outcomes of code"
        print(f"{what}: A = {1000 * once:.2f} ms, B = {1000 * each:.3f} ms ({origin})")
    if asked.postgres:
        print(f"connections of a worker: {connections(asked.postgres)}")
    print(f"Assumed: seconds with a lognormal spread of {SPREAD}; a process starts in {START:g} s, and again")
    print(f"after {BACKOFF:g} s, then twice as many each time. The server notices a vanished host after")
    print(f"{noticed_after():g} s, and a transaction waits {BUSY:g} s for its turn.\n")
    for name, load in JUDGES.items():
        growing(name, load, asked, costs[load.asks])
    dying(asked, costs)


if __name__ == "__main__":
    main()
