"""Read the rows of pandas and polars frames. Neither library is imported before it is needed.

The index of a pandas frame is kept with its samples as a `FrameIndex`, so that results can be matched to
its rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from magistrate.datasets.fields import field_of
from magistrate.datasets.rows import Problem, Row, json_row, json_value
from magistrate.errors import DatasetError, SpecError
from magistrate.types import Sample

if TYPE_CHECKING:
    import pandas

KEYS = ("index", "frame_index", "index_of_the_frame")


@dataclass(frozen=True, slots=True)
class FrameIndex:
    """The levels of a pandas index: their names (None for an unnamed level) and their pandas dtypes.

    The index value of a row is stored in its sample's metadata under `key`, as a list if there are several
    levels. `key` is None for an index that counts from 0 over rows whose ids count from 1 (`rows-1`).
    """

    names: tuple[str | None, ...]
    kinds: tuple[str, ...]
    key: str | None

    @classmethod
    def of(cls, index: Any, key: str | None) -> FrameIndex:
        """Return the `FrameIndex` of a pandas index."""
        levels = index.levels if index.nlevels > 1 else [index]
        names = tuple(None if name is None else str(name) for name in index.names)
        return cls(names, tuple(map(_kind, levels)), key)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FrameIndex:
        """Restore the `FrameIndex` that `plain` wrote."""
        return cls(tuple(plain["names"]), tuple(plain["kinds"]), plain["key"])

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"names": list(self.names), "kinds": list(self.kinds), "key": self.key}

    def again(self, samples: Iterable[Sample]) -> pandas.Index:
        """Return the index of a frame with one row per sample.

        Numbers, texts, booleans, dates and times are restored with their types. Values that JSON cannot
        represent come back as text. A sample that was not in the frame gets None.
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
    """Return the first of `KEYS` that no column uses, or None."""
    others = set(taken)
    return next((key for key in KEYS if key not in others), None)


def plain_key(value: Any) -> Any:
    """Return an index value as a JSON value, or as text if JSON cannot represent it."""
    try:
        return [plain_key(part) for part in value] if isinstance(value, tuple) else json_value(value)
    except ValueError:
        return str(value)


def _kind(level: Any) -> str:
    """Return the dtype of a level, or `date` if it contains Python dates."""
    return "date" if level.inferred_type == "date" else str(level.dtype)


def _level(values: Sequence[Any], kind: str) -> pandas.Index:
    """Return the values as an index level of this dtype, or unchanged if they do not fit it."""
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


def rows_of_frame(source: object, name: str, mapping: Mapping[str, str]) -> Iterator[Row | Problem] | None:
    """Return the rows of a frame, or None if `source` is not a frame.

    The index of a pandas frame gives the ids, unless it only counts from 0 or a column gives them. In the
    latter case a named index becomes another column. `index_of_frame` returns how to find the rows again.
    Raises DatasetError if two columns have the same name.
    """
    # A program that has a frame has imported its library.
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if pandas is not None and isinstance(source, pandas.DataFrame):
        return _of_pandas(source, pandas, name, mapping)
    if polars is not None and isinstance(source, polars.LazyFrame):
        raise SpecError("a polars LazyFrame has no rows yet; pass frame.collect()")
    if polars is not None and isinstance(source, polars.DataFrame):
        numbered = enumerate(source.iter_rows(named=True), 1)
        return _rows(name, ((f"{name}-{number}", values) for number, values in numbered))
    return None


def index_of_frame(source: object, mapping: Mapping[str, str]) -> FrameIndex | None:
    """Return how the samples of `rows_of_frame` record their row; None if `source` is no pandas frame."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(source, pandas.DataFrame):
        return None
    if _counts(source.index, pandas) and not _has_id(source, mapping):
        return FrameIndex.of(source.index, None)
    names = [str(level) for level in source.index.names if level is not None]
    key = key_for([*map(_word, source.columns), *names, *mapping.values()])
    return None if key is None else FrameIndex.of(source.index, key)


def _counts(index: Any, pandas: Any) -> bool:
    """Return whether an index contains only the row numbers."""
    return isinstance(index, pandas.RangeIndex) and index.start == 0 and index.step == 1


def _has_id(frame: Any, mapping: Mapping[str, str]) -> bool:
    return "id" in mapping or any(field_of(_word(column)) == "id" for column in frame.columns)


def _of_pandas(frame: Any, pandas: Any, name: str, mapping: Mapping[str, str]) -> Iterator[Row | Problem]:
    columns = [_word(column) for column in frame.columns]
    index = frame.index
    counts, has_id = _counts(index, pandas), _has_id(frame, mapping)
    extra = [] if counts else [str(level) for level in index.names if level is not None] if has_id else []
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise DatasetError(
            f"two columns of the frame have the name {', '.join(map(repr, twice))}; rename one"
        )
    kept = index_of_frame(frame, mapping)

    def found() -> Iterator[tuple[str, dict[str, Any]]]:
        for number, (key, *cells) in enumerate(frame.itertuples(index=True, name=None), 1):
            values = dict(zip(columns, cells, strict=True))
            if extra:
                parts = key if isinstance(key, tuple) else (key,)
                named = zip((str(level) for level in index.names), parts, strict=True)
                values = {level: part for level, part in named if level in extra} | values
            if kept is not None and kept.key is not None:
                values[kept.key] = plain_key(key)
            yield f"{name}-{number}" if counts or has_id else _word(key), values

    return _rows(name, found())


def _word(key: Any) -> str:
    """Return a label of an index or a column as one text."""
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _rows(name: str, found: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Row | Problem]:
    for number, (id, values) in enumerate(found, 1):
        try:
            yield Row(name, number, id, json_row(values))
        except ValueError as error:
            yield Problem(name, number, str(error))
