"""A whole run as one value: rows, limits of the machine, ratios between them, and where it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from magistrate.bench.geometry import Geometry
from magistrate.bench.limits import Limits
from magistrate.bench.machine import Machine
from magistrate.bench.rows import KINDS, Row
from magistrate.bench.soak import Soak
from magistrate.errors import SpecError


@dataclass(frozen=True, slots=True)
class Share:
    """A figure as a share of the most that the machine could do, which is `most`, in the figure's unit.

    `limit` says what would hold it up: `f32` or `int8` products (for a model whose products are computed in
    8 bits the share of `f32` may pass 1), or `bandwidth`, reading the weights once a step.
    """

    engine: str
    work: str
    in_flight: int
    share: float
    most: float
    limit: str


@dataclass(frozen=True, slots=True)
class Result:
    """What `bench speed` found. `geometries` holds those of engines whose weights were counted; `command`
    reproduces it; `date` is in UTC."""

    model: str
    rows: Sequence[Row]
    limits: Limits
    geometries: Mapping[str, Geometry]
    machine: Machine
    versions: Mapping[str, str]
    command: str
    date: str
    load: float | None
    soak: Soak | None = None

    def row(self, engine: str, work: str, in_flight: int) -> Row | None:
        """The row of that figure, if it was measured or tried."""
        wanted = (engine, work, in_flight)
        return next((row for row in self.rows if (row.engine, row.work, row.in_flight) == wanted), None)

    @property
    def engines(self) -> tuple[str, ...]:
        """Contenders in the order they were measured in."""
        return tuple(dict.fromkeys(row.engine for row in self.rows))

    @property
    def cells(self) -> tuple[tuple[str, int], ...]:
        """Works with their numbers in flight."""
        return tuple(dict.fromkeys((row.work, row.in_flight) for row in self.rows))

    def ratio(self, peer: str, work: str, in_flight: int, of: str | None = None) -> float | None:
        """How many times better the first engine does `work` than `peer` does the same (or the work `of`,
        in the same unit); None where one of the two has no figure."""
        ours = self.row(self.engines[0], work, in_flight)
        theirs = self.row(peer, of or work, in_flight)
        if ours is None or theirs is None or not ours.value or not theirs.value:
            return None
        return ours.value / theirs.value if KINDS[work].more_is_better else theirs.value / ours.value

    def shares(self) -> list[Share]:
        """Reading prompts against the products, and decoding against the memory's bandwidth."""
        found = []
        for row in self.rows:
            geometry = self.geometries.get(row.engine)
            if geometry is None or row.value is None:
                continue
            if row.work == "prefill":
                found.append(_share(row, self.limits.f32_gflop_s / geometry.gflop, "f32"))
                if geometry.int8 and self.limits.int8_gop_s is not None:
                    found.append(_share(row, self.limits.int8_gop_s / geometry.gflop, "int8"))
            elif row.work == "decode":
                steps = self.limits.read_gb_s * 1e9 / geometry.step_bytes
                found.append(_share(row, steps * row.in_flight, "bandwidth"))
        return found

    def to_dict(self) -> dict[str, Any]:
        """`rows`, and `limits` with what each model needs of them and the shares that were reached."""
        models = {
            engine: {"gflop_per_token": each.gflop, "bytes_per_step": each.step_bytes}
            for engine, each in self.geometries.items()
        }
        shares = [asdict(share) for share in self.shares()]
        return {"rows": self._rows(), "limits": {**asdict(self.limits), "models": models, "shares": shares}}

    def append(self, path: Path) -> None:
        """Add every row to a JSONL file, each with the circumstances it was measured in."""
        circumstances = {
            "machine": asdict(self.machine),
            "versions": dict(self.versions),
            "command": self.command,
            "date": self.date,
            "load": self.load,
            "limits": asdict(self.limits),
        }
        with _appending(path) as file:
            file.write("".join(json.dumps({**row, **circumstances}) + "\n" for row in self._rows()))

    def _rows(self) -> list[dict[str, Any]]:
        soak = [] if self.soak is None else [self.soak.to_dict(self.model)]
        return [row.to_dict() for row in self.rows] + soak


def require_writable(path: Path) -> None:
    """Raise `SpecError` where rows could not be added to `path`; it is there afterwards, with its folder."""
    with _appending(path):
        pass


@contextmanager
def _appending(path: Path) -> Iterator[IO[str]]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise SpecError(
            f"cannot append to {path}: {error.strerror or error}; name another file with --append"
        ) from error


def _share(row: Row, most: float, limit: str) -> Share:
    assert row.value is not None
    return Share(row.engine, row.work, row.in_flight, row.value / most, most, limit)
