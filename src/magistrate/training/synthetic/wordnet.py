"""WordNet's own files, read as they are asked for: senses, how often each was seen, and what they point to.

The format is that of wndb(5WN) and cntlist(5WN) of WordNet 3.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from magistrate.errors import InputError
from magistrate.training.synthetic.inflection import PartOfSpeech
from magistrate.training.synthetic.words import word_set

FILES: dict[PartOfSpeech, str] = {"noun": "noun", "verb": "verb", "adjective": "adj", "adverb": "adv"}
NUMBERS = {"1": "noun", "2": "verb", "3": "adjective", "4": "adverb", "5": "adjective"}
LETTERS: dict[str, PartOfSpeech] = {
    "n": "noun",
    "v": "verb",
    "a": "adjective",
    "s": "adjective",
    "r": "adverb",
}
GLOSS_WORDS = word_set("gloss_words")
Relation = Literal["!", "@", "~", "&", "@i"]
"""Antonym, hypernym, hyponym, similar adjective, class of a named thing."""


@dataclass(frozen=True, slots=True)
class Synset:
    """Words that share a sense, the number of their file, and pointers `(relation, part, offset, source)`."""

    words: tuple[str, ...]
    topic: int
    pointers: tuple[tuple[str, str, int, int], ...]
    gloss: str

    @property
    def about(self) -> set[str]:
        """The longer words of what the synset says about itself."""
        return {word for word in re.findall(r"[a-z]{4,}", self.gloss) if word not in GLOSS_WORDS}


@dataclass(slots=True, eq=False)
class WordNet:
    """The dictionary files of one folder, in memory as bytes; a synset is parsed when it is asked for."""

    folder: Path
    _senses: dict[PartOfSpeech, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    _data: dict[PartOfSpeech, bytes] = field(default_factory=dict)
    _synsets: dict[tuple[str, int], Synset] = field(default_factory=dict)
    _counts: dict[tuple[str, str], dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part, name in FILES.items():
            self._data[part] = read_file(self.folder, f"data.{name}")
            self._senses[part] = dict(
                self._index(read_file(self.folder, f"index.{name}").decode("ascii", "replace"))
            )
        for line in read_file(self.folder, "cntlist.rev").decode("ascii", "replace").splitlines():
            key, number, count = line.split()
            lemma, _, rest = key.partition("%")
            self._counts.setdefault((NUMBERS[rest[0]], lemma), {})[int(number)] = int(count)

    @staticmethod
    def _index(text: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        for line in text.splitlines():
            if line.startswith(" "):  # the licence
                continue
            fields = line.split()
            offsets = fields[6 + int(fields[3]) :]
            yield fields[0], tuple(map(int, offsets))

    def senses(self, lemma: str, part: PartOfSpeech) -> tuple[int, ...]:
        """Offsets of the synsets of a lemma, the commonest first."""
        return self._senses[part].get(lemma, ())

    def count(self, lemma: str, part: PartOfSpeech) -> int:
        """How often the lemma was seen as that part of speech in the sense-tagged texts."""
        return sum(self._counts.get((part, lemma), {}).values())

    def share(self, lemma: str, part: PartOfSpeech) -> float:
        """What share of a lemma's occurrences has its first sense, in [0, 1]; 1 where it has no other."""
        if len(self.senses(lemma, part)) == 1:
            return 1.0
        counts = self._counts.get((part, lemma), {})
        return counts.get(1, 0) / total if (total := sum(counts.values())) else 0.0

    def synset(self, part: PartOfSpeech, offset: int) -> Synset:
        """The synset at a byte offset of its data file."""
        key = (part, offset)
        if key not in self._synsets:
            data = self._data[part]
            self._synsets[key] = _parsed(data[offset : data.index(b"\n", offset)].decode("ascii", "replace"))
        return self._synsets[key]

    def is_common(self, lemma: str, part: PartOfSpeech) -> bool:
        """Whether a lemma is written in small letters in some sense, so that it is not only a name."""
        return any(lemma in self.synset(part, offset).words for offset in self.senses(lemma, part))

    def related(
        self, part: PartOfSpeech, offset: int, relation: str, word: str | None = None
    ) -> list[tuple[PartOfSpeech, int]]:
        """Synsets pointed to; with `word`, only by pointers of that word or of the whole synset."""
        synset = self.synset(part, offset)
        number = synset.words.index(word) + 1 if word in synset.words else 0
        return [
            (LETTERS[letter], target)
            for sign, letter, target, source in synset.pointers
            if sign == relation and source in (0, number)
        ]


def read_file(folder: Path, name: str) -> bytes:
    """One of WordNet's files. Raises `InputError` where the folder does not have it."""
    path = folder / name
    if not path.is_file():
        raise InputError(
            f"{folder} has no file {name}; a WordNet folder holds data.noun, index.noun, "
            "cntlist.rev and the others of the package wordnet-base (or of WordNet-3.0/dict)"
        )
    return path.read_bytes()


def _parsed(line: str) -> Synset:
    fields = line.partition(" | ")[0].split()
    size = int(fields[3], 16)
    words = tuple(fields[4 + 2 * at].partition("(")[0] for at in range(size))
    at = 4 + 2 * size
    pointers = tuple(
        (fields[place], fields[place + 2], int(fields[place + 1]), int(fields[place + 3][:2], 16))
        for place in range(at + 1, at + 1 + 4 * int(fields[at]), 4)
    )
    return Synset(words, int(fields[1]), pointers, line.partition(" | ")[2].partition('; "')[0])
