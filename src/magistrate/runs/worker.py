"""The process of one worker: judges what its parent sends on standard input, and answers on standard output.

A frame is a pickled value after its length. The parent is this package, and judged texts are only values in
the frames. What judges print goes to standard error.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

from magistrate import _logging
from magistrate.engines.embedded.cores import share_cores
from magistrate.errors import EngineGone, MagistrateError
from magistrate.judges.base import Judge
from magistrate.runs.execute import judge_one
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import RunPlan, prepare_judges
from magistrate.runs.spec import spec_from
from magistrate.types import Failure, Outcome, Recipe, Sample

HEAD = struct.Struct("!Q")
SECONDS_BETWEEN_SIGNS = 2.0
READY = "ready"


@dataclass(frozen=True, slots=True)
class Setup:
    """The first frame of the parent: what to judge with, and as one of how many processes.

    `spec` are the plain values of a specification. A worker with other `recipes` is not used. `verbose` is
    that of the parent's logging, None if it shows no events.
    """

    spec: Mapping[str, Any]
    recipes: Mapping[str, Recipe]
    deadline: float
    concurrency: int
    processes: int
    verbose: bool | None


@dataclass(frozen=True, slots=True)
class Job:
    """A frame of the parent: a sample for one judge."""

    number: int
    sample: Sample
    judge: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A frame of the worker: the outcome of a job or an error that ends the run. Without a number, the
    worker as a whole is ready, cannot start, or shows that it is alive.
    """

    number: int | None = None
    said: Outcome | BaseException | str | None = None


def framed(value: object) -> bytes:
    """Return the frame of a value."""
    body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return HEAD.pack(len(body)) + body


def main() -> None:
    """Judge until the parent closes standard input or dies."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the parent decides when its workers end
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _Worker(sys.stdin.buffer, answers).run()


class _Worker:
    """Judges the jobs of one parent on an event loop. Threads read its frames and show signs of life."""

    def __init__(self, jobs: IO[bytes], answers: IO[bytes]) -> None:
        self._jobs = jobs
        self._answers = answers
        self._lock = threading.Lock()

    def run(self) -> None:
        """Judge until the process is ended by `_read`."""
        setup: Setup = self._frame()
        threading.Thread(target=self._show_signs, daemon=True).start()
        try:
            plan = _prepared(setup)
        except Exception as error:
            self._say(Answer(None, _portable(error)))
            return
        asyncio.run(self._judge_all(plan, setup.deadline))

    async def _judge_all(self, plan: RunPlan, deadline: float) -> None:
        judges = {judge.info.name: judge for judge in plan.judges}
        loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

        def begin(job: Job) -> None:
            tasks.add(task := loop.create_task(self._judge(job, judges[job.judge], plan, deadline)))
            task.add_done_callback(tasks.discard)

        threading.Thread(target=self._read, args=(loop, begin), daemon=True).start()
        self._say(Answer(None, READY))
        await loop.create_future()  # until there is no parent

    async def _judge(self, job: Job, judge: Judge, plan: RunPlan, deadline: float) -> None:
        try:
            said: Outcome | BaseException = await judge_one(job.sample, judge, plan.engine, deadline=deadline)
        except BaseException as error:
            said = _portable(error)
        try:
            self._say(Answer(job.number, said))
        except Exception as error:  # an outcome of a judge that holds something that no store can hold
            told = f"the outcome cannot be stored: {_logging.error_text(error)}"
            self._say(Answer(job.number, Failure(job.sample.id, job.judge, "invalid_output", told)))

    def _read(self, loop: asyncio.AbstractEventLoop, begin: Callable[[Job], None]) -> None:
        while True:
            try:
                job = self._frame()
            except EOFError:
                os._exit(0)  # nobody would take the answers of what is under way
            loop.call_soon_threadsafe(begin, job)

    def _frame(self) -> Any:
        head = self._jobs.read(HEAD.size)
        body = self._jobs.read(HEAD.unpack(head)[0]) if len(head) == HEAD.size else b""
        if not body:
            raise EOFError
        return pickle.loads(body)

    def _say(self, answer: Answer) -> None:
        frame = framed(answer)
        with self._lock:
            try:
                self._answers.write(frame)
                self._answers.flush()
            except OSError:
                os._exit(0)  # there is no parent any more

    def _show_signs(self) -> None:
        alive = threading.Event()
        while not alive.wait(SECONDS_BETWEEN_SIGNS):
            self._say(Answer())


def _prepared(setup: Setup) -> RunPlan:
    """Create the judges and the engine. Raises `EngineGone` if they are not those of the parent."""
    if setup.verbose is not None:
        _logging.configure(verbose=setup.verbose)
    share_cores(setup.processes)
    limits = Limits(concurrency=setup.concurrency, deadline=setup.deadline)
    plan = prepare_judges(spec_from(setup.spec), limits=limits)
    if plan.recipes != setup.recipes:
        raise EngineGone("a worker process has other judges or another model than the run; start it again")
    return plan


def _portable(error: BaseException) -> BaseException:
    """Return the error, or one with the same message that can be sent to the parent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return (
            MagistrateError(str(error)) if isinstance(error, MagistrateError) else RuntimeError(repr(error))
        )
    return error
