"""Which labels of a foreign classifier mean hallucinated."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magistrate.errors import SpecError

if TYPE_CHECKING:
    import numpy as np

HALLUCINATED = frozenset(
    (
        *("hallucinated", "hallucination", "hallucinatory", "unfaithful", "inconsistent", "unsupported"),
        *("not_supported", "ungrounded", "not_grounded", "contradiction", "contradictory", "contradicted"),
        *("contradicts", "refuted", "refutes", "not_entailment", "not_entailed", "non_entailment", "neutral"),
        *("fabricated", "incorrect", "not_enough_info", "baseless", "fail"),
    )
)
FAITHFUL = frozenset(
    (
        *("faithful", "consistent", "supported", "supports", "grounded", "entailment", "entailed", "entails"),
        *("correct", "factual", "not_hallucinated", "no_hallucination", "non_hallucinated", "pass"),
    )
)
OUTSIDE = "o"  # of a token that belongs to nothing, in tags such as O, B-hallucination, I-hallucination
ADVICE = (
    "say which labels mean hallucinated, positive=NAME (several with +), or "
    "which mean faithful, negative=NAME"
)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The classes that mean hallucinated, by number; with `turned` those that mean faithful.

    `several` says that classes do not exclude each other, as with one class alone: each has its own sigmoid.
    """

    classes: tuple[int, ...]
    turned: bool
    several: bool

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """The probability of hallucinated, float64 `[…]`, of logits `[…, classes]`."""
        import numpy as np

        logits = np.asarray(logits, dtype=np.float64)
        if self.several:
            each = 1 / (1 + np.exp(-np.clip(logits, -700, 700)))
            whole = each[..., list(self.classes)].max(-1)
        else:
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            whole = (weights / weights.sum(-1, keepdims=True))[..., list(self.classes)].sum(-1)
        found: np.ndarray = np.clip(1 - whole if self.turned else whole, 0.0, 1.0)
        return found


def meaning(
    labels: Mapping[int, str],
    *,
    positive: Sequence[str] = (),
    negative: Sequence[str] = (),
    several: bool = False,
    tokens: bool = False,
) -> Meaning:
    """What the labels of a model (by number) mean.

    Where neither `positive` nor `negative` says it, labels are read by their names; with `tokens` they may be
    tags such as `B-hallucination` and `O`. Raises `SpecError` with the labels where that is not plain.
    """
    named = {name: number for number, name in labels.items()}
    listed = ", ".join(labels[number] for number in sorted(labels))
    if positive and negative:
        raise SpecError(f"give positive or negative, not both; the labels are {listed}")
    given = positive or negative
    if missing := [name for name in given if name not in named]:
        raise SpecError(f"the model has no label {missing[0]!r}; its labels are {listed}")
    if len(given) == len(labels) > 1:
        raise SpecError(f"not all labels can mean the same; the labels are {listed}")
    several = several or len(labels) == 1
    if given:
        return Meaning(tuple(sorted(named[name] for name in given)), bool(negative), several)
    sides = {number: _side(name, tokens) for number, name in labels.items()}
    wrong = tuple(sorted(number for number, side in sides.items() if side))
    if None in sides.values() or (len(labels) > 1 and len(wrong) in (0, len(labels))):
        raise SpecError(f"the model's labels ({listed}) do not say which means hallucinated; {ADVICE}")
    if not wrong:
        return Meaning(tuple(labels), True, several)  # one class alone, of faithful outputs
    return Meaning(wrong, False, several)


def _side(name: str, tokens: bool) -> bool | None:
    """True for hallucinated, False for faithful, None for a name that says neither."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    if tokens:
        if plain == OUTSIDE:
            return False
        plain = re.sub(r"^[bilesu]_", "", plain)
    if plain in FAITHFUL:
        return False
    return True if plain in HALLUCINATED else None
