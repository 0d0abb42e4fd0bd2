"""Reliability of runs under faults: every fault over the same samples, as a table.

    python benchmarks/chaos.py [--samples 500] [--only WORD] [--write]

Each row starts the command line in its own process, on an engine or a server with known answers, injects a
fault, and follows the printed messages (`resume`, `retry`) until the run is done. Then every outcome is
compared with the expected one. `--write` puts the table into docs/reliability.md. The exit status is 1 if
an outcome was lost, judged twice or wrongly faithful, or if a fault did not strike.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeVar

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from fault_server import MODEL, Answer, FaultServer, fault_server  # noqa: E402

PAGE = ROOT / "docs" / "reliability.md"
COLUMNS = ("fault", "lost", "judged twice", "wrongly faithful", "seconds", "exit", "what the user saw")
SEED = 20261122
DEADLINE = 0.4
LIE = Answer("Yes", first={"Yes": 0.99, "No": 0.01})  # faithful: a broken answer is derived from it
TRIED = re.compile(r"\b(faithful|hallucinated) (\d+)\b")  # an output anywhere in a prompt
SILENT = {0: "the report", -9: "nothing; `magistrate runs` then says: killed"}
GOES = 60  # most attempts to resume a run


# --- the process that judges ------------------------------------------------------------------------


def child(words: Sequence[str]) -> None:
    """Run the command line with a scripted engine and the fault in a JSON document.

    If the fault is a server's, the engine is not replaced.
    """
    import magistrate.store
    from magistrate import cli
    from magistrate.engines.scripted import ScriptedEngine
    from magistrate.judges import registry

    fault: dict[str, Any] = json.loads(words[0])
    if fault.get("server"):
        sys.argv = ["magistrate", *words[1:]]
        cli.main()
    draw = random.Random(fault.get("seed", SEED))
    asked = os.open(fault["asked"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def script(prompt: Any) -> Any:
        (output,) = (part.text for part in prompt.data() if part.name == "output")
        os.write(asked, f"{output.split()[1]}\n".encode())
        if int(output.split()[1]) >= fault.get("gone_after", 10**9):
            raise ConnectionRefusedError("connection refused")
        if draw.random() < fault.get("share", 0.0):
            kind = draw.choice(fault["kinds"])
            if kind == "hang":
                await asyncio.sleep(3600)
            if kind == "invalid":
                return "no probabilities at all"
            raise {"exception": RuntimeError("CUDA error"), "memory": MemoryError("out of memory")}[kind]
        return truth(output)

    engine = ScriptedEngine(script, delay=fault.get("delay", 0.002))
    registry.engine = lambda *_, **__: engine  # type: ignore[assignment]
    if limit := fault.get("file_bytes"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if busy := fault.get("busy_seconds"):
        magistrate.store.Store.open.__func__.__kwdefaults__["busy_seconds"] = busy  # type: ignore[attr-defined]
    if jumps := fault.get("jumps"):
        moments = iter(jumps)

        class Jumping(datetime):
            @classmethod
            def now(cls, zone: Any = None) -> datetime:
                return datetime.now(zone) + timedelta(hours=next(moments, jumps[-1]))

        magistrate.store.datetime = Jumping  # type: ignore[attr-defined]
    sys.argv = ["magistrate", *words[1:]]
    cli.main()


def truth(output: str) -> Mapping[str, float]:
    """Return the engine's probabilities for an output, from its first word and its number."""
    word, number = output.split()
    sure = 0.6 + int(number) % 300 / 1000
    return {word: sure, ({"faithful", "hallucinated"} - {word}).pop(): 1 - sure}


def replied(body: Mapping[str, Any]) -> Answer:
    """Return a server's answer, with the probabilities of `truth` for the output in the prompt."""
    found = TRIED.findall(json.dumps(body.get("messages")))
    if not found:
        return Answer("Yes", first={"Yes": 0.9, "No": 0.1})
    shares = truth(" ".join(found[-1]))
    first = {"Yes": shares["faithful"], "No": shares["hallucinated"]}
    return Answer(max(first, key=first.__getitem__), first=first)


