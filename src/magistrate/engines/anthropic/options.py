"""What may be said of an Anthropic engine: options behind the model's name, an address, a key."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from magistrate.engines.remote.addresses import checked
from magistrate.errors import SpecError

OFFICIAL = "https://api.anthropic.com"
URL_VARIABLE, KEY_VARIABLE = "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"

Choosing = Literal["label_only", "sampled"]
Form = Literal["best", "schema", "tool", "words"]
Thinking = Literal["off", "adaptive", "unsaid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the engine goes about its verbs.

    `choose` names a label, or makes `draws` and counts. `form` is how a constraint is sent: as a `schema` of
    the output, as the input of a forced `tool`, or in `words`; `best` is the schema where the model knows it.
    `thinking` is turned off where the model can do without; with it a text may take `thoughts` tokens more.
    `stream` reads texts as they are written. What cannot be used is asked anew `anew` times.
    """

    choose: Choosing = "label_only"
    draws: int = 20
    form: Form = "best"
    thinking: Thinking = "off"
    thoughts: int = 2048
    stream: bool = False
    anew: int = 2


WORDS: dict[str, tuple[str, ...]] = {
    "choose": get_args(Choosing),
    "form": get_args(Form),
    "thinking": get_args(Thinking),
    "stream": ("true", "false"),
}


def read_options(words: str) -> tuple[str, Options]:
    """The model's name and the options behind it. Raises `SpecError`.

    >>> read_options("claude-haiku-4-5,draws=5")[0]
    'claude-haiku-4-5'
    """
    model, *said = words.split(",")
    if not model.strip():
        raise SpecError("an Anthropic engine needs a model: anthropic:MODEL")
    known = [field.name for field in fields(Options)]
    options = Options()
    for each in said:
        name, sign, value = each.partition("=")
        if not sign or name not in known:
            raise SpecError(
                f"{each!r} is no option of anthropic:{model}; known, as name=value: {', '.join(known)}"
            )
        options = replace(options, **{name: _value(name, value)})
    return model, options


def _value(name: str, value: str) -> Any:
    if name in WORDS:
        if value not in WORDS[name]:
            raise SpecError(f"{name}={value!r} is not known; known: {', '.join(WORDS[name])}")
        return value == "true" if name == "stream" else value
    least = 1 if name == "draws" else 0
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) < least:
        raise SpecError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def address(said: str | None) -> str:
    """The address of the server: what was said, else `$ANTHROPIC_BASE_URL`, else Anthropic's own.

    A `/v1` at its end is taken for said, because paths begin with it. Raises `SpecError` for what is no
    address, and for one that holds a secret: it would be stored and shown.
    """
    url = (said or os.environ.get(URL_VARIABLE) or OFFICIAL).strip().rstrip("/").removesuffix("/v1")
    how = "write http://HOST:PORT, as in --base-url http://127.0.0.1:8080"
    checked(url, KEY_VARIABLE, how)
    return url


def key_for(url: str) -> str:
    """The key to send to `url`, from the environment. Raises `SpecError` where Anthropic's own is missing."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key and url == OFFICIAL:
        raise SpecError(
            f"Anthropic's server needs a key: set {KEY_VARIABLE}; another server is named with "
            "--base-url http://HOST:PORT"
        )
    return key or "none"  # the package demands one; servers without keys do not look at it
