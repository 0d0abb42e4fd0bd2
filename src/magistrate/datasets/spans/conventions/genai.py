"""OpenTelemetry's conventions for generative AI: messages as attributes, as one event, or as an event each.

Content may be on the span as structured values or as JSON, on an event of the span, or, before version
1.37, in one event per message. Events recorded as log records are read if they are attached to their span,
with the record's body as the attribute `body`. Source: github.com/open-telemetry/semantic-conventions,
`docs/gen-ai`, 1.41.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magistrate.datasets.spans.conventions.values import (
    Attributes,
    as_text,
    documents_in,
    listed,
    messages_in,
    opened,
)
from magistrate.datasets.spans.span import Event, Span
from magistrate.datasets.spans.steps import Found, Kind, Message, Step

NAME = "genai"
KINDS: Mapping[str, Kind] = {
    "chat": "call",
    "text_completion": "call",
    "generate_content": "call",
    "embeddings": "embedding",
    "retrieval": "retriever",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "invoke_workflow": "chain",
}
DETAILS = "gen_ai.client.inference.operation.details"
ROLES = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
CHOICE = "gen_ai.choice"
PROMPT, COMPLETION = "gen_ai.content.prompt", "gen_ai.content.completion"
ELSEWHERE = ("gen_ai.input.messages_ref", "gen_ai.output.messages_ref", "gen_ai.system_instructions_ref")


def read(span: Span, attributes: Attributes) -> Step | None:
    """Return the step of a span with attributes or events that begin with `gen_ai.`."""
    events = [event for event in span.events if event.name.startswith("gen_ai.")]
    if not events and not isinstance(attributes.get("gen_ai"), Mapping):
        return None
    said = attributes.text("gen_ai.operation.name")
    model = attributes.text("gen_ai.response.model", "gen_ai.request.model")
    step = Step(
        KINDS.get(said, "other") if said else "",
        (NAME,),
        model=model,
        response_id=attributes.text("gen_ai.response.id"),
        session=attributes.text("gen_ai.conversation.id"),
    )
    step = step.or_else(_content(attributes, ""))
    for event in events:
        if event.name == DETAILS:
            step = step.or_else(_content(Attributes(event.attributes), f"{DETAILS}: "))
    if any(event.name != DETAILS for event in events):
        step = step.or_else(of_events(events))
    elsewhere = [key for key in ELSEWHERE if attributes.get(key)]
    if elsewhere and step.choices is None:
        step = step.or_else(Step(remarks=(f"its content is stored elsewhere: see {', '.join(elsewhere)}",)))
    return step


def _content(attributes: Attributes, where: str) -> Step:
    """Return the content of a span's attributes, or of an event with the same attributes."""
    remarks: list[str] = []

    def read(name: str) -> Any:
        value, unread = attributes.opened(name)
        remarks.extend([f"{where}{unread}"] if unread else [])
        return value

    prompt = messages_in(read("gen_ai.input.messages"), "user")
    instructions = read("gen_ai.system_instructions")
    if instructions and (system := messages_in({"role": "system", "parts": instructions}, "system")[0].text):
        prompt = (Message("system", system), *prompt)
    choices = messages_in(read("gen_ai.output.messages"), "assistant")
    retrieved = read("gen_ai.retrieval.documents")
    documents = documents_in(retrieved)
    if listed(retrieved) and not documents:
        remarks.append(f"{where}gen_ai.retrieval.documents lists documents without their text")
    query = attributes.text("gen_ai.retrieval.query.text")
    result = as_text(read("gen_ai.tool.call.result"))

    def found(value: Any, key: str) -> Any:
        return Found(value, NAME, f"{where}{key}") if value else None

    return Step(
        prompt=found(prompt, "gen_ai.input.messages"),
        choices=found(choices, "gen_ai.output.messages"),
        documents=found(documents, "gen_ai.retrieval.documents"),
        query=found(query, "gen_ai.retrieval.query.text"),
        result=found(result, "gen_ai.tool.call.result"),
        remarks=tuple(remarks),
    )


# --- an event for each message ---------------------------------------------------------------------


def of_events(events: list[Event], convention: str = NAME) -> Step:
    """Return the messages that are recorded as one event each, as before version 1.37."""
    prompt: list[Message] = []
    choices: list[Message] = []
    asked, answered = "", ""
    for event in events:
        value = _payload(event)
        if event.name in ROLES:
            role = ROLES[event.name]
            asked = event.name if role == "user" else asked or event.name
            prompt += messages_in({"role": role, **value}, role)
        elif event.name == CHOICE:
            answered = answered or event.name
            choices += messages_in(_choice(value), "assistant")
        elif event.name in (PROMPT, COMPLETION):
            key = "gen_ai.prompt" if event.name == PROMPT else "gen_ai.completion"
            text = opened(value.get(key))
            if event.name == PROMPT:
                asked = asked or event.name
                prompt += messages_in(text, "user")
            else:
                answered = answered or event.name
                choices += messages_in(text, "assistant")
    return Step(
        prompt=Found(tuple(prompt), convention, asked) if prompt else None,
        choices=Found(tuple(choices), convention, answered) if choices else None,
    )


def events_in(value: Any) -> Iterator[Event]:
    """Yield the events of a list on the span, each with its name under `event.name`."""
    for item in listed(opened(value)):
        if isinstance(item, Mapping) and isinstance(item.get("event.name"), str):
            yield Event(item["event.name"], 0, item)


def _payload(event: Event) -> Mapping[str, Any]:
    """Return the content of an event: its attributes, or the body or JSON in one of them."""
    for name in ("body", "gen_ai.event.content"):
        body = opened(event.attributes.get(name))
        if isinstance(body, Mapping):
            return body
    return event.attributes


def _choice(value: Mapping[str, Any]) -> dict[str, Any]:
    message = opened(value.get("message"))
    if isinstance(message, str):
        message = {"content": message}
    held = message if isinstance(message, Mapping) else value
    known = {name: opened(item) if name == "tool_calls" else item for name, item in held.items()}
    return {"role": "assistant", **known}
