"""What may be said of an OpenAI-compatible engine behind its model's name: `openai:MODEL,draws=20`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from magistrate.engines.remote.options import Service

OFFICIAL = "https://api.openai.com/v1"
SERVICE = Service(
    whose="OpenAI's",
    word="openai",
    official=OFFICIAL,
    url_variable="OPENAI_BASE_URL",
    key_variable="OPENAI_API_KEY",
    example="http://127.0.0.1:8080/v1",
)
key_for = SERVICE.key_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the engine goes about its verbs.

    `choose` is the best way that the server offers unless a lesser one is named; `draws` are made for
    `sampled`. `likelihood=forced` scores a text by one call a token where the server tells nothing of
    prompts. `stream` reads texts as they are written. What cannot be used is asked anew `anew` times.
    A model that thinks may write `thoughts` tokens before its answer. `window` is the context window, where
    the server does not tell it. `probe=anew` looks again at what the server can do.
    """

    choose: Literal["best", "top_k", "sampled", "label_only"] = "best"
    draws: int = 20
    likelihood: Literal["offered", "forced"] = "offered"
    stream: bool = False
    anew: int = 2
    thoughts: int = 2048
    window: int = 0
    probe: Literal["kept", "anew"] = "kept"


def read_options(words: str) -> tuple[str, Options]:
    """The model's name and the options behind it. Raises `SpecError`.

    >>> read_options("qwen2.5:0.5b,draws=5")[0]
    'qwen2.5:0.5b'
    """
    return SERVICE.read_options(words, Options, {"draws": 1, "window": 1})


def base_url(said: str | None) -> str:
    """As `Service.address`, with `/v1` where it has no path."""
    url = SERVICE.address(said)
    return url if urlsplit(url).path.strip("/") else f"{url}/v1"
