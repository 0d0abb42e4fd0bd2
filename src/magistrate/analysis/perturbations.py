"""Harmless changes for an audit: to a sample's text, and to the judge's prompt.

All random choices depend on a seed and the sample's id alone, so a sample is always changed in the same way.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from magistrate.analysis.hostile import harmless
from magistrate.errors import SpecError
from magistrate.features.splitting import sentences
from magistrate.judges.base import Judge
from magistrate.judges.classify import Classify
from magistrate.types import Sample

Edit = Callable[[Sample, int], Sample]

PADDING = 0.5  # the least length to add, as a share of the output's length
SHORTEST, LONGEST = 20, 300  # characters of a padding sentence
TYPOS, DOUBLED = 0.25, 0.1  # shares of function words with a typo, and of spaces that are doubled
PARAGRAPHS = re.compile(r"\n\s*\n")
WORD = re.compile(r"(?<![\w'’])[^\W\d_]+(?![\w'’])")  # letters only
QUOTED = re.compile(r'"([^"\n]*)"')

# Function words. None negates, counts or compares, so a typo changes no statement.
_FUNCTION_WORDS = """
the and that this these those with from which who whose where while because since for into onto its
their there they them his her our your has have had was were are been being also then thus such would
should could about through during between upon than when what
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


def padded(sample: Sample, seed: int) -> Sample:
    """Append true sentences to the output: sentences of the context that the output does not contain.

    They are about half as long as the output, and at least one sentence.
    """
    output = sample.output
    if not output:
        return sample
    found = [text for source in sample.context for text in _texts(source) if SHORTEST <= len(text) <= LONGEST]
    fit = [text for text in dict.fromkeys(found) if text not in output]
    _source(sample, seed, "padding").shuffle(fit)
    taken: list[str] = []
    while fit and len(" ".join(taken)) < PADDING * len(output):
        taken.append(fit.pop())
    return replace(sample, output=f"{output}\n{' '.join(taken)}", spans=()) if taken else sample


def lengthened(sample: Sample, seed: int) -> Sample:
    """Append as many characters as `padded` adds, in plain text that does not affect the facts."""
    output, size = sample.output or "", len(padded(sample, seed).output or "")
    if size <= len(output) + 1:
        return sample
    return replace(sample, output=harmless(output, size - len(output) - 1), spans=())


def shuffled(sample: Sample, seed: int) -> Sample:
    """Reorder the context: its texts, or a single text's paragraphs, or a single paragraph's sentences.

    See `shuffled_by`: sentences may depend on the ones before them, texts and paragraphs hardly do.
    """
    source, by = _source(sample, seed, "contexts"), shuffled_by(sample)
    if by is None:
        return sample
    if by == "texts":
        return replace(sample, context=tuple(_another_order(sample.context, source)))
    at = next(number for number, text in enumerate(sample.context) if text.strip())
    pieces, between = (_paragraphs(sample.context[at]), "\n\n")
    if by == "sentences":
        pieces, between = _texts(sample.context[at]), " "
    text = between.join(_another_order(pieces, source))
    return replace(sample, context=(*sample.context[:at], text, *sample.context[at + 1 :]))


def shuffled_by(sample: Sample) -> str | None:
    """Return what `shuffled` reorders: texts, paragraphs or sentences; None if there is only one piece."""
    filled = [text for text in sample.context if text.strip()]
    if len(set(filled)) > 1:
        return "texts"
    if not filled:
        return None
    for name, cut in (("paragraphs", _paragraphs), ("sentences", _texts)):
        if len(set(cut(filled[0]))) > 1:
            return name
    return None


def formatted(sample: Sample, seed: int) -> Sample:
    """Rewrite the output as a Markdown list with the same words.

    Every sentence becomes an entry with one word in bold, a lower-case first letter and more white space.
    """
    if not (sample.output or "").strip():
        return sample
    source = _source(sample, seed, "formatting")
    lines = [f"- {_bold(_lowered(text), source)}" for text in _texts(sample.output or "")]
    return replace(sample, output="\n\n".join(lines) + "\n", spans=())


def noisy(sample: Sample, seed: int) -> Sample:
    """Add typos to some function words, double some spaces and use typographic quotes in the output.

    A typo swaps two neighbouring letters. Names, numbers and words that negate or count stay as they are.
    """
    source = _source(sample, seed, "noise")
    text = sample.output or ""
    words = [match for match in WORD.finditer(text) if match[0].lower() in FUNCTION_WORDS]
    chosen = {match.start() for match in words if source.random() < TYPOS}
    if words and not chosen:
        chosen = {source.choice(words).start()}

    def spelled(match: re.Match[str]) -> str:
        return _swapped(match[0], source) if match.start() in chosen else match[0]

    text = WORD.sub(spelled, text)
    text = re.sub(r"(?<=\S) (?=\S)", lambda _: "  " if source.random() < DOUBLED else " ", text)
    text = QUOTED.sub("“\\1”", text).replace("'", "’")
    return sample if text == sample.output else replace(sample, output=text, spans=())


