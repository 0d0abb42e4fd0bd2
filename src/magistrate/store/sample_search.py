"""Search in the texts of a run's samples, and what is read of the samples that were found.

The database only narrows the rows down: each word is a parameter of a `LIKE` whose wildcards are escaped.
What it finds is read and compared again in Python, since a document also contains the names of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from sqlalchemy import ColumnElement, Connection, and_, func, or_, select

from magistrate.store.codec import loads, sample_from
from magistrate.store.outcomes import outcome_from
from magistrate.store.runs import streamed
from magistrate.store.schema import outcomes, run_samples, samples
from magistrate.types import Outcome, Sample

MOST_SEARCHED = 200_000
TEXTS = ("output", "input", "expected")
LISTS = ("context", "alternatives")


@dataclass(frozen=True, slots=True)
class FoundSamples:
    """The positions of the samples in which all words occur. The run's last `n_left_out` samples were not
    searched.
    """

    positions: frozenset[int]
    n_left_out: int


@dataclass(frozen=True, slots=True)
class BareOutcome:
    """An outcome with the fields for filtering and sorting, and the position of its sample."""

    position: int
    kind: str
    label: str | None
    gold: str | None
    score: float | None
    code: str | None


class SampleSearch:
    """Search in a run's samples at one moment; a part of `Snapshot`."""

    _connection: Connection

    def find_samples(self, run_id: str, words: Sequence[str], most: int = MOST_SEARCHED) -> FoundSamples:
        """Return the first `most` samples of the run in which each word occurs, in any case.

        A word may be in the sample's id, output, input, context, expected output, messages or alternatives.
        """
        mine = run_samples.c.run_id == run_id
        behind = select(func.count()).select_from(run_samples).where(mine, run_samples.c.position >= most)
        asked = select(run_samples.c.position, run_samples.c.sample_id, samples.c.body)
        asked = asked.join_from(run_samples, samples).where(mine, run_samples.c.position < most)
        asked = asked.where(and_(True, *map(_may_hold, words)))
        folded = [word.casefold() for word in words]
        found = frozenset(
            position
            for position, sample_id, body in streamed(self._connection, asked)
            if _holds(sample_id, body, folded)
        )
        return FoundSamples(found, self._connection.scalar(behind) or 0)

    def bare_rows(self, run_id: str, judge: str) -> Iterator[BareOutcome]:
        """Yield a judge's outcomes in the order of the samples, without any document."""
        columns = [outcomes.c[name] for name in BareOutcome.__dataclass_fields__]
        asked = select(*columns).where(outcomes.c.run_id == run_id, outcomes.c.judge == judge)
        for row in streamed(self._connection, asked.order_by(outcomes.c.position)):
            yield BareOutcome(*row)

    def judged_at(
        self, run_id: str, judge: str, positions: Sequence[int]
    ) -> dict[int, tuple[Sample, Outcome]]:
        """Return the samples at these positions with the judge's outcomes, by position, without steps."""
        asked = (
            select(outcomes, run_samples.c.sample_id, samples.c.body.label("sample_body"))
            .select_from(outcomes)
            .join(run_samples)
            .join(samples, samples.c.key == run_samples.c.sample_key)
            .where(outcomes.c.run_id == run_id, outcomes.c.judge == judge, outcomes.c.position.in_(positions))
        )
        return {
            row.position: (sample_from(row.sample_id, row.sample_body), outcome_from(row, None))
            for row in self._connection.execute(asked)
        }


def _may_hold(word: str) -> ColumnElement[bool]:
    """Return the condition that a word may occur in a sample, as typed or in another case.

    Databases fold the case of ASCII letters only, and documents have all others as escapes. So other
    letters are looked for as typed, in lower and upper case, and with one capital.
    """
    spelled = dict.fromkeys((word, word.lower(), word.upper(), word.capitalize(), word.casefold()))
    variants = [word] if word.isascii() else list(spelled)
    return or_(
        *(run_samples.c.sample_id.icontains(each, autoescape=True) for each in variants),
        *(samples.c.body.icontains(json.dumps(each)[1:-1], autoescape=True) for each in variants),
    )


def _holds(sample_id: str, body: str, folded: Sequence[str]) -> bool:
    texts = [sample_id.casefold(), *(text.casefold() for text in _texts(body))]
    return all(any(word in text for text in texts) for word in folded)


def _texts(body: str) -> Iterator[str]:
    try:
        fields: dict[str, Any] = from_json(body.encode("ascii"))
    except ValueError:  # also for lone surrogates, which only the slower parser accepts
        fields = loads(body)
    yield from (text for name in TEXTS if (text := fields.get(name)) is not None)
    yield from (text for name in LISTS for text in fields.get(name, ()))
    yield from (text for _, text in fields.get("messages", ()))
