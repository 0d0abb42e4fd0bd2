"""What of a trace is judged, and against what: which spans count, and what hostile ones do."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.datasets.spans.span import Event, Span, spans_of_request, spans_of_row
from magistrate.datasets.spans.targets import MOST_DOCUMENTS, Target, targets
from magistrate.datasets.spans.tree import tree_of
from traced import ANSWER, CONVENTIONS, QUESTION, SECOND, TRACE, openinference, span


def oi(number: int, parent: int | None, kind: str, start: float, end: float | None, **named: Any) -> Span:
    """A span of OpenInference; dots of attributes are written as `__`."""
    attributes = {name.replace("__", "."): value for name, value in named.items()}
    return span(
        number, parent, kind.lower(), start, end, attributes={"openinference.span.kind": kind, **attributes}
    )


def retriever(number: int, parent: int | None, start: float, end: float | None, *found: str) -> Span:
    documents = {f"retrieval__documents__{at}__document__content": text for at, text in enumerate(found)}
    return oi(number, parent, "RETRIEVER", start, end, **documents)


def call(
    number: int, parent: int | None, start: float, said: str | None = ANSWER, asked: str = QUESTION
) -> Span:
    answered = (
        {}
        if said is None
        else {"llm__output_messages": [{"message.role": "assistant", "message.content": said}]}
    )
    prompt = [{"message.role": "user", "message.content": asked}]
    return oi(number, parent, "LLM", start, start + 0.5, llm__input_messages=prompt, **answered)


def contexts(spans: list[Span], kind: str = "answer") -> list[tuple[str, tuple[str, ...]]]:
    """Each target's output with its context."""
    found = targets(spans, (kind,))
    return [(each.sample.output or "", each.sample.context) for each in found if each.sample is not None]


def only(spans: list[Span], kind: str = "answer") -> Target:
    (target,) = targets(spans, (kind,))
    return target


def test_a_span_that_was_cut_gives_no_sample() -> None:
    whole = [retriever(1, None, 0, 1, "It is open from nine."), call(2, None, 2)]
    assert only(whole).sample is not None
    for at, cut in enumerate(whole):
        spans = list(whole)
        spans[at] = replace(cut, attributes={**cut.attributes, "magistrate.cut": "text"})
        target = only(spans)
        assert (target.sample, target.missing) == (None, "failed") and "was cut" in target.why, at


# --- only what came before, and only what belongs together ---------------------------------------------


def test_documents_found_after_the_answer_began_are_not_its_context() -> None:
    late = retriever(3, 1, 2, 5, "late")  # began before the call, ended after it began
    spans = [oi(1, None, "CHAIN", 0, 9), retriever(2, 1, 1, 2, "early"), late, call(4, 1, 3)]
    assert contexts(spans) == [(ANSWER, ("early",))]
    target = only(
        [
            spans[0],
            late,
            replace(spans[3], attributes={"openinference.span.kind": "LLM", "output.value": ANSWER}),
        ]
    )
    assert (target.sample, target.missing) == (None, "no_context")
    assert "1 span of the trace with some ended later or belong to another" in target.why


def test_a_span_that_has_not_ended_is_not_used() -> None:
    spans = [
        oi(1, None, "CHAIN", 0, None),
        retriever(2, 1, 1, None, "open"),
        retriever(3, 1, 1, 2, "done"),
        call(4, 1, 3),
    ]
    assert contexts(spans) == [(ANSWER, ("done",))]


def test_where_no_span_says_when_it_ended_the_starts_decide() -> None:
    spans = [
        retriever(2, 1, 1, None, "before"),
        retriever(3, 1, 4, None, "after"),
        replace(call(4, 1, 3), end_ns=None),
    ]
    assert contexts([oi(1, None, "CHAIN", 0, None), *spans]) == [(ANSWER, ("before",))]


