"""Speed and memory compared with other engines and with the machine's limits: `python -m benchmarks.speed`.

Each contender runs in a process of its own, one at a time, on the same weights, prompts and schema.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path

import click

from benchmarks.contenders.base import CONTENDERS, Registered, Weights
from benchmarks.contenders.process import Child
from benchmarks.contenders.workload import Workload
from benchmarks.machine import Limits, LimitsMeter, geometry, load, machine
from benchmarks.speed_report import (
    SOAK_IN_FLIGHT,
    SOAKED,
    Result,
    Soak,
    not_measured,
    render,
    require_writable,
)
from benchmarks.speed_rounds import QUICK, Bench, Opener, Plan, soak
from magistrate._paths import home
from magistrate.cli import main
from magistrate.cli.exit_codes import DONE, ENGINE_GONE
from magistrate.cli.models import Stages
from magistrate.cli.options import json_option
from magistrate.cli.output import console, print_json
from magistrate.datasets.fields import near
from magistrate.engines import models
from magistrate.engines.embedded.cores import available_cores
from magistrate.engines.models import disk
from magistrate.engines.models.catalogue import USUAL, default, split
from magistrate.engines.models.gguf import rewrite
from magistrate.engines.models.pull import fetch
from magistrate.errors import EngineGone, MagistrateError, ModelError, SpecError

GGUF = "model.gguf"
PEERS = Path(".venv-peers", *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
NO_PEERS = "needs the peers' Python, which is not here: make bench-peers, or name one with --peers"
LIMIT_SECONDS = 600.0  # for one answer of a contender
SECONDS_A_LINE = 10.0  # between two lines of progress where there is no terminal


class WeightsShelf:
    """The forms of one model: a catalogue name, a GGUF file or an OpenVINO folder.

    Raises `SpecError` or `ModelError` at once for a model that is not there.
    """

    def __init__(self, model: str, report: disk.Report) -> None:
        self._report = report
        self._names = {entry.name for entry in models.entries()}
        self._base = split(model, self._names)[0]
        self.folder = models.locate(model, report)

    def take(self, registered: Registered) -> Weights:
        """Return the weights for a contender. Raises `ModelError` or `SpecError` if there are none."""
        if registered.files == "gguf":
            return Weights(self.folder, self._eight_bits(), self.folder)
        if registered.weights == "f16":
            spec = f"{self._base}:f16"
            known = self._base in self._names
            folder = models.pull(spec, self._report) if known else models.locate(spec, self._report)
            return Weights(folder, None, folder)
        return Weights(self.folder, None, self.folder)

    def _eight_bits(self) -> Path:
        """Return the Q8_0 GGUF of the model's own folder, created once and kept."""
        path = Path(self._base).expanduser()
        entry = models.entry(self._base) if self._base in self._names else None
        if entry is None and not path.is_file():
            raise ModelError(
                f"{path} is an OpenVINO folder: there is no GGUF of it, which this contender reads"
            )
        sha256 = entry.sha256 if entry else disk.sha256(path, self._report)
        target = home() / "bench" / sha256[:16]
        if not (target / GGUF).is_file():
            with disk.claimed(target, self._report) as scratch:
                if not (target / GGUF).is_file():
                    original = fetch(entry, scratch, self._report) if entry else path
                    made = scratch / "made"
                    made.mkdir()
                    rewrite.rewrite(rewrite.opened(original), made / GGUF, USUAL, self._report)
                    disk.publish(made, target, scratch)
        return target / GGUF


