"""How much of each sentence's wording one passage of the sources covers, at best."""

from __future__ import annotations

import math
from array import array
from collections.abc import Container, Sequence
from dataclasses import dataclass

from magistrate._deadline import check
from magistrate.features.wording import Wording
from magistrate.types import Span

Run = tuple[int, int]  # numbers of words, first and one behind the last


@dataclass(frozen=True, slots=True)
class Cover:
    """A sentence, how many words with content it has, and the share in [0, 1] of their weight that is lacking
    from `passage`, the number of the one that covers most."""

    span: Span
    words: int
    lack: float
    passage: int


class Passages:
    """Runs of words of the sources, and for each stem the numbers of the passages that have it."""

    def __init__(self, passages: Sequence[tuple[Wording, Run]]) -> None:
        self.runs = tuple(passages)
        self._having: dict[str, array[int]] = {}
        for number, (source, (first, last)) in enumerate(self.runs):
            if number % 64 == 0:
                check()
            for stem in set(source.stems[first:last]):
                self._having.setdefault(stem, array("l")).append(number)

    def __len__(self) -> int:
        return len(self.runs)

    def having(self, stem: str) -> Sequence[int]:
        """The numbers of the passages with a word of this stem, in their order."""
        return self._having.get(stem, ())


def covers(
    output: Wording, sentences: Sequence[Run], passages: Passages, ignored: Container[str] = frozenset()
) -> tuple[Cover, ...]:
    """Each sentence against the passage that covers most of it; sentences without content are left out, and
    words whose stems are `ignored` do not count.

    A word weighs its inverse frequency among the passages (Spärck Jones 1972), in a form that gives words
    that no passage has the most.
    """
    import numpy as np

    content = frozenset(number for number in output.content if output.stems[number] not in ignored)
    n = max(len(passages), 1)
    found = []
    for first, last in sentences:
        check()
        counted = [output.stems[at] for at in range(first, last) if at in content]
        if counted:
            covered, whole = np.zeros(n), 0.0
            for stem in dict.fromkeys(counted):
                having = passages.having(stem)
                weight = math.log1p(n / (len(having) + 0.5))
                whole += weight
                if having:
                    covered[np.asarray(having)] += weight
            best = int(covered.argmax())
            lack = max(0.0, 1.0 - float(covered[best] / whole))
            found.append(Cover(output.span(first, last - 1), len(counted), lack, best))
    return tuple(found)
