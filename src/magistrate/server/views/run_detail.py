"""One judge of a run with all that its page shows: figures, failures, slices and a stretch of the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from magistrate.api.run import price_of_run
from magistrate.report.counts import Counted, JudgeScores
from magistrate.report.values import JudgeReport
from magistrate.server.answers import Refused
from magistrate.server.memory import Memory
from magistrate.server.views.run_figures import Figures, figures_of
from magistrate.server.views.run_flags import Decided, decided, decided_list, flags_of
from magistrate.server.views.run_judge import (
    Choices,
    CodeLine,
    CrossTable,
    FlagPart,
    JudgePart,
    choices_of,
    code_lines,
    cross_table,
    flag_part,
    judge_part,
)
from magistrate.server.views.run_list import AT_ONCE, ListFilter, ListView, list_view, stored_list
from magistrate.server.views.run_slices import LOOKED_AT, Sliced, SlicesView, keys_of, sliced, slices_view
from magistrate.store import RunRecord, Snapshot
from magistrate.store.outcome_lists import Cell

MOST_AT_ONCE = 500
"""Outcomes that are counted while somebody waits: a tenth of a millisecond each."""
MOST_SLICED = 1_000

T = TypeVar("T")


ALL = ListFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody wants to see of a run: which judge, which list and where in it, which slices."""

    judge: str | None = None
    wanted: ListFilter = ALL
    by: str | None = None
    after: str | None = None
    before: str | None = None
    limit: int = AT_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """A judge of the run: its figures, None where nothing is counted yet, and its outcomes.

    `keys` are fields of metadata to slice by. `slices` is None where none are wanted or they are being worked
    out. `pending` says that something is, `refused` why something that was wanted cannot be had.
    """

    judge: str
    part: JudgePart | None
    flags: FlagPart | None
    codes: tuple[CodeLine, ...]
    table: CrossTable | None
    choices: Choices
    keys: tuple[str, ...]
    slices: SlicesView | None
    outcomes: ListView
    pending: bool
    refused: str | None


@dataclass(frozen=True, slots=True)
class Looking:
    """A look at one judge of a run at one moment, with what was worked out before for the same revision."""

    moment: Snapshot
    memory: Memory
    record: RunRecord
    judge: str

    def kept(self, what: str, make: Callable[[], T]) -> T:
        """What `make` gives, which depends on the judge's outcomes alone."""
        return self.memory.known((what, self.record.id, self.record.revision, self.judge), make)

    def worked_out(
        self, what: str, more: object, make: Callable[[Snapshot], T], most: int
    ) -> T | Refused | None:
        """The same for what takes long: at once for a run of at most so many outcomes, else aside."""
        key = (what, self.record.id, self.record.revision, self.judge, more)
        if self.record.n_outcomes <= most:
            return self.memory.known(key, lambda: make(self.moment))
        return self.memory.aside(key, make)

    @property
    def cells(self) -> Mapping[Cell, int]:
        """How many outcomes are in which cell."""
        return self.kept("cells", lambda: self.moment.cells(self.record.id, self.judge))

    @property
    def own_flags(self) -> tuple[str, ...] | None:
        """The kinds of claims that decided the verdicts; None where claims do not decide."""
        return self.kept("flags", lambda: (flags_of(self.moment, self.record.id, self.judge, self.cells),))[0]

    def flagged(self, flag: tuple[str, ...]) -> Decided | Refused | None:
        """The verdicts decided anew; None while they are being decided."""
        return self.worked_out(
            "decided",
            tuple(sorted(flag)),
            lambda moment: decided(moment, self.record, self.judge, flag),
            MOST_AT_ONCE,
        )

    def figures(self, counted: Counted | None, anew: Decided | None, flag: tuple[str, ...]) -> Figures | None:
        """The judge's figures as counted, or as decided anew."""
        found: tuple[JudgeReport, JudgeScores] | None = None
        revision = self.record.revision
        if anew is not None:
            found = anew.report, anew.scores
        elif counted is not None:
            report = next((each for each in counted.report.judges if each.judge == self.judge), None)
            found = None if report is None else (report, counted.scores[self.judge])
            revision = counted.revision
        if found is None:
            return None
        report, scores = found
        key = ("figures", self.record.id, revision, self.judge, flag if anew else ())
        return self.memory.known(key, lambda: figures_of(report, scores))

    def keys(self) -> tuple[str, ...]:
        """The fields of metadata to slice by."""
        key = ("keys", self.record.id, min(self.record.n_samples, LOOKED_AT))
        return self.memory.known(key, lambda: keys_of(self.moment, self.record.id))

    def codes(self) -> tuple[CodeLine, ...]:
        """Failures and abstentions by code."""
        return self.kept("codes", lambda: code_lines(self.moment, self.record.id, self.judge, self.cells))


def detail_of(look: Looking, counted: Counted | None, asked: Asked) -> Detail:
    """The judge in detail; `counted` are the figures of the run, of whatever revision."""
    own, flag = look.own_flags, asked.wanted.flag
    anew: Decided | Refused | None = None
    switches = None if own is None else flag_part(own, flag, pending=False)
    if switches is not None and switches.chosen:
        anew = look.flagged(switches.chosen)
        switches = flag_part(own or (), flag, pending=anew is None)
    problem = anew.told if isinstance(anew, Refused) else None
    fresh = anew if isinstance(anew, Decided) else None
    figures = look.figures(counted, fresh, tuple(sorted(flag)))
    cuts = figures is not None and figures.n_scores and figures.report.scoring is not None
    threshold = asked.wanted.threshold if cuts else None
    labelled = figures is not None and figures.report.result is not None
    slices = _slices(look, asked.by) if asked.by and labelled else None
    view = None
    if isinstance(slices, Refused):
        problem = slices.told
    elif slices is not None:
        view = slices_view(slices, threshold)
    cells = fresh.cells if fresh else look.cells
    codes = look.codes()
    return Detail(
        judge=look.judge,
        part=None if figures is None else judge_part(figures, threshold, price_of_run(look.record)),
        flags=switches,
        codes=codes,
        table=None if threshold is not None else cross_table(cells),
        choices=choices_of(cells, codes),
        keys=look.keys() if labelled else (),
        slices=view,
        outcomes=_list(look, asked, fresh, cells, threshold, figures),
        pending=(switches is not None and switches.pending) or bool(asked.by and labelled and slices is None),
        refused=problem,
    )


def _slices(look: Looking, by: str) -> Sliced | Refused | None:
    run_id, judge = look.record.id, look.judge
    return look.worked_out("slices", by, lambda moment: sliced(moment, run_id, judge, by), MOST_SLICED)


def _list(
    look: Looking,
    asked: Asked,
    fresh: Decided | None,
    cells: Mapping[Cell, int],
    threshold: float | None,
    figures: Figures | None,
) -> ListView:
    wanted = asked.wanted.but(threshold=threshold)
    turned = figures is not None and figures.report.turned
    place = (
        decided_list(look.moment, look.record.id, look.judge, wanted, fresh)
        if fresh
        else stored_list(look.moment, look.record.id, look.judge, wanted, cells, turned)
    )
    return list_view(
        place,
        wanted,
        sum(cells.values()),
        turned,
        after=asked.after,
        before=asked.before,
        limit=asked.limit,
    )
