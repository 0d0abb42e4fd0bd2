"""How much longer requests take behind the guard of `magistrate.integrations.asgi`, as ratios.

Run: python benchmarks/guard.py [--requests 400] [--judge novelty]

The application waits some milliseconds, like one that calls a model, and answers with JSON. Each row is the
same application: bare, behind a guard with nothing to judge, behind a judge that answers immediately (the
guard's own cost), and behind a real judge. Requests are made in this process and alternate between the
rows, so that other load on the machine affects all of them equally.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from magistrate.engines.base import Engine
from magistrate.integrations.asgi import GuardMiddleware
from magistrate.judges.base import JudgeInfo
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Verdict

WAIT = 0.02  # seconds that the application takes
SOURCES = ["The museum opens at nine and closes at five. Entry is free for children under twelve."] * 5
SAID = json.dumps({"answer": "The museum closes at five.", "sources": SOURCES}).encode()
HEADERS = [(b"content-type", b"application/json")]


class AtOnce:
    """A judge that answers immediately."""

    info = JudgeInfo("at once", labels=(FAITHFUL, HALLUCINATED), threshold=0.5, kind="code")

    async def judge(self, sample: Sample, engine: Engine) -> Verdict:
        """Return the verdict faithful."""
        return Verdict(sample.id, "at once", FAITHFUL, 0.1)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer after a pause."""
    await asyncio.sleep(WAIT)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": SAID})


def read(scope: Mapping[str, Any], body: Any) -> Any:
    """Return the answer and its context."""
    return {"answer": body["answer"], "context": body["sources"]}


async def request(app: Any) -> float:
    """Return the seconds that one request took."""

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            raise RuntimeError(f"an answer was held back: {message['headers']}")

    began = time.perf_counter()
    await app({"type": "http", "method": "GET", "path": "/ask"}, None, send)
    return time.perf_counter() - began


async def measured(apps: Mapping[str, Any], n: int) -> dict[str, list[float]]:
    """Return the seconds of `n` requests to each application, in alternation."""
    found: dict[str, list[float]] = {name: [] for name in apps}
    for app in apps.values():
        await request(app)
    for _ in range(n):
        for name, app in apps.items():
            found[name].append(await request(app))
    return found


def main() -> None:
    """Print the median and the 95th percentile of each row, as ratios to the bare application."""
    parser = argparse.ArgumentParser(description="How much longer requests take behind a guard.")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--judge", default="novelty")
    given = parser.parse_args()
    open_to_all = {"budget_ms": 30_000, "on_timeout": "open", "block": ()}
    apps = {
        "bare": application,
        "nothing to judge": GuardMiddleware(application, read=lambda scope, body: None, judge=AtOnce()),
        "a judge that answers at once": GuardMiddleware(application, read=read, judge=AtOnce()),
        given.judge: GuardMiddleware(application, read=read, judge=given.judge, **open_to_all),
    }
    seconds = asyncio.run(measured(apps, given.requests))
    base = {q: float(np.quantile(seconds["bare"], q)) for q in (0.5, 0.95)}
    print(f"{given.requests} requests a row, an application that takes {1000 * WAIT:g} ms; bare is 1")
    print(f"{'row':<30} {'median':>8} {'p95':>8}")
    for name, row in seconds.items():
        ratios = [float(np.quantile(row, q)) / base[q] for q in (0.5, 0.95)]
        print(f"{name:<30} {ratios[0]:>8.2f} {ratios[1]:>8.2f}")


if __name__ == "__main__":
    main()
