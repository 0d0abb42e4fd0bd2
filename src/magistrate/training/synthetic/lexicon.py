"""Word substitutes: the shipped word lists, English inflections, WordNet, and the `Lexicon` over these.

Inflections go by rule and by exception, from a form to its base and back. WordNet's own files are read as
they are asked for: senses, how often each was seen, and what they point to; the format is that of wndb(5WN)
and cntlist(5WN) of WordNet 3.0.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from magistrate.errors import InputError


@cache
def table() -> Mapping[str, Any]:
    """Return the contents of `words.toml`."""
    return tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))


def listed(name: str) -> list[Any]:
    """Return one of its lists: months, units, openers and so on."""
    found: list[Any] = table()["lists"][name]
    return found


def word_set(name: str) -> frozenset[str]:
    """Return one of its sets of words, each stored as one text."""
    return frozenset(str(table()["sets"][name]).split())


PartOfSpeech = Literal["noun", "verb", "adjective", "adverb"]
Form = Literal["base", "s", "ing", "ed", "past", "participle", "er", "est"]
"""`s`: plural of a noun, third person of a verb; `ed`: past and participle where they are the same."""

PLURALS = dict(row.split() for row in listed("irregular_plurals"))
INVARIABLE = word_set("invariable")
DEGREES = {"good": ("better", "best"), "bad": ("worse", "worst"), "far": ("farther", "farthest")}
# Verbs of several syllables that double their last letter before -ed and -ing.
DOUBLING = word_set("doubling")
VOWELS = "aeiou"


@dataclass(frozen=True, slots=True)
class Analysis:
    """One reading of a word form."""

    base: str
    part: PartOfSpeech
    form: Form


VERBS = {base: (past, participle) for base, past, participle in map(str.split, listed("irregular_verbs"))}
FORMS: dict[str, list[Analysis]] = {}
for _base, (_past, _participle) in VERBS.items():
    if _past == _participle:
        FORMS.setdefault(_past, []).append(Analysis(_base, "verb", "ed"))
    else:
        FORMS.setdefault(_past, []).append(Analysis(_base, "verb", "past"))
        FORMS.setdefault(_participle, []).append(Analysis(_base, "verb", "participle"))
for _base, _many in PLURALS.items():
    FORMS.setdefault(_many, []).append(Analysis(_base, "noun", "s"))
for _base, (_er, _est) in DEGREES.items():
    FORMS.setdefault(_er, []).append(Analysis(_base, "adjective", "er"))
    FORMS.setdefault(_est, []).append(Analysis(_base, "adjective", "est"))


def analyses(word: str) -> Iterator[Analysis]:
    """Yield the possible readings of a lower-case form. Most bases do not exist; the caller looks them up."""
    irregular = FORMS.get(word, ())
    yield from irregular
    for part in ("noun", "verb", "adjective", "adverb"):
        if not any(each.part == part for each in irregular):
            yield Analysis(word, part, "base")
    if word in INVARIABLE:
        return
    for ending, form, parts in (
        ("s", "s", ("noun", "verb")),
        ("ed", "ed", ("verb",)),
        ("ing", "ing", ("verb",)),
        ("er", "er", ("adjective",)),
        ("est", "est", ("adjective",)),
    ):
        if not word.endswith(ending) or len(word) < len(ending) + 3 or word.endswith(("ss", "us", "is")):
            continue
        for base in _bases(word[: -len(ending)], ending):
            for part in parts:
                # A base is right only if inflecting it gives the word again.
                if inflected(base, part, form) == word:  # type: ignore[arg-type]
                    yield Analysis(base, part, form)  # type: ignore[arg-type]


def _bases(stem: str, ending: str) -> Iterator[str]:
    yield stem
    if ending != "s":
        yield stem + "e"
        if len(stem) > 2 and stem[-1] == stem[-2]:
            yield stem[:-1]
        if stem.endswith("i"):
            yield stem[:-1] + "y"
    elif stem.endswith("ie"):
        yield stem[:-2] + "y"
    elif stem.endswith("e"):
        yield stem[:-1]


def inflected(base: str, part: PartOfSpeech, form: Form) -> str | None:
    """Return the form of a base, or None if it has no such form."""
    if form == "base":
        return base
    if part == "noun":
        return _plural(base) if form == "s" else None
    if part == "verb":
        return _verb(base, form)
    if part == "adjective" and form in ("er", "est"):
        return _degree(base, form)
    return None


def _plural(base: str) -> str | None:
    if base in INVARIABLE:
        return None
    return PLURALS.get(base) or (
        base[:-3] + "men" if base.endswith("man") and len(base) > 5 else _with_s(base)
    )


def _with_s(base: str) -> str:
    if re.search(r"(?:s|x|z|ch|sh)$", base):
        return base + "es"
    if base.endswith("y") and base[-2:-1] not in VOWELS:
        return base[:-1] + "ies"
    return base + ("es" if base in ("go", "do", "undergo", "veto", "echo") else "s")


def _verb(base: str, form: Form) -> str | None:
    if form == "s":
        return {"be": "is", "have": "has"}.get(base) or _with_s(base)
    if form == "ing":
        if base.endswith("ie"):
            return base[:-2] + "ying"
        return (base[:-1] if base.endswith("e") and not base.endswith(("ee", "oe", "ye")) and base != "be"
                else _doubled(base)) + "ing"  # fmt: skip
    if base in VERBS:
        past, participle = VERBS[base]
        if form == "ed":
            return past if past == participle else None
        return past if form == "past" else participle
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2:-1] not in VOWELS:
        return base[:-1] + "ied"
    return _doubled(base) + "ed"


def _degree(base: str, form: Form) -> str | None:
    if base in DEGREES:
        return DEGREES[base][form == "est"]
    if len(re.findall(r"[aeiouy]+", base.removesuffix("e"))) > 1 and not base.endswith("y"):
        return None  # such adjectives use "more" and "most"
    ending = "er" if form == "er" else "est"
    if base.endswith("e"):
        return base + ending[1:]
    if base.endswith("y"):
        return base[:-1] + "i" + ending
    return _doubled(base) + ending


def _doubled(base: str) -> str:
    """Return the base with its last consonant doubled, if English doubles it before an ending."""
    short = re.fullmatch(r"[^aeiou]*(?:qu)?[aeiouy][bdfgklmnprtvz]", base)
    return base + base[-1] if short or base in DOUBLING else base


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


@dataclass(frozen=True, slots=True)
class Synset:
    """Words that share a sense, the number of their file, and pointers `(relation, part, offset, source)`."""

    words: tuple[str, ...]
    topic: int
    pointers: tuple[tuple[str, str, int, int], ...]
    gloss: str

    @property
    def about(self) -> set[str]:
        """The longer words of the synset's definition."""
        return {word for word in re.findall(r"[a-z]{4,}", self.gloss) if word not in GLOSS_WORDS}


