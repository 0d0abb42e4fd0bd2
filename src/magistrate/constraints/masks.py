"""Token masks: which tokens may come next under a constraint, computed by llguidance."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from magistrate.constraints.lark import new_matcher
from magistrate.errors import ConstraintError, EngineError

if TYPE_CHECKING:
    from magistrate.constraints.constraint import Constraint

MANY = 24  # masks that are worth waking other threads for
COMPILED = 256  # compiled constraints kept for a tokenizer
COMPILED_TEXT = 1_000_000  # characters of their grammars together; of a text to quote one takes 250 bytes
LOOKED_AHEAD = 4096  # tokens of the shortest text that is looked for when a constraint is compiled
FREE = 64  # tokens allowed where text is free; within an enumeration fewer are
# What a dry run tries first where it has a choice: what ends things, then the shortest values.
CLOSERS = ("}", "]", "null", "1", "0", '"', "true", "false", ")", ">", ".", ";")


class MaskEngine:
    """Compiles constraints for one tokenizer, given as the text of a `tokenizer.json`.

    `vocabulary` is the width of the model's logits; `ends` the ids that end a turn.
    """

    def __init__(self, tokenizer_json: str, vocabulary: int, ends: tuple[int, ...]) -> None:
        from llguidance import LLTokenizer

        self.vocabulary = vocabulary
        self.ends = ends
        self.tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocabulary, eos_token=list(ends))
        self.letter = self._single("a")
        self.quote = self._single('"')
        self.closers = self._known(CLOSERS)
        self.last = [*self.closers, *self._known("!?\n")]  # white space may go on for ever: only as the last
        self.brackets = self._known("}]")
        self.numeric = self._known("0123456789.eE")
        self._compiled: OrderedDict[str, Matcher] = OrderedDict()
        self._lengths: dict[str, int] = {}
        self._lock = threading.Lock()  # of these two; compiling goes on without it

    def matcher(self, constraint: Constraint) -> Matcher:
        """A fresh matcher at the beginning of `constraint`; compiled once, then copied.

        Raises `ConstraintError` for a grammar that cannot be compiled, also where the compiler panics.
        """
        with self._lock:
            compiled = self._compiled.get(constraint.digest)
            if compiled is not None:
                self._compiled.move_to_end(constraint.digest)
        if compiled is None:
            compiled = Matcher(self, self._compile(constraint), constraint.kind == "json")
            compiled.look_ahead()
            with self._lock:
                self._keep(constraint, compiled)
        return compiled.fork()

    def _keep(self, constraint: Constraint, compiled: Matcher) -> None:
        """Remember the last ones used, as many as may be; the newest in any case."""
        self._compiled[constraint.digest] = compiled
        self._compiled.move_to_end(constraint.digest)
        self._lengths[constraint.digest] = len(constraint.grammar)
        while len(self._compiled) > 1 and (
            len(self._compiled) > COMPILED or sum(self._lengths.values()) > COMPILED_TEXT
        ):
            oldest, _ = self._compiled.popitem(last=False)
            del self._lengths[oldest]

    def knows(self, constraint: Constraint) -> bool:
        """Whether a matcher for `constraint` costs no compiling."""
        return constraint.digest in self._compiled

    def spell(self, tokens: Sequence[int]) -> bytes:
        """The bytes that these tokens stand for."""
        return bytes(self.tokenizer.decode_bytes(list(tokens)))

    def vocabulary_bytes(self) -> dict[bytes, int]:
        """The bytes of every token that stands for text, with its id."""
        plain = (token for token in range(self.vocabulary) if not self.tokenizer.is_special_token(token))
        return {text: token for token in plain if (text := self.spell([token]))}

    def _compile(self, constraint: Constraint) -> Any:
        try:
            return new_matcher(self.tokenizer, constraint.grammar)
        except ConstraintError as error:
            raise ConstraintError(f"{constraint.name!r}: {error}") from None

    def _known(self, texts: Iterable[str]) -> list[int]:
        return [token for text in texts if (token := self._single(text)) is not None]

    def _single(self, text: str) -> int | None:
        tokens = self.tokenizer.tokenize_str(text)
        return int(tokens[0]) if len(tokens) == 1 else None


class Matcher:
    """How far a text has come under a constraint.

    What was found out at a place is kept until the text goes on, and copied with it.
    """

    __slots__ = ("_ahead", "_bits", "_closes", "_engine", "_json", "_matcher")

    def __init__(self, engine: MaskEngine, matcher: Any, json: bool) -> None:
        self._engine = engine
        self._matcher = matcher
        self._json = json
        self._bits: np.ndarray | None = None  # the mask
        self._closes: list[int] | None = None  # a way to the end
        self._ahead: tuple[list[int], Matcher] | None = None  # the forced run, and where it leads

    @property
    def accepting(self) -> bool:
        """The text so far is complete (it may still go on)."""
        return bool(self._matcher.is_accepting())

    @property
    def stopped(self) -> bool:
        """The text is complete and cannot go on."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> np.ndarray:
        """The mask of the next token, bool `[vocabulary]`."""
        return np.unpackbits(self._computed(), count=self._engine.vocabulary, bitorder="little").view(bool)

    def allows(self, token: int) -> bool:
        """Whether `token` may come next; cheaper than the whole mask."""
        return bool(self._computed()[token >> 3] >> (token & 7) & 1)

    def forced(self) -> list[int]:
        """Consumes and answers the run of tokens that is the only way on, tokenized as the model would."""
        if self._ahead is not None:
            forced, end = self._ahead
            self._stand_at(end)
            return forced
        forced = []
        while not self.stopped and (run := self._next_forced()):
            self.consume(run)
            forced += run
        return forced

    def look_ahead(self) -> None:
        """Find out now what every copy of this matcher will want to know first."""
        self.shortest_close(LOOKED_AHEAD)
        end = self.fork()
        forced = end.forced()
        if not end.stopped:
            end._computed()
        self._ahead = forced, end

    def _next_forced(self) -> list[int]:
        run = list(self._matcher.compute_ff_tokens())
        tokenizer = self._engine.tokenizer
        special = [index for index, token in enumerate(run) if tokenizer.is_special_token(token)]
        if not special:
            return run
        # Text that looks like a special token was taken for one, which the grammar would refuse.
        text = self._matcher.compute_ff_bytes().decode("utf-8", "ignore")
        return run[: special[0]] or list(tokenizer.greedy_tokenize(text))

    def consume(self, tokens: list[int]) -> None:
        """Append tokens that the mask allows."""
        self._bits = self._ahead = None
        if self._closes is not None:
            follows = self._closes[: len(tokens)] == tokens
            self._closes = self._closes[len(tokens) :] if follows else None
        if not self._matcher.consume_tokens(tokens):
            self._check()
            raise EngineError(f"the mask engine refused the tokens {tokens}, which its own mask allowed")

    def fork(self) -> Matcher:
        """An independent copy at the same place."""
        copy = Matcher(self._engine, None, self._json)
        copy._stand_at(self)
        return copy

    def _stand_at(self, other: Matcher) -> None:
        self._matcher = other._matcher.deep_copy()
        self._bits, self._closes, self._ahead = other._bits, other._closes, other._ahead

    def closes_structure(self, mask: np.ndarray) -> bool:
        """A free string, a list or an object could be closed now; never where a number might go on."""
        quote, letter = self._engine.quote, self._engine.letter
        if quote is None or letter is None:
            return False
        if mask[letter]:
            return bool(mask[quote] and np.count_nonzero(mask) > FREE and self._quote_closes())
        return bool(mask[self._engine.brackets].any() and not mask[self._engine.numeric].any())

    def closer(self, mask: np.ndarray) -> int:
        """An allowed token that brings the end nearer, by the rules that JSON closes with."""
        quote, letter = self._engine.quote, self._engine.letter
        if quote is not None and letter is not None and mask[quote]:
            bracket = not mask[letter] and mask[self._engine.brackets].any()
            if not bracket and self._quote_closes():
                return quote
        if not self._json:  # JSON ends with what is tried next anyway
            few = np.count_nonzero(mask) <= FREE
            for token in np.flatnonzero(mask).tolist() if few else self._engine.last:
                if mask[token] and self._ends_with(token):
                    return int(token)
        for token in self._engine.closers:
            if mask[token]:
                return token
        return int(np.argmax(mask))

    def _ends_with(self, token: int) -> bool:
        trial = self.fork()
        trial.consume([token])
        return trial.accepting

    def _quote_closes(self) -> bool:
        """After a quotation mark, which is allowed, text cannot simply go on."""
        assert self._engine.quote is not None and self._engine.letter is not None
        trial = self.fork()
        trial.consume([self._engine.quote])
        return trial.stopped or not trial.mask()[self._engine.letter]

    def shortest_close(self, limit: int) -> list[int] | None:
        """Tokens that complete the text, found by a dry run on a copy; None where `limit` does not suffice.

        The path is a way to the end, not proven to be the shortest: its length is an upper bound.
        """
        if self._closes is not None:
            return self._closes if len(self._closes) <= limit else None
        walk = self.fork()
        path: list[int] = []
        while not walk.accepting:
            if len(path) >= limit:
                return None
            run = walk.forced()
            if not run:
                mask = walk.mask()
                run = [walk.closer(mask)]
                walk.consume(run)
            path += run
        if len(path) > limit:
            return None
        self._closes = path
        return path

    @staticmethod
    def compute_masks(matchers: Sequence[Matcher]) -> None:
        """Compute the masks of several matchers, many in parallel; `mask` then answers at once."""
        from llguidance.numpy import fill_next_token_bitmask_par

        unknown = [matcher for matcher in matchers if matcher._bits is None]
        if len(unknown) < MANY:
            for matcher in unknown:
                with suppress(BaseException):  # also a panic: `mask` will meet it again, and tell
                    matcher._computed()
            return
        words = -(-unknown[0]._engine.vocabulary // 32)
        table = np.empty((len(unknown), words), np.int32)
        rows = [(matcher._matcher, index) for index, matcher in enumerate(unknown)]
        try:
            fill_next_token_bitmask_par(_executor(), rows, table)
        except BaseException:  # a panic: each is then asked alone, so that it fails for itself
            return
        for matcher, row in zip(unknown, table.view(np.uint8), strict=True):
            matcher._bits = row

    def _computed(self) -> np.ndarray:
        if self._bits is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            self._check()
            self._bits = bits
        return self._bits

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(f"the mask engine stopped: {self._matcher.get_error()[:300]}")


@cache
def _executor() -> Any:
    from llguidance import LLExecutor

    return LLExecutor()
