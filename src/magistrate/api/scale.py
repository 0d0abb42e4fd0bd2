"""Estimate a large job: some rows of the data are judged here, and their rates are extrapolated."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from magistrate import _async
from magistrate._yaml import read_document
from magistrate.api.estimate import Spaced
from magistrate.api.evaluate import aevaluate
from magistrate.datasets import Dataset
from magistrate.engines.base import CONCURRENCY, Engine, EngineSettings
from magistrate.engines.prices import Price, price_of
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.judges.base import Judge, PlansCalls, planned_calls
from magistrate.metrics.classification import Estimate
from magistrate.metrics.resampling import draws_of, mean_of
from magistrate.report.scale import Machine, Measured, ScaleEstimate
from magistrate.runs.limits import Limits
from magistrate.runs.prepare import recipe
from magistrate.types import Failure, Outcome, Sample, Verdict

ROWS = 100
WITHIN = 24.0


class _MachinePart(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1)
    price_per_hour: float = Field(ge=0, allow_inf_nan=False)
    speed: float = Field(default=1.0, gt=0, allow_inf_nan=False)


class _TokenPart(BaseModel):
    model_config = ConfigDict(extra="forbid")

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cached: float | None = Field(default=None, ge=0, allow_inf_nan=False)


class _MachineFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    as_of: date
    machines: list[_MachinePart] = Field(min_length=1)
    tokens: dict[str, _TokenPart] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Prices:
    """Machines and the prices of tokens by model, from a file of the user's with its date."""

    name: str
    as_of: date
    machines: tuple[Machine, ...]
    tokens: Mapping[str, Price]

    @classmethod
    def read(cls, path: Path) -> Prices:
        """Read a YAML file of `as_of`, `machines` and `tokens`. `SpecError` names the line of a mistake."""
        read = read_document(path).read_as(_MachineFile)
        as_of = read.as_of.isoformat()
        machines = tuple(Machine(**each.model_dump()) for each in read.machines)
        names = [each.name for each in machines]
        if len(set(names)) != len(names):
            raise SpecError(f"{path.name}: two machines have the same name")
        tokens = {name: Price(**part.model_dump(), as_of=as_of) for name, part in read.tokens.items()}
        return cls(path.name, read.as_of, machines, tokens)


async def aestimate_scale(
    dataset: Dataset,
    judges: str | Judge | Sequence[str | Judge],
    prices: Prices,
    *,
    model: str | Path | Engine | None = None,
    settings: EngineSettings | None = None,
    rows: int | None = None,
    measure: int = ROWS,
    within: float = WITHIN,
    concurrency: int = CONCURRENCY,
) -> ScaleEstimate:
    """Estimate hours, machines and dollars of judging `rows` rows like those of the data set.

    Reads the data once and judges between half of `measure` and `measure` evenly spaced samples of it, or
    all if there are fewer, with each judge in turn. `rows` is by default the number of samples. `within` are
    the hours to be done in. Nothing is stored or taken from the cache. Raises `SpecError` for numbers out of
    range, and what `evaluate` raises.
    """
    if measure < 2:
        raise SpecError(f"at least 2 rows must be measured, got {measure}")
    if not within > 0 or (rows is not None and rows < 1):
        raise SpecError(f"hours and rows must be greater than 0, got {within:g} hours and {rows} rows")
    chosen = Spaced(measure)
    for sample in dataset:
        chosen.see(sample)
    asked = registry.judges(judges)
    engine = await _async.in_thread(registry.engine_for, asked, model, settings or EngineSettings())
    limits = Limits(concurrency=concurrency)
    found = [await _measured(judge, engine, chosen.kept, limits, prices) for judge in asked]
    return ScaleEstimate(
        dataset=dataset.name,
        rows=chosen.seen if rows is None else rows,
        judges=tuple(found),
        machines=prices.machines,
        within=within,
        concurrency=concurrency,
        prices=prices.name,
        as_of=prices.as_of.isoformat(),
    )


estimate_scale = _async.synchronous(aestimate_scale)


async def _measured(
    judge: Judge, engine: Engine, samples: Sequence[Sample], limits: Limits, prices: Prices
) -> Measured:
    """Judge the samples as a run does, every outcome committed, and return what that took."""
    with tempfile.TemporaryDirectory(prefix="magistrate-") as folder:
        options: dict[str, Any] = {"cache": False, "limits": limits, "progress": False}
        options |= {"model": engine if judge.info.asks else None}
        # The first sample loads and compiles the model, which a large job does once a machine.
        await aevaluate(samples[:1], judge, store=Path(folder, "first.db"), **options)
        run = await aevaluate(samples, judge, store=Path(folder, "measured.db"), **options)
        outcomes, seconds = run.outcomes(), run.record.seconds
    assert seconds is not None, "a finished run has its seconds"
    pinned = recipe(judge, engine, seed=0, n=len(outcomes))
    price = prices.tokens.get(pinned.model) or price_of(pinned.model)
    per_row = _mean([each.seconds for each in outcomes])
    parallel = sum(each.seconds for each in outcomes) / seconds
    spent = [each.usage for each in outcomes]
    free = not any(each.calls for each in spent)
    cost = (
        None if price is None and not free else [0.0 if price is None else price.cost(each) for each in spent]
    )
    own = isinstance(judge, PlansCalls) and any(
        call.engine is not None for sample in samples[:1] for call in planned_calls(judge, sample)
    )
    return Measured(
        judge=judge.info.name,
        model=pinned.model,
        recipe=pinned.line(),
        rows=len(outcomes),
        verdicts=_count(outcomes, Verdict),
        failures=_count(outcomes, Failure),
        abstentions=len(outcomes) - _count(outcomes, Verdict) - _count(outcomes, Failure),
        seconds=seconds,
        seconds_per_row=_at_rate(per_row, parallel, seconds / len(outcomes)),
        tokens_in=_mean([each.prompt for each in spent]),
        tokens_out=_mean([each.generated for each in spent]),
        dollars=None if cost is None else _mean(cost),
        price=None if price is None or free else str(price),
        elsewhere=own,
    )


def _at_rate(per_row: Estimate, parallel: float, seconds: float) -> Estimate:
    """Return the seconds of the run per row, with the interval of the rows' own seconds in proportion."""
    low, high = (
        None if each is None or not parallel else each / parallel for each in (per_row.low, per_row.high)
    )
    return Estimate(seconds, low, high, per_row.undefined)


def _mean(values: Sequence[float]) -> Estimate:
    import numpy as np

    table = np.asarray(values, dtype=np.float64)
    drawn = draws_of(lambda weights: weights @ table / table.size, np.arange(table.size))
    return mean_of(table, drawn[:, 0], table.size)


def _count(outcomes: Sequence[Outcome], kind: type) -> int:
    return sum(isinstance(each, kind) for each in outcomes)
