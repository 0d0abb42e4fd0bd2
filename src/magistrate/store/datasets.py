"""Stored data sets: each content is stored once, by its hash, under names with versions.

The digest of a content is the sha256 over its samples' ids and content keys, in order. A version is written
last, when its content is complete. The content of an interrupted addition has no name. It is completed when
the same content is added again, and deleted when any data set is deleted.
"""

from __future__ import annotations

import json
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import Self

from sqlalchemy import Connection, and_, delete, exists, func, insert, select

from magistrate.datasets import Dataset, Selection
from magistrate.datasets.fields import check_labels, check_mapping, plain
from magistrate.datasets.files import HUB, named_like_file
from magistrate.datasets.named import catalogue
from magistrate.datasets.rows import Problem, Row, check_max_unread
from magistrate.errors import DatasetError, InputError, SpecError, StoreError
from magistrate.store.audit import log_change
from magistrate.store.codec import sample_body, sample_from, sample_key
from magistrate.store.connection import Transactions
from magistrate.store.runs import ROWS_AT_ONCE, RunRecord, keep_samples, near, record_of, shown
from magistrate.store.schema import (
    dataset_contents,
    dataset_samples,
    dataset_versions,
    insert_missing,
    insert_rows,
    label_items,
    of_row,
    run_samples,
    runs,
    samples,
    stop_writers,
)
from magistrate.types import Sample

LONGEST_NAME = 100
_FORBIDDEN = "/\\@:"
_FILLED_ANEW = 5


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a stored data set. Versions count from 1; times are in UTC.

    `source` describes the origin of the samples. `new` is set if the call that returned this created it.
    """

    name: str
    version: int
    digest: str
    n_samples: int
    created_at: datetime
    source: str
    new: bool = field(default=False, compare=False)

    @property
    def ref(self) -> str:
        """`NAME@VERSION`, a permanent reference to this version."""
        return f"{self.name}@{self.version}"


# --- names ----------------------------------------------------------------------------------------


def checked_name(name: str) -> str:
    """Return a valid data set name in Unicode's composed form. Raises `SpecError` for an invalid one."""
    name = unicodedata.normalize("NFC", name)
    if not name.strip() or name != name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        why = f"names must have 1 to {LONGEST_NAME} visible characters, without spaces at the ends"
    elif any(sign in name for sign in _FORBIDDEN) or name.startswith("-"):
        why = f"names must not contain any of {' '.join(_FORBIDDEN)} or start with -"
    elif name.casefold() in catalogue():
        why = "it is the name of a public set"
    elif named_like_file(name):
        why = "it looks like a file"
    else:
        return name
    raise SpecError(f"a data set cannot be named {shown(name)}: {why}")


def parse_ref(ref: str) -> tuple[str, int | None]:
    """Parse `NAME` or `NAME@2` into name and version. Raises `SpecError` if the version is not a number."""
    name, at, number = ref.partition("@")
    if at and not (number.isascii() and number.isdigit() and len(number) < 10):
        raise SpecError(
            f"a version must be a number of at least 1, such as {shown(name)}@2; got {shown(ref)}"
        )
    return unicodedata.normalize("NFC", name), int(number) if at else None


# --- queries and changes, each within the caller's transaction --------------------------------------


def versions_where(connection: Connection, *, name: str | None = None) -> list[DatasetVersion]:
    """Return the versions of this name, or all versions, by name and number."""
    asked = select(dataset_versions, dataset_contents.c.n_samples).join(dataset_contents)
    if name is not None:
        asked = asked.where(dataset_versions.c.name == name)
    asked = asked.order_by(dataset_versions.c.name, dataset_versions.c.version)
    return [of_row(DatasetVersion, row, new=False) for row in connection.execute(asked)]


def require_version(connection: Connection, ref: str) -> DatasetVersion:
    """Return the version `NAME@2`, or the newest for `NAME`. `SpecError` lists similar names."""
    return _require(connection, ref)[-1]


