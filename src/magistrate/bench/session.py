"""A whole run: contenders, limits of the machine and, where asked for, the long run for memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

from magistrate.bench.geometry import geometry
from magistrate.bench.limits import Limits, LimitsMeter
from magistrate.bench.lineup import Entrant
from magistrate.bench.machine import load, machine
from magistrate.bench.result import Result
from magistrate.bench.rows import not_measured
from magistrate.bench.soak import IN_FLIGHT, SOAKED, Soak, soak
from magistrate.bench.speed import Bench, Plan
from magistrate.bench.workload import Workload
from magistrate.errors import MagistrateError


def measured(
    entrants: Mapping[str, Entrant],
    folder: Path,
    plan: Plan,
    threads: int,
    requests: int,
    *,
    command: str,
    tell: Callable[[str], None],
) -> Result:
    """Measure `entrants` on prompts for the model in `folder`, by `plan`.

    `requests` go through the entrant `SOAKED` at the end, 0 for none; `command` is what reproduces the
    run; `tell` is told what is being done.
    """
    tell("writing prompts")
    workload = Workload(folder)
    geometries = {
        name: geometry(entrant.folder) for name, entrant in entrants.items() if entrant.folder is not None
    }
    busy, date = load(), datetime.now(UTC).isoformat(timespec="seconds")
    meter = LimitsMeter(threads)
    seen: list[Limits] = []

    def measure_limits() -> None:
        tell("limits of this machine")
        seen.append(meter.measure())

    openers = {name: entrant.open for name, entrant in entrants.items()}
    with Bench(openers, workload, plan, each_round=measure_limits, tell=tell) as bench:
        rows = bench.run()
        versions = bench.versions
    flat: Soak | None = None
    if requests:
        try:
            flat = soak(entrants[SOAKED].open, workload, requests, tell)
        except MagistrateError as error:
            rows.append(not_measured(SOAKED, workload.model, "soak", IN_FLIGHT, str(error)))
    return Result(
        model=workload.model,
        rows=rows,
        limits=reduce(Limits.better, seen),
        geometries=geometries,
        machine=machine(threads),
        versions=versions,
        command=command,
        date=date,
        load=busy,
        soak=flat,
    )
