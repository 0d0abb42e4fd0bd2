"""Extract the numbers and dates of a text, and look them up in sources."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import filterfalse
from math import isfinite
from typing import Any

from magistrate._work import checked
from magistrate.features.words import PART, SPACED, Wording, compiled, worded
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


DAYS = frozenset((*MONTHS, *WEEKDAYS, *(f"{day}s" for day in WEEKDAYS)))  # words that a date may begin with
DATED = re.compile(  # how a date of digits begins
    r"(?:1\d|20)\d\d|\d\d?[./-]\d|[0-3]?\d[^\W\d_]{0,2}\s(?:[oO][fF]\s)?(?i:ja|fe|ma|ap|ju|au|se|oc|no|de)"
)

Start = tuple[int, str]
"""Where a date or a number may begin, and the word there; an empty word may be any."""


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
    said = worded(text)
    return list(_dates(said, _starts(said)))


def _dates(wording: Wording, starts: Sequence[Start]) -> Iterator[Date]:
    text, end = wording.text, 0
    for start, form in checked(starts):
        if start < end:
            continue
        if DATED.match(text, start) is None if text[start].isdecimal() else form not in DAYS and form:
            continue
        found = _pattern().match(text, start)
        if found is None:
            continue
        end = found.end()
        span = Span(*found.span())
        weekday, decade, year, number, month, day = found.group(
            "weekday", "decade", "year", "number", "month", "day"
        )
        if weekday:
            yield Date(span, weekday=WEEKDAYS[weekday.lower()])
        elif decade:
            yield Date(span, decade=int(decade))
        elif number or month:
            if month in ("may", "march") and not year:
                continue  # "30 may leave"
            yield Date(
                span,
                int(year) if year else None,
                int(number) if number else MONTHS[month.lower().rstrip(".")],
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
        (?P<year>{year})-(?P<number>0[1-9]|1[0-2])(?:-(?P<day>[0-2]\d|3[01]))?{end}
        |\d\d?[./-]\d\d?[./-](?P<year>{year}){end}
        |(?P<day>[0-3]?\d){ordinal}\s(?:of\s)?(?P<month>{months})(?:,?\s(?P<year>{year}){end})?
        |(?P<month>{months})\s(?:(?:the\s)?(?P<day>[0-3]?\d){ordinal}{end}(?:,?\s(?P<year>{year}){end})?|(?P<year>{year}){end})
        |(?P<weekday>{"|".join(WEEKDAYS)})s?{end}
        |(?P<decade>(?:1\d|20)\d0)['’]?s{end}
        )
        |(?:(?<=(?<!\d)\d{{4}}[-–/])|(?<!{PART}|\d[.,:/-]))(?:
        (?P<month>(?i:{alone})|(?<=\b(?:[Ii]n|[Ss]ince|[Uu]ntil|[Bb]y|[Ll]ast|[Nn]ext|[Ll]ate|[Ee]arly|[Mm]id)\s)(?:May|March|Jan|Feb|Mar|Apr|Aug|Sept|Sep|Oct|Nov|Dec))\b
        |(?<![$€£¥₹]\s?)(?P<year>{year}){end}(?!\s?(?:%|percent|km|kg|miles|people|million|billion|thousand|dollars|euros|hours|feet|meters|metres|men|women)\b|\s?%))
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

# The units of each measure, with their size in the measure's first unit; `_` is a space or a hyphen.
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
    "area": {
        "m² m2 sqm square_meter square_meters square_metre square_metres": 1,
        "km² km2 square_kilometer square_kilometers square_kilometre square_kilometres": 1e6,
        "ha hectare hectares": 1e4,
        "sq_ft square_foot square_feet": 0.09290304,
        "acre acres": 4046.8564224,
        "square_mile square_miles": 2589988.110336,
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
        "fortnight fortnights": 1209600,
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
        "dl deciliter deciliters decilitre decilitres": 1e-1,
        "cl centiliter centiliters centilitre centilitres": 1e-2,
        "ml milliliter milliliters millilitre millilitres": 1e-3,
        "m³ m3 cubic_meter cubic_meters cubic_metre cubic_metres": 1e3,
        "gallon gallons": 3.785411784,
    },
    "pints": {"pint pints": 1},  # how large one is depends on the country
    "speed": {
        "m/s": 1,
        "km/h kph kilometers_per_hour kilometres_per_hour": 1 / 3.6,
        "mph miles_per_hour": 0.44704,
        "knot knots": 1852 / 3600,
    },
    "energy": {"wh": 1, "kwh kilowatt_hour kilowatt_hours": 1e3, "mwh": 1e6, "gwh": 1e9},
    "data": {
        "byte bytes": 1,
        "kb kilobyte kilobytes": 1e3,
        "mb megabyte megabytes": 1e6,
        "gb gigabyte gigabytes": 1e9,
        "tb terabyte terabytes": 1e12,
    },
    "frequency": {"hz hertz": 1, "khz": 1e3, "mhz": 1e6, "ghz": 1e9},
    "power": {"w watt watts": 1, "kw kilowatt kilowatts": 1e3, "mw megawatt megawatts": 1e6, "gw": 1e9},
    "share": {"% percent pct": 1},
    "celsius": {"°c celsius": 1},
    "fahrenheit": {"°f fahrenheit": 1},
    "usd": {"$ us$ usd dollar dollars": 1, "cent cents ¢": 1e-2},
    "eur": {"€ eur euro euros": 1},
    "gbp": {"£ gbp sterling": 1},
    "chf": {"chf franc francs": 1},
    "jpy": {"¥ jpy yen": 1},
    "inr": {"₹ inr rupee rupees": 1},
}
UNITS: Mapping[str, tuple[str, float]] = {
    name.replace("_", " "): (measure, float(worth))
    for measure, units in _MEASURES.items()
    for names, worth in units.items()
    for name in names.split()
}
FRACTIONS: Mapping[str, float] = {
    "half": 1 / 2,
    "quarter": 1 / 4,
    "third": 1 / 3,
    "two thirds": 2 / 3,
    "three quarters": 3 / 4,
    "½": 1 / 2,
    "¼": 1 / 4,
    "¾": 3 / 4,
    "⅓": 1 / 3,
    "⅔": 2 / 3,
}
CLOCK = "clock"  # the measure of times of day, in minutes from midnight or noon
HALF_DAY = 12 * 60
NAMED_TIMES: Mapping[str, str] = {"noon": "p", "midday": "p", "midnight": "a"}
DAY_PARTS: Mapping[str, str] = {"a": "a", "p": "p", "morning": "a", "afternoon": "p", "evening": "p"}
# What a fraction with its unit may begin with.
FRACTION_WORDS = frozenset(("half", "quarter", "third", "two", "three", "fortnight"))

# What must follow if one of these words begins a fraction.
THEN: Mapping[str, str] = {"two": "thirds", "three": "quarters", "third": "of"}

LOOSE = 0.05  # relative tolerance of a number such as "about 2,000"
REACH = 0.06  # relative range that covers all values a rough number can mean
MOST_DIGITS = 300  # longer digit strings are compared as text
SAME = 1e-9  # relative rounding error
EXACT = 9  # digits in which amounts of different units are equal
LEAST_WRITTEN, MOST_WRITTEN, DECIMALS = 0.1, 1e4, 2  # numbers that can be written instead of others
BEFORE = 24  # characters before a number that are searched for its sign, currency and "about"
SIGNS = "$€£¥₹-−"  # what may stand directly before a number
LEADING = (*ABOUT, *SIGNS, "usd", "eur", "gbp", "jpy", "inr")  # and what may stand before a space before it
GAPS, SYMBOLS = "-", "%$€£¥₹°¢"  # what may stand between a number and its unit, and what may begin a unit
FOLLOWING = frozenset(  # words that may follow a number
    word
    for name in (*MULTIPLIERS, *ABBREVIATED, *UNITS, "us", "and")
    for word in re.findall(r"[^\W\d_]+", name)
)
LETTERS = re.compile(r"[^\W\d_]+")
NOTHING: Mapping[str, None] = {"about": None, "minus": None, "money": None}
COUNTS = frozenset((*SMALL, *TENS, *MULTIPLIERS))  # words that a spelled number may begin with
LEADS = DAYS | COUNTS | FRACTION_WORDS | NAMED_TIMES.keys()
DIGITS = re.compile(
    r"\d{1,3}(?:[ \u00a0\u202f\u2009'’]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:(?:[.,:]\d+)+|[½¼¾⅓⅔])?"
)
NO_SPACES = {ord(space): None for space in " \u00a0\u202f\u2009'’"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its position.

    `value` is the written value, including scales such as *million*. `measure` and `worth` are the measure
    and size of its unit, None and 1 without a known unit. `grain` is the value of the last written digit's
    place, 0 if the number is exact. `about` is set if a word before it makes it approximate. `code` is set
    for texts that are compared exactly, such as versions. `half` is "a" for a time of day before noon and "p"
    for one after it, if that is known.
    """

    span: Span
    value: float
    measure: str | None = None
    worth: float = 1.0
    grain: float = 0.0
    about: bool = False
    code: str | None = None
    half: str = ""

    @property
    def amount(self) -> tuple[str, float] | None:
        """Its measure, and how much it is in that measure's first unit; None without a unit or if rough."""
        if self.measure is None or self.about or self.grain or self.code is not None:
            return None
        return self.measure, float(f"{self.value * self.worth:.{EXACT}g}")

    @property
    def hours(self) -> tuple[float, ...]:
        """The bare numbers that may say this time of day: its hour, counted to 12 or to 24."""
        hour, minutes = divmod(self.value, 60)
        if self.measure != CLOCK or minutes:
            return ()
        return hour or 12.0, hour if self.half == "a" else hour + 12

    def said_by(self, other: Quantity) -> bool:
        """Return whether `other`, from a source, matches this number; one without a unit matches any."""
        if self.code is not None or other.code is not None:
            return self.code == other.code
        if CLOCK in (self.measure, other.measure):
            if self.measure == other.measure:
                return self.value == other.value and (
                    self.half == other.half or "" in (self.half, other.half)
                )
            bare = other if self.measure == CLOCK else self
            return bare.measure is None and bare.value in (*self.hours, *other.hours)
        if None in (self.measure, other.measure):
            return self._near(self.value, other.value, self.grain)
        return self.measure == other.measure and self._near(
            self.value * self.worth, other.value * other.worth, self.grain * self.worth
        )

    def _near(self, mine: float, theirs: float, grain: float) -> bool:
        gap = abs(mine - theirs)
        slack = LOOSE if self.about else SAME
        return gap <= max(slack * max(abs(mine), abs(theirs)), min(grain / 2, LOOSE * abs(theirs)))


