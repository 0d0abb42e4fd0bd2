"""What may be said of an OpenAI-compatible engine behind its model's name: `openai:MODEL,draws=20`."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from magistrate.engines.remote.addresses import checked
from magistrate.errors import SpecError

OFFICIAL = "https://api.openai.com/v1"
URL_VARIABLE, KEY_VARIABLE = "OPENAI_BASE_URL", "OPENAI_API_KEY"

Choosing = Literal["best", "top_k", "sampled", "label_only"]
Scoring = Literal["offered", "forced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the engine goes about its verbs.

    `choose` is the best way that the server offers unless a lesser one is named; `draws` are made for
    `sampled`. `likelihood=forced` scores a text by one call a token where the server tells nothing of
    prompts. `stream` reads texts as they are written. What cannot be used is asked anew `anew` times.
    A model that thinks may write `thoughts` tokens before its answer. `window` is the context window, where
    the server does not tell it. `probe=anew` looks again at what the server can do.
    """

    choose: Choosing = "best"
    draws: int = 20
    likelihood: Scoring = "offered"
    stream: bool = False
    anew: int = 2
    thoughts: int = 2048
    window: int = 0
    probe: Literal["kept", "anew"] = "kept"


_WORDS: dict[str, tuple[Any, ...]] = {
    "choose": get_args(Choosing),
    "likelihood": get_args(Scoring),
    "probe": ("kept", "anew"),
    "stream": ("true", "false"),
}


def read_options(words: str) -> tuple[str, Options]:
    """The model's name and the options behind it. Raises `SpecError`.

    >>> read_options("qwen2.5:0.5b,draws=5")[0]
    'qwen2.5:0.5b'
    """
    model, *said = words.split(",")
    if not model.strip():
        raise SpecError("an OpenAI-compatible engine needs a model: openai:MODEL")
    options = Options()
    known = ", ".join(field.name for field in fields(Options))
    for each in said:
        name, sign, value = each.partition("=")
        if not sign or name not in {field.name for field in fields(Options)}:
            raise SpecError(f"{each!r} is no option of openai:{model}; known, as name=value: {known}")
        options = replace(options, **{name: _value(name, value)})
    return model, options


def _value(name: str, value: str) -> Any:
    if name in _WORDS:
        if value not in _WORDS[name]:
            raise SpecError(f"{name}={value!r} is not known; known: {', '.join(_WORDS[name])}")
        return value == "true" if name == "stream" else value
    least = 1 if name in ("draws", "window") else 0
    if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) < least:
        raise SpecError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def base_url(said: str | None) -> str:
    """The address of the server: what was said, else `$OPENAI_BASE_URL`, else OpenAI's own.

    Raises `SpecError` for what is no address, and for one that holds a secret: it would be stored and shown.
    """
    url = (said or os.environ.get(URL_VARIABLE) or OFFICIAL).strip()
    how = "write http://HOST:PORT/v1, as in --base-url http://127.0.0.1:8080/v1"
    parts = checked(url, KEY_VARIABLE, how)
    return f"{url.rstrip('/')}{'' if parts.path.strip('/') else '/v1'}"


def key_for(url: str) -> str:
    """The key to send to `url`, from the environment. Raises `SpecError` where OpenAI's own is missing."""
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key and url == OFFICIAL:
        raise SpecError(
            f"OpenAI's server needs a key: set {KEY_VARIABLE}; for a server of your own name it with "
            "--base-url http://127.0.0.1:8080/v1"
        )
    return key or "none"  # the package demands one; servers without keys do not look at it
