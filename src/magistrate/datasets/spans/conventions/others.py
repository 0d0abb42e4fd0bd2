"""Conventions of single tools: Vercel AI, MLflow, pydantic-ai, Logfire, Langfuse, Google's ADK, Genkit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magistrate.datasets.spans.conventions import genai
from magistrate.datasets.spans.conventions.values import (
    Attributes,
    as_text,
    documents_in,
    messages_in,
    opened,
    text_in,
)
from magistrate.datasets.spans.span import Span
from magistrate.datasets.spans.steps import Found, Kind, Message, Step


def read(span: Span, attributes: Attributes) -> Step | None:
    """Return the step of a span that follows the convention of one of these tools."""
    for reader in (_vercel, _pydantic_ai, _logfire, _google, *TABLE):
        step = reader(span, attributes)
        if step is not None:
            return step
    return None


# --- one value for the input, one for the output ----------------------------------------------------

KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(("llm", "chat_model", "generation", "model"), "call"),
    **dict.fromkeys(("chain", "workflow", "task", "flow", "action"), "chain"),
    "agent": "agent",
    "retriever": "retriever",
    "reranker": "reranker",
    "tool": "tool",
    "embedding": "embedding",
    "evaluator": "evaluator",
    "guardrail": "guardrail",
}


@dataclass(frozen=True, slots=True)
class InOut:
    """A convention with one attribute each for kind, input and output; the latter two are mostly JSON."""

    name: str
    kind: tuple[str, ...]
    input: str
    output: str
    model: str = ""
    session: str = ""

    def __call__(self, span: Span, attributes: Attributes) -> Step | None:
        said = (opened(attributes.get(name)) for name in self.kind)
        word = next((each for each in said if isinstance(each, str) and each.lower() in KINDS), "")
        given, came = opened(attributes.get(self.input)), opened(attributes.get(self.output))
        model = opened(attributes.get(self.model)) if self.model else None
        if not word and given is None and came is None:
            return None
        kind: Kind = KINDS.get(word.lower(), "other")

        def found(value: Any, key: str) -> Any:
            return Found(value, self.name, key) if value else None

        calls, finds = kind == "call", kind in ("retriever", "reranker")
        told = text_in(given, "input")
        return Step(
            kind,
            (self.name,),
            input=None if finds or calls else found(told, self.input),
            output=None if finds or calls or kind == "tool" else found(text_in(came, "output"), self.output),
            prompt=found(messages_in(given, "user"), self.input) if calls else None,
            choices=found(messages_in(came, "assistant"), self.output) if calls else None,
            documents=found(_listed_documents(came), self.output) if finds else None,
            query=found(told, self.input) if finds else None,
            result=found(as_text(came), self.output) if kind == "tool" else None,
            model=model if isinstance(model, str) else "",
            session=attributes.text(self.session) if self.session else "",
        )


def _listed_documents(value: Any) -> Any:
    """Return the documents of a list, or of an object that contains one."""
    if isinstance(value, Mapping):
        lists = (item for item in value.values() if isinstance(item, list))
        return next((found for item in lists if (found := documents_in(item))), ())
    return documents_in(value)


TABLE = (
    InOut("mlflow", ("mlflow.spanType",), "mlflow.spanInputs", "mlflow.spanOutputs", "mlflow.llm.model"),
    InOut(
        "langfuse",
        ("langfuse.observation.type",),
        "langfuse.observation.input",
        "langfuse.observation.output",
        "langfuse.observation.model.name",
        "session.id",
    ),
    InOut(
        "genkit", ("genkit:metadata:subtype", "genkit:type"), "genkit:input", "genkit:output", "genkit:name"
    ),
)

# --- Vercel's AI SDK -------------------------------------------------------------------------------

VERCEL = "vercel"


def _vercel(span: Span, attributes: Attributes) -> Step | None:
    """Read Vercel's spans: `ai.generateText` (whole), `ai.generateText.doGenerate` (call), `ai.toolCall`."""
    operation = attributes.text("ai.operationId")
    if not operation.startswith("ai."):
        return None
    last = operation.rpartition(".")[2]
    kind: Kind = "other"
    if last in ("doGenerate", "doStream"):
        kind = "call"
    elif last == "toolCall":
        kind = "tool"
    elif last.startswith(("generate", "stream")):
        kind = "chain"
    elif last.startswith(("embed", "doEmbed")):
        kind = "embedding"
    prompt: tuple[Message, ...] = ()
    asked = ""
    for key in ("ai.prompt.messages", "ai.prompt"):
        if not prompt and (prompt := messages_in(opened(attributes.get(key)), "user")):
            asked = key
    key = next((name for name in ("ai.response.text", "ai.response.object") if attributes.text(name)), "")
    text = attributes.text(key) if key else ""
    calls = opened(attributes.get("ai.response.toolCalls"))
    choice = Message("assistant", text, calls=len(calls) if isinstance(calls, list) else 0)
    result = as_text(opened(attributes.get("ai.toolCall.result")))
    return Step(
        kind,
        (VERCEL,),
        prompt=Found(prompt, VERCEL, asked) if prompt else None,
        choices=Found((choice,), VERCEL, key or "ai.response.toolCalls") if text or choice.calls else None,
        result=Found(result, VERCEL, "ai.toolCall.result") if result else None,
        model=attributes.text("ai.response.model", "ai.model.id"),
        response_id=attributes.text("ai.response.id"),
        session=attributes.text("ai.telemetry.metadata.sessionId"),
    )


