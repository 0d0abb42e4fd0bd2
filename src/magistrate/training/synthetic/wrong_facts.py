"""Changes that make an output say something else: names, numbers and dates, roles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from magistrate.training.synthetic.drafts import Draft, Edit, Variant, edited, shuffled, sort_of
from magistrate.training.synthetic.text import Place, Word
from magistrate.training.synthetic.words import listed

JOINED = re.compile(
    r"[\s,/&'-]*(?:(?:and|or|with|versus|vs|v|the|both|as well as|to|between|of)\b[\s,]*)*\.?", re.I
)
MUTUAL = re.compile(rf"\b(?:{'|'.join(listed('mutual'))})\b", re.I)


def name_from_context(draft: Draft, random: Random) -> Variant | None:
    """A name for another of the same sort that the context has."""
    return _renamed(draft, random, draft.source_names)


def name_from_elsewhere(draft: Draft, random: Random) -> Variant | None:
    """A name for another of the same sort from other samples."""
    for name in shuffled(random, draft.names):
        pool = draft.pools.names.get(sort_of(name.text, draft.lexicon), ())
        for _ in range(5 if pool else 0):
            other = pool[random.randrange(len(pool))]
            if not draft.known.intersection(other.lower().split()) and _fits(draft, name, other):
                return edited(draft.output.text, [Edit.wrong(name.start, name.end, other)])
    return None


def _renamed(draft: Draft, random: Random, others: list[str]) -> Variant | None:
    for name in shuffled(random, draft.names):
        sort = sort_of(name.text, draft.lexicon)
        for other in shuffled(random, others):
            if sort_of(other, draft.lexicon) == sort and _fits(draft, name, other):
                return edited(draft.output.text, [Edit.wrong(name.start, name.end, other)])
    return None


def _fits(draft: Draft, name: Place, other: str) -> bool:
    """Whether `other` can stand for a name: not the same, and not yet in that sentence."""
    sentence = draft.sentence_at(name.start).text
    in_list = re.match(
        r",? (?:and|or) |, [A-Z]", draft.output.text[name.end :]
    )  # members of lists are interchangeable
    article = name.text.lower().startswith("the ") != other.lower().startswith("the ")
    return not (
        draft.same_bearer(name.text, other) or other in sentence or in_list or article or "\n" in other
    )


def roles_exchanged(draft: Draft, random: Random) -> Variant | None:
    """Two names of a sentence, each in the other's place."""
    text = draft.output.text
    pairs: list[tuple[Place, Place]] = []
    for sentence in draft.output.sentences:
        names = [name for name in draft.names if sentence.start <= name.start < sentence.end]
        pairs += [
            (first, second)
            for first, second in pairwise(names)
            if not draft.same_bearer(first.text, second.text)
            and sort_of(first.text, draft.lexicon) == sort_of(second.text, draft.lexicon)
            and not JOINED.fullmatch(text, first.end, second.start)
            and not MUTUAL.search(text, first.end, second.start)
            and "," not in text[first.end : second.start]  # members of a list are interchangeable
            and len(text[first.end : second.start].split()) < 12
        ]
    for first, second in shuffled(random, pairs):
        return edited(
            text,
            [
                Edit.wrong(first.start, first.end, second.text),
                Edit.wrong(second.start, second.end, first.text),
            ],
        )
    return None


def number(draft: Draft, random: Random) -> Variant | None:
    """A number for another that is near it, in digits or in words, alone or with the unit after it."""
    text = draft.output.text
    choices = [
        Edit.wrong(place.start, place.end, other)
        for place in draft.output.numbers
        if (other := _other_number(draft, place, random))
    ]
    names = listed("numbers")
    for word in draft.output.words:
        if word.lower in names[2:] and not re.match(r" (?:of|another)\b|-", text[word.end :]):
            other = (
                names[max(2, names.index(word.lower) + random.choice((-3, -2, -1, 1, 2, 3)))]
                if names.index(word.lower) < 18
                else "twelve"
            )
            if other != word.lower:
                choices.append(
                    Edit.wrong(word.start, word.end, other.capitalize() if word.text[0].isupper() else other)
                )
    return edited(text, [random.choice(choices)]) if choices else None


def _other_number(draft: Draft, place: Place, random: Random) -> str | None:
    plain = place.text.replace(",", "")
    if "." in plain:
        digits = len(plain.partition(".")[2])
        value = float(plain)
        step = max(0.3, round(value * random.uniform(0.08, 0.5), digits))
        other = f"{max(0.1, value + random.choice((-1, 1)) * step):.{digits}f}"
    elif len(plain) == 4 and plain[:2] in ("15", "16", "17", "18", "19", "20") and "," not in place.text:
        other = str(int(plain) + random.choice((-30, -12, -10, -7, -5, -4, -3, -2, -1, 1, 2, 3, 4, 5, 7, 10)))
    else:
        value = int(plain)
        step = (
            random.choice((1, 2, 3, 5))
            if value < 30
            else random.choice((10, 20, 50))
            if value < 200
            else max(10, value // 5)
        )
        other = str(value + step if value <= step or random.random() < 0.5 else value - step)
        other = f"{int(other):,}" if "," in place.text else other
        if plain.startswith("0"):
            return None
    known = [
        each.text
        for source in draft.sources
        for each in source.numbers
        if len(each.text) == len(place.text) and "." in each.text == "." in plain
    ]
    if known and random.random() < 0.5:  # a number that the context has elsewhere: nothing about it is new
        other = random.choice(known)
    return None if other.replace(",", "") == plain or other in draft.output.text else other


def date(draft: Draft, random: Random) -> Variant | None:
    """A month or a day of the week for another."""
    choices: list[Edit] = []
    for names in (listed("months"), listed("weekdays")):
        for word in draft.output.words:
            if (word.text in names and word.text not in ("May", "March")) or (
                word.text in ("May", "March") and re.match(r" \d", draft.output.text[word.end :])
            ):
                others = [name for name in names if name != word.text]
                if names[0] in others or word.text == names[0]:
                    choices.append(Edit.wrong(word.start, word.end, random.choice(others)))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def unit(draft: Draft, random: Random) -> Variant | None:
    """A unit or a scale after a number for another: million for billion, weeks for months."""
    choices: list[Edit] = []
    for word, (base, others) in _units(draft):
        others = [other for other in others if other != base]
        new = random.choice(others)
        choices.append(Edit.wrong(word.start, word.end, new + ("s" if word.lower != base else "")))
    return edited(draft.output.text, [random.choice(choices)]) if choices else None


def _units(draft: Draft) -> Iterator[tuple[Word, tuple[str, list[str]]]]:
    families = [listed("scales"), *(family for family in listed("units") if "foot" not in family)]
    words = draft.output.words
    for before, word in pairwise(words):
        if before.text[0].isdigit() or before.lower in listed("numbers"):
            for family in families:
                base = word.lower.removesuffix("s")
                if base in family and word.lower in (base, base + "s"):
                    yield word, (base, family)
                    break
