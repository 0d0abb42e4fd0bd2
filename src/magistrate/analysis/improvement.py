"""Tests whether what was learnt from labels is better than the current judge.

Each candidate is evaluated on samples it has not learnt from: folds that share no context. Both sides use
the same weights, 1 / the probability with which a sample was drawn for labelling, and the same bootstrap
draws of whole contexts. P values are corrected for the number of attempts (Holm 1979).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import nextafter
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from magistrate._text import counted
from magistrate._version import __version__
from magistrate.analysis.columns import Columns
from magistrate.errors import InputError, SpecError
from magistrate.judges.calibration_file import CalibrationFile, DataPart, JudgePart
from magistrate.judges.folders import EstimatePart, ModelPart
from magistrate.metrics.calibration import Calibrator, fitted, reference
from magistrate.metrics.classification import Estimate, fields_of
from magistrate.metrics.distributions import grouped_folds
from magistrate.metrics.paired import ALPHA, PRIMARY, Figures, holm, smallest_difference
from magistrate.metrics.resampling import DRAWS, difference_of, draws_of, interval_of, standard_error
from magistrate.metrics.thresholds import FOLDS, LEAST_OF_EITHER, LEAST_SAMPLES, MAXIMIZED, Aim, best_cut

if TYPE_CHECKING:
    from magistrate.store import RunRecord

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]

Way = Literal["threshold", "calibration", "stack", "detector"]
WAYS: tuple[Way, ...] = get_args(Way)
BRIER, AUROC = "brier", "auroc"
MOST_FOLDS = 20
COVERED = 0.9
"""What gives no verdict on more than the rest of the samples is not put in a judge's place."""
AS_IT_IS = Calibrator("temperature", {"temperature": (1.0,)})
"""The map that leaves every score where it is."""
NO_THRESHOLD = (
    "the judge's labels do not come from a threshold on its score, so a calibration would change them"
)


@dataclass(frozen=True, slots=True)
class Current:
    """The current judge's results on n labelled samples, and the split into training and test folds.

    `weights` float `[n]`, mean 1: how many of all samples each represents. `folds` holds, per fold, the
    indices of the training samples and of the test samples. `metric` compares labels.
    """

    columns: Columns
    weights: Floats
    folds: tuple[tuple[Ints, Ints], ...]
    seed: int = 0
    metric: str = PRIMARY
    draws: int = DRAWS

    @property
    def aim(self) -> Aim:
        """The objective for choosing a threshold."""
        return Aim("maximize", metric=self.metric)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Scores and labels (True: hallucinated), `[m]` each, of the samples at indices `places` `[m]`.

    They were predicted by models trained on other folds. Samples not in `places` got no verdict.
    """

    places: Ints
    scores: Floats
    said: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One candidate to improve the judge, compared with it on `n` held-out samples.

    `now` and `then` are the `metric` of the judge and of the candidate. `gain` is the improvement, above 0
    if `then` is better, also for `brier`, where less is better. `auroc` is the change in AUROC. `p` is
    corrected for the number of attempts. `visible` is the true gain that this many labels would detect with
    80 % power. `reason` explains why the candidate was not tried or cannot be kept.
    """

    name: Way
    metric: str = PRIMARY
    n: int = 0
    contexts: int = 0
    abstained: int = 0
    now: Estimate = field(default=Estimate(None, None, None))
    then: Estimate = field(default=Estimate(None, None, None))
    gain: Estimate = field(default=Estimate(None, None, None))
    auroc: Estimate = field(default=Estimate(None, None, None))
    p: float | None = None
    visible: float | None = None
    reason: str | None = None

    @property
    def shown(self) -> bool:
        """Whether it is significantly better and can be kept."""
        sure = self.gain.low is not None and self.gain.low > 0 and self.p is not None and self.p <= ALPHA
        return sure and self.reason is None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return fields_of(self) | {"shown": self.shown}


