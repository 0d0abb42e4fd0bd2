"""What a model wrote without masks, put right where only one reading is possible."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from magistrate.constraints.constraint import Constraint
from magistrate.errors import InvalidOutput

LONGEST = 200_000  # characters of an answer that are looked at
_DECODER = json.JSONDecoder()
_CLOSERS = {"{": "}", "[": "]"}


def repair(text: str, constraint: Constraint) -> Any:
    """The object that `text` stands for although it is not written as it should be.

    Words, fences and thoughts around JSON are passed over, commas and quotation marks put right; a choice may
    have other letter case, or marks around it. Nothing is made up: an answer that stops in
    the middle, one that holds two different answers, and one that still breaks the constraint, is
    `InvalidOutput`. A quote must be verbatim.
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


def _json(text: str, constraint: Constraint, first: InvalidOutput) -> Any:
    values: dict[str, Any] = {}
    for document in _documents(text):
        written = json.dumps(document, ensure_ascii=False)
        try:
            values[json.dumps(document, sort_keys=True)] = constraint.parse(written)
        except InvalidOutput:
            continue
    if len(values) > 1:
        raise InvalidOutput(f"the output holds {len(values)} different answers", text)
    if values:
        return next(iter(values.values()))
    return constraint.parse(_mended(text, first))


def _documents(text: str) -> Iterator[Any]:
    """Every whole JSON object or list in `text` that stands in no other."""
    place = 0
    while place < len(text):
        if text[place] in _CLOSERS:
            try:
                document, place = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError):
                place += 1
            else:
                yield document
        else:
            place += 1


def _mended(text: str, first: InvalidOutput) -> str:
    """Damaged JSON as JSON; only where every bracket that was opened is closed, or it may be cut off."""
    from json_repair import repair_json

    start = min((place for sign in _CLOSERS if (place := text.find(sign)) >= 0), default=None)
    if start is None:
        raise first
    end = text.rfind(_CLOSERS[text[start]]) + 1
    part = text[start:end]
    if not part or any(part.count(sign) != part.count(closer) for sign, closer in _CLOSERS.items()):
        raise first
    try:
        return str(repair_json(part, ensure_ascii=False))
    except RecursionError:
        raise first from None


def _choice(text: str, constraint: Constraint, first: InvalidOutput) -> str:
    """The one choice that the text names."""
    choices: list[str] = (constraint.schema or {})["enum"]
    bare = text.strip().strip("\"'`*.!:").casefold().strip()
    found = [choice for choice in choices if choice.casefold() == bare]
    if len(found) == 1:
        return found[0]
    raise first
