"""Load other tools' test cases, samples, logs and spans as data sets; their packages are not imported.

    from magistrate.integrations.samples import from_deepeval

    magistrate.evaluate(from_deepeval(test_cases), judges=["faithfulness"])

A row that cannot be read becomes one of the set's `problems`, with its field, and reading goes on.
DatasetError if no row can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from magistrate.datasets import Dataset, Problem, load
from magistrate.datasets.frames import rows_of_frame
from magistrate.datasets.inspect_logs import of_samples
from magistrate.datasets.rows import Row, RowError, json_row
from magistrate.datasets.samples import to_sample
from magistrate.datasets.spans.samples import gathered
from magistrate.types import Sample

Mapped = Mapping[str, str] | None
ROLES = {"human": "user", "ai": "assistant"}  # Ragas's names of roles


def from_deepeval(cases: Any, *, mapping: Mapped = None) -> Dataset:
    """Load `LLMTestCase`s and `ConversationalTestCase`s, or an `EvaluationDataset` of them.

    The context is `retrieval_context`, else `context`. A conversation uses both, and its output is the
    assistant's last turn.
    """
    given = getattr(cases, "test_cases", cases)
    return _read("deepeval test case", given, deepeval_row, ("actual_output", "turns"), mapping)


def from_ragas(samples: Any, *, mapping: Mapped = None) -> Dataset:
    """Load `SingleTurnSample`s or `MultiTurnSample`s, or an `EvaluationDataset` of them.

    The context is `retrieved_contexts`. In a conversation, the output is the last AI message, and the
    results of tools are part of the earlier messages.
    """
    given = getattr(samples, "samples", samples)
    return _read("ragas sample", given, ragas_row, ("response", "user_input"), mapping)


def from_inspect(log: Any, *, mapping: Mapped = None) -> Dataset:
    """Load an `EvalLog`, a list of its samples, or the path of a log (`.eval` or `.json`).

    The context is metadata under a known name, such as `documents`. A mapping such as
    `{"context": "store.found"}` selects another place: `metadata.NAME`, `store.NAME`, or `tools` for the
    results of tools.
    """
    if isinstance(log, str | Path):
        return load(log, mapping=mapping)
    samples = getattr(log, "samples", log) or ()
    return _set("inspect", of_samples(samples, "log"), mapping)


def from_openinference(spans: Any, *, mapping: Mapped = None) -> Dataset:
    """Load spans by OpenInference or another convention: Phoenix's data frame, dicts, an OTLP/JSON export,
    or the path of such a file.

    Each answer becomes one sample: the output of a trace's outermost chain or agent, or else of its last
    model call, with the documents retrieved before as the context.
    """
    if isinstance(spans, str | Path):
        return load(spans, mapping=mapping)
    frame = rows_of_frame(spans, "span", {})
    given = [spans] if isinstance(spans, Mapping) else spans
    return _set("openinference", gathered(_span_rows(given) if frame is None else frame), mapping)


def deepeval_row(case: Any) -> dict[str, Any]:
    """Return the columns of one test case, by DeepEval's names. Raises `RowError` for another type."""
    if hasattr(case, "turns"):
        return _conversation(case)
    if not hasattr(case, "actual_output"):
        raise RowError(f"must be an LLMTestCase or a ConversationalTestCase, got {type(case).__name__}")
    return _filled(
        id=case.name,
        input=case.input,
        actual_output=case.actual_output,
        expected_output=case.expected_output,
        retrieval_context=_documents(case.retrieval_context) or _documents(case.context),
        metadata=case.metadata,
        tags=case.tags,
        comments=case.comments,
    )


def _conversation(case: Any) -> dict[str, Any]:
    retrieved = [text for turn in case.turns for text in _documents(turn.retrieval_context)]
    return _filled(
        id=case.name,
        messages=[{"role": turn.role, "content": turn.content} for turn in case.turns],
        retrieval_context=list(dict.fromkeys([*_documents(case.context), *retrieved])),
        expected_output=case.expected_outcome,
        metadata=case.metadata,
        tags=case.tags,
        comments=case.comments,
        scenario=case.scenario,
    )


def _documents(texts: Any) -> list[str]:
    """Return the texts of a context, whose items may include their source: `RetrievedContextData`."""
    return [getattr(each, "context", each) for each in texts or ()]


def ragas_row(sample: Any) -> dict[str, Any]:
    """Return the columns of one sample, by Ragas's names. Raises `RowError` for another type."""
    if not hasattr(sample, "user_input"):
        raise RowError(f"must be a SingleTurnSample or a MultiTurnSample, got {type(sample).__name__}")
    row = _filled(**vars(sample))
    if not isinstance(sample.user_input, list):
        return row
    spoken = [
        {"role": ROLES.get(message.type, message.type), "content": message.content}
        for message in sample.user_input
    ]
    return {**{name: value for name, value in row.items() if name != "user_input"}, "messages": spoken}


def _filled(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != []}


def _read(
    what: str,
    items: Iterable[Any],
    row_of: Callable[[Any], Mapping[str, Any]],
    outputs: tuple[str, str],
    mapping: Mapped,
) -> Dataset:
    """Load a data set of `what`. `outputs` are the fields with an output, the second in a conversation."""
    alone, spoken = outputs

    def rows() -> Iterator[Row | Problem]:
        for number, item in enumerate(items, 1):
            row = Row(f"{what} {number}", None, f"{what.split()[0]}-{number}", {})
            try:
                values = json_row(_plain(row_of(item)))
            except (RowError, ValueError) as error:
                yield row.problem(str(error))
                continue
            roles = [message["role"] for message in values.get("messages", ())]
            if "output" in (mapping or ()) or alone in values or "assistant" in roles:
                yield replace(row, values=values)
            else:
                yield row.problem(f"{spoken}: the assistant says nothing" if roles else f"{alone} is missing")

    return _set(what.split()[0], rows(), mapping)


def _plain(value: Any) -> Any:
    """Convert pydantic objects inside a row, such as tool calls, to plain values."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def _span_rows(spans: Iterable[Any]) -> Iterator[Row | Problem]:
    for number, span in enumerate(spans, 1):
        where = f"span {number}"
        if not isinstance(span, Mapping):
            yield Problem(where, None, f"must be an object, got {type(span).__name__}")
            continue
        try:
            yield Row(where, None, where, json_row(span))
        except ValueError as error:
            yield Problem(where, None, str(error))


def _set(name: str, rows: Iterable[Row | Problem], mapping: Mapped) -> Dataset:
    """Return a data set of rows. Its problems name the row and the field."""
    found = load([_sample(row, mapping) for row in rows])
    found.name = name
    return found


def _sample(row: Row | Problem, mapping: Mapped) -> Sample | Problem:
    if isinstance(row, Problem):
        return row
    try:
        return to_sample(row.values, id=row.id, mapping=mapping)
    except RowError as error:
        return row.problem(str(error))