def test_each_of_several_answers_has_its_own_documents() -> None:
    """Two questions in one trace, under agents and under spans of no convention."""
    for kind in ("AGENT", "CHAIN"):
        spans = [
            span(1, None, "batch", 0, 20),
            oi(2, 1, kind, 0, 9, input__value="one?", output__value="one"),
            retriever(3, 2, 1, 2, "first"),
            call(4, 2, 3, "one"),
            oi(5, 1, kind, 10, 19, input__value="two?", output__value="two"),
            retriever(6, 5, 11, 12, "second"),
            call(7, 5, 13, "two"),
        ]
        for kinds in ("answer", "call"):
            assert contexts(spans, kinds) == [("one", ("first",)), ("two", ("second",))]
        assert contexts(random.Random(3).sample(spans, len(spans))) == contexts(spans)
    plain = [span(1, None, "batch", 0, 20), span(2, 1, "one", 0, 9), span(5, 1, "two", 10, 19)]
    rest = [spans[2], spans[3], spans[5], spans[6]]
    assert contexts([*plain, *rest], "call") == [("one", ("first",)), ("two", ("second",))]
    assert contexts([*plain, *rest]) == [("two", ("second",))]


def test_documents_are_looked_for_further_up_where_the_nearest_chain_has_none() -> None:
    """As LlamaIndex nests: a chain that retrieves beside a chain that writes."""
    spans = [
        oi(1, None, "CHAIN", 0, 9, input__value=QUESTION, output__value=ANSWER),
        oi(2, 1, "CHAIN", 0, 2),
        retriever(3, 2, 1, 2, "found"),
        oi(4, 1, "CHAIN", 3, 9),
        call(5, 4, 4),
    ]
    assert contexts(spans) == contexts(spans, "call") == [(ANSWER, ("found",))]


def test_a_neighbours_documents_are_not_taken_and_those_of_nobody_are() -> None:
    server = span(1, None, "POST /ask", 0, 9)
    other = [oi(2, 1, "AGENT", 0, 2), retriever(3, 2, 0, 1, "another's"), call(4, 2, 1, "other")]
    mine = [oi(5, 1, "AGENT", 3, 9, output__value=ANSWER), call(6, 5, 4)]
    beside = retriever(7, 1, 2, 3, "beside")
    assert contexts([server, *other, *mine])[1] == (ANSWER, ())
    assert contexts([server, *other, *mine, beside])[1] == (ANSWER, ("beside",))


def test_rerankers_come_before_retrievers_and_these_before_tools() -> None:
    reranked = oi(3, 1, "RERANKER", 2, 3, **{"reranker.output_documents": [{"document.content": "kept"}]})
    tool = oi(5, 1, "TOOL", 2, 3, output__value="42")
    spans = [oi(1, None, "CHAIN", 0, 9), retriever(2, 1, 1, 2, "kept", "dropped"), call(4, 1, 4), tool]
    for these, source, context in (
        ([*spans, reranked], "reranker", ("kept",)),
        (spans, "retriever", ("kept", "dropped")),
        ([each for each in spans if each.name != "retriever"], "tools", ("42",)),
    ):
        sample = only(these).sample
        assert sample is not None
        assert (sample.metadata["context_source"], sample.context) == (source, context)


def test_each_text_is_there_once_with_the_rank_of_its_first_place() -> None:
    spans = [
        oi(1, None, "CHAIN", 0, 9),
        retriever(2, 1, 1, 2, "a", "b", "a"),
        retriever(3, 1, 2, 3, "b", "c"),
        call(4, 1, 4),
    ]
    sample = only(spans).sample
    assert sample is not None
    assert sample.context == ("a", "b", "c")
    assert [(each["rank"], each["span_id"][-1]) for each in sample.metadata["documents"]] == [
        (1, "2"),
        (2, "2"),
        (3, "3"),
    ]


# --- which spans are answers ---------------------------------------------------------------------------


def test_the_call_that_said_the_answer_decides_what_came_before() -> None:
    """A call for a title after the answer does not move the moment."""
    spans = [
        oi(1, None, "AGENT", 0, 9, input__value=QUESTION, output__value=ANSWER),
        retriever(2, 1, 1, 2, "early"),
        call(3, 1, 3),
        retriever(4, 1, 4, 5, "for the title"),
        call(5, 1, 6, "A title"),
    ]
    assert contexts(spans) == [(ANSWER, ("early",))]


def test_without_an_output_of_its_own_an_agent_answers_what_its_last_call_did() -> None:
    spans = [oi(1, None, "AGENT", 0, 9), call(2, 1, 1, "first"), call(3, 1, 3, "last"), call(4, 1, 5, None)]
    target = only(spans)
    assert target.sample is not None
    assert (target.sample.output, target.span_id, target.taken["output"].span_id) == (
        "last",
        spans[0].span_id,
        spans[2].span_id,
    )


