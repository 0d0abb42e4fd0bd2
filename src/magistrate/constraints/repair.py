"""Repairs answers that were written without masks, if only one reading is possible."""

from __future__ import annotations

import re
from typing import Any

from magistrate.constraints.constraint import Constraint
from magistrate.errors import InvalidOutput

LONGEST = 200_000  # characters of an answer that are looked at
FENCE = re.compile(r"```[a-zA-Z0-9]*[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’", "«": "»", "„": "“"}
_CLOSERS = {"{": "}", "[": "]"}
# What mending may add and take away; everything else must still be there, in its order.
_MARKS = re.compile(r"[\s{}\[\]\"'“”‘’,:\\]+")
_ESCAPE = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')


def repair(text: str, constraint: Constraint) -> Any:
    """The object that `text` stands for although it is not written as it should be.

    A code fence around the whole of JSON is passed over, and its commas and quotation marks are put right. A
    choice may have other letter case, one full stop behind it or quotation marks around it. Nothing is
    made up and nothing is left out: an answer with words beside it, which may take it back, one that stops in
    the middle, one that says a thing twice, and one that still breaks the constraint, is `InvalidOutput`. A
    quote must be verbatim.
    """
    if len(text) > LONGEST:
        raise InvalidOutput(f"an answer of {len(text):,} characters is not repaired", text)
    try:
        return constraint.parse(text)
    except InvalidOutput as error:
        first = error
    if constraint.kind == "json":
        return _json(text, constraint, first)
    if constraint.kind == "choice":
        return constraint.parse(_choice(text, constraint, first))
    return constraint.parse(text.strip())


def unmarked(text: str) -> tuple[str, ...]:
    """A text without the one full stop behind it, or without the quotation marks around it; at most one.

    >>> unmarked(' Yes. '), unmarked('"Yes"'), unmarked('Yes!'), unmarked('Yes...')
    (('Yes',), ('Yes',), (), ())
    """
    bare = text.strip()
    if bare.endswith(".") and not bare.endswith(".."):
        return (bare[:-1],)
    if len(bare) > 2 and QUOTES.get(bare[0]) == bare[-1]:
        return (bare[1:-1],)
    return ()


def _json(text: str, constraint: Constraint, first: InvalidOutput) -> Any:
    fenced = FENCE.fullmatch(text.strip())
    inner = (fenced[1] if fenced else text).strip()
    try:
        return constraint.parse(inner)
    except InvalidOutput:
        return constraint.parse(_mended(inner, first))


def _mended(text: str, first: InvalidOutput) -> str:
    """Damaged JSON as JSON; only where it is whole, and nothing but marks has changed."""
    from json_repair import repair_json

    whole = text[:1] in _CLOSERS and text.endswith(_CLOSERS[text[0]])
    if not whole or any(text.count(sign) != text.count(closer) for sign, closer in _CLOSERS.items()):
        raise first
    try:
        mended = str(repair_json(text, ensure_ascii=False))
    except (RecursionError, ValueError):  # ValueError: more digits than Python reads
        raise first from None
    if _said(mended) != _said(text):
        raise first
    return mended


def _said(document: str) -> str:
    """The content of a document without the marks that hold it together."""
    return _MARKS.sub("", _ESCAPE.sub(_unescaped, document))


def _unescaped(found: re.Match[str]) -> str:
    """A letter that is written as JSON writes it; nothing for what is only a mark or white space."""
    if found[1] is not None:
        return chr(int(found[1], 16))
    return "/" if found[2] == "/" else ""


def _choice(text: str, constraint: Constraint, first: InvalidOutput) -> str:
    """The one choice that the text is."""
    choices: list[str] = (constraint.schema or {})["enum"]
    spellings = {each.casefold() for each in (text.strip(), *unmarked(text))}
    found = [choice for choice in choices if choice.casefold() in spellings]
    if len(found) == 1:
        return found[0]
    raise first
