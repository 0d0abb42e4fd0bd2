"""Writes a text token by token: picks under the mask, appends forced runs, steers to the end in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from magistrate.engines.base import Sampling, TraceStep
from magistrate.engines.local.chat import ChatTokenizer
from magistrate.errors import ConstraintError

if TYPE_CHECKING:
    from magistrate.constraints.masks import Matcher

SLACK = 16  # tokens left to the model's own choices when steering to the end begins
TRIED = 8  # likeliest tokens tried while steering before the dry run's own path is taken
WANTED = 5  # likeliest tokens shown in a trace


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log-probabilities in float64 of logits `[..., vocabulary]`."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


class Pen:
    """The state of one text being written; it never touches the model, only sees logits.

    Under a constraint the text is always completed within `sampling.max_tokens`. From time to time a
    dry run asks how many tokens would close the text. When less than that and some slack is left,
    the end is steered: strings and lists are closed, the model goes on choosing values, and each
    choice must leave the end in reach. Where one token moved the end out of reach, what was written
    since it last was in reach is forgotten. `steered` says that any of this happened.
    """

    def __init__(self, tokenizer: ChatTokenizer, matcher: Matcher | None, sampling: Sampling) -> None:
        self.tokens: list[int] = []
        self.trace: list[TraceStep] = []
        self.forced_count = 0
        self.finished = False
        self.steered = False
        self.went_back = False
        self._tokenizer = tokenizer
        self._matcher = matcher
        self._sampling = sampling
        self._random = np.random.Generator(np.random.Philox(sampling.seed))
        self._look_at = 0
        self._reachable: tuple[int, int, Matcher] | None = None

    @property
    def done(self) -> bool:
        """Nothing more is to be written."""
        return self.finished or (self._matcher is None and self._remaining <= 0)

    @property
    def _remaining(self) -> int:
        return self._sampling.max_tokens - len(self.tokens)

    def begin(self) -> None:
        """Write what the constraint fixes before the model has any say.

        Raises `ConstraintError` where no way to the end fits the budget.
        """
        if self._matcher is None:
            return
        if self._matcher.shortest_close(self._remaining) is None:
            raise ConstraintError(
                f"no way to complete the constraint was found within max_tokens={self._sampling.max_tokens}; "
                "allow more tokens"
            )
        self._look_ahead(self._matcher)
        self._append_forced(self._matcher)

    def write(self, logits: np.ndarray) -> None:
        """Append one token chosen from `logits` `[vocabulary]`, and the run that it forces."""
        self.went_back = False
        if self._matcher is None:
            token = self._pick(logits, None)
            self.finished = token in self._tokenizer.ends
            if not self.finished:
                self._append(token, logits, None)
            return
        if not self.steered and len(self.tokens) >= self._look_at:
            self._look_ahead(self._matcher)
            if self.went_back:
                return
        mask = self._matcher.mask()
        token = self._steer(self._matcher, logits, mask) if self.steered else self._pick(logits, mask)
        if self.finished or token in self._tokenizer.ends:
            self.finished = True
            return
        self._matcher.consume([token])
        self._append(token, logits, mask)
        self._append_forced(self._matcher)

    # --- the end in time ----------------------------------------------------------------------------

    def _look_ahead(self, matcher: Matcher) -> None:
        """See whether the end is in reach, and say when to look again: halfway to where it might not be."""
        path = matcher.shortest_close(max(self._remaining, 0))
        spare = self._remaining - len(path) if path is not None else -1
        if spare >= SLACK or (path is not None and self._reachable is None):
            self._reachable = (len(self.tokens), self.forced_count, matcher.fork())
            self._look_at = len(self.tokens) + max(1, (spare - SLACK) // 2)
        if spare < SLACK:
            self.steered = True
            if spare < 0:
                self._go_back()

    def _go_back(self) -> None:
        assert self._reachable is not None
        length, self.forced_count, matcher = self._reachable
        del self.tokens[length:]
        del self.trace[length:]
        self._matcher = matcher.fork()
        self.went_back = True

    def _steer(self, matcher: Matcher, logits: np.ndarray, mask: np.ndarray) -> int:
        """A token that leaves the end in reach; finishes the text itself where only one way is left."""
        if matcher.accepting:
            self.finished = True
            return -1
        if matcher.closes_structure(mask):
            order = [matcher.closer(mask)]
        else:
            masked = np.where(mask, logits, -np.inf)
            order = [int(token) for token in np.argsort(-masked, kind="stable")[:TRIED] if mask[token]]
        for token in order:
            trial = matcher.fork()
            trial.consume([token])
            if trial.shortest_close(self._remaining - 1) is not None:
                return token
        path = matcher.shortest_close(self._remaining)
        if path is None:
            raise ConstraintError(
                f"the constraint could not be completed within {self._sampling.max_tokens} tokens"
            )
        for token in path:
            self._append(token, None, None)
        self.finished = True
        return -1

    # --- picking and appending ----------------------------------------------------------------------

    def _pick(self, logits: np.ndarray, mask: np.ndarray | None) -> int:
        sampling = self._sampling
        allowed = logits if mask is None else np.where(mask, logits, -np.inf)
        if sampling.temperature == 0:
            return int(np.argmax(allowed))
        probabilities = np.exp(log_softmax(allowed / sampling.temperature))
        order = np.argsort(-probabilities, kind="stable")
        ranked = probabilities[order]
        kept = (np.cumsum(ranked) - ranked < sampling.top_p) & (ranked >= sampling.min_p * ranked[0])
        ranked = np.where(kept, ranked, 0.0)
        return int(order[self._random.choice(len(order), p=ranked / ranked.sum())])

    def _append_forced(self, matcher: Matcher) -> None:
        for token in matcher.forced():
            self.forced_count += 1
            self._append(token, None, None)
        # A run that overshoots the budget is taken back by the next look ahead.
        self.finished = matcher.stopped and self._remaining >= 0

    def _append(self, token: int, logits: np.ndarray | None, mask: np.ndarray | None) -> None:
        """Add a token; without `logits` it was the only way on and the model was not asked."""
        if self._sampling.trace:
            wanted: tuple[tuple[str, float], ...] = ()
            removed = 0.0
            if logits is not None:
                probabilities = np.exp(log_softmax(logits))
                likeliest = np.argsort(-probabilities, kind="stable")[:WANTED]
                wanted = tuple(
                    (self._tokenizer.show(int(each)), float(probabilities[each])) for each in likeliest
                )
                removed = 0.0 if mask is None else float(probabilities[: len(mask)][~mask].sum())
            so_far = self._tokenizer.decode(self.tokens)
            self.trace.append(TraceStep(so_far, wanted, removed, self._tokenizer.show(token), logits is None))
        self.tokens.append(token)
