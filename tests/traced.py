"""One conversation, a question answered with two retrieved documents, as spans of each convention."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from magistrate.datasets.spans.span import Event, Span

QUESTION = "How long do refunds take?"
ANSWER = "Refunds take five working days."
DOCUMENTS = ("Refunds are paid within five working days.", "Gift cards are not refunded.")
SYSTEM = "Answer from the sources."
STUFFED = f"{' '.join(DOCUMENTS)}\n{QUESTION}"
TRACE = "0af7651916cd43dd8448eb211c80319c"
SECOND = 10**9


def span(number: int, parent: int | None, name: str, start: float, end: float | None, **given: Any) -> Span:
    """A span of the trace; ids are numbers, times are seconds."""
    attributes = given.pop("attributes", {})
    return Span(
        TRACE,
        f"{number:016x}",
        None if parent is None else f"{parent:016x}",
        name,
        "internal",
        int(start * SECOND),
        None if end is None else int(end * SECOND),
        attributes,
        **given,
    )


def trace(
    agent: Mapping[str, Any],
    search: Mapping[str, Any],
    call: Mapping[str, Any],
    *,
    found: tuple[Event, ...] = (),
    said: tuple[Event, ...] = (),
    scope: str = "",
) -> list[Span]:
    """An agent that retrieves and then asks a model."""
    return [
        span(1, None, "agent", 0, 10, attributes=agent, scope=scope),
        span(2, 1, "search", 1, 2, attributes=search, events=found, scope=scope),
        span(3, 1, "chat", 3, 9, attributes=call, events=said, scope=scope),
    ]


def flat(prefix: str, **values: Any) -> dict[str, Any]:
    return {f"{prefix}.{name.replace('__', '.')}": value for name, value in values.items()}


# --- OpenTelemetry's conventions for generative AI ---------------------------------------------------


def part(text: str) -> dict[str, str]:
    return {"type": "text", "content": text}


INPUT_MESSAGES = [
    {"role": "system", "parts": [part(SYSTEM)]},
    {"role": "user", "parts": [part(STUFFED)]},
]
OUTPUT_MESSAGES = [
    {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "They ask for days."},
            {"type": "made_up", "x": 1},
            part(ANSWER),
        ],
        "finish_reason": "stop",
    }
]
GENAI_DOCUMENTS = [
    {"id": f"d{number}", "score": 1 - number / 10, "content": text} for number, text in enumerate(DOCUMENTS)
]
GENAI_AGENT = {
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.input.messages": [{"role": "user", "parts": [part(QUESTION)]}],
    "gen_ai.output.messages": OUTPUT_MESSAGES,
}
GENAI_SEARCH = {
    "gen_ai.operation.name": "retrieval",
    "gen_ai.retrieval.query.text": QUESTION,
    "gen_ai.retrieval.documents": GENAI_DOCUMENTS,
}
GENAI_CALL = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt",
    "gen_ai.response.id": "r1",
}
CONTENT = {"gen_ai.input.messages": INPUT_MESSAGES, "gen_ai.output.messages": OUTPUT_MESSAGES}


def texts(values: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a client sends them that knows no structured ones: JSON in a text."""
    return {name: json.dumps(value) if isinstance(value, list) else value for name, value in values.items()}


def genai() -> list[Span]:
    return trace(GENAI_AGENT, GENAI_SEARCH, GENAI_CALL | CONTENT)


def genai_json() -> list[Span]:
    return trace(texts(GENAI_AGENT), texts(GENAI_SEARCH), texts(GENAI_CALL | CONTENT))


def genai_event() -> list[Span]:
    details = Event("gen_ai.client.inference.operation.details", 4, texts(CONTENT))
    return trace(GENAI_AGENT, GENAI_SEARCH, GENAI_CALL, said=(details,))


def genai_message_events() -> list[Span]:
    """As before version 1.37: an event a message."""
    said = (
        Event("gen_ai.system.message", 3, {"content": SYSTEM}),
        Event("gen_ai.user.message", 3, {"content": STUFFED, "role": "user"}),
        Event(
            "gen_ai.choice", 9, {"index": 0, "message": json.dumps({"role": "assistant", "content": ANSWER})}
        ),
    )
    return trace(GENAI_AGENT, GENAI_SEARCH, GENAI_CALL, said=said)


def genai_log_events() -> list[Span]:
    """The same as log records with bodies, put on their span."""
    said = (
        Event("gen_ai.user.message", 3, {"gen_ai.system": "openai", "body": {"content": STUFFED}}),
        Event("gen_ai.choice", 9, {"body": {"index": 0, "message": {"content": ANSWER}}}),
    )
    return trace(GENAI_AGENT, GENAI_SEARCH, GENAI_CALL, said=said)


def genai_content_events() -> list[Span]:
    """The oldest form: all of the prompt in one event, the completion in another."""
    asked = json.dumps([{"role": "user", "content": STUFFED}])
    said = (
        Event("gen_ai.content.prompt", 3, {"gen_ai.prompt": asked}),
        Event(
            "gen_ai.content.completion",
            9,
            {"gen_ai.completion": json.dumps([{"role": "assistant", "content": ANSWER}])},
        ),
    )
    return trace(GENAI_AGENT, GENAI_SEARCH, GENAI_CALL, said=said)


