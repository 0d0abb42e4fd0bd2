"""The numbers of a text with their units, read as what they mean: twelve is 12, 2 km are 2000 m."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from magistrate._deadline import checked
from magistrate.features.dates import Date, dates
from magistrate.features.words import PART, SPACED, compiled
from magistrate.types import Span

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

# For each measure its units, and how much of the measure's first unit one of them is.
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


LOOSE = 0.05  # how far "about 2,000" may be from what is meant, as a share
REACH = 0.06  # a share within which everything lies that a rough number can mean
MOST_DIGITS = 300  # more are no amount, and compared digit by digit
SAME = 1e-9  # as a share: what only arithmetic has moved
BEFORE = 24  # characters before a number that may belong to it
NO_SPACES = {ord(space): None for space in " \u00a0\u202f\u2009'’"}


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number where it stands.

    `value` is as it is written, scales such as *million* taken in; `measure` and `worth` say what one of its
    unit is, None and 1 where no known unit stands there. `grain` is how much the last written digit weighs,
    0 where the number is meant exactly; `about` says that a word before it makes it a rough one. `code` is
    what is compared letter for letter: times, and versions.
    """

    span: Span
    value: float
    measure: str | None = None
    worth: float = 1.0
    grain: float = 0.0
    about: bool = False
    code: str | None = None

    def said_by(self, other: Quantity) -> bool:
        """Whether `other`, of a source, says this number; one without a unit goes with any."""
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
    """The numbers that sources say, so kept that asking for one takes no look at all of them."""

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
        """Whether one of them is this number."""
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
    """The numbers of `text` in their order, those that begin in a `taken` span (a date's) left out.

    Digits of every script; number words, scales and units are those of English and the usual signs. *One* is
    a number only before a scale or a unit. `taken` must be in order.
    """
    starts = [span.start for span in taken]

    def free(at: int) -> bool:
        before = bisect_right(starts, at) - 1
        return before < 0 or taken[before].end <= at

    return [each for each in _numbers(text) if free(each.span.start)]


def _numbers(text: str) -> Iterator[Quantity]:
    for found in checked(_core().finditer(text)):
        start, end = found.span()
        digits = found["digits"]
        if digits is not None and (":" in digits or len(digits) > MOST_DIGITS or _is_version(digits)):
            yield Quantity(Span(start, end), 0.0, code=digits)
            continue
        value, grain = (_spelled(found[0]), 1.0) if digits is None else _digits(digits)
        before, after = _before().match(text, max(0, start - BEFORE), start), _after().match(text, end)
        scale, word, ended = _scale_and_unit(after, before["money"], end)
        measure, worth = UNITS.get(word, (None, 1.0))
        if digits is None and value == 1 and measure is None and scale == 1:
            continue  # a pronoun more often than a number
        if digits is not None and ended == end and after["glued"]:
            continue  # a word such as 3D
        if before["money"]:
            start -= len(before["money"])
        yield Quantity(
            Span(start, ended),
            (-1 if before["minus"] and value else 1) * value * scale,
            measure,
            worth,
            grain * scale if scale != 1 else 0.0,
            (before["about"] or "").lower() in ABOUT,
        )


def _scale_and_unit(after: Any, money: str | None, end: int) -> tuple[float, str, int]:
    """What the number is multiplied with, its unit, and where both end."""
    scale, unit = (after["scale"] or "").lower(), (after["unit"] or "").lower()
    touches = after.start("scale") == end
    if scale in ABBREVIATED and not money and (scale == "m" or not touches):
        # Letters are scales where they touch a number, and m is metres unless it is money.
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
    """The value of digits with their marks, and what the last of them weighs."""
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


def _spelled(words: str) -> float:
    """The value of number words such as `two hundred and five`."""
    total = current = 0.0
    for word in words.lower().replace("-", " ").split():
        if word in MULTIPLIERS and MULTIPLIERS[word] < 1e3:
            current = max(current, 1.0) * MULTIPLIERS[word]
        elif word in MULTIPLIERS:
            total, current = total + max(current, 1.0) * MULTIPLIERS[word], 0.0
        else:
            current += SMALL.get(word, 0) + TENS.get(word, 0)
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
    # Read backwards, from the number on.
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
    """The dates of `text`, and its numbers that are no dates."""
    found = tuple(dates(text))
    return found, tuple(quantities(text, [date.span for date in found]))
