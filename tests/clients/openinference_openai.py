"""OpenInference's instrumentation of the OpenAI client, and its tracer for the application's own steps."""

from __future__ import annotations

from conversation import DOCUMENTS, QUESTION, ask, ask_streaming, found, sending
from openinference.instrumentation import TracerProvider, get_retriever_attributes
from openinference.instrumentation.openai import OpenAIInstrumentor

provider = sending(TracerProvider())
OpenAIInstrumentor().instrument(tracer_provider=provider)
tracer = provider.get_tracer("desk")

with tracer.start_as_current_span("desk", openinference_span_kind="chain") as chain:
    chain.set_input(QUESTION)
    with tracer.start_as_current_span("search", openinference_span_kind="retriever") as search:
        search.set_input(QUESTION)
        search.set_attributes(get_retriever_attributes(documents=found(DOCUMENTS)))
    chain.set_output(ask())
ask()
ask_streaming()
provider.shutdown()
