"""Reliability of watching under faults: every fault over the same traces, as a table.

    python benchmarks/chaos_watch.py [--answers 60] [--only WORD] [--write]

Each row starts `magistrate serve --watch` in its own process and sends it traces, with answers whose verdicts
are known, as OpenTelemetry's exporters do: again after 429, 502, 503, 504 and broken connections, for as long
as `Retry-After` says. Meanwhile it injects a fault. Then everything is counted in the database, in a ledger
of what was asked and stored, and in the file that gets the alert. `--write` puts the table into
docs/reliability.md. The exit status is 1 if something was lost, is undecided, was judged twice or told twice,
or if a fault did not strike.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.chaos import (  # which finds what tests share
    SEED,
    replied,
    spared,
    tried,
)
from fault_server import MODEL, FaultServer, fault_server

COLUMNS = (
    *("fault", "spans lost", "without the right decision", "judged twice", "alerts doubled"),
    *("seconds", "what was seen"),
)
IN_EXPORT = 5  # traces
QUIET = 0.5  # seconds
DEADLINE = 120.0  # seconds until everything must be judged
KILLS = 6
FAST = 360  # times as quick as the clock, so that an hour takes ten seconds
DAY = 86_400 * 1_000_000_000
MEGABYTE = 2**20
LARGE = 65 * MEGABYTE
BOMB = 256 * MEGABYTE
AGAIN = (429, 502, 503, 504)  # the statuses after which an exporter sends the same spans again
LINES = 64  # requests that a server has in work at once
CONNECTIONS = 256  # of one address
PARENT = f"{1:016x}"
SCRIPT = str(Path(__file__).resolve())
Span = dict[str, Any]


# --- the process that watches -------------------------------------------------------------------------


def child(words: Sequence[str]) -> None:
    """Run the command line. It keeps a ledger of its judges and its store, and breaks as a document says."""
    from magistrate import cli
    from magistrate.types import Verdict

    names = ("server.otlp", "server.state", "server.watcher", "watch.alerts", "watch.upkeep", "watch.worker")
    modules: list[Any] = [import_module(f"magistrate.{name}") for name in names]
    otlp, state, watcher, alerts, upkeep, worker = modules
    stores: Any = import_module("magistrate.store")
    traces: Any = import_module("magistrate.store.traces")
    fault: dict[str, Any] = json.loads(words[0])
    ledger = os.open(fault["ledger"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    made, settle, tell = worker.plans_of, traces.Traces.settle, alerts.sink

    def note(word: str, *names: str) -> None:
        if names:
            os.write(ledger, "".join(f"{word} {name} {os.getpid()}\n" for name in names).encode())

    def die(moment: str) -> None:
        if fault.get("dies") == moment:
            note("died", moment)
            os.kill(os.getpid(), signal.SIGKILL)

    def plans_of(rule: Any) -> Any:
        plans = made(rule)
        for kind in {type(judge) for plan in plans for judge in plan.judges}:
            judges(kind, kind.judge)
        return plans

    def judges(kind: Any, judge: Any) -> None:
        async def noted(self: Any, sample: Any, engine: Any) -> Any:
            note("asked", sample.id)
            await asyncio.sleep(fault.get("delay", 0.0))
            outcome = await judge(self, sample, engine)
            note("said", sample.id)
            return outcome

        kind.judge = noted

    def settled(self: Any, these: Sequence[Any]) -> list[bool]:
        if any(each.outcome is not None for each in these):
            die("before")
        try:
            held: list[bool] = settle(self, these)
        except Exception:
            note("unstored", *(each.leased.sample.id for each in these if each.outcome is not None))
            raise
        stored = [each for each, is_held in zip(these, held, strict=True) if is_held]
        note("stored", *(each.leased.sample.id for each in stored if isinstance(each.outcome, Verdict)))
        if any(each.outcome is not None for each in these):
            die("after")
        return held

    def sink(part: Any) -> Any:
        told = tell(part)

        def noted(message: Mapping[str, Any]) -> None:
            told(message)
            die("told")

        return noted

    worker.plans_of, alerts.sink = plans_of, sink
    traces.Traces.settle = settled
    # Whatever is waited for in minutes is waited for in seconds.
    watcher.PAUSE, alerts.CHECK_EVERY, alerts.LEASE = 0.5, 0.2, fault.get("lease", alerts.LEASE)
    upkeep.UpkeepThread.__init__.__kwdefaults__["poll"] = 0.2
    if lease := fault.get("lease"):
        worker.Watcher.__init__.__kwdefaults__["lease"] = lease
    if busy := fault.get("busy_seconds"):
        state.BUSY_SECONDS = busy
        stores.Store.open.__func__.__kwdefaults__["busy_seconds"] = busy
    if "fast" in fault:
        begun = datetime.now(UTC)

        class Fast(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return begun + fault["fast"] * (datetime.now(tz) - begun)

        for module in (otlp, upkeep, watcher):
            module.datetime = Fast
    sys.argv = ["magistrate", *words[1:]]
    cli.main()


# --- what is sent -------------------------------------------------------------------------------------


def trace(number: int, moment: int) -> list[Span]:
    """Return a trace in OTLP/JSON: a chain, a search and a model call. Every second answer is made up."""
    said = f"Bern counts {word_of(number)} {number} people."
    found = said if word_of(number) == "faithful" else "Bern counts 134,000 people."
    steps: list[tuple[str, Mapping[str, str]]] = [
        ("CHAIN", {"input.value": "How many people live in Bern?", "output.value": said}),
        ("RETRIEVER", {"retrieval.documents.0.document.content": found}),
        ("LLM", {"llm.output_messages.0.message.content": said}),
    ]
    return [
        {
            "traceId": f"{number:032x}",
            "spanId": f"{place:016x}",
            "parentSpanId": PARENT if place > 1 else "",
            "name": kind.lower(),
            "startTimeUnixNano": str(moment + place * 1_000_000),
            "endTimeUnixNano": str(moment + (9 if place == 1 else place) * 1_000_000 + 500_000),
            "attributes": [
                {"key": key, "value": {"stringValue": value}}
                for key, value in {"openinference.span.kind": kind, **attributes}.items()
            ],
        }
        for place, (kind, attributes) in enumerate(steps, 1)
    ]


def word_of(number: int) -> str:
    """Return the verdict of an answer."""
    return ("faithful", "hallucinated")[number % 2]


def body_of(spans: Sequence[Span]) -> bytes:
    """Return an export in OTLP/JSON."""
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).encode()


@dataclass
class Sender:
    """An exporter: it sends again what a server may still accept, and knows what was accepted."""

    accepted: set[tuple[str, str]] = field(default_factory=set)
    said: Counter[int] = field(default_factory=Counter)  # 0 for a broken connection
    waited: list[float] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def send(self, address: str, spans: Sequence[Span]) -> None:
        """Send spans until they are accepted."""
        until = time.monotonic() + DEADLINE
        while (told := self.post(address, body_of(spans)))[0] != 200:
            status, wait = told
            if status not in (0, *AGAIN) or time.monotonic() > until:
                raise RuntimeError(f"an export was refused: {status}")
            if wait is not None:
                self.waited.append(wait)
            time.sleep(0.2 if wait is None else wait)
        with self._lock:
            self.accepted |= {(each["traceId"], each["spanId"]) for each in spans}

    def post(self, address: str, body: bytes, **headers: str) -> tuple[int, float | None]:
        """Send a body once. Return the status, 0 for a broken connection, and the seconds to wait."""
        given = {"Content-Type": "application/json", **headers}
        wait = None
        try:
            with urlopen(Request(f"{address}/v1/traces", body, given), timeout=60) as answer:
                status, told = answer.status, json.loads(answer.read() or b"{}")
                if told.get("partialSuccess"):
                    raise RuntimeError(f"a part of an export was rejected: {told}")
        except HTTPError as error:
            with error:
                status = error.code
                wait = float(said) if (said := error.headers.get("Retry-After")) else None
        except (OSError, HTTPException):
            status = 0
        with self._lock:
            self.said[status] += 1
        return status, wait

    @property
    def refusals(self) -> str:
        """Return the statuses other than 200, each with its number."""
        words = [
            f"{status or 'broken connections'} ×{n}"
            for status, n in sorted(self.said.items())
            if status != 200
        ]
        return ", ".join(words)


# --- one fault ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault. `strike` injects it while it sends everything, and returns what was seen.

    With `again`, a judge may give another verdict if the one before was not stored. With `server` a model
    judges, on a server with this fault of `fault_server`. What is `given` to the process: see `child`.
    """

    name: str
    strike: Callable[[Scene], str]
    again: bool = False
    server: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    postgres: bool = False