def in_unit(amount: Quantity, worth: float, written: str) -> str | None:
    """Return an amount in the unit of another one of the same measure, None if no short number says it.

    `worth` is the size of that unit, and `written` ends in its name.

    >>> in_unit(*quantities("three years"), 1, "24 months")
    '36 months'
    """
    value = amount.value * amount.worth / worth
    shown = round(value, DECIMALS)
    if not LEAST_WRITTEN <= shown < MOST_WRITTEN or abs(value - shown) > SAME * value:
        return None
    for begin in re.finditer(r"[^\s-]", written):
        unit = written[begin.start() :]
        if UNITS.get(_named(unit)) == (amount.measure, worth):
            return f"{shown:g} {unit}"
    return None


class Amounts:
    """A sorted index of the numbers in sources, so that a lookup does not scan them all."""

    def __init__(self, said: Iterable[Quantity]) -> None:
        self._codes: set[str | None] = set()
        by_measure: dict[str | None, dict[tuple[float, float, str], Quantity]] = {}
        plain: dict[tuple[float, float, str], Quantity] = {}
        for each in said:
            if each.code is not None:
                self._codes.add(each.code)
                continue
            same = by_measure.setdefault(each.measure, {})
            same.setdefault((each.value * each.worth, each.grain, each.half), each)
            for value in each.hours if each.measure == CLOCK else (each.value,):
                plain.setdefault((value, each.grain, each.half), each)
        self._by_measure = {measure: _ordered(found) for measure, found in by_measure.items()}
        self._plain = _ordered(plain)

    def say(self, number: Quantity, *, alike: bool = False) -> bool:
        """Return whether the sources contain this number.

        A number without a unit stands for one with a unit only in sources that have none of its measure, and
        with `alike` never.
        """
        if number.code is not None:
            return number.code in self._codes
        none: tuple[list[float], list[Quantity]] = ([], [])
        same = self._by_measure.get(number.measure, none)
        if number.measure is None:
            return self._near(number, number.value, same if alike else self._plain)
        bare = self._by_measure.get(None, none)
        if number.measure == CLOCK:
            return self._near(number, number.value, same) or any(
                self._near(number, hour, bare) for hour in number.hours
            )
        if alike or same is not none:
            return self._near(number, number.value * number.worth, same)
        return self._near(number, number.value, bare)

    def _near(self, number: Quantity, value: float, among: tuple[list[float], list[Quantity]]) -> bool:
        loose = REACH if number.about or number.grain else 2 * SAME
        reach = abs(value) * loose
        first, last = bisect_left(among[0], value - reach), bisect_right(among[0], value + reach)
        return any(number.said_by(each) for each in among[1][first:last])