def _require(connection: Connection, ref: str) -> list[DatasetVersion]:
    """Return the matching versions: one for `NAME@2`, all for `NAME`."""
    name, number = parse_ref(ref)
    found = versions_where(connection, name=name)
    if not found:
        known = list(dict.fromkeys(each.name for each in versions_where(connection)))
        raise SpecError(f"unknown data set {shown(name)}; {near(name, known)}; see 'magistrate datasets'")
    chosen = [each for each in found if number in (None, each.version)]
    if not chosen:
        known = [str(each.version) for each in found]
        raise SpecError(f"data set {shown(name)} has no version {number}; it has {', '.join(known)}")
    return chosen


def samples_in(connection: Connection, digest: str) -> Iterator[Sample]:
    """Yield the samples of a content, in order. Raises `SpecError` if no version has it."""
    if not connection.scalar(select(exists().where(dataset_versions.c.digest == digest))):
        raise SpecError(f"no data set has the content {shown(digest)}; see 'magistrate datasets'")
    asked = select(dataset_samples.c.sample_id, samples.c.body).join_from(dataset_samples, samples)
    asked = asked.where(dataset_samples.c.digest == digest).order_by(dataset_samples.c.position)
    with connection.execute(asked.execution_options(yield_per=ROWS_AT_ONCE)) as rows:
        for sample_id, body in rows:
            yield sample_from(sample_id, body)


def run_ids_over(connection: Connection, refs: Sequence[str]) -> list[str]:
    """Return the ids of the runs that judged one of these versions, newest first."""
    asked = select(runs.c.id).where(runs.c.dataset_version.in_(refs)).order_by(runs.c.number.desc())
    return list(connection.scalars(asked))


def keep_content(
    connection: Connection, digest: str, n_samples: int, first: int, chunk: Sequence[tuple[str, str]]
) -> None:
    """Insert a part of a content, as ids with bodies from position `first` on. Existing rows are kept."""
    keyed = [(sample_id, sample_key(body), body) for sample_id, body in chunk]
    keep_samples(connection, {key: body for _, key, body in keyed})
    content = {"digest": digest, "n_samples": n_samples}
    connection.execute(insert_missing(connection, dataset_contents), [content])
    insert_rows(
        connection,
        dataset_samples,
        [
            {"digest": digest, "position": position, "sample_id": sample_id, "sample_key": key}
            for position, (sample_id, key, _) in enumerate(keyed, first)
        ],
        missing=True,
    )


def name_content(
    connection: Connection, name: str, digest: str, n_samples: int, source: str, now: datetime
) -> DatasetVersion | None:
    """Return the version of this name with this content, creating it if needed; None if it is incomplete."""
    # Serialize programs that add to one name or delete at the same time.
    stop_writers(connection, dataset_versions)
    earlier = versions_where(connection, name=name)
    for each in reversed(earlier):
        if each.digest == digest:
            return each
    kept = connection.scalar(
        select(func.count()).select_from(dataset_samples).where(dataset_samples.c.digest == digest)
    )
    if kept != n_samples:
        return None
    number = max([each.version for each in earlier] + _numbers_in_runs(connection, name), default=0) + 1
    row = {"name": name, "version": number, "digest": digest, "created_at": now, "source": source}
    connection.execute(insert(dataset_versions), [row])
    return DatasetVersion(name, number, digest, n_samples, now, source, new=True)


def _numbers_in_runs(connection: Connection, name: str) -> list[int]:
    """Return the versions of a name that runs refer to. The number of a deleted one is not reused."""
    asked = select(runs.c.dataset_version).where(
        runs.c.dataset_version.startswith(f"{name}@", autoescape=True)
    )
    numbers = [(ref or "").removeprefix(f"{name}@") for ref in connection.scalars(asked.distinct())]
    return [int(number) for number in numbers if number.isascii() and number.isdigit()]