class Missed(Exception):
    """A fault did not strike."""


@dataclass
class Scene:
    """One fault's folder, store and processes."""

    folder: Path
    answers: int
    fault: Fault
    store: str = ""
    server: FaultServer | None = None  # of the model
    sender: Sender = field(default_factory=Sender)
    processes: list[tuple[str, subprocess.Popen[bytes]]] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(SEED))

    def __post_init__(self) -> None:
        self.folder.mkdir()
        self.store = self.store or str(self.folder / "watch.db")
        self.port = free_port()
        judge = "novelty"
        if self.server is not None:
            address = self.server.at(self.fault.server)
            judge = f"{{judge: faithfulness, model: 'openai:{MODEL}', base_url: '{address}'}}"
        rules = f"""
rules:
  - name: answers
    judges: [{judge}]
    quiet: {QUIET}
alerts:
  - name: made up
    when: flag_rate > 0.2
    n: {max(1, self.answers // 4)}
    windows: [2d]
    clear: 0.01
sinks:
  people: {{file: '{self.alerts}'}}
"""
        (self.folder / "rules.yaml").write_text(rules, encoding="utf-8")
        self.ledger.touch()

    @property
    def alerts(self) -> Path:
        return self.folder / "alerts.jsonl"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def numbers(self) -> range:
        return range(1, self.answers + 1)

    # --- processes ------------------------------------------------------------------------------------

    def start(self, port: int | None = None, **given: Any) -> str:
        """Start a server that watches, and return its address."""
        # What died before it could note it has stored it nevertheless.
        known = "".join(f"stored {name} 0\n" for name in self.verdicts())
        with self.ledger.open("a") as ledger:
            ledger.write(known)
        document = json.dumps({"ledger": str(self.ledger), **self.fault.given, **given})
        command = [sys.executable, SCRIPT, "child", document, "serve", "--store", self.store]
        command += ["--port", str(port or self.port), "--watch", str(self.folder / "rules.yaml")]
        environment = {**os.environ, "MAGISTRATE_HOME": str(self.folder / "home"), "MAGISTRATE_LOG": "json"}
        with (self.folder / "log").open("ab") as log:
            pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log}
            process = subprocess.Popen(command, env=environment, **pipes)
        address = f"http://127.0.0.1:{port or self.port}"
        self.processes.append((address, process))
        assert process.stdout is not None
        if not process.stdout.readline() and not given.get("dies"):
            raise RuntimeError(f"the server did not start: {self.log()[-500:]}")
        return address

    def end(self) -> None:
        """End what still runs, as a user does."""
        for _, process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for _, process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def noted(self, word: str) -> int:
        """Return how many answers the ledger has with a word."""
        return len({line for line in self.ledger.read_text().splitlines() if line.startswith(f"{word} ")})

    # --- sending --------------------------------------------------------------------------------------

    def traces(self) -> list[list[Span]]:
        return [trace(number, time.time_ns()) for number in self.numbers]

    def exports(self) -> list[list[Span]]:
        """Return the spans of all traces, as exports."""
        traces = self.traces()
        return [
            [span for one in traces[at : at + IN_EXPORT] for span in one]
            for at in range(0, len(traces), IN_EXPORT)
        ]

    def send(self, address: str, exports: Sequence[Sequence[Span]], pause: float = 0.0) -> None:
        for each in exports:
            self.sender.send(address, each)
            time.sleep(pause)

    # --- what is in the database ------------------------------------------------------------------------

    def rows(self, asked: str) -> list[tuple[Any, ...]]:
        """Return what a query finds, or nothing as long as there are no tables."""
        if "://" in self.store:
            import psycopg

            with psycopg.connect(self.store) as server, suppress(psycopg.errors.UndefinedTable):
                return server.execute(asked.encode()).fetchall()
            return []
        if not Path(self.store).exists():
            return []
        with closing(sqlite3.connect(self.store, timeout=30)) as peek:
            try:
                return peek.execute(asked).fetchall()
            except sqlite3.OperationalError:
                return []

    def spans(self) -> set[tuple[str, str]]:
        return {(trace_id, span_id) for trace_id, span_id in self.rows("SELECT trace_id, span_id FROM spans")}

    def verdicts(self) -> Counter[str]:
        """Return how many verdicts are stored of each sample."""
        asked = "SELECT s.sample_id FROM outcomes o JOIN run_samples s ON s.run_id = o.run_id "
        asked += "AND s.position = o.position WHERE o.kind = 'verdict'"
        return Counter(name for (name,) in self.rows(asked))

    def decisions(self) -> dict[str, list[tuple[str, str | None]]]:
        """Return the state and the verdict's label of the decisions in force, by trace."""
        asked = "SELECT t.trace_id, d.state, o.label FROM targets t LEFT JOIN decisions d ON d.target = t.id "
        asked += "AND d.state <> 'superseded' LEFT JOIN outcomes o ON o.id = d.outcome_id WHERE t.gone = 0"
        found: dict[str, list[tuple[str, str | None]]] = {}
        for trace_id, state, label in self.rows(asked):
            found.setdefault(trace_id, []).append((state, label))
        return found

    def states(self) -> Counter[str]:
        return Counter(state for each in self.decisions().values() for state, _ in each)

    # --- what is counted --------------------------------------------------------------------------------

    @property
    def lost(self) -> int:
        """Return how many spans were accepted and are not stored."""
        return len(self.sender.accepted - self.spans())

    @property
    def undecided(self) -> int:
        """Return how many answers do not have just the one decision that is right."""
        found = self.decisions()
        right = [found.pop(f"{each:032x}", None) == [("judged", word_of(each))] for each in self.numbers]
        return right.count(False) + len(found)

    @property
    def twice(self) -> int:
        """Return how many verdicts there are too many, and how often a judge was asked for another one."""
        many = sum(self.verdicts().values()) - len(self.verdicts())
        stored, said = set[str](), set[str]()
        for line in self.ledger.read_text().splitlines():
            word, name, _ = line.split()
            if word == "stored":
                stored.add(name)
            elif word == "said":
                many += name in stored or (name in said and not self.fault.again)
                said.add(name)
        return many

    @property
    def told(self) -> int:
        """Return how many messages people got."""
        return len(self.alerts.read_text().splitlines()) if self.alerts.exists() else 0

    def wait(self, done: Callable[[], bool], seconds: float = DEADLINE, step: float = 0.2) -> bool:
        """Wait until something is so, and return whether it is."""
        until = time.monotonic() + seconds
        while not (is_done := done()) and time.monotonic() < until:
            time.sleep(step)
        return is_done

    def settle(self) -> None:
        """Wait until nothing is left to do; then a little longer, since more than that would be wrong."""
        self.wait(lambda: self.told > 0 and not self.undecided)
        time.sleep(4 * QUIET)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def struck(is_so: object, told: str) -> str:
    """Return what was seen, if the fault struck."""
    if not is_so:
        raise Missed(told)
    return told


