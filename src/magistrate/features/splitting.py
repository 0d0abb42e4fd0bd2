"""Split texts into sentences, passages, and lines to be read alone; rank passages by similarity to a text."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from magistrate._work import check, checked
from magistrate.features.words import words

PASSAGE = 600  # characters; a passage takes further sentences up to this length
SATURATION, LENGTH_SHARE = 1.5, 0.75  # the parameters k1 and b of BM25
WINDOW = 8192  # characters of a line split together; a longer sentence is cut


@dataclass(frozen=True, slots=True)
class Piece:
    """Characters `[start, end)` of the text with this index."""

    index: int
    start: int
    end: int

    def of(self, texts: Sequence[str]) -> str:
        """Return the characters of the piece."""
        return texts[self.index][self.start : self.end]


def sentences(text: str, language: str = "en") -> list[tuple[int, int]]:
    """Return the offsets `[start, end)` of the sentences of `text`, trimmed, none empty.

    `language` is an ISO 639 code, used for abbreviations; sentence-ending marks of every script are known.
    Line ends separate sentences too.
    """
    from sentencex import get_sentence_boundaries  # type: ignore[import-untyped]

    found: list[tuple[int, int]] = []
    start = 0
    for line in text.splitlines(keepends=True):
        end = start + len(line)
        while start < end:
            check()
            # The library takes quadratic time, so it gets windows of the text. It cannot read surrogates.
            window = text[start : min(start + WINDOW, end)].encode("utf-8", "replace").decode()
            lengths = [
                len(each["text"]) for each in get_sentence_boundaries(language, window) if each["text"]
            ]
            if start + len(window) < end and len(lengths) > 1:
                lengths.pop()  # it may continue beyond the window: the next one starts with it
            elif sum(lengths) < len(window):
                lengths.append(len(window) - sum(lengths))
            for length in lengths:
                found += trimmed(text, start, start + length)
                start += length
    return found


def trimmed(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Return `[start, end)` without surrounding white space; empty if there is nothing else."""
    piece = text[start:end]
    stripped = piece.strip()
    if not stripped:
        return []
    start += len(piece) - len(piece.lstrip())
    return [(start, start + len(stripped))]


def units(texts: Sequence[str], language: str = "en") -> list[Piece]:
    """Return the sentences of several texts, in order."""
    return [Piece(index, *place) for index, text in enumerate(texts) for place in sentences(text, language)]


def passages(texts: Sequence[str], language: str = "en") -> list[Piece]:
    """Return runs of whole sentences of about `PASSAGE` characters, none across two texts."""
    found: list[Piece] = []
    for unit in units(texts, language):
        last = found[-1] if found else None
        if last is not None and last.index == unit.index and unit.end - last.start <= PASSAGE:
            found[-1] = Piece(last.index, last.start, unit.end)
        else:
            found.append(unit)
    return found


def merged(pieces: Sequence[Piece], texts: Sequence[str]) -> list[Piece]:
    """Sort pieces, and join neighbours with only white space between them."""
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda each: (each.index, each.start)):
        last = found[-1] if found else None
        if (
            last is not None
            and last.index == piece.index
            and not texts[piece.index][last.end : piece.start].strip()
        ):
            found[-1] = Piece(last.index, last.start, max(last.end, piece.end))
        else:
            found.append(piece)
    return found


class Ranking:
    """Ranks texts by similarity to a query (BM25, Robertson & Zaragoza 2009)."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(words(text)) for text in checked(texts, 64)]
        mean = sum(each.total() for each in counts) / max(1, len(counts))
        self._size = len(counts)
        self._found: dict[str, list[tuple[int, float]]] = {}  # by word: (text, contribution)
        for number, each in enumerate(counts):
            length = 1 - LENGTH_SHARE + LENGTH_SHARE * each.total() / max(1, mean)
            for word, count in each.items():
                added = count / (count + SATURATION * length)
                self._found.setdefault(word, []).append((number, added))

    def order(self, query: str) -> list[int]:
        """Return the indices of the texts, most similar first; ties keep their order."""
        scores = [0.0] * self._size
        for word in checked(sorted(set(words(query)) & self._found.keys()), 64):
            held = self._found[word]
            rarity = math.log1p((self._size - len(held) + 0.5) / (len(held) + 0.5))
            for number, added in held:
                scores[number] += rarity * added
        return sorted(range(self._size), key=lambda number: -scores[number])


# --- rows of tables with their columns, values of JSON with their path ----------------------------

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
