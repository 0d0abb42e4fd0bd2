"""Samples derived from labelled ones: statements about statements, shortened contexts, questions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from magistrate.features.facts import dates_and_numbers
from magistrate.features.splitting import sentences
from magistrate.features.words import worded
from magistrate.training.synthetic.draft import STOP, Draft, Place, Text, sort_of
from magistrate.training.synthetic.lexicon import Lexicon
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

ENTAILED = frozenset({"entailment", "supported"})
CONTRADICTED = frozenset({"contradiction", "refuted"})
NEUTRAL = frozenset({"neutral"})

SILENT = (
    "The document does not say whether {}.",
    "The text doesn't mention whether {}.",
    "Whether {} is not stated.",
    "It isn't stated whether {}.",
    "Nothing here tells us whether {}.",
    "There is no information on whether {}.",
    "The source gives no answer as to whether {}.",
    "From what is given one cannot tell whether {}.",
    "It remains open whether {}.",
    "It is unclear from the passage whether {}.",
    "I can't tell from this whether {}.",
    "No details are provided about whether {}.",
)
SAID = (
    "According to the text, {}.",
    "The document says that {}.",
    "The passage makes it clear that {}.",
    "Yes, {}.",
    "As the source puts it, {}.",
    "It follows that {}.",
    "We are told that {}.",
    "What we learn is that {}.",
)
DENIED = (
    "It is not true that {}.",
    "It is not the case that {}.",
    "The text rules out that {}.",
    "It is false that {}.",
    "According to the document, it is wrong that {}.",
    "No, it isn't so that {}.",
)
LONGEST_STATEMENT = 200  # most characters of a statement to frame


def framed(every: Iterable[Sample], seed: int, share: float) -> Iterator[Sample]:
    """For a `share` of the samples, yield a statement about their statement, with the label that follows.

    A statement that the text does not mention is neither supported nor denied; one that it contradicts is
    denied. Samples without these three kinds, and questions, are skipped.
    """
    for sample in every:
        kind = str(sample.metadata.get("kind"))
        said = (sample.output or "").strip()
        order = random.Random(f"{seed}/framed/{sample.id}")
        if order.random() >= share or not said or said.endswith("?") or len(said) > LONGEST_STATEMENT:
            continue
        if kind not in ENTAILED | CONTRADICTED | NEUTRAL:
            continue
        frames, right = order.choice(
            ((SILENT, NEUTRAL), (SILENT, NEUTRAL), (SAID, ENTAILED), (DENIED, CONTRADICTED))
        )
        if kind in right:
            told = "entailment"
        elif frames is SILENT or (kind not in NEUTRAL):
            told = "contradiction"
        else:
            told = "neutral"
        yield replace(
            sample,
            id=f"{sample.id}~framed",
            output=order.choice(frames).format(said.rstrip(". ")),
            label=FAITHFUL if kind in right else HALLUCINATED,
            spans=(),
            metadata={"kind": told, "of": sample.id},
        )


def without_a_sentence(every: Sequence[Sample], seed: int) -> Iterator[Sample]:
    """Yield faithful outputs that need several sentences of their context, with one of these removed.

    The rest does not support all of the output, though it has most of its words. In half of the variants a
    sentence of another context takes the place of the removed one.
    """
    pool = [each for each in every if each.label == FAITHFUL and len(each.context) == 1]
    order = random.Random(f"{seed}/parts")
    for sample in pool:
        text = sample.context[0]
        places = sentences(text)
        if not 2 <= len(places) <= 6:
            continue
        gone = order.randrange(len(places))
        kept = [text[start:end] for at, (start, end) in enumerate(places) if at != gone]
        if order.random() < 0.5:
            other = order.choice(pool).context[0]
            strange = [said for place in sentences(other) if (said := other[slice(*place)]) not in text]
            if strange:
                kept.insert(gone, order.choice(strange))
        yield replace(
            sample,
            id=f"{sample.id}~part",
            context=(" ".join(kept),),
            label=HALLUCINATED,
            metadata={"kind": "sentence_removed", "of": sample.id},
        )


GAPS = (
    "What stands where the dots are? {}",
    "Fill the gap: {}",
    "{} Who or what is it?",
)
LONG_ANSWERS = 0.3  # share of the questions that are answered by the whole statement
FIRST_NAME = re.compile(r"\b([A-Z][a-z]+) $")
Sort = tuple[str, str]


def asked(every: Iterable[Sample], seed: int, share: float, lexicon: Lexicon) -> Iterator[Sample]:
    """For a `share` of the faithful statements, yield a question with a right answer and a wrong one.

    The question asks for a name, a date or a number that statement and context share. The wrong answer is
    another one of the same sort from the context. Neither answer is new, so only the question tells them
    apart.
    """
    for sample in every:
        said = (sample.output or "").strip()
        order = random.Random(f"{seed}/asked/{sample.id}")
        if order.random() >= share or sample.label != FAITHFUL or len(sentences(said)) != 1:
            continue
        if said.endswith("?") or len(said) > LONGEST_STATEMENT:
            continue
        draft = Draft(replace(sample, output=said), lexicon)
        there = _answers(draft, said)
        sources = "\n".join(sample.sources)
        known = _answers(draft, sources)
        for place, sort in order.sample(there, len(there)):
            others = sorted({other.text for other, of in known if of == sort and other.text not in said})
            others = [each for each in others if sort[0] != "name" or not draft.same_bearer(place.text, each)]
            if place.text not in sources or not others:
                continue
            other = order.choice(others)
            whole = order.random() < LONG_ANSWERS
            question = _question(said, place, order)
            for answer, label in ((place.text, FAITHFUL), (other, HALLUCINATED)):
                yield replace(
                    sample,
                    id=f"{sample.id}~asked-{label}",
                    input=question,
                    output=said[: place.start] + answer + said[place.end :] if whole else answer,
                    label=label,
                    spans=(),
                    metadata={"kind": "asked", "of": sample.id},
                )
            break


def _answers(draft: Draft, text: str) -> list[tuple[Place, Sort]]:
    """Return the names, dates and numbers of a text, each with its sort."""
    found: list[tuple[Place, Sort]] = []
    dates, numbers = dates_and_numbers(worded(text))
    spans = [(each.span, ("date", "year" if each.is_year else "day")) for each in dates]
    spans += [(each.span, ("number", each.measure or "")) for each in numbers]
    found += [(Place(span.start, span.end, text[span.start : span.end]), sort) for span, sort in spans]
    for name in (_from_its_start(text, each) for each in Text(text).names(draft.proper)):
        if not any(span.start < name.end and name.start < span.end for span, _ in spans):
            found.append((name, ("name", sort_of(name.text, draft.lexicon))))
    return found


def _from_its_start(text: str, name: Place) -> Place:
    """Extend a name by the capitalised word before it, which may be a name or only begin a sentence."""
    found = FIRST_NAME.search(text, 0, name.start)
    if found is None or found[1].lower() in STOP:
        return name
    return Place(found.start(), name.end, text[found.start() : name.end])


def _question(said: str, place: Place, order: random.Random) -> str:
    """Return a question about `said` whose answer is the text at `place`."""
    rest = said[place.end :].strip().rstrip(".")
    if place.start == 0 and rest[:1].islower():
        return f"Who or what {rest}?"
    if not rest:
        before = said[: place.start].strip()
        return f"{before} … what or whom?"
    return order.choice(GAPS).format(f"{said[: place.start]}…{said[place.end :]}")