def current(
    columns: Columns,
    weights: Floats,
    *,
    metric: str = PRIMARY,
    folds: int = FOLDS,
    seed: int = 0,
    draws: int = DRAWS,
) -> Current:
    """Split the labelled samples into folds. Raises `InputError` that says how many labels are missing."""
    if metric not in MAXIMIZED:
        raise SpecError(f"labels are compared by {', '.join(MAXIMIZED)}; got {metric!r}")
    if not 2 <= folds <= MOST_FOLDS:
        raise SpecError(f"folds must be 2 to {MOST_FOLDS}, got {folds}")
    _check_enough(columns, folds)
    parts = grouped_folds(columns.truth, columns.groups, folds, seed)
    if any(columns.truth[train].all() or not columns.truth[train].any() for train, _ in parts):
        raise InputError("one context has nearly all samples of one label: label samples of more contexts")
    return Current(columns, weights / weights.mean(), tuple(parts), seed, metric, draws)


def _check_enough(columns: Columns, folds: int) -> None:
    truth = columns.truth
    bad, good = int(truth.sum()), int((~truth).sum())
    places = [int(np.unique(columns.groups[each]).size) for each in (truth, ~truth)]
    told = (
        f"{columns.n} labelled samples with a verdict of {columns.judge!r}: {bad} hallucinated in "
        f"{counted(places[0], 'context')}, {good} faithful in {places[1]}"
    )
    if columns.left_out:
        told += f" (left out: {', '.join(f'{n} {reason}' for reason, n in columns.left_out.items())})"
    if columns.n and not (bad and good):
        raise InputError(
            f"all labels are {'hallucinated' if bad else 'faithful'}, and nothing can be learnt from one "
            f"class. There are {told}; at least {LEAST_OF_EITHER} of each class are needed"
        )
    wanting = max(LEAST_SAMPLES - columns.n, sum(max(LEAST_OF_EITHER - each, 0) for each in (bad, good)))
    if wanting > 0:
        raise InputError(
            f"too few labels: {LEAST_SAMPLES} are needed, {LEAST_OF_EITHER} of each class, but there are "
            f"{told}. Label at least {wanting} more"
        )
    if min(places) < folds:
        raise InputError(
            f"too few contexts: each label must occur in at least {folds} contexts (one per fold), but there "
            f"are {told}. Label samples of other contexts"
        )


# --- attempts that take nothing but scores --------------------------------------------------------


def by_threshold(now: Current) -> HeldOut:
    """Return the judge's scores, with labels by thresholds chosen on the other folds."""
    scores, truth = now.columns.scores, now.columns.truth
    said = np.zeros(truth.size, dtype=np.bool_)
    for train, test in now.folds:
        said[test] = scores[test] >= best_cut(scores[train], truth[train], now.aim, now.weights[train])
    return HeldOut(np.arange(truth.size), scores, said)


def by_calibration(now: Current) -> HeldOut:
    """Return the judge's labels, with scores calibrated on the other folds.

    Raises `InputError` if the scores do not increase with the labels.
    """
    scores, truth = now.columns.scores, now.columns.truth
    if fitted("platt", scores, truth, now.weights).parameters["slope"][0] <= 0:
        raise InputError("its scores do not rise with the labels, so there is no calibration")
    mapped = np.empty(truth.size)
    for train, test in now.folds:
        mapped[test] = fitted("platt", scores[train], truth[train], now.weights[train]).of_all(scores[test])
    return HeldOut(np.arange(truth.size), mapped, now.columns.said)


# --- comparing ------------------------------------------------------------------------------------


def compared(name: Way, held: HeldOut, now: Current) -> Attempt:
    """Compare a candidate with the current judge where both have a verdict; `p` is not corrected yet."""
    metric = BRIER if name == "calibration" else now.metric
    columns, weights = now.columns.take(held.places), now.weights[held.places]
    n, abstained = columns.n, now.columns.n - columns.n
    if not 0 < columns.truth.sum() < n:
        return Attempt(name=name, reason="it has verdicts only on samples of one label", abstained=abstained)
    names = (metric, AUROC)
    sides = [
        Figures(columns.truth, said, scores, names)
        for said, scores in ((columns.said, columns.scores), (held.said, held.scores))
    ]

    def statistic(drawn: Floats) -> Floats:
        return np.hstack([side(drawn * weights) for side in sides])

    groups, contexts = columns.groups, columns.n_groups
    values = statistic(np.ones((1, n)))[0]
    drawn = draws_of(statistic, groups, draws=now.draws, seed=now.seed)
    better = -1.0 if metric == BRIER else 1.0
    moved, moves = better * (values[2] - values[0]), better * (drawn[:, 2] - drawn[:, 0])
    gain, p = difference_of(moved, moves, contexts, sides[1].support(metric, groups))
    auroc, _ = difference_of(
        values[3] - values[1], drawn[:, 3] - drawn[:, 1], contexts, sides[1].support(AUROC, groups)
    )
    lost = abstained > (1 - COVERED) * now.columns.n
    return Attempt(
        name=name,
        metric=metric,
        n=n,
        contexts=contexts,
        abstained=abstained,
        now=interval_of(float(values[0]), drawn[:, 0], contexts),
        then=interval_of(float(values[2]), drawn[:, 2], contexts),
        gain=gain,
        auroc=auroc,
        p=p,
        visible=smallest_difference(standard_error(moves, contexts), contexts),
        reason=f"no verdict on {abstained} of {now.columns.n} samples" if lost else None,
    )


