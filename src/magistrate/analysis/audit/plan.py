"""What an audit asks: every sample as it is and changed, with each judgement asked once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from magistrate.analysis.audit.hostile import Attack, Where, attacked, control
from magistrate.analysis.audit.perturbations import PERTURBATIONS, Edit, lengthened
from magistrate.analysis.audit.variants import options_swapped, reasons_moved
from magistrate.engines.base import EngineInfo, require
from magistrate.errors import CapabilityError, SpecError
from magistrate.judges.base import Judge
from magistrate.types import Sample

CHECKS: Mapping[str, str] = {
    "repeated": "the same sample once more, without the cache of calls",
    "options_swapped": "the judge's labels offered in the opposite order",
    "reasons": "reasons written before the decision instead of after it",
    "padding": "true sentences of the context added to the output",
    "contexts_shuffled": "the context's texts, paragraphs or sentences in another order",
    "formatting": "the output as a Markdown list, in the same words",
    "noise": "typos in function words, doubled spaces, typographic quotes",
    "hostile": "texts written to mislead, in the output and in the context",
}
"""Every check with what it changes."""

AS_IS, SWAPPED, BEFORE, AFTER = "as it is", "labels swapped", "reasons before", "reasons after"
EDITED = {"contexts_shuffled": "context"}  # the field that an edit changes, where it is not the output


@dataclass(frozen=True, slots=True)
class Trial:
    """One pair to be, as numbers of judgements: of the sample as it is, changed, and under the control."""

    check: str
    where: Where | None
    change: str
    sample: Sample
    plain: int
    changed: int
    control: int | None = None


@dataclass(slots=True)
class Plan:
    """Judgements to make and what becomes of them.

    `judges` are the forms of the judge by name; `jobs` the samples to be judged with the form that judges
    each, by number; `trials` which of them are compared; `unchanged` counts, by check, the samples that a
    change leaves as they are; `not_applicable` says why checks cannot be made.
    """

    judges: dict[str, Judge] = field(default_factory=dict)
    jobs: list[tuple[str, Sample]] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    unchanged: dict[str, int] = field(default_factory=dict)
    not_applicable: dict[str, str] = field(default_factory=dict)
    _numbers: dict[tuple[str, int, str | None, tuple[str, ...], bool], int] = field(default_factory=dict)

    def job(self, form: str, at: int, sample: Sample, *, again: bool = False) -> int:
        """The number of a judgement; one that is asked for already is not asked twice, unless `again`."""
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
    """What these checks ask of a judge. Raises `SpecError` for a check that is not known."""
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
    """Why a check cannot be made, None once the forms of the judge that it needs are among the plan's."""
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
    """The trials of one check on one sample; none where it changes nothing."""
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
