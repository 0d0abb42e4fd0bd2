"""Throughput of watching: spans received, answers judged, lag and memory.

Run: python -m benchmarks.watch [--minutes 1] [--rate 50] [--spans 20000] [--answers 300] [--judge …]
                                [--phoenix PYTHON]

A trace consists of a chain, a search and a model call, with two passages of about 600 characters each.
Spans are sent as protobuf over HTTP to `magistrate serve --watch` in another process, with a store in a
file. `ingested` judges nothing; it is the median of three rounds. With `--phoenix`, the Python of an
environment with arize-phoenix, each round sends the same spans to Phoenix too, which has a SQLite file as
well. Magistrate answers once spans are stored. Phoenix answers before, so its round ends when its database
has them all. `judged` is a worker in this process while nothing is received. `steady` does both, with the
first judge: the lag is the time from the response to the export until the verdict is stored, also as the
median in each quarter of the time, and the memory is the server's resident set after the first verdict, at
quarters of the time, and after the last verdict.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
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
ROUNDS = 3  # of ingesting; the servers take turns
AT_ONCE = 170  # traces in one request, as an exporter sends up to 512 spans
SENDERS = 8  # requests at a time, at the steady rate
PARTS = 4  # of the steady time, with a look at the memory after each
LONGEST = 120.0  # seconds that verdicts may take after the last span
STARTS = 240.0  # seconds that Phoenix may take to start
WORDS = (
    (Path(__file__).parents[1] / "examples" / "watch" / "passages.txt").read_text(encoding="utf-8").split()
)


@dataclass(frozen=True, slots=True)
class Ingested:
    """Spans per second, one value per round: stored by Magistrate, and accepted and stored by Phoenix."""

    stored: Sequence[float]
    accepted_by_phoenix: Sequence[float]
    stored_by_phoenix: Sequence[float]


@dataclass(frozen=True, slots=True)
class Steady:
    """Results at a steady rate: traces sent and in which time, each verdict's lag in seconds in the order
    in which the traces were sent, megabytes.
    """

    sent: int
    seconds: float
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
    ids = [f"{draw.getrandbits(64) | 1:016x}" for _ in steps]
    parent = b64encode(bytes.fromhex(ids[0])).decode()  # as protobuf's own JSON has it, see `encoded`
    spans = [
        {
            "traceId": trace_id,
            "spanId": ids[place],
            "parentSpanId": parent if place else "",
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
    """Send an export, again while the server is busy. Raises if it is rejected."""
    headers = {"Content-Type": "application/x-protobuf"}
    while True:
        try:
            with urlopen(Request(f"{address}v1/traces", body, headers)) as said:
                if said.read():
                    raise RuntimeError("some of the spans were rejected")
                return
        except HTTPError as error:
            if error.code != 503:
                raise
        time.sleep(0.05)


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


@contextmanager
def phoenix(folder: Path, python: str) -> Iterator[tuple[str, Path]]:
    """Start a Phoenix server, and yield its address and its database."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, grpc = one.getsockname()[1], other.getsockname()[1]
    settings = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PYTHONPATH": "",
    }
    words = [str(Path(python).absolute()), "-m", "phoenix.server.main", "serve"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(words, stdout=log, stderr=log, cwd=folder, env=os.environ | settings) as server,
    ):
        try:
            until = time.monotonic() + STARTS
            while not _answers(f"http://127.0.0.1:{port}/healthz"):
                if server.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"Phoenix does not start: {(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/", folder / "phoenix.db"
            server.send_signal(signal.SIGINT)
            server.wait(LONGEST)
        finally:
            server.kill()


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=LONGEST):
            return True
    except (URLError, OSError):
        return False


# --- what is measured -------------------------------------------------------------------------------


