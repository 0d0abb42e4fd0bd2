"""A prompt as the messages of a chat, as OpenAI's, Anthropic's and other servers take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magistrate.engines.base import Attempt
from magistrate.engines.remote.escaping import Escaping, escaping_for
from magistrate.errors import SpecError
from magistrate.types import Data, Message, Prompt, Trusted

REFUSED = "That answer cannot be used: "
ANEW = "\nAnswer again, in the form that was asked for and nothing else."
GO_ON = (
    "Your answer breaks off where it stops above. Go on from exactly there: "
    "write only what comes next, without repeating anything."
)
SILENT = "(no answer)"  # servers refuse empty messages


@dataclass(frozen=True, slots=True)
class Turn:
    """One message: who speaks, and what is said, special-looking strings in data broken up."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns to send. The last is the assistant's where `begun`: the server is to continue it.

    `escaping` says what was done to the data, and undoes it in the answer.
    """

    turns: tuple[Turn, ...]
    escaping: Escaping
    begun: bool

    @property
    def system(self) -> str:
        """The text of all system messages, for servers that take it apart."""
        return "\n\n".join(turn.text for turn in self.turns if turn.role == "system")

    def as_dicts(self) -> list[dict[str, str]]:
        """The turns as JSON objects with `role` and `content`."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns]


def asked_anew(prompt: Prompt, attempts: Sequence[Attempt]) -> Prompt:
    """`prompt` after which every refused attempt was answered with what was wrong with it.

    What the model wrote and what is said of it are data: either may repeat a judged text.
    """
    if not attempts:
        return prompt
    messages = list(prompt.messages)
    begun = messages.pop() if messages[-1].role == "assistant" else Message("assistant", ())
    for each in attempts:
        messages.append(Message("assistant", (*begun.parts, Data(each.text or SILENT, "attempt"))))
        messages.append(Message("user", (Trusted(REFUSED), Data(each.problem, "problem"), Trusted(ANEW))))
    return Prompt((*messages, begun) if begun.parts else tuple(messages))


def chat(
    prompt: Prompt,
    attempts: Sequence[Attempt] = (),
    *,
    continues: bool = True,
    isolated: bool = False,
) -> Chat:
    """The messages of `prompt`, after them every refused attempt and what was wrong with it.

    A last message of the assistant is left to be continued; where the server does not do that
    (`continues=False`) it is asked for in words. `isolated` says that data needs no escaping, because the
    server is known to read no special tokens in messages.
    """
    if not prompt.messages:
        raise SpecError("a prompt needs at least one message")
    prompt = asked_anew(prompt, attempts)
    trusted = [
        part.text for message in prompt.messages for part in message.parts if isinstance(part, Trusted)
    ]
    escaping = Escaping() if isolated else escaping_for([data.text for data in prompt.data()], trusted)
    turns = [Turn(message.role, _text(message, escaping)) for message in prompt.messages]
    begun = turns[-1].role == "assistant"
    if begun and not continues:
        turns.append(Turn("user", GO_ON))
    return Chat(tuple(turns), escaping, begun and continues)


def _text(message: Message, escaping: Escaping) -> str:
    """What a message says. Data parts that touch are broken up as one: together they could form a token."""
    text, waiting = "", ""
    for part in message.parts:
        if isinstance(part, Data):
            waiting += part.text
        else:
            text += escaping.escaped(waiting) + part.text
            waiting = ""
    return text + escaping.escaped(waiting) or SILENT
