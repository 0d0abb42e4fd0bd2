"""Throughput of watching: spans received, answers judged, lag and memory.

Run: python -m benchmarks.watch [--minutes 1] [--rate 50] [--spans 20000] [--answers 300] [--judge …]

A trace consists of a chain, a search and a model call, with two passages of about 600 characters each.
Spans are sent as protobuf over HTTP to `magistrate serve --watch` in another process, with a store in a
file. `ingested` judges nothing. `judged` is a worker in this process while nothing is received. `steady`
does both, with the first judge: the lag is the time from the response to the export until the verdict is
stored, and the memory is the server's resident set after the first verdict, at quarters of the time, and
after the last verdict.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

from benchmarks.machine import load, machine
from magistrate import _async
from magistrate._yaml import parse_document
from magistrate.datasets.spans.span import spans_of_request
from magistrate.store import Store
from magistrate.watch.otlp import LIMITS, read
from magistrate.watch.results import encoded
from magistrate.watch.rules import Rule, rules_of
from magistrate.watch.worker import Watcher

JUDGES = ("novelty", "detector")
IN_TRACE = 3
PARENT = b64encode(bytes.fromhex(f"{1:016x}")).decode()  # as protobuf's own JSON has it, see `encoded`
AT_ONCE = 170  # traces in one request, as an exporter sends up to 512 spans
PARTS = 4  # of the steady time, with a look at the memory after each
LONGEST = 120.0  # seconds that verdicts may take after the last span
WORDS = (
    (Path(__file__).parents[1] / "examples" / "watch" / "passages.txt").read_text(encoding="utf-8").split()
)


@dataclass(frozen=True, slots=True)
class Steady:
    """Results at a steady rate: each verdict's lag in seconds, the missing ones, and megabytes."""

    sent: int
    lags: Sequence[float]
    megabytes: Sequence[float | None]


# --- what is sent -----------------------------------------------------------------------------------


def trace(draw: random.Random) -> tuple[str, list[dict[str, Any]]]:
    """Return a trace in OTLP/JSON, with its id."""
    trace_id, now = f"{draw.getrandbits(128) | 1:032x}", time.time_ns()
    passages = [" ".join(draw.choices(WORDS, k=100)) + f" {draw.randrange(1000)}." for _ in range(2)]
    said = " ".join(draw.choices(passages[0].split(), k=12)) + f" {draw.randrange(1000)}."
    steps: list[tuple[str, Mapping[str, Any]]] = [
        ("CHAIN", {"input.value": "When does the museum open?", "output.value": said}),
        ("RETRIEVER", {f"retrieval.documents.{n}.document.content": each for n, each in enumerate(passages)}),
        ("LLM", {"llm.output_messages.0.message.content": said}),
    ]
    spans = [
        {
            "traceId": trace_id,
            "spanId": f"{place + 1:016x}",
            "parentSpanId": PARENT if place else "",
            "name": kind.lower(),
            "startTimeUnixNano": str(now + place * 1_000_000),
            "endTimeUnixNano": str(now + (5_000_000 if not place else (place + 1) * 1_000_000 - 1)),
            "attributes": [
                {"key": key, "value": {"stringValue": value}}
                for key, value in {"openinference.span.kind": kind, **attributes}.items()
            ],
        }
        for place, (kind, attributes) in enumerate(steps)
    ]
    return trace_id, spans


def request(spans: Sequence[Mapping[str, Any]]) -> bytes:
    """Return an export of spans, as protobuf."""
    return encoded("traces", {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}, "protobuf")


def post(address: str, body: bytes) -> None:
    """Send an export. Raises if it is rejected."""
    headers = {"Content-Type": "application/x-protobuf"}
    with urlopen(Request(f"{address}v1/traces", body, headers)) as said:
        if said.read():
            raise RuntimeError("some of the spans were rejected")


def rule(judge: str, quiet: str) -> str:
    """Return a rule file with one rule."""
    return f"rules:\n  - name: measured\n    judges: ['{judge}']\n    quiet: {quiet}\n"


