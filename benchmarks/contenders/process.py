"""A contender's process, both sides: the parent starts, asks and ends it; the child measures.

The child reads JSON lines and answers each with one. The first is its set-up, `{"weights": {...},
"threads": n}`, answered with `{"version", "works", "seconds"}`; the others are `{"work", "in_flight",
"items", "warm"}`, answered with the fields of a `Measured`, where `warm` are items to answer first,
unmeasured. The work `memory` is answered here. Errors are answered as `{"error": reason}`. Other output
to standard output is redirected to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import IO, Any

import magistrate
from benchmarks.contenders.base import CONTENDERS, Contender, Item, Measured, Weights, made
from magistrate.errors import EngineError, EngineGone, SpecError

GRACE_SECONDS = 5.0
POLL_SECONDS = 0.2
BENCHMARKS = Path(__file__).resolve().parent.parent
PACKAGE = Path(magistrate.__file__).resolve().parent
# Another Python has its own packages and must see only these two of ours, wherever they are.
_START = """\
import sys
from importlib.util import module_from_spec, spec_from_file_location
*roots, name = sys.argv[1:]
for package, root in zip(("magistrate", "benchmarks"), roots, strict=True):
    spec = spec_from_file_location(package, root + "/__init__.py", submodule_search_locations=[root])
    sys.modules[package] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[package])
