"""Options of an OpenAI-compatible engine, given behind its model's name: `openai:MODEL,draws=20`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from magistrate.engines.remote.options import Provider

OFFICIAL = "https://api.openai.com/v1"
PROVIDER = Provider(
    owner="OpenAI's",
    word="openai",
    official=OFFICIAL,
    url_variable="OPENAI_BASE_URL",
    key_variable="OPENAI_API_KEY",
    example="http://127.0.0.1:8080/v1",
)
key_for = PROVIDER.key_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the engine answers its verbs.

    `choose` is the best method that the server offers unless a lesser one is named; `sampled` makes `draws`.
    `likelihood=forced` scores a text by one call a token if the server tells nothing of prompts. `stream`
    reads texts as they are written. An answer that cannot be used is asked for again, `anew` times at most. A
    model that thinks may write `thoughts` tokens before its answer. `window` is the context window in
    tokens, if the server does not tell it. `probe=anew` tries out again what the server can do.
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
    return PROVIDER.read_options(words, Options, {"draws": 1, "window": 1})


def base_url(given: str | None) -> str:
    """As `Provider.address`, with `/v1` if it has no path."""
    url = PROVIDER.address(given)
    return url if urlsplit(url).path.strip("/") else f"{url}/v1"
