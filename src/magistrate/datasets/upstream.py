"""How the files that public sets publish become rows of the layout in `MAGISTRATE_DATA_DIR`.

Each converter takes the downloaded files and gives rows `{id, dataset, task, question, context,
answer, label, meta}`, with the ids that the local layout has.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from magistrate.datasets.files import Problem, Row, open_file
from magistrate.types import FAITHFUL, HALLUCINATED

Rows = Iterator[Row | Problem]
Converter = Callable[[Sequence[Path]], Rows]

ARTICLE_SEED = 42
ARTICLE_EACH = 100
BEGIN_LABELS = {"Fully attributable": FAITHFUL, "Not fully attributable": HALLUCINATED}
BEGIN_DOMAINS = {"cmu": "cmu-dog", "tc": "topicalchat"}


def halueval_qa(paths: Sequence[Path]) -> Rows:
    """The `qa_samples` view of HaluEval: one of the two answers of each item.

    The generator is seeded with 42; per item in file order a draw above .5 takes the hallucinated one.
    """
    draw = random.Random(ARTICLE_SEED)
    for pair, row in enumerate(open_file(paths[0]).rows()):
        wrong = draw.random() > 0.5
        if isinstance(row, Problem):
            yield row
            continue
        answer = row.values.get("hallucinated_answer" if wrong else "right_answer")
        yield _row(
            row,
            f"halueval_qa-{pair}-{'hall' if wrong else 'right'}",
            dataset="halueval_qa",
            task="qa",
            question=row.values.get("question"),
            context=row.values.get("knowledge"),
            answer=answer,
            label=HALLUCINATED if wrong else FAITHFUL,
            meta={"pair": pair, "sampled": True},
        )


def halueval_qa_article200(paths: Sequence[Path]) -> Rows:
    """The 200 items of the structured-generation article: 100 a class, hallucinated first.

    They are what `DataFrame.sample(100, random_state=42)` takes of each class of the 10,000 rows; that
    is numpy's legacy generator, whose stream numpy promises not to change, so no data frame is needed.
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
    """SummEdits: one file a domain, label 1 for a summary that is consistent with its document."""
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
    """BEGIN's development files: tab-separated, unquoted; replies labelled generic are left out."""
    for path in paths:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
            for number, cells in enumerate(reader):
                row = Row(str(path), number + 2, "", cells)
                label = cells.get("begin_label")
                if label == "Generic":
                    continue
                if label not in BEGIN_LABELS:
                    yield row.problem("begin_label is none of the three known")
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


CONVERTERS: Mapping[str, Converter] = {
    converter.__name__: converter for converter in (halueval_qa, halueval_qa_article200, summedits, begin)
}


def _row(row: Row, id: str, **values: Any) -> Row:
    return Row(row.file, row.line, id, {"id": id, **values})
