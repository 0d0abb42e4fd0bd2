"""An audit: changes samples or prompts in several ways and measures how often the judge's label flips."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

from magistrate.analysis.columns import groups_of
from magistrate.analysis.hostile import Attack, Where, attacked, control
from magistrate.analysis.perturbations import PERTURBATIONS, Edit, lengthened, options_swapped, reasons_moved
from magistrate.engines.base import EngineInfo, require
from magistrate.errors import CapabilityError, SpecError
from magistrate.judges.base import Judge
from magistrate.metrics.classification import LEAST_GROUPS, Estimate
from magistrate.types import Abstention, Failure, Outcome, Sample, Verdict


@dataclass(frozen=True, slots=True)
class Pair:
    """The outcomes of one sample as it is (`plain`) and changed (`changed`), by the change called `change`.

    `control` is the outcome of a harmless change of the same size, if the check has one.
    """

    sample: Sample
    change: str
    plain: Outcome
    changed: Outcome
    control: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a change on verdicts: shares in [0, 1], changes of the score in [-1, 1], 95 % intervals.

    Of `trials` pairs, the `pairs` with a verdict on every side are counted. `flipped` is the share of them
    whose label differs, `flips` counts them by `from -> to`, and `moved` is the mean change of the score.
    `under_control` and `moved_under_control` are the same for the control, None without one, and `excess` is
    the share beyond that of the control. `failures` and `abstentions` count, by code and reason, changed and
    control outcomes without a verdict. `unjudged` counts trials without a verdict on the unchanged sample.
    `unchanged` counts samples that the change leaves as they are; they are not trials. `contexts` and
    `changes` are the numbers of different ones in the pairs, which the intervals resample.
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
        """The effect beyond that of the control, to sort a report; -1 if unknown."""
        share = self.excess if self.excess is not None else self.flipped
        return -1.0 if share.value is None else share.value

    @property
    def n_flips(self) -> int:
        """The number of labels that differ."""
        return sum(self.flips.values())

    @property
    def n_lost(self) -> int:
        """The number of trials that lack a verdict on some side."""
        return self.trials - self.pairs

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def effect(pairs: Sequence[Pair], *, unchanged: int = 0, seed: int = 0) -> Effect:
    """Measure the effect of the change in these pairs. Intervals resample contexts and changes by `seed`."""
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
    """Return shares and means with their intervals; all undefined if no pair has all verdicts."""
    import numpy as np

    from magistrate.metrics.resampling import crossed_means, mean_of, share_of

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
    """Return flip and score change, then those of the control, then the difference of the two flips."""
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
    """The result of one check: its `effect`, or why it is not applicable. `note` tells how it was done."""

    check: str
    effect: Effect | None
    not_applicable: str | None = None
    where: str | None = None
    note: str | None = None

    @property
    def name(self) -> str:
        """The check's name, followed by the text that was changed if the check tries several."""
        return self.check if self.where is None else f"{self.check} {self.where}"


@dataclass(frozen=True, slots=True)
class Audit:
    """The findings about a judge, the gravest first, with everything needed to reproduce them.

    `n_judged` of `n_planned` judgements were made; fewer if it was interrupted. `attacks` are the names of
    the attacks tried. `direction` is `minimize` if a low score is good. `repeatable` is whether the engine
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
        """The fields as plain JSON values."""
        return asdict(self) | {"complete": self.complete, "attacks": list(self.attacks)}


def gravest_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Sort findings by how many labels the change flips beyond its control; inapplicable ones come last."""
    return tuple(sorted(findings, key=lambda each: 2.0 if each.effect is None else -each.effect.gravity))


# --- plan -------------------------------------------------------------------------------------------


CHECKS: Mapping[str, str] = {
    "repeated": "the same sample again, without the cache",
    "options_swapped": "the judge's labels offered in the opposite order",
    "reasons": "reasons before the decision instead of after it",
    "padding": "true sentences of the context added to the output",
    "contexts_shuffled": "texts, paragraphs or sentences of the context in another order",
    "formatting": "the output as a Markdown list with the same words",
    "noise": "typos in function words, doubled spaces, typographic quotes",
    "hostile": "texts written to mislead, in the output and in the context",
}
"""Every check with what it changes."""

AS_IS, SWAPPED, BEFORE, AFTER = "as it is", "labels swapped", "reasons before", "reasons after"
EDITED = {"contexts_shuffled": "context"}  # the field that an edit changes, if it is not the output


@dataclass(frozen=True, slots=True)
class Trial:
    """A planned pair, as numbers of judgements: of the unchanged sample, the changed one and the control."""

    check: str
    where: Where | None
    change: str
    sample: Sample
    plain: int
    changed: int
    control: int | None = None