# --- the faults ---------------------------------------------------------------------------------------


def nothing(scene: Scene) -> str:
    scene.send(scene.start(), scene.exports())
    return "every export accepted at once"


def killed(scene: Scene) -> str:
    """Kill at the first verdict, by turns before and after it is stored, and start again."""
    address = f"http://127.0.0.1:{scene.port}"
    with ThreadPoolExecutor(1) as beside:
        sending = beside.submit(scene.send, address, scene.exports(), 0.3)
        for number in range(KILLS):
            scene.start(dies=("before", "after")[number % 2])
            _, process = scene.processes[-1]
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
        scene.start()
        sending.result()
    deaths = [process.returncode for _, process in scene.processes[:-1]]
    told = f"killed {deaths.count(-9)} times, by turns before and after a verdict was stored"
    return struck(deaths == [-9] * KILLS, f"{told}; exporter: {scene.sender.refusals}")


def killed_while_telling(scene: Scene) -> str:
    """Kill as soon as people were told, before that is noted."""
    address = scene.start(dies="told")
    scene.send(address, scene.exports())
    _, process = scene.processes[-1]
    with suppress(subprocess.TimeoutExpired):
        process.wait(60)
    scene.start()
    # The message is looked at again once the dead process's lease is over.
    over = scene.wait(lambda: scene.rows("SELECT state FROM outbox") == [("sent",)], 30)
    return struck(process.returncode == -9 and over, "killed once; the next one took over the message")


