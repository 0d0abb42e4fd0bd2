"""Dates, times of day, money, shares and large numbers, whatever form a text writes them in."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
NUMBERS = {name[:3]: number for number, name in enumerate(MONTHS, 1)}
MONTH = rf"(?:{'|'.join(MONTHS)}|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b\.?)"
DAY = r"(?:0?[1-9]|[12]\d|3[01])"
YEAR = r"(?:1\d|20)\d\d"
HALF = r"[aApP](?:[mM]\b|\.[mM]\.(?=\s[a-z(]|[,;:)])|\.[mM](?=\.))"  # the last point may end the sentence
DATED = re.compile(rf"(.+) {YEAR}")
BEGIN, END = r"(?<![\w.,:/-])", r"(?![\w/-]|[.,:]\d)"
AMOUNT = r"\d{1,3}(?:,\d{3}){1,3}(?:\.\d+)?|\d+(?:\.\d+)?"
SCALES = {"k": "thousand", "m": "million", "mn": "million", "bn": "billion", "b": "billion"}
SCALE = r"(?:\s?(?:[kmMbB]|[mb]n)\b|\s(?:thousand|million|billion|trillion)\b)?"
MONEY = {"€": "euros", "EUR": "euros", "$": "dollars", "US$": "dollars", "USD": "dollars", "£": "pounds"}
MONEY |= {"GBP": "pounds", "CHF": "francs"}
LEAST_YEAR, LAST_YEAR = 1000, 2099
DIGIT = re.compile("[0-9]")
PATTERN = re.compile(
    rf"""(?x)
    {BEGIN}(?P<iso>({YEAR})([-/])(0[1-9]|1[0-2])\3(0[1-9]|[12]\d|3[01])(?=T\d\d:|{END}))
    | {BEGIN}(?P<digits>({DAY})([./-])({DAY})\8({YEAR}){END})
    | {BEGIN}(?P<day_first>({DAY})(?:st|nd|rd|th)?\ (?:of\ )?({MONTH})(?:,?\ ({YEAR}){END}|(?!\w)))
    | {BEGIN}(?P<month_first>({MONTH})\ (?:the\ )?({DAY})
        (?:(?:st|nd|rd|th)?,?\ ({YEAR}){END}|(?:st|nd|rd|th)\b|(?![\w/-]|[.:]\d)))
    | {BEGIN}(?P<half>(1[0-2]|0?[1-9])(?:[.:]([0-5]\d))?\s?({HALF}))
    | (?:{BEGIN}|(?<=\d[-–]))(?P<clock>(1[3-9]|2[0-3]|0\d):([0-5]\d)(?![\w:]|\.\d|\s?[aApP]\.?[mM]\b))
    | (?<![\w$])(?P<money_first>(US\$|[$€£]|(?:EUR|USD|GBP|CHF)\ )({AMOUNT})({SCALE}))(?![\d]|[.,]\d)
    | {BEGIN}(?P<money_last>({AMOUNT})({SCALE})\ ?([€£]|(?:EUR|USD|GBP|CHF|euros|dollars|pounds|francs)\b))
    | {BEGIN}(?P<share>({AMOUNT})(?:\ ?%|\ percent\b|\ per\ cent\b))
    | {BEGIN}(?P<number>([1-9]\d{{3,11}}|\d{{1,3}}(?:,\d{{3}}){{1,3}})(?![\w/:-]|[.,]\d{{3}}))
    """
)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A text with parts rewritten: where each begins in `text`, its length there, and its place before."""

    text: str
    begins: tuple[int, ...] = ()
    parts: tuple[tuple[int, int, int], ...] = ()

    def original(self, start: int, end: int) -> tuple[int, int]:
        """Return where the characters `[start, end)` of `text` were before: a rewritten part counts whole."""
        first, last = bisect_right(self.begins, start) - 1, bisect_right(self.begins, end - 1) - 1
        if first >= 0:
            length, before, after = self.parts[first]
            inside = start - self.begins[first]
            start = before if inside < length else after + inside - length
        if last >= 0:
            length, _, after = self.parts[last]
            end = after + max(0, end - self.begins[last] - length)
        return start, end


