"""Response times of every page of the server, over a store of many runs and outcomes.

Run: python benchmarks/pages.py [--store PATH|postgresql://…] [--runs 1000] [--outcomes 1000000] [--write]

A store that does not exist is filled first (some minutes) and kept, unless it is the default, a file in a
temporary folder. One run has a tenth of all outcomes, and one sample a context of 100,000 characters. Times
are of whole requests over one connection to a server in another process. `first` is the first request of
its kind after the server's start. `--write` puts the table into docs/page.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from urllib.parse import quote, urlencode

import httpx

from magistrate.report.counts import counted
from magistrate.store import Store
from magistrate.store.connection import exists
from magistrate.types import Claim, Failure, Outcome, Recipe, Sample, Scoring, Span, Step, Usage, Verdict

REPEATS = 25
LIMIT = 100.0  # milliseconds
WORDS = ("refund", "order", "late", "parcel", "invoice", "within", "thirty", "days", "customer", "never")
KINDS = ("contradiction", "unsupported", "agreement")
LONG = "long"
SETS = 10  # number of distinct sets that runs cycle through
BEGIN, END = "<!-- times of {} -->\n", "<!-- end of times -->\n"
PAGE = Path(__file__).parents[1] / "docs" / "page.md"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--outcomes", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = asked.store or f"{folder}/runs.db"
        if "://" in place or not exists(place):
            fill(place, asked.runs, asked.outcomes)
        with served(place) as address:
            table = measure(place, address)
    print(table)
    if asked.write:
        begin = BEGIN.format("PostgreSQL" if "://" in place else "SQLite")
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{begin}{table}\n{END}{after}", encoding="utf-8")


# --- what is stored -------------------------------------------------------------------------------


def fill(place: str, n_runs: int, n_outcomes: int) -> None:
    """Create runs of one judge over labelled samples; the last but one is long, the last has claims."""
    chance = random.Random(0)
    moments = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=n) for n in range(10**9))
    large = n_outcomes // 10
    size = (n_outcomes - large) // (n_runs - 1)
    with Store.open(place, clock=lambda: next(moments), randomness=chance) as store:
        if store.runs(limit=1):
            return
        sets = [samples(chance, size) for _ in range(SETS)]
        for number in range(n_runs):
            last = number == n_runs - 1
            contents = samples(chance, large) if number == n_runs - 2 else sets[number % len(sets)]
            if last:
                contents = [long_sample(chance), *contents[1:]]
            run = store.create_run(
                dataset=f"set{number % 40}",
                dataset_digest=f"{number:064x}",
                model=f"model{number % 7}",
                engine_fingerprint="f" * 64,
                recipes={
                    "faithfulness": Recipe(
                        "faithfulness@1", "tiny", "f" * 64, "p@1", "choice", 0, size, "0.1"
                    )
                },
                scoring={"faithfulness": Scoring("minimize", ("faithful", "hallucinated"), 0.5)},
                name=f"run {number}",
                n_total=len(contents),
                tags=["nightly", f"week{number % 50}"],
            )
            store.add_samples(run, contents)
            store.add_outcomes(run, (outcome(chance, each, last) for each in contents))
            store.finish_run(run, "done")
            counted(store, run)
            if sys.stderr.isatty():
                print(f"\r{number + 1:,} of {n_runs:,} runs", end="", file=sys.stderr)


def samples(chance: random.Random, size: int) -> list[Sample]:
    return [
        Sample(
            f"s{i}",
            " ".join(chance.choices(WORDS, k=30)),
            (" ".join(chance.choices(WORDS, k=120)) + f" {i // 2}",),
            label=chance.choice(["faithful", "hallucinated"]),
            metadata={"part": chance.choice(["news", "mail", "law"])},
        )
        for i in range(size)
    ]


def long_sample(chance: random.Random) -> Sample:
    text = "\n".join(" ".join(chance.choices(WORDS, k=14)) for _ in range(1200))
    return Sample(LONG, text[:4000], (text[:100_000],), label="hallucinated")


def outcome(chance: random.Random, sample: Sample, claims: bool) -> Outcome:
    if chance.random() < 0.01:
        return Failure(sample.id, "faithfulness", chance.choice(["timeout", "invalid_output"]), "it broke")
    score = min(max(chance.gauss(0.6 if sample.label == "hallucinated" else 0.4, 0.2), 0.0), 1.0)
    prompt = (("system", " ".join(WORDS * 8)), ("user", " ".join(WORDS * 30)))
    step = Step("choose", prompt, {"faithful": 1 - score, "hallucinated": score}, Usage(1, 520, 80, 1), 0.2)
    made = tuple(claim(chance, sample) for _ in range(30 if sample.id == LONG else 3)) if claims else ()
    label = "hallucinated" if score >= 0.5 else "faithful"
    return Verdict(
        sample.id,
        "faithfulness",
        label,
        score,
        score,
        claims=made,
        usage=step.usage,
        seconds=0.2,
        steps=(step,),
    )


def claim(chance: random.Random, sample: Sample) -> Claim:
    def span(text: str) -> Span:
        start = chance.randrange(max(len(text) - 60, 1))
        return Span(start, min(start + chance.randrange(10, 60), len(text)))

    kind = chance.choice(KINDS)
    quoted = None if kind == "unsupported" else span(sample.context[0])
    return Claim(kind, span(sample.output or ""), quoted, None if quoted is None else 0, "as it says", 0.9)


# --- what is asked --------------------------------------------------------------------------------


@contextmanager
def served(place: str) -> Iterator[str]:
    """Start a server over the store and yield its address."""
    command = [sys.executable, "-m", "magistrate", "serve", "--store", place, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            line = next(line for line in server.stdout if "http://" in line)
            found = re.search(r"http://\S+", line)
            assert found is not None
            yield found[0].rstrip("/")
        finally:
            server.terminate()


def measure(place: str, address: str) -> str:
    """Return a table of every page and its times."""
    with Store.open(place) as store:
        newest = [record.id for record in store.runs(limit=SETS + 3)]
        claims, large, small, twin = *newest[:3], newest[-1]
        n_runs, n = len(store.runs()), sum(record.n_outcomes for record in store.runs())
    kind = "PostgreSQL" if "://" in place else "SQLite"
    rows = [
        f"Milliseconds a page, {n:,} outcomes in {n_runs:,} runs, {kind}; {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "",
        "| page | first | median | slowest of 25 |",
        "| --- | ---: | ---: | ---: |",
    ]
    slow = []
    with httpx.Client(base_url=address, timeout=60) as client:
        for name, ask in questions(client, claims, large, small, twin).items():
            first, *times = [taken(ask) for _ in range(REPEATS + 1)]
            rows.append(f"| {name} | {first:.0f} | {median(times):.0f} | {max(times):.0f} |")
            if median(times) > LIMIT:
                slow.append(name)
    rows += ["", f"Over {LIMIT:.0f} ms in the median: {', '.join(slow) or 'none'}."]
    return "\n".join(rows)


def questions(
    client: httpx.Client, claims: str, large: str, small: str, twin: str
) -> dict[str, Callable[[], httpx.Response]]:
    """Return the request of every page, by name."""

    def get(path: str, **query: object) -> Callable[[], httpx.Response]:
        told = f"{path}?{urlencode(query, doseq=True)}" if query else path
        return lambda: client.get(told)

    judge = quote("faithfulness", safe="")
    moved = iter([n / 1000 for n in range(1, 1000)])
    chance = random.Random(1)
    return {
        "runs": get("/"),
        "runs, 900 further down": get("/", before=100),
        "runs, searched": get("/", q="run 77"),
        "runs, of one set and tag": get("/", dataset="set3", tag="nightly"),
        "run": get(f"/runs/{small}"),
        "run, threshold moved": lambda: client.get(f"/runs/{small}?threshold={next(moved)}"),
        "run, one cell of the matrix": get(f"/runs/{small}", truth="hallucinated", said="faithful"),
        "run, by metadata": get(f"/runs/{small}", by="part"),
        "run of 100,000": get(f"/runs/{large}"),
        "run of 100,000, threshold moved": lambda: client.get(f"/runs/{large}?threshold={next(moved)}"),
        "run of 100,000, one cell, 50,000 further down": get(
            f"/runs/{large}", truth="hallucinated", said="faithful", after=50_000
        ),
        "run with claims": get(f"/runs/{claims}"),
        "run with claims, flagged anew": get(f"/runs/{claims}", flag="contradiction"),
        "sample": lambda: client.get(f"/runs/{small}/samples/s{chance.randrange(800)}"),
        "sample of 100 kB with 30 claims": get(f"/runs/{claims}/samples/{LONG}"),
        "compare: choose": get("/compare"),
        "compare: two runs, being computed or done": get("/compare", run=[small, twin]),
        "try": get("/try"),
        "judges": get("/judges"),
        "one judge": get(f"/judges/{judge}"),
        "models": get("/models"),
        "API: runs": get("/api/runs"),
        "API: one run": get(f"/api/runs/{small}"),
        "API: outcomes": get(f"/api/runs/{large}/judges/{judge}/outcomes"),
        "metrics": get("/metrics"),
    }


def taken(ask: Callable[[], httpx.Response]) -> float:
    """Return the milliseconds until the complete response arrived."""
    begin = time.perf_counter()
    answer = ask()
    passed = 1000 * (time.perf_counter() - begin)
    if not answer.is_success:
        raise SystemExit(f"{answer.url}: {answer.status_code} {answer.text[:300]}")
    return passed


if __name__ == "__main__":
    main()
