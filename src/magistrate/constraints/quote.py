"""Verbatim quotes: text that can only be a run of a given text's own words or sentences."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from magistrate.constraints.keywords import QUOTE
from magistrate.constraints.pieces import UNITS, Unit, edges
from magistrate.constraints.pointers import walk
from magistrate.errors import ConstraintError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema


Texts = Mapping[str, Sequence[str]]


class Quote(str):
    """Words of a text that was given, letter for letter, and where they stand.

    `texts[source][source_index][start:end]` is the quote; offsets count characters (code points). Where the
    same words stand in several places it is the first of them.

    As a type, `Quote["context"]` is a run of words of the text (or texts) named `context`, and
    `Quote["output", "sentences"]` one of sentences. Its length is bounded in characters with
    `Annotated[Quote["context"], Field(max_length=200)]`; `Quote["context"] | None` allows for none. Type
    checkers and linters take what stands in the brackets for a type: give it a name first, as in
    `FromContext = Quote["context"]`, or write `Annotated[Quote, QuoteOf("context")]`.
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
        raise ConstraintError('say what is quoted: Quote["context"]')


@dataclass(frozen=True, slots=True)
class QuoteOf:
    """What `Quote[source, unit]` stands for; `Annotated[Quote, QuoteOf("context")]` is the same."""

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
        """The value of `x-quote`."""
        return {"of": self.source, "unit": self.unit}

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        def located(text: str, info: Any) -> Quote:
            if isinstance(text, Quote):
                return text
            if not isinstance(info.context, Mapping) or self.source not in info.context:
                raise ValueError(
                    "where this stands is known only with its texts; "
                    f"validate with context={{{self.source!r}: …}}"
                )
            found = locate(text, self, several(info.context[self.source]))
            if found is None:
                raise ValueError(f"these are not {self.unit} of {self.source!r}")
            return found

        return core_schema.with_info_after_validator_function(located, core_schema.str_schema())

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), QUOTE: self.keyword}


def quote_of(node: Mapping[str, Any]) -> QuoteOf | None:
    """What a node of a JSON Schema quotes. Raises `ConstraintError` for a malformed `x-quote`."""
    if QUOTE not in node:
        return None
    value = node[QUOTE]
    if not isinstance(value, Mapping) or not set(value) <= {"of", "unit"} or "of" not in value:
        raise ConstraintError(f'{QUOTE} is {{"of": NAME, "unit": {" or ".join(map(repr, UNITS))}}}')
    return QuoteOf(value["of"], value.get("unit", UNITS[0]))


def quoted_sources(root: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the texts that a schema quotes, each once, in their order."""
    found = (quote_of(inner) for inner, _ in walk(root))
    return tuple(dict.fromkeys(of.source for of in found if of is not None))


def several(texts: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several as a tuple."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def locate(text: str, of: QuoteOf, texts: Sequence[str]) -> Quote | None:
    """Where `text` stands as a run of whole pieces without white space at its ends; the first such place."""
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
