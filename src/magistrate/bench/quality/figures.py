"""From judged samples to a row: what is chosen on the dev part, what is measured on the test part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from magistrate.analysis.columns import Columns, columns
from magistrate.bench.machine import Machine
from magistrate.bench.quality.baselines import AIM, Part, Ruled, ruled
from magistrate.bench.quality.measuring import IN_FLIGHT, Measured
from magistrate.bench.quality.protocol import PROTOCOL, Split
from magistrate.bench.quality.rows import BASELINE, Figure, QualityRow
from magistrate.metrics.calibration import reliability
from magistrate.metrics.classification import Estimate, classification
from magistrate.metrics.thresholds import best_cut
from magistrate.types import HALLUCINATED, Abstention, Failure, Sample, Usage, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNDEFINED = "undefined"
TUNED = ("precision", "recall", "f1", "balanced_accuracy")


def row_of(measured: Measured, machine: Machine) -> QualityRow:
    """The figures of a finished run of a measurement."""
    split, run = measured.what.split, measured.run
    outcomes = run.outcomes()
    record = run.record
    (judge,) = record.judges
    scoring = record.scoring.get(judge)
    dev, test = (
        columns(_by_id(part), _of(part, outcomes), judge, scoring) for part in (split.dev, split.test)
    )
    asked = {sample.id for sample in split.test}
    tested = [outcome for outcome in outcomes if outcome.sample_id in asked]
    usage = sum((outcome.usage for outcome in outcomes), Usage())
    seconds, n = run.record.seconds, len(split.samples)
    return _row(
        split,
        machine,
        _figures(_part(dev), _part(test), test.said, probable=True),
        date=run.record.created_at.astimezone(UTC),
        model=measured.what.model,
        judge=measured.what.shown,
        seen=tuple(measured.what.seen),
        recipe=run.summary().judges[0].recipe or "not recorded",
        run=run.id,
        commit=measured.commit,
        load=measured.load,
        n_ok=sum(isinstance(outcome, Verdict) for outcome in tested),
        n_dev_ok=dev.n,
        failures=Counter(each.code for each in tested if isinstance(each, Failure)),
        abstentions=Counter(each.reason for each in tested if isinstance(each, Abstention)),
        ms=None if seconds is None else 1000 * seconds / n,
        read=usage.prompt / n,
        written=usage.generated / n,
    )


def baseline_rows(split: Split, machine: Machine, others: Sequence[Split] = ()) -> list[QualityRow]:
    """The figures of the trivial rules and of the text signals; `others` are sets that may fix their cuts."""
    return [
        _row(
            split,
            machine,
            _figures(rule.dev, rule.test, rule.said, probable=False),
            date=datetime.now(UTC),
            model=BASELINE,
            judge=rule.name,
            recipe=_recipe(rule),
            run=None,
            commit=machine.commit,
            load=None,
            n_ok=rule.test.truth.size,
            n_dev_ok=rule.dev.truth.size,
            failures={},
            abstentions={UNDEFINED: missing} if (missing := len(split.test) - rule.test.truth.size) else {},
            ms=rule.ms,
            read=0.0,
            written=0.0,
            fixed_on=rule.fixed_on,
        )
        for rule in ruled(split, others)
    ]


def _recipe(rule: Ruled) -> str:
    fixed = f" at={rule.at:.6g} fixed_on={'+'.join(rule.fixed_on)}" if rule.at is not None else ""
    return f"rule={rule.name} protocol={PROTOCOL}{fixed}"


def _figures(dev: Part, test: Part, said: NDArray[np.bool_] | None, *, probable: bool) -> dict[str, Any]:
    """`said` are labels on the test part that were fixed beforehand; `probable` scores are probabilities."""
    cut = best_cut(dev.scores, dev.truth, AIM) if 0 < dev.truth.sum() < dev.truth.size else None
    tuned = (
        {}
        if cut is None
        else classification(test.truth, test.scores >= cut, test.scores, test.groups).metrics
    )
    own = {} if said is None else classification(test.truth, said, test.scores, test.groups).metrics
    ranked = classification(test.truth, test.scores >= 0.5, test.scores, test.groups).metrics
    found = reliability(test.truth, test.scores) if test.truth.size and probable else None
    return {
        "threshold": cut,
        "tuned": _chosen(tuned),
        "own": _chosen(own),
        "auroc": _figure(ranked["auroc"]),
        "ece": None if found is None else found.ece,
        "ece_by_chance": None if found is None else found.ece_by_chance,
        "brier": None if found is None else found.brier,
    }


def _row(
    split: Split, machine: Machine, figures: Mapping[str, Any], *, date: datetime, **others: Any
) -> QualityRow:
    return QualityRow(
        protocol=PROTOCOL,
        set=split.name,
        n_dev=len(split.dev),
        n=len(split.test),
        hallucinated=float(_truth(split.test).mean()),
        cpu=machine.cpu,
        cores=machine.cores,
        in_flight=IN_FLIGHT,
        date=date.isoformat(timespec="seconds"),
        **figures,
        **others,
    )


def _part(found: Columns) -> Part:
    return Part(found.truth, found.scores, found.groups)


def _chosen(metrics: Mapping[str, Estimate]) -> dict[str, Figure]:
    return {name: _figure(metrics[name]) for name in TUNED if name in metrics}


def _figure(estimate: Estimate) -> Figure:
    return estimate.value, estimate.low, estimate.high


def _truth(samples: Sequence[Sample]) -> NDArray[np.bool_]:
    import numpy as np

    return np.array([sample.label == HALLUCINATED for sample in samples], dtype=np.bool_)


def _by_id(samples: Sequence[Sample]) -> dict[str, Sample]:
    return {sample.id: sample for sample in samples}


def _of(part: Sequence[Sample], outcomes: Sequence[Any]) -> list[Any]:
    ids = {sample.id for sample in part}
    return [outcome for outcome in outcomes if outcome.sample_id in ids]
