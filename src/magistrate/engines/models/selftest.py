"""Self-tests of models: log-probabilities that a model must produce, so that a wrong build is an error.

The expected values were computed by transformers in f32 on the same dequantized weights and written to
`selftests.json` by `benchmarks/selftest_values.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

VALUES = "selftests.json"

# Accepted mean and largest difference of a log-probability, in nats. Measured on the models that
# have values: q8 with 8-bit activations .05 to .11 and .20 to .41, without them under .001; f16
# .002 and .006. The importer's wrong Q4_1 is off by 1.1 and 3.1, swapped heads in all layers by 5.2
# and 16, in a single layer by .2 to .65 and .7 to 2.
ALLOWED: Mapping[str, tuple[float, float]] = {"q8": (0.25, 0.9), "f16": (0.1, 0.4)}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Tokens to process and the log-probabilities that must follow.

    `positions` are ascending indices into `tokens`. For each, `ids` are some possible next tokens, the most
    likely first, and `logprobs` their natural log-probabilities. `mean` and `most` limit the mean and the
    largest difference from these, in nats.
    """

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    mean: float
    most: float


def expected(gguf_sha256: str | None, weights: str = "q8") -> SelfTest | None:
    """Return the self-test for the GGUF with that hash, converted with weights q8 or f16, or None."""
    found = None if gguf_sha256 is None else _values().get(gguf_sha256)
    if found is None:
        return None
    mean, most = ALLOWED[weights]
    return SelfTest(
        tokens=tuple(found["tokens"]),
        positions=tuple(found["positions"]),
        ids=tuple(map(tuple, found["ids"])),
        logprobs=tuple(map(tuple, found["logprobs"])),
        mean=mean,
        most=most,
    )


def problem(test: SelfTest, logits: np.ndarray) -> str | None:
    """Return why `logits`, floats `[len(test.positions), vocabulary]`, fail the test; None if they pass."""
    import numpy as np

    logits = np.asarray(logits, dtype=np.float64)
    if logits.ndim != 2 or len(logits) != len(test.positions) or logits.shape[1] <= np.max(test.ids):
        return f"it returned an array of shape {list(logits.shape)} for {len(test.positions)} positions"
    if not np.isfinite(logits).all():
        return f"{np.count_nonzero(~np.isfinite(logits)):,} of its {logits.size:,} logits are not finite"
    wrong = int((logits.argmax(1) != np.array([ids[0] for ids in test.ids])).sum())
    if wrong:
        return f"its likeliest token is wrong at {wrong} of {len(logits)} positions"
    shifted = logits - logits.max(1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    differences = np.abs(np.take_along_axis(logprobs, np.array(test.ids), 1) - np.array(test.logprobs))
    mean, most = float(differences.mean()), float(differences.max())
    if mean > test.mean or most > test.most:
        return (
            f"the error of its log-probabilities is {mean:.3f} on average and {most:.3f} at most; the limits "
            f"are {test.mean} and {test.most}"
        )
    return None


@cache
def _values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files(__package__).joinpath(VALUES).read_text(encoding="utf-8"))
    return found
