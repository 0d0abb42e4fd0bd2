"""Convert the files of public data sets into rows of the layout in `MAGISTRATE_DATA_DIR`.

Each converter takes the downloaded files and yields rows
`{id, dataset, task, question, context, answer, label, meta}`, with the same ids as the local layout.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from magistrate.datasets.files import open_file
from magistrate.datasets.rows import Problem, Row
from magistrate.types import FAITHFUL, HALLUCINATED

Rows = Iterator[Row | Problem]
Converter = Callable[[Sequence[Path]], Rows]

ARTICLE_SEED = 42
ARTICLE_EACH = 100
SPEAKERS = {"Human": "user", "Assistant": "assistant"}
RAGTRUTH_TASKS = {"QA": "qa", "Summary": "summarization", "Data2txt": "data2txt"}
BEGIN_LABELS = {"Fully attributable": FAITHFUL, "Not fully attributable": HALLUCINATED}
BEGIN_DOMAINS = {"cmu": "cmu-dog", "tc": "topicalchat"}


def halueval_qa(paths: Sequence[Path]) -> Rows:
    """Convert the `qa_samples` view of HaluEval: one of the two answers of each item.

    The random generator is seeded with 42. For each item, in file order, a draw above .5 selects the
    hallucinated answer.
    """
    return _halueval(paths[0], "qa", "answer", context="knowledge", question="question")


def halueval_qa_article200(paths: Sequence[Path]) -> Rows:
    """Convert the 200 items of the structured-generation article: 100 per class, hallucinated first.

    They are those that `DataFrame.sample(100, random_state=42)` takes from each class of the 10,000 rows.
    This uses numpy's legacy generator, whose stream numpy promises not to change, so no data frame is
    needed.
    """
    import numpy

    places: dict[str, list[int]] = {HALLUCINATED: [], FAITHFUL: []}
    for place, row in enumerate(halueval_qa(paths)):
        if isinstance(row, Problem):
            yield row
        else:
            places[row.values["label"]].append(place)
    order: list[int] = []
    for label in (HALLUCINATED, FAITHFUL):
        count = min(ARTICLE_EACH, len(places[label]))
        drawn = numpy.random.RandomState(ARTICLE_SEED).choice(len(places[label]), count, replace=False)
        order += [places[label][int(k)] for k in drawn]
    wanted = set(order)
    found = {place: row for place, row in enumerate(halueval_qa(paths)) if place in wanted}
    yield from (found[place] for place in order)


def summedits(paths: Sequence[Path]) -> Rows:
    """Convert SummEdits: one file per domain; label 1 means that the summary is consistent."""
    for path in paths:
        domain = path.stem.removeprefix("summedits_")
        for row in open_file(path).rows():
            if isinstance(row, Problem):
                yield row
                continue
            values = row.values
            if values.get("label") not in (0, 1):
                yield row.problem("label is not 0 or 1")
                continue
            yield _row(
                row,
                f"summedits-{domain}-{values.get('id')}",
                dataset="summedits",
                task="summarization",
                context=values.get("doc"),
                answer=values.get("summary"),
                label=FAITHFUL if values["label"] else HALLUCINATED,
                meta={
                    "domain": domain,
                    "edit_types": values.get("edit_types", []),
                    "original_summary": values.get("original_summary"),
                },
            )


def begin(paths: Sequence[Path]) -> Rows:
    """Convert BEGIN's development files (tab-separated, unquoted). Replies labelled generic are left out."""
    for path in paths:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
            for number, cells in enumerate(reader):
                row = Row(str(path), number + 2, "", cells)
                label = cells.get("begin_label")
                if label == "Generic":
                    continue
                if label not in BEGIN_LABELS:
                    yield row.problem("begin_label is not one of the three known values")
                    continue
                source = cells.get("data_source", "")
                yield _row(
                    row,
                    f"begin-{path.stem}-{number}",
                    dataset="begin",
                    split="dev",
                    task="dialogue",
                    question=cells.get("message"),
                    context=cells.get("knowledge"),
                    answer=cells.get("response"),
                    label=BEGIN_LABELS[label],
                    meta={"domain": BEGIN_DOMAINS.get(source, source), "model": cells.get("model_name")},
                )


def halueval_dialogue(paths: Sequence[Path]) -> Rows:
    """Convert HaluEval's dialogues, sampled like its questions. The earlier turns become messages."""
    rows = _halueval(paths[0], "dialogue", "response", context="knowledge", question="dialogue_history")
    return (with_messages(row, "question") for row in rows)


def halueval_summarization(paths: Sequence[Path]) -> Rows:
    """Convert HaluEval's summaries, sampled like its questions."""
    return _halueval(paths[0], "summarization", "summary", context="document")


