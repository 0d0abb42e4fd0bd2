"""OpenTelemetry's instrumentation of the OpenAI client; messages are on spans or in log records.

Which, OTEL_SEMCONV_STABILITY_OPT_IN and OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT say.
"""

from __future__ import annotations

from conversation import ask, ask_streaming, held, sending, sending_logs
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider

provider, logs = sending(TracerProvider()), sending_logs()
OpenAIInstrumentor().instrument(tracer_provider=provider, logger_provider=logs)

held(provider.get_tracer("desk"), ask)
ask()
ask_streaming()
provider.shutdown()
logs.shutdown()