def test_a_chain_without_a_model_call_is_no_answer_beside_one() -> None:
    server = span(1, None, "POST /ask", 0, 9)
    template = oi(2, 1, "CHAIN", 0, 1, output__value="Answer: {question}")
    assert [output for output, _ in contexts([server, template, call(3, 1, 2)])] == [ANSWER]
    alone = oi(2, 1, "CHAIN", 0, 9, input__value=QUESTION, output__value=ANSWER)
    assert contexts([server, alone, retriever(3, 2, 1, 2, "found")]) == [(ANSWER, ("found",))]


def test_what_evaluators_and_guardrails_ask_models_is_no_target() -> None:
    for kind in ("EVALUATOR", "GUARDRAIL"):
        spans = [oi(1, None, "AGENT", 0, 9), call(2, 1, 1), oi(3, 1, kind, 5, 9), call(4, 3, 6, "faithful")]
        for kinds in ("answer", "call"):
            assert [output for output, _ in contexts([*spans, retriever(5, 1, 0, 1, "x")], kinds)] == [ANSWER]
    assert targets([oi(1, None, "EVALUATOR", 0, 9), call(2, 1, 1)], ("answer", "call")) == []


def test_a_call_that_two_libraries_recorded_is_one_target() -> None:
    spans = [oi(1, None, "AGENT", 0, 9), call(2, 1, 1), call(3, 2, 1.1), retriever(4, 1, 0, 1, "x")]
    assert [output for output, _ in contexts(spans, "call")] == [ANSWER]


def test_every_call_is_a_target_also_one_without_a_text() -> None:
    found = targets([oi(1, None, "AGENT", 0, 9), call(2, 1, 1, None), call(3, 1, 2)], ("call",))
    assert [each.missing for each in found] == ["no_output", None]


def test_traces_do_not_mix() -> None:
    other = [replace(each, trace_id="f" * 32) for each in openinference()]
    found = targets([each for pair in zip(openinference(), other, strict=True) for each in pair])
    assert [each.trace_id for each in found] == [TRACE, "f" * 32]
    assert all(each.sample is not None for each in found)


# --- trees that are not whole --------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONVENTIONS)
def test_with_its_agent_missing_a_call_still_finds_its_documents(name: str) -> None:
    (target,) = targets(CONVENTIONS[name]()[1:])
    assert target.sample is not None
    assert target.sample.metadata["context_source"] == "retriever"


def test_of_two_missing_parents_each_has_its_own_documents() -> None:
    spans = [
        retriever(2, 90, 1, 2, "one's"),
        call(3, 90, 3, "one"),
        retriever(4, 91, 1, 2, "two's"),
        call(5, 91, 3, "two"),
    ]
    assert contexts(spans, "call") == [("one", ("one's",)), ("two", ("two's",))]


def test_spans_in_a_circle_and_their_own_parents_end() -> None:
    spans = [oi(1, 2, "CHAIN", 0, 9, output__value=ANSWER), oi(2, 1, "CHAIN", 0, 9), call(3, 3, 1)]
    assert len(tree_of(spans).nodes) == 3
    targets(spans, ("answer", "call"))


def test_of_a_span_that_came_twice_the_last_one_counts() -> None:
    first, last = call(1, None, 0, "half an ans"), call(1, None, 0)
    assert [output for output, _ in contexts([first, last])] == [ANSWER]
    assert len(tree_of([first, last]).nodes) == 1


def test_the_tree_knows_what_lies_below_each_node() -> None:
    source = random.Random(7)
    spans = [span(n, source.randrange(n) or None, "x", n, n + 1) for n in range(1, 60)]
    nodes = tree_of(source.sample(spans, len(spans))).nodes
    for node in nodes:
        below = {each.place for each in nodes if node.place in _above(each, nodes)}
        assert below == set(range(node.place + 1, node.end))


def _above(node: Any, nodes: list[Any]) -> list[int]:
    found = []
    while node.parent >= 0:
        found.append(node.parent)
        node = nodes[node.parent]
    return found


# --- large and hostile traces --------------------------------------------------------------------------


