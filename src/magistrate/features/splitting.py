"""Split texts into sentences and passages, and rank passages by similarity to a text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from magistrate._deadline import check, checked
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
