"""`audit_judge`: judge samples both unchanged and changed, and count how often the label flips."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from magistrate import _async
from magistrate._paths import default_store
from magistrate.analysis.audit import CHECKS, Audit, Finding, Pair, Plan, effect, gravest_first, plan
from magistrate.analysis.hostile import ATTACKS, Attack, spread
from magistrate.analysis.perturbations import shuffled_by
from magistrate.datasets import Dataset
from magistrate.engines.base import Engine, EngineSettings
from magistrate.engines.cache import Cached
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.execute import Judged, stream
from magistrate.runs.limits import UNLIMITED, Limits
from magistrate.runs.prepare import open_data, recipe, rows_of
from magistrate.runs.progress import ProgressListener
from magistrate.runs.spec import DataPart
from magistrate.types import Outcome, Sample

LONGEST_ATTACK = 2000  # characters; longer ones only test very long texts
N_ATTACKS = 8


class Examination:
    """An audit in progress: the plan, and the outcomes so far.

    `checks` are names of `CHECKS`, by default all. `attacks` hostile texts are tried, none with more than
    `longest` characters. It can be interrupted: `result` summarizes the judgements made so far. Raises
    `SpecError` for what cannot be examined.
    """

    def __init__(
        self,
        judge: Judge,
        engine: Engine,
        dataset: Dataset,
        *,
        checks: Sequence[str] = (),
        attacks: int = N_ATTACKS,
        longest: int = LONGEST_ATTACK,
        seed: int = 0,
        limits: Limits = UNLIMITED,
        watcher: ProgressListener | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if isinstance(engine, Cached):
            raise SpecError(
                "an audit asks the same questions again to see whether the answers stay the "
                "same, so it cannot use a cache"
            )
        fit = [each for each in ATTACKS if len(each.text) <= longest]
        if not 1 <= attacks <= len(fit):
            raise SpecError(
                f"attacks must be 1 to {len(fit)} (the others are longer than {longest} characters), got "
                f"{attacks}"
            )
        self.judge, self.engine, self.dataset, self.seed = judge, engine, dataset, seed
        self.attacks: list[Attack] = spread(fit, attacks)
        self.samples: list[Sample] = list(dataset)
        if not self.samples:
            raise SpecError(f"{dataset.name} has no sample that can be judged")
        self.plan: Plan = plan(
            judge, self.samples, checks or list(CHECKS), self.attacks, engine.info, seed=seed
        )
        self.outcomes: dict[int, Outcome] = {}
        self.seconds = 0.0
        self._limits, self._watcher, self._clock = limits, watcher, clock

    async def go(self) -> None:
        """Execute every planned judgement. Raises what `stream` raises."""
        start, jobs = self._clock(), list(enumerate(self.plan.jobs))
        if self._watcher is not None:
            self._watcher.started("audit", len(jobs), self.engine, 0)
        try:
            for form, judge in self.plan.judges.items():
                await self._judged(judge, [(number, sample) for number, (by, sample) in jobs if by == form])
        finally:
            self.seconds += self._clock() - start
            if self._watcher is not None:
                self._watcher.finished(self.dataset.problems, None)

    async def _judged(self, judge: Judge, jobs: Sequence[tuple[int, Sample]]) -> None:
        # Several jobs may share a sample, so in the stream the id of a sample is the job's number.
        numbered = (replace(sample, id=str(number)) for number, sample in jobs)
        coming: Any = stream(numbered, [judge], self.engine, limits=self._limits)
        async with aclosing(coming):
            async for judged in coming:
                number = int(judged.sample.id)
                outcome = replace(judged.outcome, sample_id=self.plan.jobs[number][1].id, steps=())
                self.outcomes[number] = outcome
                if self._watcher is not None:
                    # Without its label: accuracy on edited texts is not meaningful.
                    self._watcher.judged(Judged(replace(judged.sample, label=None), outcome))

    def result(self) -> Audit:
        """Summarize the outcomes so far. A trial counts once all its sides have an outcome."""
        groups: dict[tuple[str, Any], list[Pair]] = {}
        for trial in self.plan.trials:
            plain, changed = self.outcomes.get(trial.plain), self.outcomes.get(trial.changed)
            twin = None if trial.control is None else self.outcomes.get(trial.control)
            pairs = groups.setdefault((trial.check, trial.where), [])
            if plain is None or changed is None or (twin is None and trial.control is not None):
                continue
            pairs.append(Pair(trial.sample, trial.change, plain, changed, twin))
        found = [
            Finding(
                check,
                effect(pairs, unchanged=self.plan.unchanged.get(check, 0), seed=self.seed),
                where=where,
                note=self._note(check, pairs),
            )
            for (check, where), pairs in groups.items()
        ]
        absent = {name: "it changes no sample" for name in self.plan.unchanged if (name, None) not in groups}
        absent = {name: why for name, why in absent.items() if not any(name == each for each, _ in groups)}
        found += [Finding(name, None, why) for name, why in (self.plan.not_applicable | absent).items()]
        return self._audit(gravest_first(found))

    def _audit(self, findings: tuple[Finding, ...]) -> Audit:
        tried = any(trial.check == "hostile" for trial in self.plan.trials)
        return Audit(
            judge=self.judge.info.name,
            direction=self.judge.info.direction,
            dataset=self.dataset.name,
            digest=self.dataset.digest,
            n_samples=len(self.samples),
            seed=self.seed,
            attacks=tuple(attack.name for attack in self.attacks) if tried else (),
            repeatable="repeatable" in self.engine.info.can,
            recipe=recipe(self.judge, self.engine, self.seed, len(self.samples)).line(),
            n_planned=len(self.plan.jobs),
            n_judged=len(self.outcomes),
            seconds=self.seconds,
            findings=findings,
        )

    def _note(self, check: str, pairs: Sequence[Pair]) -> str | None:
        """Return a note on how a check was done, if there is one."""
        if check == "contexts_shuffled":
            ways = Counter(shuffled_by(pair.sample) for pair in pairs)
            told = ", ".join(f"{n} by {way}" for way, n in ways.most_common())
            leaning = "; sentences may refer to earlier ones" if ways["sentences"] else ""
            return f"{told}{leaning}" if told else None
        return None


async def aaudit_judge(
    judge: str | Judge,
    dataset: str | Path | Dataset | Iterable[Any],
    *,
    checks: Sequence[str] = (),
    attacks: int = N_ATTACKS,
    model: str | Path | Engine | None = None,
    base_url: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    timeout: float | None = None,
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    limits: Limits = UNLIMITED,
    watcher: ProgressListener | None = None,
) -> Audit:
    """Judge samples both unchanged and changed, and measure how often that flips the label.

    `checks` are names of `magistrate.analysis.audit.CHECKS`, by default all. `attacks` is the number of
    hostile texts to try. Nothing is stored and no cache is used. The other options are those of `evaluate`.
    `audit_judge` is the same without `await`.
    """
    asked = registry.judge(judge)
    settings = EngineSettings(
        base_url=base_url, device=device, threads=threads, timeout=timeout, concurrency=limits.concurrency
    )
    engine = await _async.in_thread(registry.engine, model, settings)
    found = samples_of(dataset, limit=limit, sample=sample, seed=seed)
    examination = Examination(
        asked, engine, found, checks=checks, attacks=attacks, seed=seed, limits=limits, watcher=watcher
    )
    await examination.go()
    return examination.result()


audit_judge = _async.synchronous(aaudit_judge)


def samples_of(
    dataset: str | Path | Dataset | Iterable[Any], *, place: str | None = None, **options: Any
) -> Dataset:
    """Open a named or stored set, a file or rows, as a run does. `place` is a store if not the default."""
    from magistrate.store import Store
    from magistrate.store.connection import exists

    if not isinstance(dataset, str | Path):
        return rows_of(dataset, DataPart(source="rows", **options), need_output=True)
    part = DataPart(source=str(dataset), **options)
    where = place or default_store()
    if not exists(where):
        return open_data(None, part)[0]
    with Store.open(where) as store:
        return open_data(store, part)[0]
