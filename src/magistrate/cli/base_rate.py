"""`--base-rate`: how frequent hallucinated outputs are taken to be, said or estimated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from magistrate.runs.spec import RunSpec
    from magistrate.types import Sample

ESTIMATE = "estimate"
CAUTION = (
    "It holds only as far as this judge's probabilities do on such data; to know the share, label some "
    "outputs and see 'magistrate prevalence'"
)
Decorated = TypeVar("Decorated", bound="Callable[..., Any]")


class BaseRate(click.ParamType[float | str]):
    """A share between 0 and 1, or the word `estimate`."""

    name = "SHARE"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> float | str:
        if value == ESTIMATE:
            return ESTIMATE
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if not 0 < share < 1:
            self.fail(
                f"must be a share between 0 and 1, such as 0.2, or {ESTIMATE}; got {value!r}",
                parameter,
                context,
            )
        return share


def base_rate_option(function: Decorated) -> Decorated:
    """`--base-rate`."""
    return click.option(
        "--base-rate",
        type=BaseRate(),
        metavar=f"SHARE|{ESTIMATE}",
        help="How frequent hallucinated outputs are taken to be, for judges that assume it, such as novelty.",
    )(function)


def judges_assuming(judges: Sequence[str], base_rate: float | str | None) -> list[str]:
    """The words of judges of one output with what was said."""
    from magistrate.api.base_rate import assuming

    if base_rate is None:
        return list(judges)
    if isinstance(base_rate, str):
        raise click.BadParameter(
            "one output is no batch to estimate a base rate from; give a share, such as 0.2",
            param_hint="--base-rate",
        )
    told = assuming(judges, base_rate)
    return [words if each is None else each.words for words, each in zip(judges, told, strict=True)]


def spec_assuming(spec: RunSpec, base_rate: float | str | None, store: str | None) -> RunSpec:
    """A run whose judges assume what was said, or what is estimated of its samples, which are read for it."""
    from magistrate.api.base_rate import assuming
    from magistrate.runs.spec import STDIN, judge_of

    if base_rate is None:
        return spec
    if base_rate == ESTIMATE and spec.dataset.source == STDIN:
        raise click.BadParameter(
            "what comes on standard input can be read only once, and estimating reads all of it before "
            "the first verdict; save it as a file, or give a share, such as 0.2",
            param_hint="--base-rate",
        )
    share = None if isinstance(base_rate, str) else base_rate
    told = assuming(spec.judges, share, samples=partial(_samples, spec, store), make=partial(judge_of, spec))
    for words, each in zip(spec.judges, told, strict=True):
        if each is None:
            click.echo(f"{words} assumes no base rate; it judges as ever", err=True)
        elif each.n_verdicts:
            without = f"; {each.n_without:,} had no verdict" if each.n_without else ""
            found = f"base rate {each.base_rate:g}, estimated from {each.n_verdicts:,} outputs{without}"
            click.echo(f"{words}: {found}. {CAUTION}", err=True)
    kept = [words if each is None else each.words for words, each in zip(spec.judges, told, strict=True)]
    return spec.model_copy(update={"judges": kept})


def _samples(spec: RunSpec, store: str | None) -> Iterable[Sample]:
    from magistrate._paths import default_store
    from magistrate.runs.prepare import open_data
    from magistrate.store import Store
    from magistrate.store.connect import exists

    place = store or str(default_store())
    if not exists(place):
        yield from open_data(None, spec.dataset)[0]
        return
    with Store.open(place) as opened:
        yield from open_data(opened, spec.dataset)[0]