def _ordered(found: Mapping[tuple[float, float, str], Quantity]) -> tuple[list[float], list[Quantity]]:
    keys = sorted(found)
    return [key[0] for key in keys], [found[key] for key in keys]


def quantities(text: str, taken: Sequence[Span] = ()) -> list[Quantity]:
    """Return the numbers of `text` in order, without those that begin in a `taken` span (a date's).

    Digits of every script are read; number words, scales and units are English, plus the usual signs. *One*
    is a number only before a scale or a unit. `taken` must be in order.
    """
    wording = worded(text)
    return _quantities(wording, _starts(wording), taken)


def _quantities(wording: Wording, starts: Sequence[Start], taken: Sequence[Span]) -> list[Quantity]:
    begins = [span.start for span in taken]

    def free(at: int) -> bool:
        before = bisect_right(begins, at) - 1
        return before < 0 or taken[before].end <= at

    return [each for each in _numbers(wording, starts, free) if free(each.span.start)]


def _numbers(wording: Wording, starts: Sequence[Start], free: Callable[[int], bool]) -> Iterator[Quantity]:
    text, end = wording.text, 0
    for start, form in checked(starts):
        if start < end:
            continue
        if not text[start].isdecimal():
            if (found := _named_time(text, start, form)) or (
                form in FRACTION_WORDS and (found := _fraction(text, start, form))
            ):
                end = found.span.end
                yield found
                continue
            if form and form not in COUNTS:
                continue
            if form in SMALL and _is_alone(text, start, start + len(form)):
                end = start + len(form)
                if found := _quantity(text, start, end, float(SMALL[form])):
                    end = found.span.end
                    yield found
                continue
            if (words := _words().match(text, start)) is None:
                continue
            for first, last, value in checked(_spelled(words[0])):
                if start + first >= end and (found := _quantity(text, start + first, start + last, value)):
                    end = found.span.end
                    yield found
            end = max(end, words.end())
        elif start < 2 or text[start - 1] not in ".,:" or not text[start - 2].isdecimal():
            digits = DIGITS.match(text, start)[0]  # type: ignore[index]  # it begins with a digit
            end = start + len(digits)
            if not free(start) and not _is_led(text, start):
                continue
            if (":" in digits or _may_be_time(text, end)) and (found := _time(text, start)):
                end = found.span.end
                yield found
            elif ":" in digits or len(digits) > MOST_DIGITS or _is_version(digits):
                yield Quantity(Span(start, end), 0.0, code=digits)
            elif found := _quantity(text, start, end, *_digits(digits)):
                end = found.span.end
                yield found


