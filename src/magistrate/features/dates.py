"""The dates of a text: days, months, years, decades, weekdays; in English words or in digits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from magistrate._deadline import checked
from magistrate.features.words import PART, compiled
from magistrate.types import Span

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
AMBIGUOUS = ("may", "march", *SHORT)  # months only beside a day or a year, or behind "in" and the like


@dataclass(frozen=True, slots=True)
class Date:
    """A date where it stands, with what of it is said; `decade` holds the first year of one."""

    span: Span
    year: int | None = None
    month: int | None = None
    day: int | None = None
    weekday: int | None = None
    decade: int | None = None

    @property
    def is_year(self) -> bool:
        """Whether it is a year and nothing else."""
        return self.year is not None and self.month is None


class Calendar:
    """The dates that sources say, one of them all of a date, or all but a year that another says."""

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
        """Whether all of a date is said."""
        if date.weekday is not None:
            return date.weekday in self._weekdays
        if date.decade is not None:
            return date.decade in self._decades
        if (date.year, date.month, date.day) in self._days:
            return True
        return (date.month, date.day) in self._without_year and date.year in self._years


def dates(text: str) -> list[Date]:
    """The dates of `text` in their order.

    A bare number of four digits from 1000 to 2099 is a year unless a unit, money or a percent sign is beside
    it. Of `2/6/2017` the year alone is read, since the order of the others differs between countries.
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
