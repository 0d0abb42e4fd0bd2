"""Measures every work in rounds that alternate between contenders, so that a slow minute affects them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders.base import Item, Measured
from benchmarks.contenders.process import Child
from benchmarks.contenders.workload import Workload
from benchmarks.speed_report import SOAK_IN_FLIGHT, Row, Soak, not_measured, summed_up
from magistrate.errors import EngineError, EngineGone, MagistrateError

Opener = Callable[[], Child]  # starts a contender; raises `MagistrateError` if that fails
Cell = tuple[str, int]  # a work and the number in flight

ANSWERED = ("verdict_only", "verdict_with_reasons", "unconstrained")
OVERHEAD_LEVEL = 16
MOST_ITEMS = 512  # per measurement
MOST_STARTS = 3  # starts of a contender that dies
COLD, MEMORY = ("cold_start", 1), ("memory", 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of measurement.

    `levels` are the numbers in flight of the answered works, `decode_levels` those of decoding. `seconds`
    is the target duration of one measurement. After `patience` seconds on one result of one contender it
    gets no more rounds. `prompts` are read at once for `prefill`. `cold_starts` is how often the first
    verdict of a fresh process is measured.
    """

    rounds: int = 5
    levels: tuple[int, ...] = (1, 8, 16, 64)
    decode_levels: tuple[int, ...] = (1, 8, 16)
    seconds: float = 3.0
    patience: float = 60.0
    prompts: int = 8
    cold_starts: int = 3

    def cells(self) -> Iterator[Cell]:
        """Yield the cells of a round in order."""
        for work in ANSWERED:
            for level in self.levels:
                yield work, level
        yield "prefill", self.prompts
        for level in self.decode_levels:
            yield "decode", level
        yield "mask", 1
        yield "overhead", OVERHEAD_LEVEL


QUICK = Plan(
    rounds=1, levels=(1, 16), decode_levels=(16,), seconds=0.4, patience=10, prompts=4, cold_starts=1
)


