"""A run can be stopped, held, seen at one moment and gone on with, in a file as on a server."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from magistrate.errors import SpecError, StoreError
from magistrate.store import Store
from magistrate.types import Abstention, Failure, Sample, Step, Usage, Verdict

NOON = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
STEP = Step("choose", (("user", "?"),), {"p": 0.5}, Usage(1), 0.1)


@pytest.fixture
def store(place: str) -> Iterator[Store]:
    moments = (NOON + timedelta(seconds=second) for second in count())
    with Store.open(place, clock=lambda: next(moments), randomness=random.Random(1)) as opened:
        yield opened


def start(store: Store, n: int = 0, **given: Any) -> str:
    words: dict[str, Any] = {
        "dataset": "quickstart",
        "dataset_digest": "d" * 64,
        "model": "tiny",
        "engine_fingerprint": "f" * 64,
        "recipes": {},
    }
    run = store.create_run(**(words | given))
    store.add_samples(run, [Sample(f"s{i}", f"output {i}") for i in range(n)])
    return run


def program(source: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", source, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


# --- what is left to do -------------------------------------------------------------------------


def test_what_is_judged_and_what_failed_is_known(store: Store) -> None:
    run, other = start(store, 3), start(store, 3)
    assert (store.judged(run), store.failed(run)) == (set(), {})
    store.add_outcome(run, Verdict("s0", "a", "faithful", 0.1))
    store.add_outcome(run, Failure("s1", "a", "timeout", "slow"))
    store.add_outcome(run, Abstention("s0", "b\0", "no_context", "nothing to judge by"))
    assert store.judged(run) == {("s0", "a"), ("s1", "a"), ("s0", "b\0")}
    assert set(store.failed(run)) == {("s1", "a")}
    assert (store.judged(other), store.failed(other)) == (set(), {})
    for question in (store.judged, store.failed, store.attempts):
        with pytest.raises(SpecError, match="unknown run 'nope'"):
            question("nope")


def test_a_failure_gives_way_to_what_comes_after_it_and_nothing_else_does(store: Store) -> None:
    run = start(store, 2)
    failure = Failure("s0", "j", "timeout", "slow", steps=(STEP,))
    verdict = Verdict("s0", "j", "faithful", 0.1)
    store.add_outcome(run, failure, replace_failure=True)
    assert store.attempts(run) == {}
    with pytest.raises(StoreError, match="already has an outcome of judge 'j' for sample 's0'"):
        store.add_outcome(run, verdict)
    store.add_outcome(run, failure, replace_failure=True)
    assert store.attempts(run) == {("s0", "j"): 2}
    assert list(store.outcomes(run, with_steps=True)) == [failure]
    store.add_outcome(run, verdict, replace_failure=True)
    assert store.attempts(run) == {("s0", "j"): 3}
    assert list(store.outcomes(run, with_steps=True)) == [verdict]
    for again in (failure, verdict):
        with pytest.raises(StoreError, match="already has an outcome of judge 'j' for sample 's0'"):
            store.add_outcome(run, again, replace_failure=True)
    assert list(store.outcomes(run)) == [verdict]
    with pytest.raises(SpecError, match="has no sample 's9'"):
        store.add_outcome(run, Verdict("s9", "j", "faithful", 0.1), replace_failure=True)


def test_a_refused_replacement_leaves_the_failure(store: Store) -> None:
    run = start(store, 1)
    failure = Failure("s0", "j", "timeout", "slow", steps=(STEP,))
    store.add_outcome(run, failure)
    too_large = Verdict("s0", "j", "faithful", 0.1, usage=Usage(2**63))
    with pytest.raises(StoreError):
        store.add_outcome(run, too_large, replace_failure=True)
    assert list(store.outcomes(run, with_steps=True)) == [failure]
    assert store.attempts(run) == {}


def test_a_run_says_why_it_stopped_until_it_goes_on(store: Store) -> None:
    run = start(store, 1, dataset_version="refunds@2")
    assert store.find_run(run).dataset_version == "refunds@2"
    store.finish_run(run, "interrupted", reason="budget: 5 $ spent\0")
    stopped = store.find_run(run)
    assert (stopped.status, stopped.reason) == ("interrupted", "budget: 5 $ spent\0")
    assert stopped.finished_at is not None
    store.reopen_run(run)
    going = store.find_run(run)
    assert (going.status, going.reason, going.finished_at) == ("running", None, None)
    store.finish_run(run, "failed", reason="the engine is gone")
    store.finish_run(run, "done")
    assert (store.find_run(run).status, store.find_run(run).reason) == ("done", None)
    with pytest.raises(SpecError, match="unknown run 'nope'"):
        store.reopen_run("nope")


def test_unfinished_runs_are_found_by_the_digest_of_their_data(store: Store) -> None:
    done, stopped, running = start(store), start(store), start(store)
    start(store, dataset_digest="e" * 64)
    store.finish_run(done, "done")
    store.finish_run(stopped, "interrupted")
    assert [record.id for record in store.unfinished("d" * 64)] == [running, stopped]
    assert store.unfinished("c" * 64) == []


def test_a_sample_made_anew_replaces_the_old_one_and_leaves_nothing_behind(store: Store) -> None:
    run, other = start(store, 2), start(store, 2)
    store.replace_sample(run, Sample("s1", "made anew"))
    store.replace_sample(run, Sample("s1", "and again"))
    assert [sample.output for sample in store.samples(run)] == ["output 0", "and again"]
    assert [sample.output for sample in store.samples(other)] == ["output 0", "output 1"]
    with pytest.raises(SpecError, match="has no sample 's9'"):
        store.replace_sample(run, Sample("s9", "text"))
    store.delete(other)
    assert [sample.output for sample in store.samples(run)] == ["output 0", "and again"]


# --- many at once -------------------------------------------------------------------------------


def test_many_outcomes_are_stored_as_one_by_one(store: Store) -> None:
    one, many = start(store, 1200), start(store, 1200)
    outcomes = [Verdict(f"s{i}", "j", "faithful", i / 1200, steps=(STEP,) * (i % 3)) for i in range(1200)]
    outcomes.append(Failure("s7", "k", "timeout", "slow"))  # type: ignore[arg-type]
    for outcome in outcomes[:50]:
        store.add_outcome(one, outcome)
    assert store.add_outcomes(one, outcomes[50:]) == 1151
    assert store.add_outcomes(many, iter(outcomes)) == 1201
    assert list(store.outcomes(one, with_steps=True)) == list(store.outcomes(many, with_steps=True))
    assert len(store.judged(many)) == 1201


def test_of_many_outcomes_the_wrong_one_is_named_and_its_500_are_not_stored(store: Store) -> None:
    run = start(store, 1000)
    outcomes = [Verdict(f"s{i}", "j", "faithful", 0.5) for i in range(1000)]
    with pytest.raises(StoreError, match="already has an outcome of judge 'j' for sample 's3'"):
        store.add_outcomes(run, [*outcomes[:700], outcomes[3]])
    assert len(store.judged(run)) == 500
    with pytest.raises(StoreError, match="already has an outcome of judge 'j' for sample 's600'"):
        store.add_outcomes(run, [outcomes[600], outcomes[601], outcomes[600]])
    with pytest.raises(SpecError, match="has no sample 's1000'; add samples before"):
        store.add_outcomes(run, [outcomes[600], Verdict("s1000", "j", "faithful", 0.5)])
    assert len(store.judged(run)) == 500


# --- one moment ---------------------------------------------------------------------------------


def test_a_snapshot_is_of_one_moment_whatever_is_written_meanwhile(store: Store, place: str) -> None:
    run = start(store, 600)
    store.add_outcome(run, Verdict("s0", "j", "faithful", 0.5))
    with store.snapshot() as moment, Store.open(place) as writer:
        assert moment.record(run).n_outcomes == 1
        writer.add_samples(run, [Sample("late", "text")])
        writer.add_outcomes(run, [Verdict(name, "j", "faithful", 0.5) for name in ("late", "s1")])
        samples, outcomes = moment.samples(run), moment.outcomes(run, with_steps=True)
        assert next(samples).id == next(outcomes).sample_id == "s0"
        assert len(list(samples)) == 599
        assert list(outcomes) == []
        assert moment.record(run).n_samples == 600
        with pytest.raises(SpecError, match="unknown run 'nope'"):
            moment.outcomes("nope")
    with store.snapshot() as moment:
        assert len(list(moment.outcomes(run, judge="j"))) == 3
        assert [outcome.sample_id for outcome in moment.outcomes(run, sample_id="late")] == ["late"]


GROWER = """
import sys
from magistrate.store import Store
from magistrate.types import Sample, Verdict

