"""Judges for visitors: so many at once, each in a thread of its own, with engines that all of them share.

A judge of code may compute for seconds without a pause. On the server's own loop everybody would wait for
it, so each judgement has a loop in its own thread; the engine's scheduler puts together what they ask.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import nullcontext, suppress
from math import ceil
from statistics import fmean
from typing import Literal

from magistrate import _logging
from magistrate._deadline import Deadline
from magistrate.api import judge as judging
from magistrate.engines.base import Engine
from magistrate.engines.settings import CONCURRENCY
from magistrate.engines.wrappers import Recorded
from magistrate.errors import MagistrateError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import GRACE
from magistrate.server.asking import Question
from magistrate.server.metrics import Metrics
from magistrate.types import Failure, FailureCode, Outcome, Step, Usage

WAITING = 64
LAST = 20  # judgements whose time says how long the next ones take
LONGEST_PAUSE = 60  # seconds that somebody is asked to stay away

Phase = Literal["waiting", "loading", "judging", "done"]
EngineOf = Callable[[Sequence[Judge], str | None], Engine]

_log = _logging.get("server")


class BusyError(MagistrateError):
    """Too much is being judged; `seconds` says when to come again."""

    retryable = True

    def __init__(self, seconds: int) -> None:
        super().__init__(f"too many samples are being judged; try again in {seconds} s")
        self.seconds = seconds


class Judgement:
    """One sample on trial. All of it may be read from any thread; times are seconds of `clock`."""

    def __init__(self, question: Question, clock: Callable[[], float]) -> None:
        self.question = question
        self.cancelled = False
        self._clock = clock
        self._began = clock()
        self._ended: float | None = None
        self._at_work = False
        self._engine: Engine | None = None
        self._steps: list[Step] = []
        self._task: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None
        self._deadline: Deadline | None = None
        self._lock = threading.Lock()
        self._answer: Future[Outcome] = Future()
        self._answer.set_running_or_notify_cancel()  # so that nobody who waits for it can cancel it

    @property
    def phase(self) -> Phase:
        """How far it is: waiting for its turn, for the model to be loaded, for the judge, or done."""
        if self._answer.done():
            return "done"
        if not self._at_work:
            return "waiting"
        return "loading" if self._engine is None or getattr(self._engine, "loading", False) else "judging"

    @property
    def steps(self) -> tuple[Step, ...]:
        """The engine's answers so far."""
        return tuple(self._steps)

    @property
    def seconds(self) -> float:
        """How long it took, or takes until now."""
        return (self._clock() if self._ended is None else self._ended) - self._began

    @property
    def left(self) -> float:
        """Seconds until its deadline; less than 0 after it."""
        return self._began + self.question.deadline - self._clock()

    def outcome(self) -> Outcome | None:
        """What came out, None while nothing has. Raises what would have failed for any other sample, too."""
        self._check()
        return self._answer.result() if self._answer.done() else None

    async def finished(self) -> Outcome:
        """What comes out, soon after the deadline at the latest. Raises as `outcome` does."""
        answer = asyncio.wrap_future(self._answer)
        await asyncio.wait([answer], timeout=max(self.left, 0) + GRACE + 0.1)
        self._check()
        return self._answer.result()

    def wait(self, seconds: float) -> None:
        """Wait so long for it to be done."""
        wait([self._answer], timeout=seconds)

    def judge(self, engine_of: EngineOf) -> None:
        """Do it, in the thread that calls."""
        self._at_work = True
        try:
            self._engine = engine_of([self.question.judge], self.question.model)
            with Deadline(self.question.deadline, used=self.seconds) as self._deadline:
                asyncio.run(self._trial(self._engine))
        except Exception as error:
            self._settle(error)
        except BaseException as error:  # a library's panic: this thread has nobody to tell but us
            self._settle(self._failure("engine_error", _logging.error_text(error)))

    def cancel(self) -> None:
        """Stop: nobody waits for it any more."""
        with self._lock:
            self.cancelled = True
            if self._deadline is not None:
                self._deadline.stop()
            if self._task is not None:
                loop, task = self._task
                with suppress(RuntimeError):  # its loop is closed: it has ended by itself
                    loop.call_soon_threadsafe(task.cancel)

    def give_up(self) -> None:
        """Answer for a judgement that did not get its turn."""
        late = f"{self._late}, all of it spent waiting for its turn"
        self._settle(self._cancelled if self.cancelled else self._failure("timeout", late))

    async def _trial(self, engine: Engine) -> None:
        """The answer is there before the loop is closed, which may take as long as its threads do."""
        task = asyncio.current_task()
        assert task is not None
        with self._lock:
            self._task = (asyncio.get_running_loop(), task)
            if self.cancelled:
                task.cancel()
        asked = self.question.judge
        model = Recorded(engine, steps=self._steps) if asked.info.asks else None
        try:
            async with asyncio.timeout(max(self.left, 0)):
                outcome = await judging.ajudge_sample(
                    self.question.sample, judge=asked, model=model, deadline=self.question.deadline
                )
        except TimeoutError:
            outcome = self._failure("timeout", self._late)
        except asyncio.CancelledError:
            outcome = self._cancelled
        self._settle(outcome)

    @property
    def _late(self) -> str:
        return f"no verdict within {self.question.deadline:g} seconds"

    @property
    def _cancelled(self) -> Failure:
        return self._failure("cancelled", "nobody waited for it any more")

    def _failure(self, code: FailureCode, message: str) -> Failure:
        spent = sum((step.usage for step in self._steps), Usage())
        judge = self.question.judge.info.name
        return Failure(self.question.sample.id, judge, code, message, self.steps, spent, self.seconds)

    def _check(self) -> None:
        """Answer for a judge that holds its thread and does not stop when it is told to."""
        if not self._answer.done() and self.left < -GRACE:
            self._settle(self._failure("timeout", f"{self._late}; it did not stop when it was told to"))

    def _settle(self, answer: Outcome | Exception) -> None:
        """This is the answer, unless there is one."""
        with self._lock:
            if self._answer.done():
                return
            self._ended = self._clock()
            if isinstance(answer, Exception):
                self._answer.set_exception(answer)
            else:
                self._answer.set_result(answer)
            self._steps = []  # the outcome has its own


