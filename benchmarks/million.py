"""A run of a million samples on a laptop: how fast it is written, and what its report and its page cost.

Run: python -m benchmarks.million [--outcomes 1000000] [--written 20000] [--postgres URL] [--store PATH]

Writing runs `execute_run`, as `magistrate run` does, with a judge that takes no time, over stored samples and
over new ones; its peer is the bare driver, which inserts as many rows of outcomes, 500 a transaction. Then a
store is filled with synthetic outcomes by the driver. The report's peer reads gold labels and scores of the
same outcomes with plain `sqlite3` and calls scikit-learn's `roc_auc_score`. Every reading is made in a
process of its own; its memory is the peak beyond what the imports took. Seconds are those of the processor
if the machine is busy: both are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import ClassVar

from benchmarks.store import TYPES, connect, head
from magistrate.engines.base import Engine
from magistrate.engines.none import NONE
from magistrate.judges.base import JudgeInfo
from magistrate.runs.prepare import RunPlan
from magistrate.runs.spec import RunSpec
from magistrate.runs.writer import WorkList, execute_run
from magistrate.store import Store
from magistrate.store.codec import context_number, sample_body, sample_key
from magistrate.types import FAITHFUL, HALLUCINATED, Outcome, Recipe, Sample, Scoring, Verdict

WORDS = ["refund", "order", "late", "parcel", "invoice", "within", "thirty", "days", "customer", "never"]
SAMPLES_A_CONTEXT = 4
AT_ONCE = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outcomes", type=int, default=1_000_000, help="outcomes of the stored run")
    parser.add_argument("--written", type=int, default=20_000, help="outcomes written by a run")
    parser.add_argument("--postgres", help="URL of an empty database to write to as well")
    parser.add_argument("--store", help="where the large run is kept; a temporary file by default")
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.read:
        print(json.dumps(measured(*asked.read)))
        return
    print(f"{head()}\n")
    with tempfile.TemporaryDirectory() as folder:
        if asked.written:
            print("| written, outcomes | a second | a second of processor | bare driver a second | ratio |")
            print("| --- | ---: | ---: | ---: | ---: |")
            for place in filter(None, (f"{folder}/written.db", asked.postgres)):
                writing(place, folder, asked.written)
            print()
        place = asked.store or f"{folder}/million.db"
        for name, labelled in (("labelled", True), ("unlabelled", False)):
            reading(place, name, asked.outcomes, labelled)


# --- writing ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quick:
    """Judges in no time, so that only the run's own work is measured."""

    info: ClassVar[JudgeInfo] = JudgeInfo(
        name="quick", kind="code", labels=(FAITHFUL, HALLUCINATED), threshold=0.5, requires=("output",)
    )

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        score = len(sample.id) * 37 % 101 / 100
        return Verdict(sample.id, "quick", HALLUCINATED if score >= 0.5 else FAITHFUL, score)


def writing(place: str, folder: str, n: int) -> None:
    """Print how many outcomes a second a run writes: over stored samples, and over new ones."""
    chance = random.Random(0)
    samples = [sample(chance, number, labelled=True) for number in range(n)]
    plan = RunPlan(spec=RunSpec(dataset="many"), judges=[Quick()], engine=NONE, objects=("judges",))
    kind = "PostgreSQL" if "://" in place else "SQLite"
    with Store.open(place) as store:
        rates = {}
        for what, before in (("samples stored before", True), ("and their samples", False)):
            run = new_run(store, n)
            if before:
                store.add_samples(run, samples)
            stored = {each.id for each in samples} if before else set()
            work = WorkList(samples=samples, total=n, stored=stored)
            rates[what] = timed(lambda run=run, work=work: asyncio.run(execute_run(store, run, plan, work)))
    bulk = bare(place, folder, run)
    for what, (seconds, busy) in rates.items():
        ratio = bulk / (n / seconds)
        print(f"| {kind}, {what} | {n / seconds:,.0f} | {n / busy:,.0f} | {bulk:,.0f} | {ratio:.1f} |")


