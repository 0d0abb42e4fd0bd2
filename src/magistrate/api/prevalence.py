"""`prevalence`: estimate the share of hallucinated outputs, corrected for the judge's errors."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from magistrate._text import decimal
from magistrate.analysis.columns import KNOWN, Columns, columns, groups_of, known_scoring, unlike
from magistrate.api.stored import Judged, RunRef, StorePlace, judged
from magistrate.errors import InputError, SpecError
from magistrate.metrics.distributions import fisher_exact
from magistrate.metrics.prevalence import Prevalence
from magistrate.metrics.prevalence import prevalence as estimated
from magistrate.types import HALLUCINATED, Recipe, Sample, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEAST, LEAST_OF_EITHER, LEAST_CONTEXTS = 30, 5, 10
"""Below these the normal approximation of the interval is no longer near 95 %."""
LEVEL = 0.05
WORDS = {
    "corrected": "The corrected share",
    "rogan_gladen": "Rogan-Gladen's share",
    "naive": "The judge's share",
}
PINS = ("judge", "model", "fingerprint", "prompt", "constraint")

Using = Literal["label", "score"]


@dataclass(frozen=True, slots=True)
class PrevalenceReport:
    """The estimates, the data behind them (`facts`, by name) and their limits (`remarks`)."""

    judge: str
    estimates: Prevalence
    facts: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]
    n_unlabelled_without_verdict: int = 0

    @property
    def head(self) -> str:
        """A title: what is estimated, and by which judge."""
        return f"share of hallucinated outputs, by verdicts of {self.judge}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "judge": self.judge,
            **self.estimates.to_dict(),
            "n_unlabelled_without_verdict": self.n_unlabelled_without_verdict,
            "facts": dict(self.facts),
            "remarks": list(self.remarks),
        }

    def __str__(self) -> str:
        from magistrate.report.calibration import render_prevalence
        from magistrate.report.formatting import as_text

        return as_text(
            lambda console: render_prevalence(self.estimates, self.head, self.facts, self.remarks, console)
        )

    def _repr_html_(self) -> str:
        from magistrate.report.calibration import prevalence_html

        return prevalence_html(self.estimates, self.head, self.facts, self.remarks)


def prevalence(
    run: RunRef,
    labelled: RunRef | None = None,
    *,
    judge: str | None = None,
    using: Using = "label",
    store: StorePlace | None = None,
) -> PrevalenceReport:
    """Estimate how many of a run's unlabelled outputs are hallucinated.

    The judge's errors are measured on the labelled samples of `labelled`, a run of the same judge, or of
    the run itself, and the estimate is corrected for them. `using` selects whether labels or scores are
    corrected. Scores give narrower intervals if they rank better than the labels. Raises `InputError` for
    too few labels and if no sample is unlabelled, `SpecError` if the two runs are not of the same judge.
    """
    if using not in ("label", "score"):
        raise SpecError(f"using must be label or score, got {using!r}")
    own = judged(run, judge, store)
    other = own if labelled is None else judged(labelled, judge, store)
    _same_judge(own, other)
    known = columns(other.samples, other.outcomes.values(), other.judge, other.scoring)
    shared = _shared(own, other)
    asked, verdicts, missing = _unlabelled(own, shared)
    _check(known, asked, other, own)
    failed = _failed(other, known)
    groups = groups_of([*(other.samples[each] for each in known.ids), *asked, *failed])
    called = _called(verdicts)
    scored = using == "score"
    found = estimated(
        known.truth,
        known.scores if scored else known.said,
        _scores(verdicts, _turned(own)) if scored else called,
        groups=groups,
        called=known.said,
        unlabelled_called=called,
        failed=[sample.label == HALLUCINATED for sample in failed],
    )
    facts = tuple(_facts(own, other, known, found, missing, shared))
    foreign = own.record.dataset_digest != other.record.dataset_digest and not shared.issuperset(known.ids)
    remarks = tuple(_remarks(found, own, other, known, missing, foreign))
    return PrevalenceReport(own.judge, found, facts, remarks, missing)


def _failed(other: Judged, known: Columns) -> list[Sample]:
    """Return labelled samples without a verdict of the judge."""
    judged_ids = set(known.ids)
    return [
        sample for sample in other.samples.values() if sample.label in KNOWN and sample.id not in judged_ids
    ]


def _shared(own: Judged, other: Judged) -> set[str]:
    """Return ids of samples without a label here but with one, and the same id and text, in the other run."""
    return {
        sample.id
        for sample in other.samples.values()
        if sample.label in KNOWN
        and (twin := own.samples.get(sample.id)) is not None
        and twin.label is None
        and unlike(twin, sample) is None
    }


def _unlabelled(own: Judged, shared: Container[str]) -> tuple[list[Sample], list[Verdict], int]:
    """Return the unlabelled samples with a verdict, their verdicts, and the number without a verdict."""
    bare = [each for each in own.samples.values() if each.label is None and each.id not in shared]
    pairs = [(sample, own.outcomes.get(sample.id)) for sample in bare]
    kept = [(s, o) for s, o in pairs if isinstance(o, Verdict) and o.label in KNOWN]
    return [s for s, _ in kept], [o for _, o in kept], len(bare) - len(kept)


def _called(verdicts: Sequence[Verdict]) -> NDArray[np.bool_]:
    import numpy as np

    return np.array([verdict.label == HALLUCINATED for verdict in verdicts], dtype=np.bool_)


def _turned(own: Judged) -> bool:
    return known_scoring(own.scoring, own.judge).turned


def _scores(verdicts: Sequence[Verdict], turned: bool) -> NDArray[np.float64]:
    """Return the scores, higher for hallucinated."""
    import numpy as np

    return np.array([1 - each.score if turned else each.score for each in verdicts], dtype=np.float64)


def _same_judge(own: Judged, other: Judged) -> None:
    """Raise `SpecError` if the labels measured the errors of another judge, model or prompt."""
    recipes: list[Mapping[str, Recipe]] = [own.record.recipes, other.record.recipes]
    here, there = recipes[0].get(own.judge), recipes[1].get(other.judge)
    if here is None or there is None:
        raise SpecError(f"{own.judge!r} has no recipe in one of the runs, so it may not be the same judge")
    differing = [
        f"{name} is {getattr(here, name)!r} in {own.name} and {getattr(there, name)!r} in {other.name}"
        for name in PINS
        if getattr(here, name) != getattr(there, name)
    ]
    if differing:
        raise SpecError(
            f"the errors of one judge cannot correct another judge: {'; '.join(differing)}. Use the same "
            "judge for both runs"
        )


def _check(known: Columns, asked: Sequence[Sample], other: Judged, own: Judged) -> None:
    if not asked:
        raise InputError(
            f"run {own.name} has no unlabelled sample with a verdict of {own.judge!r}, so there is nothing "
            "to estimate; 'magistrate show' prints the share of the labelled samples"
        )
    positives = int(known.truth.sum())
    enough = known.n >= LEAST and min(positives, known.n - positives) >= LEAST_OF_EITHER
    if not enough or known.n_groups < LEAST_CONTEXTS:
        raise InputError(
            f"a correction needs at least {LEAST} labelled samples with a verdict in {LEAST_CONTEXTS} "
            f"contexts, {LEAST_OF_EITHER} of each class; run {other.name} has {known.n} in {known.n_groups}: "
            f"{positives} hallucinated, {known.n - positives} faithful. To use labels of another run: "
            "--labelled RUN"
        )


def _facts(
    own: Judged, other: Judged, known: Columns, found: Prevalence, missing: int, shared: Collection[str]
) -> Iterator[tuple[str, str]]:
    lost = f"; {missing} more have no verdict and are not included" if missing else ""
    yield "unlabelled", f"{found.n_unlabelled} outputs of {own.record.dataset} (run {own.name}){lost}"
    yield (
        "labelled",
        f"{known.n} outputs of {other.record.dataset} (run {other.name}) in {known.n_groups} contexts: "
        f"{int(known.truth.sum())} hallucinated",
    )
    if shared:
        yield (
            "in both",
            f"{len(shared)} outputs of run {own.name} are labelled in run {other.name} and count as labelled",
        )
    if found.n_failed:
        yield (
            "no verdict",
            f"{found.n_failed} more labelled outputs, {found.positives_failed} of them hallucinated: they "
            "only count in 'labels alone'",
        )


def _remarks(
    found: Prevalence, own: Judged, other: Judged, known: Columns, missing: int, foreign: bool
) -> Iterator[str]:
    if foreign:
        yield (
            f"The labels are of other data ({other.record.dataset}, run {other.name}) than the estimated "
            f"outputs ({own.record.dataset}, run {own.name}). If hallucinations are more or less frequent "
            "there, or the judge makes different errors, the corrected share is biased and its interval does "
            "not show it: label a random sample of the outputs themselves. If only the frequency differs, "
            "Rogan-Gladen is still valid."
        )
    yield from _unfit(found)
    yield from _flattered(found, known)
    naive, low, high = found.naive.value, found.corrected.low, found.corrected.high
    if naive is not None and low is not None and high is not None and not low <= naive <= high:
        yield (
            f"The share of flagged outputs ({decimal(naive)}) is outside the corrected interval "
            f"[{decimal(low)}, {decimal(high)}]: do not report it as the share."
        )
    if bool((known.truth == known.said).all()):
        yield (
            f"The judge made no error on the {known.n} labelled samples, so its interval assumes none; it "
            f"may still be wrong on up to {decimal(3 / known.n)} of all outputs."
        )
    elif found.tuning == 0:
        yield (
            "The judge's verdicts are not related to the labels here, so the estimate uses the labels alone."
        )
    if missing:
        yield f"{missing} unlabelled outputs have no verdict; they may be hallucinated more often."


def _unfit(found: Prevalence) -> Iterator[str]:
    """Yield remarks on estimates outside [0, 1]."""
    for name, (value, low, high) in found.beyond.items():
        uncut = f"{WORDS[name]} is {decimal(value)} [{decimal(low)}, {decimal(high)}] before clipping"
        if high <= 0 or low >= 1:
            yield (
                f"{uncut}, which is not a valid share: the labelled samples are not like the estimated "
                "outputs, or the judge makes different errors on them. Label a random sample of the outputs "
                "themselves."
            )
        else:
            yield f"{uncut} to [0, 1]: the clipped interval is probably too narrow."


def _flattered(found: Prevalence, known: Columns) -> Iterator[str]:
    """Yield a remark if missing verdicts are associated with the label."""

    if not found.n_failed:
        return
    positives = int(known.truth.sum())
    failed = (found.positives_failed, found.n_failed - found.positives_failed)
    if fisher_exact(*failed, positives, known.n - positives) < LEVEL:
        yield (
            f"Failures of the judge depend on the label: {decimal(found.positives_failed / found.n_failed)} "
            f"of the {found.n_failed} labelled outputs without a verdict are hallucinated, but "
            f"{decimal(positives / known.n)} of the {known.n} with one. The corrected share is for outputs "
            "with a verdict; 'labels alone' counts all labels."
        )