def delete_versions(connection: Connection, versions: Sequence[DatasetVersion]) -> None:
    """Delete these versions, with contents that have no name any more and samples that nothing uses."""
    stop_writers(connection, dataset_versions)
    # A sample that is found unused here must not be used by another program before it is deleted.
    stop_writers(connection, samples)
    for each in versions:
        this = and_(dataset_versions.c.name == each.name, dataset_versions.c.version == each.version)
        connection.execute(delete(dataset_versions).where(this))
    named = select(dataset_versions.c.digest)
    going = select(dataset_samples.c.sample_key).where(dataset_samples.c.digest.not_in(named))
    in_run = exists().where(run_samples.c.sample_key == samples.c.key)
    in_named = exists().where(
        dataset_samples.c.sample_key == samples.c.key, dataset_samples.c.digest.in_(named)
    )
    in_queue = exists().where(label_items.c.sample_key == samples.c.key)
    connection.execute(delete(samples).where(samples.c.key.in_(going), ~in_run, ~in_named, ~in_queue))
    connection.execute(delete(dataset_contents).where(dataset_contents.c.digest.not_in(named)))


# --- the data sets of a store -----------------------------------------------------------------------


class DatasetShelf(Transactions):
    """The stored data sets of a store."""

    def add_dataset(
        self, name: str, samples: Iterable[Sample], *, source: str, by: str | None = None
    ) -> DatasetVersion:
        """Store samples under a name, as its next version, or return its version that already has this
        content.

        All samples are read before anything is written. Raises `SpecError` for an invalid name,
        `InputError` if there are no samples, an id occurs twice or a value cannot be stored. `by` is who
        adds a version, for the audit log.
        """
        name = checked_name(name)
        with Spool() as spool:
            for sample in samples:
                spool.add(sample)
            if not spool.n:
                raise DatasetError(f"there are no samples to store as {shown(name)}")
            digest, now = spool.digest, self._now()
            for _ in range(_FILLED_ANEW):
                with self._writing() as connection:
                    found = name_content(connection, name, digest, spool.n, source, now)
                    if found is not None and found.new:
                        log_change(connection, by, "add data set", found.ref, now, f"{spool.n:,} samples")
                if found is not None:
                    return found
                for first, chunk in spool.chunks(ROWS_AT_ONCE):
                    with self._writing() as connection:
                        keep_content(connection, digest, spool.n, first, chunk)
        raise StoreError("other data sets are being deleted at the same time; try again")

    def dataset_versions(self, name: str | None = None) -> list[DatasetVersion]:
        """Return every version of a data set, or of all; empty if the name is not known."""
        with self._reading() as connection:
            return versions_where(connection, name=None if name is None else parse_ref(name)[0])

    def find_dataset(self, ref: str) -> DatasetVersion:
        """Return the version `NAME@2`, or the newest for `NAME`. `SpecError` lists similar names."""
        with self._reading() as connection:
            return require_version(connection, ref)

    def datasets_meant(self, ref: str) -> list[DatasetVersion]:
        """Return the version `NAME@2`, or all versions of `NAME`, the oldest first."""
        with self._reading() as connection:
            return _require(connection, ref)

    def stored_dataset(self, words: str) -> DatasetVersion | None:
        """Return the stored version that a command-line argument names, if any.

        None for `-`, a public set, an address, a word that looks like a file, and a name that is not
        stored. Raises `SpecError` if the name is stored but the version does not exist.
        """
        name = words.partition("@")[0]
        if name == "-" or words.startswith(HUB) or words.partition(":")[0] in catalogue():
            return None
        if named_like_file(words) or not self.dataset_versions(name):
            return None
        return self.find_dataset(words)

    def dataset_samples(self, digest: str) -> Iterator[Sample]:
        """Yield the samples of a content in order, from a consistent snapshot."""
        return self._stream(lambda connection: samples_in(connection, digest))

    def dataset_runs(self, ref: str) -> list[RunRecord]:
        """Return the runs that judged a version, or any version of `NAME`, newest first."""
        with self._reading() as connection:
            refs = [each.ref for each in _require(connection, ref)]
            return [record_of(connection, run_id) for run_id in run_ids_over(connection, refs)]

    def delete_dataset(self, ref: str, *, force: bool = False) -> list[DatasetVersion]:
        """Delete a version, or all of a name, and return them.

        Raises `SpecError` if runs judged one, unless forced. The runs are not changed.
        """
        with self._writing() as connection:
            found = _require(connection, ref)
            judged = run_ids_over(connection, [each.ref for each in found])
            if judged and not force:
                more = f" and {len(judged) - 1} more" if len(judged) > 1 else ""
                raise SpecError(
                    f"{shown(ref)} was judged by run {judged[0]}{more}; delete these runs first, or use "
                    "--force"
                )
            delete_versions(connection, found)
            return found


