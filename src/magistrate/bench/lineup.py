"""Who is measured: names become starters of processes, or the reason why there is none."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from magistrate.bench.contender import CONTENDERS, Registered
from magistrate.bench.process import Child
from magistrate.bench.speed import Opener
from magistrate.bench.weights import WeightsShelf
from magistrate.errors import EngineGone, MagistrateError, SpecError
from magistrate.judges.registry import unknown

PEERS = Path(".venv-peers", *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))
NO_PEERS = "needs the peers' Python, which is not here: make bench-peers, or name one with --peers"


def registered(name: str) -> Registered:
    """What is known of a contender. Raises `SpecError` for what is neither a name nor `module:Class`."""
    if name in CONTENDERS:
        return CONTENDERS[name]
    if ":" not in name:
        raise SpecError(unknown("contender", name, list(CONTENDERS), see="bench speed --help"))
    return Registered(name)


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender that is ready to be started with `open`, or the error that `open` raises. `folder` is the
    OpenVINO folder that it computes with, None where it uses another form of the weights."""

    open: Opener
    folder: Path | None = None


def lineup(
    names: Sequence[str], shelf: WeightsShelf, peers: Path | None, threads: int, limit: float
) -> dict[str, Entrant]:
    """An entrant for each name, in order; weights are made ready here, so that none of it is measured.

    `peers` is another Python, None where there is none; `limit` is the longest a process may take for one
    answer, in seconds.
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