def _source(sample: Sample, seed: int, name: str) -> random.Random:
    """Return a random source for this sample, edit and seed. Text seeds are the same in every process."""
    return random.Random(f"{seed} {name} {sample.id}")


def _texts(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in PARAGRAPHS.split(text) if part.strip()]


def _another_order(pieces: Sequence[str], source: random.Random) -> list[str]:
    """Return the pieces in a different order. At least two of them must differ."""
    given, found = list(pieces), list(pieces)
    while found == given:
        source.shuffle(found)
    return found


def _lowered(text: str) -> str:
    """Lower-case the first letter, unless the word is all capitals or has capitals inside, like a name."""
    first = WORD.match(text)
    if first is None or not first[0][1:].islower() or first[0][0].lower().upper() != first[0][0]:
        return text
    return first[0][0].lower() + text[1:]


def _bold(text: str, source: random.Random) -> str:
    words = [match for match in WORD.finditer(text) if len(match[0]) > 3] or list(WORD.finditer(text))
    if not words:
        return text
    word = source.choice(words)
    return f"{text[: word.start()]}**{word[0]}**{text[word.end() :]}"


def _swapped(word: str, source: random.Random) -> str:
    """Swap two different neighbouring letters. The first letter stays if the word is long enough."""
    places = [at for at in range(1, len(word) - 1) if word[at] != word[at + 1]]
    if not places:
        return word
    at = source.choice(places)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


PERTURBATIONS: Mapping[str, Edit] = {
    "padding": padded,
    "contexts_shuffled": shuffled,
    "formatting": formatted,
    "noise": noisy,
}
"""Edits by the name of the check that makes them."""


# --- other forms of the judge ---------------------------------------------------------------------


ORDERS: Mapping[str, str] = {
    "reasons_first": "score_first",
    "reason_first": "quote_first",
    "reasoning_first": "quotes_first",
}
"""What an option `order` is called where reasons come first, and where they come last."""


def options_swapped(judge: Judge) -> Judge | str:
    """Return the judge with its labels in the opposite order, or a message why it has none to swap."""
    inner = _inner(judge)
    if not isinstance(inner, Classify):
        return f"{judge.info.name} gives the model no list of answers whose order could be swapped"
    criterion = dataclasses.replace(inner.criterion, labels=inner.criterion.labels[::-1])
    swapped = _forms(judge, dataclasses.replace(inner, criterion=criterion))
    return swapped if isinstance(swapped, str) else swapped[0]


def reasons_moved(judge: Judge) -> tuple[Judge, Judge] | str:
    """Return the judge with reasons after and before the decision, or a message why it has no such option.

    A classifier's sentence after the label changes neither label nor score, so it is left out.
    """
    inner: Any = _inner(judge)
    try:
        if isinstance(inner, Classify):
            option, values = "explain", ("none", "before")
        else:
            order = getattr(inner, "order", None)
            first = next((name for name, last in ORDERS.items() if order in (name, last)), None)
            if first is None:
                return f"{judge.info.name} has no option for when its reasons are written"
            option, values = "order", (ORDERS[first], first)
        after, before = (dataclasses.replace(inner, **{option: value}) for value in values)
    except SpecError as error:
        return str(error)
    forms = _forms(judge, after, before)
    return forms if isinstance(forms, str) else (forms[0], forms[1])


def _forms(judge: Judge, *inner: Any) -> tuple[Judge, ...] | str:
    """Wrap each of these as the judge is wrapped, or return a message why a wrapper rejects it."""
    try:
        return tuple(_with_inner(judge, each) for each in inner)
    except SpecError as error:
        if judge.info.fitted_to is not None:
            return (
                f"it changes the prompt, but the calibration of {judge.info.name} is only valid for one "
                "prompt"
            )
        return str(error)


def _inner(judge: Judge) -> Judge:
    """Return the innermost judge, which calls the engine."""
    of = getattr(judge, "of", None)
    return judge if of is None else _inner(of)


def _with_inner(judge: Judge, inner: Any) -> Judge:
    """Put the same wrappers around another judge."""
    of, wrapper = getattr(judge, "of", None), cast(Any, judge)
    return cast(Judge, inner if of is None else dataclasses.replace(wrapper, of=_with_inner(of, inner)))
