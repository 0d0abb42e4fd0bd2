"""How much of each sentence's wording one passage of the sources covers, at best."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from magistrate.signals.wording import Wording
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


def covers(
    output: Wording,
    sentences: Sequence[Run],
    passages: Sequence[tuple[Wording, Run]],
    ignored: Container[str] = frozenset(),
) -> tuple[Cover, ...]:
    """Each sentence against the passage that covers most of it; sentences without content are left out, and
    words whose stems are `ignored` do not count.

    A word weighs its inverse frequency among the passages (Spärck Jones 1972), in a form that gives words
    that no passage has the most.
    """
    import numpy as np

    content = frozenset(number for number in output.content if output.stems[number] not in ignored)
    stems = list(dict.fromkeys(output.stems[number] for number in output.content if number in content))
    column = {stem: number for number, stem in enumerate(stems)}
    has = np.zeros((max(len(passages), 1), len(stems)), bool)
    for row, (source, (first, last)) in enumerate(passages):
        for stem in source.stems[first:last]:
            if (at := column.get(stem)) is not None:
                has[row, at] = True
    weights = np.log1p(len(has) / (has.sum(axis=0) + 0.5))
    found = []
    for first, last in sentences:
        counted = [column[output.stems[at]] for at in range(first, last) if at in content]
        if counted:
            columns = np.array(sorted(set(counted)))
            covered = has[:, columns].astype(np.float64) @ weights[columns]
            best = int(covered.argmax())
            lack = max(0.0, 1.0 - float(covered[best] / weights[columns].sum()))
            found.append(Cover(output.span(first, last - 1), len(counted), lack, best))
    return tuple(found)
