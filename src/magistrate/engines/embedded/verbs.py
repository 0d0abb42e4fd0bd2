"""The three verbs as programs for the scheduler; each starts from a prompt that is in the cache.

Rows of one token use another attention kernel than longer rows, with different last bits. So a given text
is never processed in rows of one token, and generated text is always computed in the same rows. The same
question then gets the same answer, whatever else is in the batch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from magistrate.engines.base import Capture, Captured, Sampling, TraceStep
from magistrate.engines.embedded.backend import Row, RowOutput
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.embedded.prefix_cache import BLOCK, blocks_for
from magistrate.engines.embedded.scheduler import ForwardRequest, Prefilled, chunks
from magistrate.errors import ConstraintError
from magistrate.types import Usage

if TYPE_CHECKING:
    from magistrate.constraints.masks import Matcher


SPELLINGS_AT_ONCE = 32  # partial spellings that are computed in one forward pass
SPELLINGS_LEFT = 1e-6  # largest share of the found probability that unfinished spellings may still have

Path = tuple[int, ...]


class PathScores(NamedTuple):
    """The log-probability of every path in nats, the usage, and the state where the answer begins."""

    totals: list[float]
    usage: Usage
    captured: Captured | None


class TokenScores(NamedTuple):
    """The log-probability of every token of a text, float64 `[n]` in nats, the usage, and captured state."""

    logprobs: np.ndarray
    usage: Usage
    captured: Captured | None


@dataclass(frozen=True, slots=True)
class Decoded:
    """The tokens that `generate` produced, and how it ended."""

    tokens: Path
    finished: bool
    steered: bool
    usage: Usage
    trace: tuple[TraceStep, ...]


# --- choose ---------------------------------------------------------------------------------------


def choose(
    prefilled: Prefilled, paths: Sequence[Path], capture: Capture | None = None
) -> Generator[ForwardRequest, list[RowOutput], PathScores]:
    """Score token paths after the prompt, in one forward pass over the tree that they form."""
    state = None if capture is None else captured(prefilled.last, capture)
    first = prefilled.last.logits[0]
    normalizer = log_sum_exp(first)
    totals = [float(first[path[0]]) - normalizer for path in paths]
    usage = Usage(calls=1, prompt=prefilled.sequence.length, cached=prefilled.cached)
    tree = leaves(paths)
    pool = prefilled.backend.pool
    forks = [pool.fork(prefilled.sequence, prefilled.sequence.length) for _ in tree]
    try:
        if tree:
            # The last token is repeated so that no row has one token. Its prediction is not used.
            rows = [
                Row(fork, [*leaf, leaf[-1]], range(len(leaf))) for fork, leaf in zip(forks, tree, strict=True)
            ]
            outputs = yield ForwardRequest(rows)
            found = {
                leaf[:length]: output.logits
                for leaf, output in zip(tree, outputs, strict=True)
                for length in range(1, len(leaf) + 1)
            }
            for index, path in enumerate(paths):
                if len(path) > 1:
                    totals[index] += float(logprobs(found[path[:-1]][: len(path) - 1], path[1:]).sum())
        return PathScores(totals, usage, state)
    finally:
        for fork in forks:
            pool.drop(fork)


def leaves(paths: Sequence[Path]) -> list[Path]:
    """Return the token sequences to process for scoring all `paths`; none is a prefix of another."""
    needed = sorted({path[:-1] for path in paths if len(path) > 1})
    return [
        each
        for each, following in zip(needed, [*needed, ()][1:], strict=True)
        if following[: len(each)] != each
    ]


def blocks_to_choose(prompt: int, paths: Sequence[Path]) -> int:
    """Return how many blocks `choose` needs after `prompt` tokens; branches share only full blocks."""
    branches = sum(blocks_for(prompt + len(leaf) + 1) - prompt // BLOCK for leaf in leaves(paths))
    return blocks_for(prompt) + branches


# --- choose over every way to spell an option -----------------------------------------------------


class Spellings:
    """Finds the tokens that can begin the rest of a text; `vocabulary` maps each token's bytes to its id."""

    def __init__(self, vocabulary: Mapping[bytes, int]) -> None:
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary))

    def steps(self, text: bytes, at: int) -> list[tuple[int, int]]:
        """Return the tokens that spell `text[at:end]`, as pairs `(token, end)`."""
        ends = range(at + 1, min(len(text), at + self._longest) + 1)
        return [(self._vocabulary[text[at:end]], end) for end in ends if text[at:end] in self._vocabulary]