def _quantity(text: str, start: int, end: int, value: float, grain: float | None = None) -> Quantity | None:
    """Return the number at `[start, end)` with what stands around it, if it is one; no `grain` for words."""
    is_led, is_followed = _is_led(text, start), _is_followed(text, end)
    if grain is not None and not is_led and not is_followed and isfinite(value):
        return Quantity(Span(start, end), value)
    before = _before().match(text, max(0, start - BEFORE), start) if is_led else NOTHING
    after = _after().match(text, end) if is_followed else None
    if after is not None and after["part"]:
        value += FRACTIONS[_named(after["part"])]
    scale, word, ended = _scale_and_unit(after, before["money"], end)
    if after is not None and after["rest"] and ended == after.end("unit"):
        value, ended = value + FRACTIONS[_named(after["rest"])], after.end("rest")
    measure, worth = UNITS.get(word, (None, 1.0))
    if grain is None and value == 1 and measure is None and scale == 1:
        return None  # a pronoun more often than a number
    if grain is not None and after is not None and ended == end and after["glued"]:
        return None  # a word such as 3D
    if not isfinite(value * scale * worth):
        return Quantity(Span(start, end), 0.0, code=text[start:end].casefold())
    if before["money"]:
        start -= len(before["money"])
    return Quantity(
        Span(start, ended),
        (-1 if before["minus"] and value else 1) * value * scale,
        measure,
        worth,
        (1.0 if grain is None else grain) * scale if scale != 1 else 0.0,
        (before["about"] or "").lower() in ABOUT,
    )


