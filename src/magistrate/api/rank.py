"""`rank`: rank candidates from a run of the judge `pairwise`, or from a file of comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magistrate.analysis.columns import missing, one_judge
from magistrate.analysis.ranking import Match, Ranking, Winner, ranking
from magistrate.api.run import Run
from magistrate.api.stored import Judged, RunRef, StorePlace, judged
from magistrate.datasets.files import looks_like_path, open_file
from magistrate.datasets.rows import Problem, unread_of
from magistrate.datasets.selection import value_at
from magistrate.errors import DatasetError, SpecError
from magistrate.judges.pairwise import BETTER, TIE, WORSE
from magistrate.types import Sample, Verdict

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "first": ("model_a", "first", "a"),
    "second": ("model_b", "second", "b"),
    "winner": ("winner", "preference", "label"),
    "question": ("question_id", "question", "prompt_id", "prompt", "input"),
}
"""Column names that are known, by what they hold; the first one that is there is taken."""
WORDS: Mapping[Winner, tuple[str, ...]] = {
    "first": ("first", "model_a", "a", "1", "response_a"),
    "second": ("second", "model_b", "b", "2", "response_b"),
    "tie": ("tie", "tie (bothbad)", "draw", "both", "neither", "0"),
}
NOT_READ = "not readable"  # reason for which a row is left out
SIDES = {"first": "metadata.model_a", "second": "metadata.model_b"}
WINNERS: Mapping[str, Winner] = {BETTER: "first", WORSE: "second", TIE: "tie"}


def rank(
    source: RunRef | Path,
    *,
    judge: str | None = None,
    fields: Mapping[str, str] | None = None,
    store: StorePlace | None = None,
    seed: int = 0,
) -> Ranking:
    """Rank the candidates of a run of `pairwise`, or of a file of comparisons (a path, or text like one).

    In a run, `fields["first"]` and `fields["second"]` are the places in a sample's metadata of the names of
    the candidates that wrote `output` and `alternatives[0]` (`metadata.model_a` and `metadata.model_b`),
    and the input is the question. In a file, `fields` names the columns with `first`, `second`, `winner`
    and `question`; otherwise known names are used. The winner is a candidate's name, or first, second or
    tie. Intervals come from a bootstrap of whole questions; a row without one is its own question. Raises
    `SpecError` and `DatasetError` for unknown names and unreadable data, `InputError` if nothing is left.
    """
    named = dict(fields or {})
    if wrong := sorted(set(named) - set(COLUMNS)):
        raise SpecError(f"unknown field {wrong[0]!r}; known: {', '.join(COLUMNS)}")
    if isinstance(source, Path) or (not isinstance(source, Run) and looks_like_path(source)):
        if judge is not None:
            raise SpecError("--judge needs a run, not a file of comparisons")
        return _of_file(Path(str(source)), named, seed)
    if "winner" in named:
        raise SpecError("--winner needs a file; in a run, the judge decides the winner")
    return _of_run(source, judge, named, store, seed)


# --- a run ----------------------------------------------------------------------------------------


def _of_run(
    run: RunRef, judge: str | None, named: Mapping[str, str], store: StorePlace | None, seed: int
) -> Ranking:
    own = judged(run, judge, store)
    one_judge(own.record.judges, own.judge, f"run {own.name}")
    sides = {side: named.get(side, path) for side, path in SIDES.items()}
    matches, left_out = matches_of(own, sides, named.get("question"))
    if (unread := unread_of(own.record.settings)) is not None and unread.n:
        left_out[NOT_READ] += unread.n
    return ranking(
        matches,
        source=f"run {own.name}, {own.judge}",
        left_out=dict(left_out.most_common()),
        seed=seed,
    )


def matches_of(
    own: Judged, sides: Mapping[str, str], question: str | None = None
) -> tuple[list[Match], Counter[str]]:
    """Return a judge's comparisons in a run, and the number of samples left out by reason.

    `sides` maps `first` and `second` to the metadata paths of the two candidates' names. Raises `SpecError`
    for a judge that compares nothing.
    """
    matches, left_out = list[Match](), Counter[str]()
    for sample in own.samples.values():
        outcome = own.outcomes.get(sample.id)
        if not isinstance(outcome, Verdict):
            left_out[missing(outcome)] += 1
            continue
        if outcome.label not in WINNERS:
            raise SpecError(
                f"judge {own.judge!r} has the label {outcome.label!r}, so it does not compare "
                "answers; use pairwise"
            )
        first, second = (value_at(sample, path) for path in sides.values())
        if first is None or second is None:
            left_out[f"without {sides['first'] if first is None else sides['second']}"] += 1
            continue
        winner, consistent = WINNERS[outcome.label], outcome.details.get("consistent")
        matches.append(Match(first, second, winner, _question(sample, question), consistent))
    return matches, left_out


def _question(sample: Sample, path: str | None) -> str:
    """Return the key that samples of one question share."""
    if path is not None:
        return value_at(sample, path) or sample.id
    return sample.input or "\n".join(sample.sources) or sample.id


# --- a file ---------------------------------------------------------------------------------------


def _of_file(path: Path, named: Mapping[str, str], seed: int) -> Ranking:
    matches, left_out, example = list[Match](), Counter[str](), ""
    source = open_file(path)
    for number, row in enumerate(source.rows(), 1):
        if isinstance(row, Problem):
            left_out[NOT_READ] += 1
            example = example or str(row)
            continue
        found = _match(row.values, named, number)
        if isinstance(found, Match):
            matches.append(found)
        else:
            left_out[found] += 1
    if not matches:
        told = "; ".join(f"{n} rows {reason}" for reason, n in left_out.items()) or "it has no rows"
        raise DatasetError(
            f"no row of {source.shown} is a comparison: {told}{f' ({example})' if example else ''}; the "
            "columns first, second and winner are needed, or give their names: --first, --second, --winner"
        )
    return ranking(matches, source=source.shown, left_out=dict(left_out.most_common()), seed=seed)


def _match(values: Mapping[str, Any], named: Mapping[str, str], number: int) -> Match | str:
    """Return one row's comparison, or the reason why it is not valid."""
    found = {}
    for field, known in COLUMNS.items():
        column = named.get(field) or next((each for each in known if each in values), None)
        value = None if column is None else values.get(column)
        found[field] = None if value is None else str(value).strip()
    first, second, said = found["first"], found["second"], found["winner"]
    for field in ("first", "second", "winner"):
        if not found[field]:
            return f"without {field}"
    assert first and second and said
    if first == second:
        return "of a candidate with itself"
    if said in (first, second):
        winner: Winner | None = "first" if said == first else "second"
    else:
        winner = next((name for name, words in WORDS.items() if said.lower() in words), None)
    if winner is None:
        return "with a winner that is neither of the two nor a tie"
    return Match(first, second, winner, found["question"] or f"row {number}")
