"""OpenTelemetry's SDK alone: every span is made by hand, with the keys of the GenAI conventions."""

from __future__ import annotations

from conversation import MODEL, PROMPT, SYSTEM, completion, held, listed, message, sending
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind

provider = sending(TracerProvider())
tracer = provider.get_tracer("desk")


def ask() -> str:
    """Ask the model, in a span of the call."""
    with tracer.start_as_current_span(f"chat {MODEL}", kind=SpanKind.CLIENT) as call:
        call.set_attribute("gen_ai.operation.name", "chat")
        call.set_attribute("gen_ai.provider.name", "openai")
        call.set_attribute("gen_ai.request.model", MODEL)
        call.set_attribute(
            "gen_ai.input.messages", listed(message("system", SYSTEM), message("user", PROMPT))
        )
        said = completion()
        call.set_attribute("gen_ai.response.id", said.id)
        call.set_attribute("gen_ai.response.model", said.model)
        (choice,) = said.choices
        answer = message("assistant", choice.message.content or "") | {"finish_reason": choice.finish_reason}
        call.set_attribute("gen_ai.output.messages", listed(answer))
        return choice.message.content or ""


held(tracer, ask)
ask()
provider.shutdown()
