"""Chat messages of a prompt for OpenAI's, Anthropic's and other servers.

A server tokenizes the whole prompt, so `<|im_end|>` in a judged text would close its turn. Therefore a mark
that no text of the prompt contains is inserted after the first character of anything that looks like a
special token. It is removed from the answer, so that quotes and offsets refer to the raw text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magistrate.constraints import Constraint, express
from magistrate.constraints.partial_json import read
from magistrate.engines.base import Attempt
from magistrate.errors import SpecError
from magistrate.types import Data, Message, Prompt, Trusted

REFUSED = "That answer cannot be used: "
AGAIN = "\nAnswer again, in the form that was asked for and nothing else."
CONTINUE = (
    "Your answer breaks off where it stops above. Go on from exactly there: "
    "write only what comes next, without repeating anything."
)
SILENT = "(no answer)"  # servers reject empty messages
WRAPPED = "answer"  # the property of the object that wraps a plain text

MARKS = "¦‖†‡§¶⁞※⸗⁑◊⟊⌇⍿"
# Tags of one word in any script, with or without bars; bracketed capitals; doubled angle brackets.
SPECIAL = re.compile(
    r"<(?=[|｜/]?[^<>\s]{1,64}>)|<(?=[|｜])|[|｜](?=>)|<(?=</?[A-Z]+>>)"
    r"|\[(?=/?[a-z]{0,2}[A-Z][A-Z0-9_ ]{1,40}\])"
)
NOTE = "texts that look like special tokens were broken up with {mark!r}, which was removed from the answer"


@dataclass(frozen=True, slots=True)
class Escaping:
    """How the texts of one prompt are escaped: with `mark`, or not at all if nothing looks special."""

    mark: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the reader of the answer."""
        return (NOTE.format(mark=self.mark),) if self.mark else ()

    def escape(self, text: str) -> str:
        """Return `text` without anything that looks like a special token."""
        return SPECIAL.sub(lambda match: match[0] + self.mark, text) if self.mark else text

    def undo(self, text: str) -> str:
        """Return an answer without the marks, even if JSON escapes them."""
        if not self.mark:
            return text
        code = f"{ord(self.mark):04x}"
        return re.sub(rf"\\u{code}", "", text.replace(self.mark, ""), flags=re.IGNORECASE)

    def raw_offset(self, raw: str, at: int) -> int:
        """Convert the offset `at` in `escape(raw)` to an offset in `raw`."""
        return at - self.escape(raw)[:at].count(self.mark) if self.mark else at


def escaping_for(untrusted: Iterable[str], others: Iterable[str] = ()) -> Escaping:
    """Return the escaping of `untrusted` texts, with a mark that neither they nor `others` contain."""
    texts = list(untrusted)
    if not any(SPECIAL.search(text) for text in texts):
        return Escaping()
    everything = [*texts, *others]
    for mark in (*MARKS, *map(chr, range(0x2800, 0x2900)), *map(chr, range(0xE000, 0xF8FF))):
        if not any(mark in text for text in everything):
            return Escaping(mark)
    raise ValueError("these texts contain every mark that could be used to break up special tokens")


@dataclass(frozen=True, slots=True)
class Turn:
    """A message: its role, and its text with data escaped."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Chat:
    """The turns to send. If `begun`, the last is the assistant's and the server must continue it.

    `escaping` is how data was escaped; it also undoes that in the answer.
    """

    turns: tuple[Turn, ...]
    escaping: Escaping
    begun: bool

    @property
    def system(self) -> str:
        """The text of all system messages, for servers that take it separately."""
        return "\n\n".join(turn.text for turn in self.turns if turn.role == "system")

    def as_dicts(self) -> list[dict[str, str]]:
        """Return the turns as JSON objects with `role` and `content`."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns]


