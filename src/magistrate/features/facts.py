"""Extract the numbers, dates, names and quotations of a text, and look them up in sources."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from magistrate._deadline import checked
from magistrate.features.words import PART, SPACED, Run, Wording, compiled
from magistrate.types import Span

# --- dates ----------------------------------------------------------------------------------------

_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday"
MONTHS = {
    name: number
    for number, names in enumerate(
        (
            *("january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul"),
            *("august aug", "september sept sep", "october oct", "november nov", "december dec"),
        ),
        1,
    )
    for name in names.split()
}
SHORT = ("jan", "feb", "mar", "apr", "jun", "jul", "aug", "sept", "sep", "oct", "nov", "dec")
WEEKDAYS = {name: number for number, name in enumerate(_WEEKDAYS.split(), 1)}
AMBIGUOUS = ("may", "march", *SHORT)  # months only next to a day or a year, or after "in" and similar words


@dataclass(frozen=True, slots=True)
class Date:
    """A date with its position; absent parts are None. `decade` is the first year of a decade."""

    span: Span
    year: int | None = None
    month: int | None = None
    day: int | None = None
    weekday: int | None = None
    decade: int | None = None

    @property
    def is_year(self) -> bool:
        """Whether it is only a year."""
        return self.year is not None and self.month is None


class Calendar:
    """An index of the dates in sources.

    A date is found if one source date has all its parts, or all but a year that another one has.
    """

    def __init__(self, said: Iterable[Date]) -> None:
        self._weekdays: set[int | None] = {None}
        self._decades: set[int | None] = {None}
        self._days: set[tuple[int | None, int | None, int | None]] = set()
        self._without_year: set[tuple[int | None, int | None]] = set()
        self._years: set[int | None] = set()
        for each in said:
            self._weekdays.add(each.weekday)
            self._decades.add(each.decade if each.year is None else each.year // 10 * 10)
            if each.year is None and each.month is None:
                continue
            self._years.add(each.year)
            for year in (each.year, None):
                for day in (each.day, None):
                    self._days.add((year, each.month, day))
                    if each.year is None:
                        self._without_year.add((each.month, day))
            self._days.add((each.year, None, None))

    def says(self, date: Date) -> bool:
        """Return whether the sources contain a date."""
        if date.weekday is not None:
            return date.weekday in self._weekdays
        if date.decade is not None:
            return date.decade in self._decades
        if (date.year, date.month, date.day) in self._days:
            return True
        return (date.month, date.day) in self._without_year and date.year in self._years


def dates(text: str) -> list[Date]:
    """Return the dates of `text` in order.

    A bare number of four digits from 1000 to 2099 is a year unless a unit, money or a percent sign is next
    to it. From `2/6/2017` only the year is read, since the order of day and month differs between
    countries.
    """
    return list(_found(text))


def _found(text: str) -> Iterator[Date]:
    for found in checked(_pattern().finditer(text)):
        span, said = Span(*found.span()), found.groupdict()
        year = said["y1"] or said["y2"] or said["y3"] or said["y4"] or said["y5"]
        month = said["m1"] or said["m2"] or said["m3"]
        if said["weekday"]:
            yield Date(span, weekday=WEEKDAYS[said["weekday"].lower()])
        elif said["decade"]:
            yield Date(span, decade=int(said["decade"]))
        elif said["iso_month"]:
            day = int(said["iso_day"]) if said["iso_day"] else None
            yield Date(span, int(said["iso_year"]), int(said["iso_month"]), day)
        elif month:
            if month in ("may", "march") and not year:
                continue  # "30 may leave"
            day = said["d1"] or said["d2"]
            yield Date(
                span,
                int(year) if year else None,
                MONTHS[month.lower().rstrip(".")],
                int(day) if day else None,
            )
        else:
            yield Date(span, int(year))


@cache
def _pattern() -> Any:
    short = "|".join(SHORT)
    months = rf"(?:(?:{short})\.|(?:{'|'.join(sorted(MONTHS, key=len, reverse=True))})\b)"
    alone = "|".join(name for name in MONTHS if name not in AMBIGUOUS)
    year = r"(?:1\d|20)\d\d"
    end = rf"(?!{PART}|[.,:]\d)"
    ordinal = r"(?:st|nd|rd|th)?"
    return compiled(
        rf"""(?V1x)(?<!{PART}|\d[.,:/-])(?i:
        (?P<iso_year>{year})-(?P<iso_month>0[1-9]|1[0-2])(?:-(?P<iso_day>[0-2]\d|3[01]))?{end}
        |\d\d?[./-]\d\d?[./-](?P<y1>{year}){end}
        |(?P<d1>[0-3]?\d){ordinal}\s(?:of\s)?(?P<m1>{months})(?:,?\s(?P<y2>{year}){end})?
        |(?P<m2>{months})\s(?:(?:the\s)?(?P<d2>[0-3]?\d){ordinal}{end}(?:,?\s(?P<y3>{year}){end})?|(?P<y4>{year}){end})
        |(?P<weekday>{"|".join(WEEKDAYS)})s?{end}
        |(?P<decade>(?:1\d|20)\d0)['’]?s{end}
        )
        |(?:(?<=(?<!\d)\d{{4}}[-–/])|(?<!{PART}|\d[.,:/-]))(?:
        (?P<m3>(?i:{alone})|(?<=\b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Bb]y|[Ll]ast|[Nn]ext|[Ll]ate|[Ee]arly|[Mm]id)\s)(?:May|March|Jan|Feb|Mar|Apr|Aug|Sept|Sep|Oct|Nov|Dec))\b
        |(?<![$€£¥₹]\s?)(?P<y5>{year}){end}(?!\s?(?:%|percent|km|kg|miles|people|million|billion|thousand|dollars|euros|hours|feet|meters|metres|men|women)\b|\s?%))
        """
    )


# --- numbers with their units ---------------------------------------------------------------------

_SMALL = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
seventeen eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_ABOUT = "about approximately around roughly nearly almost over under circa ca some estimated"

SMALL = {word: number for number, word in enumerate(_SMALL.split())}
TENS = {word: 10 * number for number, word in enumerate(_TENS.split(), 2)}
MULTIPLIERS = {
    "hundred": 1e2,
    "dozen": 12.0,
    "thousand": 1e3,
    "million": 1e6,
    "billion": 1e9,
    "trillion": 1e12,
}
ABBREVIATED = {"k": 1e3, "m": 1e6, "mn": 1e6, "mln": 1e6, "b": 1e9, "bn": 1e9, "tn": 1e12}
ABOUT = frozenset(_ABOUT.split())

# The units of each measure, with their size in the measure's first unit.
_MEASURES: Mapping[str, Mapping[str, float]] = {
    "length": {
        "m meter meters metre metres": 1,
        "km kilometer kilometers kilometre kilometres": 1e3,
        "cm centimeter centimeters centimetre centimetres": 1e-2,
        "mm millimeter millimeters millimetre millimetres": 1e-3,
        "mile miles mi": 1609.344,
        "ft foot feet": 0.3048,
        "inch inches": 0.0254,
        "yard yards yd": 0.9144,
    },
    "mass": {
        "kg kilogram kilograms kilo kilos": 1,
        "g gram grams": 1e-3,
        "mg milligram milligrams": 1e-6,
        "µg μg mcg microgram micrograms": 1e-9,
        "t tonne tonnes": 1e3,
        "lb lbs": 0.45359237,
        "oz ounce ounces": 0.028349523125,
    },
    "time": {
        "s sec secs second seconds": 1,
        "ms millisecond milliseconds": 1e-3,
        "min mins minute minutes": 60,
        "h hr hrs hour hours": 3600,
        "day days": 86400,
        "week weeks": 604800,
    },
    "calendar time": {
        "month months": 1,
        "quarter quarters": 3,
        "year years yr yrs": 12,
        "decade decades": 120,
        "century centuries": 1200,
    },
    "volume": {
        "l liter liters litre litres": 1,
        "ml milliliter milliliters millilitre millilitres": 1e-3,
        "gallon gallons": 3.785411784,
    },
    "data": {"byte bytes": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    "frequency": {"hz hertz": 1, "khz": 1e3, "mhz": 1e6, "ghz": 1e9},
    "power": {"w watt watts": 1, "kw kilowatt kilowatts": 1e3, "mw megawatt megawatts": 1e6, "gw": 1e9},
    "share": {"% percent pct": 1},
    "celsius": {"°c celsius": 1},
    "fahrenheit": {"°f fahrenheit": 1},
    "usd": {"$ us$ usd dollar dollars": 1, "cent cents ¢": 1e-2},
    "eur": {"€ eur euro euros": 1},
    "gbp": {"£ gbp sterling": 1},
    "jpy": {"¥ jpy yen": 1},
    "inr": {"₹ inr rupee rupees": 1},
}
UNITS: Mapping[str, tuple[str, float]] = {
    name: (measure, float(worth))
    for measure, units in _MEASURES.items()
    for names, worth in units.items()
    for name in names.split()
}


LOOSE = 0.05  # relative tolerance of a number such as "about 2,000"
REACH = 0.06  # relative range that covers all values a rough number can mean
MOST_DIGITS = 300  # longer digit strings are compared as text
SAME = 1e-9  # relative rounding error
BEFORE = 24  # characters before a number that are searched for its sign, currency and "about"
NO_SPACES = {ord(space): None for space in " \u00a0\u202f\u2009'’"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its position.

    `value` is the written value, including scales such as *million*. `measure` and `worth` are the measure
    and size of its unit, None and 1 without a known unit. `grain` is the value of the last written digit's
    place, 0 if the number is exact. `about` is set if a word before it makes it approximate. `code` is set
    for texts that are compared exactly: times and versions.
    """

    span: Span
    value: float
    measure: str | None = None
    worth: float = 1.0
    grain: float = 0.0
    about: bool = False
    code: str | None = None

    def said_by(self, other: Quantity) -> bool:
        """Return whether `other`, from a source, matches this number; one without a unit matches any."""
        if self.code is not None or other.code is not None:
            return self.code == other.code
        if None in (self.measure, other.measure):
            return self._near(self.value, other.value, self.grain)
        return self.measure == other.measure and self._near(
            self.value * self.worth, other.value * other.worth, self.grain * self.worth
        )

    def _near(self, mine: float, theirs: float, grain: float) -> bool:
        gap = abs(mine - theirs)
        slack = LOOSE if self.about else SAME
        return gap <= max(slack * max(abs(mine), abs(theirs)), min(grain / 2, LOOSE * abs(theirs)))


