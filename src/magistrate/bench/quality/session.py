"""A whole measurement: every set, model and judge that is asked for, a row appended as each is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from magistrate.analysis.columns import KNOWN
from magistrate.bench.machine import Machine
from magistrate.bench.quality import rows as journal
from magistrate.bench.quality.figures import baseline_rows, row_of
from magistrate.bench.quality.measuring import FAMILY, Measurement, measure
from magistrate.bench.quality.protocol import SETS, QualitySet, draw, here
from magistrate.bench.quality.rows import QualityRow
from magistrate.engines.base import Engine
from magistrate.engines.none import NO_MODEL
from magistrate.errors import SpecError
from magistrate.judges import registry
from magistrate.runs.progress import ProgressListener


def faithfulness_judges(tell: Callable[[str], None]) -> list[str]:
    """Every installed judge that says faithful or hallucinated and needs no options.

    `tell` is told of those that cannot be made so, because they must be given something or do not load.
    """
    found = []
    for name in registry.judge_entries():
        try:
            judge = registry.judge(name)
        except SpecError as error:
            tell(f"left out: {error}")
            continue
        if set(judge.info.labels) == set(KNOWN) and not judge.info.lacks:
            found.append(name)
    return found


def refused(judge: str, each: QualitySet, learnt_from: Sequence[str]) -> str:
    """Why a judge is not measured on a set that it was trained on, and what to do."""
    return (
        f"{judge} was trained on {', '.join(learnt_from)}, and {each.name} is of that making. Train one "
        f"without it, one a family, and name them together: NAME:some/folders/without-{FAMILY}; to measure "
        "it all the same: --seen"
    )


def session(
    sets: Sequence[QualitySet],
    models: Sequence[str],
    judges: Sequence[str],
    samples: int,
    *,
    file: Path,
    store: Path,
    opened: Callable[[str], Engine],
    machine: Machine,
    again: bool = False,
    seen: bool = False,
    tell: Callable[[str], None],
    watching: Callable[[], ProgressListener | None],
) -> Iterator[QualityRow]:
    """Every row, as it is measured and appended to `file`; what stands there already is not appended again.

    `{family}` in a judge's words stands for the family of the set. A judge that was trained on a set's family
    is not measured there, unless `seen`. `opened` loads a model, anew for every measurement, and none for
    judges of code; `tell` is told what is being done, `watching` makes who is told how far it is.
    """
    known = journal.read(file)
    runs = {row.run for row in known}
    rules = {(row.key, row.n_dev): (row.tuned, row.own) for row in known if row.run is None}
    others = [draw(each) for each in SETS if here(each)]
    for each in sets:
        split = draw(each, samples)
        for row in baseline_rows(split, machine, others):
            if rules.get((row.key, row.n_dev)) != (row.tuned, row.own):
                journal.append(file, [row])
            yield row
        for judge in judges:
            alone = registry.asks_none([registry.judge(judge.replace(FAMILY, each.family))])
            for model in [NO_MODEL] if alone else models:
                what = Measurement(split, model, judge)
                if what.seen and not seen:
                    tell(f"{each.name}: left out: {refused(judge, each, what.seen)}")
                    continue
                tell(f"{each.name}: {judge}" + ("" if alone else f" on {model}"))
                done = measure(what, store, opened, machine.commit, again=again, watcher=watching())
                row = row_of(done, machine)
                if row.run not in runs:
                    journal.append(file, [row])
                yield row
