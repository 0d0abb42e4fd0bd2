"""The text signals by name: what each looks at, and all of them read off a sample at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from magistrate._deadline import checked
from magistrate.errors import SpecError
from magistrate.features import facts, lexical, support
from magistrate.features.prepared import Prepared, prepared
from magistrate.features.reading import Reading, undefined
from magistrate.types import Sample

NO_CONTEXT = undefined("there is no context")
NO_OUTPUT = undefined("the output is empty")


@dataclass(frozen=True, slots=True)
class TextSignal:
    """A number in [0, 1] that is read off a sample's texts alone, higher being more suspicious."""

    name: str
    summary: str
    unit: str
    higher_means: str
    read: Callable[[Prepared], Reading] = field(repr=False, compare=False)


_LESS = "less of the output is in the context"
_ALL = (
    TextSignal(
        "content_words",
        "words with content whose stem the context lacks",
        "share of words",
        _LESS,
        lexical.content_words,
    ),
    TextSignal(
        "bigrams",
        "runs of two words that the context lacks",
        "share of runs",
        _LESS,
        partial(lexical.ngrams, n=2),
    ),
    TextSignal(
        "trigrams",
        "runs of three words that the context lacks",
        "share of runs",
        _LESS,
        partial(lexical.ngrams, n=3),
    ),
    TextSignal(
        "word_pairs",
        "neighbouring words with content that stand together nowhere in the context",
        "share of pairs",
        _LESS,
        lexical.word_pairs,
    ),
    TextSignal(
        "numbers",
        "numbers with their units that the context does not say",
        "share of numbers",
        _LESS,
        facts.numbers,
    ),
    TextSignal("dates", "dates that the context does not say", "share of dates", _LESS, facts.dates),
    TextSignal("names", "names of which the context lacks a word", "share of names", _LESS, facts.names),
    TextSignal(
        "quotations",
        "strings in quotation marks that the context has not so",
        "share of quotations",
        _LESS,
        facts.quotations,
    ),
    TextSignal(
        "sentence_support",
        "rare words of each sentence that no one passage holds together",
        "share of weight",
        "sentences are farther from any one passage",
        support.sentence_support,
    ),
    TextSignal(
        "weakest_sentence",
        "the same, of the sentence that is supported least",
        "share of weight",
        "a sentence is farther from any one passage",
        support.weakest_sentence,
    ),
    TextSignal(
        "rouge_l",
        "words outside the longest common subsequence with the context (1 - ROUGE-L precision)",
        "share of words",
        _LESS,
        lexical.rouge_l,
    ),
    TextSignal(
        "chrf",
        "runs of one to six characters that the context lacks (1 - chrF precision)",
        "share of runs",
        _LESS,
        lexical.chrf,
    ),
)
SIGNALS: Mapping[str, TextSignal] = MappingProxyType({each.name: each for each in _ALL})


def readings(sample: Sample, names: Iterable[str] | None = None) -> dict[str, Reading]:
    """What the signals of these names, by default all, say of a sample; its texts are cut up once.

    The output is held against `sample.sources`: contexts and what was said before. Without one of them, or
    without an output, every value is None. Raises `SpecError` for an unknown name and `InputError` where the
    output is not there yet.
    """
    asked = list(SIGNALS if names is None else names)
    if missing := [name for name in asked if name not in SIGNALS]:
        raise SpecError(f"unknown text signal {missing[0]!r}; known: {', '.join(SIGNALS)}")
    return read(prepared(sample), asked)


def read(cut: Prepared, names: Iterable[str]) -> dict[str, Reading]:
    """The same, of a sample that was cut up before; every name must be known."""
    nothing = NO_OUTPUT if not cut.output.text.strip() else None if cut.said.texts else NO_CONTEXT
    return {name: SIGNALS[name].read(cut) if nothing is None else nothing for name in checked(names, 1)}
