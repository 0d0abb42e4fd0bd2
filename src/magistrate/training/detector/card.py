"""The card of a detector: what it was made of, what it is worth where it was measured, its limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from magistrate.detectors.folder import Figure, Manifest
from magistrate.types import FAITHFUL, HALLUCINATED

USE = "`magistrate run DATA --judge detector:FOLDER`"
LIMITS = """\
It was trained on English prose, tables and conversations; what it says of other languages and of program
code means nothing. It reads what it is given, and knows nothing of the world beyond it. A score is a
probability at the base rate that is assumed, calibrated on data of its own: on other data
`magistrate calibrate` says what it is worth."""


def card(manifest: Manifest) -> str:
    """The card as Markdown."""
    stages = list(stages_of(manifest.recipe))
    read = sum(stage["tokens"] for stage in stages)
    base = stages[0]["base"]
    return f"""\
# {manifest.name}

A detector for {USE}: an encoder that reads an
output together with its context. It says of each sentence whether the context supports it, contradicts it or
does not hold it, and of each word how probably it is unsupported.

It was made from {base["name"]} in {len(stages)} {"training" if len(stages) == 1 else "trainings"} of \
{read:,} tokens in all; its weights are 8-bit integers. The weights of
{base["name"]} have the sha256 `{base["sha256"]}`.

## Measured

{_measured(manifest.figures)}

## Limits

{LIMITS}

## Data

{chr(10).join(_data(stages[-1]["data"]))}

`detector.json` holds the recipe of every training, the digests of what it read, and its learning curve.
"""


def stages_of(recipe: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The trainings that led to a detector, the first one first."""
    if (before := recipe["base"].get("recipe")) is not None:
        yield from stages_of(before)
    yield recipe


def _measured(figures: tuple[Figure, ...]) -> str:
    if not figures:
        return f"Nothing was measured yet: {USE} does."
    rows = (
        f"| {each.set} | {each.n:,} | {_interval(each.auroc)} | {_interval(each.balanced_accuracy)} | "
        f"{'no' if each.left_out else 'yes'} |"
        for each in figures
    )
    head = "| set | samples | AUROC | balanced accuracy | learnt from its family |"
    return "\n".join((head, "| --- " * 5 + "|", *rows))


def _data(data: Mapping[str, Any]) -> Iterator[str]:
    """Of a mixture how many examples each source has; of labels how many there were."""
    if "examples" not in data:
        yield ", ".join(f"{value:g} {name}" for name, value in data.items())
        return
    counts: dict[str, dict[str, int]] = {}
    for name, count in data["examples"].items():
        source, _, label = name.rpartition(", ")
        counts.setdefault(source, {})[label] = count
    yield "| source | faithful | hallucinated |"
    yield "| --- | --- | --- |"
    for source, of in counts.items():
        yield f"| {source} | {of.get(FAITHFUL, 0):,} | {of.get(HALLUCINATED, 0):,} |"


def _interval(value: tuple[float, float, float]) -> str:
    return f"{value[0]:.3f} [{value[1]:.3f}, {value[2]:.3f}]"
