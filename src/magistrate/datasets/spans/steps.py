"""A step: the content of a language model span, in the same terms for every tracing convention."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Kind = Literal[
    "",
    "agent",
    "chain",
    "call",
    "retriever",
    "reranker",
    "tool",
    "embedding",
    "evaluator",
    "guardrail",
    "other",
]


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its text, the tool results in it, and the number of tool calls."""

    role: str
    text: str = ""
    results: tuple[str, ...] = ()
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A retrieved text. A larger `score` or a smaller `distance` means a better match."""

    text: str
    id: str | None = None
    score: float | None = None
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A value with its origin: the convention's name and the key of the attribute or event."""

    value: T
    convention: str
    key: str


@dataclass(frozen=True, slots=True)
class Step:
    """The parsed content of one span.

    `prompt` is the input of a model, `choices` its output, one message per choice. `result` is the output
    of a tool. `remarks` list what was present but could not be read. Unknown fields are None or empty.
    """

    kind: Kind = ""
    conventions: tuple[str, ...] = ()
    input: Found[str] | None = None
    output: Found[str] | None = None
    prompt: Found[tuple[Message, ...]] | None = None
    choices: Found[tuple[Message, ...]] | None = None
    documents: Found[tuple[Document, ...]] | None = None
    query: Found[str] | None = None
    result: Found[str] | None = None
    model: str = ""
    response_id: str = ""
    session: str = ""
    remarks: tuple[str, ...] = ()

    def or_else(self, other: Step) -> Step:
        """Return this step with its empty fields filled from `other`."""
        values: dict[str, Any] = {
            each.name: getattr(self, each.name) or getattr(other, each.name) for each in fields(Step)
        }
        values["conventions"] = (*self.conventions, *other.conventions)
        values["remarks"] = (*self.remarks, *other.remarks)
        return Step(**values)

    @property
    def answer(self) -> Found[str] | None:
        """The answer text of the step: the last choice that has text, else the output.

        A model call that only calls tools has no answer, even if its span has an output.
        """
        choices = () if self.choices is None else self.choices.value
        for choice in reversed(choices):
            if self.choices is not None and choice.text.strip():
                return Found(choice.text, self.choices.convention, self.choices.key)
        called = self.kind == "call" and any(choice.calls for choice in choices)
        return None if called else self.output

    @property
    def question(self) -> Found[str] | None:
        """The question of the step: its input, else the last user message of its prompt."""
        if self.input is not None or self.prompt is None:
            return self.input
        said = (each.text for each in reversed(self.prompt.value) if each.role == "user" and each.text)
        text = next(said, None)
        return None if text is None else Found(text, self.prompt.convention, self.prompt.key)
