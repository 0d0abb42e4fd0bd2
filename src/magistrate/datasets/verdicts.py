"""Reads verdict files of other tools: one label or score per row, with its reason.

A file is a table (`.csv`, `.jsonl`, `.json`, `.parquet`), an Inspect log, or a DeepEval test run. A cell
may hold a whole verdict as an object, as Phoenix writes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from magistrate.datasets.fields import UnknownLabel, label_of, plain
from magistrate.datasets.files import FileSource, open_file
from magistrate.datasets.formats import bounded_whole
from magistrate.datasets.rows import MAX_UNREAD, Problem, Row, RowError, Tally
from magistrate.datasets.samples import at_path, columns_of, opened_cell, without_path
from magistrate.errors import DatasetError, SpecError
from magistrate.types import FAITHFUL, HALLUCINATED, Direction, Scoring

Higher = Literal["better", "worse"]
DIRECTIONS: Mapping[str, Direction] = {"better": "maximize", "worse": "minimize"}
NOTHING = ("", "nan", "none", "null", "n/a", "na", "-")
YES_OR_NO = {"true": 1.0, "false": 0.0}
SCORES, REASONS = ("score", "value"), ("explanation", "reason")
LONGEST_REASON = 300  # characters of a tool's error, in a failure's message
TEST_RUNS = ("testCases", "test_cases")
CONVERSATIONS = ("conversationalTestCases", "conversational_test_cases")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictColumns:
    """The columns of a file that hold verdicts, and how to read them.

    `score`, `label`, `reason` and `error` are columns or dotted paths. `score` or `label` is required; if
    both are present, the label decides. `higher` is the meaning of a higher score. A score at or above
    `threshold`, in the file's scale, counts as high. `scale` is the lowest and the highest possible score.
    `only` keeps the rows that have a value in a column.
    """

    score: str | None = None
    label: str | None = None
    reason: str | None = None
    error: str | None = None
    higher: Higher | None = None
    threshold: float | None = None
    scale: tuple[float, float] = (0.0, 1.0)
    only: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        low, high = self.scale
        if self.score is None and self.label is None:
            raise SpecError("give the column with the verdicts: --score COLUMN or --label COLUMN")
        if self.higher not in (None, *DIRECTIONS):
            raise SpecError(f"higher must be 'better' or 'worse', got {self.higher!r}")
        if not low < high or not all(map(math.isfinite, self.scale)):
            raise SpecError(f"a scale must be LOW,HIGH with LOW below HIGH, got {low:g},{high:g}")
        if self.score is None and (self.higher, self.threshold) != (None, None):
            raise SpecError("--higher and --threshold need a column of scores: --score")
        if self.threshold is not None and not low < self.threshold <= high:
            raise SpecError(f"--threshold must be in ({low:g}, {high:g}], got {self.threshold:g}")


@dataclass(frozen=True, slots=True)
class RecordedVerdict:
    """The verdict of one row. `score` is in [0, 1] in the file's direction; `missing` says why there is none.

    `label` is `faithful` or `hallucinated`, or None if the file's label means neither, which `unsure` then
    holds. `rest` holds the columns that are not part of the verdict.
    """

    row: Row
    rest: Mapping[str, Any]
    score: float | None = None
    label: str | None = None
    reason: str | None = None
    missing: str | None = None
    unsure: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedVerdicts:
    """The verdicts of a file, the interpretation of its scores, and the rows that could not be read."""

    source: FileSource
    verdicts: tuple[RecordedVerdict, ...]
    scoring: Scoring
    problems: tuple[Problem, ...]


def read_verdicts(
    path: str | Path,
    columns: VerdictColumns,
    *,
    labels: Mapping[str, str] | None = None,
    max_unread: float = MAX_UNREAD,
) -> RecordedVerdicts:
    """Read the verdicts in a file. Nothing is judged or guessed.

    A verdict that is blank, not a number, or replaced by a tool's error has no label and gives the reason.
    `labels` maps values to meanings, as returned by `check_labels`. Raises `SpecError` for a file of
    another kind, or if the direction of scores or a threshold is missing. Raises `DatasetError` for a file
    without rows, a column that no row has, an unknown label, a score outside the scale, labels that
    contradict the threshold, and scores whose direction contradicts the labels.
    """
    source = open_file(path)
    source = replace(source, shown=source.path.name)  # stored messages name rows by file, without the path
    reading = _Reading(columns, labels or {})
    tally, problems = Tally(), list[Problem]()
    for row in _rows(source):
        if isinstance(row, Problem):
            found: RecordedVerdict | Problem | None = row
        else:
            try:
                found = reading.verdict(row)
            except RowError as error:
                found = row.problem(str(error), error.label)
        if isinstance(found, Problem):
            problems.append(found)
            tally.problem(found)
        elif found is not None:
            tally.read += 1
            reading.verdicts.append(found)
    if tally.labels:
        first = next(each for each in problems if each.label is not None)
        raise DatasetError(f"{first}; {tally.mend()}")
    if not reading.seen and not tally.unread:
        raise DatasetError(f"{source.shown} has no rows")
    if not reading.verdicts and columns.only is not None and not tally.unread:
        raise DatasetError(f"no row of {source.shown} has {columns.only[1]!r} in {columns.only[0]!r}")
    if tally.unread:
        _refuse(source.shown, tally, max_unread)
    reading.check_columns(source.shown)
    return RecordedVerdicts(source, tuple(reading.scored()), reading.scoring(), tuple(problems))


def _refuse(shown: str, tally: Tally, max_unread: float) -> None:
    """Raise `DatasetError` that names the first unreadable row, if too many are unreadable."""
    found = tally.found()
    if not tally.read or found.share > max_unread:
        raise DatasetError(f"{found.n:,} of {found.rows:,} rows of {shown} cannot be read; {tally.first}")


@dataclass(slots=True)
class _Reading:
    columns: VerdictColumns
    labels: Mapping[str, str]
    verdicts: list[RecordedVerdict] = field(default_factory=list)
    seen: Row | None = None
    present: Counter[str] = field(default_factory=Counter)
    told: dict[str, str] = field(default_factory=dict)  # directions that cells name, and the first row

    def verdict(self, row: Row) -> RecordedVerdict | None:
        """Return the verdict of a row, None if `only` excludes it. Raises `RowError`."""
        columns = self.columns
        self.seen = self.seen or row
        if columns.only is not None:
            name, value = columns.only
            if str(at_path(row.values, name, "--only")).strip() != value:
                return None
        rest = dict(row.values)
        score = self._cell(row, "score", columns.score)
        label = self._cell(row, "label", columns.label)
        reason = self._cell(row, "reason", columns.reason)
        error = self._cell(row, "error", columns.error)
        for path in (columns.score, columns.label, columns.reason, columns.error):
            rest = rest if path is None else without_path(rest, path)
        whole = next((each for each in (score, label) if isinstance(each, Mapping)), {})
        if isinstance(score, Mapping):
            self._hear(score.get("direction"), row)
            label = score.get("label") if columns.label is None else label
        score, label = _part(score, SCORES), _part(label, ("label",))
        reason = _part(whole, REASONS) if columns.reason is None else reason
        error = _part(whole, ("error",)) or self._execution(row) if columns.error is None else error
        given = {name: each for name, each in (("score", score), ("label", label)) if not _blank(each)}
        words = None if _blank(reason) else str(reason)
        found = RecordedVerdict(row, rest, reason=words, given=given)
        return self._decided(found, score, label, error)

    def _cell(self, row: Row, option: str, path: str | None) -> Any:
        """Return the value at a path, parsed if it is JSON text of an object; None if the row lacks it."""
        if path is None:
            return None
        try:
            value = opened_cell("metadata", at_path(row.values, path))
        except RowError:
            return None
        self.present[option] += 1
        return value

    def _hear(self, direction: Any, row: Row) -> None:
        """Remember the score direction that a cell names."""
        if direction in DIRECTIONS.values():
            self.told.setdefault(direction, row.where)

    def _execution(self, row: Row) -> Any:
        """Return the exceptions that Phoenix stores beside a score, as NAME_execution_details."""
        name = self.columns.score or self.columns.label or ""
        details = opened_cell("metadata", row.values.get(f"{name.removesuffix('_score')}_execution_details"))
        exceptions = details.get("exceptions") if isinstance(details, Mapping) else None
        return "; ".join(map(str, exceptions)) if isinstance(exceptions, list) else exceptions

    def _decided(self, found: RecordedVerdict, score: Any, label: Any, error: Any) -> RecordedVerdict:
        """Return the verdict with the score and label that the row gives. Raises `RowError`."""
        if not _blank(error):
            why = plain(" ".join(str(error).split()), LONGEST_REASON)
            return replace(found, missing=f"the tool's own error: {why}")
        wanted = (("score", self.columns.score, score), ("label", self.columns.label, label))
        for name, path, value in wanted:
            if path is not None and _blank(value):
                return replace(found, missing=f"no {name} in {plain(path)!r}")
        if self.columns.score is not None:
            found = replace(found, score=self._number(score))
        if _blank(label):
            return found
        column = self.columns.label or self.columns.score or "label"
        try:
            said = label_of("label", label, self.labels)
        except UnknownLabel as unknown:
            word = str(label).strip()[:LONGEST_REASON]
            raise RowError(f"{plain(column)} {unknown}", (column, word)) from None
        return replace(found, label=said, unsure=plain(str(label)) if said is None else None)

    def _number(self, value: Any) -> float:
        """Return a score in [0, 1]."""
        low, high = self.columns.scale
        column = plain(self.columns.score or "")
        try:
            number = YES_OR_NO.get(str(value).strip().lower(), value)
            number = float(number if isinstance(number, str | int | float) else "")
        except (ValueError, OverflowError):  # the second for whole numbers beyond every float
            raise RowError(f"{column} {plain(repr(value))} is not a number") from None
        if not low <= number <= high:
            raise RowError(
                f"{column} {number:g} is outside {low:g} to {high:g}; give the scale: --scale LOW,HIGH"
            )
        return (number - low) / (high - low)

    def check_columns(self, shown: str) -> None:
        """Raise `DatasetError` for a requested column that no row has."""
        for option in ("score", "label", "reason", "error"):
            path = getattr(self.columns, option)
            if path is not None and not self.present[option] and self.seen is not None:
                told = columns_of(self.seen.values)
                raise DatasetError(f"{shown} has no column {plain(path)!r}, given by --{option}; {told}")

    @property
    def direction(self) -> Direction:
        """The direction of scores, from `higher` or from the file. Raises `SpecError` if neither gives it."""
        said = DIRECTIONS.get(self.columns.higher or "")
        if len(self.told) > 1:
            both = ", ".join(f"{name} ({where})" for name, where in self.told.items())
            raise DatasetError(f"the file has scores of two directions: {both}; separate them with --only")
        if said is None and not self.told:
            raise SpecError(
                "the direction of scores is unknown; give --higher better (1 means faithful, as in most "
                "faithfulness scores) or --higher worse (1 means hallucinated)"
            )
        for told, where in self.told.items():
            if said not in (None, told):
                raise SpecError(f"--higher {self.columns.higher} contradicts {where}: {told}")
            return "maximize" if told == "maximize" else "minimize"
        assert said is not None
        return said

    @property
    def labelled(self) -> bool:
        """Whether labels decide, rather than a threshold."""
        return self.columns.label is not None or any(each.label for each in self.verdicts)

    def scoring(self) -> Scoring:
        """Return the interpretation of the scores in the form that runs store."""
        labels = (FAITHFUL, HALLUCINATED)
        if self.columns.score is None:
            return Scoring("minimize", labels)
        return Scoring(self.direction, labels, self._threshold())

    def _threshold(self) -> float | None:
        low, high = self.columns.scale
        return None if self.columns.threshold is None else (self.columns.threshold - low) / (high - low)

    def scored(self) -> Iterator[RecordedVerdict]:
        """Yield the verdicts with label and score. Raises `DatasetError` if the two contradict each other."""
        if self.columns.score is None:
            for each in self.verdicts:
                score = None if each.label is None else float(each.label == HALLUCINATED)
                yield replace(each, score=score)
            return
        turned, threshold = self.direction == "maximize", self._threshold()
        if threshold is None and not self.labelled:
            raise SpecError(
                "scores alone do not give labels: add the score from which on one counts as high, "
                "--threshold 0.5, or the column of labels, --label COLUMN"
            )
        self._check_way(turned)
        high, low = (FAITHFUL, HALLUCINATED) if turned else (HALLUCINATED, FAITHFUL)
        for each in self.verdicts:
            if each.missing is not None or each.unsure is not None or each.score is None:
                yield each
                continue
            by_score = None if threshold is None else high if each.score >= threshold else low
            if each.label is None and by_score is None:
                yield replace(each, missing="no label, and no --threshold to derive it from the score")
            elif each.label is not None and by_score not in (None, each.label):
                raise DatasetError(
                    f"{each.row.where}: the label says {each.label}, but the score says {by_score}; remove "
                    "--threshold to use labels, or --label to use scores"
                )
            else:
                yield replace(each, label=each.label or by_score)

    def _check_way(self, turned: bool) -> None:
        """Raise `DatasetError` if mean scores per label contradict the direction."""
        both = {
            label: [each.score for each in self.verdicts if each.label == label and each.score is not None]
            for label in (FAITHFUL, HALLUCINATED)
        }
        if not all(both.values()):
            return
        faithful, hallucinated = fmean(both[FAITHFUL]), fmean(both[HALLUCINATED])
        if faithful != hallucinated and (faithful > hallucinated) != turned:
            raise DatasetError(
                f"rows labelled faithful have a mean score of {faithful:.3g}, rows labelled hallucinated "
                f"{hallucinated:.3g}: higher is {'worse' if turned else 'better'} here; check --higher and "
                "--labels"
            )


def _part(cell: Any, names: tuple[str, ...]) -> Any:
    """Return the cell, or for an object the first non-blank value under these names."""
    if not isinstance(cell, Mapping):
        return cell
    return next((cell[name] for name in names if not _blank(cell.get(name))), None)


def _blank(value: Any) -> bool:
    """Return whether a value is empty."""
    return value is None or value != value or str(value).strip().lower() in NOTHING or value in ({}, [])


# --- the rows of a file -----------------------------------------------------------------------------


def _rows(source: FileSource) -> Iterator[Row | Problem]:
    """Yield the rows of a file; for a DeepEval test run one row per test case."""
    held = _test_run(source)
    if held is None:
        yield from source.rows()
        return
    for key in TEST_RUNS:
        for number, case in enumerate(held.get(key) or (), 1):
            where = f"{source.shown} test case {number}"
            if isinstance(case, Mapping):
                yield Row(where, None, f"{source.stem}-{number}", _case(case))
            else:
                yield Problem(where, None, "must be an object")
    for key in CONVERSATIONS:
        for number, _ in enumerate(held.get(key) or (), 1):
            reason = "a conversation has verdicts on all turns together, not on one output"
            yield Problem(f"{source.shown} conversation {number}", None, reason)


def _test_run(source: FileSource) -> Mapping[str, Any] | None:
    """Return the test run saved by DeepEval, None for any other file."""
    from pydantic_core import from_json

    if source.format != "json":
        return None
    with source.opened() as stream:
        if not stream.readline(1 << 16).lstrip().startswith(b"{"):
            return None
    with source.opened() as stream:
        try:
            held = from_json(bounded_whole(stream, source.shown))
        except ValueError:  # JSON Lines, or malformed: the line reader handles both
            return None
    if not isinstance(held, Mapping):
        return None
    held = held.get("testRunData", held)
    known = isinstance(held, Mapping) and any(isinstance(held.get(key), list) for key in TEST_RUNS)
    return held if known else None


def _case(case: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a test case to a row: fields under the usual names, and one column per metric."""

    def field_of(camel: str, snake: str) -> Any:
        return case.get(camel, case.get(snake))

    context = field_of("retrievalContext", "retrieval_context") or case.get("context")
    row = {
        "id": case.get("name"),
        "input": case.get("input"),
        "output": field_of("actualOutput", "actual_output"),
        "context": context,
        "expected": field_of("expectedOutput", "expected_output"),
        "metadata": case.get("metadata"),
    }
    metrics = field_of("metricsData", "metrics_data")
    for metric in metrics if isinstance(metrics, list) else ():
        if isinstance(metric, Mapping) and isinstance(metric.get("name"), str):
            passed = metric.get("success")
            row[metric["name"]] = {
                "score": metric.get("score"),
                "label": None if passed is None else "pass" if passed else "fail",
                "explanation": metric.get("reason"),
                "error": metric.get("error"),
            }
    return {name: value for name, value in row.items() if value is not None}
