"""Constraints in words, for servers and models that can only be asked to keep to them."""

from __future__ import annotations

import json

from magistrate.constraints import Constraint, express
from magistrate.types import Data, Message, Prompt, Trusted


def described(constraint: Constraint) -> str:
    """What the answer must be, said to the model."""
    schema = constraint.schema or {}
    if constraint.kind == "choice":
        return "Reply with exactly one of: " + json.dumps(schema["enum"], ensure_ascii=False)
    if constraint.kind == "regex":
        return f"Reply with a text that the regular expression /{schema['pattern']}/ matches as a whole."
    if constraint.kind == "lark":
        return f"Reply with a text of this Lark grammar, and nothing else:\n{constraint.grammar}"
    shape = json.dumps(express(constraint, "json_schema").payload, ensure_ascii=False)
    return f"Reply with JSON that this JSON Schema accepts, and nothing else:\n{shape}"


def told(prompt: Prompt, words: str) -> Prompt:
    """`prompt` with `words` at the end of what its user says last. They are data: a schema may repeat
    judged texts."""
    last = max((at for at, message in enumerate(prompt.messages) if message.role == "user"), default=None)
    if last is None:
        return Prompt((*prompt.messages, Message("user", (Data(words, "form"),))))
    message = prompt.messages[last]
    more = Message("user", (*message.parts, Trusted("\n\n"), Data(words, "form")))
    return Prompt((*prompt.messages[:last], more, *prompt.messages[last + 1 :]))
