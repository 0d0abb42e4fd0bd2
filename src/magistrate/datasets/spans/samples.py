"""Read a file of spans as a data set, with one sample per answer of a trace.

`targets` selects the answer, context and input of a trace. An answer without a context becomes a sample
without one, as in any other file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from magistrate.datasets.fields import plain
from magistrate.datasets.rows import Problem, Row
from magistrate.datasets.spans.span import EXPORTS, SPAN, TRACE, Span, first_of, id_of, spans_of_row
from magistrate.datasets.spans.targets import Target, targets_of
from magistrate.datasets.spans.tree import Tree, tree_of


def is_span(values: Mapping[str, Any]) -> bool:
    """Return whether an object is a span or an export of spans, rather than a sample with a trace id."""
    if any(name in values for name in EXPORTS):
        return True
    attributes = any(name == "attributes" or name.startswith("attributes.") for name in values)
    return attributes and bool(id_of(first_of(values, TRACE))) and bool(id_of(first_of(values, SPAN)))


def gathered(rows: Iterable[Row | Problem]) -> Iterator[Row | Problem]:
    """Yield one sample per answer if the file contains spans; otherwise yield the rows unchanged."""
    coming = iter(rows)
    for row in coming:
        if isinstance(row, Row) and is_span(row.values):
            yield from _traces(chain([row], coming))
            return
        yield row
        if isinstance(row, Row):
            break
    yield from coming


def spans_of_rows(rows: Iterable[Row | Problem]) -> Iterator[tuple[Span, Row] | Problem]:
    """Yield each span of a file with its row."""
    for row in rows:
        if isinstance(row, Problem):
            yield row
            continue
        for span in spans_of_row(row.values):
            yield row.problem(span) if isinstance(span, str) else (span, row)


def _traces(rows: Iterable[Row | Problem]) -> Iterator[Row | Problem]:
    """Yield the samples of each trace, in the order in which traces begin. Reads all spans first."""
    traces: dict[str, list[tuple[Span, Row]]] = {}
    for found in spans_of_rows(rows):
        if isinstance(found, Problem):
            yield found
        else:
            traces.setdefault(found[0].trace_id, []).append(found)
    for held in traces.values():
        yield from _samples(held)


def _samples(held: list[tuple[Span, Row]]) -> Iterator[Row | Problem]:
    tree = tree_of([span for span, _ in held])
    rows = {span.span_id: row for span, row in held}
    found = targets_of(tree)
    if not found:
        yield rows[tree.nodes[0].span.span_id].problem(_nothing(tree))
    for target in found:
        row, id = rows[target.span_id], target.trace_id
        if "output" not in target.taken:
            yield row.problem(f"trace {plain(id)}: {target.why}")
        else:
            id = id if len(found) == 1 else f"{id}:{target.span_id}"
            yield Row(row.file, row.line, id, _values(target) | {"id": id})


def _values(target: Target) -> dict[str, Any]:
    """Return the columns of a target's row, whether it has a context or not."""
    if target.sample is not None:
        from magistrate.datasets.samples import to_row

        return to_row(target.sample)
    texts = {name: taken.texts[0] for name, taken in target.taken.items()}
    return {**texts, "metadata": {"trace_id": target.trace_id, "span_id": target.span_id}}


def _nothing(tree: Tree) -> str:
    """Return the reason why a trace contains no answer."""
    first = plain(tree.nodes[0].span.trace_id)
    roots = [node for node in tree.nodes if node.parent < 0]
    if all(root.step.kind == "evaluator" for root in roots):
        return f"trace {first} is from an evaluator, not from an application"
    kinds = ", ".join(
        dict.fromkeys(
            node.step.kind if node.step.kind != "other" else node.span.name or "without a name"
            for node in tree.nodes
        )
    )
    return f"no agent, chain or model call in trace {first}; its spans are: {plain(kinds, 200)}"
