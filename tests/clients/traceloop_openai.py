"""Traceloop's instrumentation of the OpenAI client; its other packages would record the steps around it.

With the word `events`, messages are sent as log records instead of attributes. The record of a streamed
answer then names no trace and no span (0.62.4), so nobody can tell where it belongs, and none is asked for.
"""

from __future__ import annotations

import json
import sys

from conversation import DOCUMENTS, QUESTION, ask, ask_streaming, found, sending, sending_logs
from opentelemetry.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.semconv_ai import EventAttributes, Events, SpanAttributes, TraceloopSpanKindValues

provider, logs = sending(TracerProvider()), sending_logs()
in_records = "events" in sys.argv
OpenAIInstrumentor(use_attributes=not in_records).instrument(tracer_provider=provider, logger_provider=logs)
tracer = provider.get_tracer("desk")

with tracer.start_as_current_span("desk.workflow") as work:  # as `@workflow` of its SDK records it
    work.set_attribute(SpanAttributes.TRACELOOP_SPAN_KIND, TraceloopSpanKindValues.WORKFLOW.value)
    work.set_attribute(SpanAttributes.TRACELOOP_ENTITY_NAME, "desk")
    given = {"args": [QUESTION], "kwargs": {}}
    work.set_attribute(SpanAttributes.TRACELOOP_ENTITY_INPUT, json.dumps(given))
    with tracer.start_as_current_span("chroma.query") as search:  # as its instrumentation of Chroma does
        search.set_attribute("db.system", "chroma")
        search.set_attribute("db.operation", "query")
        for each in found(DOCUMENTS):
            result = {
                EventAttributes.DB_QUERY_RESULT_ID.value: each["id"],
                EventAttributes.DB_QUERY_RESULT_DOCUMENT.value: each["content"],
                EventAttributes.DB_QUERY_RESULT_DISTANCE.value: 1 - each["score"],
                EventAttributes.DB_QUERY_RESULT_METADATA.value: "{}",
            }
            search.add_event(Events.DB_QUERY_RESULT.value, result)
    work.set_attribute(SpanAttributes.TRACELOOP_ENTITY_OUTPUT, json.dumps(ask()))
ask()
if not in_records:
    ask_streaming()
provider.shutdown()
logs.shutdown()