# --- OpenInference -----------------------------------------------------------------------------------


def openinference() -> list[Span]:
    documents = {
        f"retrieval.documents.{number}.document.{name}": value
        for number, text in enumerate(DOCUMENTS)
        for name, value in (("id", f"d{number}"), ("score", 1 - number / 10), ("content", text))
    }
    return trace(
        {"openinference.span.kind": "AGENT", "input.value": QUESTION, "output.value": ANSWER},
        {"openinference.span.kind": "RETRIEVER", "input.value": QUESTION, **documents},
        {
            "openinference.span.kind": "LLM",
            "llm.model_name": "gpt",
            "input.value": json.dumps({"messages": [{"role": "user", "content": STUFFED}]}),
            "input.mime_type": "application/json",
            **flat("llm.input_messages.0.message", role="system", content=SYSTEM),
            **flat("llm.input_messages.1.message", role="user"),
            **flat("llm.input_messages.1.message.contents.0.message_content", type="text", text=STUFFED),
            **flat("llm.output_messages.0.message", role="assistant", content=ANSWER),
        },
    )


# --- OpenLLMetry -------------------------------------------------------------------------------------

RESULTS = tuple(
    Event(
        "db.query.result",
        1,
        flat("db.query.result", id=f"d{number}", document=text, distance=number / 10, metadata="{}"),
    )
    for number, text in enumerate(DOCUMENTS)
)
WORKFLOW = {
    "traceloop.span.kind": "workflow",
    "traceloop.entity.name": "rag",
    "traceloop.entity.input": json.dumps({"inputs": {"question": QUESTION}, "tags": []}),
    "traceloop.entity.output": json.dumps({"outputs": {"answer": ANSWER}}),
}


def traceloop() -> list[Span]:
    """Messages as numbered attributes, as its packages wrote them until 2025."""
    return trace(
        WORKFLOW,
        {"db.system": "chroma", "db.operation": "query"},
        {
            "llm.request.type": "chat",
            "gen_ai.system": "OpenAI",
            "gen_ai.request.model": "gpt",
            **flat("gen_ai.prompt.0", role="system", content=SYSTEM),
            **flat("gen_ai.prompt.1", role="user", content=json.dumps([{"type": "text", "text": STUFFED}])),
            **flat("gen_ai.completion.0", role="assistant", content=ANSWER, finish_reason="stop"),
        },
        found=RESULTS,
    )


def traceloop_search() -> list[Span]:
    """A vector store whose documents are entities."""
    found = tuple(
        Event(
            "db.search.result",
            1,
            flat("db.search.result", id=f"d{number}", entity=json.dumps({"text": text, "page": 3})),
        )
        for number, text in enumerate(DOCUMENTS)
    )
    spans = traceloop()
    return [spans[0], replace(spans[1], events=found), spans[2]]


def traceloop_messages() -> list[Span]:
    """As its packages write since 2026: messages as JSON in texts, beside its own kinds."""
    search = {"traceloop.span.kind": "task", "db.system": "chroma", "db.operation": "query"}
    return trace(WORKFLOW, search, texts(GENAI_CALL | CONTENT) | {"llm.request.type": "chat"}, found=RESULTS)


# --- tools with keys of their own --------------------------------------------------------------------


def vercel() -> list[Span]:
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": [{"type": "text", "text": STUFFED}]},
    ]
    asked = json.dumps({"system": SYSTEM, "prompt": QUESTION})
    return trace(
        {"ai.operationId": "ai.generateText", "ai.prompt": asked, "ai.response.text": ANSWER},
        GENAI_SEARCH,
        {
            "ai.operationId": "ai.generateText.doGenerate",
            "ai.prompt.messages": json.dumps(messages),
            "ai.response.text": ANSWER,
            "ai.model.id": "gpt",
            "gen_ai.system": "openai.chat",
            "gen_ai.request.model": "gpt",
        },
        scope="ai",
    )


def vercel_stream() -> list[Span]:
    """An answer that was streamed, asked with messages."""
    asked = json.dumps({"messages": [{"role": "user", "content": QUESTION}]})
    agent, search, call = vercel()
    streamed = {"ai.operationId": "ai.streamText", "ai.prompt": asked, "ai.response.text": ANSWER}
    inner = {**call.attributes, "ai.operationId": "ai.streamText.doStream"}
    return [replace(agent, attributes=streamed), search, replace(call, attributes=inner)]


