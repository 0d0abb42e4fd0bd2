"""OpenTelemetry's instrumentation of the OpenAI client, and its handler for the application's own steps."""

from __future__ import annotations

from conversation import DOCUMENTS, QUESTION, ask, ask_streaming, found, sending
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util.genai.handler import TelemetryHandler
from opentelemetry.util.genai.types import InputMessage, OutputMessage, Text

provider = sending(TracerProvider())
OpenAIInstrumentor().instrument(tracer_provider=provider)
handler = TelemetryHandler(tracer_provider=provider)

with handler.workflow("desk") as work:
    work.input_messages = [InputMessage("user", [Text(QUESTION)])]
    with handler.retrieval(data_source_id="shelf") as search:
        search.query_text = QUESTION
        search.documents = found(DOCUMENTS)
    work.output_messages = [OutputMessage("assistant", [Text(ask())], "stop")]
ask()
ask_streaming()
provider.shutdown()
