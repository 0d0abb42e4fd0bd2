"""A run as it goes: how fast, how long still, how right so far, how many failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magistrate.running import Judged
from magistrate.types import Failure, Verdict

if TYPE_CHECKING:
    from rich.console import Console


class ProgressBar:
    """Watches a run on standard error; silent where that is not a terminal. Keeps the run's id."""

    def __init__(self, console: Console | None = None) -> None:
        self.run_id: str | None = None
        self._console = console
        self._bar: Any = None
        self._task: Any = None
        self._right = self._labelled = self._failed = 0

    def started(self, run_id: str, total: int | None) -> None:
        """The run exists; `total` outcomes are expected, None if nobody knows."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.run_id = run_id
        console = self._console or Console(stderr=True)
        self._bar = Progress(
            TextColumn("judging"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            TextColumn("{task.fields[quality]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("judging", total=total, rate="", quality="")
        self._bar.start()

    def judged(self, judged: Judged) -> None:
        """One more outcome."""
        outcome, gold = judged.outcome, judged.sample.label
        self._failed += isinstance(outcome, Failure)
        if isinstance(outcome, Verdict) and gold is not None:
            self._labelled += 1
            self._right += outcome.label == gold
        quality = [f"{self._right / self._labelled:.0%} right"] if self._labelled else []
        quality += [f"{self._failed} failed"] if self._failed else []
        speed = self._bar.tasks[0].finished_speed or self._bar.tasks[0].speed
        self._bar.update(
            self._task, advance=1, quality=", ".join(quality), rate=f"{speed:.1f}/s" if speed else ""
        )

    def finished(self) -> None:
        """Nothing more will come."""
        if self._bar is not None:
            self._bar.stop()
