"""How long an output is, and how much of its wording is not in its context."""

from __future__ import annotations

import unicodedata

from magistrate.errors import InputError
from magistrate.types import Sample

# Scripts written without spaces: here every character is a word.
UNSPACED = ("CJK ", "HIRAGANA ", "KATAKANA ", "THAI ", "LAO ", "KHMER ", "MYANMAR ", "TIBETAN ")


class _WordCharacters(dict[int, str]):
    """A table for `str.translate` that keeps letters, digits and marks; filled as characters come."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if unicodedata.category(character)[0] not in "LNM":
            kept = " "
        elif unicodedata.name(character, "").startswith(UNSPACED):
            kept = f" {character} "
        else:
            kept = character
        self[code] = kept
        return kept


_TABLE = _WordCharacters()


def words(text: str) -> list[str]:
    """The words of `text` in any script, without case, width or punctuation.

    >>> words("L'été, 25 °C: 東京!")
    ['l', 'été', '25', 'c', '東', '京']
    """
    return unicodedata.normalize("NFKC", text).casefold().translate(_TABLE).split()


def output_length(sample: Sample) -> int:
    """How many characters the output has. Raises `InputError` if there is no output yet."""
    return len(_output(sample))


def ngram_novelty(sample: Sample, n: int) -> float:
    """Share, in [0, 1], of the output's runs of `n` words that stand in none of its contexts.

    Repeated runs count each time. An output of fewer than `n` words is one run of all its words; one
    without words has nothing new (0); without a context all is new (1). Raises `InputError` for
    `n` < 1 or if there is no output yet.
    """
    if n < 1:
        raise InputError(f"n-grams need n of at least 1, got {n}")
    written = words(_output(sample))
    if not written:
        return 0.0
    size = min(n, len(written))
    known = {run for text in sample.context for run in _runs(words(text), size)}
    runs = _runs(written, size)
    return sum(run not in known for run in runs) / len(runs)


def _runs(tokens: list[str], size: int) -> list[tuple[str, ...]]:
    return list(zip(*(tokens[start:] for start in range(size)), strict=False))


def _output(sample: Sample) -> str:
    if sample.output is None:
        raise InputError(f"sample {sample.id!r} has no output yet; run its task first")
    return sample.output