def registered(name: str) -> Registered:
    """Return the description of a contender. Raises `SpecError` for an unknown name.

    A class of your own is given as `module:Class`.
    """
    if name in CONTENDERS:
        return CONTENDERS[name]
    if ":" not in name:
        raise SpecError(
            f"unknown contender {name!r}{near(name, CONTENDERS)}; known: {', '.join(CONTENDERS)}; "
            "or name a class of your own as module:Class"
        )
    return Registered(name)


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender that `open` starts, or the error that `open` raises.

    `folder` is the OpenVINO folder that it uses, None if it uses another form of the weights.
    """

    open: Opener
    folder: Path | None = None


def lineup(
    names: Sequence[str], shelf: WeightsShelf, peers: Path | None, threads: int, limit: float
) -> dict[str, Entrant]:
    """Return an entrant for each name, in order. Weights are prepared here, outside the measurement.

    `peers` is another Python, None if there is none. `limit` is the time limit for one answer, in seconds.
    """
    return {name: _entrant(name, shelf, peers, threads, limit) for name in names}


def _entrant(name: str, shelf: WeightsShelf, peers: Path | None, threads: int, limit: float) -> Entrant:
    entry = registered(name)
    if entry.peer and peers is None:
        return Entrant(_refusing(EngineGone(NO_PEERS)))
    try:
        weights = shelf.take(entry)
    except MagistrateError as error:
        return Entrant(_refusing(error))
    python = peers if entry.peer else None
    folder = weights.ir if entry.files == "ir" else None
    return Entrant(lambda: Child(name, weights, threads, python, limit), folder)


def _refusing(error: MagistrateError) -> Opener:
    def refuse() -> Child:
        raise error

    return refuse


def measure(
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

    At the end `requests` requests go through the entrant `SOAKED`, 0 for none. `command` reproduces the
    run. `tell` receives progress messages.
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
            rows.append(not_measured(SOAKED, workload.model, "soak", SOAK_IN_FLIGHT, str(error)))
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


@click.command(epilog="Example: python -m benchmarks.speed --quick --contender magistrate")
@click.option("--quick", is_flag=True, help="Few and short measurements: about a minute, rough figures.")
@click.option("--rounds", type=click.IntRange(1), help="How often everything is measured (default: 5).")
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    metavar="NAME",
    help="Measure this one, also module:Class of your own; repeatable (default: all known).",
)
@click.option(
    "--peers",
    metavar="PYTHON",
    help="The Python that has the other engines (default: .venv-peers/bin/python where it exists).",
)
@click.option(
    "--soak", type=click.IntRange(0), default=0, help="Then send so many requests and watch the memory."
)
@click.option(
    "--append",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSONL file that every row is added to (default: bench/speed.jsonl in $MAGISTRATE_HOME).",
)
@click.option(
    "--model", help="Catalogue name, GGUF file or OpenVINO folder (default: the small built-in one)."
)
@click.option("--threads", type=click.IntRange(1), help="Cores to use (default: all it may run on).")
@json_option
def command(
    quick: bool,
    rounds: int | None,
    contenders: tuple[str, ...],
    peers: str | None,
    soak: int,
    append: Path | None,
    model: str | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Measure verdicts, reading, writing, masks, start and memory, side by side in interleaved rounds.

    Each contender runs in a process of its own, one at a time, on the same weights, prompts and schema. What
    is not installed is listed with the reason.
    """
    names = list(dict.fromkeys(contenders)) or list(CONTENDERS)
    for name in names:
        registered(name)
    if soak and SOAKED not in names:
        raise click.UsageError(f"--soak is for the contender {SOAKED}, which is not among those named")
    python = _peers(peers)
    journal = append or home() / "bench" / "speed.jsonl"
    require_writable(journal)
    threads = threads or available_cores()
    plan = QUICK if quick else Plan()
    plan = plan if rounds is None else replace(plan, rounds=rounds)
    with Stages(console(error=True)) as stages:
        shelf = WeightsShelf(model or default().name, stages.report)
        entrants = lineup(names, shelf, python, threads, LIMIT_SECONDS)
    with _Progress() as progress:
        again = shlex.join(["python", "-m", "benchmarks.speed", *sys.argv[1:]])
        result = measure(entrants, shelf.folder, plan, threads, soak, command=again, tell=progress.tell)
    result.append(journal)
    if as_json:
        print_json(result.to_dict())
    else:
        render(result, console())
    return DONE if any(row.value is not None for row in result.rows) else ENGINE_GONE


class _Progress:
    """Progress on standard error: in place on a terminal, elsewhere a line now and then."""

    def __init__(self) -> None:
        terminal = console(error=True)
        self._status = terminal.status("") if terminal.is_terminal else None
        self._told = time.monotonic()

    def __enter__(self) -> _Progress:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, text: str) -> None:
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(text))
        elif time.monotonic() - self._told > SECONDS_A_LINE:
            self._told = time.monotonic()
            click.echo(text, err=True)


def _peers(named: str | None) -> Path | None:
    """Return the peers' Python; None if none was named and the usual one does not exist."""
    python = Path(named).expanduser() if named else PEERS
    if python.is_file():
        return python.absolute()
    if named:
        raise SpecError(
            f"there is no Python at {named}; make one with: make bench-peers, or leave --peers out"
        )
    return None


if __name__ == "__main__":
    main(command, "python -m benchmarks.speed")
