"""Cut samples into a detector's windows: sentences of the context with a part of the output.

Dates, times, amounts of money and numbers of the output are read in the form that the context writes them in,
and its amounts can be read in the context's units.
"""

from __future__ import annotations

import heapq
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from magistrate._work import checked, once
from magistrate.errors import ModelError, SpecError
from magistrate.features.prepared import prepared
from magistrate.features.splitting import lines, sentences
from magistrate.types import Sample

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LEAST_WINDOW = 128  # tokens, at least
INPUT_TOKENS = 48  # tokens of the input, at most; its end is kept, as it directly precedes the output
OUTPUT_TOKENS = 128  # tokens of the output per window, at most, and never more than half a window
DAMPING = 8  # added to a sentence's length, so that very short ones do not come first
MARKS = (
    ("[CLS]", "[SEP]"),
    ("<s>", "</s>"),
)  # tokens that start a window and end a text: of BERT, of MPNet
SIDES = 2  # token types: context, and input with output


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the output: tokens `[begin, end)` of the window, characters `[start, stop)`."""

    begin: int
    end: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Window:
    """One input of the network: `[CLS] context [SEP] input [SEP] output [SEP]`, or without `input [SEP]`.

    `ids` are token ids; from index `second` on they have the second token type. The output's tokens are
    `[begin, end)`. `places` are their half-open character offsets in the sample's output, empty for a token
    of only white space. `passages` are the chosen parts of the context, in order.
    """

    ids: tuple[int, ...]
    second: int
    begin: int
    end: int
    places: tuple[tuple[int, int], ...]
    sentences: tuple[Sentence, ...]
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """Characters `[start, end)` of the context number `index`; `begin` is its first token in the window."""

    index: int
    start: int
    end: int
    begin: int


class _Piece(NamedTuple):
    """A sentence or line of the context: its position, its tokens, and its words in lower case."""

    number: int
    start: int
    end: int
    ids: tuple[int, ...]
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """The text an output is compared with: its input's tokens, and the pieces of its context.

    `writings` are the forms in which the context writes dates, times, amounts of money and numbers.
    """

    asked: tuple[int, ...]
    pieces: tuple[_Piece, ...]
    weights: Mapping[int, float]
    writings: Mapping[str, Mapping[str, None]]


class Reader:
    """Cuts samples into windows of at most `window` tokens.

    An output that does not fit is cut between sentences. A context that does not fit is reduced, for each
    part of the output, to the sentences that share the rarest words with it, in their original order. So
    every token of the output is read once, and the time grows with the output, not with the context. Text
    that spells a special token of the tokenizer is read as text. Raises `SpecError` for a window that is
    too small, `ModelError` for a tokenizer that has none of the pairs of `MARKS`.
    """

    def __init__(self, tokenizer: Tokenizer, window: int) -> None:
        if window < LEAST_WINDOW:
            raise SpecError(f"a window needs at least {LEAST_WINDOW} tokens, got {window}")
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # read special tokens in a text as text
        self._tokenizer = tokenizer
        self.window = window
        self.longest_output = min(OUTPUT_TOKENS, window // 2 - INPUT_TOKENS // 2)
        for begins, ends in MARKS:
            first, last = map(tokenizer.token_to_id, (begins, ends))
            if first is not None and last is not None:
                break
        else:
            known = " or ".join(" and ".join(pair) for pair in MARKS)
            raise ModelError(f"the tokenizer of a detector needs the tokens {known}; it lacks one")
        if {first, last}.intersection(self._encode(Rewritten(f"{ends} {begins}{ends} a{ends}")).ids):
            raise ModelError(
                f"the tokenizer treats {begins} and {ends} in a text as its own separators, so one text "
                "could look like two; a detector needs a tokenizer.json that declares them as special tokens"
            )
        self._first, self._last = first, last

    def windows(self, sample: Sample, instead: Sequence[Change] = ()) -> list[Window]:
        """Return the windows of a sample, in the order of its output; empty without a letter or digit.

        The output is read with the changes `instead`, but places are those of its own words.
        """
        said = self._said(sample, instead)
        source = self.source(sample)
        return [self._window(source, said.ids, said.places, part) for part in said.parts]

    def pairs(self, sample: Sample, instead: Sequence[Change] = ()) -> list[Window]:
        """Return a window for each sentence of `windows`, with the passage of the context nearest to it.

        A detector compares two sentences better than it finds one among many, and a question beside them
        distracts it.
        """
        said = self._said(sample, instead)
        source = self.source(sample)
        return [
            self._pair(nearest(source, said.wording(each)), said.ids, said.places, each)
            for part in said.parts
            for each in part
        ]

    def _said(self, sample: Sample, instead: Sequence[Change]) -> _Said:
        """Return the output's tokens with their places, and its sentences in groups that fit a window."""
        output = sample.output or ""
        if not any(map(str.isalnum, output)):
            return _Said("", (), (), (), iter(()))
        changed = changes(output, self.source(sample).writings, instead)
        found = self._encode(rewritten(output, changed))
        places = [_trimmed(output, *each) for each in found.offsets]
        parts = checked(self._parts(output, found.ids, places), 1) if places else iter(())
        return _Said(output, changed, found.ids, places, parts)

    def source(self, sample: Sample) -> Source:
        """Return the text that a sample's output is compared with; encoded once per `scratch`."""
        key = ("encoded", self, sample.sources, sample.input)
        return once(key, lambda: self._source(sample))

    def _source(self, sample: Sample) -> Source:
        asked = self._encode(Rewritten(sample.input)).ids[-INPUT_TOKENS:] if sample.input else []
        read = [
            (number, *line) for number, text in enumerate(sample.sources) for line in checked(lines(text))
        ]
        pieces = tuple(self._pieces(read))
        return Source(tuple(asked), pieces, _weights(pieces), writings(line for *_, line in checked(read)))

    def _window(
        self,
        source: Source,
        ids: Sequence[int],
        places: Sequence[tuple[int, int]],
        part: Sequence[Sentence],
    ) -> Window:
        """Return the window of one part of the output; `part` counts tokens of the whole output."""
        first, last = part[0].begin, part[-1].end
        said = ids[first:last]
        asked = [*source.asked, self._last] if source.asked else []
        room = self.window - len(said) - len(asked) - 3
        read, passages = [self._first], []
        for piece in chosen(source.pieces, said, source.weights, room):
            passages.append(Passage(piece.number, piece.start, piece.end, len(read)))
            read += piece.ids
        read.append(self._last)
        second = len(read)
        read += asked
        begin = len(read)
        shift = begin - first
        return Window(
            ids=(*read, *said, self._last),
            second=second,
            begin=begin,
            end=begin + len(said),
            places=tuple(places[first:last]),
            sentences=tuple(Sentence(s.begin + shift, s.end + shift, s.start, s.stop) for s in part),
            passages=tuple(passages),
        )

    def _pair(
        self, piece: _Piece | None, ids: Sequence[int], places: Sequence[tuple[int, int]], said: Sentence
    ) -> Window:
        """Return the window of one sentence and a passage, which is cut if it does not fit."""
        room = self.window - (said.end - said.begin) - 3
        read = [self._first, *(piece.ids[:room] if piece else ()), self._last]
        begin = len(read)
        end = begin + said.end - said.begin
        return Window(
            ids=(*read, *ids[said.begin : said.end], self._last),
            second=begin,
            begin=begin,
            end=end,
            places=tuple(places[said.begin : said.end]),
            sentences=(Sentence(begin, end, said.start, said.stop),),
            passages=(Passage(piece.number, piece.start, piece.end, 1),) if piece else (),
        )

    def _pieces(self, read: Iterable[tuple[int, int, int, str]]) -> Iterator[_Piece]:
        for number, start, end, line in checked(read):
            ids = self._encode(Rewritten(line)).ids
            if ids:
                yield _Piece(number, start, end, tuple(ids), tuple(line.lower().split()))

    def _parts(
        self, output: str, ids: Sequence[int], places: Sequence[tuple[int, int]]
    ) -> Iterator[list[Sentence]]:
        """Yield the output's sentences in groups that fit; a sentence too long for a window is cut."""
        part: list[Sentence] = []
        used = 0
        for each in _sentences(output, places):
            for begin in range(each.begin, each.end, self.longest_output):
                end = min(begin + self.longest_output, each.end)
                whole = end - begin == each.end - each.begin
                start, stop = (each.start, each.stop) if whole else (places[begin][0], places[end - 1][1])
                if part and used + end - begin > self.longest_output:
                    yield part
                    part, used = [], 0
                part.append(Sentence(begin, end, start, stop))
                used += end - begin
        yield part

    def _encode(self, said: Rewritten) -> _Encoded:
        """Return the tokens of a text, with their places in what it was before it was rewritten."""
        text = said.text.encode("utf-8", "replace").decode()
        found = self._tokenizer.encode(text, add_special_tokens=False)
        offsets = found.offsets  # read once: each access builds a new list
        return _Encoded(found.ids, [said.original(*each) for each in offsets] if said.parts else offsets)