def _fraction(text: str, start: int, form: str) -> Quantity | None:
    """Return the fraction at a word of `FRACTION_WORDS`, if it has a unit: "half an hour"."""
    if form in THEN and _following(text, start + len(form)) != THEN[form]:
        return None
    found, whole = _part_of().match(text, start), 0.0
    if found is None:
        found, whole = _whole_and_part().match(text, max(0, start - BEFORE), start + len(form)), 1.0
    if found is None:
        return None
    unit, value = _named(found["unit"]), whole + (FRACTIONS[_named(found["part"])] if found["part"] else 1.0)
    if unit in UNITS:
        return Quantity(Span(*found.span()), value, *UNITS[unit])
    return Quantity(Span(*found.span()), value * MULTIPLIERS[unit])


def _time(text: str, start: int) -> Quantity | None:
    """Return the time of day that begins at `start`, if one does: "9:30", "9 am", "nine in the morning"."""
    found = _clock().match(text, start)
    if found is None:
        return None
    hour, half = _hour(found["hour"]), DAY_PARTS.get((found["half"] or found["part"] or "").casefold(), "")
    if hour > 24 or (half and hour > 12):
        return None
    half = half or ("p" if 12 < hour < 24 else "")
    return Quantity(Span(*found.span()), 60 * (hour % 12) + int(found["minutes"] or 0), CLOCK, half=half)


def _named_time(text: str, start: int, form: str) -> Quantity | None:
    """Return the time of day at a word, if it is one: "noon", "half past nine", "nine o'clock"."""
    if half := NAMED_TIMES.get(form):
        return Quantity(Span(start, start + len(form)), 0.0, CLOCK, half=half)
    found = _past().match(text, start) if form in ("half", "quarter") else None
    if found is None:
        return _time(text, start) if form in SMALL and _may_be_time(text, start + len(form)) else None
    at = found.start("hour")
    hour = _time(text, at) or Quantity(Span(at, found.end()), 60 * (_hour(found["hour"]) % 12), CLOCK)
    minutes = 60 * FRACTIONS[_named(found["part"])] * (1 if _named(found["way"]) == "past" else -1)
    return replace(hour, span=Span(start, hour.span.end), value=(hour.value + minutes) % HALF_DAY)


def _is_alone(text: str, start: int, end: int) -> bool:
    """Return whether a number word is surely a number of its own: what is around it belongs to none."""
    word = _following(text, end)
    return (
        text[start : end + 1].isascii()
        and not (start > 1 and text[start - 1] in ".,:" and text[start - 2].isdecimal())
        and word.isascii()
        and word not in COUNTS
        and word != "and"
    )


def _following(text: str, end: int) -> str:
    """Return the word that follows one character after `end`, in lower case."""
    word = LETTERS.match(text, end + 1)
    return word[0].lower() if word else ""


def _may_be_time(text: str, end: int) -> bool:
    """Return whether a word that makes a time of day of a number may come after it, such as "am" or "in"."""
    return text[end : end + 2].strip()[:1] in ("a", "p", "o", "i", "A", "P", "O", "I", ".")


def _hour(written: str) -> int:
    return int(written) if written.isdecimal() else SMALL[written.casefold()]


def _named(written: str) -> str:
    """Return a unit or a fraction as the tables name it."""
    return " ".join(written.casefold().replace("-", " ").split())


def _is_led(text: str, start: int) -> bool:
    """Return whether `_before` may find something; it takes longer than all else about a number."""
    before = text[max(0, start - BEFORE) : start]
    if not before[-1:].isspace():
        return before[-1:] in SIGNS
    last = before.split()[-1:]
    return bool(last) and (not last[0].isascii() or last[0].lower().endswith(LEADING))


def _is_followed(text: str, end: int) -> bool:
    """Return whether `_after` may find something."""
    following = text[end : end + 1]
    if following not in GAPS and not following.isspace():
        return following.isalpha() or following in SYMBOLS
    word = LETTERS.match(text, end + 1)
    if word is None:
        return text[end + 1 : end + 2] in SYMBOLS
    return word[0].lower() in FOLLOWING or not word[0].isascii()


def _scale_and_unit(after: Any, money: str | None, end: int) -> tuple[float, str, int]:
    """Return the number's scale, its unit, and the end of both."""
    if after is None:
        return 1.0, (money or "").strip().lower(), end
    if after["part"]:
        end = after.end("part")
    scale, unit = (after["scale"] or "").lower(), _named(after["unit"] or "")
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


