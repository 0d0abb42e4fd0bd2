"""Outcomes as rows: one plain dict or one data-frame row each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from magistrate.datasets.frames import FrameIndex
from magistrate.errors import MissingExtra
from magistrate.types import Abstention, Failure, Outcome, Sample, Scoring, Verdict

if TYPE_CHECKING:
    import pandas

# Column -> pandas type. All of them can be missing; none turns a missing number into NaN.
COLUMNS = {
    "sample_id": "string",
    "judge": "string",
    "kind": "string",
    "label": "string",
    "score": "Float64",
    "probability": "Float64",
    "direction": "string",
    "threshold": "Float64",
    "explanation": "string",
    "gold_label": "string",
    "reason": "string",
    "message": "string",
    "seconds": "Float64",
    "tokens": "Int64",
}

WIDE = ("kind", "label", "score", "probability", "explanation", "reason")
"""The columns of each judge in a frame of one row a sample."""


def table(
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    scoring: Mapping[str, Scoring] | None = None,
) -> list[dict[str, Any]]:
    """One dict an outcome, in the order given, with the keys of `COLUMNS`.

    `direction` and `threshold` say how the score is read, by the `scoring` of the run; None where it does not
    say. `kind` is `verdict`, `failure` or `abstention`; `reason` is the code of a failure or the reason of
    an abstention and `message` says more; `tokens` are those read and written. What does not apply
    is None, as is `gold_label` where the sample is not among `samples` or has none.
    """
    known = scoring or {}
    return [_row(samples.get(each.sample_id), each, known.get(each.judge)) for each in outcomes]


def to_pandas(
    samples: Mapping[str, Sample],
    outcomes: Iterable[Outcome],
    *,
    index: FrameIndex | None = None,
    wide: bool = False,
    scoring: Mapping[str, Scoring] | None = None,
) -> pandas.DataFrame:
    """`table` as a data frame of nullable columns. Raises `MissingExtra` without pandas.

    With `index`, that of the frame that the samples came in, each row stands where its sample stood. A
    `wide` frame has one row a sample, judged or not, and the columns `WIDE` of each judge, named as in
    `faithfulness.label`.
    """
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtra("pandas", "pandas") from error
    rows = table(samples, outcomes, scoring)
    own = [samples[row["sample_id"]] for row in rows] if index is not None else []
    types = COLUMNS
    if wide:
        own, judges = list(samples.values()), list(dict.fromkeys(row["judge"] for row in rows))
        types = {name: COLUMNS[name] for name in ("sample_id", "gold_label")}
        types |= {f"{judge}.{name}": COLUMNS[name] for judge in judges for name in WIDE}
        said = {(row["sample_id"], row["judge"]): row for row in rows}
        rows = [_wide(sample, judges, said) for sample in own]
    frame = pandas.DataFrame(rows, columns=list(types)).astype(types)
    return frame if index is None else frame.set_axis(index.again(own), axis=0)


def _wide(
    sample: Sample, judges: Iterable[str], said: Mapping[tuple[str, str], Mapping[str, Any]]
) -> dict[str, Any]:
    row: dict[str, Any] = {"sample_id": sample.id, "gold_label": sample.label}
    for judge in judges:
        own = said.get((sample.id, judge), {})
        row |= {f"{judge}.{name}": own.get(name) for name in WIDE}
    return row


def _row(sample: Sample | None, outcome: Outcome, scoring: Scoring | None) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {
        "sample_id": outcome.sample_id,
        "judge": outcome.judge,
        "gold_label": sample.label if sample is not None else None,
        "seconds": outcome.seconds,
        "tokens": outcome.usage.prompt + outcome.usage.generated,
    }
    match outcome:
        case Verdict():
            row |= {
                "kind": "verdict",
                "label": outcome.label,
                "score": outcome.score,
                "probability": outcome.probability,
                "direction": None if scoring is None else scoring.direction,
                "threshold": None if scoring is None else scoring.threshold,
                "explanation": outcome.explanation,
            }
        case Failure():
            row |= {"kind": "failure", "reason": outcome.code, "message": outcome.message}
        case Abstention():
            row |= {"kind": "abstention", "reason": outcome.reason, "message": outcome.message}
    return row
