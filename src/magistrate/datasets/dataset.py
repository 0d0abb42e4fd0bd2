"""`Dataset`: samples that can be gone through again and again; `load` makes one of a name, a file, rows or a
frame.

`overview` says in numbers what a data set holds.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from magistrate.datasets.fields import check_labels, check_mapping, near, plain
from magistrate.datasets.files import FORMATS, HUB, FileSource, looks_like_path, open_file, read_stdin
from magistrate.datasets.frames import FrameIndex, index_of_frame, rows_of_frame
from magistrate.datasets.named import catalogue, find
from magistrate.datasets.rows import (
    MAX_UNREAD,
    Blank,
    Problem,
    Row,
    RowError,
    Source,
    Tally,
    Unread,
    check_max_unread,
    kind_of,
)
from magistrate.datasets.selection import Selection
from magistrate.errors import DatasetError, SpecError
from magistrate.types import Sample

HOPELESS = 1000
"""So many bad rows at the beginning, and not a good one, mean that the file or the mapping is wrong."""

READING_RULES = "3"
"""Goes into every digest, and up when the same bytes begin to read as other samples."""

SampleSource = str | Path | Iterable[Any]
"""A name, a path, or an iterable of rows (mappings or samples); a pandas or polars frame is one, too."""


@dataclass(eq=False, slots=True)
class Dataset:
    """Samples that can be iterated again and again, in the order of their source.

    Rows that cannot be read are in `problems` once an iteration has passed them; the others go on.
    Iterating raises DatasetError if no row can be read and, at the end, if a greater share of the rows than
    `max_unread` could not be read.
    """

    name: str
    source: Source = field(repr=False)
    mapping: Mapping[str, str] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    need_output: bool = True
    index: FrameIndex | None = None  # that of the pandas frame the samples came in
    labels: Mapping[str, str] = field(default_factory=dict)  # what values of the label column mean
    max_unread: float = 1.0
    _tally: Tally = field(default_factory=Tally, repr=False)
    _checked: bool = field(default=False, repr=False)
    _problems: dict[Problem, None] = field(default_factory=dict, repr=False)
    _digest: str | None = field(default=None, repr=False)
    _length: int | None = field(default=None, repr=False)
    _size: int | None = field(default=None, repr=False)

    @property
    def problems(self) -> list[Problem]:
        """The rows that could not be read, as far as iteration has come."""
        return list(self._problems)

    @property
    def unread(self) -> Unread:
        """How many of the rows that iteration has passed could not be read, and why."""
        return self._tally.found()

    def mend(self) -> str:
        """Advice on how to fix the rows that could not be read."""
        return self._tally.mend()

    def check(self, max_unread: float = MAX_UNREAD) -> Unread:
        """Go through all rows once and say how many cannot be read.

        Raises DatasetError where that is a greater share than `max_unread`, or than the data set allows.
        """
        if not self._checked:
            for _ in self:
                pass
        self._tally.refuse(self.name, max_unread)
        return self.unread

    @property
    def digest(self) -> str:
        """sha256 (64 hexadecimal digits) of the source's bytes, the mapping and the selection."""
        if self._digest is None:
            recipe = {
                "rules": READING_RULES,
                "source": self.source.digest(),
                "mapping": dict(self.mapping),
                "selection": self.selection.recipe(),
                "need_output": self.need_output,
                **({"labels": dict(self.labels)} if self.labels else {}),
            }
            self._digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        return self._digest

    @property
    def size(self) -> int | None:
        """At most how many samples come, for a progress bar: rows that cannot be read still count."""
        if self._length is not None:
            return self._length
        if self._size is None:
            counts = [n for n in (self.selection.at_most, self.source.count()) if n is not None]
            self._size = min(counts, default=None)
        return self._size

    def __len__(self) -> int:
        """How many samples there are, once all have been read; TypeError before."""
        if self._length is None:
            raise TypeError(f"{self.name} is read as a stream: its length is not known before it was read")
        return self._length

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Sample]:
        number = 0
        try:
            for number, sample in enumerate(self.selection.apply(self._read), 1):  # noqa: B007
                yield sample
        except DatasetError:
            if self._tally.read:  # too few were found, perhaps because too few could be read
                self._tally.refuse(self.name, self.max_unread)
            raise
        self._tally.refuse(self.name, self.max_unread)
        self._length, self._checked = number, True

    def _read(self) -> Iterator[Sample]:
        """Every sample of the source, each with an id of its own."""
        kept = self.source.blanks if isinstance(self.source, MemorySource) else None
        ids, tally = _Ids(), Tally(before=kept or ())
        self._tally = tally
        where = self.source.shown if isinstance(self.source, FileSource) else self.name
        for row in self.source.rows():
            sample = row if isinstance(row, Problem) else self._sample(row)
            if isinstance(sample, Problem):
                self._problems[sample] = None
                tally.problem(sample)
                if not tally.read and tally.unread >= HOPELESS:
                    raise DatasetError(self._nothing(f"the first {tally.unread}"))
                continue
            tally.read += 1
            yield ids.alone(sample)
        if not tally.read:
            raise DatasetError(
                self._nothing(f"the {tally.unread}") if tally.unread else f"{where} has no samples"
            )

    def _nothing(self, of: str) -> str:
        """The message if not one row can be read."""
        advice = f"; {self._tally.mend()}" if self._tally.labels else ""
        return f"none of {of} rows of {self.name} can be read; {self._tally.first}{advice}"

    def _sample(self, row: Row) -> Sample | Problem:
        from magistrate.datasets.samples import to_sample

        canonical = isinstance(self.source, MemorySource)  # its blank cells were counted before
        try:
            return to_sample(
                row.values,
                id=row.id,
                mapping=self.mapping,
                labels=self.labels,
                need_output=self.need_output,
                cells=row.cells,
                blank=None if canonical else partial(self._tally.blank, row.where),
            )
        except RowError as error:
            return row.problem(str(error), error.label)


