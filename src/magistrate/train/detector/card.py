"""The model card of a detector, from its manifest: what it is, what it was made from, what it cannot do."""

from __future__ import annotations

import json

from magistrate.detectors.folder import Manifest

LIMITS = """\
It was trained on English prose, tables and conversations; what it says of other languages and of program
code means nothing. It reads what it is given, and knows nothing of the world beyond it. A score is a
probability at the base rate that is assumed, calibrated on data of its own: on other data `magistrate
calibrate` says what it
is worth."""


def card(manifest: Manifest) -> str:
    """The card as Markdown."""
    base = manifest.recipe["base"]
    rows = [
        f"| {name} | {_shown(value)} |"
        for name, value in manifest.recipe["data"].items()
        if name != "mixture"
    ]
    figures = [
        f"| {each.set} | {each.n:,} | {_interval(each.auroc)} | {_interval(each.balanced_accuracy)} | "
        f"{'no' if each.left_out else 'yes'} |"
        for each in manifest.figures
    ]
    measured = (
        "\n".join(
            (
                "| set | n | AUROC | balanced accuracy | its family was learnt from |",
                "| --- " * 5 + "|",
                *figures,
            )
        )
        if figures
        else "Nothing was measured yet: `magistrate run DATA --judge detector:FOLDER` does."
    )
    return f"""\
# {manifest.name}

A detector for `magistrate run DATA --judge detector:FOLDER`: an encoder that reads an output together with
its context. It says of each sentence whether the context supports it, contradicts it or does not hold it,
and of each word how probably it is unsupported.

Made from {base["name"]} (sha256 `{base["sha256"]}`), trained on {manifest.recipe["tokens"]:,} tokens;
weights are 8-bit integers.

## Data

| part | examples |
| --- | --- |
{chr(10).join(rows)}

## Measured

{measured}

## Limits

{LIMITS}

## Recipe

```json {
        json.dumps(
            {key: value for key, value in manifest.recipe.items() if key != "curve"},
            indent=2,
            ensure_ascii=False,
        )
    } ```
"""


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return f"{sum(value.values()):,} of {len(value)} kinds"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _interval(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"
