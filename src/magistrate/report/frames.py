"""Outcomes as rows: one plain dict or one data-frame row each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from magistrate.errors import MissingExtra
from magistrate.types import Abstention, Failure, Outcome, Sample, Verdict

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
    "explanation": "string",
    "gold_label": "string",
    "reason": "string",
    "message": "string",
    "seconds": "Float64",
    "tokens": "Int64",
}


def table(samples: Mapping[str, Sample], outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """One dict an outcome, in the order given, with the keys of `COLUMNS`.

    `kind` is `verdict`, `failure` or `abstention`; `reason` is the code of a failure or the reason of
    an abstention and `message` says more; `tokens` are those read and written. What does not apply
    is None, as is `gold_label` where the sample is not among `samples` or has none.
    """
    return [_row(samples.get(outcome.sample_id), outcome) for outcome in outcomes]


def to_pandas(samples: Mapping[str, Sample], outcomes: Iterable[Outcome]) -> pandas.DataFrame:
    """`table` as a data frame of nullable columns. Raises `MissingExtra` without pandas."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise MissingExtra("pandas", "pandas") from error
    return pandas.DataFrame(table(samples, outcomes), columns=list(COLUMNS)).astype(COLUMNS)


def _row(sample: Sample | None, outcome: Outcome) -> dict[str, Any]:
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
                "explanation": outcome.explanation,
            }
        case Failure():
            row |= {"kind": "failure", "reason": outcome.code, "message": outcome.message}
        case Abstention():
            row |= {"kind": "abstention", "reason": outcome.reason, "message": outcome.message}
    return row
