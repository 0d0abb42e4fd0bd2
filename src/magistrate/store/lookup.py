"""Which run or sample is meant, and what to say where none or several are."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from sqlalchemy import Connection

import magistrate.store.queries as queries
from magistrate._text import shorten
from magistrate.errors import SpecError
from magistrate.store.records import RunRecord

LAST = "last"
WORDS_COMPARED = 1000
_LETTERS_COMPARED = 100
_WORDS_LISTED = 5


def require_run(connection: Connection, run_id: str) -> None:
    """Raise `SpecError` unless there is a run of exactly this id."""
    if not queries.run_exists(connection, run_id):
        raise _unknown_run(connection, run_id)


def record_of(connection: Connection, run_id: str) -> RunRecord:
    """The record of a run that exists."""
    return queries.runs_where(connection, run_id=run_id)[0]


def resolve(connection: Connection, ref: str) -> str:
    """The id of the run that `ref` means: `last`, an id, a name or the beginning of an id."""
    if ref == LAST:
        newest = queries.newest_run_id(connection)
        if newest is None:
            raise SpecError("there is no last run: the store has no runs yet; make one with 'magistrate run'")
        return newest
    if queries.run_exists(connection, ref):
        return ref
    found = queries.run_ids_named(connection, ref) or queries.run_ids_starting(connection, ref)
    if not found:
        raise _unknown_run(connection, ref)
    if len(found) > 1:
        raise SpecError(f"{shown(ref)} is not one run but {len(found)}: {_listed(found)}; give an id")
    return found[0]


def _unknown_run(connection: Connection, ref: str) -> SpecError:
    known = queries.ids_and_names(connection, WORDS_COMPARED)
    return SpecError(f"unknown run {shown(ref)}; {near(ref, known)}; see 'magistrate runs'")


def near(word: str, known: Sequence[str]) -> str:
    """The words of `known` that look like `word`, or some of them, for an error to show."""
    # Comparing takes time that grows with the square of the length, and ids may be long.
    shortened = {candidate[:_LETTERS_COMPARED]: candidate for candidate in known}
    matches = get_close_matches(word[:_LETTERS_COMPARED], shortened, n=_WORDS_LISTED, cutoff=0.5)
    if matches:
        return f"near: {_listed([shortened[match] for match in matches])}"
    return f"known: {_listed(known)}" if known else "there are none yet"


def _listed(words: Sequence[str]) -> str:
    listed = ", ".join(shown(word) for word in words[:_WORDS_LISTED])
    return f"{listed}, …" if len(words) > _WORDS_LISTED else listed


def shown(word: str) -> str:
    """Outside text for an error: quoted, on one line, not long."""
    return shorten(repr(word))
