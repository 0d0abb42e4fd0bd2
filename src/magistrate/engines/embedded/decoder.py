"""Writes a text token by token: picks under a mask, appends forced runs, ends within the budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from magistrate.engines.base import Sampling, TraceStep
from magistrate.engines.embedded.backend import log_softmax
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.errors import ConstraintError

if TYPE_CHECKING:
    from magistrate.constraints.masks import Matcher

SLACK = 16  # tokens kept for the model's own choice of values; with fewer, strings and lists are closed
TRIED = 8  # likeliest tokens tried when the picked one would move the end out of reach
WANTED = 5  # likeliest tokens shown in a trace


class Decoder:
    """The state of one text being written. It never touches the model, it only sees logits.

    Under a constraint the text is always completed within `sampling.max_tokens`. From time to time a dry run
    counts how many tokens would close the text. When few are left to spare, the decoder becomes careful: it
    closes strings and lists, lets the model choose values, and appends only tokens after which a dry run
    still finds an end. If a single token moved the end out of reach, the decoder goes back to where an end
    was last in reach. `steered` says that something else was written than the model wanted.
    """

    def __init__(self, tokenizer: ChatTokenizer, matcher: Matcher | None, sampling: Sampling) -> None:
        self.tokens: list[int] = []
        self.trace: list[TraceStep] = []
        self.forced_count = 0
        self.finished = False
        self.steered = False
        self.kept = 0  # how many tokens the last call of `write` left as they were
        self._tokenizer = tokenizer
        self._matcher = matcher
        self._sampling = sampling
        self._random = np.random.Generator(np.random.Philox(sampling.seed))
        self._look_at = 0
        self._spare = 0
        self._careful = False
        self._prepared = False
        self._looked: tuple[int, int, int, Matcher] | None = None  # state where it just looked ahead
        self._reachable: tuple[int, int, int, Matcher, np.ndarray] | None = None
        self._instead: np.ndarray | None = None  # logits to go on with after going back

    @property
    def done(self) -> bool:
        """Whether nothing more is to be written."""
        return self.finished or (self._matcher is None and self._remaining <= 0)

    @property
    def _remaining(self) -> int:
        return self._sampling.max_tokens - len(self.tokens)

    def begin(self) -> None:
        """Write the tokens that the constraint forces before the model's first choice.

        Raises `ConstraintError` if the constraint cannot be completed within the budget.
        """
        if self._matcher is None:
            return
        if self._matcher.shortest_close(self._remaining) is None:
            raise ConstraintError(
                f"no way to complete the constraint was found within max_tokens={self._sampling.max_tokens}; "
                "allow more tokens"
            )
        self._append_forced(self._matcher)

    def prepare(self) -> Matcher | None:
        """Look ahead while the logits are computed; returns the matcher whose mask `write` will need."""
        if not self._prepared:
            self._prepared = True
            if self._matcher is not None and not self._careful and len(self.tokens) >= self._look_at:
                self._look_ahead(self._matcher)
        return self._matcher

    def write(self, logits: np.ndarray) -> None:
        """Append one token chosen from `logits` `[vocabulary]`, and the run that it forces."""
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

    # --- the end in time ----------------------------------------------------------------------------

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
        """The picked token if the end stays in reach after it, else the likeliest token that leaves it so."""
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
            # One token of it only: the next choice may be the model's again.
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
        """A token that the mask allows, and the mask where it was needed."""
        sampling, matcher = self._sampling, self._matcher
        if sampling.temperature == 0 and not sampling.trace:
            likeliest = int(logits.argmax())
            if matcher is None or matcher.allows(likeliest):
                return likeliest, None
        mask = None if matcher is None else matcher.mask()
        allowed = logits if mask is None else np.where(mask, logits, -np.inf)
        return (int(allowed.argmax()) if sampling.temperature == 0 else self._draw(allowed)), mask

    def _draw(self, allowed: np.ndarray) -> int:
        """Sample a token from logits, in which tokens that are not allowed are minus infinity."""
        sampling = self._sampling
        with np.errstate(over="ignore"):  # a tiny temperature: all but the likeliest become impossible
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
