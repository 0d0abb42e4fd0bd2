"""Verbatim quotes: text that must be a run of words or sentences of a given text.

`edges` returns where a text may be cut, `Quote` is the type, `locate` finds a quote, and `verbatim_rule`
generates its grammar.

Words follow Unicode's text segmentation (UAX #29): a word with its apostrophe, a number with its decimal
point, an emoji with all its parts, a letter with its marks, one Chinese character, one punctuation mark;
and a run of white space. Sentences end at the end of a line, or after . ! ? … and closing marks.

The grammar cuts the text first and then escapes each piece for JSON, so that text after a line end and part
of a Chinese sentence can be quoted. A suffix automaton of the pieces accepts the runs. Regular expressions
next to it ensure that the quote is not empty, has no white space at its ends, and has the required length.
"""

from __future__ import annotations

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import regex  # type: ignore[import-untyped]

from magistrate.constraints.lark import escape
from magistrate.constraints.schema import QUOTE, walk
from magistrate.errors import ConstraintError, InvalidOutput

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

Unit = Literal["words", "sentences"]
UNITS: tuple[Unit, ...] = get_args(Unit)

SHORTEST, LONGEST = 16, 160  # characters of a quote: longer than a word, shorter than a page
LONGEST_WORD = 64  # characters; longer ones (a key, an address) may be cut between any two characters
WINDOW = 1024  # characters analyzed together, because finding an edge may take quadratic time
_SPACE = r"\s(?![\p{M}\u200d])"  # not followed by a combining mark
_RUN = regex.compile(rf"(?:(?!{_SPACE}).)++|(?:{_SPACE})++", regex.DOTALL)
_WORD_EDGE = regex.compile(r"(?w)\b")
_CHARACTER = regex.compile(r"\X")
_CLOSING = r"""[\p{Pe}\p{Pf}"']*+"""
_SENTENCE_GAP = regex.compile(  # one pass without backtracking: a judged text may be made to be slow
    rf"[.!?…]{_CLOSING}(\s++)|[。！？｡]++{_CLOSING}(\s*+)|(\s++)"
)
_PLAIN = 3  # the group of other white space, which ends a sentence only if it contains a line end
_LINE_END = frozenset("\r\n")


@lru_cache(maxsize=16)
def edges(text: str, unit: Unit) -> tuple[int, ...]:
    """Return the offsets in `text` where pieces meet, ascending and with both ends included."""
    found = {0, len(text)}
    if unit == "sentences":  # white space at the ends belongs to no sentence
        for match in _SENTENCE_GAP.finditer(text):
            gap = match.lastindex
            if gap is not None and (gap != _PLAIN or not _LINE_END.isdisjoint(match[gap])):
                found.update(match.span(gap))
        found |= {len(text) - len(text.lstrip()), len(text.rstrip())}
    else:
        for run in _RUN.finditer(text):
            found.update(_word_edges(run[0], run.start()))
    return tuple(sorted(found))


def _word_edges(run: str, at: int) -> Iterator[int]:
    """Yield the offsets at which words begin; `run` is all white space (one piece) or contains none."""
    if run.isspace():
        yield at
        return
    if len(run) > WINDOW:
        yield from _character_edges(run, at)
        return
    for start, end in pairwise([*(match.start() for match in _WORD_EDGE.finditer(run)), len(run)]):
        yield at + start
        if end - start > LONGEST_WORD:
            yield from _character_edges(run[start:end], at + start)


def _character_edges(run: str, at: int) -> Iterator[int]:
    """Yield the offsets at which characters begin; a character of several code points stays whole."""
    start = 0
    while start < len(run):
        found = [start + match.start() for match in _CHARACTER.finditer(run[start : start + WINDOW])]
        end = start + WINDOW
        following = found.pop() if end < len(run) and len(found) > 1 else end  # the last may be cut off
        yield from (at + each for each in found)
        start = following


def pieces(text: str, unit: Unit) -> list[str]:
    """Return `text` cut at its edges. The pieces joined give the text again."""
    return [text[start:end] for start, end in pairwise(edges(text, unit))]


def has_run(text: str, unit: Unit, least: int, most: int | None) -> bool:
    """Return whether some run of pieces without white space at its ends has `least` to `most` characters."""
    # A piece may begin with white space that carries a combining mark.
    spans = list(pairwise(edges(text, unit)))
    starts = [start for start, _ in spans if not text[start : start + 1].isspace()]
    ends = [end for _, end in spans if not text[end - 1 : end].isspace()]
    for start in starts:
        place = bisect_left(ends, start + max(least, 1))
        if place < len(ends) and (most is None or ends[place] <= start + most):
            return True
    return False


