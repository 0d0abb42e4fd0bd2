"""Samples on their way into the store: kept aside until all of them were read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from types import TracebackType
from typing import Self

from magistrate.errors import InputError, StoreError
from magistrate.store.codec import sample_body, sample_key
from magistrate.store.lookup import shown
from magistrate.types import Sample


class Spool:
    """Samples in a temporary file, with the digest of all of them.

    Nothing is kept for long and memory does not grow with them, but for their ids.
    """

    def __init__(self) -> None:
        self.n = 0
        self._file = tempfile.TemporaryFile("w+", encoding="ascii", prefix="magistrate-")  # noqa: SIM115
        self._digest = sha256()
        self._ids: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    @property
    def digest(self) -> str:
        """sha256 over the ids and the content keys, in order."""
        return self._digest.hexdigest()

    def add(self, sample: Sample) -> None:
        """One more; `InputError` where its id was there before or a value cannot be stored."""
        if sample.id in self._ids:
            raise InputError(
                f"sample id {shown(sample.id)} is there twice; ids must differ within a data set"
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
        """All that was added, with the position of each chunk's first."""
        self._file.seek(0)
        lines = (line.rstrip("\n") for line in self._file)
        pairs = ((json.loads(name), next(lines)) for name in lines)
        first = 0
        while chunk := list(islice(pairs, size)):
            yield first, chunk
            first += len(chunk)