class Amounts:
    """A sorted index of the numbers in sources, so that a lookup does not scan them all."""

    def __init__(self, said: Iterable[Quantity]) -> None:
        self._codes: set[str | None] = set()
        by_measure: dict[str | None, dict[tuple[float, float], Quantity]] = {}
        plain: dict[tuple[float, float], Quantity] = {}
        for each in said:
            if each.code is not None:
                self._codes.add(each.code)
                continue
            by_measure.setdefault(each.measure, {}).setdefault((each.value * each.worth, each.grain), each)
            plain.setdefault((each.value, each.grain), each)
        self._by_measure = {measure: _ordered(found) for measure, found in by_measure.items()}
        self._plain = _ordered(plain)

    def say(self, number: Quantity) -> bool:
        """Return whether the sources contain this number."""
        if number.code is not None:
            return number.code in self._codes
        if number.measure is None:
            return self._near(number, number.value, self._plain)
        scaled = self._by_measure.get(number.measure, ([], []))
        bare = self._by_measure.get(None, ([], []))
        return self._near(number, number.value * number.worth, scaled) or self._near(
            number, number.value, bare
        )

    def _near(self, number: Quantity, value: float, among: tuple[list[float], list[Quantity]]) -> bool:
        loose = REACH if number.about or number.grain else 2 * SAME
        reach = abs(value) * loose
        first, last = bisect_left(among[0], value - reach), bisect_right(among[0], value + reach)
        return any(number.said_by(each) for each in among[1][first:last])