def doubled(scene: Scene) -> str:
    address = scene.start()
    exports = [each for each in scene.exports() for _ in range(2)]
    with ThreadPoolExecutor(4) as beside:
        list(beside.map(lambda each: scene.sender.send(address, each), exports))
    scene.send(address, exports)
    n = scene.sender.said[200]
    return struck(n == 2 * len(exports), f"{n} exports accepted for {len(exports) // 2}, four at a time")


def shuffled(scene: Scene) -> str:
    address = scene.start()
    spans = [span for one in scene.traces() for span in one]
    scene.draw.shuffle(spans)
    scene.send(address, [[span] for span in spans])
    places = {(each["traceId"], each["spanId"]): at for at, each in enumerate(spans)}
    early = sum(places[f"{n:032x}", PARENT] < places[f"{n:032x}", f"{2:016x}"] for n in scene.numbers)
    told = f"one span an export; {early} answers came before their documents"
    return struck(0 < early < scene.answers, told)


def orphaned(scene: Scene) -> str:
    address = scene.start()
    exports = scene.exports()
    scene.send(address, [[span for span in each if span["parentSpanId"]] for each in exports])
    time.sleep(4 * QUIET)
    early = sum(scene.states().values())
    scene.send(address, [[span for span in each if not span["parentSpanId"]] for each in exports])
    return struck(not early, f"{early} decisions until the parents came, {4 * QUIET:g} s later")