def _halueval(path: Path, task: str, answer: str, **columns: str) -> Rows:
    draw = random.Random(ARTICLE_SEED)
    for pair, row in enumerate(open_file(path).rows()):
        wrong = draw.random() > 0.5
        chosen = {**columns, "answer": f"{'hallucinated' if wrong else 'right'}_{answer}"}
        if isinstance(row, Problem):
            yield row
        elif missing := _not_text(row, chosen.values()):
            yield row.problem(missing)
        else:
            yield _row(
                row,
                f"halueval_{task}-{pair}-{'hall' if wrong else 'right'}",
                dataset=f"halueval_{task}",
                task=task,
                label=HALLUCINATED if wrong else FAITHFUL,
                meta={"pair": pair, "sampled": True},
                **{name: row.values[column] for name, column in chosen.items()},
            )


def with_messages(row: Row | Problem, column: str) -> Row | Problem:
    """Return the row with the turns `[Human]: … [Assistant]: …` in `column` replaced by messages."""
    if isinstance(row, Problem):
        return row
    values = dict(row.values)
    before, *said = re.split(r"\[(Human|Assistant)\]:", str(values.pop(column, "")))
    if before.strip() or not said:
        return row.problem(f"{column} does not start with [Human]: or [Assistant]:")
    turns = zip(said[::2], said[1::2], strict=True)
    values["messages"] = [{"role": SPEAKERS[who], "content": text.strip()} for who, text in turns]
    return Row(row.file, row.line, row.id, values)


def ragtruth_test(paths: Sequence[Path]) -> Rows:
    """Convert the test split of RAGTruth."""
    return _ragtruth(paths, "test")


def ragtruth_train(paths: Sequence[Path]) -> Rows:
    """Convert the training split of RAGTruth."""
    return _ragtruth(paths, "train")


def _ragtruth(paths: Sequence[Path], split: str) -> Rows:
    """Join RAGTruth's responses with their sources. A response with any span, of whatever kind, is
    hallucinated.

    A record of business data becomes the context as JSON text. The prompts, which repeat the context, are
    left out.
    """
    responses, described = paths
    sources: dict[str, Mapping[str, Any]] = {}
    for row in open_file(described).rows():
        if isinstance(row, Problem):
            yield row
        else:
            sources[str(row.values.get("source_id"))] = row.values
    for row in open_file(responses).rows():
        if isinstance(row, Problem):
            yield row
            continue
        values = row.values
        source = sources.get(str(values.get("source_id")))
        if values.get("split") not in ("train", "test"):
            yield row.problem("split is not train or test")
        elif values["split"] == split:
            missing = row.problem("no row of the sources has its source_id")
            yield missing if source is None else _response(row, source)


def _response(row: Row, source: Mapping[str, Any]) -> Row | Problem:
    values, told, kind = row.values, source.get("source_info"), source.get("task_type")
    if missing := _not_text(row, ("response",)):
        return row.problem(missing)
    if kind not in RAGTRUTH_TASKS:
        return row.problem(f"the task_type of its source is not one of {', '.join(RAGTRUTH_TASKS)}")
    if not isinstance(values.get("labels"), list):
        return row.problem("labels is not a list")
    question = None
    match kind, told:
        case "QA", {"question": question, "passages": str(context)}:
            pass
        case "Data2txt", {}:
            context = json.dumps(told, ensure_ascii=False)
        case "Summary", str(context):
            pass
        case _:
            return row.problem(f"the source_info of its source is not valid for {kind}")
    kept = ("source_id", "model", "temperature", "quality")
    return _row(
        row,
        f"ragtruth-{values.get('id')}",
        dataset="ragtruth",
        split=values["split"],
        task=RAGTRUTH_TASKS[kind],
        question=question,
        context=context,
        answer=values["response"],
        label=HALLUCINATED if values["labels"] else FAITHFUL,
        spans=values["labels"],
        meta={**{name: values.get(name) for name in kept}, "source": source.get("source")},
    )


def halubench(paths: Sequence[Path]) -> Rows:
    """Convert HaluBench: questions over passages of six sets; PASS is faithful."""
    for row in open_file(paths[0]).rows():
        if isinstance(row, Problem):
            yield row
        elif missing := _not_text(row, ("passage", "answer")):
            yield row.problem(missing)
        elif row.values.get("label") not in ("PASS", "FAIL"):
            yield row.problem("label is not PASS or FAIL")
        else:
            values = row.values
            yield _row(
                row,
                f"halubench-{values.get('id')}",
                dataset="halubench",
                split="test",
                task="qa",
                question=values.get("question"),
                context=values["passage"],
                answer=values["answer"],
                label=FAITHFUL if values["label"] == "PASS" else HALLUCINATED,
                meta={"domain": values.get("source_ds")},
            )


CONVERTERS: Mapping[str, Converter] = {
    converter.__name__: converter
    for converter in (
        *(halueval_qa, halueval_qa_article200, halueval_dialogue, halueval_summarization),
        *(summedits, begin, ragtruth_test, ragtruth_train, halubench),
    )
}


def _not_text(row: Row, columns: Iterable[str]) -> str | None:
    """Return a message if one of `columns` of the row is not a text."""
    missing = [column for column in columns if not isinstance(row.values.get(column), str)]
    return f"{missing[0]} is not a text" if missing else None


def _row(row: Row, id: str, **values: Any) -> Row:
    return Row(row.file, row.line, id, {"id": id, **values})