def _ordered(found: Mapping[tuple[float, float], Quantity]) -> tuple[list[float], list[Quantity]]:
    keys = sorted(found)
    return [value for value, _ in keys], [found[key] for key in keys]


def quantities(text: str, taken: Sequence[Span] = ()) -> list[Quantity]:
    """Return the numbers of `text` in order, without those that begin in a `taken` span (a date's).

    Digits of every script are read; number words, scales and units are English, plus the usual signs. *One*
    is a number only before a scale or a unit. `taken` must be in order.
    """
    starts = [span.start for span in taken]

    def free(at: int) -> bool:
        before = bisect_right(starts, at) - 1
        return before < 0 or taken[before].end <= at

    return [each for each in _numbers(text) if free(each.span.start)]


def _numbers(text: str) -> Iterator[Quantity]:
    for found in checked(_core().finditer(text)):
        start, digits = found.start(), found["digits"]
        if digits is None:
            for first, last, value in checked(_spelled(found[0])):
                yield from _quantity(text, start + first, start + last, value)
        elif ":" in digits or len(digits) > MOST_DIGITS or _is_version(digits):
            yield Quantity(Span(*found.span()), 0.0, code=digits)
        else:
            yield from _quantity(text, start, found.end(), *_digits(digits))


def _quantity(
    text: str, start: int, end: int, value: float, grain: float | None = None
) -> Iterator[Quantity]:
    """Yield the number at `[start, end)` with what stands around it, if it is one; no `grain` for words."""
    before, after = _before().match(text, max(0, start - BEFORE), start), _after().match(text, end)
    scale, word, ended = _scale_and_unit(after, before["money"], end)
    measure, worth = UNITS.get(word, (None, 1.0))
    if grain is None and value == 1 and measure is None and scale == 1:
        return  # a pronoun more often than a number
    if grain is not None and ended == end and after["glued"]:
        return  # a word such as 3D
    if not isfinite(value * scale * worth):
        yield Quantity(Span(start, end), 0.0, code=text[start:end].casefold())
        return
    if before["money"]:
        start -= len(before["money"])
    yield Quantity(
        Span(start, ended),
        (-1 if before["minus"] and value else 1) * value * scale,
        measure,
        worth,
        (1.0 if grain is None else grain) * scale if scale != 1 else 0.0,
        (before["about"] or "").lower() in ABOUT,
    )


