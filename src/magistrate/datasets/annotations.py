"""Read files of human labels: a sample id, a label, and optionally the annotator's name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magistrate.datasets.fields import LABELS, POLARITY, UnknownLabel, field_of, label_of, plain
from magistrate.datasets.files import open_file
from magistrate.datasets.rows import MAX_UNREAD, Problem, Row, RowError, Tally
from magistrate.errors import DatasetError, SpecError
from magistrate.types import FAITHFUL, HALLUCINATED

ANNOTATORS = ("annotator", "annotator_id", "rater", "worker", "worker_id")
FIELDS = ("id", "label", "hallucination", "faithful", "annotator")


@dataclass(frozen=True, slots=True)
class Annotations:
    """Human labels by sample id, in the order of the file.

    `n_raters` is the number of annotators: those named, or else the largest number of labels of one sample.
    `problems` are the rows that cannot be read. `unknown` are the ids and labels of rows whose label is not
    a known word. `unlabelled` are the ids of rows without a label.
    """

    votes: Mapping[str, tuple[str, ...]]
    n_raters: int
    problems: tuple[Problem, ...]
    unknown: tuple[tuple[str, str], ...]
    unlabelled: frozenset[str]


@dataclass(slots=True)
class _Reading:
    votes: dict[str, list[str]] = field(default_factory=dict)
    named: dict[tuple[str, str], tuple[str, Row]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    unlabelled: set[str] = field(default_factory=set)
    columns: tuple[str, ...] = ()


def read_annotations(
    path: str | Path,
    *,
    known: Collection[str] = (),
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    max_unread: float = MAX_UNREAD,
) -> Annotations:
    """Read the labels in a file. Columns are recognized by the names that data sets use for `id` and
    `label`.

    `known` are the labels that a judge gives; a word among them is used as it is. If there are only
    faithful and hallucinated, or none, other words are read as data sets read them, and unknown words are
    problems. Otherwise another word is a label of its own. Several rows of one id come from several
    annotators. `mapping` (field to column) takes precedence over known names. `labels` gives the meaning of
    values, as returned by `check_labels`. Raises `DatasetError` if no row or too few rows (see
    `max_unread`) can be read, or if an annotator contradicts themselves.
    """
    fields = dict(mapping or {})
    if wrong := [name for name in fields if name not in FIELDS]:
        raise SpecError(f"unknown field {plain(repr(wrong[0]))} in --map; known: {', '.join(FIELDS)}")
    found, tally = _Reading(), Tally()
    source = open_file(path)
    for row in source.rows():
        if isinstance(row, Problem):
            found.problems.append(row)
            continue
        found.columns = found.columns or tuple(row.values)
        try:
            _add(found, row, fields, known, labels)
        except RowError as error:
            found.problems.append(row.problem(str(error), error.label))
        else:
            tally.read += 1
    for problem in found.problems:
        tally.problem(problem)
    if not found.votes:
        raise DatasetError(_nothing(found, source.shown) + (f"; {tally.mend()}" if tally.labels else ""))
    tally.refuse(source.shown, max_unread)
    people = {annotator for _, annotator in found.named}
    n_raters = len(people) or max(map(len, found.votes.values()))
    votes = {sample_id: tuple(labels) for sample_id, labels in found.votes.items()}
    return Annotations(
        votes, n_raters, tuple(found.problems), tuple(found.unknown), frozenset(found.unlabelled)
    )


def _nothing(found: _Reading, shown: str) -> str:
    """Return the error message for a file that labels no sample: its columns and what is required."""
    told = f"no row of {shown} gives a sample's id and a label"
    if found.problems:
        told += f"; {found.problems[0]}"
    elif not found.columns:
        told += "; it has no rows"
    if found.columns:
        told += f"; its columns are {', '.join(repr(plain(each, 40)) for each in found.columns[:15])}"
        if any(column.strip().lower() in LABELS for column in found.columns):
            told += " (its first line looks like data; a header is needed, such as id,label)"
        elif len(found.columns) == 1 and not found.columns[0].isidentifier():
            told += " (only one column was found; the separator must be a comma, semicolon or tab)"
    return (
        f"{told}; the columns id and label are needed, or give their names: --map id=COLUMN --map "
        "label=COLUMN"
    )


def _add(
    found: _Reading,
    row: Row,
    fields: Mapping[str, str],
    known: Collection[str],
    labels: Mapping[str, str] | None,
) -> None:
    """Add the vote of one row. Raises RowError if it cannot be read."""
    claimed = _columns(row.values, fields)
    if "id" not in claimed:
        raise RowError("no column gives the id of a sample")
    sample_id = claimed["id"][1]
    if sample_id is None or str(sample_id) == "":
        raise RowError("no sample id")
    given = [name for name in ("label", *POLARITY) if name in claimed]
    if not given:
        raise RowError("no column gives the label")
    said = claimed[given[0]][1]
    try:
        label = _label(given[0], said, known, labels)
    except UnknownLabel as error:
        word = str(said).strip()
        found.unknown.append((str(sample_id), word))
        raise RowError(f"{plain(claimed[given[0]][0])} {error}", (claimed[given[0]][0], word)) from None
    if label is None:
        found.unlabelled.add(str(sample_id))
        return
    who = claimed.get("annotator", ("", None))[1]
    if who is not None and str(who) != "":
        key = (str(sample_id), str(who))
        if key in found.named:
            before, first = found.named[key]
            if before == label:
                return
            raise DatasetError(
                f"{row.problem('')}annotator {plain(str(who))!r} labels {plain(str(sample_id))!r} as "
                f"{label!r} here and as {before!r} on line {first.line}; keep one"
            )
        found.named[key] = (label, row)
    found.votes.setdefault(str(sample_id), []).append(label)


def _columns(values: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """Return the column that gives each field, and its value."""
    claimed: dict[str, tuple[str, Any]] = {}
    for name, column in fields.items():
        if column not in values:
            raise RowError(f"there is no column {plain(column)!r}, given by --map")
        claimed[name] = (column, values[column])
    said_label = any(name in claimed for name in ("label", *POLARITY))
    for column, value in values.items():
        word = column.strip().lower().replace(" ", "_").replace("-", "_")
        known = "annotator" if word in ANNOTATORS else field_of(column)
        if known not in FIELDS or known in claimed or (said_label and known in ("label", *POLARITY)):
            continue
        claimed[known] = (column, value)
    return claimed


def _label(name: str, value: Any, known: Collection[str], labels: Mapping[str, str] | None) -> str | None:
    word = "" if value is None or value != value else str(value).strip()
    if not word:
        return None
    if name == "label" and word in known:
        return word
    if name in POLARITY or set(known) <= {FAITHFUL, HALLUCINATED}:
        return label_of(name, word, labels)
    return word
