"""Several processes that judge the samples of one run. Only the parent reads data and writes to the store.

So budgets, progress, resuming, and that nothing is judged twice, work as in one process. A sample in progress
is leased to one worker. A worker that dies, or shows no sign of life for a while, is replaced, and what was
leased to it is judged again, one job at a time: a sample that ends its process every time becomes a failure,
and takes no other sample with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Self

from magistrate import _logging
from magistrate.errors import EngineGone
from magistrate.judges.base import Judge
from magistrate.runs.execute import Judged
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import RunPlan
from magistrate.runs.worker import HEAD, READY, Answer, Job, Setup, framed
from magistrate.types import Failure, Outcome, Sample

SILENCE = 60.0  # seconds without a sign of life after which a worker counts as hung, at least
LOSSES = 3  # processes that one sample may end until it counts as the cause
STARTS = 3  # processes in a row that may end before they are ready
AHEAD = 4  # jobs of a worker that judges on its own, so that it never waits for the parent

COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import magistrate.runs.worker as w; w.main()"
)

_log = _logging.get("workers")


class _Lost(Exception):
    """The worker ended before it answered; the message says how."""


@dataclass(eq=False, slots=True)
class _Lease:
    """A job that a worker has, and the future of its outcome."""

    sample: Sample
    outcome: asyncio.Future[Outcome]


@dataclass(eq=False, slots=True)
class _Slot:
    """The place of one worker process at a time. `lost` counts the jobs of a dead one that are repeated."""

    process: asyncio.subprocess.Process | None = None
    ready: bool = False
    lost: int = 0
    leases: dict[int, _Lease] = field(default_factory=dict)
    alone: asyncio.Lock = field(default_factory=asyncio.Lock)


class Workers:
    """`n` worker processes for a plan; an async context manager, at whose end they are killed.

    `limits` are those of the plan, with as many samples in progress as keep the workers busy. Outcomes that
    were under way at the end are appended to `undelivered`.
    """

    def __init__(self, plan: RunPlan, n: int, undelivered: list[Judged]) -> None:
        self.limits: Limits = plan.limits
        if not any(judge.info.asks for judge in plan.judges):
            self.limits = replace(plan.limits, concurrency=max(plan.limits.concurrency, AHEAD * n))
        spec = plan.spec.model_copy(update={"workers": None, "shard": None})
        self._setup = Setup(
            spec=spec.plain(),
            recipes=plan.recipes,
            deadline=plan.limits.deadline,
            concurrency=max(1, plan.limits.concurrency // n),
            processes=n,
            verbose=_logging.verbosity(),
        )
        self._silence = max(SILENCE, plan.limits.deadline)
        self._slots = [_Slot() for _ in range(n)]
        self._undelivered = undelivered
        self._numbers: Iterator[int] = count()
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._keep_up(slot)) for slot in self._slots]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing = True
        for slot in self._slots:
            _kill(slot.process)
        await asyncio.gather(*self._tasks)

    async def ask(self, sample: Sample, judge: Judge) -> Outcome:
        """Return the outcome of a judge on a sample, from the worker with the least to do.

        Raises the error of a worker that ends the run.
        """
        slot = await self._open_slot()
        try:
            return await self._answer(slot, sample, judge)
        except _Lost as error:
            how = error
        slot.lost += 1
        try:
            async with slot.alone:
                for _ in range(LOSSES - 1):
                    while not slot.ready:
                        await self._change()
                    try:
                        return await self._answer(slot, sample, judge)
                    except _Lost as error:
                        how = error
        finally:
            slot.lost -= 1
            self._wake()
        told = f"{LOSSES} worker processes ended while this sample was judged; the last {how}"
        return Failure(sample.id, judge.info.name, "engine_error", told)

    async def _open_slot(self) -> _Slot:
        while True:
            if self._error is not None:
                raise self._error
            if found := [slot for slot in self._slots if slot.ready and not slot.lost]:
                return min(found, key=lambda slot: len(slot.leases))
            await self._change()

    async def _answer(self, slot: _Slot, sample: Sample, judge: Judge) -> Outcome:
        assert slot.process is not None and slot.process.stdin is not None
        number, lease = next(self._numbers), _Lease(sample, asyncio.get_running_loop().create_future())
        slot.leases[number] = lease
        slot.process.stdin.write(framed(Job(number, sample, judge.info.name)))
        with suppress(ConnectionError):  # its end is noticed where its answers are read
            await slot.process.stdin.drain()
        return await lease.outcome

    async def _change(self) -> None:
        """Wait until a worker is ready or free. Raises the error that ends all of them."""
        if self._error is None:
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # --- the processes ------------------------------------------------------------------------------

    async def _keep_up(self, slot: _Slot) -> None:
        """Run a worker process in a slot, and another one when it has ended, until all are closed."""
        unready = 0
        while not self._closing and self._error is None:
            try:
                how = await self._run(slot)
            except OSError as error:
                how, unready = f"could not be started: {error}", STARTS
            unready = 0 if slot.ready else unready + 1
            slot.ready = False
            leases, slot.leases = slot.leases, {}
            for lease in leases.values():
                if not lease.outcome.done():
                    lease.outcome.set_exception(_Lost(how))
            if not self._closing and self._error is None:
                _log.warning("worker.lost", how=how, again=len(leases))
            if unready >= STARTS:
                self._error = EngineGone(f"a worker process {how} before it was ready")
            self._wake()

    async def _run(self, slot: _Slot) -> str:
        """Run one process until it ends. Returns how it ended."""
        # A session of its own: Ctrl-C at the terminal reaches only the parent.
        pipe = asyncio.subprocess.PIPE
        words = (sys.executable, "-c", COMMAND, json.dumps([each or str(Path.cwd()) for each in sys.path]))
        slot.process = process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, start_new_session=True
        )
        assert process.stdin is not None and process.stdout is not None
        if self._closing:
            _kill(process)
        silent = ""
        try:
            process.stdin.write(framed(self._setup))
            while True:
                async with asyncio.timeout(self._silence):
                    answer = await _read(process.stdout)
                self._take(slot, answer)
        except asyncio.IncompleteReadError:
            pass
        except TimeoutError:
            silent = f"gave no sign of life for {self._silence:g} seconds"
        except Exception as error:
            silent = f"sent an answer that cannot be read: {_logging.error_text(error)}"
        finally:
            _kill(process)
            process.stdin.close()
        code = await process.wait()
        return silent or (f"was ended by {_signal(-code)}" if code < 0 else f"exited with {code}")

    def _take(self, slot: _Slot, answer: Answer) -> None:
        said = answer.said
        if answer.number is None:
            if said == READY:
                slot.ready = True
            elif isinstance(said, BaseException):
                self._error = said
            if said is not None:
                self._wake()
            return
        lease = slot.leases.pop(answer.number)
        if isinstance(said, BaseException):
            if not lease.outcome.done():
                lease.outcome.set_exception(said)
        elif not isinstance(said, str) and said is not None:
            if lease.outcome.done():  # nobody waits for it any more, but it is paid for
                self._undelivered.append(Judged(lease.sample, said))
            else:
                lease.outcome.set_result(said)


async def _read(stream: asyncio.StreamReader) -> Answer:
    """Return the next frame of a worker."""
    (length,) = HEAD.unpack(await stream.readexactly(HEAD.size))
    answer: Answer = pickle.loads(await stream.readexactly(length))
    return answer


def _kill(process: asyncio.subprocess.Process | None) -> None:
    # `process.kill` would take the exit status of one that has just ended from the event loop, which warns.
    if process is not None and process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