def _scale_and_unit(after: Any, money: str | None, end: int) -> tuple[float, str, int]:
    """Return the number's scale, its unit, and the end of both."""
    scale, unit = (after["scale"] or "").lower(), (after["unit"] or "").lower()
    touches = after.start("scale") == end
    if scale in ABBREVIATED and not money and (scale == "m" or not touches):
        # Without money, an abbreviation is a scale only directly after the number, and m is always metres.
        word = scale if scale in UNITS else ""
        return 1.0, word, after.end("scale") if word else end
    worth = MULTIPLIERS.get(scale) or ABBREVIATED.get(scale, 1.0)
    ended = after.end("scale") if scale else end
    if money:
        return worth, money.strip().lower(), ended
    return worth, unit, after.end("unit") if unit else ended


def _is_version(digits: str) -> bool:
    groups = digits.split(".")
    return len(groups) > 2 and "," not in digits and not all(len(group) == 3 for group in groups[1:])


def _digits(written: str) -> tuple[float, float]:
    """Return the value of a number in digits, and the value of its last digit's place."""
    plain = written.translate(NO_SPACES)
    for mark, other in ((",", "."), (".", ",")):
        groups = plain.partition(other)[0].split(mark)
        thousands = len(groups) > 1 and all(len(group) == 3 for group in groups[1:])
        if thousands and (mark == "," or len(groups) > 2 or other in plain):
            plain = plain.replace(mark, "")
    plain = plain.replace(",", ".")
    whole, _, decimals = plain.partition(".")
    zeros = 0 if decimals else len(whole) - len(whole.rstrip("0"))
    return float(f"{whole}.{decimals.replace('.', '') or 0}"), 10.0 ** (zeros - len(decimals))


