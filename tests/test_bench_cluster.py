"""`benchmarks.cluster`: every sample is stored once, and the rates are those of the closed form."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from random import Random
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import cluster
from benchmarks.cluster import Cluster, Load, Work, capacity, limit, noticed_after, shares
from magistrate.engines.base import CONCURRENCY, Engine
from magistrate.engines.none import NONE
from magistrate.judges.base import JudgeInfo
from magistrate.runs.execute import GROUP, stream_groups
from magistrate.store.shares import Part
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Sample, Verdict

SLOW = Load(0.4, 4, 40)
QUICK = Load(0.001, GROUP, 1500, serial=True)
COST = (0.002, 0.0001)


def some(load: Load = SLOW, workers: int = 10, *, n: int = 0, cost: cluster.Cost = COST) -> Cluster:
    return Cluster(load=load, workers=workers, n=n or workers * load.samples, cost=cost)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    dies=st.sampled_from(("process", "host")),
    die=st.sampled_from((0.0, 0.1, 0.5, 1.0)),
    ms=st.sampled_from((0.0, 2.0, 100.0)),
    serial=st.booleans(),
)
def test_every_sample_is_stored_once_whatever_dies(
    seed: int, dies: str, die: float, ms: float, serial: bool
) -> None:
    load = Load(0.02, 8, 30, serial=serial)
    done = replace(some(load, 8, cost=(ms / 1000, ms / 10_000)), seed=seed, dies=dies, die=die).run()
    assert done.stored == dict.fromkeys(range(done.n), 1) and done.doubled == 0
    assert sum(each.outcomes for each in done.commits) == done.n
    assert not done.judging
    if not die:
        assert (done.refused, done.ended, done.lost) == (0, 0, 0)


def test_a_share_that_two_processes_judge_is_seen_as_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "shares", lambda n, of: (tuple(range(n)),) * of)
    done = some(workers=2, n=20).run()
    assert done.doubled == 20


def test_workers_do_not_disturb_each_other_while_the_store_is_idle() -> None:
    cost = (1e-6, 0.0)
    for load in (SLOW, replace(QUICK, samples=5000)):
        rates = {workers: some(load, workers, cost=cost).run().rate for workers in (1, 20)}
        assert rates[20] == pytest.approx(20 * load.rate, rel=0.05)
        assert rates[1] == pytest.approx(load.rate, rel=0.15)


@pytest.mark.parametrize("load", [SLOW, QUICK])
def test_a_full_store_takes_what_the_closed_form_says_and_never_more(load: Load) -> None:
    cost = (0.03, 0.002)
    load = replace(load, samples=4 * load.samples)  # the first, smaller groups weigh little
    workers = round(4 * limit(load, cost, load.group))
    done = some(load, workers, n=workers * load.samples, cost=cost).run()
    noting = sum(each.took for each in done.counted if not each.outcomes) / done.span
    most = capacity(load.group, cost) * (1 - noting)
    assert 0.95 * most < done.rate < 1.02 * most and done.rate < 1 / cost[1]
    assert done.busy == pytest.approx(1, abs=0.02)
    least = sum(each.took for each in done.commits)
    assert least <= done.seconds


def test_more_stores_take_more() -> None:
    cost = (0.03, 0.002)
    one, four = (replace(some(workers=60, cost=cost), stores=stores).run().rate for stores in (1, 4))
    assert one < capacity(SLOW.group, cost) * 1.02 < 2.5 * one < four


def test_a_transaction_of_a_worker_makes_only_it_wait() -> None:
    done = some(QUICK, 1, cost=(0.1, 0.0)).run()
    assert all(each.waited == 0 for each in done.commits)
    groups = [each.outcomes for each in done.commits if each.outcomes]
    assert groups == [GROUP] * (QUICK.samples // GROUP)
    assert done.seconds > 1500 * 0.0009 + len(done.commits) * 0.1


def test_a_process_is_started_again_at_once_and_a_host_is_refused_until_the_server_notices() -> None:
    whole = some(workers=20)
    calm = whole.run()
    process, host = (replace(whole, die=0.1, dies=dies).run() for dies in ("process", "host"))
    assert (process.refused, process.ended) == (0, 0)
    # Two hosts are refused after 15, 40 and 85 seconds; the fourth try is later than 120.
    assert noticed_after() == 120 and host.refused == 2 * 3
    # A process has at most as many in progress again as wait in the transaction.
    assert 0 < process.lost <= 2 * 2 * SLOW.in_flight
    assert calm.seconds < process.seconds < calm.seconds + 2 * (cluster.BACKOFF + cluster.START)
    assert host.seconds > calm.seconds / 2 + noticed_after()


def test_a_host_that_vanishes_in_a_transaction_keeps_the_others_from_theirs() -> None:
    done = replace(some(workers=20, cost=(0.2, 0.01)), die=0.2, dies="host").run()
    assert done.ended >= 16, "the others wait for their turn longer than the store's patience"
    assert done.stored.total() == done.n


def test_the_same_seed_gives_the_same_run() -> None:
    one, same, other = (replace(some(), seed=seed, die=0.2, dies="host").run() for seed in (5, 5, 6))
    assert one.commits == same.commits and one.lost == same.lost
    assert one.commits != other.commits


def test_shares_and_groups_are_those_of_the_program() -> None:
    for share, numbers in enumerate(shares(200, 7), 1):
        assert numbers == tuple(n for n in range(200) if Part.parse(f"{share}/7").has(f"s{n}"))

    @dataclass(frozen=True)
    class Given:
        threads: bool
        info: ClassVar[JudgeInfo] = JudgeInfo(
            name="given", kind="code", labels=(FAITHFUL, HALLUCINATED), threshold=0.5, requires=("output",)
        )

        async def judge(self, sample: Sample, engine: Engine) -> Outcome:
            if self.threads:
                await asyncio.sleep(0.001 * (1 + int(sample.id) % 7))
            return Verdict(sample.id, "given", FAITHFUL, 0.1)

    async def sizes(n: int, threads: bool) -> list[int]:
        given = [Sample(str(number), "output", ("context",)) for number in range(n)]
        return [len(group) async for group in stream_groups(given, [Given(threads)], NONE)]

    assert asyncio.run(sizes(2 * GROUP, False)) == [GROUP, GROUP]
    assert max(asyncio.run(sizes(2 * GROUP, True))) <= 4 * CONCURRENCY < GROUP


def test_a_sample_that_was_begun_and_not_stored_is_counted_once() -> None:
    work = Work(SLOW, Random(1))
    work.left.extend(range(10))
    work.begin(0.0)
    assert work.unstored(0.0) == 4 == len(work.begun)
    work.take(max(work.begun)[0])
    assert (len(work.taken), len(work.begun), work.unstored(9.0)) == (4, 0, 4)


def test_the_cost_of_a_transaction_is_measured(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "REPEATS", 1)
    once, each = cluster.measured(f"{tmp_path}/runs.db", asks=True)
    assert 0 < each < 0.01 and each < once + each


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["cluster", "--workers", "1,4", "--samples", "60", "--dying", "4", "--store-ms", "2,0.1"]
    monkeypatch.setattr(cluster, "JUDGES", {"slow": SLOW})
    monkeypatch.setattr("sys.argv", words)
    cluster.main()
    told = capsys.readouterr().out
    assert "A = 2.00 ms, B = 0.100 ms (given)" in told
    assert told.count("| slow | ") == 2
    rows = [line.split("|") for line in told.splitlines() if line.startswith("| slow")]
    assert all([cell.strip() for cell in row[6:8]] == ["0", "0"] for row in rows)
