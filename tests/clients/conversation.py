"""The conversation that every client holds: a question, two documents that are found, and a model's answer.

The scripts beside this file run in environments of their own, without Magistrate. Each holds it once with
its search, and then asks the model alone, for a whole answer and for one in pieces. It prints the ids of the
traces. `OPENAI_BASE_URL` and `OTEL_EXPORTER_OTLP_ENDPOINT` say where the model and the collector are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from openai import OpenAI
from openai.types.chat import ChatCompletion
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

P = TypeVar("P", bound=TracerProvider)

MODEL = "scripted"
SYSTEM = "Answer in one sentence, from the passages alone."
QUESTION = "How long do refunds take?"
DOCUMENTS = ("Refunds are paid within five working days.", "Gift cards are not refunded.")
ANSWER = "Refunds take five working days."
TEMPLATE = "Passages:\n{passages}\n\nQuestion: {question}"
PROMPT = TEMPLATE.format(passages="\n".join(DOCUMENTS), question=QUESTION)
MESSAGES: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]


def completion() -> ChatCompletion:
    """Let the model answer, by the real client."""
    return OpenAI(max_retries=0).chat.completions.create(model=MODEL, messages=MESSAGES)


def ask() -> str:
    """Return what the model answers."""
    return completion().choices[0].message.content or ""


def ask_streaming() -> str:
    """Return what the model answers in pieces."""
    pieces = OpenAI(max_retries=0).chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    return "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)


class _Roots(SpanProcessor):
    """Prints the trace of every span that is the root of one."""

    def on_end(self, span: ReadableSpan) -> None:
        if span.parent is None and span.context is not None:
            print(f"{span.context.trace_id:032x}", flush=True)


def sending(provider: P) -> P:
    """Let a provider send its spans over the protocol that the environment names."""
    if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    provider.add_span_processor(_Roots())
    return provider


def sending_logs() -> LoggerProvider:
    """Return a provider that sends log records, for messages that are not on spans."""
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter

    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    return provider


# --- the application's own steps, with the keys of OpenTelemetry's GenAI conventions ------------------


def message(role: str, text: str) -> dict[str, Any]:
    """Return a message with one part."""
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def listed(*messages: dict[str, Any]) -> str:
    """Return messages as the JSON that an attribute holds."""
    return json.dumps(messages)


def held(tracer: Tracer, asked: Callable[[], str]) -> None:
    """Hold the conversation in an agent's span, with one for the search; `asked` records the model's call."""
    with tracer.start_as_current_span("invoke_agent desk") as agent:
        agent.set_attribute("gen_ai.operation.name", "invoke_agent")
        agent.set_attribute("gen_ai.input.messages", listed(message("user", QUESTION)))
        with tracer.start_as_current_span("retrieval manual") as search:
            search.set_attribute("gen_ai.operation.name", "retrieval")
            search.set_attribute("gen_ai.retrieval.query.text", QUESTION)
            search.set_attribute("gen_ai.retrieval.documents", json.dumps(found(DOCUMENTS)))
        said = message("assistant", asked()) | {"finish_reason": "stop"}
        agent.set_attribute("gen_ai.output.messages", listed(said))


def found(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return documents as a search gives them."""
    return [{"id": f"d{n}", "content": text, "score": 1 - n / 10} for n, text in enumerate(texts)]
