"""Estimate the work of a run: tokens are counted by each judge's plan, and no model is called."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magistrate import _async, _logging
from magistrate.datasets import Dataset
from magistrate.datasets.fields import LOOKED_AT, like_context
from magistrate.engines.base import Engine
from magistrate.engines.prices import Price
from magistrate.errors import OverLength, SpecError
from magistrate.judges.base import Judge, PlansCalls, planned_calls, present, shortage
from magistrate.judges.outcomes import FATAL
from magistrate.report.estimate import Estimate as Estimate
from magistrate.report.estimate import JudgeEstimate
from magistrate.runs.prepare import RunPlan, price_for
from magistrate.types import Sample, Usage

if TYPE_CHECKING:
    from magistrate.store import Store

MOST = 1000
MISSING = {"context": "no_context", "output": "no_output"}  # reason for abstaining, by missing field
RUNS_LOOKED_AT = 50


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a judge has been: samples per second, and the run that it was measured on."""

    samples_per_second: float
    run: str | None = None


async def estimate(
    dataset: Iterable[Sample],
    judges: Sequence[Judge],
    engine: Engine,
    *,
    price: Price | None = None,
    rates: Mapping[str, Rate | None] | None = None,
    most: int = MOST,
) -> Estimate:
    """Estimate the work of judging `dataset`, by each judge's own plan, without calling a model.

    Reads all samples once. Of the samples that a judge can judge, up to `most` are counted exactly. If
    there are more, evenly spaced ones are counted, at least half as many, and the counts are scaled up.
    `rates` (by the judge's name) give the time, see `earlier_rates`; `price` the cost.
    """
    if most < 2:
        raise SpecError(f"most must be at least 2 samples, got {most}")
    counting = [_Counting(judge, Spaced(most)) for judge in judges]
    n = 0
    first: list[Sample] = []
    for n, sample in enumerate(dataset, 1):
        if n <= LOOKED_AT:
            first.append(sample)
        for each in counting:
            each.see(sample)
    found = [await each.estimate(n, engine, price, rates or {}) for each in counting]
    return Estimate(
        dataset=dataset.name if isinstance(dataset, Dataset) else "samples",
        model=engine.info.model,
        samples=n,
        judges=tuple(found),
        price=None if price is None else str(price),
        unread=dataset.unread if isinstance(dataset, Dataset) else None,
        like_context=like_context(first),
    )


async def aestimate_plan(plan: RunPlan, store: Store | None) -> Estimate:
    """Estimate the work of a prepared run. Earlier runs in `store` show how fast its judges are."""
    assert plan.dataset is not None, "an estimate needs the plan's data"
    rates = {
        judge: None if store is None else earlier_rates(store, recipe.judge, recipe.fingerprint)
        for judge, recipe in plan.recipes.items()
    }
    price = price_for(plan.engine, plan.spec.engine.price)
    return await estimate(plan.dataset, plan.judges, plan.engine, price=price, rates=rates)


estimate_plan = _async.synchronous(aestimate_plan)


def earlier_rates(store: Store, judge: str, fingerprint: str) -> Rate | None:
    """Return how fast the newest finished run with this judge was, or None if there is none.

    `judge` is as in a recipe (`faithfulness:permute=true@1`). If a run had several judges, its time is
    divided in proportion to the time of their outcomes. Runs that reused cached answers are ignored.
    """
    for record in store.runs(limit=RUNS_LOOKED_AT):
        names = [
            name
            for name, recipe in record.recipes.items()
            if recipe.judge == judge and recipe.fingerprint == fingerprint
        ]
        seconds = record.seconds
        if not names or record.status != "done" or not seconds or seconds <= 0:
            continue
        mine = others = 0.0
        asked = reused = 0
        for outcome in store.outcomes(record.id):
            reused += outcome.usage.reused
            if outcome.judge != names[0]:
                others += outcome.seconds
            else:
                mine += outcome.seconds
                asked += outcome.usage.calls > 0
        if asked and mine > 0 and not reused:
            return Rate(asked / (seconds * mine / (mine + others)), record.id)
    return None


