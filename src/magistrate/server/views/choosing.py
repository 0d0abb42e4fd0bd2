"""Which judges of which runs are to be compared, as addresses name them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from magistrate._text import shorten
from magistrate.errors import SpecError
from magistrate.store import RunRecord, Store

MOST_SIDES = 6
"""Six sides are fifteen pairs; more take long, and their correction leaves little to be shown."""
_MOST_WORDS = 2 * MOST_SIDES
_MOST_UNKNOWN = 3  # what comes near to an unknown name is looked for among all runs, which takes a while


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A judge of a run that is to be compared, the run as it is at `revision`.

    `word` is how an address names it.
    """

    word: str
    run: str
    name: str | None
    judge: str
    dataset: str
    status: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an address asks for: the sides that there are, and why it cannot be had, None where it can.

    `unknown` says that a run or a judge is meant that there is not.
    """

    sides: tuple[Chosen, ...]
    problem: str | None = None
    unknown: bool = False


def word_of(run_id: str, judge: str) -> str:
    """A judge of a run as one word of an address: the id of the run, a colon, the name of the judge.

    What no page can hold is escaped in it, and the sign that escapes.

    >>> word_of("20260102-1", "strict: 5 %"), word_of("20260102-1", "\\x1b")
    ('20260102-1:strict: 5 %25', '20260102-1:%1B')
    """
    told = (
        letter if letter.isprintable() and letter != "%" else quote(letter, safe="", errors="surrogatepass")
        for letter in judge
    )
    return f"{run_id}:{''.join(told)}"


def parsed(word: str) -> tuple[str, str | None]:
    """The run's id and the judge, None where the word names a run alone; ids of runs hold no colon."""
    run_id, colon, judge = word.partition(":")
    if not colon:
        return run_id, None
    try:
        return run_id, unquote(judge, errors="surrogatepass")
    except UnicodeDecodeError:
        return run_id, unquote(judge)  # no name is written like this, so that there is none of it


def wanted(store: Store, words: Sequence[str]) -> Wanted:
    """The sides that these words name: a judge of a run, or all judges of one."""
    found: list[Chosen] = []
    records: dict[str, RunRecord] = {}
    unknown: list[str] = []
    with store.snapshot() as moment:
        for word in words[:_MOST_WORDS]:
            run_id, judge = parsed(word)
            try:
                if run_id not in records:
                    records[run_id] = store.seen(moment.record(run_id))
                found += _chosen(records[run_id], judge)
            except SpecError as error:
                unknown.append(str(error))
                if len(unknown) == _MOST_UNKNOWN:
                    break
    sides = tuple({(each.run, each.judge): each for each in found}.values())
    return Wanted(
        sides=sides[:_MOST_WORDS],
        problem=unknown[0] if unknown else _problem(found, sides, len(words)),
        unknown=bool(unknown),
    )


def _problem(found: Sequence[Chosen], sides: Sequence[Chosen], n_words: int) -> str | None:
    """Why these cannot be compared."""
    if len(sides) < len(found):
        twice = next(each for at, each in enumerate(found) if each in found[:at])
        called = f"{shorten(twice.judge)} of run {shorten(twice.name or twice.run)}"
        return f"{called} is named twice; a judge and itself do not differ"
    if len(sides) > MOST_SIDES or n_words > _MOST_WORDS:
        return f"at most {MOST_SIDES} judges are compared at once; leave some out"
    return None


def _chosen(record: RunRecord, judge: str | None) -> list[Chosen]:
    if judge is not None and judge not in record.judges:
        known = ", ".join(map(shorten, record.judges[:5])) or "none"
        raise SpecError(f"run {record.id} has no judge {shorten(repr(judge))}; it has: {known}")
    if not record.judges:
        raise SpecError(f"run {record.id} has no judge yet")
    return [
        Chosen(
            word=word_of(record.id, each),
            run=record.id,
            name=record.name,
            judge=each,
            dataset=record.dataset,
            status=record.status,
            revision=record.revision,
        )
        for each in (record.judges if judge is None else (judge,))
    ]