Texts = Mapping[str, Sequence[str]]


class Quote(str):
    """A verbatim quote of a given text, with its position.

    `texts[source][source_index][start:end]` is the quote. Offsets count characters (code points). If the
    same words occur in several places, the position is that of the first.

    As a type, `Quote["context"]` is a run of words of the text (or texts) named `context`, and
    `Quote["output", "sentences"]` is a run of sentences. Bound its length in characters with
    `Annotated[Quote["context"], Field(max_length=200)]`; `Quote["context"] | None` also allows no quote.
    Type checkers and linters take the text in the brackets for a type. To avoid that, name the type first
    (`FromContext = Quote["context"]`) or write `Annotated[Quote, QuoteOf("context")]`.
    """

    source: str
    source_index: int
    start: int
    end: int

    def __new__(cls, text: str, source: str, source_index: int, start: int) -> Quote:
        quote = super().__new__(cls, text)
        quote.source, quote.source_index = source, source_index
        quote.start, quote.end = start, start + len(text)
        return quote

    def __getnewargs__(self) -> tuple[str, str, int, int]:  # type: ignore[override]
        return str(self), self.source, self.source_index, self.start

    def __class_getitem__(cls, of: str | tuple[str, Unit]) -> Any:
        source, unit = (of, UNITS[0]) if isinstance(of, str) else of
        return Annotated[cls, QuoteOf(source, unit)]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        raise ConstraintError('give the source of the quote: Quote["context"]')


@dataclass(frozen=True, slots=True)
class QuoteOf:
    """The source and unit of a quote; `Annotated[Quote, QuoteOf("context")]` is `Quote["context"]`."""

    source: str
    unit: Unit = "words"

    def __post_init__(self) -> None:
        if not (isinstance(self.source, str) and self.source) or self.unit not in UNITS:
            raise ConstraintError(
                f'write Quote["context"] or Quote["context", "sentences"], not Quote[{self.source!r}, '
                f"{self.unit!r}]; the units are {' and '.join(UNITS)}"
            )

    @property
    def keyword(self) -> dict[str, str]:
        """The value of the `x-quote` keyword."""
        return {"of": self.source, "unit": self.unit}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        def located(text: str, info: Any) -> Quote:
            if isinstance(text, Quote):
                return text
            if not isinstance(info.context, Mapping) or self.source not in info.context:
                raise ValueError(
                    f"the position of the quote needs the texts; validate with context={{{self.source!r}: …}}"
                )
            found = locate(text, self, as_texts(info.context[self.source]))
            if found is None:
                raise ValueError(f"these are not {self.unit} of {self.source!r}")
            return found

        return core_schema.with_info_after_validator_function(located, core_schema.str_schema())

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), QUOTE: self.keyword}


def quote_of(node: Mapping[str, Any]) -> QuoteOf | None:
    """Return the `x-quote` of a JSON Schema node, or None. Raises `ConstraintError` if it is malformed."""
    if QUOTE not in node:
        return None
    value = node[QUOTE]
    if not isinstance(value, Mapping) or not set(value) <= {"of", "unit"} or "of" not in value:
        raise ConstraintError(f'{QUOTE} is {{"of": NAME, "unit": {" or ".join(map(repr, UNITS))}}}')
    return QuoteOf(value["of"], value.get("unit", UNITS[0]))