def spared(text: str) -> bool:
    """Return whether a prompt contains no output to judge, as when the server's capabilities are probed."""
    return TRIED.search(text) is None


def _tried(text: str) -> str:
    """Return the id of the sample that a prompt is about."""
    return f"s{TRIED.findall(text)[-1][1]}"


# --- one fault --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault: what breaks during the first attempt, who else uses the store, and the expected exit status.

    If the attempt exits with another status, the fault did not strike and its row would be meaningless.
    With `server` the model runs on a server that injects this fault of `fault_server`. `options` apply to
    the first attempt.
    """

    name: str
    exit: int = 0
    broken: Mapping[str, Any] = field(default_factory=dict)
    signals: Sequence[signal.Signals] = ()
    beside: Callable[[Scene], Any] | None = None
    server: str = ""
    options: Sequence[str] = ()


# The server's fault in 30 % of the calls, and the first exit status: 0 if retries fix it.
SERVER_FAULTS: tuple[tuple[str, int, dict[str, Any]], ...] = (
    ("connection reset in the body", 0, {"server": "reset@30"}),
    ("400", 3, {"server": "400@30"}),
    ("401", 3, {"server": "401@30"}),
    ("403", 3, {"server": "403@30"}),
    ("404", 3, {"server": "404@30"}),
    ("408", 0, {"server": "408@30"}),
    ("413", 0, {"server": "413@30"}),
    ("429", 0, {"server": "429@30"}),
    ("429 with Retry-After", 0, {"server": "429-after@30"}),
    ("500", 0, {"server": "500@30"}),
    ("503", 0, {"server": "503@30"}),
    ("invalid JSON", 0, {"server": "invalid-json@30"}),
    ("truncated JSON", 0, {"server": "truncated-json@30"}),
    ("wrong schema", 3, {"server": "wrong-schema@30"}),
    ("empty choices", 3, {"server": "empty-choices@30"}),
    ("content filter", 3, {"server": "content-filter@30"}),
    ("a body of 10 MB", 0, {"server": "big@30"}),
    ("a wrong encoding", 0, {"server": "not-utf8@30"}),
)
FAULTS = (
    Fault("nothing, for comparison"),
    Fault("engine exception, 30 % of the calls", 3, {"share": 0.3, "kinds": ["exception"]}),
    Fault("hang, 30 % of the calls", 3, {"share": 0.3, "kinds": ["hang"]}),
    Fault("out of memory, 30 % of the calls", 3, {"share": 0.3, "kinds": ["memory"]}),
    Fault("invalid output, 30 % of the calls", 3, {"share": 0.3, "kinds": ["invalid"]}),
    Fault(
        "all of these, 30 % of the calls",
        3,
        {"share": 0.3, "kinds": ["exception", "hang", "memory", "invalid"]},
    ),
    Fault("engine gone for good half-way", 3, {"gone": 0.5}),
    Fault("disk full half-way", 2, {"full": 0.5}),
    Fault("database locked, 2 s", beside=lambda scene: scene.lock(2)),
    Fault(
        "database locked for longer than it waits",
        2,
        {"busy_seconds": 0.5},
        beside=lambda scene: scene.lock(3),
    ),
    Fault("clock jumps, a day on and a year back", 0, {"jumps": [0, 24, -8760, 3, -8760]}),
    Fault("Ctrl-C", 130, signals=[signal.SIGINT]),
    Fault("SIGTERM", 143, signals=[signal.SIGTERM]),
    Fault("SIGHUP", 129, signals=[signal.SIGHUP]),
    Fault("kill -9, at ten random moments", -9, signals=[signal.SIGKILL] * 10),
    Fault("reader during write", 0, {"delay": 0.1}, beside=lambda scene: scene.read()),
    Fault("a second process that resumes it meanwhile", beside=lambda scene: scene.intrude()),
    Fault("server: nothing, for comparison", server="fine"),
    Fault("server: connection refused from half-way on", 3, {"gone": 0.5}, server="fine"),
    Fault("server: slow loris, 20 % of the calls", 3, server="loris@20", options=("--timeout", "1")),
    *(Fault(f"server: {name}, 30 % of the calls", code, **how) for name, code, how in SERVER_FAULTS),
)


@dataclass
class Scene:
    """One fault's folder: the samples, the store, and the log of events."""

    folder: Path
    samples: int
    fault: Fault
    server: FaultServer | None = None
    expected: dict[str, tuple[str, float]] = field(default_factory=dict)
    twice: int = 0
    wrong: int = 0
    noted: list[str] = field(default_factory=list)
    draw: random.Random = field(default_factory=lambda: random.Random(SEED))

    def __post_init__(self) -> None:
        self.folder.mkdir()
        words = [("faithful", "hallucinated")[number % 2] for number in range(self.samples)]
        rows = [
            {"id": f"s{number}", "output": f"{word} {number}", "context": "c", "label": word}
            for number, word in enumerate(words)
        ]
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for row in rows:
            score = truth(row["output"])["hallucinated"]
            self.expected[row["id"]] = (row["label"], score)

    @property
    def data(self) -> Path:
        return self.folder / "answers.jsonl"

    @property
    def store(self) -> Path:
        return self.folder / "runs.db"

    @property
    def broken(self) -> dict[str, Any]:
        """Return the fault as the child reads it; fractions become numbers of calls."""
        given = dict(self.fault.broken)
        if self.server is not None:
            if "gone" in given:
                self.server.gone_after = int(given["gone"] * self.samples)
            return given
        if "gone" in given:
            given["gone_after"] = int(given.pop("gone") * self.samples)
        if "full" in given:
            given["file_bytes"] = 60_000 + int(given.pop("full") * self.samples * 1_400)
        return given

    def started(self, fault: Mapping[str, Any], *words: str) -> subprocess.Popen[str]:
        """Start the command line, and record its calls in a fresh file."""
        asked = self.folder / "asked"
        asked.write_text("")
        document = json.dumps({**fault, "asked": str(asked), "server": self.server is not None})
        command = [sys.executable, __file__, "child", document, *words, "--store", str(self.store)]
        environment = {**os.environ, "MAGISTRATE_HOME": str(self.folder / "home"), "COLUMNS": "200"}
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, **pipes)

    def outcomes(self) -> dict[str, tuple[str, str | None, float | None]]:
        """Return the committed kind, label and score by sample."""
        if not self.store.exists():
            return {}
        with closing(sqlite3.connect(self.store)) as peek:
            asked = "SELECT s.sample_id, o.kind, o.label, o.score FROM outcomes o JOIN run_samples s "
            asked += "ON s.run_id = o.run_id AND s.position = o.position"
            try:
                return {row[0]: row[1:] for row in peek.execute(asked)}
            except sqlite3.OperationalError:
                return {}

    def runs(self) -> list[tuple[str, str]]:
        """Return every run's id and status."""
        if not self.store.exists():
            return []
        with closing(sqlite3.connect(self.store)) as peek:
            try:
                return peek.execute("SELECT id, status FROM runs").fetchall()
            except sqlite3.OperationalError:
                return []

    def go(
        self, fault: Mapping[str, Any], *words: str, ended_by: signal.Signals | None = None
    ) -> tuple[int, str]:
        """Execute the command line once, and check that it calls nothing that already has a verdict."""
        known = {sample for sample, (kind, *_) in self.outcomes().items() if kind != "failure"}
        before = 0 if self.server is None else len(self.server.asked)
        with self.started(fault, *words) as process:
            if ended_by is not None:
                self.wait_for_work(process)
                time.sleep(self.draw.uniform(0, 0.3))
                process.send_signal(ended_by)
            if self.fault.beside is not None and words[0] == "run":
                self.wait_for_work(process)
                self.fault.beside(self)
            _, err = process.communicate(timeout=120)
        if self.server is None:
            asked = [f"s{line}" for line in (self.folder / "asked").read_text().split()]
        else:
            calls = [each for each in self.server.asked[before:] if each.is_call and not spared(each.text)]
            asked = [_tried(each.text) for each in calls]
            answered = Counter(_tried(each.text) for each in calls if not each.struck)
            self.twice += sum(n > 1 for n in answered.values())
        self.twice += len(known.intersection(asked))
        self.wrong += sum(
            label == "faithful" and self.expected[sample][0] != "faithful"
            for sample, (_, label, _) in self.outcomes().items()
        )
        return process.returncode, err

    def lost(self) -> int:
        """Return how many samples lack the outcome that they should have.

        Only the server knows which samples are too long: if it says so, an abstention is right.
        """
        after = self.outcomes()
        return sum(not self._is_right(after.get(sample), *known) for sample, known in self.expected.items())

    def _is_right(self, found: tuple[str, str | None, float | None] | None, label: str, score: float) -> bool:
        if found is None or found[2] is None:
            return found is not None and found[0] == "abstention" and self.fault.server.startswith("413")
        # Scores that went through a logarithm may differ in the last bits.
        tolerance = 0.0 if self.server is None else 1e-9
        return found[1] == label and math.isclose(found[2], score, rel_tol=0.0, abs_tol=tolerance)

    @property
    def met(self) -> bool:
        """Return whether the server's fault struck."""
        if self.server is None or "@" not in self.fault.server:
            return True
        return any(each.struck for each in self.server.asked)

    def wait_for_work(self, process: subprocess.Popen[str]) -> None:
        """Wait until something was judged in this attempt."""
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            if (self.folder / "asked").stat().st_size > 20:
                return
            time.sleep(0.005)

    # --- who else is at the store -----------------------------------------------------------------

    def lock(self, seconds: float) -> None:
        """Hold the database's write lock from another connection."""
        with closing(sqlite3.connect(self.store, timeout=30, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            time.sleep(seconds)
            other.execute("ROLLBACK")

    def read(self) -> None:
        """Create reports continuously, like another program."""
        from magistrate.api.run import Run
        from magistrate.store import Store

        [(run_id, _)] = self.runs()
        reports = 0
        until = time.monotonic() + 30
        while time.monotonic() < until:
            report = Run(run_id, self.store).summary()
            reports += 1
            assert all(judge.n_ok <= judge.n_judged <= self.samples for judge in report.judges)
            with Store.open(self.store) as store:
                if store.find_run(run_id).status != "running":
                    break
        self.noted.append(f"reports made meanwhile: {reports}, each whole")

    def intrude(self) -> None:
        """Try to judge the same run from another program."""
        [(run_id, _)] = self.runs()
        environment = {**os.environ, "MAGISTRATE_HOME": str(self.folder / "home")}
        document = json.dumps({"asked": str(self.folder / "intruder")})
        command = [sys.executable, __file__, "child", document, "resume", run_id, "--store", str(self.store)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        self.noted.append(f"the second: {_last(done.stderr)} (exit {done.returncode})")


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    fault: str
    lost: int
    twice: int
    wrong: int
    seconds: float
    code: int
    seen: str
    struck: bool

    @property
    def is_good(self) -> bool:
        return self.struck and not (self.lost or self.twice or self.wrong)

    @property
    def cells(self) -> list[str]:
        numbers = [str(self.lost), str(self.twice), str(self.wrong), f"{self.seconds:.1f}", str(self.code)]
        return [self.fault, *numbers, self.seen]


def suffered(fault: Fault, samples: int, folder: Path) -> Row:
    """Inject the fault, follow the messages, and compare the results with the expected ones."""
    serving = fault_server(replied, spares=spared, lie=LIE, wait=0.05) if fault.server else nullcontext()
    with serving as server:
        return _suffered(Scene(folder, samples, fault, server))


def _suffered(scene: Scene) -> Row:
    fault, samples = scene.fault, scene.samples
    begun = time.monotonic()
    # A process that is to be disturbed must be slow enough to be caught at work.
    slow = {"delay": min(16 / samples, DEADLINE / 2)} if fault.signals or fault.beside else {}
    options = ["--max-failures", "0.05", "--no-cache"]
    if scene.server is None:
        # Only calls that hang shall miss it, not slow ones on a busy machine.
        options += ["--deadline", str(25 * DEADLINE if slow else DEADLINE)]
    else:
        options += ["--model", f"openai:{MODEL}", "--base-url", scene.server.at(fault.server), *fault.options]
    first = ("run", str(scene.data), "--judge", "faithfulness", *options)
    signals = list(fault.signals)
    code, err = scene.go(slow | scene.broken, *first, ended_by=signals.pop(0) if signals else None)
    first_code, seen = code, [*scene.noted, _last(err)]
    if scene.server is not None:
        scene.server.come_back()
    for _ in range(GOES):
        runs = scene.runs()
        if not runs:
            scene.go(slow, *first, ended_by=signals.pop(0) if signals else None)
        elif runs[0][1] != "done":
            scene.go(slow, "resume", runs[0][0], ended_by=signals.pop(0) if signals else None)
        elif any(kind == "failure" for kind, *_ in scene.outcomes().values()):
            scene.go({}, "retry", runs[0][0])
        else:
            break
    return Row(
        fault=fault.name,
        lost=scene.lost(),
        twice=scene.twice,
        wrong=scene.wrong,
        seconds=time.monotonic() - begun,
        code=first_code,
        struck=first_code == fault.exit and scene.met,
        seen="; ".join(each for each in seen if each) or SILENT.get(first_code, ""),
    )


def _last(err: str) -> str:
    """Return the last message, without the parts that vary between runs."""
    lines = [line for line in err.splitlines() if line.strip() and not line.startswith("judged ")]
    told = " / ".join(lines[-2:])
    told = re.sub(r"\d{8}-\d{6}-\w{4}", "RUN", told)
    told = re.sub(r"http://127\.0\.0\.1:\d+[^\s:;,]*", "URL", told)
    told = re.sub(r"(store )?/\S+/runs\.db", "store runs.db", told)
    return re.sub(r"pid \d+ on \S+?\)", "pid N on HOST)", told).replace("|", "\\|")


# --- the table --------------------------------------------------------------------------------------


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table: numbers between what it is about and what was seen."""
    yield f"| {' | '.join(columns)} |"
    yield f"| --- | {'--: | ' * (len(columns) - 2)}--- |"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


def written(name: str, told: str, lines: Iterable[str]) -> str:
    """Return the page with a new table between the markers of this name."""
    page = PAGE.read_text(encoding="utf-8")
    day = datetime.now(UTC).date().isoformat()
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    block = "\n".join([begin, told.format(day=day), "", *lines, end])
    return re.sub(f"{begin}.*?{end}", lambda _: block, page, flags=re.DOTALL)


class Tried(Protocol):
    """What became of a fault, as a row of a table."""

    @property
    def is_good(self) -> bool: ...

    @property
    def cells(self) -> list[str]: ...


class Named(Protocol):
    """A fault."""

    @property
    def name(self) -> str: ...


F = TypeVar("F", bound=Named)


def tried(
    faults: Sequence[F],
    suffer: Callable[[F, int, Path], Tried],
    *,
    about: str | None,
    name: str,
    columns: Sequence[str],
    size: tuple[str, int],
    told: Callable[[int], str],
) -> int:
    """Inject the faults that the command line asks for, print their rows, and write them to the page.

    `size` is the option for how many samples or answers there are in a row, and its default. `told` says it
    above the table `name` of the page. Returns the exit status: 1 if any row is not good.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(size[0], type=int, default=size[1], dest="size")
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose name holds this word")
    parser.add_argument("--write", action="store_true", help="put the table into docs/reliability.md")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for number, fault in enumerate(each for each in faults if asked.only in each.name):
            row = suffer(fault, asked.size, Path(scratch) / str(number))
            rows.append(row)
            print(f"{' · '.join(row.cells)}", flush=True)
    lines = list(table(columns, [row.cells for row in rows]))
    print("\n".join(["", *lines]))
    if asked.write:
        PAGE.write_text(written(name, told(asked.size), lines), encoding="utf-8")
    return int(not all(row.is_good for row in rows))


def main() -> int:
    return tried(
        FAULTS,
        suffered,
        about=__doc__,
        name="chaos",
        columns=COLUMNS,
        size=("--samples", 500),
        told=lambda size: (
            f"{size} samples a row, two cores, {{day}}; seconds hold every process that was started."
        ),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(sys.argv[2:])
    else:
        sys.exit(main())
