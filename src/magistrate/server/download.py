"""The outcomes of a run's filtered list as a file, CSV or JSON Lines, written while it is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse

from magistrate.errors import StoreError
from magistrate.judges.rubric import reflagged
from magistrate.report.counts import KNOWN
from magistrate.report.export import streamed_rows
from magistrate.server.figures import JudgeReader, source_of
from magistrate.server.outcomes import (
    Cursor,
    Decided,
    ListFilter,
    MemoryList,
    StoredList,
    next_lines,
    said_at,
)
from magistrate.server.run import PageParams, judge_of
from magistrate.server.state import Refused, RequestStore, StorePool, run_cache_of, stores_of
from magistrate.types import Outcome, Sample, Scoring, Verdict

ROWS_AT_ONCE = 200
TYPES = {"csv": "text/csv", "jsonl": "application/x-ndjson"}
LATER = "this list is still being worked out; ask again in a moment"

router = APIRouter()


@dataclass(frozen=True, slots=True)
class Listed:
    """A judge's filtered list. `n` of its outcomes have a place in its order. `scoring` is how scores are
    read, at the threshold of the filter.
    """

    source: StoredList | MemoryList
    run_id: str
    judge: str
    wanted: ListFilter
    n: int
    scoring: Scoring | None

    def pairs(self, stores: StorePool) -> Iterator[tuple[Sample, Outcome]]:
        """Yield samples with their outcomes, labelled as in the list.

        Each stretch is read for itself, so that a slow reader keeps no transaction open. Raises `StoreError`
        if outcomes have vanished meanwhile, since a file must not look whole without them.
        """
        cursor, read = None, 0
        while True:
            with stores.one() as store, store.snapshot() as moment:
                now = replace(self.source, moment=moment)
                lines = next_lines(now, self.wanted, cursor, "after", ROWS_AT_ONCE)
                found = moment.judged_at(self.run_id, self.judge, [line.position for line in lines])
            for line in lines:
                sample, outcome = found[line.position]
                yield sample, self._labelled(outcome)
            read += len(lines)
            if not lines:
                break
            cursor = Cursor(lines[-1].position, lines[-1].score if now.by_score else None)
        if read < self.n:
            raise StoreError(f"{self.n - read} of {self.n} outcomes of run {self.run_id} are gone meanwhile")

    def _labelled(self, outcome: Outcome) -> Outcome:
        if self.wanted.flag:
            outcome = reflagged(outcome, self.wanted.flag)
        at = self.wanted.threshold
        if (
            at is None
            or self.scoring is None
            or not isinstance(outcome, Verdict)
            or outcome.label not in KNOWN
        ):
            return outcome
        return replace(outcome, label=said_at(at, outcome.score, self.scoring.turned))


@router.get("/runs/{run_id}/download")
def download(
    request: Request,
    run_id: str,
    store: RequestStore,
    query: PageParams,
    format: Annotated[Literal["csv", "jsonl"], Query()] = "csv",
) -> Response:
    """Send the outcomes that a run's page lists with the same query, all of them, as a file."""
    with store.snapshot() as moment:
        record = store.seen(moment.record(run_id))
        judge = judge_of(record, query.judge)
        if judge is None:
            raise HTTPException(404, f"run {run_id} has no judge")
        reader = JudgeReader(moment, run_cache_of(request), record, judge)
        listed = _listed(reader, query.wanted)
    rows = streamed_rows(
        format, listed.pairs(stores_of(request)), {judge: listed.scoring} if listed.scoring else {}
    )
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run_id}-{judge}")[:100].strip(".-")
    headers = {"Content-Disposition": f'attachment; filename="{name or "outcomes"}.{format}"'}
    return StreamingResponse(rows, media_type=TYPES[format], headers=headers)


def _listed(reader: JudgeReader, wanted: ListFilter) -> Listed:
    scoring = reader.record.scoring.get(reader.judge)
    if scoring is None:
        wanted = wanted.but(threshold=None)
    if wanted.threshold is not None and scoring is not None:
        scoring = replace(scoring, threshold=wanted.threshold)
    fresh: Decided | None = None
    if wanted.flag and reader.own_flags is not None and set(wanted.flag) != set(reader.own_flags):
        flagged = reader.flagged(wanted.flag)
        if not isinstance(flagged, Decided):
            raise HTTPException(503, LATER if flagged is None else flagged.message)
        fresh = flagged
    else:
        wanted = wanted.but(flag=())
    cells = fresh.cells if fresh else reader.cells
    found = source_of(reader, wanted, fresh, cells, scoring is not None and scoring.turned)
    if found is None or isinstance(found, Refused):
        raise HTTPException(503, LATER if found is None else found.message)
    source, n_unsearched = found
    if n_unsearched:
        raise HTTPException(
            422, f"the words were not looked for in the last {n_unsearched:,} samples; choose by other fields"
        )
    assert isinstance(source, StoredList | MemoryList)
    n, n_unscored = source.count()
    return Listed(
        source, reader.record.id, reader.judge, wanted, n - n_unscored if source.by_score else n, scoring
    )
