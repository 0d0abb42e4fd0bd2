"""Counts the files of the package that one call goes through, and its opened data, stores and judges.

Run: python benchmarks/traces.py

Four paths are traced, each after it was taken once: `magistrate.judge()`, `magistrate run FILE --judge
rubric`, an engine's `choose` on a server (a local stand-in), and the page of a run. One line each: the files
and functions of the package that were entered, and the calls of functions that open or build something.
Code that runs while a module is imported is not counted. With `--files` the files are listed, too.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import io
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import magistrate
from magistrate.datasets import load
from magistrate.judges import registry
from magistrate.store import Store

ROOT = str(Path(magistrate.__file__).parent)
TESTS = Path(__file__).parents[1] / "tests"  # the stand-in for a server is the one of the tests
ROW = {"context": ["Bern has 134,000 people."], "output": "Bern has two million people."}
CONFIRMED = {"a": "Yes", "b": "No"}


@dataclass
class Trace:
    """The package's functions that were entered, and how often each function of `counted` was called."""

    counted: dict[CodeType, str]
    entered: set[CodeType] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def files(self) -> list[str]:
        """The package's files that were entered, relative to the package."""
        return sorted({code.co_filename[len(ROOT) + 1 :] for code in self.entered})

    def line(self, name: str) -> str:
        """Summarize the trace in one line."""
        opened = ", ".join(f"{what} {self.calls[what]}" for what in self.counted.values())
        return f"{name:<20} {len(self.files):>4} files {len(self.entered):>5} functions   {opened}"


class Tracer:
    """Observes every call in every thread started after `install`, while a trace is active."""

    def __init__(self) -> None:
        openers: dict[str, Callable[..., Any]] = {
            "data": load,
            "store": Store.open.__func__,  # type: ignore[attr-defined]
            "judge": registry.judge,
            "engine": registry.engine,
        }
        self.counted = {function.__code__: name for name, function in openers.items()}
        self._trace: Trace | None = None

    def install(self) -> None:
        """Observe calls in this thread and in those started later."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[Trace]:
        """Trace the block."""
        self._trace = trace = Trace(self.counted)
        try:
            yield trace
        finally:
            self._trace = None

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (trace := self._trace) is None:
            return
        code = frame.f_code
        if not code.co_filename.startswith(ROOT) or code.co_name == "<module>":
            return
        if code.co_flags & inspect.CO_NEWLOCALS:  # else it is the body of a module or class
            trace.entered.add(code)
        if code in trace.counted:
            trace.calls[trace.counted[code]] += 1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", action="store_true")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="judge, run, choose, page (default: all)")
    asked = parser.parse_args()
    tracer = Tracer()
    tracer.install()
    with tempfile.TemporaryDirectory() as folder:
        paths: dict[str, Callable[[Path], contextlib.AbstractContextManager[Callable[[], object]]]] = {
            "judge": judging,
            "run": running,
            "choose": choosing,
            "page": page,
        }
        for name in asked.paths or paths:
            with paths[name](Path(folder)) as call:
                call()
                with tracer.tracing() as trace:
                    call()
            print(trace.line(name))
            if asked.files:
                print("".join(f"    {file}\n" for file in trace.files), end="")


@contextlib.contextmanager
def judging(_: Path) -> Iterator[Callable[[], object]]:
    yield lambda: magistrate.judge(output=ROW["output"], context=ROW["context"])


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Callable[[], object]]:
    from magistrate.cli import command

    file = folder / "rows.jsonl"
    file.write_text(json.dumps(ROW) + "\n", encoding="utf-8")
    words = ["run", str(file), "--judge", "rubric", "--no-cache", "--store", str(folder / "runs.db")]

    def call() -> object:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return command.main(words, prog_name="magistrate", standalone_mode=False)

    yield call


@contextlib.contextmanager
def choosing(_: Path) -> Iterator[Callable[[], object]]:
    sys.path.insert(0, str(TESTS))
    from magistrate.engines.base import EngineSettings, Option
    from magistrate.types import Prompt
    from standins import openai_like
    from standins import running as served

    with served(openai_like()) as standin:
        engine = registry.engine(f"openai:{standin.models[0]}", EngineSettings(base_url=standin.url))
        options = [Option(label, (words,)) for label, words in CONFIRMED.items()]
        yield lambda: asyncio.run(engine.choose(Prompt.of("Is it so?"), options))


@contextlib.contextmanager
def page(folder: Path) -> Iterator[Callable[[], object]]:
    from starlette.testclient import TestClient

    from magistrate.server.app import create_app
    from magistrate.server.settings import Settings

    store = str(folder / "runs.db")
    with running(folder) as call:
        call()
    with Store.open(store) as opened:
        run = opened.find_run("last").id
    with TestClient(create_app(Settings(store=store))) as client:

        def look() -> object:
            return client.get(f"/runs/{run}").raise_for_status()

        yield look


if __name__ == "__main__":
    main()