def ingested(folder: Path, n_spans: int, python: str | None = None) -> Ingested:
    """Return how fast a server stores spans, one request after another, without judging; with the Python
    of an environment with Phoenix, also how fast that does.
    """
    draw = random.Random(1)
    n_requests = max(1, n_spans // (IN_TRACE * AT_ONCE))
    n_spans = n_requests * IN_TRACE * AT_ONCE
    ours, accepted, theirs = list[float](), list[float](), list[float]()
    with ExitStack() as servers:
        address = servers.enter_context(serving(folder, rule("novelty", "1h")))[0]
        peer = None
        if python is not None:
            (folder / "phoenix").mkdir()
            peer = servers.enter_context(phoenix(folder / "phoenix", python))
        first = request(trace(draw)[1])
        post(address, first)
        if peer:
            post(peer[0], first)
            _wait_for_rows(peer[1], IN_TRACE)
        for n in range(1, ROUNDS + 1):
            bodies = [
                request([span for _ in range(AT_ONCE) for span in trace(draw)[1]]) for _ in range(n_requests)
            ]
            ours.append(n_spans / _seconds(address, bodies))
            if peer:
                began = time.perf_counter()
                accepted.append(n_spans / _seconds(peer[0], bodies))
                _wait_for_rows(peer[1], IN_TRACE + n * n_spans)
                theirs.append(n_spans / (time.perf_counter() - began))
    return Ingested(ours, accepted, theirs)


def _seconds(address: str, bodies: Sequence[bytes]) -> float:
    began = time.perf_counter()
    for body in bodies:
        post(address, body)
    return time.perf_counter() - began


def _wait_for_rows(database: Path, n_spans: int) -> None:
    """Wait until a database of Phoenix has so many spans. Raises if no more come for `LONGEST` seconds."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        before, until = 0, time.monotonic() + LONGEST
        while (found := connection.execute("SELECT count(*) FROM spans").fetchone()[0]) < n_spans:
            if found > before:
                before, until = found, time.monotonic() + LONGEST
            elif time.monotonic() > until:
                raise RuntimeError(f"Phoenix stored {found} of {n_spans} spans")
            time.sleep(0.1)


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
    """Send traces at a steady rate to a server that judges them, whether or not it has answered the last."""
    draw, sent = random.Random(3), dict[str, datetime]()

    def send(trace_id: str, body: bytes) -> None:
        post(address, body)
        sent[trace_id] = datetime.now(UTC)

    with serving(folder, rule(judge, "0s")) as (address, server), ThreadPoolExecutor(SENDERS) as senders:
        first, spans = trace(draw)
        post(address, request(spans))
        _wait(folder, [first])
        sizes, began, waiting = [_megabytes(server.pid)], time.perf_counter(), deque[Future[None]]()
        for n in range(math.ceil(rate * seconds)):
            time.sleep(max(0.0, began + n / rate - time.perf_counter()))
            trace_id, spans = trace(draw)
            waiting.append(senders.submit(send, trace_id, request(spans)))
            while waiting and waiting[0].done():
                waiting.popleft().result()
            if n / rate >= seconds * len(sizes) / PARTS:
                sizes.append(_megabytes(server.pid))
        for each in waiting:
            each.result()
        took = time.perf_counter() - began
        _wait(folder, list(sent))
        sizes.append(_megabytes(server.pid))
    lags = []
    with Store.open(folder / "watch.db") as store:
        for trace_id, at in sorted(sent.items(), key=lambda each: each[1]):
            states = store.traces.decisions("measured", trace_id=trace_id)
            lags += [(each.changed_at - at).total_seconds() for each in states if each.state == "judged"]
    return Steady(len(sent), took, lags, sizes)


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


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--minutes", type=float, default=1.0, help="of the steady rate")
    found.add_argument("--rate", type=float, default=50.0, help="traces a second")
    found.add_argument("--spans", type=int, default=20_000)
    found.add_argument("--answers", type=int, default=300)
    found.add_argument("--judge", action="append", metavar="JUDGE")
    found.add_argument(
        "--phoenix",
        metavar="PYTHON",
        help="of an environment with arize-phoenix, to compare what is ingested",
    )
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Print one line per result, with the machine."""
    given = parser().parse_args(words)
    judges = given.judge or JUDGES
    here, busy = machine(_cores()), load()
    loaded = "" if busy is None else f", {busy:.1f} processes wanted to run in the last minute"
    print(f"{here.cpu}, {here.cores} cores, commit {here.commit}{loaded}")

    def folder() -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory()

    with folder() as place:
        print(*ingested_lines(ingested(Path(place), given.spans, given.phoenix)), sep="\n", flush=True)
    for judge in judges:
        with folder() as place:
            found = judged(Path(place), judge, given.answers)
        print(f"judged by {judge:<9} {found:>8,.1f} answers a second", flush=True)
    with folder() as place:
        seen = steady(Path(place), judges[0], given.rate, 60 * given.minutes)
    lags = seen.lags
    told = [f"{float(np.quantile(lags, q)):.2f} s" for q in (0.5, 0.95, 1.0)] if lags else ["no data"] * 3
    parts = [f"{float(np.median(part)):.2f}" for part in np.array_split(lags, PARTS) if len(part)]
    print(
        f"steady, {given.rate:g} traces a second for {given.minutes:g} min, "
        f"accepted {seen.sent / seen.seconds:.1f} a second: "
        f"{len(lags)} of {seen.sent} judged by {judges[0]}, "
        f"lag {told[0]} (median), {told[1]} (95 %), {told[2]} (longest)"
    )
    print(f"median lag by quarters of the time: {', '.join(parts) or 'no data'} s")
    sizes = ["not told" if each is None else f"{each:,.0f} MB" for each in seen.megabytes]
    print(
        f"memory of the server: {sizes[0]} after the first verdict, {', '.join(sizes[1:-1])} meanwhile, "
        f"{sizes[-1]} after the last"
    )


def ingested_lines(found: Ingested) -> list[str]:
    """Return what to print of the spans per second: medians, and the ratio of each round."""
    median = statistics.median
    lines = [f"ingested            {median(found.stored):>8,.0f} spans a second"]
    if found.stored_by_phoenix:
        ratios = sorted(
            ours / theirs for ours, theirs in zip(found.stored, found.stored_by_phoenix, strict=True)
        )
        lines += [
            f"ingested by Phoenix {median(found.stored_by_phoenix):>8,.0f} spans a second, "
            f"accepted before at {median(found.accepted_by_phoenix):,.0f} a second",
            f"Magistrate stores {median(ratios):.1f} times as many spans a second as Phoenix "
            f"({ratios[0]:.1f} to {ratios[-1]:.1f} in {len(ratios)} rounds)",
        ]
    return lines


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