# --- pydantic-ai and Logfire -------------------------------------------------------------------------

PYDANTIC_AI, LOGFIRE = "pydantic-ai", "logfire"


def _pydantic_ai(span: Span, attributes: Attributes) -> Step | None:
    """Read an agent run with all its messages, a tool with its result, or a call with
    messages in `events`.
    """
    everything: tuple[Message, ...] = ()
    key = ""
    for name in ("pydantic_ai.all_messages", "all_messages_events"):
        value = opened(attributes.get(name))
        if isinstance(value, list) and not everything:
            told = genai.of_events(list(genai.events_in(value)))
            both = [
                *(told.prompt.value if told.prompt else ()),
                *(told.choices.value if told.choices else ()),
            ]
            everything, key = tuple(both) or messages_in(value, "user"), name
    final = attributes.get("final_result")
    result = as_text(opened(attributes.get("tool_response")))
    if everything or final is not None:
        before = tuple(each for at, each in enumerate(everything) if at < _last_answer(everything))
        answer = everything[len(before) :]
        text = final if isinstance(final, str) else as_text(final)
        return Step(
            "agent",
            (PYDANTIC_AI,),
            output=Found(text, PYDANTIC_AI, "final_result") if text else None,
            prompt=Found(before, PYDANTIC_AI, key) if before else None,
            choices=Found(answer, PYDANTIC_AI, key) if answer and not text else None,
            model=attributes.text("model_name"),
        )
    if result:
        return Step("tool", (PYDANTIC_AI,), result=Found(result, PYDANTIC_AI, "tool_response"))
    events = list(genai.events_in(attributes.get("events")))
    if not events:
        return None
    step = genai.of_events(events, PYDANTIC_AI if span.scope == PYDANTIC_AI else LOGFIRE)
    return Step("call", (PYDANTIC_AI if span.scope == PYDANTIC_AI else LOGFIRE,)).or_else(step)


def _last_answer(messages: tuple[Message, ...]) -> int:
    """Return the index of the answer that ends a conversation, or its length if it ends otherwise."""
    return len(messages) - (bool(messages) and messages[-1].role == "assistant")


def _logfire(span: Span, attributes: Attributes) -> Step | None:
    """Read a model call with `request_data` and `response_data`."""
    request, response = opened(attributes.get("request_data")), opened(attributes.get("response_data"))
    if not isinstance(request, Mapping) or not isinstance(response, Mapping | None):
        return None
    prompt = messages_in(request, "user")
    choices = messages_in(response or {}, "assistant")
    streamed = (response or {}).get("combined_chunk_content")
    if not choices and isinstance(streamed, str):
        choices = messages_in(streamed, "assistant")
    if not prompt and not choices:
        return None
    model = request.get("model")
    return Step(
        "call",
        (LOGFIRE,),
        prompt=Found(prompt, LOGFIRE, "request_data") if prompt else None,
        choices=Found(choices, LOGFIRE, "response_data") if choices else None,
        model=model if isinstance(model, str) else "",
    )


# --- Google's Agent Development Kit ------------------------------------------------------------------

GOOGLE = "google-adk"


def _google(span: Span, attributes: Attributes) -> Step | None:
    """Read a model call with the API's request and response, or a tool with its result."""
    start = "gcp.vertex.agent."
    prompt = messages_in(opened(attributes.get(f"{start}llm_request")), "user")
    choices = messages_in(opened(attributes.get(f"{start}llm_response")), "assistant")
    result = as_text(opened(attributes.get(f"{start}tool_response")))
    if not prompt and not choices and not result:
        return None
    return Step(
        "call" if prompt or choices else "tool",
        (GOOGLE,),
        prompt=Found(prompt, GOOGLE, f"{start}llm_request") if prompt else None,
        choices=Found(choices, GOOGLE, f"{start}llm_response") if choices else None,
        result=Found(result, GOOGLE, f"{start}tool_response") if result else None,
        session=attributes.text(f"{start}session_id"),
    )


NAMES = (VERCEL, PYDANTIC_AI, LOGFIRE, GOOGLE, *(each.name for each in TABLE))