def quoted_sources(root: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the distinct names of the texts that a schema quotes, in order."""
    found = (quote_of(inner) for inner, _ in walk(root))
    return tuple(dict.fromkeys(of.source for of in found if of is not None))


def as_texts(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Return one text or several as a tuple."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def locate(text: str, of: QuoteOf, texts: Sequence[str]) -> Quote | None:
    """Return the first run of whole pieces equal to `text`, without white space at its ends, or None."""
    if not text or text[0].isspace() or text[-1].isspace():
        return None
    for index, whole in enumerate(texts):
        at: tuple[int, ...] | None = None
        start = whole.find(text)
        while start >= 0:
            at = at or edges(whole, of.unit)
            if _among(at, start) and _among(at, start + len(text)):
                return Quote(text, of.source, index, start)
            start = whole.find(text, start + 1)
    return None


def _among(at: Sequence[int], place: int) -> bool:
    index = bisect_left(at, place)
    return index < len(at) and at[index] == place


LONGEST_TEXTS = 1_000_000  # characters that one constraint may quote from, in total
# Planes 4 to 11 are unassigned, so byte vocabularies may lack the first bytes of their UTF-8.
_RARE = re.compile("[\U00040000-\U000bffff]")
_HEX = "[0-9a-f]"
# One character of a JSON string as it is written here: with lone surrogates, or with surrogate pairs.
_LONE = rf"(?:[^\\]|\\u{_HEX}{{4}}|\\[^u])"
_PAIR = rf"\\ud[89ab]{_HEX}{{2}}\\ud[c-f]{_HEX}{{2}}"
_PAIRED = rf"(?:[^\\]|\\u(?:[0-9a-ce-f]{_HEX}{{3}}|d[0-7]{_HEX}{{2}})|{_PAIR}|\\[^u])"


def verbatim_rule(name: str, texts: Sequence[str], unit: Unit, least: int, most: int | None) -> list[str]:
    """Return Lark lines for the rule `name`, a quoted run of pieces of a text; none if there is no such run.

    The run is from one of `texts` and has `least` to `most` characters. The quotation marks are separate
    from the terminal: the mask engine precomputes a terminal with many alternatives at compile time only if
    the terminal begins with them.
    """
    different = [text for text in dict.fromkeys(texts) if has_run(text, unit, least, most)]
    if not different:
        return []
    run = f"{name.upper()}_RUN"
    parts = [f"{run}_{index}" for index in range(len(different))]
    lines = [f"{part}: %regex {_chunks(text, unit)}" for part, text in zip(parts, different, strict=True)]
    # Two halves in a row form one character, so use lone surrogates or pairs, never both.
    paired = any(_RARE.search(text) for text in different)
    lines.append(f"{run}: ({' | '.join(parts)}) & /{_shape(least, most, paired)}/")
    lines.append(f'{name}: "\\"" {run} "\\""')
    return lines


@lru_cache(maxsize=16)
def _chunks(text: str, unit: Unit) -> str:
    return json.dumps({"substring_chunks": list(map(escape, pieces(text, unit)))}, ensure_ascii=False)


def _shape(least: int, most: int | None, paired: bool) -> str:
    """Return a pattern for `least` to `most` characters whose first and last are not white space."""
    edge, unit = _edge(paired), _PAIRED if paired else _LONE
    inner = f"{{{max(least - 2, 0)},{'' if most is None else max(most - 2, 0)}}}"
    longer = f"{edge}{unit}{inner}{edge}"
    if most == 1:
        return edge
    return longer if least > 1 else f"{edge}(?:{unit}{inner}{edge})?"


@cache
def _edge(paired: bool) -> str:
    """Return a pattern for one character that is not white space in the sense of Python's `str.isspace`."""
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    plain = "".join(f"\\x{{{ord(space):x}}}" for space in spaces if escape(space) == space)
    controls = [f"{code:04x}" for code in range(0x20) if escape(chr(code)).startswith("\\u")]
    hidden = "|".join(code for code in controls if chr(int(code, 16)) not in spaces)
    halves = _PAIR if paired else rf"\\ud[89a-f]{_HEX}{{2}}"
    return rf'(?:[^\\{plain}]|\\["\\b]|\\u(?:{hidden})|{halves})'


def quote_schema(source: str, unit: Unit, texts: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a quote of `texts`, named `source`.

    The quote has at least `SHORTEST` characters if every text has a run that long, and at most `LONGEST`. A
    longer sentence may be quoted whole.
    """
    longest = LONGEST
    if unit == "sentences":
        longest = max([longest, *(len(piece) for text in texts for piece in pieces(text, unit))])
    inked = [text for text in texts if text.strip()]
    least = SHORTEST if inked and all(has_run(text, unit, SHORTEST, longest) for text in inked) else 1
    quote = {"of": source, "unit": unit}
    return {"type": "string", "x-quote": quote, "minLength": least, "maxLength": longest}


def quoted(text: str, source: str, unit: Unit, texts: Sequence[str]) -> Quote:
    """Return the position of an accepted quote. Raises `InvalidOutput` if it is not found."""
    if isinstance(text, Quote):
        return text
    found = locate(text, QuoteOf(source, unit), texts)
    if found is None:
        raise InvalidOutput(f"{text[:100]!r} is not a sequence of {unit} of the {source}", text)
    return found
