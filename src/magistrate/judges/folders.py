"""Files and folders that training writes: validated when read, and written atomically."""

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
from magistrate.metrics.classification import Estimate

LARGEST = 20_000_000  # bytes of a folder's main file
CARD = "README.md"  # description for people
LONGEST_CARD = 20_000  # characters shown of a card
WORK = ".training"  # checkpoints of an unfinished training
KEPT: Mapping[str, tuple[str, ...]] = {
    "detector": ("training.pt", "training.pt.part", ".lock", "examples"),
    "judge": ("state.pt", "state.pt.part", ".lock", "tokenizer"),
}
"""Files in the folder, by what is trained: first the state that training continues from."""


def check_free(folder: Path, file: str, what: str, *, replace: bool = False) -> None:
    """Raise `SpecError` if no `what` can be written to the folder; call it before one is made.

    Only an empty folder, or an unfinished or finished training of the same kind is replaced. `file` and the
    checkpoint files identify the kind.
    """
    if folder.name in ("", "..") or Path.cwd().is_relative_to(folder.resolve()):
        raise SpecError(
            f"cannot write {folder}: it has no name, or it is the current folder; choose a separate folder, "
            f"such as my-{what}"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SpecError(f"cannot write {folder}: it is a file, but a {what} needs a folder")
    begun = _begun(folder / WORK, what)
    if not any(each.name != WORK for each in folder.iterdir()):
        return
    if not (folder / file).is_file():
        raise SpecError(f"{folder} already exists and contains no {what}; choose another folder")
    if not replace and not begun:
        raise SpecError(f"{folder} already exists; to replace it: --force, or replace=True in Python")


def _begun(work: Path, what: str) -> bool:
    """Return whether a training of this kind can be continued. Raises `SpecError` for one of another kind."""
    kept = KEPT.get(what, ())
    inside = work.iterdir() if work.is_dir() else ()
    if other := [each.name for each in inside if not any(map(each.match, kept))]:
        raise SpecError(
            f"{work.parent} contains an unfinished training of something other than a {what} "
            f"({WORK}/{min(other)}); choose another folder"
        )
    return bool(kept) and (work / kept[0]).is_file()


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` at the end, or is deleted on failure.

    Raises `SpecError` if it cannot be written.
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
    """A part of a file that training writes. Rejects unknown keys and infinite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class TrainedFile(FilePart):
    """The result file of a training. The same fit gives the same bytes."""

    def text(self) -> str:
        """Return the content of the file."""
        return json.dumps(self.model_dump(), indent=2, allow_nan=False) + "\n"

    @cached_property
    def digest(self) -> str:
        """12 hexadecimal digits of the sha256 of the text. Different fits have different digests."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:12]


class ModelPart(FilePart):
    """The model whose answers or states it was fitted to."""

    name: str
    fingerprint: str


class EstimatePart(FilePart):
    """A metric on data not used for the fit, with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None
    undefined: str | None = None

    @classmethod
    def of(cls, each: Estimate) -> EstimatePart:
        """Return an estimate as files hold it, with six significant digits."""

        def short(value: float | None) -> float | None:
            return None if value is None else float(f"{value:.6g}")

        return cls(
            value=short(each.value), low=short(each.low), high=short(each.high), undefined=each.undefined
        )


def read_trained(
    path: Path, what: str, formats: Sequence[int], *, by: str, again: str = "train it again"
) -> Document:
    """Read the values in a file that `magistrate BY` wrote, checking that it is a `what` of a known format.

    Raises `SpecError` for any other file.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise SpecError(f"{path} has more than {LARGEST:,} bytes, the limit for a {what}")
        values = json.loads(path.read_bytes().decode("utf-8-sig"), parse_constant=_no_number)
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}; 'magistrate {by}' writes one") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not a complete JSON file: {error}") from None
    if not isinstance(values, dict) or values.get("kind") != f"magistrate {what}":
        raise SpecError(f"{path} is not a {what}; 'magistrate {by}' writes one")
    if values.get("format") not in formats:
        raise SpecError(
            f"{path} has format {values.get('format')!r}, but magistrate {__version__} reads "
            f"{' and '.join(map(str, formats))}; {again}"
        )
    return Document(str(path), values, {})


def read_card(folder: Path) -> str | None:
    """Return a folder's description for people, None if it has none."""
    path = folder / CARD
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(LONGEST_CARD)


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")
