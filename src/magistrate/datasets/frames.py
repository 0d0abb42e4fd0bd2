"""The rows of pandas and polars frames that a program passes in; neither library is imported here."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from magistrate.datasets.fields import field_of
from magistrate.datasets.index import FrameIndex, key_for, plain_key
from magistrate.datasets.source import Problem, Row
from magistrate.datasets.values import json_row
from magistrate.errors import DatasetError, SpecError


def rows_of_frame(source: object, name: str, mapping: Mapping[str, str]) -> Iterator[Row | Problem] | None:
    """The rows of a frame, or None where `source` is none.

    A pandas frame's index gives the ids, unless it only counts from 0 or a column gives them; then an
    index that has a name is a column more. Where a row stood, `index_of_frame` says how to find. DatasetError
    where two columns have one name.
    """
    # Whoever holds a frame has imported its library.
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
    """How the samples of `rows_of_frame` remember where they stood, None for what is no pandas frame."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(source, pandas.DataFrame):
        return None
    if _counts(source.index, pandas) and not _has_id(source, mapping):
        return FrameIndex.of(source.index, None)
    names = [str(level) for level in source.index.names if level is not None]
    key = key_for([*map(_word, source.columns), *names, *mapping.values()])
    return None if key is None else FrameIndex.of(source.index, key)


def _counts(index: Any, pandas: Any) -> bool:
    """Whether an index says no more than the number of the row."""
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
        raise DatasetError(f"two columns of the frame are named {', '.join(map(repr, twice))}; rename one")
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
    """A label of an index or a column as one text."""
    return "/".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _rows(name: str, found: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Row | Problem]:
    for number, (id, values) in enumerate(found, 1):
        try:
            yield Row(name, number, id, json_row(values))
        except ValueError as error:
            yield Problem(name, number, str(error))