def choose_all(
    prefilled: Prefilled,
    texts: Sequence[bytes],
    ends: Sequence[int | None],
    spellings: Spellings,
    capture: Capture | None = None,
) -> Generator[ForwardRequest, list[RowOutput], PathScores]:
    """Compute each text's log-probability over all its spellings, each followed by its token of `ends`.

    A model can write `hallucinated` in hundreds of ways. The tokenizer's own has nearly all the
    probability; this function measures how nearly. Partial spellings are followed in the order of their
    probability, until the rest together have less than `SPELLINGS_LEFT` of what was found.
    """
    state = None if capture is None else captured(prefilled.last, capture)
    pool = prefilled.backend.pool
    found = [0.0] * len(texts)
    left: list[tuple[float, Path, int, int]] = []  # minus log-probability, tokens so far, text, place in it

    def follow(output: RowOutput, score: float, path: Path, text: int, at: int) -> None:
        row = output.logits[-1]
        normalizer = log_sum_exp(row)
        end = ends[text]
        if at == len(texts[text]):
            assert end is not None
            found[text] += math.exp(score + float(row[end]) - normalizer)
            return
        for token, after in spellings.steps(texts[text], at):
            total = score + float(row[token]) - normalizer
            if after == len(texts[text]) and end is None:
                found[text] += math.exp(total)
            else:
                heapq.heappush(left, (-total, (*path, token), text, after))

    for index in range(len(texts)):
        follow(prefilled.last, 0.0, (), index, 0)
    while left and math.fsum(math.exp(-each[0]) for each in left) > SPELLINGS_LEFT * math.fsum(found):
        chosen = [heapq.heappop(left) for _ in range(min(SPELLINGS_AT_ONCE, len(left)))]
        forks = [pool.fork(prefilled.sequence, prefilled.sequence.length) for _ in chosen]
        try:
            # The last token is repeated so that no row has one token.
            rows = [
                Row(fork, [*path, path[-1]], range(len(path) - 1, len(path)))
                for fork, (_, path, _, _) in zip(forks, chosen, strict=True)
            ]
            for output, (score, path, text, at) in zip((yield ForwardRequest(rows)), chosen, strict=True):
                follow(output, -score, path, text, at)
        finally:
            for fork in forks:
                pool.drop(fork)
    usage = Usage(calls=1, prompt=prefilled.sequence.length, cached=prefilled.cached)
    return PathScores([math.log(each) if each else -math.inf for each in found], usage, state)