def chat(prompt: Prompt, attempts: Sequence[Attempt] = (), *, continues: bool = True) -> Chat:
    """Return the messages of `prompt`, followed by every rejected attempt and the reason.

    A final message of the assistant is left for the server to continue. If the server cannot do that
    (`continues=False`), it is asked in words to continue.
    """
    if not prompt.messages:
        raise SpecError("a prompt needs at least one message")
    prompt = with_attempts(prompt, attempts)
    trusted = [
        part.text for message in prompt.messages for part in message.parts if isinstance(part, Trusted)
    ]
    escaping = escaping_for([data.text for data in prompt.data()], trusted)
    turns = [Turn(message.role, _text(message, escaping)) for message in prompt.messages]
    begun = turns[-1].role == "assistant"
    if begun and not continues:
        turns.append(Turn("user", CONTINUE))
    return Chat(tuple(turns), escaping, begun and continues)


def with_attempts(prompt: Prompt, attempts: Sequence[Attempt]) -> Prompt:
    """Return `prompt` followed by every rejected attempt and the reason.

    Both the attempt and the problem are data, because either may repeat a judged text.
    """
    if not attempts:
        return prompt
    messages = list(prompt.messages)
    begun = messages.pop() if messages[-1].role == "assistant" else Message("assistant", ())
    for each in attempts:
        messages.append(Message("assistant", (*begun.parts, Data(each.text or SILENT, "attempt"))))
        messages.append(Message("user", (Trusted(REFUSED), Data(each.problem, "problem"), Trusted(AGAIN))))
    return Prompt((*messages, begun) if begun.parts else tuple(messages))


def with_instruction(prompt: Prompt, words: str) -> Prompt:
    """Append `words` to the last user message of `prompt`, as data: a schema may repeat judged texts."""
    last = max((at for at, message in enumerate(prompt.messages) if message.role == "user"), default=None)
    if last is None:
        return Prompt((*prompt.messages, Message("user", (Data(words, "form"),))))
    message = prompt.messages[last]
    more = Message("user", (*message.parts, Trusted("\n\n"), Data(words, "form")))
    return Prompt((*prompt.messages[:last], more, *prompt.messages[last + 1 :]))


def in_words(constraint: Constraint) -> str:
    """Return the constraint as an instruction, for servers that cannot enforce it."""
    schema = constraint.schema or {}
    if constraint.kind == "choice":
        return "Reply with exactly one of: " + json.dumps(schema["enum"], ensure_ascii=False)
    if constraint.kind == "regex":
        return f"Reply with a text that the regular expression /{schema['pattern']}/ matches as a whole."
    if constraint.kind == "lark":
        return f"Reply with a text of this Lark grammar, and nothing else:\n{constraint.grammar}"
    shape = json.dumps(express(constraint, "json_schema").payload, ensure_ascii=False)
    return f"Reply with JSON that this JSON Schema accepts, and nothing else:\n{shape}"


def one_of(answers: Sequence[str]) -> str:
    """Return an instruction to reply with one of `answers`."""
    return "Reply with nothing but one of these: " + ", ".join(answers)


def _text(message: Message, escaping: Escaping) -> str:
    """Return a message's text. Adjacent data parts are escaped together: they may form a special token."""
    text, waiting = "", ""
    for part in message.parts:
        if isinstance(part, Data):
            waiting += part.text
        else:
            text += escaping.escape(waiting) + part.text
            waiting = ""
    return text + escaping.escape(waiting) or SILENT


# --- texts in an object, for servers that accept only schemas of objects ----------------------------


def schema_of_text(constraint: Constraint) -> dict[str, Any]:
    """Return the schema of an object with one property, a text that `constraint` (a choice or a regular
    expression) allows."""
    given = constraint.schema or {}
    text = {"type": "string", **{key: given[key] for key in ("enum", "pattern") if key in given}}
    if "pattern" in text:
        text["pattern"] = f"^(?:{text['pattern']})$"
    return schema_around(text)


def schema_around(inner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with one property that has the schema `inner`."""
    return {
        "type": "object",
        "properties": {WRAPPED: dict(inner)},
        "required": [WRAPPED],
        "additionalProperties": False,
    }


def inside(text: str) -> Any:
    """Return the value of the property in the JSON object `text`; None if it is not such an object."""
    value = read(text).value  # of complete JSON without duplicate names; otherwise not a dict with this key
    return value[WRAPPED] if isinstance(value, dict) and value.keys() == {WRAPPED} else None


def text_inside(text: str) -> str:
    """Return the text in the JSON object `text`, or `text` itself if it is not such an object."""
    inner = inside(text)
    return inner if isinstance(inner, str) else text
