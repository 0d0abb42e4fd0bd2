"""`Dataset`, a re-iterable sequence of samples, and `load`, which opens one from a name, a file, rows or a
data frame.

`overview` computes summary statistics of a data set.
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
from magistrate.datasets.files import (
    FORMATS,
    HUB,
    FileSource,
    looks_like_path,
    named_like_file,
    open_file,
    read_stdin,
)
from magistrate.datasets.frames import FrameIndex, index_of_frame, rows_of_frame
from magistrate.datasets.named import catalogue, find
from magistrate.datasets.parts import is_url, open_local, open_url
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
    """Samples that can be iterated any number of times, in the order of their source.

    Rows that cannot be read are skipped and collected in `problems`. Iterating raises DatasetError if no
    row can be read, or, at the end, if the share of unreadable rows exceeds `max_unread`.
    """

    name: str
    source: Source = field(repr=False)
    mapping: Mapping[str, str] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    need_output: bool = True
    index: FrameIndex | None = None  # index of the pandas frame that the samples came from
    labels: Mapping[str, str] = field(default_factory=dict)  # meaning of the values of the label column
    max_unread: float = 1.0
    _tally: Tally = field(default_factory=Tally, repr=False)
    _checked: bool = field(default=False, repr=False)
    _problems: dict[Problem, None] = field(default_factory=dict, repr=False)
    _digest: str | None = field(default=None, repr=False)
    _length: int | None = field(default=None, repr=False)
    _size: int | None = field(default=None, repr=False)

    @property
    def problems(self) -> list[Problem]:
        """The unreadable rows that iteration has met so far."""
        return list(self._problems)

    @property
    def unread(self) -> Unread:
        """The number of unreadable rows that iteration has met so far, with the reasons."""
        return self._tally.found()

    def mend(self) -> str:
        """Advice on how to fix the rows that could not be read."""
        return self._tally.mend()

    def check(self, max_unread: float = MAX_UNREAD) -> Unread:
        """Read all rows once and return how many cannot be read.

        Raises DatasetError if their share exceeds `max_unread` or the data set's own limit.
        """
        if not self._checked:
            for _ in self:
                pass
        self._tally.refuse(self.name, max_unread)
        return self.unread

    @property
    def digest(self) -> str:
        """The sha256 (64 hexadecimal digits) of the source's bytes, the mapping and the selection."""
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
        """An upper bound on the number of samples, for a progress bar: unreadable rows are included."""
        if self._length is not None:
            return self._length
        if self._size is None:
            counts = [n for n in (self.selection.at_most, self.source.count()) if n is not None]
            self._size = min(counts, default=None)
        return self._size

    def __len__(self) -> int:
        """Return the number of samples. Raises TypeError until all of them have been read once."""
        if self._length is None:
            raise TypeError(
                f"{self.name} is read as a stream, so its length is unknown until it has been read"
            )
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
        """Yield every sample of the source, each with a unique id."""
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
        """Return the error message for a source in which no row can be read."""
        advice = f"; {self._tally.mend()}" if self._tally.labels else ""
        if self._tally.first is not None and self._tally.first.reason.startswith("not UTF-8"):
            advice = "; save the file as UTF-8"
        none = (
            f"the only row of {self.name} cannot"
            if of == "the 1"
            else f"none of {of} rows of {self.name} can"
        )
        return f"{none} be read; {self._tally.first}{advice}"

    def _sample(self, row: Row) -> Sample | Problem:
        from magistrate.datasets.samples import to_sample

        canonical = isinstance(self.source, MemorySource)  # its blank cells are already counted
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
    """Makes sample ids unique by appending a number: `x`, `x~2`, `x~3`."""

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
    """Canonical rows in memory. `blanks` lists the blank cells that they had."""

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
    """Load samples from a named set, a file, a folder of Parquet, a pattern of files, a URL such as
    `s3://BUCKET/FOLDER`, a set of the hub (`hf://OWNER/NAME`), `-` (JSONL from standard input), rows in
    memory, or a pandas or polars frame.

    `mapping` maps a field to its column or dotted path. `view` selects a view of a named set, as
    `NAME:VIEW` does. `limit`, `sample`, `balance` and `seed` are those of `Selection`. With
    `need_output=False`, rows without an output are kept too, for a task to answer. `labels` maps values of
    the label column to their meaning, such as
    `{"ok": "faithful", "bad": "hallucinated", "?": "unlabelled"}`. `max_unread`, in [0, 1], is the share of
    unreadable rows above which iteration raises once all rows have been read. Below it, the unreadable rows
    are in `problems`; a run refuses more than a tenth. Raises SpecError for an unknown name or option and
    DatasetError for a source that cannot be read.

    >>> [s.label for s in load([{"answer": "Bern", "knowledge": "Bern is old.", "label": "PASS"}])]
    ['faithful']
    """
    selection = Selection(limit, sample, balance, seed)
    fields = check_mapping(mapping) if mapping else {}
    meanings = check_labels(labels) if labels else {}
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
        raise SpecError(f"views such as {view!r} need a named set; named sets: {', '.join(catalogue())}")
    frame = rows_of_frame(source, "rows", fields)
    if isinstance(source, Mapping | bytes) or not isinstance(source, Iterable):
        raise SpecError(f"samples must be a name, a path or a list of rows, got {type(source).__name__}")
    name = source.name if isinstance(source, Dataset) else "rows"
    memory = _in_memory(name, source if frame is None else frame, fields, meanings, limit, need_output)
    # The mapping has already been applied to these canonical rows; the digest is computed from the result.
    index = source.index if isinstance(source, Dataset) else index_of_frame(source, fields)
    return Dataset(name, memory, {}, selection, need_output, index, max_unread=max_unread)


def _meaning(dataset: Dataset, labels: Mapping[str, str]) -> Dataset:
    """Return a copy of the data set that reads its labels with these meanings."""
    if isinstance(dataset.source, MemorySource):
        raise SpecError("give labels where rows are read: magistrate.load(rows, labels=…)")
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
            raise SpecError(f"two views are given, {after!r} and {view!r}; keep one")
        return find(name, view or after or None)
    if view is not None:
        raise SpecError(
            f"views such as {view!r} need a named set, not {text!r}; named sets: {', '.join(catalogue())}"
        )
    if text == "-":
        return "stdin", read_stdin()
    if text.startswith(HUB):
        from magistrate.datasets.hub import open_set

        return open_set(text)
    if (isinstance(source, Path) or named_like_file(text)) and Path(source).expanduser().is_file():
        opened = open_file(source)
        return opened.stem, opened
    if is_url(text):
        return open_url(text)
    if isinstance(source, Path) or looks_like_path(text):
        return open_local(source)
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
    """Read rows once into canonical form, so that they can be hashed and iterated again."""
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
    """How many samples have a field, and its median length in them.

    Characters are summed over all parts of a field. None for fields that are not text.
    """

    present: int
    median_characters: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Counts of labels and metadata names, and facts about the fields that at least one sample has."""

    n_samples: int
    labels: Mapping[str, int]
    fields: Mapping[str, FieldFacts]
    metadata: Mapping[str, int]
    first: tuple[Sample, ...]


def overview(samples: Iterable[Sample], *, first: int = FIRST) -> Overview:
    """Summarize the samples in one pass. Uses eight bytes of memory per text."""
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