class Bench:
    """A run over `contenders`; as a context manager it ends their processes.

    `each_round` is called before every round, for other measurements. `tell` receives progress messages.
    """

    def __init__(
        self,
        contenders: Mapping[str, Opener],
        workload: Workload,
        plan: Plan,
        *,
        each_round: Callable[[], None] = lambda: None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._lanes = [_Lane(name, opener, plan) for name, opener in contenders.items()]
        self._workload = workload
        self._plan = plan
        self._each_round = each_round
        self._tell = tell

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        for lane in self._lanes:
            lane.close()

    @property
    def versions(self) -> dict[str, str]:
        """Return the versions that the started contenders report."""
        return {lane.name: lane.version for lane in self._lanes if lane.version is not None}

    def run(self) -> list[Row]:
        """Return all results, those of a cell together; failures are rows with a reason."""
        for number in range(self._plan.cold_starts):
            for lane in self._lanes:
                self._tell(f"cold start {number + 1}/{self._plan.cold_starts}: {lane.name}")
                lane.cold_start(self._workload.shared(1))
        for number in range(self._plan.rounds):
            self._each_round()
            if all(lane.absent is not None for lane in self._lanes):
                break
            for work, level in self._plan.cells():
                items = _Items(self._workload, work)
                for lane in self._lanes:
                    self._tell(
                        f"round {number + 1}/{self._plan.rounds}: {work}, {level} at once, {lane.name}"
                    )
                    lane.measure(work, level, items)
        for lane in self._lanes:
            lane.memory()
        cells = [*self._plan.cells(), COLD, MEMORY]
        rows = [lane.row(self._workload.model, cell) for cell in cells for lane in self._lanes]
        return [row for row in rows if row is not None]


class _Items:
    """The prompts of one work in one round: all contenders get the same ones."""

    def __init__(self, workload: Workload, work: str) -> None:
        self._make = {"prefill": workload.distinct, "decode": workload.stories}.get(work, workload.shared)
        self._made: list[Item] = []
        self.calibration = None if work == "mask" else self._make(1)[0]

    def first(self, n: int) -> Sequence[Item]:
        self._made += self._make(max(n - len(self._made), 0))
        return self._made[:n]


class _Lane:
    """One contender during a run: its process, its measurements and its errors."""

    def __init__(self, name: str, opener: Opener, plan: Plan) -> None:
        self.name = name
        self.version: str | None = None
        self._open = opener
        self._plan = plan
        self._child: Child | None = None
        self._starts = 0
        self.absent: str | None = None  # why it cannot be measured
        self._found: dict[Cell, list[Measured]] = {}
        self._errors: dict[Cell, str] = {}
        self._spent: dict[Cell, float] = {}
        self._pace: dict[str, float] = {}  # items a second, by work

    def cold_start(self, items: Sequence[Item]) -> None:
        """Measure a fresh process, from its start to its first verdict."""
        if self.absent is not None:
            return
        start = time.perf_counter()
        try:
            with self._open() as child:
                self._met(child)
                work = next((each for each in ANSWERED if each in child.works), None)
                if work is not None:
                    child.measure(work, items)
                    taken = time.perf_counter() - start
                    self._found.setdefault(COLD, []).append(Measured(1, 0, taken, 1))
        except MagistrateError as error:
            if self.version is None:
                self.absent = str(error)
            else:
                self._errors[COLD] = str(error)

    def measure(self, work: str, level: int, items: _Items) -> None:
        """Measure a cell once, unless it failed before or has used up its time."""
        cell = (work, level)
        child = None if cell in self._errors or self._is_spent(cell) else self._running()
        if child is None or work not in child.works:
            return
        start = time.perf_counter()
        try:
            self._found.setdefault(cell, []).append(self._asked(child, work, level, items))
        except EngineError as error:
            self._errors[cell] = str(error)
            if isinstance(error, EngineGone):
                self.close()
        self._spent[cell] = self._spent.get(cell, 0.0) + time.perf_counter() - start

    def memory(self) -> None:
        """Measure the memory of the process that did the works."""
        if self._child is not None:
            try:
                self._found[MEMORY] = [self._child.measure("memory")]
            except EngineError as error:
                self._errors[MEMORY] = str(error)

    def row(self, model: str, cell: Cell) -> Row | None:
        """Return the row of a cell; None if the contender does not do that work."""
        if self.absent is not None and not self._found:
            return not_measured(self.name, model, *cell, self.absent) if cell == COLD else None
        error = self._errors.get(cell)
        if found := self._found.get(cell):
            return summed_up(self.name, model, *cell, found, error)
        return None if error is None else not_measured(self.name, model, *cell, error)

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    # ------------------------------------------------------------------------------------------------

    def _met(self, child: Child) -> None:
        self.version = child.version

    def _running(self) -> Child | None:
        """Return the process, restarted if it died; None if it cannot be started."""
        if self._child is None and self.absent is None:
            try:
                if self._starts == MOST_STARTS:
                    raise EngineGone(f"ended {MOST_STARTS} times")
                self._starts += 1
                self._child = self._open()
                self._met(self._child)
            except MagistrateError as error:
                self.absent = str(error)
        return self._child

    def _is_spent(self, cell: Cell) -> bool:
        rounds = len(self._found.get(cell, ()))
        return bool(rounds) and self._spent[cell] * (rounds + 1) / rounds > self._plan.patience

    def _asked(self, child: Child, work: str, level: int, items: _Items) -> Measured:
        if items.calibration is None:
            return child.measure(work)
        if work in ("prefill", "decode"):
            return child.measure(work, items.first(level), level)
        if work not in self._pace:
            # The first answer compiles and allocates: it is not counted, but gives the expected duration.
            self._pace[work] = 1 / child.measure(work, [items.calibration]).seconds
        batches = max(round(self._plan.seconds * self._pace[work] / level), 1)
        n = min(batches * level, max(MOST_ITEMS // level, 1) * level)
        measured = child.measure(work, items.first(n), level, warm=[items.calibration])
        self._pace[work] = n / measured.seconds
        return measured


BATCH = 100  # requests between progress messages


def soak(
    open_child: Callable[[], Child], workload: Workload, requests: int, tell: Callable[[str], None]
) -> Soak:
    """Send `requests` short requests of all verbs and measure the memory growth.

    Raises `EngineError` if a request fails or the system does not report the memory.
    """
    early = max(requests // 10, 1)
    with open_child() as child:
        seconds = _sent(child, workload, early, tell)
        before = _resident(child.measure("memory"))
        seconds += _sent(child, workload, requests - early, tell)
        after = _resident(child.measure("memory"))
    return Soak(requests, seconds, before, after)


def _sent(child: Child, workload: Workload, requests: int, tell: Callable[[str], None]) -> float:
    """Send this many requests and return the seconds they took."""
    seconds = 0.0
    for start in range(0, requests, BATCH):
        tell(f"soak: {requests - start:,} requests to go")
        questions = workload.questions(min(BATCH, requests - start))
        seconds += child.measure("soak", questions, SOAK_IN_FLIGHT).seconds
    return seconds


def _resident(measured: Measured) -> float:
    if "now" not in measured.extra:
        raise EngineError("this system does not tell how much memory a process has now")
    return measured.extra["now"]
