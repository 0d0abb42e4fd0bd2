"""Progress of a run: the protocol that receives its events, and a progress bar."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from magistrate.datasets import Problem
from magistrate.engines.base import Engine
from magistrate.report.formatting import duration
from magistrate.runs.execute import Judged
from magistrate.types import Failure, Verdict

if TYPE_CHECKING:
    from rich.console import Console

SECONDS_A_LINE = 10.0
RECENT = 30.0  # seconds, over which the rate is measured


class Pace:
    """How many outcomes a second there were lately, up to now: it falls while nothing comes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = clock()
        self._seconds: deque[tuple[int, int]] = deque()  # a whole second, and how many came in it

    def count(self) -> None:
        """Count one more outcome."""
        second, n = int(self._clock()), 0
        if self._seconds and self._seconds[-1][0] == second:
            n = self._seconds.pop()[1]
        self._seconds.append((second, n + 1))

    def rate(self) -> float | None:
        """Return the outcomes a second. None within the first second, and if none came lately."""
        now = self._clock()
        since = max(self._start, now - RECENT)
        while self._seconds and self._seconds[0][0] < int(since):
            self._seconds.popleft()
        n = sum(each for _, each in self._seconds)
        return n / (now - since) if n and now - since >= 1 else None


class ProgressListener(Protocol):
    """Receives progress events of a run."""

    def started(self, run_id: str, total: int | None, engine: Engine, done: int) -> None:
        """The run begins. `done` of `total` outcomes are already stored. `total` is None if unknown."""
        ...

    def judged(self, judged: Judged) -> None:
        """One more outcome is stored."""
        ...

    def finished(self, problems: Sequence[Problem], stopped: str | None) -> None:
        """The run is over. `problems` are unreadable rows, `stopped` is the limit that ended it."""
        ...


class ProgressBar:
    """Shows the progress of a run on standard error. Keeps the run's id and the number of outcomes `seen`.

    On a terminal it shows a bar. Elsewhere it shows nothing or, with `lines`, a line every ten seconds.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        lines: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_id: str | None = None
        self.seen = 0
        self.problems: Sequence[Problem] = ()
        self.stopped: str | None = None
        self._console = console
        self._lines = lines
        self._clock = clock
        self._told = clock()
        self._pace = Pace(clock)
        self._bar: Any = None
        self._right = self._labelled = self._failed = 0

    def started(self, run_id: str, total: int | None, engine: Engine, done: int) -> None:
        """Show the bar. `done` of `total` outcomes are already stored."""
        from rich.console import Console

        self.run_id = run_id
        console = self._console or Console(stderr=True)
        self._lines = self._lines and not console.is_terminal
        if console.is_terminal or self._lines:
            self._pace = Pace(self._clock)
            self._bar = _bar(console, self._clock, engine, self._pace)
            self._bar.add_task("judging", total=total, completed=done, quality="")
            self._bar.start()

    def judged(self, judged: Judged) -> None:
        """Count one more outcome and update the bar."""
        self.seen += 1
        if self._bar is None:
            return
        self._pace.count()
        outcome, gold = judged.outcome, judged.sample.label
        self._failed += isinstance(outcome, Failure)
        if isinstance(outcome, Verdict) and gold is not None:
            self._labelled += 1
            self._right += outcome.label == gold
        quality = [f"{self._right / self._labelled:.0%} right"] if self._labelled else []
        quality += [f"{self._failed} failed"] if self._failed else []
        [task] = self._bar.tasks
        self._bar.update(task.id, advance=1, quality=", ".join(quality))
        if self._lines and self._clock() - self._told >= SECONDS_A_LINE:
            self._told = self._clock()
            self._bar.console.print(_line(task, self._pace.rate()), soft_wrap=True)

    def finished(self, problems: Sequence[Problem], stopped: str | None) -> None:
        """Close the bar. `stopped` is the limit that ended the run, if any."""
        self.problems, self.stopped = problems, stopped
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def waiting(engine: Engine, console: Console) -> Iterator[None]:
    """Show on a terminal what `engine` is doing while the body runs. Elsewhere show nothing."""
    from rich.live import Live
    from rich.spinner import Spinner

    class Activity:
        spinner = Spinner("dots")

        def __rich__(self) -> Spinner:
            self.spinner.update(text=activity(engine))
            return self.spinner

    with Live(Activity(), console=console, transient=True) if console.is_terminal else nullcontext():
        yield


def activity(engine: Engine) -> str:
    """A text that says what `engine` is doing."""
    return f"loading {engine.info.model}" if getattr(engine, "loading", False) else "judging"


def _bar(console: Console, clock: Callable[[], float], engine: Engine, pace: Pace) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Any) -> Text:
            rate = pace.rate()
            facts = [_per_second(rate), _left(task, rate)]
            return Text(", ".join(fact for fact in facts if fact))

    class Activity(ProgressColumn):
        max_refresh = 0.1

        def render(self, task: Any) -> Text:
            return Text(activity(engine))

    # A bar of one line, also where it says which model is loaded: nothing may wrap.
    whole = Column(no_wrap=True)
    return Progress(
        Activity(Column(no_wrap=True, overflow="ellipsis")),
        BarColumn(bar_width=20),
        MofNCompleteColumn(table_column=whole),
        Rate(whole),
        TextColumn("{task.fields[quality]}", table_column=whole),
        console=console,
        get_time=clock,
        transient=True,
        disable=not console.is_terminal,
    )


def _per_second(rate: float | None) -> str:
    return f"{rate:.1f}/s" if rate else ""


def _left(task: Any, rate: float | None) -> str:
    left = None if task.total is None or not rate else (task.total - task.completed) / rate
    return f"{duration(left)} left" if left else ""


def _line(task: Any, rate: float | None) -> str:
    """A progress line such as `judged 24 of 72, 1.2/s, 40 s left, 54% right, 1 failed`."""
    facts = [f"judged {task.completed}" + (f" of {task.total}" if task.total is not None else "")]
    facts += [_per_second(rate), _left(task, rate), task.fields["quality"]]
    return ", ".join(fact for fact in facts if fact)
