"""Token prices: a dated list of hosted models, or a price that the user gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from magistrate.errors import SpecError
from magistrate.types import Usage

MILLION = 1_000_000
# `-2024-08-06`, `-20250929`, `@20250929` or `-latest` after the name of a listed model.
DATED = re.compile(r"(?P<model>.+?)[-@](?:\d{4}-\d{2}-\d{2}|\d{8}|latest)")


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens: `input`, `output`, and `cached` for input from the provider's cache.

    `cached` is None if it is not cheaper. `as_of` is the date of the price, such as `2026-03`; None for a
    price that the user gave. Raises `SpecError` for an invalid amount.
    """

    input: float
    output: float
    cached: float | None = None
    as_of: str | None = None

    def __post_init__(self) -> None:
        for amount in (self.input, self.output, self.cached):
            if amount is not None and not (isfinite(amount) and amount >= 0):
                raise SpecError(f"a price must be finite and not negative, got {amount}")

    @classmethod
    def parse(cls, text: str) -> Price:
        """Parse `IN/OUT` or `IN/OUT/CACHED` in US dollars per million tokens.

        >>> Price.parse("0.15/0.60")
        Price(input=0.15, output=0.6, cached=None, as_of=None)
        """
        try:
            amounts = [float(word) for word in text.split("/")]
        except ValueError:
            amounts = []
        if len(amounts) not in (2, 3):
            raise SpecError(
                "write a price as IN/OUT or IN/OUT/CACHED, in US dollars per million tokens, such as "
                f"0.15/0.60; got {text!r}"
            )
        return cls(amounts[0], amounts[1], amounts[2] if len(amounts) == 3 else None)

    def cost(self, usage: Usage) -> float:
        """Return the cost in US dollars. Reused calls cost nothing, because their usage is empty."""
        cached = min(usage.cached, usage.prompt)
        cheaper = self.input if self.cached is None else self.cached
        dollars = (usage.prompt - cached) * self.input + cached * cheaper + usage.generated * self.output
        return dollars / MILLION

    def __str__(self) -> str:
        words = [f"${self.input:g} in", f"${self.output:g} out"]
        words += [] if self.cached is None else [f"${self.cached:g} cached"]
        return f"{', '.join(words)} per million tokens{f' (as of {self.as_of})' if self.as_of else ''}"


def price_of(model: str) -> Price | None:
    """Return the list price of a model, or None if it is not listed (as models on this machine).

    The name may start with its provider (`openai:gpt-4o-mini`) and end with a date (`gpt-4o-2024-08-06`).
    """
    provider, colon, name = model.strip().partition(":")
    listed = _listed()
    if not colon:
        shelves, name = list(listed.values()), provider
    elif provider in listed:
        shelves = [listed[provider]]
    else:
        return None
    dated = DATED.fullmatch(name)
    for each in (name, dated["model"]) if dated else (name,):
        for shelf in shelves:
            if each in shelf:
                return shelf[each]
    return None


@cache
def _listed() -> Mapping[str, Mapping[str, Price]]:
    import tomllib
    from importlib.resources import files

    text = files("magistrate.engines").joinpath("prices.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)
    return {
        provider: {
            name: Price(each["input"], each["output"], each.get("cached"), part["as_of"])
            for name, each in part["models"].items()
        }
        for provider, part in found.items()
    }