def _spelled(said: str) -> Iterator[tuple[int, int, float]]:
    """Yield the numbers in a run of number words, with their places.

    *Two hundred and five* is one number, *two and three* are two, and so are *two hundred and three
    hundred*.
    """
    words = [(*found.span(), found[0].casefold()) for found in re.finditer(r"[^\W\d_]+", said)]
    begin, last = 0, ""  # where the number in hand begins, and its last word
    seen: dict[str, int] = {}  # its multipliers, with the place after the last one of each
    linked = False
    ends: list[tuple[int, int]] = []
    for at, (_, _, word) in enumerate(words):
        if word == "and":
            linked = True
            continue
        if last and not _continues(last, word, linked):
            ends.append((begin, at - linked))
            begin, seen = at, {}
        elif word in seen and last != word and (word != "hundred" or seen[word] == max(seen.values())):
            cut = seen[word]  # the number after the first hundred or million is another one
            ends.append((begin, cut))
            begin = cut + (words[cut][2] == "and")
            seen = {name: place for name, place in seen.items() if place > begin}
        if word in MULTIPLIERS:
            seen[word] = at + 1
        last, linked = word, False
    for first, end in [*ends, (begin, len(words))]:
        number = words[first:end]
        yield number[0][0], number[-1][1], _value([word for _, _, word in number])


def _continues(last: str, word: str, linked: bool) -> bool:
    """Return whether a word goes on with the number that ends in `last`; `linked` by "and"."""
    if word in MULTIPLIERS:
        return not linked and (last not in MULTIPLIERS or 1e3 <= MULTIPLIERS[word] >= MULTIPLIERS[last])
    if last in MULTIPLIERS:
        return last != "dozen"
    return not linked and last in TENS and 0 < SMALL.get(word, 0) < 10


def _value(words: Sequence[str]) -> float:
    """Return the value of the words of one number."""
    total = current = 0.0
    for word in words:
        worth = MULTIPLIERS.get(word)
        if worth is None:
            current += SMALL.get(word, 0) + TENS.get(word, 0)
        elif worth < 1e3:
            current = max(current, 1.0) * worth
        elif total and not current:
            total *= worth
        else:
            below = total % worth  # two thousand five hundred million
            total, current = total - below + max(below + current, 1.0) * worth, 0.0
    return total + current


@cache
def _core() -> Any:
    words = "|".join([*SMALL, *TENS])
    scales = "|".join(MULTIPLIERS)
    return compiled(
        rf"""(?V1ix)
        (?<!{PART}|\d[.,:])
        (?:(?P<digits>\d{{1,3}}(?:[\ \u00a0\u202f\u2009'’]\d{{3}})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,:]\d+)*)
          |(?:(?:{words})|(?<=\ba\s)(?:{scales}))(?:(?:\s|-|\sand\s)(?:{words}|{scales})(?!{SPACED}))*(?!{SPACED}))
        """
    )


@cache
def _before() -> Any:
    marks = r"(?:US\$|[$€£¥₹]|(?<!{SPACED})(?:USD|EUR|GBP|JPY|INR))\s?"
    about = "|".join(sorted(ABOUT))
    # Matches backwards from the number.
    return compiled(
        rf"(?V1ir)(?:(?<!{SPACED})(?P<about>{about})\s+)?(?P<minus>(?<!{PART})[-−])?(?P<money>{marks})?"
    )


@cache
def _after() -> Any:
    scales = "|".join([*MULTIPLIERS, *sorted(ABBREVIATED, key=len, reverse=True)])
    units = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
    gap = r"[\s\u00a0-]?"
    return compiled(
        rf"(?V1i)(?:st|nd|rd|th)?(?:{gap}(?P<scale>{scales})(?!{SPACED}))?"
        rf"(?:{gap}(?P<unit>{units})(?!{PART}))?(?P<glued>\p{{Latin}})?"
    )


def dates_and_numbers(text: str) -> tuple[tuple[Date, ...], tuple[Quantity, ...]]:
    """Return the dates of `text`, and its numbers that are not dates."""
    found = tuple(dates(text))
    return found, tuple(quantities(text, [date.span for date in found]))


# --- names and quotations -------------------------------------------------------------------------

MOST_CAPITALS = 0.85  # share of content words; with more, as in headings, capitals carry no information
MOST_INITIALS = 8
LEAST_QUOTED = 2  # words; a single quoted word is usually emphasis
DATED = frozenset((*WEEKDAYS, *(month for month in MONTHS if month not in AMBIGUOUS)))
_LINKS = "of the de la le du da di del van von der den bin al el y e und and for"
LINKS = frozenset(_LINKS.split())