def blocks_to_choose_all(prompt: int, texts: Sequence[bytes]) -> int:
    """Return how many blocks `choose_all` needs for a prompt of `prompt` tokens."""
    longest = max(map(len, texts)) + 1
    return blocks_for(prompt) + SPELLINGS_AT_ONCE * (blocks_for(prompt + longest) - prompt // BLOCK)


# --- likelihood and generate ----------------------------------------------------------------------


def likelihood(
    prefilled: Prefilled, text: Path, capture: Capture | None = None
) -> Generator[ForwardRequest, list[RowOutput], TokenScores]:
    """Score every token of `text` after the prompt; captures one position more than the text has tokens."""
    usage = Usage(calls=1, prompt=prefilled.sequence.length + len(text), cached=prefilled.cached)
    scores = [logprobs(prefilled.last.logits, text[:1])]
    states = [] if capture is None else [captured(prefilled.last, capture)]
    # The last token is processed too, so that a short text is not a row of one token.
    for start, end in chunks(0, len(text)) if len(text) > 1 or capture is not None else ():
        given = [*text[start:end]] if len(text) > 1 else [text[0]] * 2
        scored = text[start + 1 : end + 1]
        wanted = range(len(scored) if capture is None else end - start)
        (output,) = yield ForwardRequest([Row(prefilled.sequence, given, wanted, capture)])
        scores.append(logprobs(output.logits[: len(scored)], scored))
        if capture is not None:
            states.append(captured(output, capture))
    return TokenScores(np.concatenate(scores), usage, joined(states) if states else None)


def generate(prefilled: Prefilled, decoder: Decoder) -> Generator[ForwardRequest, list[RowOutput], Decoded]:
    """Run `decoder` until it is done, giving it the logits after every run of tokens that it appends.

    The prefilled prompt ends with the tokens that the decoder had already written.
    """
    pool, sequence = prefilled.backend.pool, prefilled.sequence
    given = sequence.length - len(decoder.tokens)
    logits = prefilled.last.logits[0]
    while True:
        decoder.write(logits)
        if decoder.done:
            cached = min(prefilled.cached, given)
            usage = Usage(1, given, cached, len(decoder.tokens), decoder.forced_count)
            return Decoded(
                tuple(decoder.tokens), decoder.finished, decoder.steered, usage, tuple(decoder.trace)
            )
        pool.truncate(sequence, given + decoder.kept)
        following = decoder.tokens[decoder.kept :]
        row = Row(sequence, following, range(len(following) - 1, len(following)))
        (output,) = yield ForwardRequest([row], decoder.prepare)
        logits = output.logits[0]


# --- numbers from logits --------------------------------------------------------------------------


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return natural log-probabilities, float64, of logits `[..., vocabulary]`."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


def log_sum_exp(logits: np.ndarray) -> float:
    """Return the natural logarithm of the sum of the exponentials of logits `[vocabulary]`.

    Computed in float32 except for the sum, and exact to about 1e-7. In float64 the probabilities of a long
    text would take as long as its forward pass.
    """
    top = logits.max()
    return float(top) + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))


