"""Progress of a run: the protocol that receives its events, and a progress bar."""

from __future__ import annotations

import time
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
        self._bar: Any = None
        self._right = self._labelled = self._failed = 0

    def started(self, run_id: str, total: int | None, engine: Engine, done: int) -> None:
        """Show the bar. `done` of `total` outcomes are already stored."""
        from rich.console import Console

        self.run_id = run_id
        console = self._console or Console(stderr=True)
        self._lines = self._lines and not console.is_terminal
        if console.is_terminal or self._lines:
            self._bar = _bar(console, self._clock, engine)
            self._bar.add_task("judging", total=total, completed=done, quality="")
            self._bar.start()

    def judged(self, judged: Judged) -> None:
        """Count one more outcome and update the bar."""
        self.seen += 1
        if self._bar is None:
            return
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
            self._bar.console.print(_line(task), soft_wrap=True)

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


def _bar(console: Console, clock: Callable[[], float], engine: Engine) -> Any:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(_rate(task))

    class Activity(ProgressColumn):
        max_refresh = 0.1

        def render(self, task: Any) -> Text:
            return Text(activity(engine))

    return Progress(
        Activity(),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        Rate(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[quality]}"),
        console=console,
        get_time=clock,
        transient=True,
        disable=not console.is_terminal,
    )


def _rate(task: Any) -> str:
    speed = task.finished_speed or task.speed
    return f"{speed:.1f}/s" if speed else ""


def _line(task: Any) -> str:
    """A progress line such as `judged 24 of 72, 1.2/s, 40 s left, 54% right, 1 failed`."""
    left = task.time_remaining
    facts = [f"judged {task.completed}" + (f" of {task.total}" if task.total is not None else "")]
    facts += [_rate(task), f"{duration(left)} left" if left else "", task.fields["quality"]]
    return ", ".join(fact for fact in facts if fact)