place, run = sys.argv[1:]
with Store.open(place) as store:
    print("on", flush=True)
    for number in range(300):
        store.add_samples(run, [Sample(f"s{number}", "text")])
        store.add_outcome(run, Verdict(f"s{number}", "j", "faithful", 0.5))
"""


@pytest.mark.full
def test_a_reader_of_a_growing_run_never_sees_an_outcome_without_its_sample(store: Store, place: str) -> None:
    run = start(store)
    seen = []
    with program(GROWER, place, run) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        while writer.poll() is None:
            with store.snapshot() as moment:
                outcomes = [outcome.sample_id for outcome in moment.outcomes(run)]
                samples = [sample.id for sample in moment.samples(run)]
                assert moment.record(run).n_outcomes == len(outcomes)
            assert samples[: len(outcomes)] == outcomes
            assert len(outcomes) <= len(samples) <= len(outcomes) + 1
            seen.append(len(outcomes))
    assert writer.returncode == 0
    assert any(0 < number < 300 for number in seen)


# --- who is at work -----------------------------------------------------------------------------

HOLDER = """
import sys
from magistrate.store import Store

place, run = sys.argv[1:]
with Store.open(place) as store, store.hold(run):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_one_process_at_a_time_judges_a_run(store: Store, place: str) -> None:
    run, other = start(store), start(store)
    with program(HOLDER, place, run) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert store.held(run)
        assert not store.held(other)
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"run {run} is being judged by another process") as caught:
                store.hold(run)
            assert f"(pid {holder.pid} on " in str(caught.value)
            assert str(caught.value).endswith("wait for it or stop it")
        with store.hold(other):
            assert store.held(other)
        holder.communicate("end\n")
    assert not store.held(run)
    with store.hold(run):
        assert store.held(run)