class _Said(NamedTuple):
    """An output, its changes, its tokens with their places, and its sentences in groups."""

    output: str
    changes: Sequence[Change]
    ids: Sequence[int]
    places: Sequence[tuple[int, int]]
    parts: Iterator[list[Sentence]]

    def wording(self, sentence: Sentence) -> str:
        """Return a sentence as it is read."""
        start, stop = sentence.start, sentence.stop
        inside = [
            each._replace(start=each.start - start, end=each.end - start)
            for each in begun(self.changes, start, stop)
            if each.end <= stop
        ]
        return rewritten(self.output[start:stop], inside).text


class _Encoded(NamedTuple):
    """A text's token ids and their character offsets."""

    ids: list[int]
    offsets: list[tuple[int, int]]


def chosen(
    pieces: Sequence[_Piece], output: Sequence[int], weights: Mapping[int, float], room: int
) -> list[_Piece]:
    """Return the pieces that cover an output best, of at most `room` tokens, in their original order.

    Greedy: the best piece is taken first, and the tokens that it covers then count a quarter, so that every
    part of the output finds its own support. Only the first piece taken may be cut.
    """
    if sum(len(piece.ids) for piece in pieces) <= room:
        return list(pieces)
    worth = {token: weights.get(token, 0.0) for token in set(output)}
    shared = [worth.keys() & set(piece.ids) for piece in checked(pieces)]

    def gain(at: int) -> float:
        return sum(worth[token] for token in shared[at]) / math.sqrt(len(pieces[at].ids) + DAMPING)

    # A piece's gain only falls as others are taken, so only the head of the queue needs a new value.
    queue = [(-gain(at), at) for at in range(len(pieces))]
    heapq.heapify(queue)
    taken: dict[int, _Piece] = {}
    while queue and room > 0:
        at = queue[0][1]
        now = (-gain(at), at)
        if now > queue[0]:
            heapq.heapreplace(queue, now)
            continue
        heapq.heappop(queue)
        if len(pieces[at].ids) > room and taken:
            continue
        taken[at] = pieces[at]._replace(ids=pieces[at].ids[:room])
        room -= len(taken[at].ids)
        for token in shared[at]:
            worth[token] /= 4
    return [taken[at] for at in sorted(taken)]