from benchmarks.contenders.process import serve
serve(name)
"""


class Child:
    """A contender in its own process, from its start to the end of the `with` block.

    `python` None is this Python. `version`, `works` and `seconds` (of loading) come from its reply to the
    set-up. Raises `EngineError` for a failure that it reports, `EngineGone` if it died or took longer than
    `limit` seconds.
    """

    def __init__(self, name: str, weights: Weights, threads: int, python: Path | None, limit: float) -> None:
        self.name = name
        self._limit = limit
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 — read when it fails, closed with the child
        try:
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-c", _START, str(PACKAGE), str(BENCHMARKS), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"},
                # We pass on a Ctrl-C ourselves: it ends the group, with all that the contender started.
                start_new_session=True,
            )
        except OSError as error:
            self._log.close()
            raise EngineGone(f"cannot start {python}: {error.strerror or error}") from error
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            paths = {form: str(path) if path else None for form, path in asdict(weights).items()}
            ready = self._ask({"weights": paths, "threads": threads})
        except BaseException:
            self.close()
            raise
        self.version: str = ready["version"]
        self.works = frozenset(ready["works"])
        self.seconds: float = ready["seconds"]

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(GRACE_SECONDS if kind is None else 0)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def measure(
        self, work: str, items: Sequence[Item] = (), in_flight: int = 1, warm: Sequence[Item] = ()
    ) -> Measured:
        """Measure one work over `items`, after answering `warm` unmeasured."""
        request = {
            "work": work,
            "in_flight": in_flight,
            "items": [asdict(item) for item in items],
            "warm": [asdict(item) for item in warm],
        }
        measured = Measured(**self._ask(request))
        if measured.count < 1 or (measured.seconds <= 0 and work != "memory"):
            raise EngineError(f"answered {work} with {measured.count} results in {measured.seconds} s")
        return measured

    def close(self, grace: float = 0) -> None:
        """End the process and all that it started; after `grace` seconds they are killed."""
        process = self._process
        with contextlib.suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
        for how in (signal.SIGTERM, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM):
            self._signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
                break
        if process.stdout is not None:
            process.stdout.close()
        self._log.close()

    def _signal(self, how: signal.Signals) -> None:
        """Send a signal to the whole group, which may outlive the child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, how)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # closed concurrently at the end
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise EngineGone(self._ended()) from None
        line = self._line()
        if line is None:
            raise EngineGone(self._ended())
        try:
            answer = json.loads(line)
        except ValueError:
            raise EngineGone(f"answered what is no JSON: {line[:200]!r}") from None
        if not isinstance(answer, dict):
            raise EngineGone(f"answered no JSON object: {line[:200]!r}")
        if "error" in answer:
            raise EngineError(str(answer["error"]))
        return answer

    def _line(self) -> str | None:
        """Return the next line; None at the end of the process."""
        deadline = time.monotonic() + self._limit
        while time.monotonic() < deadline:
            # In slices, so that a Ctrl-C is noticed immediately on all platforms.
            with contextlib.suppress(Empty):
                return self._lines.get(timeout=POLL_SECONDS)
        raise EngineGone(f"no answer within {self._limit:.0f} s")

    def _ended(self) -> str:
        """Describe how the process ended, with its last line on standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        status = self._process.returncode
        how = f"ended with signal {-status}" if status is not None and status < 0 else f"ended ({status})"
        self._log.seek(0)
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how


LEVELLESS = ("prefill",)  # works without a number in flight
ITEMLESS = ("mask",)  # works without items
MEGABYTE = 1e6
_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


def serve(name: str) -> None:
    """Serve one contender until standard input ends."""
    requests, answers = _channels()

    def answer(value: Mapping[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    contender: Contender | None = None
    for line in requests:
        try:
            request = json.loads(line)
            if contender is None:
                contender, loaded = _loaded(name, request)
                answer(loaded)
            else:
                answer(asdict(_measured(contender, request)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # contenders are foreign code; some raise a BaseException
            answer({"error": reason(error)})
    if contender is not None:
        contender.close()


def reason(error: BaseException) -> str:
    """Return an error as one line."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error.name}"
    known = isinstance(error, EngineError | SpecError)
    return text if known and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def _channels() -> tuple[Iterator[str], IO[str]]:
    """The parent's two ends, kept for this module alone: other code sees an empty input, and an output
    that is standard error."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    sys.stdout.flush()
    os.dup2(2, 1)
    return iter(requests.readline, ""), answers


def _loaded(name: str, setup: Mapping[str, Any]) -> tuple[Contender, Mapping[str, Any]]:
    paths = setup["weights"]
    weights = Weights(
        Path(paths["ir"]), Path(paths["gguf"]) if paths["gguf"] else None, Path(paths["tokenizer"])
    )
    contender = made(CONTENDERS[name].target if name in CONTENDERS else name)
    version = contender.version()
    start = time.perf_counter()
    contender.load(weights, int(setup["threads"]))
    seconds = time.perf_counter() - start
    return contender, {"version": version, "works": sorted(contender.works), "seconds": seconds}


def _measured(contender: Contender, request: Mapping[str, Any]) -> Measured:
    work = request["work"]
    if work == "memory":
        return Measured(1, 0, 0.0, 1, memory())
    if work not in contender.works:
        raise SpecError(f"cannot do {work}")
    method = getattr(contender, work)
    if work in ITEMLESS:
        measured = method()
    else:
        levels = () if work in LEVELLESS else (int(request["in_flight"]),)
        if warm := _items(request.get("warm", ())):
            method(warm, *levels)
        measured = method(_items(request["items"]), *levels)
    assert isinstance(measured, Measured)
    return measured


def _items(rows: list[Mapping[str, Any]]) -> list[Item]:
    return [Item(**{**row, "tokens": tuple(row["tokens"])}) for row in rows]


def memory() -> Mapping[str, float]:
    """Return the resident set in megabytes (10^6 bytes): `peak`, plus that of its largest child, and `now`.

    `now` is missing without /proc. Raises `EngineError` if the system reports no memory usage.
    """
    try:
        import resource
    except ModuleNotFoundError:
        raise EngineError("this system does not tell a process how much memory it uses") from None
    own, children = (
        resource.getrusage(who).ru_maxrss * _UNIT / MEGABYTE
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    status = Path("/proc/self/status")
    if not status.exists():
        return {"peak": own + children}
    # ru_maxrss includes memory inherited from the parent process; this value does not.
    told = dict(line.split(":", 1) for line in status.read_text(encoding="ascii").splitlines())
    own, now = (int(told[name].split()[0]) * 1024 / MEGABYTE for name in ("VmHWM", "VmRSS"))
    return {"peak": own + children, "now": now}
