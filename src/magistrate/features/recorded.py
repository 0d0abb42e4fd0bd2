"""How sure a generator was of what it wrote, by the log-probabilities that it recorded itself.

They stand in a sample's metadata under `logprobs`: a list of numbers, or of objects with `token` and
`logprob` as OpenAI's chat completions have them (there also inside `content`), or the object of its older
completions with `tokens` and `token_logprobs`. All of it may be written as JSON, as it is in a cell of a CSV.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, inf, log
from typing import Any

from magistrate.errors import InputError
from magistrate.features.reading import Reading, undefined
from magistrate.types import Sample, Span

KEY = "logprobs"
LISTED = 5  # tokens that are named
EVEN = log(0.5)
LOWEST = -1e6  # nats; what generators write for a token that cannot be is far above it
SLACK = 1e-3  # above 0: servers round, and a probability of 1 may come back as a little more


@dataclass(frozen=True, slots=True)
class Recorded:
    """Log-probabilities in nats, one a token, and where each token stands in the output.

    `offsets` are half-open and in characters; None where no tokens were recorded, or where they are not
    the output's.
    """

    logprobs: tuple[float, ...]
    offsets: tuple[tuple[int, int], ...] | None

    @property
    def mean(self) -> float:
        """The mean of a token, in nats, at most 0."""
        return fsum(self.logprobs) / len(self.logprobs)

    @property
    def least(self) -> float:
        """That of the least probable token, in nats."""
        return min(self.logprobs)

    @property
    def perplexity(self) -> float:
        """exp(-mean), at least 1; infinite beyond what a float holds is cut to the largest one."""
        return exp(min(-self.mean, 700.0))

    @property
    def doubt(self) -> float:
        """1 - exp(mean), in [0, 1]: one minus the geometric mean of the tokens' probabilities."""
        return 1 - exp(self.mean)

    def placed(self) -> list[tuple[int, int, float]]:
        """Every token that stands somewhere in the output, with its log-probability."""
        pairs = zip(self.offsets or (), self.logprobs, strict=False)
        return [(start, end, each) for (start, end), each in pairs if start < end]

    def least_probable(self, output: str, most: int = LISTED) -> list[tuple[int, int, float]]:
        """The least probable tokens of an even chance at most, in the order in which they stand."""
        doubtful = [each for each in self.placed() if each[2] <= EVEN and output[each[0] : each[1]].strip()]
        return sorted(sorted(doubtful, key=lambda each: each[2])[:most])

    def signals(self) -> dict[str, float]:
        """All figures by name."""
        return {
            "recorded_logprob_mean": self.mean,
            "recorded_logprob_least": self.least,
            "recorded_perplexity": self.perplexity,
        }


def recorded_logprobs(sample: Sample) -> Recorded:
    """What is recorded in the sample's metadata.

    Raises `InputError`, which says what is wrong, where nothing is there or something else than numbers.
    """
    where = f"sample {sample.id!r}: metadata[{KEY!r}]"
    if KEY not in sample.metadata:
        raise InputError(f"{where} is not there; it holds the generator's own log-probabilities")
    tokens, numbers, first = _columns(_decoded(sample.metadata[KEY]), where)
    if len(numbers) <= first:
        raise InputError(f"{where} is empty")
    logprobs = tuple(_number(each, at, where) for at, each in enumerate(numbers) if at >= first)
    offsets = None if tokens is None else _offsets(tokens, sample.output or "")
    return Recorded(logprobs, None if offsets is None else offsets[first:])


def _decoded(given: Any) -> Any:
    """The list or the object that a text is in JSON; anything else as it is."""
    try:
        found = json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given
    return found if isinstance(found, list | dict) else given


def _columns(given: Any, where: str) -> tuple[Sequence[Any] | None, Sequence[Any], int]:
    """Tokens, where there are any, their numbers, and which is the first that has one."""
    if isinstance(given, Mapping) and "token_logprobs" in given:
        tokens, numbers = given.get("tokens"), given["token_logprobs"]
        if not _is_list(numbers) or (tokens is not None and not _is_list(tokens)):
            raise InputError(f"{where} must hold lists as tokens and token_logprobs")
        if tokens is not None and len(tokens) != len(numbers):
            raise InputError(f"{where} has {len(tokens)} tokens and {len(numbers)} log-probabilities")
        # The first token of a text has nothing before it.
        return tokens, numbers, 1 if numbers and numbers[0] is None else 0
    if isinstance(given, Mapping) and "content" in given:
        given = given["content"]
    if not _is_list(given):
        raise InputError(
            f"{where} must be a list of numbers or of objects with 'token' and 'logprob', "
            f"got {type(given).__name__}"
        )
    if not any(isinstance(each, Mapping) for each in given):
        return None, given, 0
    for at, each in enumerate(given):
        if not isinstance(each, Mapping) or "logprob" not in each:
            raise InputError(f"{where}[{at}] has no 'logprob'")
    tokens = [each.get("token") for each in given]
    return tokens, [each["logprob"] for each in given], 0


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _number(value: Any, at: int, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -inf < value < inf:
        raise InputError(f"{where}[{at}] must be a finite number, got {value!r}")
    if value < LOWEST:
        raise InputError(f"{where}[{at}] is below {LOWEST:,.0f}, which is the logarithm of no probability")
    if value > SLACK:
        raise InputError(
            f"{where}[{at}] is {value}: the logarithm of a probability is not above 0; "
            "are these probabilities?"
        )
    return min(float(value), 0.0)


def _offsets(tokens: Sequence[Any], output: str) -> tuple[tuple[int, int], ...] | None:
    """Where the tokens stand, if joined they are the output but for white space at its ends."""
    if not all(isinstance(token, str) for token in tokens):
        return None
    joined = "".join(tokens)
    if joined.strip() != output.strip():
        return None
    at = (len(output) - len(output.lstrip())) - (len(joined) - len(joined.lstrip()))
    found = []
    for token in tokens:
        start, at = at, at + len(token)
        found.append((min(max(start, 0), len(output)), min(max(at, 0), len(output))))
    return tuple(found)


def recorded_logprob(sample: Sample) -> Reading:
    """How unsure the generator was: 1 - exp(mean log-probability), in [0, 1], with its least probable tokens.

    The value is None, with the reason, where nothing is recorded or where it is malformed.
    """
    try:
        found = recorded_logprobs(sample)
    except InputError as error:
        return undefined(str(error))
    spans = tuple(Span(start, end) for start, end, _ in found.least_probable(sample.output or ""))
    told = f"{found.mean:.2f} nats a token on average, {found.least:.2f} the least"
    return Reading(found.doubt, spans, told)
