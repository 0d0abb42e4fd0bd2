"""The index of a pandas frame, kept with its samples, so that what is said of them finds back to its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from magistrate.datasets.values import json_value
from magistrate.types import Sample

if TYPE_CHECKING:
    import pandas

KEYS = ("index", "frame_index", "index_of_the_frame")


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The levels of an index: their names, None for one without, and their types in pandas' words.

    Where a row stood is in its sample's metadata under `key`, a list where there are several levels. None is
    for an index that counts from 0 over rows whose ids count from 1 (`rows-1`).
    """

    names: tuple[str | None, ...]
    kinds: tuple[str, ...]
    key: str | None

    @classmethod
    def of(cls, index: Any, key: str | None) -> FrameIndex:
        """That of a pandas index."""
        levels = index.levels if index.nlevels > 1 else [index]
        names = tuple(None if name is None else str(name) for name in index.names)
        return cls(names, tuple(map(_kind, levels)), key)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FrameIndex:
        """What `plain` wrote."""
        return cls(tuple(plain["names"]), tuple(plain["kinds"]), plain["key"])

    def plain(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"names": list(self.names), "kinds": list(self.kinds), "key": self.key}

    def again(self, samples: Iterable[Sample]) -> pandas.Index:
        """The index of a frame with one row for each of the samples.

        Numbers, texts, truth values, dates and times come back as they were; what JSON has no word for is a
        text. A sample that was not in the frame has None.
        """
        import pandas

        keys = [self._key(sample) for sample in samples]
        if len(self.names) == 1:
            return _level(keys, self.kinds[0]).rename(self.names[0])
        columns = [[None if key is None else key[at] for key in keys] for at in range(len(self.names))]
        levels = [_level(column, kind) for column, kind in zip(columns, self.kinds, strict=True)]
        return pandas.MultiIndex.from_arrays(levels, names=list(self.names))

    def _key(self, sample: Sample) -> Any:
        if self.key is not None:
            return sample.metadata.get(self.key)
        number = sample.id.rpartition("-")[2]
        return int(number) - 1 if number.isdecimal() else None


def key_for(taken: Iterable[str]) -> str | None:
    """The first of `KEYS` that is not taken by a column."""
    others = set(taken)
    return next((key for key in KEYS if key not in others), None)


def plain_key(value: Any) -> Any:
    """A value of an index as a JSON value; a text where JSON has no word for it."""
    try:
        return [plain_key(part) for part in value] if isinstance(value, tuple) else json_value(value)
    except ValueError:
        return str(value)


def _kind(level: Any) -> str:
    """The type of a level; `date` where it holds days as Python has them."""
    return "date" if level.inferred_type == "date" else str(level.dtype)


def _level(values: Sequence[Any], kind: str) -> pandas.Index:
    """The values as a level of this type; as they are where they do not fit it."""
    import pandas

    try:
        if kind == "date":
            return pandas.Index([None if v is None else date.fromisoformat(v) for v in values], dtype=object)
        if kind.startswith("datetime64"):
            zone = getattr(pandas.api.types.pandas_dtype(kind), "tz", None)
            times = pandas.to_datetime(list(values), format="ISO8601", utc=zone is not None)
            return (times if zone is None else times.tz_convert(zone)).astype(kind)
        return pandas.Index(values, dtype=kind)
    except (TypeError, ValueError):
        return pandas.Index(values, dtype=object)
