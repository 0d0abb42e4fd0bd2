"""Folders of what was trained: written as a whole or not at all, and never over something else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from magistrate.documents import Document
from magistrate.errors import SpecError
from magistrate.version import __version__

LARGEST = 20_000_000  # bytes of the file that says what a folder holds
CARD = "README.md"  # for people
LONGEST_CARD = 20_000  # characters that are shown of one
WORK = ".training"  # what a training that has not ended keeps in its folder


def check_free(folder: Path, file: str, what: str, *, replace: bool = False) -> None:
    """Raise `SpecError` where no `what` can be written, before one is made.

    Only an empty folder, a training that has not ended, or another one of its kind is ever replaced: that is
    told by its `file`.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise SpecError(f"cannot write {folder}: it is a file; a {what} is a folder")
    if not any(each.name != WORK for each in folder.iterdir()):
        return
    if not (folder / file).is_file():
        raise SpecError(f"{folder} is there already and holds no {what}; name another folder")
    if not replace:
        raise SpecError(f"{folder} is there already; to replace it: --force, in Python replace=True")


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


def read_values(folder: Path, file: str, what: str, format: int) -> Document:
    """What the `file` of a folder says, as long as it is of a `what` and of this format.

    Raises `SpecError` for anything that cannot be used.
    """
    path = folder / file
    try:
        if path.stat().st_size > LARGEST:
            raise SpecError(f"{path} has more than {LARGEST:,} bytes: no {what} has")
        values = json.loads(path.read_bytes().decode("utf-8-sig"), parse_constant=_no_number)
    except OSError as error:
        raise SpecError(
            f"cannot read {path}: {error.strerror}; 'magistrate train {what}' writes such a folder"
        ) from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is no whole JSON file: {error}") from None
    if not isinstance(values, dict) or values.get("kind") != f"magistrate {what}":
        raise SpecError(f"{path} is no {what}; 'magistrate train {what} --to FOLDER' writes one")
    if values.get("format") != format:
        raise SpecError(
            f"{path} is of format {values.get('format')!r}, and magistrate {__version__} reads {format}; "
            "train it again"
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