@dataclass(slots=True, eq=False)
class WordNet:
    """The dictionary files of one folder, in memory as bytes. A synset is parsed on first use."""

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
        """Return the offsets of the synsets of a lemma, the commonest first."""
        return self._senses[part].get(lemma, ())

    def count(self, lemma: str, part: PartOfSpeech) -> int:
        """Return how often the lemma occurs as that part of speech in the sense-tagged texts."""
        return sum(self._counts.get((part, lemma), {}).values())

    def share(self, lemma: str, part: PartOfSpeech) -> float:
        """Return the share of a lemma's occurrences with its first sense, in [0, 1]; 1 if it has no other."""
        if len(self.senses(lemma, part)) == 1:
            return 1.0
        counts = self._counts.get((part, lemma), {})
        return counts.get(1, 0) / total if (total := sum(counts.values())) else 0.0

    def synset(self, part: PartOfSpeech, offset: int) -> Synset:
        """Return the synset at a byte offset of its data file."""
        key = (part, offset)
        if key not in self._synsets:
            data = self._data[part]
            self._synsets[key] = _parsed(data[offset : data.index(b"\n", offset)].decode("ascii", "replace"))
        return self._synsets[key]

    def is_common(self, lemma: str, part: PartOfSpeech) -> bool:
        """Return whether a lemma is written in lower case in some sense, so that it is not only a name."""
        return any(lemma in self.synset(part, offset).words for offset in self.senses(lemma, part))

    def related(
        self, part: PartOfSpeech, offset: int, relation: str, word: str | None = None
    ) -> list[tuple[PartOfSpeech, int]]:
        """Return synsets pointed to; with `word`, only by pointers of that word or of the whole synset."""
        synset = self.synset(part, offset)
        number = synset.words.index(word) + 1 if word in synset.words else 0
        return [
            (LETTERS[letter], target)
            for sign, letter, target, source in synset.pointers
            if sign == relation and source in (0, number)
        ]


def read_file(folder: Path, name: str) -> bytes:
    """Return one of WordNet's files. Raises `InputError` if the folder does not have it."""
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


