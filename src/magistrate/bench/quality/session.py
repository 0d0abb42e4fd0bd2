"""A whole measurement: every set, model and judge that is asked for, a row appended as each is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from magistrate import resolve
from magistrate.analysis.columns import KNOWN
from magistrate.bench.machine import Machine
from magistrate.bench.quality import rows as journal
from magistrate.bench.quality.figures import baseline_rows, row_of
from magistrate.bench.quality.measuring import Measurement, measure
from magistrate.bench.quality.protocol import QualitySet, draw
from magistrate.bench.quality.rows import QualityRow
from magistrate.engines.base import Engine
from magistrate.errors import SpecError
from magistrate.trial import Watcher


def faithfulness_judges(tell: Callable[[str], None]) -> list[str]:
    """Every installed judge that says faithful or hallucinated and needs no options.

    `tell` is told of those that cannot be made so, because they must be given something or do not load.
    """
    found = []
    for name in resolve.judge_entries():
        try:
            judge = resolve.judge(name)
        except SpecError as error:
            tell(f"left out: {error}")
            continue
        if set(judge.info.labels) == set(KNOWN) and not judge.info.lacks:
            found.append(name)
    return found


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
    tell: Callable[[str], None],
    watching: Callable[[], Watcher | None],
) -> Iterator[QualityRow]:
    """Every row, as it is measured and appended to `file`; what stands there already is not appended again.

    `opened` loads a model, anew for every measurement; `tell` is told what is being done, `watching` makes
    who is told how far it is.
    """
    known = journal.read(file)
    runs = {row.run for row in known}
    rules = {(row.key, row.n_dev): row.tuned for row in known if row.run is None}
    for each in sets:
        split = draw(each, samples)
        for row in baseline_rows(split, machine):
            if rules.get((row.key, row.n_dev)) != row.tuned:
                journal.append(file, [row])
            yield row
        for model in models:
            for judge in judges:
                tell(f"{each.name}: {judge} on {model}")
                what = Measurement(split, model, judge)
                done = measure(what, store, opened, machine.commit, again=again, watcher=watching())
                row = row_of(done, machine)
                if row.run not in runs:
                    journal.append(file, [row])
                yield row