def bare(place: str, folder: str, run: str) -> float:
    """Return how many of the run's rows a second the driver inserts into a table without further indexes."""
    mark = "%s" if "://" in place else "?"
    with closing(connect(place)) as connection:
        cursor = connection.cursor()
        cursor.execute(f"SELECT * FROM outcomes WHERE run_id = {mark}", [run])
        rows = cursor.fetchall()
    with closing(connect(place if "://" in place else f"{folder}/bare.db")) as connection:
        cursor = connection.cursor()
        columns = ", ".join(f"c{n} {TYPES.get(type(value), 'TEXT')}" for n, value in enumerate(rows[0]))
        cursor.execute(f"CREATE TABLE bare_outcomes ({columns}, PRIMARY KEY (c0))")
        into = f"INSERT INTO bare_outcomes VALUES ({', '.join([mark] * len(rows[0]))})"
        connection.commit()
        begin = time.perf_counter()
        for first in range(0, len(rows), 500):
            cursor.executemany(into, rows[first : first + 500])
            connection.commit()
        rate = len(rows) / (time.perf_counter() - begin)
        cursor.execute("DROP TABLE bare_outcomes")
        connection.commit()
    return rate


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and the processor's seconds of `work`."""
    begin, busy = time.perf_counter(), os.times()
    work()
    spent = [after - before for before, after in zip(busy[:4], os.times()[:4], strict=True)]
    return time.perf_counter() - begin, sum(spent)


def new_run(store: Store, n: int) -> str:
    return store.create_run(
        dataset="many",
        dataset_digest="0" * 64,
        model="none",
        engine_fingerprint="f" * 64,
        recipes={"quick": Recipe("quick@1", "none", "f" * 64, "", "", 0, 0, "0.1")},
        scoring={"quick": Scoring("minimize", (FAITHFUL, HALLUCINATED), 0.5)},
        n_total=n,
    )


def sample(chance: random.Random, number: int, *, labelled: bool) -> Sample:
    context = f"{number // SAMPLES_A_CONTEXT} " + " ".join(chance.choices(WORDS, k=40))
    if number % SAMPLES_A_CONTEXT:  # the context of the samples before it
        context = f"{number // SAMPLES_A_CONTEXT}"
    label = chance.choice((FAITHFUL, HALLUCINATED)) if labelled else None
    output = " ".join(chance.choices(WORDS, k=12))
    return Sample(f"s{number}", output, (context,), label=label)


# --- reading ------------------------------------------------------------------------------------


def fill(place: str, n: int, *, labelled: bool) -> str:
    """Add a run of `n` outcomes by the driver, and return its id."""
    chance = random.Random(1)
    with Store.open(place) as store:
        run = new_run(store, n)
    connection = sqlite3.connect(place)
    connection.execute("PRAGMA synchronous = OFF")
    [[first]] = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM outcomes").fetchall()
    for start in range(0, n, AT_ONCE):
        rows = [sample(chance, number, labelled=labelled) for number in range(start, min(start + AT_ONCE, n))]
        bodies = [sample_body(each) for each in rows]
        keys = [sample_key(body) for body in bodies]
        connection.executemany(
            "INSERT OR IGNORE INTO samples (key, body) VALUES (?, ?)", zip(keys, bodies, strict=True)
        )
        placed = list(enumerate(zip(rows, keys, strict=True), start))
        connection.executemany(
            "INSERT INTO run_samples (run_id, position, sample_id, sample_key, label, context) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(run, at, each.id, key, each.label, context_number(each.sources)) for at, (each, key) in placed],
        )
        said = []
        for at, (each, _) in placed:
            score = chance.betavariate(3, 2) if each.label == HALLUCINATED else chance.betavariate(2, 3)
            label = HALLUCINATED if score >= 0.5 else FAITHFUL
            said.append((first + at, run, at, label, score, each.label))
        connection.executemany(
            "INSERT INTO outcomes (id, run_id, position, judge, kind, label, score, seconds, calls, "
            "prompt_tokens, cached_tokens, generated_tokens, forced_tokens, body, gold) "
            "VALUES (?, ?, ?, 'quick', 'verdict', ?, ?, 0.01, 0, 0, 0, 0, 0, '{}', ?)",
            said,
        )
        connection.commit()
    connection.close()
    with Store.open(place) as store:
        store.finish_run(run, "done")
    return run


