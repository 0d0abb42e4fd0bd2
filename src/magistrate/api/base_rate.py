"""The share of hallucinated outputs that a judge assumes (base rate): given, or estimated from a batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate import _async
from magistrate.engines.none import NONE
from magistrate.errors import SpecError
from magistrate.judges.base import Judge
from magistrate.judges.registry import judge as judge_of
from magistrate.judges.registry import settable, spelled, split_options, unenclosed
from magistrate.metrics.calibration import EVEN, estimated_base_rate
from magistrate.runs.execute import judge_one
from magistrate.types import Sample, Verdict

OPTION, INNER = "base_rate", "of"
DECIMALS = 3  # of an estimate written into a judge's specification

Make = Callable[[str], Judge]


@dataclass(frozen=True, slots=True)
class Estimated:
    """A judge's specification with its base rate, and the number of verdicts that it was estimated from.

    `n_without` outputs had no verdict. `n_verdicts` is 0 if the share was given, not estimated.
    """

    words: str
    base_rate: float
    n_verdicts: int = 0
    n_without: int = 0


def assuming(
    words: Sequence[str],
    base_rate: float | None,
    *,
    samples: Callable[[], Iterable[Sample]] | None = None,
    make: Make = judge_of,
) -> list[Estimated | None]:
    """Return each judge's specification with `base_rate` set; None for a judge without that option.

    If `base_rate` is None, it is estimated from `samples()`, which are judged once more for this, from the
    probabilities that the judge gives at even odds (Saerens and others 2002). Raises `SpecError` if no
    judge has the option, if one has it set already, and if the estimate would call a model.
    """
    even = [_with(each, EVEN, make) for each in words]
    if not any(even):
        raise SpecError(
            f"none of the judges {', '.join(words)} uses a base rate; judges that do have an option "
            f"{OPTION}, such as novelty"
        )
    if base_rate is not None:
        given = [each and _with(each, base_rate, make) for each in words]
        return [
            Estimated(told, base_rate) if there and told else None
            for there, told in zip(even, given, strict=True)
        ]
    assert samples is not None
    asked = {each: make(each) for each in even if each is not None}
    if asking := [each for each, judge in asked.items() if judge.info.asks]:
        raise SpecError(
            f"estimating the base rate would judge all samples twice, and {asking[0]} asks a model; give a "
            "share, such as 0.2"
        )
    found = dict(zip(asked, _estimates(list(asked.values()), samples()), strict=True))
    answered: list[Estimated | None] = []
    for mine, there in zip(words, even, strict=True):
        if there is None:
            answered.append(None)
            continue
        share, verdicts, without = found[there]
        told = _with(mine, share, make)
        assert told is not None
        answered.append(Estimated(told, share, verdicts, without))
    return answered


def _estimates(judges: Sequence[Judge], samples: Iterable[Sample]) -> list[tuple[float, int, int]]:
    """Return for each judge the share, the number of its verdicts, and the number of outputs without one."""
    scores: list[list[float]] = [[] for _ in judges]
    n = 0
    for sample in samples:
        n += 1
        for judge, own in zip(judges, scores, strict=True):
            outcome = _async.run(judge_one(sample, judge, NONE))
            if isinstance(outcome, Verdict):
                own.append(outcome.score)
    for judge, own in zip(judges, scores, strict=True):
        if not own:
            raise SpecError(
                f"judge {judge.info.name!r} has no verdict on any of {n:,} outputs, so no base rate can be "
                "estimated; give a share, such as 0.2"
            )
    return [(round(estimated_base_rate(own), DECIMALS), len(own), n - len(own)) for own in scores]


def _with(words: str, base_rate: float, make: Make) -> str | None:
    """Return a judge's words with the option set, on the judge or the one that it wraps, else None."""
    judge = make(words)
    fields = {field.name for field in settable(judge)} if dataclasses.is_dataclass(judge) else set[str]()
    name, colon, options = words.partition(":")
    given = dict(option.partition("=")[::2] for option in split_options(options)) if colon else {}
    if OPTION in fields:
        if OPTION in given:
            raise SpecError(f"{words} already sets {OPTION}; set it there or with the option, not both")
        return f"{words}{',' if colon and options else ':' * (not colon)}{OPTION}={base_rate!r}"
    inner: Any = getattr(judge, INNER) if INNER in fields else None
    if not hasattr(inner, "info"):  # None, or an option of that name that is not a judge
        return None
    told = _with(unenclosed(given[INNER]) if INNER in given else spelled(inner), base_rate, make)
    if told is None:
        return None
    kept = [option for option in split_options(options) if option.partition("=")[0] != INNER] if colon else []
    return f"{name}:{','.join([f'{INNER}=({told})', *kept])}"
