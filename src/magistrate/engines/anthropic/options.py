"""What may be said of an Anthropic engine behind its model's name: `anthropic:MODEL,draws=10`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magistrate.engines.remote.options import Service

OFFICIAL = "https://api.anthropic.com"
SERVICE = Service(
    whose="Anthropic's",
    word="anthropic",
    official=OFFICIAL,
    url_variable="ANTHROPIC_BASE_URL",
    key_variable="ANTHROPIC_API_KEY",
    example="http://HOST:PORT",
)
key_for = SERVICE.key_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the engine goes about its verbs.

    `choose` names a label, or makes `draws` and counts. `form` is how a constraint is sent: as a `schema` of
    the output, as the input of a forced `tool`, or in `words`; `best` is the schema where the model knows it.
    `thinking` is turned off where the model can do without; with it a text may take `thoughts` tokens more.
    `stream` reads texts as they are written. What cannot be used is asked anew `anew` times.
    """

    choose: Literal["label_only", "sampled"] = "label_only"
    draws: int = 20
    form: Literal["best", "schema", "tool", "words"] = "best"
    thinking: Literal["off", "adaptive", "unsaid"] = "off"
    thoughts: int = 2048
    stream: bool = False
    anew: int = 2


def read_options(words: str) -> tuple[str, Options]:
    """The model's name and the options behind it. Raises `SpecError`.

    >>> read_options("claude-haiku-4-5,draws=5")[0]
    'claude-haiku-4-5'
    """
    return SERVICE.read_options(words, Options, {"draws": 1})


def address(said: str | None) -> str:
    """As `Service.address`. A `/v1` at the end is taken for said, because paths begin with it."""
    return SERVICE.address(said).removesuffix("/v1").rstrip("/")