def reading(place: str, name: str, n: int, labelled: bool) -> None:
    """Print seconds and memory of a report, of `show` and of the page, each beside the peer."""
    begin = time.perf_counter()
    run = fill(place, n, labelled=labelled)
    print(f"{n:,} {name} outcomes, filled in {time.perf_counter() - begin:.0f} s\n")
    print("| read | s | s of processor | MB | times the peer |\n| --- | ---: | ---: | ---: | ---: |")
    peer = None
    for what in ("peer", "report", "show", "page", "page again", "api"):
        if what == "peer" and not labelled:
            continue
        told = subprocess.run(
            [sys.executable, "-m", "benchmarks.million", "--read", what, place, run],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(told.stdout.splitlines()[-1])
        peer = peer or found
        ratio = found["busy"] / peer["busy"] if labelled else float("nan")
        shown = f"{ratio:.2f}" if labelled else ""
        print(f"| {what} | {found['seconds']:.2f} | {found['busy']:.2f} | {found['mb']:.0f} | {shown} |")
    print()


def measured(what: str, place: str, run: str) -> dict[str, float]:
    """Return the seconds, the processor's seconds and the megabytes of one reading, without its imports."""
    work = {
        "peer": peer,
        "report": report,
        "show": show,
        "page": page,
        "page again": page,
        "api": page,
    }[what](place, run, what)
    whose = resource.RUSAGE_CHILDREN if what == "show" else resource.RUSAGE_SELF
    before = resource.getrusage(whose).ru_maxrss
    seconds, busy = timed(work)
    return {"seconds": seconds, "busy": busy, "mb": (resource.getrusage(whose).ru_maxrss - before) / 1024}


def peer(place: str, run: str, _: str) -> Callable[[], object]:
    import numpy as np
    from sklearn.metrics import roc_auc_score

    def work() -> object:
        with sqlite3.connect(place) as connection:
            asked = "SELECT gold, score FROM outcomes WHERE run_id = ? ORDER BY position"
            rows = connection.execute(asked, [run]).fetchall()
        truth = np.array([gold == HALLUCINATED for gold, _ in rows])
        return roc_auc_score(truth, np.array([score for _, score in rows]))

    return work


def report(place: str, run: str, _: str) -> Callable[[], object]:
    """Count the run, as after its end: metrics that are stored already are dropped."""
    with sqlite3.connect(place) as connection:
        connection.execute("DELETE FROM figures WHERE run_id = ?", [run])
    connection.close()
    from magistrate.api.run import report_of

    def count(at: str, run: str) -> object:
        with Store.open(at) as store:
            return str(report_of(store, run))

    with tempfile.TemporaryDirectory() as folder:  # so that everything is imported
        small = f"{folder}/small.db"
        count(small, fill(small, 200, labelled=True))
    return lambda: count(place, run)


def show(place: str, run: str, _: str) -> Callable[[], object]:
    """Run `magistrate show` in a process of its own. Its seconds include the imports, its memory does not."""

    def shown(at: str, run: str) -> object:
        words = [sys.executable, "-m", "magistrate", "show", run, "--store", at]
        return subprocess.run(words, capture_output=True, check=True)

    with tempfile.TemporaryDirectory() as folder:
        small = f"{folder}/small.db"
        shown(small, fill(small, 200, labelled=True))
    return lambda: shown(place, run)


def page(place: str, run: str, what: str) -> Callable[[], object]:
    """Request the page or the JSON of a run from an application in this process."""
    from starlette.testclient import TestClient

    from magistrate.server.app import create_app
    from magistrate.server.settings import Settings

    client = TestClient(create_app(Settings(store=place)), base_url="http://127.0.0.1")
    client.__enter__()
    address = f"/api/runs/{run}" if what == "api" else f"/runs/{run}"

    def get(path: str) -> object:
        answer = client.get(path)
        answer.raise_for_status()
        return answer

    get("/")
    if what == "page again":
        get(address)
    return lambda: get(address)


if __name__ == "__main__":
    main()
