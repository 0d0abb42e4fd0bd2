"""The model card of a detector, from its manifest: what it is, what it was made from, what it cannot do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LIMITS = """\
It was trained on English. What barely changes the words of a true text (a relation turned round, a tense) is
missed more often than what brings in new names, numbers or facts. A score is a probability at the base rate
that is assumed, calibrated on held-out contexts of the data below: on other data `magistrate calibrate` says
what it is worth. It reads what it is given, and knows nothing of the world beyond it."""


def card(name: str, told: Mapping[str, Any]) -> str:
    """The card as Markdown."""
    recipe = told["recipe"]
    base = recipe["base"]
    data = "\n".join(f"| {part} | {count:,} |" for part, count in recipe["data"].items())
    figures = "\n".join(
        f"| {part} | {recipe['measured'][part]:,} | {value:.3f} |" for part, value in recipe["auroc"].items()
    )
    return f"""\
# {name}

A detector for `magistrate run DATA --judge detector:FOLDER`: a network that reads an output with its
context and gives each of the output's words the probability that the context does not support it, and the
whole one that it is hallucinated.

Made from {base["name"]} (sha256 `{base["sha256"]}`); weights are 8-bit integers.

## Data

| part | samples |
| --- | --- |
{data}

"Changed" samples are made from faithful ones: wrong by construction at known places, or harmlessly rewritten.

## Found

| samples | n | AUROC |
| --- | --- | --- |
{figures}

## Limits

{LIMITS}

## Recipe

```json
{json.dumps(recipe, indent=2, ensure_ascii=False)}
```
"""