@contextmanager
def serving(folder: Path, rules: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a watching server, and yield its address and process."""
    (folder / "rules.yaml").write_text(rules, encoding="utf-8")
    words = [sys.executable, "-m", "magistrate", "serve", "--port", "0"]
    words += ["--store", str(folder / "watch.db"), "--watch", str(folder / "rules.yaml")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip(), server
            server.send_signal(signal.SIGINT)
            server.wait(LONGEST)
        finally:
            server.kill()


# --- what is measured -------------------------------------------------------------------------------


def ingested(folder: Path, n_spans: int) -> float:
    """Return the spans per second that a server stores, one request after another, without judging."""
    draw = random.Random(1)
    bodies = []
    for _ in range(max(1, n_spans // (IN_TRACE * AT_ONCE))):
        bodies.append(request([span for _ in range(AT_ONCE) for span in trace(draw)[1]]))
    with serving(folder, rule("novelty", "1h")) as (address, _):
        post(address, request(trace(draw)[1]))
        began = time.perf_counter()
        for body in bodies:
            post(address, body)
        return len(bodies) * IN_TRACE * AT_ONCE / (time.perf_counter() - began)


def judged(folder: Path, judge: str, n: int) -> float:
    """Return the answers per second that one worker decides and judges, from stored spans."""
    these: list[Rule] = rules_of(parse_document(rule(judge, "0s"), "rules.yaml"))
    draw, now = random.Random(2), lambda: datetime.now(UTC)
    with Store.open(folder / "watch.db") as store:
        watcher = Watcher(store, these, clock=now)
        _async.run(watcher.prepare())
        watcher.register()
        for count in (1, n):  # the first one loads the judge
            value = read(
                "traces", "protobuf", request([s for _ in range(count) for s in trace(draw)[1]]), LIMITS
            )
            store.traces.put(spans_of_request(value.value)[0], now())
            began = time.perf_counter()
            _async.run(watcher.drain())
            took = time.perf_counter() - began
        found = store.traces.counts("measured")
    if found != {"judged": n + 1}:
        raise RuntimeError(f"not all were judged: {found}")
    return n / took


def steady(folder: Path, judge: str, rate: float, seconds: float) -> Steady:
    """Send traces at a steady rate to a server that judges them."""
    draw, sent = random.Random(3), dict[str, datetime]()
    with serving(folder, rule(judge, "0s")) as (address, server):
        first = _send(address, draw)
        _wait(folder, [first])
        sizes, began = [_megabytes(server.pid)], time.perf_counter()
        while (due := len(sent) / rate) < seconds:
            time.sleep(max(0.0, began + due - time.perf_counter()))
            sent[_send(address, draw)] = datetime.now(UTC)
            if due >= seconds * len(sizes) / PARTS:
                sizes.append(_megabytes(server.pid))
        _wait(folder, list(sent))
        sizes.append(_megabytes(server.pid))
    lags = []
    with Store.open(folder / "watch.db") as store:
        for trace_id, at in sent.items():
            states = store.traces.decisions("measured", trace_id=trace_id)
            lags += [(each.changed_at - at).total_seconds() for each in states if each.state == "judged"]
    return Steady(len(sent), lags, sizes)


def _send(address: str, draw: random.Random) -> str:
    trace_id, spans = trace(draw)
    post(address, request(spans))
    return trace_id


def _wait(folder: Path, trace_ids: Sequence[str]) -> None:
    """Wait until the last of these traces is judged, at most `LONGEST` seconds."""
    until = time.monotonic() + LONGEST
    with Store.open(folder / "watch.db") as store:
        for trace_id in reversed(trace_ids):
            while time.monotonic() < until:
                found = store.traces.decisions("measured", trace_id=trace_id)
                if any(each.state == "judged" for each in found):
                    break
                time.sleep(0.1)


def _megabytes(process: int) -> float | None:
    """Return a process's resident memory in megabytes; None if the system does not provide it."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    kilobytes = next(line.split()[1] for line in lines if line.startswith("VmRSS"))
    return int(kilobytes) / 1024


def main(words: Sequence[str] | None = None) -> None:
    """Print one line per result, with the machine."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="of the steady rate")
    parser.add_argument("--rate", type=float, default=50.0, help="traces a second")
    parser.add_argument("--spans", type=int, default=20_000)
    parser.add_argument("--answers", type=int, default=300)
    parser.add_argument("--judge", action="append", metavar="JUDGE")
    given = parser.parse_args(words)
    judges = given.judge or JUDGES
    here, busy = machine(_cores()), load()
    loaded = "" if busy is None else f", {busy:.1f} processes wanted to run in the last minute"
    print(f"{here.cpu}, {here.cores} cores, commit {here.commit}{loaded}")

    def folder() -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory()

    with folder() as place:
        print(f"ingested            {ingested(Path(place), given.spans):>8,.0f} spans a second", flush=True)
    for judge in judges:
        with folder() as place:
            found = judged(Path(place), judge, given.answers)
        print(f"judged by {judge:<9} {found:>8,.1f} answers a second", flush=True)
    with folder() as place:
        seen = steady(Path(place), judges[0], given.rate, 60 * given.minutes)
    lags = sorted(seen.lags)
    told = [f"{float(np.quantile(lags, q)):.2f} s" for q in (0.5, 0.95, 1.0)] if lags else ["no data"] * 3
    print(
        f"steady, {given.rate:g} traces a second for {given.minutes:g} min: "
        f"{len(lags)} of {seen.sent} judged, lag {told[0]} (median), {told[1]} (95 %), {told[2]} (longest)"
    )
    sizes = ["not told" if each is None else f"{each:,.0f} MB" for each in seen.megabytes]
    print(
        f"memory of the server: {sizes[0]} after the first verdict, {', '.join(sizes[1:-1])} meanwhile, "
        f"{sizes[-1]} after the last"
    )


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