def rewritten(text: str, known: Mapping[str, Mapping[str, None]]) -> Rewritten:
    """Return a text with its dates, times, money, shares and numbers written as in other texts.

    `known` are the other texts' `writings`. What they do not have at all stays as it is, and so does what
    they have in the same form too, also as a part of it: *March 17* of *March 17, 2026*.

    >>> rewritten("Due March 17th at 5:30 pm.", writings(["by 2026-03-17, 17:30"])).text
    'Due 2026-03-17 at 17:30.'
    >>> rewritten("Due March 18th.", writings(["by 2026-03-17"])).text
    'Due March 18th.'
    """
    pieces, begins, parts, at, length = list[str](), list[int](), list[tuple[int, int, int]](), 0, 0
    for start, end, form in forms(text) if known else ():
        others = known.get(form)
        if others is None or any(text[start:end] in each for each in others):
            continue
        written = next(iter(others))
        pieces += (text[at:start], written)
        begins.append(length + start - at)
        parts.append((len(written), start, end))
        length = begins[-1] + len(written)
        at = end
    return Rewritten("".join((*pieces, text[at:])), tuple(begins), tuple(parts)) if parts else Rewritten(text)


def writings(texts: Iterable[str]) -> Mapping[str, Mapping[str, None]]:
    """Return how texts write each date, time, amount of money, share and large number, by its form.

    A date with a year is one without a year, too.
    """
    found: dict[str, dict[str, None]] = {}
    without: dict[str, dict[str, None]] = {}
    for text in texts:
        for start, end, form in forms(text):
            found.setdefault(form, {})[text[start:end]] = None
            if (date := DATED.fullmatch(form)) is not None:
                without.setdefault(date[1], {})[text[start:end]] = None
    return {**without, **found}


def forms(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the place `[start, end)` and the form of each date, time, share, amount of money, large number.

    The form is the same for all ways to write it: `14 March 2026`, `5:30 pm`, `4.2 billion dollars`, `20%`,
    `12,500`. Digits that could be two dates have none, nor has a time that may be before or after noon.

    >>> [form for *_, form in forms("On 2026-03-14 at 17:30, due March 17th; $5m, 20 percent, 12500 people")]
    ['14 March 2026', '5:30 pm', '17 March', '5 million dollars', '20%', '12,500']
    >>> list(forms("03/04/2026 at 5:30, in 2024"))
    []
    """
    if DIGIT.search(text) is not None:
        for found in PATTERN.finditer(text):
            if (form := _form(found)) is not None:
                yield *found.span(), form


def _form(found: re.Match[str]) -> str | None:
    """Return the form of what was found; None if it could mean two things."""
    kind = found.lastgroup
    match kind, [each for each in found.groups()[found.re.groupindex[kind or "iso"] :] if each]:
        case "iso", (year, _, month, day):
            return _date(day, int(month), year)
        case "digits", (one, mark, other, year):
            day_first, month_first = int(other) <= 12, int(one) <= 12 and mark != "."
            if day_first == month_first and one != other:
                return None
            return _date(one, int(other), year) if day_first else _date(other, int(one), year)
        case "day_first", (day, month, *year):
            return _date(day, NUMBERS[month[:3]], *year)
        case "month_first", (month, day, *year):
            return _date(day, NUMBERS[month[:3]], *year)
        case "half", (hour, *minutes, half):
            return _time(int(hour) % 12 + 12 * (half[0] in "pP"), *minutes)
        case "clock", (hour, minutes):
            return _time(int(hour), minutes)
        case "money_first", (unit, amount, *scale):
            return _money(amount, unit, *scale)
        case "money_last", (amount, *scale, unit):
            return _money(amount, unit, *scale)
        case "share", (amount,):
            return f"{amount}%"
        case "number", (digits,) if "," in digits or not LEAST_YEAR <= int(digits) <= LAST_YEAR:
            return f"{int(digits.replace(',', '')):,}"
    return None


def _date(day: str, month: int, year: str = "") -> str:
    return f"{int(day)} {MONTHS[month - 1]} {year}".rstrip()


def _time(hour: int, minutes: str = "00") -> str:
    if minutes == "00" and hour % 12 == 0:
        return "noon" if hour else "midnight"
    return f"{hour % 12 or 12}{f':{minutes}' if minutes != '00' else ''} {'pm' if hour >= 12 else 'am'}"


def _money(amount: str, unit: str, scale: str = "") -> str:
    scale, unit = scale.strip(), unit.strip()
    return " ".join(filter(None, (amount, SCALES.get(scale.lower(), scale), MONEY.get(unit, unit))))