def nearest(source: Source, said: str) -> _Piece | None:
    """Return the piece that shares most words with a sentence, for its length; the first of equal ones."""
    wanted = set(said.lower().split())

    def shared(each: _Piece) -> float:
        return len(wanted.intersection(each.words)) / math.sqrt(len(each.words) + DAMPING)

    return max(checked(source.pieces), key=shared, default=None)


def _sentences(output: str, places: Sequence[tuple[int, int]]) -> Iterator[Sentence]:
    """Yield the output's sentences with their tokens; every token belongs to one of them."""
    ends = [(start, end) for start, end in sentences(output) if start < end] or [(0, len(output))]
    at = 0
    for number, (start, end) in enumerate(ends):
        begin = at
        last = number == len(ends) - 1
        while at < len(places) and (last or places[at][0] < end):
            at += 1
        if at > begin:
            yield Sentence(begin, at, start, end)


def _weights(pieces: Sequence[_Piece]) -> dict[int, float]:
    """Return the inverse document frequency of each token over the pieces."""
    found = Counter(token for piece in pieces for token in set(piece.ids))
    return {token: math.log(1 + len(pieces) / count) for token, count in found.items()}


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span without surrounding white space, which tokens of some vocabularies start with."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


# --- one form for dates, times of day, money, shares and large numbers; one unit for amounts -------

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
ARTICLE = re.compile(r"\b[Aa]n? $")
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


