"""Files and folders that training writes: checked when they are read, and written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from magistrate._version import __version__
from magistrate._yaml import Document
from magistrate.errors import SpecError

LARGEST = 20_000_000  # bytes of the file that says what a folder holds
CARD = "README.md"  # for people
LONGEST_CARD = 20_000  # characters that are shown of one
WORK = ".training"  # what a training that has not ended keeps in its folder
KEPT: Mapping[str, tuple[str, ...]] = {
    "detector": ("training.pt", "training.pt.part", "examples"),
    "judge": ("state.pt", "state.pt.part", "tokenizer"),
}
"""What is in there, by what is trained: first what it goes on from."""


def check_free(folder: Path, file: str, what: str, *, replace: bool = False) -> None:
    """Raise `SpecError` if no `what` can be written to the folder, before one is made.

    Only an empty folder, an unfinished training of the same kind, or a finished one of the same kind is ever
    replaced. Its `file`, and the files that a training keeps, tell which it is.
    """
    if folder.name in ("", "..") or Path.cwd().is_relative_to(folder.resolve()):
        raise SpecError(
            f"cannot write {folder}: it has no name, or you are in it; name a folder of its own, such as "
            f"my-{what}"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SpecError(f"cannot write {folder}: it is a file; a {what} is a folder")
    begun = _begun(folder / WORK, what)
    if not any(each.name != WORK for each in folder.iterdir()):
        return
    if not (folder / file).is_file():
        raise SpecError(f"{folder} is there already and holds no {what}; name another folder")
    if not replace and not begun:
        raise SpecError(f"{folder} is there already; to replace it: --force, in Python replace=True")


def _begun(work: Path, what: str) -> bool:
    """Whether a training of this kind can be gone on with. Raises `SpecError` for one of another kind."""
    kept = KEPT.get(what, ())
    inside = work.iterdir() if work.is_dir() else ()
    if other := [each.name for each in inside if not any(map(each.match, kept))]:
        raise SpecError(
            f"{work.parent} holds a training that has not ended, and of no {what} ({WORK}/{min(other)}); "
            "name another folder"
        )
    return bool(kept) and (work / kept[0]).is_file()


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder` once it is filled, and goes where that fails.

    Raises `SpecError` where it cannot be written.
    """
    half = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    try:
        half.mkdir(parents=True)
        yield half
        if folder.exists():
            shutil.rmtree(folder)
        half.replace(folder)
    except OSError as error:
        raise SpecError(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)


class FilePart(BaseModel):
    """A part of a file that training writes; unknown keys and infinite numbers are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class TrainedFile(FilePart):
    """What a training writes down. Same fit, same bytes."""

    def text(self) -> str:
        """What stands in the file."""
        return json.dumps(self.model_dump(), indent=2, allow_nan=False) + "\n"

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits of a sha256 of the text: another digest is another fit."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:12]


class ModelPart(FilePart):
    """The model whose answers or states it was fitted to."""

    name: str
    fingerprint: str


class EstimatePart(FilePart):
    """A figure on data that the fit had not seen, with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None
    undefined: str | None = None


def read_trained(
    path: Path, what: str, formats: Sequence[int], *, by: str, again: str = "train it again"
) -> Document:
    """The values in a file that `magistrate BY` wrote, as long as it is of a `what` and of a known format.

    Raises `SpecError` for anything that cannot be used.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise SpecError(f"{path} has more than {LARGEST:,} bytes: no {what} has")
        values = json.loads(path.read_bytes().decode("utf-8-sig"), parse_constant=_no_number)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}; 'magistrate {by}' writes one") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is no whole JSON file: {error}") from None
    if not isinstance(values, dict) or values.get("kind") != f"magistrate {what}":
        raise SpecError(f"{path} is no {what}; 'magistrate {by}' writes one")
    if values.get("format") not in formats:
        raise SpecError(
            f"{path} is of format {values.get('format')!r}, and magistrate {__version__} reads "
            f"{' and '.join(map(str, formats))}; {again}"
        )
    return Document(str(path), values, {})


def read_card(folder: Path) -> str | None:
    """What a folder says for people, None where it says nothing."""
    path = folder / CARD
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_CARD)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")
