"""Texts as lines to be read alone: rows of tables with their columns, values of JSON with their path."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Sequence

from magistrate._deadline import checked
from magistrate.features.splitting import sentences

MOST_GROWTH = 8  # times a JSON text's own length that its lines may have; a longer one is read as prose
LEAST_GROWTH = 10_000  # characters that the lines of a short one may have
NAME = re.compile(r"(?=.*[^\W\d])[^.!?\n]{1,40}")  # of a column in CSV
LONGEST_NAME = 80  # characters of a column's name in each row
LEAST_LINES = 3  # of a table in CSV: names and two rows
ROW = re.compile(r"[^|\n]*\|[^\n]*")


def lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the sentences of a text with their offsets; tables and JSON values as self-contained lines.

    A row of a table, also of one in CSV, is written with the names of its columns, a value of a JSON object
    with its path. Such a line has the offsets of its row, or of the whole JSON text. Nothing is left out.
    """
    if (value := _json(text)) is not None:
        for line in value:
            yield 0, len(text), line
        return
    header: list[str] = []
    at = 0
    raws = text.splitlines(keepends=True)
    separated = _separated(raws)
    for number, raw in enumerate(raws):
        line = raw.rstrip("\r\n")
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if ROW.fullmatch(line) else []
        if number in separated:
            yield at, at + len(line), separated[number]
        elif len(cells) > 1 and all(set(cell) <= set("-: ") for cell in cells):
            pass  # the separator under a header
        elif len(cells) > 1 and len(cells) == len(header):
            yield at, at + len(line), _named(header, cells)
        else:
            header = cells if len(cells) > 1 else []
            for start, end in sentences(line):
                yield at + start, at + end, line[start:end]
        at += len(raw)


def _named(names: Sequence[str], cells: Sequence[str]) -> str:
    """Return the cells of a row with the names of their columns; long names are cut."""
    pairs = zip(names, cells, strict=True)
    return "; ".join(f"{name[:LONGEST_NAME]}: {cell}" if name else cell for name, cell in pairs)


def _separated(raws: Sequence[str]) -> dict[int, str]:
    """Return the rows of tables in CSV, or separated by semicolons or tabs, by the number of their line.

    Such a table has names of columns and at least two rows, all of equally many cells. A comma before a space
    is one of a sentence.
    """
    found: dict[int, str] = {}
    for mark, least in (("\t", 2), (";", 3), (",", 3)):
        if sum([raw.count(mark) >= least - 1 for raw in raws]) < LEAST_LINES:
            continue
        names: list[str] = []
        rows: dict[int, list[str]] = {}
        for number, raw in enumerate(checked([*raws, ""])):
            cells = _cells(raw, mark) if raw.count(mark) >= least - 1 else []
            if cells and len(cells) == len(names):
                rows[number] = cells
                continue
            if len(rows) > 1:
                found |= {at: _named(names, row) for at, row in rows.items()}
            names, rows = (cells if all(map(NAME.fullmatch, cells)) else []), {}
    return found


def _cells(line: str, mark: str) -> list[str]:
    """Return the cells of a line; none if the marks in it are those of a sentence."""
    try:
        cells = next(csv.reader([line.strip("\r\n")], delimiter=mark), [])
    except csv.Error:
        return []
    return [] if any(cell[:1] == " " for cell in cells[1:]) else cells


def _json(text: str) -> list[str] | None:
    """Return the values of a JSON object or list, each with its path; None for any other text.

    Also None where lines would not say the same: for a name that stands twice in an object, and for long
    names around many values, whose lines would be far longer than the text.
    """
    stripped = text.strip()
    if stripped[:1] + stripped[-1:] not in ("{}", "[]"):
        return None
    try:
        value = json.loads(stripped, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        return None
    found: list[str] = []
    room = MOST_GROWTH * len(stripped) + LEAST_GROWTH
    stack: list[tuple[str, object]] = [("", value)]
    while stack:
        path, each = stack.pop()
        room -= len(path) * (len(each) if isinstance(each, dict) else 1)
        if room < 0:
            return None
        if isinstance(each, dict):
            stack += [(f"{path} {key}".strip(), inner) for key, inner in reversed(each.items())]
        elif isinstance(each, list) and any(isinstance(inner, dict | list) for inner in each):
            stack += [(path, inner) for inner in reversed(each)]
        else:
            told = ", ".join(map(str, each)) if isinstance(each, list) else str(each)
            found.append(f"{path.replace('_', ' ')}: {told}" if path else told)
    return found


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def without_separators(text: str) -> str:
    """Return a text whose rows of CSV are lines with the names of their columns; any other text as it is."""
    separated = _separated(raws := text.splitlines(keepends=True))
    if not separated:
        return text
    return "".join(
        f"{separated[number]}\n" if number in separated else raw for number, raw in enumerate(raws)
    )
