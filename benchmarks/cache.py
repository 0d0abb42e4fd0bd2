"""What the cache of calls costs, and what it saves.

Run: .venv/bin/python benchmarks/cache.py [--entries N] [--samples N] [--model NAME] [--json]

First it prints microseconds per call, the best of five rounds over N entries, to read and to store the
result of a choice and of a likelihood of 200 tokens through `Cached`. Beside it are the cache file alone
(`CallCache`), a bare `sqlite3` table in WAL mode and a dictionary. `key alone` is the time to compute a
call's key. Then it runs faithfulness over the built-in set without a cache, with an empty one and with a
full one, and prints seconds, calls and ratios. Each run has its own engine with weights already loaded,
because an engine caches prompt prefixes too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from magistrate.datasets import load
from magistrate.engines.base import Choice, Engine, EngineInfo, Likelihood, Option
from magistrate.engines.cache import Cached, CallCache, call_key
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.models import default
from magistrate.judges import registry
from magistrate.judges.base import planned_calls
from magistrate.runs.execute import stream
from magistrate.types import Prompt, Usage

ROUNDS = 5
OPTIONS = (Option("faithful", ("yes", "Yes")), Option("hallucinated", ("no", "No")))


class Instant:
    """An engine that answers immediately, so that only the overhead around it is measured."""

    info = EngineInfo("instant", "instant", "0" * 64, 100_000, frozenset({"repeatable"}))
    chosen = Choice(
        "faithful", {"faithful": 0.7182818284590452, "hallucinated": 0.2817181715409548}, 0.97, "exact"
    )
    likely = Likelihood(
        "text",
        tuple(range(200)),
        -np.random.default_rng(0).exponential(size=200),
        tuple((n, n + 1) for n in range(200)),
    )

    async def choose(self, *_: Any, **__: Any) -> Choice:
        return self.chosen

    async def likelihood(self, *_: Any, **__: Any) -> Likelihood:
        return self.likely


def micros(work: Callable[[int], Any], n: int, before: Callable[[], Any] = lambda: None) -> float:
    """Return the microseconds per call of `work`, the best of `ROUNDS` rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        before()
        start = time.perf_counter()
        for number in range(n):
            work(number)
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / n


def small(folder: Path, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """Return one row per kind of cache."""
    n = len(prompts)
    keys = [call_key(Instant.info, "choose", prompt, []) for prompt in prompts]
    value = json.dumps(
        {"best": "faithful", "shares": [["faithful", 0.718], ["no", 0.28]], "mass": 0.97}
    ).encode()
    rows: list[dict[str, Any]] = []

    def row(name: str, hit: float, put: float) -> None:
        rows.append({"way": name, "hit_us": round(hit, 2), "put_us": round(put, 2)})

    memory: dict[bytes, bytes] = {}
    put = micros(lambda at: memory.__setitem__(keys[at], value), n, memory.clear)
    row("dict", micros(lambda at: memory.get(keys[at]), n), put)

    raw = sqlite3.connect(folder / "raw.db", isolation_level=None)
    raw.execute("PRAGMA journal_mode = WAL")
    raw.execute("PRAGMA synchronous = NORMAL")
    raw.execute("CREATE TABLE t (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
    put = micros(
        lambda at: raw.execute("INSERT INTO t VALUES (?, ?)", (keys[at], value)),
        n,
        lambda: raw.execute("DELETE FROM t"),
    )
    find = "SELECT value FROM t WHERE key = ?"
    row("sqlite3", micros(lambda at: raw.execute(find, (keys[at],)).fetchone(), n), put)
    raw.close()

    with CallCache.open(folder / "calls.db") as cache:
        put = micros(lambda at: cache.put(keys[at], value, "m"), n, lambda: cache.prune(everything=True))
        row("CallCache", micros(lambda at: cache.get(keys[at]), n), put)
        assert cache.stats().troubles == 0
    row("key alone", micros(lambda at: call_key(Instant.info, "choose", prompts[at], []), n), 0.0)

    for name, ask in (
        ("Cached.choose", lambda engine, prompt: engine.choose(prompt, OPTIONS)),
        ("Cached.likelihood", lambda engine, prompt: engine.likelihood(prompt, "text")),
    ):
        with CallCache.open(folder / f"{name}.db") as cache:
            cached = Cached(Instant(), cache)  # type: ignore[arg-type]

            def drive(work: Any) -> None:
                try:
                    work.send(None)
                except StopIteration:
                    return

            def one(at: int, engine: Any = cached, ask: Any = ask) -> None:
                drive(ask(engine, prompts[at]))

            put = micros(one, n, lambda cache=cache: cache.prune(everything=True))
            row(name, micros(one, n), put)
            assert cache.stats().hits == ROUNDS * n
    return rows


async def judged(engine: Engine, samples: Sequence[Any]) -> tuple[float, Usage, list[Any]]:
    start, usage, said = time.perf_counter(), Usage(), []
    async for each in stream(samples, [registry.judge("faithfulness")], engine):
        usage += each.outcome.usage
        said.append((each.sample.id, getattr(each.outcome, "score", None)))
    return time.perf_counter() - start, usage, sorted(said)


def whole(folder: Path, model: str | None, n: int) -> dict[str, Any]:
    """Measure a run without a cache, with an empty one, and with a full one."""
    samples = list(load("quickstart", limit=n))
    asked = model or default().name

    def measured(cache: CallCache | None) -> tuple[float, Usage, list[Any]]:
        engine = LocalEngine(asked)
        asyncio.run(engine.choose(Prompt.of("Is it?"), OPTIONS))  # loads the weights
        found = asyncio.run(judged(engine if cache is None else Cached(engine, cache), samples))
        engine.close()
        return found

    bare = measured(None)
    with CallCache.open(folder / "run.db") as cache:
        cold, warm = measured(cache), measured(cache)
    assert bare[2] == cold[2] == warm[2]
    return {
        "model": asked,
        "samples": len(samples),
        "bare_s": round(bare[0], 3),
        "cold_s": round(cold[0], 3),
        "warm_s": round(warm[0], 4),
        "cold_calls": cold[1].calls,
        "warm_calls": warm[1].calls,
        "warm_reused": warm[1].reused,
        "cold_over_bare": round(cold[0] / bare[0], 3),
        "cold_over_warm": round(cold[0] / warm[0], 1),
        "same_scores": True,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=72)
    parser.add_argument("--model")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    judge, samples = registry.judge("faithfulness"), list(load("quickstart"))
    plans = [planned_calls(judge, sample)[0].prompt for sample in samples]
    prompts = [
        plans[number % len(plans)].continued(*Prompt.of(str(number)).messages[0].parts)
        for number in range(given.entries)
    ]
    with tempfile.TemporaryDirectory() as name:
        rows = small(Path(name), prompts)
        run = whole(Path(name), given.model, given.samples)
    if given.json:
        print(json.dumps({"calls": rows, "run": run}))
        return
    print(f"{'':18} {'hit µs':>9} {'put µs':>9}")
    for row in rows:
        print(f"{row['way']:18} {row['hit_us']:9.2f} {row['put_us']:9.2f}")
    print()
    for key, value in run.items():
        print(f"{key:18} {value}")


if __name__ == "__main__":
    main()