class _Ids:
    """Gives every sample an id that no earlier one has: `x`, `x~2`, `x~3`."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._next: dict[str, int] = {}

    def alone(self, sample: Sample) -> Sample:
        wanted = found = sample.id
        while found in self._seen:
            number = self._next.get(wanted, 2)
            self._next[wanted] = number + 1
            found = f"{wanted}~{number}"
        self._seen.add(found)
        return sample if found == wanted else replace(sample, id=found)


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Rows that are already here, as canonical rows; `blanks` says where their cells were blank."""

    items: tuple[Row | Problem, ...]
    blanks: tuple[Blank, ...] = ()

    def rows(self) -> Iterator[Row | Problem]:
        return iter(self.items)

    def digest(self) -> str:
        digest = hashlib.sha256()
        for item in self.items:
            text = str(item) if isinstance(item, Problem) else json.dumps(item.values, sort_keys=True)
            digest.update(text.encode() + b"\n")
        return digest.hexdigest()

    def count(self) -> int | None:
        return len(self.items)


def load(
    source: SampleSource,
    *,
    mapping: Mapping[str, str] | None = None,
    view: str | None = None,
    limit: int | None = None,
    sample: int | None = None,
    balance: str | None = None,
    seed: int = 0,
    need_output: bool = True,
    labels: Mapping[Any, str] | None = None,
    max_unread: float = 1.0,
) -> Dataset:
    """The samples of a named set, a file, a set of the hub (`hf://OWNER/NAME`), `-` (JSONL from standard
    input), rows in memory, or a pandas or polars frame.

    `mapping` says which column or dotted path gives a field; `view` picks one of a named set's, which
    `NAME:VIEW` does too. `limit`, `sample`, `balance` and `seed` are those of `Selection`. With
    `need_output=False` rows without an output are samples too, for a task to answer. `labels` says what the
    values of the label column mean, such as `{"ok": "faithful", "bad": "hallucinated", "?": "unlabelled"}`.
    A greater share of rows than `max_unread`, in [0, 1], that cannot be read is an error once all were gone
    through; without it they are in `problems`, and a run of more than a tenth is refused. Raises SpecError
    for what is not known and DatasetError for what cannot be read.

    >>> [s.label for s in load([{"answer": "Bern", "knowledge": "Bern is old.", "label": "PASS"}])]
    ['faithful']
    """
    selection = Selection(limit, sample, balance, seed)
    fields, meanings = check_mapping(mapping), check_labels(labels)
    told: dict[str, Any] = {"labels": meanings, "max_unread": check_max_unread(max_unread)}
    if isinstance(source, str | Path):
        name, rows = _named(source, view)
        return Dataset(name, rows, fields, selection, need_output, **told)
    if isinstance(source, Dataset) and meanings:
        source, meanings = _meaning(source, meanings), {}
    plainly = not fields and not meanings and selection == Selection() and view is None
    if isinstance(source, Dataset) and plainly:
        return source
    if view is not None:
        raise SpecError(f"view {view!r} is for named sets; known sets: {', '.join(catalogue())}")
    frame = rows_of_frame(source, "rows", fields)
    if isinstance(source, Mapping | bytes) or not isinstance(source, Iterable):
        raise SpecError(f"samples are a name, a path or a list of rows, got {type(source).__name__}")
    name = source.name if isinstance(source, Dataset) else "rows"
    memory = _in_memory(name, source if frame is None else frame, fields, meanings, limit, need_output)
    # The rows are canonical by now, so the mapping has done its work; the digest is of what it gave.
    index = source.index if isinstance(source, Dataset) else index_of_frame(source, fields)
    return Dataset(name, memory, {}, selection, need_output, index, max_unread=max_unread)