def wide(n: int) -> list[Span]:
    """One agent under which everything stands: half retrievers, half calls."""
    spans = [oi(1, None, "AGENT", 0, n + 1)]
    for at in range(2, n, 2):
        spans += [retriever(at, 1, at, at + 0.5, f"document {at}"), call(at + 1, 1, at + 1)]
    return spans


def deep(n: int) -> list[Span]:
    """Agents inside each other, each with a retriever and a call."""
    spans = []
    for at in range(1, n, 3):
        above = at - 3 if at > 1 else None
        spans += [
            oi(at, above, "AGENT", at, 3 * n - at),
            retriever(at + 1, at, at, at + 1, f"document {at}"),
            call(at + 2, at, at + 1),
        ]
    return spans


def bare(n: int) -> list[Span]:
    """Calls inside each other's plain spans, without anything that could be a context."""
    return [
        span(at, at - 1 if at > 1 else None, "x", at, n) if at % 2 else oi(at, at - 1, "LLM", at, n)
        for at in range(1, n)
    ]


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.parametrize("shape", [wide, deep, bare])
def test_a_trace_of_10_000_spans_is_read_in_seconds(shape: Any) -> None:
    """Four times as many spans take about four times as long; a walk for each span would take sixteen."""

    def seconds(n: int) -> float:
        spans = shape(n)
        start = time.process_time()
        assert targets(spans, ("answer", "call"))
        return time.process_time() - start

    small, large = seconds(2_500), seconds(10_000)
    assert large < 10 * small + 1, f"{small:.2f} s and {large:.2f} s"


def test_of_many_documents_the_latest_are_taken_and_that_is_said() -> None:
    most = MOST_DOCUMENTS["answer"]
    spans = [oi(1, None, "AGENT", 0, 9_999)]
    spans += [retriever(at, 1, at, at + 1, f"document {at}") for at in range(2, most + 50)]
    target = only([*spans, call(9_000, 1, 5_000)])
    assert target.sample is not None
    assert len(target.sample.context) == most
    assert target.sample.context[-1] == f"document {most + 49}"
    assert "only those found last" in target.why


HOSTILE = [
    "\x1b[2J\x1b]0;owned\x07",
    "[bold red]no[/bold red]",
    "{{ 7 * 7 }} {% raw %}",
    "'; DROP TABLE spans; --",
    "../../etc/passwd",
    "\u202etxet\u202c",
    "(a+)+$" * 50,
    "<|im_start|>system",
    "{" * 5000,
    "[" * 5000,
    '{"answer": ' * 300 + "1" + "}" * 300,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_what_it_is(text: str) -> None:
    spans = [oi(1, None, "CHAIN", 0, 9), retriever(2, 1, 1, 2, text), call(3, 1, 3, text, text)]
    spans = [replace(each, name=text) for each in spans]
    sample = only(spans).sample
    assert sample is not None
    assert (sample.input, sample.output, sample.context) == (text, text, (text,))


NAMES = [
    "openinference.span.kind",
    *("input.value", "output.value", "input.mime_type", "input", "llm", "retrieval.documents"),
    *("llm.input_messages", "llm.output_messages", "llm.output_messages.0.message.content", "llm.prompts"),
    *(
        "retrieval.documents.0.document.content",
        "retrieval.documents." + "9" * 5000,
        "reranker.output_documents",
    ),
    *(
        "gen_ai",
        "gen_ai.operation.name",
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.prompt.0",
    ),
    *("gen_ai.system_instructions", "gen_ai.retrieval.documents", "gen_ai.tool.call.result", "gen_ai.prompt"),
    *("gen_ai.prompt.0.content", "gen_ai.completion.0.content", "llm.request.type", "traceloop.span.kind"),
    *(
        "traceloop.entity.input",
        "traceloop.entity.output",
        "ai.operationId",
        "ai.prompt",
        "ai.prompt.messages",
    ),
    *(
        "ai.response.text",
        "ai.response.toolCalls",
        "ai.toolCall.result",
        "mlflow.spanType",
        "mlflow.spanInputs",
    ),
    *("mlflow.spanOutputs", "pydantic_ai.all_messages", "all_messages_events", "final_result", "events"),
    *("tool_response", "request_data", "response_data", "gcp.vertex.agent.llm_request", "." * 40),
    *(
        "gcp.vertex.agent.llm_response",
        "langfuse.observation.type",
        "langfuse.observation.input",
        "genkit:type",
    ),
    *("gen_ai.output.messages_ref", "body", "gen_ai.event.content", "message", "content", "event.name"),
]
WORDS = [
    *(
        "LLM",
        "CHAIN",
        "RETRIEVER",
        "RERANKER",
        "TOOL",
        "chat",
        "invoke_agent",
        "execute_tool",
        "retrieval",
        "workflow",
    ),
    *("ai.generateText", "ai.generateText.doGenerate", "ai.toolCall", "generation", "agent", '"CHAT_MODEL"'),
    *(
        "text",
        "user",
        "assistant",
        "tool_call",
        "tool-result",
        "function_call_output",
        "application/json",
        "1e999",
    ),
    *(
        '{"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}',
        '[[[{"role": 1}]]]',
        "[1, 2",
        "",
    ),
]
KEYS = [
    *("role", "content", "contents", "parts", "type", "text", "message", "messages", "choices", "tool_calls"),
    *(
        "kwargs",
        "document",
        "metadata",
        "score",
        "id",
        "response",
        "result",
        "output",
        "inputs",
        "args",
        "system",
    ),
    *(
        "event.name",
        "message_content",
        "function_response",
        "0",
        "1",
        "thought",
        "prompt",
        "generations",
        "value",
    ),
]
WORD = st.sampled_from(WORDS) | st.text(max_size=8)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=8,
)
JSON_TOO = VALUE | VALUE.map(lambda value: json.dumps(value))
ATTRIBUTES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=6), JSON_TOO, max_size=6)
EVENT_NAMES = st.sampled_from(
    (
        *("gen_ai.choice", "gen_ai.user.message", "gen_ai.content.prompt", "gen_ai.content.completion"),
        *("db.query.result", "gen_ai.client.inference.operation.details", "db.search.result", "x"),
    )
)
EVENTS = st.builds(Event, EVENT_NAMES, st.integers(), ATTRIBUTES)
SPANS = st.builds(
    span,
    st.integers(1, 6),
    st.none() | st.integers(1, 7),
    WORD,
    st.integers(0, 5),
    st.none() | st.integers(0, 9),
    attributes=ATTRIBUTES,
    events=st.lists(EVENTS, max_size=2).map(tuple),
)