@lru_cache(maxsize=1 << 12)
def _digits(written: str) -> tuple[float, float]:
    """Return the value of a number in digits, and the value of its last digit's place."""
    if (part := FRACTIONS.get(written[-1])) is not None:
        return float(written[:-1]) + part, 0.0
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
def _words() -> Any:
    words = "|".join([*SMALL, *TENS])
    scales = "|".join(MULTIPLIERS)
    return compiled(
        rf"""(?V1ix)
        (?<!{PART}|\d[.,:])
        (?:(?:{words})|(?<=\ba\s)(?:{scales}))(?:(?:\s|-|\sand\s)(?:{words}|{scales})(?!{SPACED}))*(?!{SPACED})
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
    gap = r"[\s\u00a0-]?"
    part = r"(?:an?\s|one[\s-])(?P<part>half|quarter)|(?P<part>three[\s-]quarters)"
    return compiled(
        rf"(?V1i)(?:st|nd|rd|th)?(?:\sand\s(?:{part})(?!{PART}))?"
        rf"(?:{gap}(?P<scale>{scales})(?!{SPACED}|[\d²³]|/s\b))?"
        rf"(?:{gap}(?P<unit>{_units()})(?!{PART})(?:\sand\sa\s(?P<rest>half|quarter)(?![\s-]*{PART}))?)?"
        rf"(?P<glued>\p{{Latin}})?"
    )


@cache
def _clock() -> Any:
    hours = "|".join(word for word, value in SMALL.items() if 0 < value < 13)
    half = rf"\s?(?P<half>[ap])(?:\.m\.|m)(?!{PART})"
    part = r"\s(?:in\sthe\s(?P<part>morning|afternoon|evening)|at\s(?P<part>night))"
    after = rf"(?:{half}|\so['’]clock(?:{part})?|{part})(?!{PART})"
    return compiled(
        rf"(?V1i)(?:(?P<hour>\d\d?):(?P<minutes>[0-5]\d)(?!{PART}|[:.,]\d)(?:{after})?"
        rf"|(?P<hour>\d\d?)\.(?P<minutes>[0-5]\d){half}|(?P<hour>\d\d?|{hours}){after})"
    )


@cache
def _past() -> Any:
    hours = "|".join(word for word, value in SMALL.items() if 0 < value < 13)
    return compiled(
        rf"(?V1i)(?P<part>half|quarter)\s(?P<way>past|to)\s(?P<hour>1[0-2]|[1-9]|{hours})(?!{PART}|[:.,]\d)"
    )


@cache
def _part_of() -> Any:
    some = r"(?P<part>half|quarter|three[\s-]quarters)(?:[\s-]|\s(?:of\s)?(?:an?|one)\s)"
    thirds = r"(?P<part>third|two[\s-]thirds)\sof\s(?:an?|one)\s"  # "the third day" is none
    whole = "|".join((_units(), *MULTIPLIERS))
    return compiled(rf"(?V1i)(?:(?:{some}|{thirds})(?P<unit>{whole})|(?P<unit>fortnight))(?!{PART})")


@cache
def _whole_and_part() -> Any:
    return compiled(  # matches backwards from the end of the fraction
        rf"(?V1ir)(?<!{SPACED})(?:an?|one)\s(?P<unit>{_units()})\sand\sa\s(?P<part>half|quarter)"
    )


def _units() -> str:
    names = sorted(map(re.escape, UNITS), key=len, reverse=True)
    return "|".join(name.replace("\\ ", r"[\s-]") for name in names)


def dates_and_numbers(wording: Wording) -> tuple[tuple[Date, ...], tuple[Quantity, ...]]:
    """Return the dates of a text, and its numbers that are not dates."""
    starts = _starts(wording)
    found = tuple(_dates(wording, starts))
    return found, tuple(_quantities(wording, starts, [date.span for date in found]))


# --- where to look --------------------------------------------------------------------------------


def _starts(wording: Wording) -> list[Start]:
    """Return where a date or a number can begin: only there are the patterns tried, since they are slow.

    That is at words with a digit or in `DAYS` or `COUNTS`, and at characters after a combining mark.
    """
    text, forms = wording.text, wording.forms
    found: list[Start] = []
    known = set(forms)
    unusual = LEADS.intersection(known)
    unusual |= {*filterfalse(str.isalpha, known), *filterfalse(str.isascii, known)}
    odd = [at for at, form in enumerate(forms) if form in unusual]
    for at in checked(odd):
        form, start, end = forms[at], wording.starts[at], wording.ends[at]
        if form in LEADS:
            found.append((start, form))
            continue
        if form[:1].isascii() or text[start].isdecimal():
            found.append((start, ""))
        if not text[start:end].isalnum():
            found += [(at + 1, "") for at in range(start, end - 1) if not text[at].isalnum()]
    return found