# --- reading a stored data set ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredSource:
    """The samples of a version as rows. `place` opens the store, and may contain a password."""

    place: str = field(repr=False)
    version: DatasetVersion

    @property
    def ref(self) -> str:
        """`NAME@VERSION`."""
        return self.version.ref

    def rows(self) -> Iterator[Row | Problem]:
        from magistrate.datasets.samples import to_row
        from magistrate.store import Store

        with Store.open(self.place) as store:
            for sample in store.dataset_samples(self.version.digest):
                yield Row(f"{self.ref} sample {plain(sample.id)}", None, sample.id, to_row(sample))

    def digest(self) -> str:
        return self.version.digest

    def count(self) -> int | None:
        return self.version.n_samples


def open_dataset(
    store: DatasetShelf,
    ref: str,
    *,
    mapping: Mapping[str, str] | None = None,
    limit: int | None = None,
    sample: int | None = None,
    balance: str | None = None,
    seed: int = 0,
    need_output: bool = True,
    labels: Mapping[str, str] | None = None,
    max_unread: float = 1.0,
) -> Dataset:
    """Open a stored version as a data set named `NAME@VERSION`. The options are those of `datasets.load`.

    It can be iterated after `store` is closed too, since every pass opens the store again. `mapping` refers
    to the canonical names, such as `expected=metadata.gold`.
    """
    fields, selection = check_mapping(mapping), Selection(limit, sample, balance, seed)
    source = StoredSource(store.place, store.find_dataset(ref))
    return Dataset(
        source.ref,
        source,
        fields,
        selection,
        need_output,
        labels=check_labels(labels),
        max_unread=check_max_unread(max_unread),
    )


# --- buffering samples before writing ---------------------------------------------------------------


class Spool:
    """Samples in a temporary file, with the digest of all of them.

    Memory does not grow with them, except for their ids.
    """

    def __init__(self) -> None:
        self.n = 0
        self._file = tempfile.TemporaryFile("w+", encoding="ascii", prefix="magistrate-")  # noqa: SIM115
        self._digest = sha256()
        self._ids: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        """The sha256 over the ids and the content keys, in order."""
        return self._digest.hexdigest()

    def add(self, sample: Sample) -> None:
        """Add a sample. Raises `InputError` if its id occurred before or a value cannot be stored."""
        if sample.id in self._ids:
            raise InputError(
                f"sample id {shown(sample.id)} is given twice; ids must differ within a data set"
            )
        self._ids.add(sample.id)
        try:
            body = sample_body(sample)
        except InputError as error:
            raise InputError(f"sample {shown(sample.id)}: {error}") from error
        name = json.dumps(sample.id)
        self._digest.update(f"{name}\n{sample_key(body)}\n".encode("ascii"))
        try:
            self._file.write(f"{name}\n{body}\n")
        except OSError as error:
            place = tempfile.gettempdir()
            raise StoreError(
                f"cannot write under {place}: {error.strerror}; free some space there"
            ) from error
        self.n += 1

    def chunks(self, size: int) -> Iterator[tuple[int, list[tuple[str, str]]]]:
        """Yield all samples in chunks, each with the position of its first."""
        self._file.seek(0)
        lines = (line.rstrip("\n") for line in self._file)
        pairs = ((json.loads(name), next(lines)) for name in lines)
        first = 0
        while chunk := list(islice(pairs, size)):
            yield first, chunk
            first += len(chunk)