def _meaning(dataset: Dataset, labels: Mapping[str, str]) -> Dataset:
    """A data set read anew, with what the values of its labels mean."""
    if isinstance(dataset.source, MemorySource):
        raise SpecError("labels are said where rows are read: magistrate.load(rows, labels=…)")
    return Dataset(
        dataset.name,
        dataset.source,
        dataset.mapping,
        dataset.selection,
        dataset.need_output,
        dataset.index,
        labels={**dataset.labels, **labels},
        max_unread=dataset.max_unread,
    )


def _named(source: str | Path, view: str | None) -> tuple[str, Source]:
    text = str(source)
    name, _, after = text.partition(":")
    if isinstance(source, str) and name in catalogue():
        if view is not None and after and view != after:
            raise SpecError(f"two views are named, {after!r} and {view!r}; keep one")
        return find(name, view or after or None)
    if view is not None:
        raise SpecError(f"view {view!r} is for named sets, not for {text!r}; known: {', '.join(catalogue())}")
    if text == "-":
        return "stdin", read_stdin()
    if text.startswith(HUB):
        from magistrate.datasets.hub import open_set

        return open_set(text)
    if isinstance(source, Path) or looks_like_path(text):
        opened = open_file(source)
        return opened.stem, opened
    known = catalogue()
    raise SpecError(
        f"unknown dataset {plain(repr(text))}{near(text, known)}; known: {', '.join(known)}; "
        f"or a path to a {', '.join(FORMATS)} file, or {HUB}OWNER/NAME"
    )


def _in_memory(
    name: str,
    source: Iterable[Any],
    mapping: Mapping[str, str],
    labels: Mapping[str, str],
    limit: int | None,
    need_output: bool,
) -> MemorySource:
    """Rows read once and made canonical, so that they have a digest and can be gone through again."""
    from magistrate.datasets.samples import canonical, to_sample

    items: list[Row | Problem] = []
    good, tally = itertools.count(1), Tally()
    for number, item in enumerate(source, 1):
        if isinstance(item, Problem):
            items.append(item)
            continue
        id = item.id if isinstance(item, Row) else f"{name}-{number}"
        try:
            if isinstance(item, Row | Mapping):
                values = item.values if isinstance(item, Row) else item
                item = to_sample(
                    values,
                    id=id,
                    mapping=mapping,
                    labels=labels,
                    need_output=need_output,
                    blank=partial(tally.blank, f"{name}:{number}"),
                )
            elif not isinstance(item, Sample):
                raise RowError(f"must be a dict or a Sample, got {kind_of(item)}")
            elif (item := item.answered()).output is None and need_output:
                raise RowError("no output")
            items.append(Row(name, number, id, json.loads(canonical(item))))
        except RowError as error:
            items.append(Problem(name, number, str(error), error.label))
            continue
        if next(good) == limit:
            break
    if isinstance(source, Dataset):
        items += source.problems
    return MemorySource(tuple(items), tally.found().blanks)


FIRST = 3
FIELDS = ("input", "context", "messages", "output", "expected", "alternatives", "label", "spans", "metadata")


@dataclass(frozen=True, slots=True)
class FieldFacts:
    """In how many samples a field is, and how long it is there in the median.

    Characters count over all parts of a field; None for fields that are no texts.
    """

    present: int
    median_characters: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """`labels` counts every label, `metadata` every name in it; `fields` has those that any sample has."""

    n_samples: int
    labels: Mapping[str, int]
    fields: Mapping[str, FieldFacts]
    metadata: Mapping[str, int]
    first: tuple[Sample, ...]


def overview(samples: Iterable[Sample], *, first: int = FIRST) -> Overview:
    """Go through the samples once; eight bytes are held for every text."""
    present, labels, names = Counter[str](), Counter[str](), Counter[str]()
    lengths = {name: array("q") for name in FIELDS}
    shown: list[Sample] = []
    number = 0
    for number, sample in enumerate(samples, 1):
        if number <= first:
            shown.append(sample)
        if sample.label is not None:
            labels[sample.label] += 1
        names.update(str(name) for name in sample.metadata)
        for name in FIELDS:
            value = getattr(sample, name)
            if value is None or (not value and not isinstance(value, str)):
                continue
            present[name] += 1
            if (length := _characters(name, sample)) is not None:
                lengths[name].append(length)
    facts = {
        name: FieldFacts(present[name], float(median(lengths[name])) if lengths[name] else None)
        for name in FIELDS
        if present[name]
    }
    return Overview(number, dict(labels.most_common()), facts, dict(names.most_common()), tuple(shown))


def _characters(name: str, sample: Sample) -> int | None:
    match name:
        case "input" | "output" | "expected":
            return len(getattr(sample, name))
        case "context" | "alternatives":
            return sum(map(len, getattr(sample, name)))
        case "messages":
            return sum(len(turn.text) for turn in sample.messages)
        case _:
            return None