def logprobs(logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """Return each token's log-probability under its row of `logits` `[n, vocabulary]`: float64, in nats."""
    return np.array([float(row[token]) - log_sum_exp(row) for row, token in zip(logits, tokens, strict=True)])


def captured(output: RowOutput, capture: Capture) -> Captured:
    """Return the state that `capture` selects, at every position of `output`."""
    n, vocabulary = output.logits.shape
    top = min(capture.top, vocabulary)
    tokens, likeliest, entropies = np.empty((n, top), np.int32), np.empty((n, top)), np.empty(n)
    for index, row in enumerate(output.logits):
        scores = log_softmax(row)
        entropies[index] = -(np.exp(scores) * scores).sum()
        if top:
            best = np.argpartition(-scores, top - 1)[:top]
            best = best[np.lexsort((best, -scores[best]))]
            tokens[index], likeliest[index] = best, scores[best]
    hidden = output.hidden.copy() if capture.hidden and output.hidden is not None else None
    attention = output.attention.copy() if capture.attention and output.attention is not None else None
    return Captured(tokens, likeliest, entropies, hidden, attention)


def joined(parts: Sequence[Captured]) -> Captured:
    """Concatenate captures of consecutive positions."""
    hidden = [part.hidden for part in parts if part.hidden is not None]
    attention = [part.attention for part in parts if part.attention is not None]
    return Captured(
        np.concatenate([part.top_tokens for part in parts]),
        np.concatenate([part.top_logprobs for part in parts]),
        np.concatenate([part.entropies for part in parts]),
        np.concatenate(hidden) if hidden else None,
        _padded_attention(attention) if attention else None,
    )


def _padded_attention(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate attention `[layers, heads, n, read]` of consecutive parts, padded to the longest `read`."""
    read = max(part.shape[3] for part in parts)
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, 0), (0, 0), (0, read - part.shape[3]))) for part in parts], axis=2
    )


# --- generating a text ----------------------------------------------------------------------------

SLACK = 16  # tokens reserved for the model's own choice of values; with fewer, strings and lists are closed
TRIED = 8  # most likely tokens tried when the picked one would move the end out of reach
WANTED = 5  # most likely tokens shown in a trace


class Decoder:
    """The state of one text being generated. It sees only logits, never the model.

    Under a constraint the text is always completed within `sampling.max_tokens`. From time to time a dry
    run counts how many tokens would close the text. When few are left to spare, the decoder becomes
    careful: it closes strings and lists, lets the model choose values, and appends only tokens after which
    a dry run still finds an end. If a single token moved the end out of reach, the decoder returns to where
    an end was last in reach. `steered` is True if something other than the model's choice was written.
    """

    def __init__(self, tokenizer: ChatTokenizer, matcher: Matcher | None, sampling: Sampling) -> None:
        self.tokens: list[int] = []
        self.trace: list[TraceStep] = []
        self.forced_count = 0
        self.finished = False
        self.steered = False
        self.kept = 0  # how many tokens the last call of `write` left unchanged
        self._tokenizer = tokenizer
        self._matcher = matcher
        self._sampling = sampling
        self._random = np.random.Generator(np.random.Philox(sampling.seed))
        self._look_at = 0
        self._spare = 0
        self._careful = False
        self._prepared = False
        self._looked: tuple[int, int, int, Matcher] | None = None  # state at the last successful look-ahead
        self._reachable: tuple[int, int, int, Matcher, np.ndarray] | None = None
        self._instead: np.ndarray | None = None  # logits to continue with after going back

    @property
    def done(self) -> bool:
        """Whether the text is complete or the budget is spent."""
        return self.finished or (self._matcher is None and self._remaining <= 0)

    @property
    def _remaining(self) -> int:
        return self._sampling.max_tokens - len(self.tokens)

    def begin(self) -> None:
        """Append the tokens that the constraint forces before the model's first choice.

        Raises `ConstraintError` if the constraint cannot be completed within the budget.
        """
        if self._matcher is None:
            return
        if self._matcher.shortest_close(self._remaining) is None:
            raise ConstraintError(
                f"the constraint cannot be completed within max_tokens={self._sampling.max_tokens}; allow "
                "more tokens"
            )
        self._append_forced(self._matcher)

    def prepare(self) -> Matcher | None:
        """Look ahead while the logits are computed; return the matcher whose mask `write` will need."""
        if not self._prepared:
            self._prepared = True
            if self._matcher is not None and not self._careful and len(self.tokens) >= self._look_at:
                self._look_ahead(self._matcher)
        return self._matcher

    def write(self, logits: np.ndarray) -> None:
        """Append one token chosen from `logits` `[vocabulary]`, and the tokens that it forces."""
        self.prepare()
        self._prepared = False
        if self._instead is not None:
            logits, self._instead = self._instead, None
        if self._looked is not None:
            self._reachable, self._looked = (*self._looked, logits.copy()), None
        self.kept = len(self.tokens)
        self._write_token(logits)
        if self._matcher is not None and self._remaining < 0:
            self._write_token(self._go_back())

    def _write_token(self, logits: np.ndarray) -> None:
        matcher = self._matcher
        token, mask = self._pick(logits)
        if matcher is not None and self._careful:
            token = self._in_reach(matcher, logits, matcher.mask() if mask is None else mask, token)
        if token in self._tokenizer.ends:
            self.finished = True
            return
        self._append(token, logits, mask)
        if matcher is not None:
            matcher.consume([token])
            self._append_forced(matcher)

    # --- ending in time --------------------------------------------------------------------------------

    def _look_ahead(self, matcher: Matcher) -> None:
        """Check that the end is in reach, and decide when to look again: halfway to where it may not be."""
        path = matcher.shortest_close(self._remaining)
        if path is None:
            self._instead = self._go_back()
            return
        self._spare = self._remaining - len(path)
        self._careful = self._spare < SLACK
        self._look_at = len(self.tokens) + max(1, (self._spare - SLACK) // 2)
        if not self._careful:
            self._looked = (len(self.tokens), self.forced_count, self._spare, matcher.fork())

    def _go_back(self) -> np.ndarray:
        assert self._reachable is not None  # `begin` found an end, and a careful decoder never loses it
        length, self.forced_count, self._spare, self._matcher, logits = self._reachable
        del self.tokens[length:]
        del self.trace[length:]
        self.kept = length
        self.finished = False
        self._careful = self.steered = True
        return logits

    def _in_reach(self, matcher: Matcher, logits: np.ndarray, mask: np.ndarray, picked: int) -> int:
        """Return the picked token if the end stays in reach, else the most likely token that allows it."""
        chosen = None
        for token in self._candidates(matcher, logits, mask, picked):
            if token in self._tokenizer.ends:
                chosen = token
                break
            fork = matcher.fork()
            fork.consume([token])
            if (path := fork.shortest_close(self._remaining - 1)) is not None:
                chosen, self._spare = token, self._remaining - 1 - len(path)
                break
        if chosen is None:
            path = matcher.shortest_close(self._remaining)
            if path is None:
                raise ConstraintError(
                    f"the constraint could not be completed within {self._sampling.max_tokens} tokens"
                )
            # Only one token of it: the model may choose again after that.
            chosen = path[0] if path else self._tokenizer.ends[0]
        self.steered |= chosen != picked
        return chosen

    def _candidates(
        self, matcher: Matcher, logits: np.ndarray, mask: np.ndarray, picked: int
    ) -> Iterator[int]:
        closing = self._spare < SLACK and matcher.closes_structure(mask)
        if not closing or self._tokenizer.show(picked).strip('"]}') == "":
            yield picked
        if closing:
            yield matcher.closer(mask)
            return
        allowed = np.flatnonzero(mask)
        for index in np.argsort(-logits[allowed], kind="stable")[:TRIED]:
            if allowed[index] != picked:
                yield int(allowed[index])

    # --- picking and appending ----------------------------------------------------------------------

    def _pick(self, logits: np.ndarray) -> tuple[int, np.ndarray | None]:
        """Return a token that the mask allows, and the mask if it was computed."""
        sampling, matcher = self._sampling, self._matcher
        if sampling.temperature == 0 and not sampling.trace:
            likeliest = int(logits.argmax())
            if matcher is None or matcher.allows(likeliest):
                return likeliest, None
        mask = None if matcher is None else matcher.mask()
        allowed = logits if mask is None else np.where(mask, logits, -np.inf)
        return (int(allowed.argmax()) if sampling.temperature == 0 else self._draw(allowed)), mask

    def _draw(self, allowed: np.ndarray) -> int:
        """Sample a token from logits in which disallowed tokens are minus infinity."""
        sampling = self._sampling
        with np.errstate(over="ignore"):  # at a tiny temperature all but the most likely become impossible
            weights = np.exp((allowed.astype(np.float64) - allowed.max()) / sampling.temperature)
        kept = weights >= sampling.min_p
        if sampling.top_p < 1:
            order = np.argsort(-weights, kind="stable")
            before = np.cumsum(weights[order]) - weights[order]
            kept[order] &= before < sampling.top_p * weights.sum()
        running = np.cumsum(np.where(kept, weights, 0.0))
        return int(np.searchsorted(running, self._random.random() * running[-1], side="right"))

    def _append_forced(self, matcher: Matcher) -> None:
        for token in matcher.forced():
            self.forced_count += 1
            self._append(token, None, None)
        self.finished = matcher.stopped

    def _append(self, token: int, logits: np.ndarray | None, mask: np.ndarray | None) -> None:
        """Add a token; without `logits` it was forced and the model was not asked."""
        if self._sampling.trace:
            wanted: tuple[tuple[str, float], ...] = ()
            removed = 0.0
            if logits is not None:
                probabilities = np.exp(log_softmax(logits))
                likeliest = np.argsort(-probabilities, kind="stable")[:WANTED]
                wanted = tuple(
                    (self._tokenizer.show(int(each)), float(probabilities[each])) for each in likeliest
                )
                removed = 0.0 if mask is None else min(float(probabilities[~mask].sum()), 1.0)
            so_far = self._tokenizer.decode(self.tokens)
            self.trace.append(TraceStep(so_far, wanted, removed, self._tokenizer.show(token), logits is None))
        self.tokens.append(token)
