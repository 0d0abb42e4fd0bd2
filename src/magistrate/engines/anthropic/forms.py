"""Constraints as the Messages API takes them: a schema of the output, a forced tool, or words."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from magistrate.constraints import Constraint, express
from magistrate.constraints.partial_json import read
from magistrate.engines.remote.wording import described
from magistrate.errors import ConstraintError

TOOL = "answer"
WRAPPED = "answer"  # what is no object is this property of one: both ways take objects only
Way = Literal["schema", "tool", "words"]


@dataclass(frozen=True, slots=True)
class Form:
    """What a request has for a constraint: `body` goes into it, or `words` behind what is asked.

    `undo` turns what comes back into what the constraint reads.
    """

    body: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    undo: Callable[[str], str] = str

    @property
    def tool(self) -> bool:
        """Whether the answer is the input of a tool."""
        return "tools" in self.body


PLAIN = Form()


def form_of(constraint: Constraint | None, way: Way) -> Form:
    """How `constraint` is sent. What no schema says, such as a grammar, is sent in words.

    Whatever the server does not hold to is found out when the answer is validated. Raises `ConstraintError`
    where the constraint has no bound or lacks its texts.
    """
    if constraint is None:
        return PLAIN
    constraint.require_bounds()
    if way == "words" or constraint.kind == "lark":
        return Form(words=described(constraint))
    schema, undo = _object_of(constraint)
    try:
        return _sent(schema, way, undo)
    except ValueError:  # the package's own word for a schema that cannot be said there
        return Form(words=described(constraint))


def form_of_labels(labels: list[str], way: Way) -> Form:
    """How it is asked for one of these labels."""
    if way == "words":
        return Form(words="Reply with nothing but one of these: " + ", ".join(labels))
    return _sent(_wrapping({"type": "string", "enum": labels}), way, _unwrapped)


def _sent(schema: Mapping[str, Any], way: Way, undo: Callable[[str], str]) -> Form:
    from anthropic import transform_schema

    said = transform_schema(dict(schema))
    if way == "schema":
        return Form({"output_config": {"format": {"type": "json_schema", "schema": said}}}, undo=undo)
    tool = {"name": TOOL, "description": "Gives the answer.", "input_schema": said}
    choice = {"type": "tool", "name": TOOL, "disable_parallel_tool_use": True}
    return Form({"tools": [tool], "tool_choice": choice}, undo=undo)


def _object_of(constraint: Constraint) -> tuple[Mapping[str, Any], Callable[[str], str]]:
    """The schema of an object that holds what the constraint allows, and the way back to that."""
    if constraint.kind == "json":
        schema: Mapping[str, Any] = express(constraint, "json_schema").payload
        if schema.get("type") == "object":
            return schema, str
        if "$defs" in schema or "$ref" in schema or "definitions" in schema:
            raise ConstraintError(
                f"{constraint.name!r} has definitions and is no object at its root, as Anthropic's schemas "
                "must be; put it into an object"
            )
        return _wrapping(schema), _unwrapped_json
    given = constraint.schema or {}
    inner = {"type": "string", **{key: given[key] for key in ("enum", "pattern") if key in given}}
    return _wrapping(inner), _unwrapped


def _wrapping(inner: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {WRAPPED: dict(inner)},
        "required": [WRAPPED],
        "additionalProperties": False,
    }


def _inner(text: str) -> Any:
    """What the object around an answer holds, None where there is no such object."""
    value = read(text).value  # of whole JSON that says nothing twice; else of no such type
    return value.get(WRAPPED) if isinstance(value, dict) and value.keys() == {WRAPPED} else None


def _unwrapped(text: str) -> str:
    inner = _inner(text)
    return inner if isinstance(inner, str) else text


def _unwrapped_json(text: str) -> str:
    inner = _inner(text)
    return text if inner is None else json.dumps(inner, ensure_ascii=False)
