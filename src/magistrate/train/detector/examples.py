"""What the network learns from: a context with one or several outputs and the truth of their tokens."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from magistrate.detectors.encoding import Encoder, Text
from magistrate.types import FAITHFUL, HALLUCINATED, Sample

UNKNOWN = -1
SORTED_TOGETHER = 50  # batches whose examples are sorted by length before they are cut
MOST_OUTPUTS = 6  # that share a context


@dataclass(frozen=True, slots=True)
class Answer:
    """An output as it is learnt from: the `truth` of a token is 1 for wrong, 0 for right, or `UNKNOWN`."""

    text: Text
    truth: tuple[int, ...]
    hallucinated: bool
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Example:
    """A context, and the outputs that are read with it."""

    before: Text
    answers: tuple[Answer, ...]

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.before.ids) + sum(len(each.text.ids) for each in self.answers)


def examples(samples: Iterable[Sample], encoder: Encoder) -> Iterator[Example]:
    """Labelled samples, those that share a context together.

    A faithful output is faithful in every token; a hallucinated one is where its spans say, and where it has
    none nothing is known of its tokens. An output that is too long for a window is cut, and left out where
    nothing says which part of it is wrong.
    """
    groups: dict[object, list[Sample]] = {}
    for each in samples:
        if each.label in (FAITHFUL, HALLUCINATED) and each.output:
            groups.setdefault((each.context, each.messages, each.input), []).append(each)
    for sharing in groups.values():
        source = encoder.source(sharing[0])
        read = ((each, *encoder.output(each.output or "", source)) for each in sharing)
        answers = [answer for one in read if (answer := _answer(encoder, *one)) is not None]
        for at in range(0, len(answers), MOST_OUTPUTS):
            together = tuple(answers[at : at + MOST_OUTPUTS])
            longest = max(len(each.text.ids) for each in together)
            every = [token for each in together for token in each.text.ids]
            yield Example(encoder.before(source, every, encoder.window - longest), together)


def _answer(encoder: Encoder, sample: Sample, text: Text, places: Sequence[tuple[int, int]]) -> Answer | None:
    most = encoder.longest_output
    wrong = sample.label == HALLUCINATED
    if not text.ids or (wrong and not sample.spans and len(text.ids) > most):
        return None
    if not wrong:
        truth = [0] * len(places)
    elif not sample.spans:
        truth = [UNKNOWN] * len(places)
    else:
        truth = [
            int(any(span.start < end and start < span.end for span in sample.spans)) for start, end in places
        ]
    cut = Text(text.ids[:most], text.types[:most]).then(encoder.end)
    truth = truth[:most]
    weight = float(sample.metadata.get("weight", 1.0))
    return Answer(cut, tuple(truth), wrong and any(each != 0 for each in truth), weight)


def batches(every: Sequence[Example], tokens: int, seed: str) -> list[list[Example]]:
    """All examples in an order that `seed` says, in batches of at most `tokens` tokens with their padding."""
    order = list(every)
    random.Random(seed).shuffle(order)
    found: list[list[Example]] = []
    typical = sum(each.length for each in order) / max(len(order), 1)
    together = max(1, int(SORTED_TOGETHER * tokens / max(typical, 1)))
    for at in range(0, len(order), together):
        batch: list[Example] = []
        for example in sorted(order[at : at + together], key=lambda each: each.length):
            if batch and (len(batch) + 1) * example.length > tokens:
                found.append(batch)
                batch = []
            batch.append(example)
        found.append(batch)
    random.Random(seed + "/batches").shuffle(found)
    return found
