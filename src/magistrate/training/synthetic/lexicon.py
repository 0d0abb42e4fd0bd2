"""What words can stand for others: synonyms, opposites and words of one family, inflections kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from magistrate.training.synthetic.inflection import Analysis, Form, analyses, inflected
from magistrate.training.synthetic.wordnet import WordNet
from magistrate.training.synthetic.words import table, word_set

# Lexicographer files whose words exclude each other: animal, body, food, person, plant, time.
SIBLINGS_OF = frozenset((5, 8, 13, 18, 20, 28))
DOMINANT = 0.7  # share of a word's occurrences that its first sense must have for a synonym to be safe
FREQUENT = 3  # times a word was seen in the sense-tagged texts for it to be one that people write
SURE = 0.85  # share of a form's occurrences that one part of speech must have, neighbours apart

# What WordNet gives for everyday words and nobody would write in their place.
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
    """Words for words. `name` says what it was made from: `built-in`, or `built-in + WordNet`."""

    name: str = "built-in"
    wordnet: WordNet | None = None
    _antonyms: Mapping[tuple[str, str], list[str]] = field(default_factory=lambda: _pairs("antonyms"))
    _synonyms: Mapping[tuple[str, str], list[str]] = field(default_factory=lambda: _pairs("synonyms"))
    _cache: dict[tuple[str, str, str], tuple[str, ...]] = field(default_factory=dict)
    _nearness: dict[str, frozenset[int]] = field(default_factory=dict)
    _readings: dict[str, tuple[tuple[Analysis, float], ...]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: str | Path | None = None) -> Lexicon:
        """The shipped list, and before it WordNet's files where their folder is given.

        Raises InputError where a file of WordNet is missing there.
        """
        if folder is None:
            return cls()
        return cls("built-in + WordNet", WordNet(Path(folder)))

    def reading(self, word: str, before: str = "") -> Analysis | None:
        """What a word most likely is after the word `before`, or None where that is not clear enough."""
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
        """The form of a word that can only be read as a noun, or mostly is one."""
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
        # The counts are of bases, of which few are -ing and -ed; these may be nouns and adjectives, too.
        share = 0.25 if of.part == "verb" and of.form in ("ing", "ed") else 1.0
        return self.wordnet.count(of.base, of.part) * share + 1

    def knows(self, word: str) -> bool:
        """Whether a lower-case word is a common one, in any form; all are without WordNet."""
        net = self.wordnet
        return net is None or any(net.is_common(each.base, each.part) for each, _ in self._all_readings(word))

    def synonyms(self, of: Analysis, before: str = "") -> tuple[str, ...]:
        """Words that mean the same in that form."""
        return self._forms(self._kept("synonym", of), of, before)

    def antonyms(self, of: Analysis, before: str = "") -> tuple[str, ...]:
        """Words that mean the opposite in that form."""
        return self._forms(self._kept("antonym", of), of, before)

    def siblings(self, of: Analysis, before: str = "") -> tuple[str, ...]:
        """Other words under the same heading that mean something else; none without WordNet."""
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
        """Whether two nouns share a sense, or one is a kind of the other; all are without WordNet."""
        net = self.wordnet
        if net is None:
            return True
        mine, theirs = self._near(word), self._near(other)
        return not mine.isdisjoint(theirs)

    def _near(self, word: str) -> frozenset[int]:
        """Offsets of the senses of a noun and of the kinds they are of, three steps up."""
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
        """Whether a name is that of a place; None where it is not known."""
        net = self.wordnet
        senses = net.senses(name.lower().replace(" ", "_"), "noun") if net else ()
        if net is None or not senses:
            return None
        return net.synset("noun", senses[0]).topic == 15  # lexicographer file noun.location


def usual(word: str) -> bool:
    """Whether a lemma is one plain lower-case word."""
    return word.isascii() and word.isalpha() and word.islower() and len(word) > 2 and word not in ODD


def _form(word: str, of: Analysis, before: str) -> Form | None:
    """The form that another verb takes where `of` stands; None where past and participle cannot be told."""
    if of.part != "verb" or of.form != "ed" or inflected(word, "verb", "ed"):
        return of.form
    before = before.lower()
    if before in AUXILIARIES:
        return "participle"
    return "past" if before in BEFORE_VERBS else None
