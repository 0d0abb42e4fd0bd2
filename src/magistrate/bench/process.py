"""The parent's side of a contender's process: start it, ask it, end it."""

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from magistrate.bench.contender import Item, Measured, Weights
from magistrate.errors import EngineError, EngineGone

GRACE_SECONDS = 5.0
POLL_SECONDS = 0.2
PACKAGE = Path(__file__).resolve().parent.parent
# Another Python has packages of its own and is to see none of ours but this one.
_START = (
    "import sys; from importlib.util import module_from_spec, spec_from_file_location as found\n"
    "root, name = sys.argv[1:]\n"
    "spec = found('magistrate', root + '/__init__.py', submodule_search_locations=[root])\n"
    "sys.modules['magistrate'] = package = module_from_spec(spec); spec.loader.exec_module(package)\n"
    "from magistrate.bench.child import main; main(name)"
)


class Child:
    """A contender in a process of its own, from its start to the end of the `with` block.

    `python` None is this Python. `version`, `works` and `seconds` (of loading) are what it answered to
    its set-up. Raises `EngineError` for what it answers as its failure, `EngineGone` where it died or
    took longer than `limit` seconds.
    """

    def __init__(self, name: str, weights: Weights, threads: int, python: Path | None, limit: float) -> None:
        self.name = name
        self._limit = limit
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 — read when it fails, closed with the child
        own = [sys.executable, "-m", "magistrate.bench.child", name]
        try:
            self._process = subprocess.Popen(
                own if python is None else [str(python), "-c", _START, str(PACKAGE), name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                encoding="utf-8",
                env={**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"},
                # A Ctrl-C is ours to pass on: it ends the group, with whatever the contender started.
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
        """The process's number."""
        return self._process.pid

    def measure(
        self, work: str, items: Sequence[Item] = (), in_flight: int = 1, warm: Sequence[Item] = ()
    ) -> Measured:
        """One work over `items`, after `warm` was answered unmeasured."""
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
        """End the process and all that it started: it is given `grace` seconds to do so, then made to."""
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
        """To the whole group, which may outlive the child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._process.terminate()
            else:
                os.killpg(self._process.pid, how)

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # closed under our hands at the end
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
        """The next line; None at the end of the process."""
        deadline = time.monotonic() + self._limit
        while time.monotonic() < deadline:
            # In slices, so that a Ctrl-C is noticed at once everywhere.
            with contextlib.suppress(Empty):
                return self._lines.get(timeout=POLL_SECONDS)
        raise EngineGone(f"no answer within {self._limit:.0f} s")

    def _ended(self) -> str:
        """How the process ended, with the last line that it complained with."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        status = self._process.returncode
        how = f"ended with signal {-status}" if status is not None and status < 0 else f"ended ({status})"
        self._log.seek(0)
        lines = [line for line in self._log.read().decode("utf-8", "replace").splitlines() if line.strip()]
        return f"{how}: {lines[-1].strip()[:300]}" if lines else how
