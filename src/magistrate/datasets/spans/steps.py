"""A step: what a span says of a language model's work, in the same words whatever convention it follows."""

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
    """One message: its text, what tools answered in it, and how many tools it calls."""

    role: str
    text: str = ""
    results: tuple[str, ...] = ()
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """A text that was retrieved; `score` is larger and `distance` smaller for a better one."""

    text: str
    id: str | None = None
    score: float | None = None
    distance: float | None = None


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A value with where it stood: the convention's name and the attribute's or event's key."""

    value: T
    convention: str
    key: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one span says.

    `prompt` is what a model was given, `choices` what it answered, one message a choice; `result` is what a
    tool answered. `remarks` say what was there and could not be read. Whatever is not known is None or empty.
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
        """This step, and where it says nothing what `other` says."""
        values: dict[str, Any] = {
            each.name: getattr(self, each.name) or getattr(other, each.name) for each in fields(Step)
        }
        values["conventions"] = (*self.conventions, *other.conventions)
        values["remarks"] = (*self.remarks, *other.remarks)
        return Step(**values)

    @property
    def answer(self) -> Found[str] | None:
        """The text that the step answered: of several choices the last one that has any.

        A model call that only calls tools has answered nothing, whatever else stands on its span.
        """
        choices = () if self.choices is None else self.choices.value
        for choice in reversed(choices):
            if self.choices is not None and choice.text.strip():
                return Found(choice.text, self.choices.convention, self.choices.key)
        called = self.kind == "call" and any(choice.calls for choice in choices)
        return None if called else self.output

    @property
    def question(self) -> Found[str] | None:
        """The text that the step was asked: its input, else what the user said last in its prompt."""
        if self.input is not None or self.prompt is None:
            return self.input
        said = (each.text for each in reversed(self.prompt.value) if each.role == "user" and each.text)
        text = next(said, None)
        return None if text is None else Found(text, self.prompt.convention, self.prompt.key)
