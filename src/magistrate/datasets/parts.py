"""Data sets of several files: a folder of Parquet, a pattern such as `answers/*.jsonl`, an object store.

Files are read in the order of their names, one at a time. A folder on the way that is named `COLUMN=VALUE`,
as Spark and Ray write partitions, gives its rows that column. Names that begin with `_` or `.` are no data.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from magistrate.datasets.fields import plain
from magistrate.datasets.files import HUB, READABLE, FileSource, format_of, open_file
from magistrate.datasets.rows import Problem, Row
from magistrate.errors import DatasetError, MissingExtra, SpecError

PATTERN = re.compile(r"[*?\[]")
URL = re.compile(r"(?P<protocol>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # what Hive and Spark name the folder of rows without a value


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file behind a URL. It is copied to a temporary file when it is read, and deleted after that.

    `version` changes with the file's content: its ETag, or what the file system has for that.
    """

    url: str
    version: str
    system: Any = field(repr=False)

    def rows(self) -> Iterator[Row | Problem]:
        with self._copied() as copy:
            yield from copy.rows()

    def digest(self) -> str:
        return hashlib.sha256(f"{self.url}\n{self.version}".encode()).hexdigest()

    def count(self) -> int | None:
        return None

    @contextmanager
    def _copied(self) -> Iterator[FileSource]:
        name = self.url.rpartition("/")[2]
        with tempfile.TemporaryDirectory(prefix="magistrate-") as folder:
            target = Path(folder, "file" + "".join(Path(name).suffixes[-2:]))
            try:
                with self.system.open(self.url, "rb") as stream, target.open("wb") as copy:
                    shutil.copyfileobj(stream, copy)
                version = _version(self.system, self.url)
            except Exception as error:  # each file system has errors of its own
                raise DatasetError(f"cannot read {self.url}: {error}") from error
            if version != self.version:
                raise DatasetError(f"{self.url} has changed since it was opened; load it again")
            opened = open_file(target)
            stem = name.removesuffix("".join(Path(name).suffixes[-2:])) or "row"
            yield replace(opened, shown=self.url, stem=stem)


Part = FileSource | RemoteFile


@dataclass(frozen=True, slots=True)
class Parts:
    """Several files as one source. `parts` have the name below the common folder and the columns of each."""

    parts: tuple[tuple[str, Mapping[str, str | None], Part], ...]

    def rows(self) -> Iterator[Row | Problem]:
        for _, columns, part in self.parts:
            for row in part.rows():
                if columns and isinstance(row, Row):
                    row = replace(row, values={**row.values, **columns})
                yield row

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name, _, part in self.parts:
            digest.update(f"{name}\n{part.digest()}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def count(self) -> int | None:
        counts = [part.count() for _, _, part in self.parts]
        known = [each for each in counts if each is not None]
        return sum(known) if len(known) == len(counts) else None


def is_url(text: str) -> bool:
    """Return whether a text is a URL of a file system, not of the hub."""
    return URL.fullmatch(text) is not None and not text.startswith(HUB)


def open_local(source: str | Path) -> tuple[str, FileSource | Parts]:
    """Return the name and source of a file, a folder with Parquet files, or a pattern. Raises `SpecError`."""
    path = Path(source).expanduser()
    if path.is_dir():
        found = [each for each in sorted(path.rglob("*.parquet")) if _is_data(each.relative_to(path).parts)]
        if found:
            return path.resolve().name or "rows", _of_files(path, found)
    elif PATTERN.search(str(source)) and not path.exists():
        root = Path(path.anchor)
        folder = root
        for step in path.relative_to(root).parts:
            if PATTERN.search(step):
                break
            folder /= step
        matching = sorted(folder.glob(str(path.relative_to(folder))))
        found = [each for each in matching if each.is_file() and _is_data(each.relative_to(folder).parts)]
        if not found:
            raise SpecError(f"no file matches {plain(repr(str(source)), 200)}")
        return PATTERN.split(path.stem)[0].strip("-_.") or folder.name or "rows", _of_files(folder, found)
    opened = open_file(source)
    return opened.stem, opened


def open_url(url: str) -> tuple[str, Parts]:
    """Return the name and source of a file, a folder or a pattern behind a URL, such as `s3://BUCKET/FOLDER`.

    Needs the extra `fsspec`, and the package of the protocol. Keys come from its usual places, such as
    environment variables; a URL with a user or a query is refused, since runs store it. Raises `SpecError`
    if nothing is there.
    """
    parsed = URL.fullmatch(url)
    assert parsed is not None, "check with is_url first"
    if "@" in parsed["rest"].partition("/")[0] or (parsed["protocol"].startswith("http") and "?" in url):
        raise SpecError(
            f"the URL {parsed['protocol']}://… of data must not contain a user, a key or a query; keys go in "
            "the environment"
        )
    system = _file_system(parsed["protocol"])
    try:
        if PATTERN.search(url):
            names = [each for each in system.glob(url) if system.isfile(each)]
        elif system.isfile(url):
            names = [system._strip_protocol(url)]
        else:
            names = [each for each in system.find(url) if each.endswith(".parquet")]
    except Exception as error:  # each file system has errors of its own
        raise SpecError(f"cannot read {plain(url, 200)}: {error}") from error
    start = PATTERN.split(system._strip_protocol(url))[0]
    start = start if system.isdir(start) else start.rpartition("/")[0]
    found = []
    for name in sorted(names):
        below = name.removeprefix(start).lstrip("/")
        steps = below.split("/")
        if _is_data(steps):
            if format_of(Path(name)) is None:
                raise SpecError(f"unknown file type {plain(steps[-1])!r}; {READABLE}")
            file = RemoteFile(system.unstrip_protocol(name), _version(system, name), system)
            found.append((below, _columns(steps), file))
    if not found:
        raise SpecError(f"there is no file and no folder with Parquet files at {plain(url, 200)}")
    last = parsed["rest"].rstrip("/").rpartition("/")[2]
    return PATTERN.split(last)[0].partition(".")[0].strip("-_") or "rows", Parts(tuple(found))


def _of_files(folder: Path, files: Sequence[Path]) -> Parts:
    parts = []
    for file in files:
        steps = file.relative_to(folder).parts
        parts.append(("/".join(steps), _columns(steps), open_file(file)))
    return Parts(tuple(parts))


def _is_data(steps: Sequence[str]) -> bool:
    return not any(step.startswith(("_", ".")) for step in steps)


def _columns(steps: Sequence[str]) -> dict[str, str | None]:
    """Return the columns that the names of folders give."""
    pairs = [step.partition("=") for step in steps[:-1] if "=" in step]
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in pairs}


def _file_system(protocol: str) -> Any:
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingExtra("fsspec", "fsspec") from error
    try:
        return fsspec.filesystem(protocol)
    except (ImportError, ValueError) as error:
        raise SpecError(f"{protocol}:// cannot be read: {error}") from error


def _version(system: Any, name: str) -> str:
    """Return what changes with a file's content: its size, and its ETag or what stands for it."""
    info = system.info(name)
    marks = (info.get(each) for each in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created"))
    return f"{info.get('size')} {next((each for each in marks if each is not None), '')}"