def settled(attempts: Sequence[Attempt], now: Current) -> tuple[Attempt, ...]:
    """Return the attempts with p values corrected for their number.

    A calibration that is better cannot be kept if it would change labels although no new threshold was
    shown to be better.
    """
    found = holm([each.p for each in attempts])
    known = {each.name: replace(each, p=p) for each, p in zip(attempts, found, strict=True)}
    mapped, cut = known.get("calibration"), known.get("threshold")
    if mapped is not None and mapped.shown and not (cut is not None and cut.shown):
        columns = now.columns
        if kept_threshold(columns, fitted("platt", columns.scores, columns.truth, now.weights)) is None:
            known["calibration"] = replace(mapped, reason=NO_THRESHOLD)
    return tuple(known.values())


# --- the file of a threshold and a calibration ----------------------------------------------------


def calibration_file(
    now: Current, attempts: Sequence[Attempt], record: RunRecord, every: Floats, groups: Ints
) -> CalibrationFile | None:
    """Return the threshold and calibration shown to be better, fitted to all labels; None if neither was.

    A threshold alone keeps the scores, a calibration alone keeps the labels. `every` holds the judge's
    scores `[m]` of all samples, labelled or not, in contexts `groups` `[m]`: the reference for later drift
    checks.
    """
    shown = {each.name: each for each in attempts if each.shown and each.name in ("threshold", "calibration")}
    if not shown:
        return None
    columns, aim = now.columns, now.aim if "threshold" in shown else None
    scores, truth = columns.scores, columns.truth
    map_ = fitted("platt", scores, truth, now.weights) if "calibration" in shown else AS_IT_IS
    if aim is not None:
        threshold = float(f"{best_cut(map_.of_all(scores), truth, aim, now.weights):.10g}")
    else:
        kept = kept_threshold(columns, map_)
        if kept is None:
            return None
        threshold = kept
    recipe = record.recipes[columns.judge]
    return CalibrationFile(
        method=map_.method,
        parameters={name: list(values) for name, values in map_.parameters.items()},
        threshold=threshold,
        aim=None if aim is None else str(aim),
        base_rate=None,
        judge=JudgePart(
            name=columns.judge, words=recipe.judge, prompt=recipe.prompt, constraint=recipe.constraint
        ),
        model=ModelPart(name=recipe.model, fingerprint=recipe.fingerprint),
        data=DataPart(
            dataset=record.dataset,
            digest=record.dataset_digest,
            n=columns.n,
            hallucinated=int(truth.sum()),
            contexts=columns.n_groups,
        ),
        seed=now.seed,
        folds=len(now.folds),
        before={each.metric: EstimatePart.of(each.now) for each in shown.values()},
        after={each.metric: EstimatePart.of(each.then) for each in shown.values()},
        package=__version__,
        turned=columns.turned,
        scores=list(reference(map_.of_all(every), np.zeros(every.size, np.bool_), groups, seed=now.seed)),
    )


def kept_threshold(columns: Columns, map_: Calibrator) -> float | None:
    """Return the threshold of calibrated scores that keeps the present labels; None if there is none."""
    own = None if columns.scoring is None else columns.scoring.threshold
    if own is None:
        return None
    # A turned judge says faithful at its threshold, so 1 - score is not flagged there yet.
    found = nextafter(map_(1 - own), 1.0) if columns.turned else map_(own)
    mapped = np.array([map_(float(score)) for score in columns.scores])
    return float(found) if bool(((mapped >= found) == columns.said).all()) else None