@dataclass(slots=True)
class Spaced:
    """Evenly spaced samples of a stream of unknown length: all, or between half of `most` and `most`."""

    most: int
    seen: int = 0
    step: int = 1
    kept: list[Sample] = field(default_factory=list)

    def see(self, sample: Sample) -> None:
        if self.seen % self.step == 0:
            if len(self.kept) == self.most:
                self.kept, self.step = self.kept[::2], 2 * self.step
            if self.seen % self.step == 0:
                self.kept.append(sample)
        self.seen += 1


@dataclass(slots=True)
class _Counting:
    """Collects one judge's samples for an estimate."""

    judge: Judge
    asked: Spaced
    missing: Counter[str] = field(default_factory=Counter)
    no_output: int = 0

    def see(self, sample: Sample) -> None:
        info = self.judge.info
        if sample.output is None:
            self.no_output += 1
            return
        for name in info.requires:
            if not present(sample, name, info.reads):
                self.missing[MISSING.get(name, "missing_input")] += 1
                return
        self.asked.see(sample)

    async def estimate(
        self, n: int, engine: Engine, price: Price | None, rates: Mapping[str, Rate | None]
    ) -> JudgeEstimate:
        name = self.judge.info.name
        kept, seen = self.asked.kept, self.asked.seen
        if self.judge.info.kind == "code":
            found = _Counted(asked=len(kept))
        else:
            found = _Counted()
            for sample in kept:
                found.add(await _one(self.judge, sample, engine))
                await asyncio.sleep(0)  # tokenizing blocks the thread; let other tasks run
        scale = seen / len(kept) if kept else 1.0
        known = self.judge.info.kind == "code" or isinstance(self.judge, PlansCalls)
        own = Usage(prompt=round(found.own_prompt * scale), generated=round(found.own_answer * scale))
        long, failing = round(found.long * scale), round(found.failing * scale)
        asked = seen - long - failing
        abstains = self.missing + Counter({"over_length": long})
        rate = rates.get(name)
        return JudgeEstimate(
            judge=name,
            samples=n,
            asked=asked,
            abstains=dict(sorted(abstains.items(), key=lambda item: (-item[1], item[0]))),
            failing=failing,
            no_output=self.no_output,
            calls=round(found.calls * scale) if known else None,
            prompt_tokens=round(found.prompt * scale) if known else None,
            answer_tokens=round(found.answer * scale) if known else None,
            elsewhere=round(found.elsewhere * scale),
            seconds=None if rate is None else asked / rate.samples_per_second,
            cost=price.cost(own) if price is not None and known else None,
            counted=len(kept) if len(kept) < seen else None,
            rate_of=None if rate is None else rate.run,
        )


@dataclass(slots=True)
class _Counted:
    """The work for some samples. The `own_` fields are the part of the run's engine."""

    asked: int = 0
    long: int = 0
    failing: int = 0
    calls: int = 0
    elsewhere: int = 0
    prompt: int = 0
    answer: int = 0
    own_prompt: int = 0
    own_answer: int = 0

    def add(self, other: _Counted) -> None:
        for name in _Counted.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


async def _one(judge: Judge, sample: Sample, engine: Engine) -> _Counted:
    """Return the work for one sample, at most."""
    found = _Counted(asked=1)
    try:
        if await shortage(judge, sample, engine):
            return _Counted(long=1)
        for call in planned_calls(judge, sample):
            if not call.times:
                continue
            prompt = call.times * (await (call.engine or engine).count(call.prompt) + call.extra)
            answer = call.times * call.answer
            found.calls += call.times
            found.prompt += prompt
            found.answer += answer
            if call.engine is None:
                found.own_prompt += prompt
                found.own_answer += answer
            else:
                found.elsewhere += call.times
    except FATAL:
        raise
    except OverLength:
        return _Counted(long=1)
    except Exception as error:  # a judge's code may raise anything; in a run this would be a failure
        _logging.info("estimate.failing", judge=judge.info.name, sample=sample.id, reason=error)
        return _Counted(failing=1)
    return found