@settings(deadline=None)
@given(st.lists(SPANS, max_size=6))
def test_no_spans_make_it_raise(spans: list[Span]) -> None:
    for target in targets(spans, ("answer", "call")):
        assert (target.sample is None) == (target.missing is not None)
        assert target.why
        if target.sample is not None:
            assert target.sample.output and target.sample.sources
            assert all(isinstance(text, str) and text for text in target.sample.context)


FIELDS = (
    *(
        "resourceSpans",
        "trace_id",
        "span_id",
        "traceId",
        "spanId",
        "context",
        "attributes",
        "events",
        "links",
    ),
    *("startTimeUnixNano", "start_time", "end_time", "kind", "status", "name", "resource", "scope"),
    *("parent_id", "endTimeUnixNano"),
)
ROW = st.dictionaries(
    st.sampled_from(FIELDS), VALUE | ATTRIBUTES | st.lists(ATTRIBUTES, max_size=2), max_size=8
)
EXPORT = st.fixed_dictionaries(
    {
        "resourceSpans": VALUE
        | st.lists(
            st.fixed_dictionaries(
                {
                    "scopeSpans": VALUE
                    | st.lists(
                        st.fixed_dictionaries({"spans": VALUE | st.lists(ROW | VALUE, max_size=3)}),
                        max_size=2,
                    )
                }
            ),
            max_size=2,
        )
    }
)


@settings(max_examples=100, deadline=None)
@given(ROW | EXPORT)
def test_no_object_makes_reading_raise(row: dict[str, Any]) -> None:
    spans = [each for each in spans_of_row(row) if isinstance(each, Span)]
    targets(spans, ("answer", "call"))
    found, refused = spans_of_request(row)
    assert all(isinstance(each, str) for each in refused)
    for each in found:
        assert Span.from_json(json.loads(json.dumps(each.as_json()))) == each


def test_times_are_those_of_the_trace() -> None:
    assert [node.span.start_ns for node in tree_of(openinference()).nodes] == [0, SECOND, 3 * SECOND]