class Change(NamedTuple):
    """The characters `[start, end)` of a text, and the words that it is read with instead.

    `known` tells whether the context has what they say.
    """

    start: int
    end: int
    words: str
    known: bool = True


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


def changes(
    text: str, known: Mapping[str, Mapping[str, None]], instead: Sequence[Change] = ()
) -> list[Change]:
    """Return the changes after which a text writes its dates, times, money, shares and numbers as others do.

    `known` are the other texts' `writings`. What they do not have at all stays as it is, and so does what
    they have in the same form too, also as a part of it: *March 17* of *March 17, 2026*. The changes
    `instead` are made as well, and rather than these.
    """
    found, begins = list(instead), [each.start for each in instead]
    for start, end, form in forms(text) if known else ():
        others = known.get(form)
        if others is None or any(text[start:end] in each for each in others):
            continue
        last = bisect_left(begins, end) - 1  # the last one that begins before
        if last < 0 or instead[last].end <= start:
            found.append(Change(start, end, next(iter(others))))
    return sorted(found)


def in_units_of_context(sample: Sample) -> list[Change]:
    """Return the changes that write the output's amounts in units of the context, if it lacks theirs.

    >>> said = Sample(id="1", context=("It lasts for 24 months.",), output="Two years, not three years.")
    >>> for each in in_units_of_context(said):
    ...     print(*each)
    0 9 24 months True
    15 26 36 months False
    """
    text = sample.output or ""
    found = []
    for span, words, known in prepared(sample).converted:
        article = ARTICLE.search(text, max(0, span.start - len("an ")), span.start)
        start = article.start() if article else span.start  # "a fortnight" is "two weeks"
        found.append(Change(start, span.end, words.replace("-", " "), known))
    return found


def begun(changes: Sequence[Change], start: int, stop: int) -> Sequence[Change]:
    """Return those of the changes, which are in order, that begin in `[start, stop)`."""
    return changes[bisect_left(changes, (start,)) : bisect_left(changes, (stop,))]


def rewritten(text: str, changes: Sequence[Change]) -> Rewritten:
    """Return a text with changes, which are in order.

    >>> known = writings(["by 2026-03-17, 17:30"])
    >>> rewritten(said := "Due March 17th at 5:30 pm.", changes(said, known)).text
    'Due 2026-03-17 at 17:30.'
    >>> rewritten(said := "Due March 18th.", changes(said, known)).text
    'Due March 18th.'
    """
    pieces, begins, parts, at, length = list[str](), list[int](), list[tuple[int, int, int]](), 0, 0
    for start, end, words, _ in changes:
        pieces += (text[at:start], words)
        begins.append(length + start - at)
        parts.append((len(words), start, end))
        length = begins[-1] + len(words)
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
