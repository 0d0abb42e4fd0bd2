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

MANY = 24  # the number of masks from which parallel threads pay off
COMPILED = 256  # compiled constraints kept per tokenizer
COMPILED_TEXT = 1_000_000  # grammar characters in total; text to quote takes 250 bytes per character
LOOKED_AHEAD = 4096  # tokens; the limit of the search for a shortest ending when a constraint is compiled
FREE = 64  # more allowed tokens than this mean free text; an enumeration allows fewer
# What a dry run tries first: tokens that close something, then the shortest values.
CLOSERS = ("}", "]", "null", "1", "0", '"', "true", "false", ")", ">", ".", ";")


class MaskEngine:
    """Compiles constraints for one tokenizer, given as the text of a `tokenizer.json`.

    `vocabulary` is the width of the model's logits. `ends` contains the ids of the tokens that end a turn.
    """

    def __init__(self, tokenizer_json: str, vocabulary: int, ends: tuple[int, ...]) -> None:
        from llguidance import LLTokenizer

        self.vocabulary = vocabulary
        self.ends = ends
        self.tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocabulary, eos_token=list(ends))
        self.letter = self._single("a")
        self.quote = self._single('"')
        self.closers = self._known(CLOSERS)
        self.last = [*self.closers, *self._known("!?\n")]  # white space may go on forever: tried last
        self.brackets = self._known("}]")
        self.numeric = self._known("0123456789.eE")
        self._compiled: OrderedDict[str, Matcher] = OrderedDict()
        self._lengths: dict[str, int] = {}
        self._lock = threading.Lock()  # guards the two above; compiling does not hold it

    def matcher(self, constraint: Constraint) -> Matcher:
        """Return a new matcher at the start of `constraint`, which is compiled once and then copied.

        Raises `ConstraintError` if the grammar cannot be compiled, also if the compiler panics.
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
        """Cache a compiled constraint; over the limits, evict the least recently used, never the newest."""
        self._compiled[constraint.digest] = compiled
        self._compiled.move_to_end(constraint.digest)
        self._lengths[constraint.digest] = len(constraint.grammar)
        while len(self._compiled) > 1 and (
            len(self._compiled) > COMPILED or sum(self._lengths.values()) > COMPILED_TEXT
        ):
            oldest, _ = self._compiled.popitem(last=False)
            del self._lengths[oldest]

    def knows(self, constraint: Constraint) -> bool:
        """Return whether `constraint` is already compiled."""
        return constraint.digest in self._compiled

    def spell(self, tokens: Sequence[int]) -> bytes:
        """Return the bytes that the tokens stand for."""
        return bytes(self.tokenizer.decode_bytes(list(tokens)))

    def vocabulary_bytes(self) -> dict[bytes, int]:
        """Return the id of every text token, keyed by its bytes."""
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
    """The state of a text under a constraint: which tokens may come next.

    Results computed for the current position are cached until a token is consumed, and `fork` copies them.
    """

    __slots__ = ("_ahead", "_bits", "_closes", "_engine", "_json", "_matcher")

    def __init__(self, engine: MaskEngine, matcher: Any, json: bool) -> None:
        self._engine = engine
        self._matcher = matcher
        self._json = json
        self._bits: np.ndarray | None = None  # the mask
        self._closes: list[int] | None = None  # tokens that complete the text
        self._ahead: tuple[list[int], Matcher] | None = None  # the forced run, and the matcher after it

    @property
    def accepting(self) -> bool:
        """Whether the text so far is complete (it may still continue)."""
        return bool(self._matcher.is_accepting())

    @property
    def stopped(self) -> bool:
        """Whether the text is complete and cannot continue."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> np.ndarray:
        """Return the mask of the next token, bool `[vocabulary]`."""
        return np.unpackbits(self._computed(), count=self._engine.vocabulary, bitorder="little").view(bool)

    def allows(self, token: int) -> bool:
        """Return whether `token` may come next; cheaper than the whole mask."""
        return bool(self._computed()[token >> 3] >> (token & 7) & 1)

    def forced(self) -> list[int]:
        """Consume and return the tokens of the only possible continuation, tokenized as the model would."""
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
        """Compute in advance what every copy of this matcher needs first."""
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
        # Text that looks like a special token was tokenized as one, which the grammar would reject.
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
            raise EngineError(f"the mask engine rejected the tokens {tokens}, which its own mask allowed")

    def fork(self) -> Matcher:
        """Return an independent copy in the same state."""
        copy = Matcher(self._engine, None, self._json)
        copy._stand_at(self)
        return copy

    def _stand_at(self, other: Matcher) -> None:
        self._matcher = other._matcher.deep_copy()
        self._bits, self._closes, self._ahead = other._bits, other._closes, other._ahead

    def closes_structure(self, mask: np.ndarray) -> bool:
        """Return whether a free string, a list or an object can be closed; False if a number may continue."""
        quote, letter = self._engine.quote, self._engine.letter
        if quote is None or letter is None:
            return False
        if mask[letter]:
            return bool(mask[quote] and np.count_nonzero(mask) > FREE and self._quote_closes())
        return bool(mask[self._engine.brackets].any() and not mask[self._engine.numeric].any())

    def closer(self, mask: np.ndarray) -> int:
        """Return an allowed token that brings the end nearer, by the rules that close JSON."""
        quote, letter = self._engine.quote, self._engine.letter
        if quote is not None and letter is not None and mask[quote]:
            bracket = not mask[letter] and mask[self._engine.brackets].any()
            if not bracket and self._quote_closes():
                return quote
        if not self._json:  # for JSON, the closers below are enough
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
        """Return whether a quotation mark (which must be allowed) would end the string."""
        assert self._engine.quote is not None and self._engine.letter is not None
        trial = self.fork()
        trial.consume([self._engine.quote])
        return trial.stopped or not trial.mask()[self._engine.letter]

    def shortest_close(self, limit: int) -> list[int] | None:
        """Return tokens that complete the text, from a dry run on a copy; None if they exceed `limit`.

        The path is not proven to be the shortest: its length is an upper bound.
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
        """Compute the masks of several matchers, many in parallel, so that `mask` returns at once."""
        from llguidance.numpy import fill_next_token_bitmask_par

        unknown = [matcher for matcher in matchers if matcher._bits is None]
        if len(unknown) < MANY:
            for matcher in unknown:
                with suppress(BaseException):  # also a panic: `mask` meets it again and reports it
                    matcher._computed()
            return
        words = -(-unknown[0]._engine.vocabulary // 32)
        table = np.empty((len(unknown), words), np.int32)
        rows = [(matcher._matcher, index) for index, matcher in enumerate(unknown)]
        try:
            fill_next_token_bitmask_par(_executor(), rows, table)
        except BaseException:  # a panic: each matcher is computed alone later, so only one fails
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