# Lexicographer files whose words exclude each other: animal, body, food, person, plant, time.
SIBLINGS_OF = frozenset((5, 8, 13, 18, 20, 28))
DOMINANT = 0.7  # least share of a word's occurrences in its first sense for a synonym to be safe
FREQUENT = 3  # least occurrences in the sense-tagged texts of a word that people use
SURE = 0.85  # least share of a form's occurrences with one part of speech, given the word before

# Synonyms in WordNet of everyday words that no one would use for them.
ODD = word_set("odd")
DETERMINERS = word_set("determiners")
BEFORE_VERBS = word_set("before_verbs")
AUXILIARIES = word_set("auxiliaries")


def _pairs(kind: str) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for part, rows in table()[kind].items():
        for first, second in (row.split() for row in rows):
            found.setdefault((part, first), []).append(second)
            found.setdefault((part, second), []).append(first)
    return found


@dataclass(slots=True, eq=False)
class Lexicon:
    """Substitutes for words. `name` is its origin: `built-in`, or `built-in + WordNet`."""

    name: str = "built-in"
    wordnet: WordNet | None = None
    _antonyms: Mapping[tuple[str, str], list[str]] = field(default_factory=lambda: _pairs("antonyms"))
    _synonyms: Mapping[tuple[str, str], list[str]] = field(default_factory=lambda: _pairs("synonyms"))
    _cache: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    _nearness: dict[str, frozenset[int]] = field(default_factory=dict)
    _readings: dict[str, tuple[tuple[Analysis, float], ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path | None = None) -> Lexicon:
        """Return the shipped lists, combined with WordNet's files if their folder is given.

        Raises `InputError` if a file of WordNet is missing there.
        """
        if folder is None:
            return cls()
        return cls("built-in + WordNet", WordNet(Path(folder)))

    def reading(self, word: str, before: str = "") -> Analysis | None:
        """Return the most likely reading of a word after the word `before`, or None if it is ambiguous."""
        found = self._all_readings(word.lower())
        before = before.lower()
        if before in DETERMINERS:
            found = tuple(each for each in found if each[0].part != "verb" or each[0].form in ("ing", "ed"))
        elif before in BEFORE_VERBS:
            found = tuple(each for each in found if each[0].part in ("verb", "adverb"))
        total = sum(count for _, count in found)
        if not total:
            return None
        best, _ = max(found, key=lambda each: each[1])
        sure = sum(count for each, count in found if each.part == best.part)
        return best if sure >= SURE * total else None

    def is_noun(self, word: str) -> str | None:
        """Return the form of a word that is mostly or always a noun, else None."""
        reading = self.reading(word)
        return reading.form if reading is not None and reading.part == "noun" else None

    def _all_readings(self, word: str) -> tuple[tuple[Analysis, float], ...]:
        if word not in self._readings:
            self._readings[word] = tuple(
                (each, count) for each in analyses(word) if (count := self._count(each))
            )
        return self._readings[word]

    def _count(self, of: Analysis) -> float:
        key = (of.part, of.base)
        own = key in self._antonyms or key in self._synonyms
        if self.wordnet is None:
            return float(own)
        if not self.wordnet.senses(of.base, of.part):
            return 0
        # Counts are of bases. Few occurrences end in -ing and -ed, and such forms may be nouns or adjectives.
        share = 0.25 if of.part == "verb" and of.form in ("ing", "ed") else 1.0
        return self.wordnet.count(of.base, of.part) * share + 1

    def knows(self, word: str) -> bool:
        """Return whether a lower-case word is a common word, in any form. Always True without WordNet."""
        net = self.wordnet
        return net is None or any(net.is_common(each.base, each.part) for each, _ in self._all_readings(word))

    def synonyms(self, of: Analysis, before: str = "") -> tuple[str, ...]:
        """Return words with the same meaning in that form."""
        return self._forms(self._kept("synonym", of), of, before)

    def antonyms(self, of: Analysis, before: str = "") -> tuple[str, ...]:
        """Return words with the opposite meaning in that form."""
        return self._forms(self._kept("antonym", of), of, before)

    def siblings(self, of: Analysis, before: str = "") -> tuple[str, ...]:
        """Return other words with the same hypernym and another meaning; none without WordNet."""
        return self._forms(self._kept("sibling", of), of, before)

    def _kept(self, relation: str, of: Analysis) -> tuple[str, ...]:
        key = (relation, of.part, of.base)
        if key not in self._cache:
            make = {"synonym": self._same, "antonym": self._opposite, "sibling": self._beside}[relation]
            self._cache[key] = tuple(dict.fromkeys(make(of)))
        return self._cache[key]

    def _same(self, of: Analysis) -> Iterable[str]:
        yield from self._synonyms.get((of.part, of.base), ())
        net = self.wordnet
        if net is None or net.share(of.base, of.part) < DOMINANT:
            return
        first = net.senses(of.base, of.part)[0]
        for word in net.synset(of.part, first).words:
            if (
                word != of.base
                and usual(word)
                and net.count(word, of.part) >= FREQUENT
                and net.senses(word, of.part)[0] == first
                and net.share(word, of.part) >= DOMINANT
            ):
                yield word

    def _opposite(self, of: Analysis) -> Iterable[str]:
        yield from self._antonyms.get((of.part, of.base), ())
        net = self.wordnet
        if net is None or net.share(of.base, of.part) < DOMINANT:
            return
        first = net.senses(of.base, of.part)[0]
        heads = [(of.part, first)]
        if of.part == "adjective":
            heads += net.related(of.part, first, "&")
        for place, (part, offset) in enumerate(heads):
            for other in net.related(part, offset, "!", None if place else of.base):
                yield from (
                    w for w in net.synset(*other).words if usual(w) and net.count(w, part) >= FREQUENT
                )

    def _beside(self, of: Analysis) -> Iterable[str]:
        net = self.wordnet
        if net is None or of.part != "noun" or net.share(of.base, of.part) < 0.5:
            return
        first = net.senses(of.base, of.part)[0]
        if net.synset(of.part, first).topic not in SIBLINGS_OF:
            return
        mine = set(net.senses(of.base, of.part))
        near = set(mine)
        about = net.synset(of.part, first).about
        for sense in mine:
            for relation in ("@", "~"):
                near.update(offset for _, offset in net.related(of.part, sense, relation))
        for _, above in net.related(of.part, first, "@"):
            for _, below in net.related(of.part, above, "~"):
                for word in net.synset(of.part, below).words:
                    senses = net.senses(word, of.part)
                    if (
                        usual(word)
                        and net.count(word, of.part) >= FREQUENT
                        and senses[0] == below
                        and not (of.form == "s" and word.endswith("ing"))
                        and not about & net.synset(of.part, below).about
                        and not near.intersection(senses)
                    ):
                        yield word

    @staticmethod
    def _forms(words: Sequence[str], of: Analysis, before: str) -> tuple[str, ...]:
        found = (
            inflected(word, of.part, form) if (form := _form(word, of, before)) else None for word in words
        )
        return tuple(word for word in found if word)

    def akin(self, word: str, other: str) -> bool:
        """Return whether two nouns share a sense or a close hypernym. Always True without WordNet."""
        net = self.wordnet
        if net is None:
            return True
        mine, theirs = self._near(word), self._near(other)
        return not mine.isdisjoint(theirs)

    def _near(self, word: str) -> frozenset[int]:
        """Return the offsets of the senses of a noun and of their hypernyms, two steps up."""
        net = self.wordnet
        if net is None:
            return frozenset()
        if word not in self._nearness:
            bases = {each.base for each, _ in self._all_readings(word) if each.part == "noun"}
            found = level = {offset for base in bases for offset in net.senses(base, "noun")[:3]}
            for _ in range(2):
                level = {above for offset in level for _, above in net.related("noun", offset, "@")}
                found = found | level
            self._nearness[word] = frozenset(found)
        return self._nearness[word]

    def is_place(self, name: str) -> bool | None:
        """Return whether a name is that of a place; None if unknown."""
        net = self.wordnet
        senses = net.senses(name.lower().replace(" ", "_"), "noun") if net else ()
        if net is None or not senses:
            return None
        return net.synset("noun", senses[0]).topic == 15  # lexicographer file noun.location


def usual(word: str) -> bool:
    """Return whether a lemma is one plain lower-case word."""
    return word.isascii() and word.isalpha() and word.islower() and len(word) > 2 and word not in ODD


def _form(word: str, of: Analysis, before: str) -> Form | None:
    """Return the form that another verb takes in place of `of`; None if past and participle are ambiguous."""
    if of.part != "verb" or of.form != "ed" or inflected(word, "verb", "ed"):
        return of.form
    before = before.lower()
    if before in AUXILIARIES:
        return "participle"
    return "past" if before in BEFORE_VERBS else None
