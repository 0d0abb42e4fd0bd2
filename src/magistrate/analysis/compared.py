"""What a comparison of judges found, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magistrate._text import decimal, signed, table
from magistrate.metrics.classification import Estimate
from magistrate.metrics.paired import ALPHA


@dataclass(frozen=True, slots=True)
class SideResult:
    """What a side is in the comparison: its own coverage, and its figures on the samples that all share."""

    name: str
    run: str
    judge: str
    n_total: int
    n_ok: int
    failures: int
    abstentions: int
    labels: Mapping[str, int]
    figures: Mapping[str, Estimate]

    @property
    def coverage(self) -> float | None:
        """`n_ok / n_total`; None for a run of no samples."""
        return self.n_ok / self.n_total if self.n_total else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `labels` are those given to the shared samples."""
        return {
            "name": self.name,
            "run": self.run,
            "judge": self.judge,
            "n_total": self.n_total,
            "n_ok": self.n_ok,
            "failures": self.failures,
            "abstentions": self.abstentions,
            "coverage": self.coverage,
            "labels": dict(self.labels),
            "metrics": {name: estimate.to_dict() for name, estimate in self.figures.items()},
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """The first side's metric less the second's, with its interval.

    `p` is of no difference, None where the samples give none. A primary metric is what was asked about:
    `corrected` is its p value corrected for all that was asked together, and `detectable` the difference that
    as many samples would show 4 times in 5 as the first of those, None where they cannot show any. Every
    other metric is `exploratory`: neither is there, and nothing is shown by it. `error` is the difference's
    standard error.
    """

    metric: str
    value: Estimate
    p: float | None
    corrected: float | None
    detectable: float | None
    error: float | None = None
    exploratory: bool = False

    @property
    def better(self) -> int:
        """1 where the first side is shown to be better, -1 where the second is, 0 where neither is."""
        if self.exploratory or self.corrected is None or self.corrected >= ALPHA or not self.value.value:
            return 0
        return 1 if (self.value.value > 0) == (self.metric != "brier") else -1

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **self.value.to_dict(),
            "p": self.p,
            "p_corrected": self.corrected,
            "exploratory": self.exploratory,
            "standard_error": self.error,
            "detectable": self.detectable,
            "better": {1: "first", -1: "second", 0: None}[self.better],
        }


def outcome_of(each: Difference) -> str:
    """What a difference says of the first side, in a word or two."""
    if each.p is None:
        return "not known"
    if each.exploratory:
        return "exploratory"
    return {1: "better", -1: "worse", 0: "not shown"}[each.better]


@dataclass(frozen=True, slots=True)
class Flip:
    """A sample on which two sides differ. `right` names the side that is, None where that is not known."""

    sample_id: str
    gold: str | None
    first: str
    second: str
    first_score: float
    second_score: float
    right: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "sample": self.sample_id,
            "gold": self.gold,
            "first": self.first,
            "second": self.second,
            "first_score": self.first_score,
            "second_score": self.second_score,
            "right": self.right,
        }


@dataclass(frozen=True, slots=True)
class PairResult:
    """Two sides: how often each alone was right, every difference, and the samples that flip.

    The four counts and the p value of McNemar's test, which is exploratory, are None without gold labels.
    """

    first: str
    second: str
    both_right: int | None
    only_first: int | None
    only_second: int | None
    both_wrong: int | None
    mcnemar: float | None
    differences: Mapping[str, Difference]
    flips: tuple[Flip, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, every flip among them."""
        return {
            "first": self.first,
            "second": self.second,
            "both_right": self.both_right,
            "only_first_right": self.only_first,
            "only_second_right": self.only_second,
            "both_wrong": self.both_wrong,
            "mcnemar_p": self.mcnemar,
            "differences": {name: each.to_dict() for name, each in self.differences.items()},
            "flips": [each.to_dict() for each in self.flips],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Judges on the `n` samples, of `n_all` different ones, that all judged and that could be matched.

    `left_out` counts the others by the reason. Of `metrics` those in `primary` are what was asked: `family`
    is how many p values of theirs were corrected together. The others are exploratory. `gold` says whether
    the samples are labelled, so that better and worse mean something.
    """

    n: int
    n_all: int
    n_contexts: int
    left_out: Mapping[str, int]
    gold: bool
    metrics: tuple[str, ...]
    primary: tuple[str, ...]
    family: int
    draws: int
    seed: int
    sides: tuple[SideResult, ...]
    pairs: tuple[PairResult, ...]
    sentences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "n": self.n,
            "n_all": self.n_all,
            "n_contexts": self.n_contexts,
            "left_out": dict(self.left_out),
            "gold": self.gold,
            "metrics": list(self.metrics),
            "primary": list(self.primary),
            "corrected_together": self.family,
            "draws": self.draws,
            "seed": self.seed,
            "sides": [side.to_dict() for side in self.sides],
            "pairs": [pair.to_dict() for pair in self.pairs],
            "sentences": list(self.sentences),
            "remarks": list(self.remarks),
        }

    def _repr_html_(self) -> str:
        sides = [
            (side.name, f"{side.n_ok}/{side.n_total}", *(str(each) for each in side.figures.values()))
            for side in self.sides
        ]
        title = f"{self.n} of {self.n_all} samples, {self.n_contexts} contexts"
        pages = [table(("judge", "ok", *self.metrics), sides, title=title)]
        for pair in self.pairs:
            rows = [
                (
                    name,
                    signed(each.value.value),
                    ""
                    if each.value.low is None
                    else f"[{signed(each.value.low)}, {signed(each.value.high)}]",
                    decimal(each.p),
                    decimal(each.corrected),
                    decimal(each.detectable),
                    outcome_of(each),
                )
                for name, each in pair.differences.items()
            ]
            if rows:
                head = ("metric", "difference", "95 % interval", "p", "p, corrected", "detectable", "")
                pages.append(table(head, rows, title=f"{pair.first} minus {pair.second}"))
        if told := [(each,) for each in (*self.sentences, *self.remarks)]:
            pages.append(table(("in words",), told))
        return "".join(pages)
