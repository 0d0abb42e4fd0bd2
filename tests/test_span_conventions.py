"""The same conversation as spans of every convention gives the same sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from magistrate.datasets.spans.conventions import read
from magistrate.datasets.spans.conventions.values import as_text
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.targets import Target, targets
from traced import (
    ANSWER,
    CONTENT,
    CONVENTIONS,
    DOCUMENTS,
    GENAI_AGENT,
    GENAI_CALL,
    GENAI_SEARCH,
    QUESTION,
    STUFFED,
    SYSTEM,
    genai,
    openinference,
    span,
    trace,
)


def only(spans: list[Span], kind: str = "answer") -> Target:
    (target,) = targets(spans, (kind,))
    return target


# --- one conversation, every convention ---------------------------------------------------------------


@pytest.mark.parametrize("name", CONVENTIONS)
def test_the_same_conversation_gives_the_same_sample(name: str) -> None:
    spans = CONVENTIONS[name]()
    target = only(spans)
    sample = target.sample
    assert sample is not None, target.why
    assert (sample.input, sample.output, sample.context) == (QUESTION, ANSWER, DOCUMENTS)
    assert sample.messages == ()
    assert (target.missing, target.span_id, target.name) == (None, spans[0].span_id, "agent")
    assert sample.metadata["context_source"] == "retriever"
    found = sample.metadata["documents"]
    assert [(each["rank"], each["id"], each["span_id"]) for each in found] == [
        (1, "d0", spans[1].span_id),
        (2, "d1", spans[1].span_id),
    ]
    assert target.taken["context"].span_id == spans[1].span_id
    assert {part: taken.texts for part, taken in target.taken.items()} == {
        "input": (QUESTION,),
        "context": DOCUMENTS,
        "output": (ANSWER,),
    }


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_call_is_a_target_of_its_own(name: str) -> None:
    sample = only(CONVENTIONS[name](), "call").sample
    assert sample is not None
    assert (sample.input, sample.output, sample.context) == (STUFFED, ANSWER, DOCUMENTS)


@pytest.mark.parametrize("name", CONVENTIONS)
def test_without_a_retriever_the_prompt_is_the_context(name: str) -> None:
    agent, _, call = CONVENTIONS[name]()
    asked = {key: value for key, value in agent.attributes.items() if "all_messages" not in key}
    target = only([replace(agent, attributes=asked), call])
    assert target.sample is not None, target.why
    assert target.sample.context == ()
    assert target.sample.messages[-1].text == STUFFED
    assert target.sample.metadata["context_source"] == "prompt"


def test_what_was_taken_from_where() -> None:
    target = only(genai())
    where = {part: (taken.name, taken.convention, taken.key) for part, taken in target.taken.items()}
    assert where == {
        "input": ("agent", "genai", "gen_ai.input.messages"),
        "context": ("search", "genai", "gen_ai.retrieval.documents"),
        "output": ("agent", "genai", "gen_ai.output.messages"),
    }
    assert target.why == ("The output is from 'agent'; the context is 2 documents, first of 'search'.")
    metadata = target.sample.metadata if target.sample else {}
    assert (metadata["model"], metadata["response_id"]) == ("gpt", "r1")
    assert [each["score"] for each in metadata["documents"]] == [1.0, 0.9]


def test_the_model_is_told_where_its_name_is_json() -> None:
    sample = only(CONVENTIONS["mlflow"]()).sample
    assert sample is not None and sample.metadata["model"] == "gpt"


def test_attributes_are_those_of_the_span_its_root_and_its_resource() -> None:
    agent, search, call = genai()
    root = span(9, None, "POST /ask", 0, 11, attributes={"http.route": "/ask"})
    spans = [root, replace(agent, parent_id=root.span_id, resource={"service.name": "shop"}), search, call]
    attributes = only(spans).attributes
    assert attributes["gen_ai.operation.name"] == "invoke_agent"
    assert (attributes["root.http.route"], attributes["resource.service.name"]) == ("/ask", "shop")


# --- tools --------------------------------------------------------------------------------------------

TOOLS: dict[str, dict[str, Any]] = {
    "genai": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": '{"days": 5}'},
    "genai, structured": {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.result": {"days": 5}},
    "openinference": {
        "openinference.span.kind": "TOOL",
        "output.value": '{"days": 5}',
        "output.mime_type": "application/json",
    },
    "traceloop": {"traceloop.span.kind": "tool", "traceloop.entity.output": '{"output": {"days": 5}}'},
    "vercel": {"ai.operationId": "ai.toolCall", "ai.toolCall.result": '{"days": 5}'},
    "mlflow": {"mlflow.spanType": '"TOOL"', "mlflow.spanOutputs": '{"days": 5}'},
    "pydantic-ai": {"tool_arguments": "{}", "tool_response": '{"days": 5}'},
    "google-adk": {"gcp.vertex.agent.tool_response": '{"days": 5}'},
}


@pytest.mark.parametrize("name", TOOLS)
def test_without_documents_the_results_of_tools_are_the_context(name: str) -> None:
    target = only(trace(GENAI_AGENT, TOOLS[name], GENAI_CALL | CONTENT))
    assert target.sample is not None
    assert target.sample.context == ('{"days": 5}',)
    assert target.sample.metadata["context_source"] == "tools"


PROMPTS: dict[str, dict[str, Any]] = {
    "tool_call_response with response": {
        "gen_ai.input.messages": [
            {"role": "user", "parts": [{"type": "text", "content": QUESTION}]},
            {"role": "tool", "parts": [{"type": "tool_call_response", "response": "5 days"}]},
        ]
    },
    "tool_call_response with result": {
        "gen_ai.input.messages": [
            {"role": "tool", "parts": [{"type": "tool_call_response", "result": "5 days"}]}
        ]
    },
    "a message of a tool": {"gen_ai.input.messages": [{"role": "tool", "content": "5 days"}]},
    "Anthropic's": {
        "gen_ai.input.messages": [
            {
                "role": "user",
                "content": [{"type": "tool_result", "content": [{"type": "text", "text": "5 days"}]}],
            }
        ]
    },
    "Vercel's": {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.prompt.messages": '[{"role": "tool", "content": '
        '[{"type": "tool-result", "output": {"type": "text", "value": "5 days"}}]}]',
    },
    "OpenInference's": {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "tool",
        "llm.input_messages.0.message.content": "5 days",
    },
    "a list of Responses": {
        "gen_ai.input.messages": [
            {"type": "function_call", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "5 days"},
        ]
    },
}


@pytest.mark.parametrize("name", PROMPTS)
def test_results_of_tools_in_the_prompt_are_the_context_where_no_tool_was_recorded(name: str) -> None:
    output = {"gen_ai.output.messages": CONTENT["gen_ai.output.messages"]}
    target = only([span(1, None, "chat", 0, 1, attributes=GENAI_CALL | output | PROMPTS[name])])
    assert target.sample is not None
    assert target.sample.context == ("5 days",)
    assert target.sample.metadata["context_source"] == "tools"


# --- what is said and cannot be read ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"gen_ai.output.messages_ref": "s3://bucket/1"}, "its content is stored elsewhere"),
        (
            {"gen_ai.output.messages": '[{"role": "assist'},
            "gen_ai.output.messages starts like JSON but is not valid",
        ),
        ({}, "only record content if configured to"),
        (
            {
                "gen_ai.output.messages": [
                    {"role": "assistant", "parts": [{"type": "tool_call", "name": "f"}]}
                ]
            },
            "only calls tools",
        ),
    ],
)
def test_why_there_is_no_output(call: dict[str, Any], told: str) -> None:
    agent = {"gen_ai.operation.name": "invoke_agent"}
    for spans in (
        trace(agent, GENAI_SEARCH, GENAI_CALL | call),
        [span(1, None, "c", 0, 1, attributes=GENAI_CALL | call)],
    ):
        target = only(spans)
        assert (target.sample, target.missing) == (None, "no_output")
        assert told in target.why
        assert "keys seen: gen_ai.operation.name" in target.why


def test_documents_without_a_text_are_told_of() -> None:
    search = GENAI_SEARCH | {"gen_ai.retrieval.documents": [{"id": "d0"}, {"id": "d1", "score": 0.5}]}
    output = {"gen_ai.output.messages": CONTENT["gen_ai.output.messages"]}
    target = only(trace(GENAI_AGENT, search, GENAI_CALL | output))
    assert (target.sample, target.missing) == (None, "no_context")
    assert "gen_ai.retrieval.documents lists documents without their text" in target.why
    assert target.taken["output"].texts == (ANSWER,)


def test_a_text_that_happens_to_be_json_is_kept_whole() -> None:
    for text, kept in (
        ('{"city": "Bern"}', None),
        ('{"text": "fine", "claim": "The moon is cheese."}', None),
        ('["Bern", "Biel"]', None),
        ('[{"text": "fine", "claim": "The moon is cheese."}]', None),
        ('[{"type": "text", "text": "Bern"}]', "Bern"),
        ('[{"text": "Bern"}]', "Bern"),
    ):
        said = {"llm.request.type": "chat", "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": text}
        said |= {"gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": text}
        (found,) = targets([Span("t" * 32, "a" * 16, attributes=said)], ("call",))
        assert found.sample is not None, text
        assert (found.sample.output, found.sample.messages[0].text) == (kept or text, kept or text)


def test_of_several_choices_the_last_with_a_text_is_taken() -> None:
    choices = [
        {"role": "assistant", "parts": [{"type": "text", "content": text}] if text else []}
        for text in ("one", "two", "")
    ]
    call = GENAI_CALL | {"gen_ai.input.messages": "Which?", "gen_ai.output.messages": choices}
    sample = only([span(1, None, "chat", 0, 1, attributes=call)]).sample
    assert sample is not None
    assert (sample.output, sample.metadata["n_choices"]) == ("two", 3)


def test_instructions_stand_before_the_prompt() -> None:
    call = GENAI_CALL | {
        "gen_ai.system_instructions": [{"type": "text", "content": SYSTEM}],
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": QUESTION}]}],
        "gen_ai.output.messages": CONTENT["gen_ai.output.messages"],
    }
    sample = only([span(1, None, "chat", 0, 1, attributes=call)]).sample
    assert sample is not None
    assert [(turn.role, turn.text) for turn in sample.messages] == [("system", SYSTEM), ("user", QUESTION)]


def test_a_span_of_two_conventions_is_read_by_both() -> None:
    both = dict(openinference()[2].attributes) | GENAI_CALL
    step = read(span(1, None, "chat", 0, 1, attributes=both))
    assert step is not None
    assert step.conventions == ("openinference", "genai")
    assert (step.kind, step.response_id) == ("call", "r1")


def test_other_spans_are_no_steps() -> None:
    assert read(span(1, None, "GET /", 0, 1, attributes={"http.request.method": "GET", "input": "x"})) is None
    assert targets([span(1, None, "GET /", 0, 1, attributes={"http.request.method": "GET"})]) == []


def test_a_tool_may_answer_nought_or_no() -> None:
    for value, text in ((0, "0"), (0.0, "0.0"), (False, "false"), (None, ""), ([], ""), ({}, "")):
        assert as_text(value) == text, value