class Judging:
    """Judges what visitors ask: `at_once` samples at a time, `waiting` more in line, in the order they came.

    `engine_of` loads the model that a judge asks, or answers one that is loaded already.
    """

    def __init__(
        self,
        *,
        engine_of: EngineOf = registry.engine_for,
        metrics: Metrics | None = None,
        at_once: int = CONCURRENCY,
        waiting: int = WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine_of = engine_of
        self._metrics = metrics
        self._at_once = at_once
        self._waiting = waiting
        self._clock = clock
        self._line: deque[Judgement] = deque()
        self._at_work: set[Judgement] = set()
        self._took: deque[float] = deque(maxlen=LAST)
        self._closed = False
        self._changed = threading.Condition()

    def begin(self, question: Question) -> Judgement:
        """Have it judged, now or when its turn comes. Raises `BusyError` where too many are before it."""
        made = Judgement(question, self._clock)
        with self._changed:
            before = len(self._at_work) + len(self._line)
            if self._closed or before >= self._at_once + self._waiting:
                raise BusyError(self._pause(before))
            self._line.append(made)
        threading.Thread(target=self._through, args=(made,), name="magistrate-judging", daemon=True).start()
        return made

    def cancel(self, judgement: Judgement) -> None:
        """Stop a judgement that nobody waits for any more."""
        judgement.cancel()
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Stop all of them and begin nothing more."""
        with self._changed:
            self._closed = True
            left = [*self._line, *self._at_work]
        for each in left:
            self.cancel(each)

    def _pause(self, before: int) -> int:
        """Seconds until there may be room."""
        taken = fmean(self._took) if self._took else 1.0
        return min(max(ceil(taken * before / self._at_once / 2), 1), LONGEST_PAUSE)

    def _through(self, judgement: Judgement) -> None:
        """All of a judgement, from the end of the line on."""
        if not self._has_turn(judgement):
            judgement.give_up()
            self._note(judgement)
            return
        began = self._clock()
        try:
            with self._metrics.judging() if self._metrics else nullcontext():
                judgement.judge(self._engine_of)
        finally:
            with self._changed:
                self._at_work.discard(judgement)
                self._took.append(self._clock() - began)
                self._changed.notify_all()
        self._note(judgement)

    def _has_turn(self, judgement: Judgement) -> bool:
        """Wait for its turn; False where it is cancelled or overdue before."""

        def called() -> bool:
            first = self._line[0] is judgement and len(self._at_work) < self._at_once
            return judgement.cancelled or first

        with self._changed:
            ready = self._changed.wait_for(called, timeout=max(judgement.left, 0)) and not judgement.cancelled
            self._line.remove(judgement)
            if ready:
                self._at_work.add(judgement)
            self._changed.notify_all()
            return ready

    def _note(self, judgement: Judgement) -> None:
        name = judgement.question.name
        try:
            outcome = judgement.outcome()
        except MagistrateError as error:
            _log.warning("judging.refused", judge=name, reason=str(error))
        except Exception as error:
            _log.error("judging.failed", judge=name, error=type(error).__name__, message=str(error))
        else:
            if self._metrics and outcome is not None:
                self._metrics.judged(name, outcome)