def skewed(scene: Scene) -> str:
    now = time.time_ns()
    traces = [trace(number, now + (DAY, -DAY)[number // 2 % 2]) for number in scene.numbers]
    scene.send(scene.start(), traces)
    return "every export accepted at once"


def bombed(scene: Scene) -> str:
    address = scene.start()
    exports = scene.exports()
    half = len(exports) // 2
    scene.send(address, exports[:half])
    before = peak(scene)
    status, _ = scene.sender.post(address, gzip.compress(bytes(BOMB)), **{"Content-Encoding": "gzip"})
    grown = peak(scene) - before
    scene.send(address, exports[half:])
    told = f"the bomb of {BOMB // MEGABYTE} MB: {status}, {grown:.0f} MB more memory at the most"
    return struck(status == 413 and grown < BOMB / MEGABYTE, told)


def peak(scene: Scene) -> float:
    """Return the most megabytes that the last process had in memory."""
    lines = Path(f"/proc/{scene.processes[-1][1].pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM"))) / 1024


def too_large(scene: Scene) -> str:
    address = scene.start()
    exports = scene.exports()
    half = len(exports) // 2
    scene.send(address, exports[:half])
    [span, *_] = trace(10**6, time.time_ns())
    status, _ = scene.sender.post(address, body_of([{**span, "name": "x" * LARGE}]))
    scene.send(address, exports[half:])
    return struck(status == 413, f"the export of {LARGE // MEGABYTE} MB: {status}")


def crowded(scene: Scene) -> str:
    """Let as many requests wait for the rest of their body as the server has at once."""
    head = b"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return _pressed(scene, 503, LINES, head + b"Content-Length: 100\r\n\r\n{")


def connected(scene: Scene) -> str:
    """Hold as many connections as an address may have."""
    return _pressed(scene, 429, CONNECTIONS, b"")


def _pressed(scene: Scene, status: int, n: int, first: bytes) -> str:
    address = scene.start()
    exports = scene.exports()
    half = len(exports) // 2
    scene.send(address, exports[:half])
    with ThreadPoolExecutor(1) as beside, ExitStack() as crowd:
        for _ in range(n):
            one = crowd.enter_context(socket.create_connection(("127.0.0.1", scene.port)))
            one.sendall(first)
        time.sleep(0.5)
        sending = beside.submit(scene.send, address, exports[half:])
        scene.wait(lambda: scene.sender.said[status] > 0, 20)
    sending.result()
    waits = scene.sender.waited
    told = f"exporter: {scene.sender.refusals}, waited as asked: {', '.join(f'{each:g} s' for each in waits)}"
    return struck(scene.sender.said[status] and waits, told)


def full(scene: Scene) -> str:
    """Limit the size of files, and lift that from outside; the process goes on."""
    address = scene.start()
    exports = scene.exports()
    half = len(exports) // 2
    scene.send(address, exports[:half])
    scene.wait(lambda: scene.noted("asked") > 0, step=0.02)
    _, process = scene.processes[-1]
    size = Path(f"{scene.store}-wal").stat().st_size
    before = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    with ThreadPoolExecutor(1) as beside:
        sending = beside.submit(scene.send, address, exports[half:])
        scene.wait(lambda: scene.sender.said[503] > 0 and scene.noted("unstored") > 0, 30)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, before)
        sending.result()
    told = f"exporter: {scene.sender.refusals}; {scene.noted('unstored')} verdicts were stored later"
    return struck(scene.sender.said[503] and scene.noted("unstored"), told)


def locked(scene: Scene) -> str:
    """Hold the database's write lock for longer than anybody waits."""
    address = scene.start()
    exports = scene.exports()
    half = len(exports) // 2
    scene.send(address, exports[:half])
    scene.wait(lambda: scene.noted("asked") > 0, step=0.02)
    with closing(sqlite3.connect(scene.store, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(1) as beside:
            sending = beside.submit(scene.send, address, exports[half:])
            scene.wait(lambda: scene.sender.said[503] > 0 and scene.noted("unstored") > 0, 30)
            other.execute("ROLLBACK")
            sending.result()
    told = f"exporter: {scene.sender.refusals}; {scene.noted('unstored')} verdicts were stored later"
    return struck(scene.sender.said[503] and scene.noted("unstored"), told)


def busy(scene: Scene) -> str:
    scene.send(scene.start(), scene.exports())
    scene.wait(lambda: not scene.undecided)
    assert scene.server is not None
    n = sum(each.struck for each in scene.server.asked)
    return struck(n, f"{n} of {len(scene.server.calls())} calls answered 429; none failed for good")


def gone(scene: Scene) -> str:
    """Close the judge's server half-way, and open it after an hour of a clock that is faster."""
    assert scene.server is not None
    address = scene.start()
    exports = scene.exports()
    half = len(exports) // 2
    scene.send(address, exports[:half])
    scene.wait(lambda: scene.states()["judged"] == half * IN_EXPORT)
    scene.server.gone_after = 0  # it answers what it has accepted
    scene.send(address, exports[half:], 1.0)
    scene.wait(lambda: scene.states()["retrying"] > 0, 60)
    time.sleep(3600 / FAST)
    found = scene.states()
    scene.server.come_back()
    told = ", ".join(f"{n} {state}" for state, n in sorted(found.items()))
    return struck(found["retrying"], f"after an hour of a clock {FAST} times as fast: {told}")


def together(scene: Scene) -> str:
    """Let two servers watch one store, and give each every second export."""
    addresses = [scene.start(), scene.start(free_port())]
    with ThreadPoolExecutor(2) as beside:
        for place, address in enumerate(addresses):
            beside.submit(scene.send, address, scene.exports()[place::2], 0.6)
    scene.wait(lambda: not scene.undecided)
    shares = Counter(
        line.split()[2] for line in scene.ledger.read_text().splitlines() if line.startswith("stored")
    )
    told = f"verdicts by either: {' and '.join(map(str, sorted(shares.values())))}"
    return struck(len(shares) == 2, told)


FAULTS = (
    Fault("nothing, for comparison", nothing),
    Fault(f"kill -9 between answer and verdict, {KILLS} times", killed, again=True, given={"lease": 2.0}),
    Fault("kill -9 between an alert and its note", killed_while_telling, again=True, given={"lease": 2.0}),
    Fault("duplicates", doubled),
    Fault("spans out of order", shuffled),
    Fault("children before their parent", orphaned),
    Fault("clocks of clients a day ahead and behind", skewed),
    Fault("a gzip bomb", bombed),
    Fault("413: an export that is too large", too_large),
    Fault("429: too many connections", connected),
    Fault("503: too many requests", crowded),
    Fault("disk full", full, given={"delay": 0.6}),
    Fault("database locked for longer than it waits", locked, given={"busy_seconds": 0.5, "delay": 0.6}),
    Fault("the judge's server: 429 with Retry-After, half of the calls", busy, server="429-after@50"),
    Fault(
        "the judge's server gone for an hour", gone, server="fine", given={"fast": FAST, "lease": 36_000.0}
    ),
    Fault("two watchers on one PostgreSQL", together, given={"delay": 1.0}, postgres=True),
)


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    fault: str
    lost: int
    undecided: int
    twice: int
    doubled: int
    seconds: float
    seen: str
    struck: bool

    @property
    def is_good(self) -> bool:
        return self.struck and not (self.lost or self.undecided or self.twice or self.doubled)

    @property
    def cells(self) -> list[str]:
        numbers = [str(n) for n in (self.lost, self.undecided, self.twice, self.doubled)]
        return [self.fault, *numbers, f"{self.seconds:.1f}", self.seen]


def suffered(fault: Fault, answers: int, folder: Path) -> Row:
    """Inject the fault, bring everything back, wait, and count."""
    with standing(fault) as (server, store):
        return counted(Scene(folder, answers, fault, store, server))


@contextmanager
def standing(fault: Fault) -> Iterator[tuple[FaultServer | None, str]]:
    """Yield the model's server and the store of a fault, if it needs them."""
    with ExitStack() as stack:
        server, store = None, ""
        if fault.server:
            server = stack.enter_context(fault_server(replied, spares=spared, wait=0.05))
        if fault.postgres:
            from postgres import a_server

            store = stack.enter_context(a_server()).new_database()
        yield server, store


def counted(scene: Scene) -> Row:
    begun, is_struck = time.monotonic(), True
    try:
        try:
            seen = scene.fault.strike(scene)
        except Missed as missed:
            seen, is_struck = f"it did not strike: {missed}", False
        scene.settle()
    finally:
        scene.end()
    return Row(
        fault=scene.fault.name,
        lost=scene.lost,
        undecided=scene.undecided,
        twice=scene.twice,
        doubled=abs(scene.told - 1),  # one that is missing is as wrong
        seconds=time.monotonic() - begun,
        seen=seen,
        struck=is_struck,
    )


# --- the table ----------------------------------------------------------------------------------------


def main() -> int:
    return tried(
        FAULTS,
        suffered,
        about=__doc__,
        name="chaos watch",
        columns=COLUMNS,
        size=("--answers", 60),
        told=lambda size: f"{size} answers in {3 * size} spans a row, two cores, {{day}}.",
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2:])
    else:
        sys.exit(main())