@dataclass(slots=True)
class Plan:
    """The judgements to make, and how they are compared.

    `judges` are the forms of the judge by name. `jobs` are the samples to judge, each with the name of its
    form. `trials` are the comparisons, by number of job. `unchanged` counts, by check, the samples that a
    change leaves as they are. `not_applicable` holds the reasons why checks cannot be made.
    """

    judges: dict[str, Judge] = field(default_factory=dict)
    jobs: list[tuple[str, Sample]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    unchanged: dict[str, int] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)
    _numbers: dict[tuple[str, int, str | None, tuple[str, ...], bool], int] = field(default_factory=dict)

    def job(self, form: str, at: int, sample: Sample, *, again: bool = False) -> int:
        """Return the number of a judgement. An equal one is planned only once, unless `again`."""
        key = (form, at, sample.output, sample.context, again)
        if key not in self._numbers:
            self._numbers[key] = len(self.jobs)
            self.jobs.append((form, sample))
        return self._numbers[key]


def plan(
    judge: Judge,
    samples: Sequence[Sample],
    checks: Sequence[str],
    attacks: Sequence[Attack],
    engine: EngineInfo,
    *,
    seed: int = 0,
) -> Plan:
    """Plan the judgements of these checks. Raises `SpecError` for an unknown check."""
    for name in checks:
        if name not in CHECKS:
            raise SpecError(f"unknown check {name!r}; known: {', '.join(CHECKS)}")
    made = Plan(judges={AS_IS: judge})
    wanted = [name for name in CHECKS if name in checks]
    for name in wanted:
        if reason := _prepared(made, name, judge, engine):
            made.not_applicable[name] = reason
    possible = [name for name in wanted if name not in made.not_applicable]
    places: list[Where] = [where for where in get_args(Where) if where in judge.info.reads]
    for at, sample in enumerate(samples):
        plain = made.job(AS_IS, at, sample)
        for name in possible:
            trials = list(_trials(made, name, at, sample, plain, attacks, places, seed))
            made.trials += trials
            if not trials:
                made.unchanged[name] = made.unchanged.get(name, 0) + 1
    return made


def _prepared(made: Plan, name: str, judge: Judge, engine: EngineInfo) -> str | None:
    """Add the forms of the judge that a check needs to the plan, or return why the check cannot be made."""
    reads = judge.info.reads
    forms: dict[str, Judge] = {}
    if name == "options_swapped":
        swapped = options_swapped(judge)
        if isinstance(swapped, str):
            return swapped
        forms[SWAPPED] = swapped
    elif name == "reasons":
        moved = reasons_moved(judge)
        if isinstance(moved, str):
            return moved
        forms |= {AFTER: moved[0], BEFORE: moved[1]}
    elif name == "hostile" and not {"output", "context"} & set(reads):
        return f"{judge.info.name} reads neither output nor context"
    elif name in PERTURBATIONS:
        fields = {EDITED.get(name, "output"), *(["context"] if name == "padding" else [])}
        if missing := sorted(fields - set(reads)):
            return f"{judge.info.name} does not read the {' and the '.join(missing)}"
    for form in forms.values():
        try:
            require(engine, form.info.needs, f"judge {form.info.name!r}")
        except CapabilityError as error:
            return str(error)
    made.judges |= forms
    return None


def _trials(
    made: Plan,
    name: str,
    at: int,
    sample: Sample,
    plain: int,
    attacks: Sequence[Attack],
    places: Sequence[Where],
    seed: int,
) -> Iterator[Trial]:
    """Yield the trials of one check on one sample; none if the check changes nothing."""
    if name == "repeated":
        yield Trial(name, None, name, sample, plain, made.job(AS_IS, at, sample, again=True))
    elif name == "options_swapped":
        yield Trial(name, None, name, sample, plain, made.job(SWAPPED, at, sample))
    elif name == "reasons":
        after = plain if made.judges[AFTER] == made.judges[AS_IS] else made.job(AFTER, at, sample)
        yield Trial(name, None, name, sample, after, made.job(BEFORE, at, sample))
    elif name == "hostile":
        for where in places:
            if not (sample.output is not None if where == "output" else sample.context):
                continue
            for attack in attacks:
                hostile = made.job(AS_IS, at, attacked(sample, attack, where))
                harmless = made.job(AS_IS, at, attacked(sample, control(attack), where))
                yield Trial(name, where, attack.name, sample, plain, hostile, harmless)
    else:
        edit: Edit = PERTURBATIONS[name]
        if (changed := edit(sample, seed)) != sample:
            twin = made.job(AS_IS, at, lengthened(sample, seed)) if name == "padding" else None
            yield Trial(name, None, name, sample, plain, made.job(AS_IS, at, changed), twin)
