"""Exports and imports labels: CSV for `agree --with`, JSONL with RAGTruth-style spans, JSON of tools."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from magistrate.datasets.fields import UnknownLabel, label_of, plain
from magistrate.datasets.files import open_file
from magistrate.datasets.rows import Problem
from magistrate.datasets.samples import ForeignSpan
from magistrate.errors import InputError, SpecError
from magistrate.labels.decisions import findings
from magistrate.labels.tools import FORMS, GOLD, Counting, Form, rows_of, tasks
from magistrate.report.export import FORMULA, write_whole
from magistrate.store import Store
from magistrate.store.labels import (
    DECIDED,
    SKIP,
    UNSURE,
    Answer,
    Label,
    Queue,
    checked_annotator,
    checked_answer,
)
from magistrate.types import HALLUCINATED, Sample, Span

COLUMNS = (
    *("id", "label", "annotator", "answer", "note", "seconds", "verdict_shown", "revision", "at"),
    *("inclusion", "policy"),
)
COMMENT_COLUMNS = ("id", "item", "author", "text", "at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of an import: numbers of new and already known labels, and ids that match no item."""

    n_new: int
    n_known: int
    unknown: tuple[str, ...]


# --- out ------------------------------------------------------------------------------------------


def export(
    store: Store,
    queue: Queue,
    target: Path,
    *,
    gold: bool = False,
    comments: bool = False,
    replace: bool = False,
    form: Form | None = None,
) -> int:
    """Write every annotator's labels, and return the number of rows.

    With `gold` these are the items' final labels, with `comments` what people wrote on items. The suffix
    selects the format: `.csv` or `.jsonl`, or `.json` for the tool `form`. Raises `SpecError` for another
    suffix, and if the file exists and `replace` is false.
    """
    ending = target.suffix.lower()
    if ending not in (".csv", ".jsonl", ".json"):
        raise SpecError(f"the file must end in .csv or .jsonl, or in .json for a tool; got {target.name!r}")
    if (ending == ".json") != (form is not None):
        raise SpecError(f"a .json file needs --for {' or '.join(FORMS)}, and only a .json file")
    if target.exists() and not replace:
        raise SpecError(f"{target} already exists; --force replaces it")
    rows = rows_to_write(store, queue, gold=gold, comments=comments, form=form)
    columns = COMMENT_COLUMNS if comments else COLUMNS

    def write(raw: IO[bytes]) -> int:
        text = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", newline="")
        if form is not None:
            text.write(json.dumps(rows, ensure_ascii=False, allow_nan=False, indent=1) + "\n")
        elif ending == ".csv":
            writer = csv.DictWriter(text, columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows({name: _cell(row[name]) for name in columns} for row in rows)
        else:
            text.writelines(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        text.flush()
        text.detach()
        return len(rows)

    return write_whole(target, write)


def rows_to_write(
    store: Store, queue: Queue, *, gold: bool = False, comments: bool = False, form: Form | None = None
) -> list[dict[str, Any]]:
    """Return plain rows, one per label or with `gold` one per decided item; with `form` those of the tool.

    With `comments`, one per comment instead. Raises `SpecError` for a combination that does not exist.
    """
    if comments:
        if gold or form is not None:
            raise SpecError("comments have a file of their own: leave out the final labels and the tool")
        return list(_comments(store, queue))
    if form is not None:
        return tasks(form, queue, findings(store, queue), store.labels.samples(queue.name), gold=gold)
    return list(_held(store, queue) if gold else _said(store, queue))


def _said(store: Store, queue: Queue) -> Iterator[dict[str, Any]]:
    """Yield one row per current label."""
    for found, sample in zip(findings(store, queue), store.labels.samples(queue.name), strict=True):
        for label in found.labels:
            held = label.label if label.label in DECIDED else None
            told = {
                "annotator": label.annotator,
                "answer": label.label,
                "note": label.note,
                "seconds": label.seconds,
                "verdict_shown": label.shown,
                "revision": label.revision,
                "at": label.at.isoformat(timespec="seconds"),
            }
            chance = {"inclusion": found.item.inclusion, "policy": found.item.policy}
            quote = label.quote
            where = (
                None if quote is None else {"source": quote.source, "start": quote.start, "end": quote.end}
            )
            yield {**_sample(sample, held, label.spans), **told, **chance, "quote": where}


def _held(store: Store, queue: Queue) -> Iterator[dict[str, Any]]:
    """Yield one row per item with a final label."""
    for found, sample in zip(findings(store, queue), store.labels.samples(queue.name), strict=True):
        if found.label is None:
            continue
        gold = found.gold
        last: Label | None = max(found.labels, key=lambda each: each.id, default=None)
        at = gold.at if gold is not None else last.at if last is not None else None
        told = {
            "annotator": GOLD,
            "answer": found.label,
            "note": gold.reason if gold is not None else "",
            "seconds": None,
            "verdict_shown": any(each.shown for each in found.said),
            "revision": gold.revision if gold is not None else 0,
            "at": "" if at is None else at.isoformat(timespec="seconds"),
        }
        chance = {"inclusion": found.item.inclusion, "policy": found.item.policy}
        yield {**_sample(sample, found.label, found.spans), **told, **chance}


def _comments(store: Store, queue: Queue) -> Iterator[dict[str, Any]]:
    """Yield one row per comment; `item` is the number of the item, from 1."""
    ids = {each.position: each.sample_id for each in store.labels.items(queue.name)}
    for each in store.comments.of(queue.name):
        told = {"author": each.author, "text": each.text, "at": each.at.isoformat(timespec="seconds")}
        yield {"id": ids[each.position], "item": each.position + 1, **told}


def _sample(sample: Sample, label: str | None, spans: tuple[Span, ...]) -> dict[str, Any]:
    output = sample.output or ""
    return {
        "id": sample.id,
        "input": sample.input,
        "context": list(sample.context),
        "response": output,
        "label": label,
        "labels": [
            {
                "start": span.start,
                "end": span.end,
                "text": output[span.start : span.end],
                "meta": "",
                "label_type": span.kind,
            }
            for span in spans
        ],
    }


def _cell(value: Any) -> Any:
    """Escape a cell that a spreadsheet would take for a formula."""
    return f"'{value}" if isinstance(value, str) and FORMULA.match(value) else value


def _uncell(text: str) -> str:
    """Undo the escaping of `_cell`."""
    return text[1:] if text[:1] == "'" and FORMULA.match(text, 1) else text


# --- in -------------------------------------------------------------------------------------------


def _spans(value: Any) -> Any:
    return () if value in (None, "") else value


class ForeignLabel(BaseModel):
    """One row of a label file."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)
    id: str = Field(min_length=1)
    label: str | None = None
    answer: str | None = None
    annotator: str | None = None
    note: str | None = None
    spans: Annotated[tuple[ForeignSpan, ...], BeforeValidator(_spans)] = Field(
        (), validation_alias=AliasChoices("labels", "spans")
    )


def import_labels(
    store: Store,
    queue: Queue,
    source: Path,
    now: datetime,
    *,
    annotator: str | None = None,
    counting: Counting | None = None,
) -> Imported:
    """Append the labels of a file to a queue, matched by sample id; all of them or none.

    `annotator` is used for rows that name nobody. `counting` is the unit of character offsets in a tool's
    file. Labels equal to the annotator's current one are not appended again. A file without spans, such as
    CSV, keeps existing spans of the same label. Raises `InputError` for the first row that cannot be read.
    """
    items = {each.sample_id: each for each in store.labels.items(queue.name)}
    samples = {each.id: each for each in store.labels.samples(queue.name)}
    read: dict[tuple[int, str], Answer] = {}
    unmarked: set[tuple[int, str]] = set()
    unknown: list[str] = []
    cells = ".csv" in (suffix.lower() for suffix in source.suffixes)
    outputs = {name: each.output or "" for name, each in samples.items()}
    for row in open_file(source).rows():
        if isinstance(row, Problem):
            raise InputError(f"nothing was imported: {row}")
        try:
            of_tool = rows_of(row.values, outputs, counting)
            for values in [row.values] if of_tool is None else of_tool:
                foreign = _read(values, cells=cells)
                who = checked_annotator(foreign.annotator or annotator or "")
                sample_id = foreign.id if foreign.id in items else foreign.id.removeprefix("'")
                if sample_id not in items:
                    unknown.append(foreign.id)
                    continue
                answer = checked_answer(_answer(foreign), samples[sample_id])
                key = (items[sample_id].position, who)
                if read.setdefault(key, answer) != answer:
                    raise InputError(f"{who} labels {sample_id!r} twice")
                if "spans" not in foreign.model_fields_set:
                    unmarked.add(key)
        except (InputError, UnknownLabel) as error:
            raise InputError(f"nothing was imported: {row.where}: {plain(str(error), 300)}") from None
    if not read:
        raise InputError(f"no row of {source.name} matches an item of queue {queue.name!r}")
    new = store.labels.add_all(queue.name, read, now, unmarked=unmarked)
    return Imported(n_new=new, n_known=len(read) - new, unknown=tuple(unknown))


def _read(values: Mapping[str, Any], *, cells: bool) -> ForeignLabel:
    given = dict(values)
    if cells:
        told = {name: given[name] for name in ("annotator", "note") if isinstance(given.get(name), str)}
        given |= {name: _uncell(text) for name, text in told.items()}
    try:
        return ForeignLabel.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _answer(foreign: ForeignLabel) -> Answer:
    spans = tuple(Span(each.start, each.end, each.kind or HALLUCINATED) for each in foreign.spans)
    word = (foreign.answer or foreign.label or "").strip()
    label = word.lower() if word.lower() in (UNSURE, SKIP) else label_of("label", word)
    if label is None:
        raise InputError("it has no label")
    return Answer(label=label, spans=spans, note=foreign.note or "")
