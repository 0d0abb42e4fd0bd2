"""Probabilities under another share of hallucinated outputs than they were fitted to.

What changes between two batches is taken to be how frequent the hallucinated are, not what they look like
(prior shift): then odds are multiplied by a constant (Elkan 2001), and the share itself can be found from
the probabilities alone (Saerens, Latinne and Decaestecker 2002).
"""

from __future__ import annotations

from collections.abc import Iterable

from magistrate.errors import InputError, SpecError
from magistrate.metrics.calibration import log_odds, sigmoid

EVEN = 0.5
LEAST, MOST = 0.01, 0.99  # no batch is taken to be all of one kind
STEPS, STILL = 1_000, 1e-6  # at most so many rounds, or until a round moves the share by less


def check_base_rate(base_rate: float) -> None:
    """Raise `SpecError` for what is no share between 0 and 1."""
    if not 0 < base_rate < 1:
        raise SpecError(f"a base rate is a share of hallucinated outputs in (0, 1), got {base_rate}")


def shifted_odds(odds: float, base_rate: float, fitted: float = EVEN) -> float:
    """Log-odds that hold where `fitted` of the outputs are hallucinated, where `base_rate` are."""
    return odds + log_odds(base_rate) - log_odds(fitted)


def estimated_base_rate(probabilities: Iterable[float], fitted: float = EVEN) -> float:
    """The share of hallucinated outputs in a batch, by expectation maximization; held within [.01, .99].

    `probabilities` hold where a share `fitted` is hallucinated. It is as good as they are calibrated: the
    probabilities of a judge that ranks at chance say nothing of the share. Raises `InputError` without any.
    """
    odds = [log_odds(each) for each in probabilities]
    if not odds:
        raise InputError("a base rate is estimated from verdicts, and there are none")
    share = fitted
    for _ in range(STEPS):
        before = share
        mean = sum(sigmoid(shifted_odds(each, before, fitted)) for each in odds) / len(odds)
        share = min(max(mean, LEAST), MOST)
        if abs(share - before) < STILL:
            break
    return share