def test_kill_9_frees_the_run(store: Store, place: str) -> None:
    run = start(store)
    with program(HOLDER, place, run) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    if "://" in place:
        # The server learns of it from the closed connection, a moment later.
        wait_until(lambda: not store.held(run))
    with store.hold(run):
        assert store.held(run)
    assert not store.held(run)


def wait_until(true: Any) -> None:
    import time

    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_run_is_held_once_in_one_process_too_and_let_go_once(store: Store, place: str) -> None:
    run = start(store)
    lock = store.hold(run)
    with Store.open(place) as other, pytest.raises(StoreError, match=f"pid {os.getpid()} on"):
        other.hold(run)
    lock.release()
    with store.hold(run):
        lock.release()
        assert store.held(run)
    assert not store.held(run)
    with pytest.raises(SpecError, match="unknown run 'nope'"):
        store.hold("nope")
    assert not store.held("nope")
    assert not store.held("../../etc/passwd\0")


def test_locks_leave_nothing_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as store:
        run, other = start(store), start(store)
        with store.hold(run), store.hold(other):
            locks = sorted(each.name for each in tmp_path.glob("*.lock"))
            assert locks == sorted([f"runs.db-{run}.lock", f"runs.db-{other}.lock"])
        assert not list(tmp_path.glob("*.lock"))
        (tmp_path / "same.db").symlink_to(path)
        with Store.open(tmp_path / "same.db") as same, same.hold(run):
            assert store.held(run)
            with pytest.raises(StoreError, match="is being judged"):
                store.hold(run)
        with program(HOLDER, str(path), run) as holder:
            assert holder.stdout is not None
            holder.stdout.readline()
            os.kill(holder.pid, signal.SIGKILL)
        assert not store.held(run)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["runs.db", "same.db"]


RACER = """
import sys, time
from magistrate.errors import StoreError
from magistrate.store import Store

place, run = sys.argv[1:]
with Store.open(place) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(60):
        try:
            with store.hold(run):
                with open(place + ".turn", "x"):
                    time.sleep(0.001)
                import os
                os.unlink(place + ".turn")
        except StoreError as error:
            assert "is being judged" in str(error), error
        store.held(run)
"""


@pytest.mark.full
def test_a_lock_file_that_comes_and_goes_never_has_two_holders(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with Store.open(path) as store:
        run = start(store)
    racers = [program(RACER, str(path), run) for _ in range(3)]
    for racer in racers:
        assert racer.stdout is not None
        racer.stdout.readline()
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate()
    assert [racer.returncode for racer in racers] == [0] * 3


def test_a_lock_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    with Store.open(tmp_path / "runs.db") as store:
        run = start(store)
        (tmp_path / f"runs.db-{run}.lock").mkdir()
        with pytest.raises(StoreError, match=r"the lock file .* cannot be created"):
            store.hold(run)
