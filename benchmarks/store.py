"""How fast runs are stored and queried in a store of many, compared with the bare driver.

Run: python benchmarks/store.py [--store PATH|postgresql://…] [--outcomes 1000000] [--runs 1000]

The store must be new. It is kept, unless it is the default, a file in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from magistrate.store import Store
from magistrate.types import Recipe, Sample, Step, Usage, Verdict

REPEATS = 7
SETS = 10
WORDS = ("refund", "order", "late", "parcel", "invoice", "within", "thirty", "days", "customer", "never")
TYPES = {float: "DOUBLE PRECISION", int: "BIGINT"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store")
    parser.add_argument("--outcomes", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--singles", type=int, default=2000, help="outcomes stored one by one")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = asked.store or f"{folder}/runs.db"
        measure(place, folder, asked.runs, asked.outcomes // asked.runs, asked.singles)


def measure(place: str, folder: str, n_runs: int, size: int, n_singles: int) -> None:
    """Fill the store at `place` and print the results; `folder` is for the bare driver's file."""
    chance = random.Random(0)
    moments = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(10**9))
    sets = [samples(chance, size) for _ in range(SETS)]
    pool = [outcome(chance, "") for _ in range(200)]
    with Store.open(place, clock=lambda: next(moments), randomness=chance) as store:
        if store.runs(limit=1):
            raise SystemExit(f"{store.shown} holds runs already; name a new store")
        begin = time.perf_counter()
        for number in range(n_runs):
            run = start(store, number, sets[number % SETS])
            store.add_outcomes(run, (named(chance.choice(pool), f"s{i}") for i in range(size)))
            if number % 7:
                store.finish_run(run, "done")
        filled = n_runs * size / (time.perf_counter() - begin)
        settle(place)
        print(f"{head()}, {'PostgreSQL' if '://' in place else 'SQLite'}; {n_runs * size:,} outcomes in")
        print(f"{n_runs:,} runs, {len(steps_of(pool)):,} bytes of steps each; {stored(place) / 1e9:.1f} GB\n")
        writing(store, folder, samples(chance, n_singles), pool, filled)
        print()
        reading(store, size)


# --- what is stored -----------------------------------------------------------------------------


def samples(chance: random.Random, size: int) -> list[Sample]:
    def text(words: int) -> str:
        return " ".join(chance.choices(WORDS, k=words))

    return [Sample(f"s{i}", text(40), (text(150), text(150)), text(10)) for i in range(size)]


def outcome(chance: random.Random, sample_id: str) -> Verdict:
    score = chance.random()
    prompt = (
        ("system", " ".join(chance.choices(WORDS, k=80))),
        ("user", " ".join(chance.choices(WORDS, k=400))),
    )
    step = Step("choose", prompt, {"faithful": score, "hallucinated": 1 - score}, Usage(1, 520, 80, 1), 0.2)
    label = "faithful" if score < 0.5 else "hallucinated"
    return Verdict(sample_id, "faithfulness", label, score, usage=step.usage, seconds=0.2, steps=(step,))


def named(verdict: Verdict, sample_id: str) -> Verdict:
    return Verdict(
        sample_id,
        verdict.judge,
        verdict.label,
        verdict.score,
        usage=verdict.usage,
        seconds=verdict.seconds,
        steps=verdict.steps,
    )


def start(store: Store, number: int, contents: Sequence[Sample]) -> str:
    run = store.create_run(
        dataset=f"set{number % SETS}",
        dataset_digest=f"{number % SETS:064x}",
        model="tiny",
        engine_fingerprint="f" * 64,
        recipes={"faithfulness": Recipe("faithfulness@1", "tiny", "f" * 64, "p@1", "choice", 0, 3, "0.1")},
        name=f"run {number}",
        n_total=len(contents),
        tags=["nightly"] if number % 2 else [],
    )
    store.add_samples(run, contents)
    return run


def steps_of(pool: Sequence[Verdict]) -> str:
    from magistrate.store.codec import steps_body

    return steps_body(pool[0].steps)


# --- writing ------------------------------------------------------------------------------------


def writing(
    store: Store, folder: str, contents: Sequence[Sample], pool: Sequence[Verdict], filled: float
) -> None:
    """Measure outcomes per second, compared with the bare driver inserting the same rows."""
    outcomes = [named(pool[place % len(pool)], sample.id) for place, sample in enumerate(contents)]
    run = start(store, 1, contents)
    begin = time.perf_counter()
    for each in outcomes:
        store.add_outcome(run, each)
    singles = len(outcomes) / (time.perf_counter() - begin)
    run = start(store, 1, contents)
    begin = time.perf_counter()
    store.add_outcomes(run, outcomes)
    bulk = len(outcomes) / (time.perf_counter() - begin)
    bare_singles, bare_bulk = bare(store.place, folder, run)
    print("| stored a second | Magistrate | bare driver | ratio |\n| --- | ---: | ---: | ---: |")
    rows = (("one by one, each committed", singles, bare_singles), ("500 a transaction", bulk, bare_bulk))
    for what, ours, theirs in rows:
        print(f"| {what} | {ours:,.0f} | {theirs:,.0f} | {theirs / ours:.1f} |")
    print(f"\nThe whole store was filled at {filled:,.0f} outcomes a second, samples included.")


