"""Judges over Ray Data (`pip install 'magistrate[ray]'`): each actor holds a judge and its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magistrate.api.run import Run
from magistrate.engines.base import Engine
from magistrate.errors import MissingExtra
from magistrate.integrations.batches import BatchJudge
from magistrate.judges import registry
from magistrate.judges.base import Judge
from magistrate.runs.limits import UNLIMITED, Limits

if TYPE_CHECKING:
    from ray.data import Dataset

ROWS = 64  # in a batch


def judge(
    dataset: Dataset,
    judges: str | Judge | Sequence[str | Judge] = registry.DEFAULT_JUDGE,
    model: str | Path | Engine | None = None,
    *,
    run: Run | None = None,
    base_url: str | None = None,
    device: str | None = None,
    mapping: Mapping[str, str] | None = None,
    labels: Mapping[Any, str] | None = None,
    limits: Limits = UNLIMITED,
    retry_failures: bool = False,
    batch_size: int = ROWS,
    concurrency: int | tuple[int, int] = 1,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
) -> Dataset:
    """Return the data set with the columns of `BatchJudge`: one row out for each row in. It is lazy.

    Actors judge, `concurrency` of them, or between the two numbers of a pair; each takes `num_cpus` and
    `num_gpus` and loads `model` once. The other arguments are those of `BatchJudge`. Rows are never dropped:
    what cannot be judged has its reason in columns. What would fail every row, such as a model that is
    missing, ends the job; started again with the same `run`, it goes on where it was. Raises `SpecError` for
    an unknown judge and `MissingExtra` without Ray.
    """
    try:
        from ray.data import ActorPoolStrategy
    except ModuleNotFoundError as error:
        lacks_ray = (error.name or "").partition(".")[0] == "ray"
        raise MissingExtra("ray", "ray") if lacks_ray else error from None
    least, most = (concurrency, concurrency) if isinstance(concurrency, int) else concurrency
    return dataset.map_batches(
        BatchJudge,
        fn_constructor_kwargs={
            "judges": registry.judges(judges),
            "model": model,
            "run": run,
            "base_url": base_url,
            "device": device,
            "mapping": mapping,
            "labels": labels,
            "limits": limits,
            "retry_failures": retry_failures,
        },
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=ActorPoolStrategy(min_size=least, max_size=most),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
