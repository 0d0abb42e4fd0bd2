"""Named data sets, found in `MAGISTRATE_DATA_DIR`, in the package or by a pinned download, and their
families.

Sets of one family are made in the same way, so a model trained on one of them also does better on the
others.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate._paths import datasets_dir
from magistrate.datasets.fields import near
from magistrate.datasets.files import open_file
from magistrate.datasets.rows import Problem, Row, Source
from magistrate.errors import DatasetError, SpecError

if TYPE_CHECKING:
    from magistrate.datasets.hub import Host

WITHIN: dict[str, tuple[str, ...]] = {"halubench": ("halueval", "ragtruth")}
"""Families that hold samples of others (Ravi and others 2024, section 4)."""

_ENDINGS = re.compile(r"(?:\.(?:csv|tsv|json|jsonl|ndjson|parquet|gz|zst))+$", re.IGNORECASE)
# The named sets and their files; each name begins with that of the family.
_KNOWN = re.compile(
    r"(?P<family>summedits|begin|ragtruth|halubench|halueval)(?:(?<=halueval)[-_](?:qa|dialogue|summarization))?"
    r"(?:_(?:dev|train|test|article\d+))?"
)


def family_of(name: str) -> str:
    """Return the family of a data set by its name or file. A set of no known family is its own family.

    >>> family_of("halueval-qa:dev"), family_of("data/summedits_dev.jsonl.gz"), family_of("my/begin.2024.csv")
    ('halueval', 'summedits', 'begin.2024')
    """
    file = re.split(r"[\\/]", name)[-1]
    base = _ENDINGS.sub("", file.partition(":")[0]) or file
    known = _KNOWN.fullmatch(base.lower())
    return known["family"] if known else base


def shared(family: str, trained_on: Iterable[str]) -> list[str]:
    """Return those of `trained_on` (data sets or families) that share samples with `family`, sorted."""
    related = {family, *WITHIN.get(family, ()), *(each for each in WITHIN if family in WITHIN[each])}
    return sorted(name for name in trained_on if family_of(name) in related)


VARIABLE = "MAGISTRATE_DATA_DIR"
CATALOGUE = Path(__file__).with_name("named.toml")
CONVERTER_VERSION = "1"
NOT_HERE = f"not here; downloaded when first used, or set {VARIABLE}"


@dataclass(frozen=True, slots=True)
class View:
    """One selection of a named set: either `local`, a file in the data folder, or the output of an
    `upstream` converter.

    `conversation` names the column of the local file that contains a conversation as one text.
    """

    name: str
    rows: int | None = None
    local: str | None = None
    upstream: str | None = None
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class NamedSet:
    """An entry of the catalogue of named sets."""

    name: str
    description: str
    task: str
    licence: str
    upstream: str
    views: tuple[View, ...] = ()
    packaged: str | None = None
    repository: str = ""
    revision: str = ""
    host: Host = "git"
    files: tuple[str, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listing:
    """One line of `magistrate datasets`. `rows` is the count of the default view."""

    name: str
    rows: int | None
    description: str
    task: str
    licence: str
    upstream: str
    where: str
    views: Mapping[str, int | None]

    @property
    def here(self) -> bool:
        """Whether the default view can be read without a download."""
        return self.where != NOT_HERE


@dataclass(frozen=True, slots=True)
class UpstreamSource:
    """The rows that a converter makes from downloaded files."""

    converter: str
    paths: tuple[Path, ...]
    expected: int | None

    def rows(self) -> Iterator[Row | Problem]:
        from magistrate.datasets.converters import CONVERTERS

        return CONVERTERS[self.converter](self.paths)

    def digest(self) -> str:
        digest = hashlib.sha256(f"{self.converter}/{CONVERTER_VERSION}".encode())
        for path in self.paths:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def count(self) -> int | None:
        return self.expected


@dataclass(frozen=True, slots=True)
class Conversations:
    """The rows of another source, with the conversation in `column` parsed into messages."""

    source: Source
    column: str

    def rows(self) -> Iterator[Row | Problem]:
        from magistrate.datasets.converters import with_messages

        return (with_messages(row, self.column) for row in self.source.rows())

    def digest(self) -> str:
        return hashlib.sha256(f"conversation/{CONVERTER_VERSION}/{self.source.digest()}".encode()).hexdigest()

    def count(self) -> int | None:
        return self.source.count()


@cache
def catalogue() -> Mapping[str, NamedSet]:
    """Return every named set, in the order of the catalogue file."""
    import tomllib

    sets = {}
    for name, entry in tomllib.loads(CATALOGUE.read_text(encoding="utf-8")).items():
        views = tuple(View(view, **facts) for view, facts in entry.pop("views", {}).items())
        pinned = entry.pop("download", {})
        files = tuple(pinned.pop("files", ()))
        sets[name] = NamedSet(name=name, views=views, files=files, **entry, **pinned)
    return sets


def find(name: str, view: str | None = None) -> tuple[str, Source]:
    """Return the name of a set with its view (`NAME:VIEW`), and its rows.

    Raises SpecError for an unknown view, and DatasetError if the rows are not available locally and cannot
    be fetched.
    """
    known = catalogue()[name]
    if known.packaged is not None:
        if view is not None:
            raise SpecError(f"{name} has no views, got {view!r}")
        return name, open_file(Path(__file__).with_name(known.packaged))
    chosen = _view(known, view)
    return f"{name}:{chosen.name}", _source(known, chosen)


def at_hand(name: str, view: str | None = None) -> bool:
    """Return whether a view of a named set can be read without a download."""
    known = catalogue()[name]
    return known.packaged is not None or _where(known, _view(known, view)) is not None


def describe() -> list[Listing]:
    """Return the lines of `magistrate datasets`, without fetching anything."""
    return [_listing(known) for known in catalogue().values()]


def _view(known: NamedSet, name: str | None) -> View:
    if name is None:
        here = (view for view in known.views if _where(known, view))
        fetchable = (view for view in known.views if view.upstream)
        return next(here, None) or next(fetchable, known.views[0])
    for view in known.views:
        if view.name == name:
            return view
    names = [view.name for view in known.views]
    raise SpecError(f"{known.name} has no view {name!r}{near(name, names)}; known: {', '.join(names)}")


def _source(known: NamedSet, view: View) -> Source:
    from magistrate.datasets import hub

    if local := _local(view):
        opened = open_file(local)
        return Conversations(opened, view.conversation) if view.conversation else opened
    missing = f"{known.name}:{view.name} is not installed"
    wanted = f"set {VARIABLE} to a folder with {view.local}" if view.local else None
    if view.upstream is None:
        raise DatasetError(f"{missing} and has no download; {wanted}")
    try:
        paths = tuple(
            hub.fetch(
                datasets_dir(), known.repository, known.revision, path, known.sha256.get(path), known.host
            )
            for path in known.files
        )
    except DatasetError as error:
        raise DatasetError(f"{missing}: {error}" + (f"; or {wanted}" if wanted else "")) from error
    return UpstreamSource(view.upstream, paths, view.rows)


def _local(view: View) -> Path | None:
    folder = os.environ.get(VARIABLE)
    if not folder or view.local is None:
        return None
    path = Path(folder).expanduser() / view.local
    return path if path.is_file() else None


def _kept(known: NamedSet) -> bool:
    from magistrate.datasets import hub

    keep = datasets_dir()
    at = (hub.kept_at(keep, known.repository, known.revision, path) for path in known.files)
    return all(path.is_file() for path in at)


def _where(known: NamedSet, view: View) -> str | None:
    if local := _local(view):
        return str(local)
    if view.upstream and _kept(known):
        return str(datasets_dir() / known.repository.replace("/", "--"))
    return None


def _listing(known: NamedSet) -> Listing:
    facts: dict[str, Any] = {
        name: getattr(known, name) for name in ("name", "description", "task", "licence", "upstream")
    }
    if known.packaged is not None:
        path = Path(__file__).with_name(known.packaged)
        return Listing(**facts, rows=open_file(path).count(), where="in the package", views={})
    view = _view(known, None)
    views = {view.name: view.rows for view in known.views}
    return Listing(**facts, rows=view.rows, where=_where(known, view) or NOT_HERE, views=views)