def names_of(wording: Wording, sentences: tuple[Run, ...]) -> list[Run]:
    """Return the names in a text as runs of words: capitalized ones and links (Bank *of* England).

    A single capitalized word that starts a sentence or a quotation is no name, unless it is all capitals. A
    text that is mostly capitals, or has none, has no names.
    """
    written = [wording.text[start:end] for start, end in wording.places]
    # Weekdays and months are dates, not names.
    capital = [
        word[0].isupper() and form not in DATED for word, form in zip(written, wording.forms, strict=True)
    ]
    told = [capital[at] for at in wording.content]
    if len(told) > 3 and sum(told) > MOST_CAPITALS * len(told):
        return []
    starts = {first for first, _ in sentences}
    common = wording.common
    found: list[Run] = []
    at = 0
    while at < len(written):
        if not capital[at]:
            at += 1
            continue
        last = _end(wording, written, capital, at)
        first = at
        if _begins(wording, at, starts) and wording.forms[first] in common:
            first += 1  # "The Great Outdoors"
        while first < last and wording.forms[first] in LINKS:
            first += 1
        if first < last and not _is_plain(wording, written, first, last, starts):
            found.append((first, last))
        at = max(last, at + 1)
    return found


def quoted(wording: Wording) -> list[Run]:
    """Return the texts in quotation marks of at least `LEAST_QUOTED` words, as runs of words."""
    from bisect import bisect_left

    starts = [start for start, _ in wording.places]
    found = []
    for match in _quotations().finditer(wording.text):
        inner = next(number for number in range(1, 7) if match[number] is not None)
        first, last = (bisect_left(starts, at) for at in match.span(inner))
        if last - first >= LEAST_QUOTED:
            found.append((first, last))
    return found


def initials(wording: Wording) -> Iterator[str]:
    """Yield the initials of runs of capitalized words, such as *un* for United Nations."""
    letters = ""
    ended = -1
    for word, (start, end) in zip(wording.forms, wording.places, strict=True):
        first = wording.text[start]
        if ended >= 0 and wording.text[ended:start].strip():
            letters = ""
        if first.isupper():
            letters = (letters + word[0])[: MOST_INITIALS + 1]
            if 1 < len(letters) <= MOST_INITIALS:
                yield letters
        elif word not in LINKS:
            letters = ""
        ended = end


def _end(wording: Wording, written: list[str], capital: list[bool], at: int) -> int:
    """Return the index after the run of capitalized words that begins at `at`."""
    last = at + 1
    while last < len(written):
        between = wording.text[wording.places[last - 1][1] : wording.places[last][0]]
        if between.strip(" -'’.&") or (between.startswith(".") and len(written[last - 1]) > 2):
            break
        if capital[last]:
            last += 1
        elif between == " " and wording.forms[last] in LINKS and _linked(wording, capital, last):
            last += 2
        else:
            break
    if written[last - 1] in ("s", "S") and last - at > 1:
        last -= 1
    return last


def _linked(wording: Wording, capital: list[bool], at: int) -> bool:
    """Return whether a capitalized word follows a linking word, separated by one space."""
    return (
        at + 1 < len(capital)
        and capital[at + 1]
        and wording.text[wording.places[at][1] : wording.places[at + 1][0]] == " "
        and wording.forms[at] not in ("and", "und", "y", "e", "for")
    )


def _begins(wording: Wording, at: int, starts: set[int]) -> bool:
    """Return whether a word may begin a sentence: also after a colon, a quotation mark or a bullet."""
    if at in starts or at == 0:
        return True
    before = wording.text[wording.places[at - 1][1] : wording.places[at][0]]
    return bool(before.strip(" ,-'’&/()"))


def _is_plain(wording: Wording, written: list[str], first: int, last: int, starts: set[int]) -> bool:
    """Return whether a run is no name: a common word, a letter, or one word at the start of a sentence."""
    if last - first > 1:
        return False
    word = written[first]
    if wording.forms[first] in wording.common or len(word) == 1:
        return True
    return _begins(wording, first, starts) and not (word.isupper() and len(word) > 1)


@cache
def _quotations() -> Any:
    return compiled(
        r'"([^"\n]+)"|“([^“”\n]+)”|„([^“”„\n]+)[“”]|«([^«»\n]+)»|「([^「」\n]+)」|(?<!\w)[‘\']([^‘’\'\n]+(?:\w[’\']\w[^‘’\'\n]*)*)[’\'](?!\w)'
    )
