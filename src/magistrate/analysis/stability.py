"""How stable a judge is: verdicts on samples as they are beside those on the same samples changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from magistrate.analysis.columns import groups_of
from magistrate.metrics.classification import Estimate
from magistrate.types import Abstention, Failure, Outcome, Sample, Verdict


@dataclass(frozen=True, slots=True)
class Pair:
    """One sample judged as it is (`plain`) and otherwise (`changed`), by the change called `change`.

    `control` is the outcome of a harmless change of the same size, where the check has one.
    """

    sample: Sample
    change: str
    plain: Outcome
    changed: Outcome
    control: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does to verdicts: shares in [0, 1], changes of the score in [-1, 1], 95 % intervals.

    Of `trials` pairs the `pairs` with a verdict on every side are counted. `flipped` is the share of them
    with another label, `flips` how many by `from -> to`, `moved` the mean change of the score. The same
    `under_control`, None where there is no control, and `excess`, the share beyond that of the control.
    `failures` and `abstentions` count, by code and reason, the changed and control outcomes that are no
    verdict; `unjudged` trials have none for the sample as it is. `unchanged` samples are those that the
    change leaves as they are; they are no trials. `contexts` and `changes` are how many different ones the
    pairs have: what the intervals draw anew.
    """

    trials: int
    pairs: int
    unchanged: int
    contexts: int
    changes: int
    flipped: Estimate
    moved: Estimate
    flips: Mapping[str, int]
    under_control: Estimate | None
    moved_under_control: Estimate | None
    excess: Estimate | None
    failures: Mapping[str, int]
    abstentions: Mapping[str, int]
    unjudged: int

    @property
    def gravity(self) -> float:
        """How much the change does beyond its control, for the order of a report; -1 where nobody knows."""
        share = self.excess if self.excess is not None else self.flipped
        return -1.0 if share.value is None else share.value

    @property
    def n_flips(self) -> int:
        """How many labels differ."""
        return sum(self.flips.values())

    @property
    def n_lost(self) -> int:
        """How many trials have no verdict on some side."""
        return self.trials - self.pairs

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def effect(pairs: Sequence[Pair], *, unchanged: int = 0, seed: int = 0) -> Effect:
    """What the change of these pairs does; intervals draw contexts and changes anew, from `seed`."""
    judged = [pair for pair in pairs if all(isinstance(side, Verdict) for side in _sides(pair))]
    lost = [side for pair in pairs for side in _sides(pair)[1:] if not isinstance(side, Verdict)]
    figures = _figures(judged, controlled=any(pair.control is not None for pair in pairs), seed=seed)
    return Effect(
        trials=len(pairs),
        pairs=len(judged),
        unchanged=unchanged,
        flips=dict(Counter(_flip(pair) for pair in judged if _flip(pair)).most_common()),
        failures=dict(Counter(side.code for side in lost if isinstance(side, Failure)).most_common()),
        abstentions=dict(Counter(side.reason for side in lost if isinstance(side, Abstention)).most_common()),
        unjudged=sum(not isinstance(pair.plain, Verdict) for pair in pairs),
        **figures,
    )


def _sides(pair: Pair) -> list[Outcome]:
    return [pair.plain, pair.changed, *([] if pair.control is None else [pair.control])]


def _flip(pair: Pair) -> str:
    plain, changed = pair.plain, pair.changed
    if not isinstance(plain, Verdict) or not isinstance(changed, Verdict) or plain.label == changed.label:
        return ""
    return f"{plain.label} -> {changed.label}"


def _figures(judged: Sequence[Pair], *, controlled: bool, seed: int) -> dict[str, Any]:
    """Shares and means with their intervals; all are undefined where no pair has its verdicts."""
    import numpy as np

    from magistrate.metrics.crossed import crossed_means, mean_of, share_of
    from magistrate.metrics.resampling import LEAST_GROUPS

    none = Estimate.none("there are no pairs with a verdict on every side")
    names = ["flipped", "moved", *(["under_control", "moved_under_control", "excess"] if controlled else [])]
    found: dict[str, Any] = dict.fromkeys(("under_control", "moved_under_control", "excess"))
    if not judged:
        return found | dict.fromkeys(names, none) | {"contexts": 0, "changes": 0}
    rows = groups_of([pair.sample for pair in judged])
    numbers: dict[str, int] = {}
    columns = np.array([numbers.setdefault(pair.change, len(numbers)) for pair in judged])
    table = np.array([_values(pair, controlled) for pair in judged], dtype=np.float64)
    drawn = crossed_means(table, rows, columns, seed=seed)
    contexts = len(set(rows.tolist()))
    least = min(contexts, len(numbers)) if len(numbers) > 1 else contexts
    for at, name in enumerate(names):
        share = name in ("flipped", "under_control")
        found[name] = (share_of if share else mean_of)(table[:, at], drawn[:, at], least)
        if least < contexts and found[name].low is None and least < LEAST_GROUPS:
            found[name] = replace(found[name], undefined=f"no interval from {least} changes")
    return found | {"contexts": contexts, "changes": len(numbers)}


def _values(pair: Pair, controlled: bool) -> list[float]:
    """Flip and change of the score, then those of the control, then how much more flips than under it."""
    plain, changed, *others = (side for side in _sides(pair) if isinstance(side, Verdict))
    values = [float(changed.label != plain.label), changed.score - plain.score]
    if controlled:
        (control,) = others
        values += [float(control.label != plain.label), control.score - plain.score]
        values.append(values[0] - values[2])
    return values


# --- all checks of one judge ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found: its `effect`, or in words why it does not apply; `note` says how it was done."""

    check: str
    effect: Effect | None
    not_applicable: str | None = None
    where: str | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """The check's name, with the text that was changed where it tries several."""
        return self.check if self.where is None else f"{self.check} {self.where}"


@dataclass(frozen=True, slots=True)
class Audit:
    """What checks found of a judge, gravest first, with what pins it.

    `n_judged` of `n_planned` judgements were made; fewer where it was interrupted. `attacks` are the names of
    those tried; `direction` says whether a low score is good (`minimize`). `repeatable` is whether the engine
    promises the same answer to the same question.
    """

    judge: str
    direction: str
    dataset: str
    digest: str
    n_samples: int
    seed: int
    attacks: tuple[str, ...]
    repeatable: bool
    recipe: str
    n_planned: int
    n_judged: int
    seconds: float
    findings: tuple[Finding, ...]

    @property
    def complete(self) -> bool:
        """Whether every judgement was made."""
        return self.n_judged == self.n_planned

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self) | {"complete": self.complete, "attacks": list(self.attacks)}


def gravest_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings by how many labels their change flips beyond its control, then those that do not apply."""
    return tuple(sorted(findings, key=lambda each: 2.0 if each.effect is None else -each.effect.gravity))