def bare(place: str, folder: str, run: str) -> tuple[float, float]:
    """Return the driver's rows per second, one per commit and 500 per commit, without extra indexes."""
    with closing(connect(place)) as connection:
        mark = "%s" if "://" in place else "?"
        cursor = connection.cursor()
        cursor.execute(f"SELECT * FROM outcomes WHERE run_id = {mark}", [run])
        rows = cursor.fetchall()
        cursor.execute(
            f"SELECT s.* FROM steps s JOIN outcomes o ON o.id = s.outcome_id WHERE o.run_id = {mark}", [run]
        )
        steps = dict(cursor.fetchall())
        connection.rollback()
    with closing(connect(place if "://" in place else f"{folder}/bare.db")) as connection:
        cursor = connection.cursor()
        columns = ", ".join(f"c{n} {TYPES.get(type(value), 'TEXT')}" for n, value in enumerate(rows[0]))
        cursor.execute(f"CREATE TABLE bare_outcomes ({columns}, PRIMARY KEY (c0))")
        cursor.execute("CREATE TABLE bare_steps (id BIGINT PRIMARY KEY, body TEXT)")
        connection.commit()
        marks = ", ".join([mark] * len(rows[0]))
        into = f"INSERT INTO bare_outcomes VALUES ({marks})"
        into_steps = f"INSERT INTO bare_steps VALUES ({mark}, {mark})"
        begin = time.perf_counter()
        for row in rows:
            cursor.execute(into, row)
            cursor.execute(into_steps, (row[0], steps[row[0]]))
            connection.commit()
        singles = len(rows) / (time.perf_counter() - begin)
        for table in ("bare_outcomes", "bare_steps"):
            cursor.execute(f"DELETE FROM {table}")
        connection.commit()
        begin = time.perf_counter()
        for first in range(0, len(rows), 500):
            chunk = rows[first : first + 500]
            cursor.executemany(into, chunk)
            cursor.executemany(into_steps, [(row[0], steps[row[0]]) for row in chunk])
            connection.commit()
        bulk = len(rows) / (time.perf_counter() - begin)
        for table in ("bare_outcomes", "bare_steps"):
            cursor.execute(f"DROP TABLE {table}")
        connection.commit()
        return singles, bulk


def connect(place: str) -> Any:
    if "://" in place:
        import psycopg

        return psycopg.connect(place)
    connection = sqlite3.connect(place)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


# --- reading ------------------------------------------------------------------------------------


def reading(store: Store, size: int) -> None:
    """Measure the milliseconds of the queries of the command line and the pages."""
    some = store.runs()[len(store.runs()) // 2]
    doomed: Iterator[str] = iter([record.id for record in store.runs(tag="nightly")][2 : REPEATS + 2])

    def report() -> None:
        with store.snapshot() as moment:
            moment.record(some.id)
            assert len(list(moment.samples(some.id))) == size
            assert len(list(moment.outcomes(some.id))) == size

    questions: dict[str, Callable[[], object]] = {
        "the newest 20 runs, with counts": lambda: store.runs(limit=20),
        "the newest 50 runs, with counts": lambda: store.runs(limit=50),
        "all runs, with counts": store.runs,
        "a run by its name": lambda: store.find_run(some.name or ""),
        "a run by the beginning of its id": lambda: store.find_run(some.id[:-1]),
        "unfinished runs of a data set": lambda: store.unfinished(some.dataset_digest),
        "what is judged in a run": lambda: store.judged(some.id),
        "a report's input: record, samples, outcomes": report,
        "one sample": lambda: store.sample(some.id, f"s{size // 2}"),
        "one sample's outcomes with steps": lambda: list(
            store.outcomes(some.id, sample_id=f"s{size // 2}", with_steps=True)
        ),
        "is somebody judging it": lambda: store.held(some.id),
        "delete a run": lambda: store.delete(next(doomed)),
    }
    print(f"| question, runs of {size:,} outcomes | ms |\n| --- | ---: |")
    for words, question in questions.items():
        taken = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            question()
            taken.append(1000 * (time.perf_counter() - begin))
        print(f"| {words} | {median(taken):.1f} |")


# --- where --------------------------------------------------------------------------------------


def settle(place: str) -> None:
    """Let the server do its background maintenance now."""
    if "://" in place:
        with closing(connect(place)) as connection:
            connection.autocommit = True
            connection.execute("VACUUM ANALYZE")


def stored(place: str) -> int:
    """Return the bytes on disk."""
    if "://" not in place:
        return sum(
            Path(f"{place}{end}").stat().st_size for end in ("", "-wal") if Path(f"{place}{end}").exists()
        )
    with closing(connect(place)) as connection:
        return int(connection.execute("SELECT pg_database_size(current_database())").fetchone()[0])


def head() -> str:
    """Return the commit and the machine."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    return f"{commit or 'no commit'}, {platform.machine()}, {os.cpu_count()} cores"


if __name__ == "__main__":
    main()