def mlflow() -> list[Span]:
    found = [
        {"page_content": text, "metadata": {"doc_uri": f"d{number}"}} for number, text in enumerate(DOCUMENTS)
    ]
    completion = {"choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}}]}
    messages = {"model": "gpt", "messages": [{"role": "user", "content": STUFFED}]}

    def values(kind: str, given: Any, came: Any) -> dict[str, str]:
        return {
            "mlflow.spanType": json.dumps(kind),
            "mlflow.spanInputs": json.dumps(given),
            "mlflow.spanOutputs": json.dumps(came),
        }

    return trace(
        values("AGENT", {"question": QUESTION}, ANSWER),
        values("RETRIEVER", {"query": QUESTION}, found),
        values("CHAT_MODEL", messages, completion) | {"mlflow.llm.model": '"gpt"'},
    )


def pydantic_ai() -> list[Span]:
    everything = [
        {"role": "user", "parts": [part(QUESTION)]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "1", "name": "search", "arguments": {}}]},
        {
            "role": "user",
            "parts": [{"type": "tool_call_response", "id": "1", "name": "search", "result": "…"}],
        },
        {"role": "assistant", "parts": [part(ANSWER)]},
    ]
    return trace(
        {"pydantic_ai.all_messages": json.dumps(everything), "final_result": ANSWER, "agent_name": "rag"},
        GENAI_SEARCH,
        texts(GENAI_CALL | CONTENT),
        scope="pydantic-ai",
    )


def pydantic_ai_events() -> list[Span]:
    """As its versions before 2 wrote: events in a list on the span."""
    asked = {"event.name": "gen_ai.user.message", "role": "user"}
    answered = {"role": "assistant", "content": ANSWER}
    everything = [
        asked | {"content": QUESTION},
        answered | {"event.name": "gen_ai.assistant.message"},
    ]
    said = [asked | {"content": STUFFED}, {"event.name": "gen_ai.choice", "index": 0, "message": answered}]
    return trace(
        {"all_messages_events": json.dumps(everything), "final_result": ANSWER},
        GENAI_SEARCH,
        GENAI_CALL | {"events": json.dumps(said)},
        scope="pydantic-ai",
    )


def logfire() -> list[Span]:
    request = {"model": "gpt", "messages": [{"role": "user", "content": STUFFED}]}
    response = {"message": {"role": "assistant", "content": ANSWER}, "usage": None}
    return trace(
        GENAI_AGENT,
        GENAI_SEARCH,
        {
            "request_data": json.dumps(request),
            "response_data": json.dumps(response),
            "gen_ai.system": "openai",
        },
        scope="logfire.openai",
    )


def langfuse() -> list[Span]:
    found = [{"id": f"d{number}", "content": text} for number, text in enumerate(DOCUMENTS)]

    def values(kind: str, given: Any, came: Any) -> dict[str, str]:
        return {
            "langfuse.observation.type": kind,
            "langfuse.observation.input": given if isinstance(given, str) else json.dumps(given),
            "langfuse.observation.output": came if isinstance(came, str) else json.dumps(came),
        }

    return trace(
        values("agent", QUESTION, ANSWER),
        values("retriever", QUESTION, found),
        values(
            "generation", [{"role": "user", "content": STUFFED}], {"role": "assistant", "content": ANSWER}
        ),
    )


def google_adk() -> list[Span]:
    request = {"model": "gemini", "contents": [{"role": "user", "parts": [{"text": STUFFED}]}]}
    response = {"content": {"role": "model", "parts": [{"text": ANSWER}]}}
    return trace(
        GENAI_AGENT,
        GENAI_SEARCH,
        {
            "gcp.vertex.agent.llm_request": json.dumps(request),
            "gcp.vertex.agent.llm_response": json.dumps(response),
        },
    )


def genkit() -> list[Span]:
    found = {
        "documents": [
            {"content": [{"text": text}], "metadata": {"id": f"d{number}"}}
            for number, text in enumerate(DOCUMENTS)
        ]
    }
    request = {"messages": [{"role": "user", "content": [{"text": STUFFED}]}]}
    response = {"message": {"role": "model", "content": [{"text": ANSWER}]}, "finishReason": "stop"}

    def values(kind: str, given: Any, came: Any) -> dict[str, str]:
        """A kind is `action` with a subtype, or `flow`."""
        kinds = {"genkit:type": "action", "genkit:metadata:subtype": kind} if kind != "flow" else {}
        both = {"genkit:input": json.dumps(given), "genkit:output": json.dumps(came)}
        return {"genkit:type": kind, **kinds, **both}

    return trace(
        values("flow", QUESTION, ANSWER),
        values("retriever", {"query": {"content": [{"text": QUESTION}]}}, found),
        values("model", request, response),
    )


CONVENTIONS: Mapping[str, Callable[[], list[Span]]] = {
    "genai": genai,
    "genai, JSON in texts": genai_json,
    "genai, one event": genai_event,
    "genai, an event a message": genai_message_events,
    "genai, log records": genai_log_events,
    "genai, prompt and completion": genai_content_events,
    "openinference": openinference,
    "traceloop": traceloop,
    "traceloop, entities": traceloop_search,
    "traceloop, messages": traceloop_messages,
    "vercel": vercel,
    "vercel, streamed": vercel_stream,
    "mlflow": mlflow,
    "pydantic-ai": pydantic_ai,
    "pydantic-ai, events": pydantic_ai_events,
    "logfire": logfire,
    "langfuse": langfuse,
    "google-adk": google_adk,
    "genkit": genkit,
}
