"""Runs that are judged in shares: which share a sample is in, and which shares of a run are judged.

A share is a part of the samples, by a hash of their ids. It is judged by a process of its own, in the same
store as the others or in another one. A run of which a share is missing is not `done`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from hashlib import sha256
from typing import Any, Self

from sqlalchemy import Connection, select

from magistrate.errors import SpecError
from magistrate.store.codec import dumps, loads
from magistrate.store.runs import (
    FinishedStatus,
    RunRecord,
    add_seconds,
    change_run,
    finish_run,
    lock_run,
    record_of,
    require_run,
)
from magistrate.store.schema import runs

SHARES = "shares"  # the setting of a run that holds its shares
PART = "a part of the run: "  # how the reason of a run begins whose shares here are judged, but not all of it
RANGES_LISTED = 8
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class Part:
    """Some shares of `of` in all, which count from 1."""

    shares: frozenset[int]
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the part that `I/N` names. Raises `SpecError` unless 1 <= I <= N."""
        found = _SHARD.fullmatch(text)
        share, of = (int(found[1]), int(found[2])) if found else (0, 0)
        if not 1 <= share <= of:
            raise SpecError(
                f"a shard is I/N, the I-th of N shares with I from 1 to N, such as 2/8; got {text!r:.40}"
            )
        return cls(frozenset({share}), of)

    def has(self, sample_id: str) -> bool:
        """Return whether the sample is in one of the shares."""
        return share_of(sample_id, self.of) in self.shares


def share_of(sample_id: str, of: int) -> int:
    """Return the share of a sample: the same on every machine, independent of the other samples.

    >>> share_of("s1", 1), share_of("s1", 3), share_of("s2", 3)
    (1, 1, 2)
    """
    digest = sha256(sample_id.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % of + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShares:
    """The shares of a run: how many in all, and which of them were begun and are judged in this store.

    `merged` has the working time of every run that was merged into this one, by id.
    """

    of: int
    begun: frozenset[int] = frozenset()
    done: frozenset[int] = frozenset()
    merged: Mapping[str, float] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether all shares are judged."""
        return len(self.done) == self.of

    @property
    def left(self) -> Part:
        """The shares that were begun and are not judged."""
        return Part(self.begun - self.done, self.of)

    @property
    def told(self) -> str:
        """A message that says which shares are judged and which are missing."""
        missing = frozenset(range(1, self.of + 1)) - self.done
        return f"{PART}{len(self.done)} of {self.of} shares judged, missing: {_listed(missing)}"

    def plain(self) -> dict[str, Any]:
        """The values that `from_plain` reads."""
        values = {"of": self.of, "begun": sorted(self.begun), "done": sorted(self.done)}
        return values | {"merged": dict(self.merged)}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """Return the shares from a setting."""
        begun, done = frozenset(values["begun"]), frozenset(values["done"])
        return cls(of=values["of"], begun=begun, done=done, merged=values["merged"])


def shares_of(record: RunRecord) -> RunShares | None:
    """Return the shares of a run, None if it is not judged in shares."""
    found = record.settings.get(SHARES)
    return None if found is None else RunShares.from_plain(found)


@dataclass(frozen=True, slots=True)
class ShareStore:
    """Writes which shares of a run are begun and judged."""

    _writing: Callable[[], AbstractContextManager[Connection]]
    _now: Callable[[], datetime]

    def begin(self, run_id: str, shares: Collection[int]) -> None:
        """Record that these shares are being judged, and set the run to `running`."""
        with self._writing() as connection:
            found = _read(connection, run_id)
            _write(connection, run_id, replace(found, begun=found.begun | set(shares)))
            finish_run(connection, run_id, "running", None, None, None)

    def merge(self, run_id: str, shares: RunShares, source: str, seconds: float) -> None:
        """Record the shares of another run whose outcomes are copied, and the time that it worked."""
        with self._writing() as connection:
            found = _read(connection, run_id)
            more = seconds - found.merged.get(source, 0.0)
            merged = {**found.merged, source: seconds}
            begun, done = found.begun | shares.begun, found.done | shares.done
            changed = replace(found, begun=begun, done=done, merged=merged)
            if changed != found:
                _write(connection, run_id, changed)
                add_seconds(connection, run_id, more)

    def finish(
        self, run_id: str, done: Collection[int], status: FinishedStatus, reason: str | None = None
    ) -> None:
        """Record that shares are judged, or why not. The run is `done` only if all of its shares are."""
        now = self._now()
        with self._writing() as connection:
            found = _read(connection, run_id)
            found = replace(found, done=found.done | set(done))
            _write(connection, run_id, found)
            if found.whole:
                n_samples = record_of(connection, run_id).n_samples
                finish_run(connection, run_id, "done", now, n_samples, None)
            else:
                ended: FinishedStatus = "interrupted" if status == "done" else status
                finish_run(connection, run_id, ended, now, None, reason or found.told)


def _read(connection: Connection, run_id: str) -> RunShares:
    require_run(connection, run_id)
    lock_run(connection, run_id)
    found = loads(connection.scalar(select(runs.c.settings).where(runs.c.id == run_id)) or "{}").get(SHARES)
    if found is None:
        raise SpecError(f"run {run_id} is not judged in shares")
    return RunShares.from_plain(found)


def _write(connection: Connection, run_id: str, shares: RunShares) -> None:
    settings = loads(connection.scalar(select(runs.c.settings).where(runs.c.id == run_id)) or "{}")
    change_run(connection, run_id, settings=dumps({**settings, SHARES: shares.plain()}))


def _listed(shares: Collection[int]) -> str:
    """Return shares in words, such as `1-3, 5`. A long list is shortened."""
    ranges: list[list[int]] = []
    for share in sorted(shares):
        if ranges and share == ranges[-1][1] + 1:
            ranges[-1][1] = share
        else:
            ranges.append([share, share])
    words = [str(low) if low == high else f"{low}-{high}" for low, high in ranges]
    return ", ".join([*words[:RANGES_LISTED], *["…"][: len(words) > RANGES_LISTED]])
