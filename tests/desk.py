"""Where texts are written without a model: a real tokenizer, real masks, made-up logits."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from magistrate.constraints import Constraint
from magistrate.constraints.masks import MaskEngine
from magistrate.engines.base import Sampling
from magistrate.engines.embedded.chat_tokenizer import ChatTokenizer
from magistrate.engines.embedded.verbs import Decoder
from magistrate.engines.models import describe
from magistrate.errors import ConstraintError

VOCABULARY = 49152


class Desk:
    """The default model's tokenizer with made-up logits: one of 48 random rows for every text so far.

    Some rows love to close things, some characters of several bytes, some digits, some the end.
    """

    def __init__(self, folder: Path) -> None:
        card = describe(folder)
        self.chat = ChatTokenizer(folder, card)
        self.masks = MaskEngine(self.chat.json, VOCABULARY, card.eos_ids)
        self.rows = np.random.default_rng(1).normal(0, 2, (48, VOCABULARY)).astype(np.float32)
        for start, step, texts, by in ((0, 4, '",}]', 9), (1, 4, "😀é中", 9), (2, 4, "0123456789.", 7)):
            for token in {token for text in texts for token in self.chat.encode(text).tokens}:
                self.rows[start::step, token] += by
        self.rows[::6, list(card.eos_ids)] += 12

    def logits(self, tokens: list[int]) -> np.ndarray:
        return self.rows[zlib.crc32(np.array(tokens, np.int32).tobytes()) % len(self.rows)]

    def wants(self, text: str) -> Callable[[list[int]], np.ndarray]:
        """Logits of a model that insists on `text` wherever what was written is a beginning of it."""

        def logits(tokens: list[int]) -> np.ndarray:
            row = self.rows[0].copy()
            written = self.text(tokens)
            rest = text[len(written) :] if text.startswith(written) else ""
            row[self.chat.encode(rest).tokens[0] if rest else self.chat.ends[0]] += 50
            return row

        return logits

    def text(self, tokens: list[int]) -> str:
        """Strict: raises where the text ends within a character."""
        assert not any(self.masks.tokenizer.is_special_token(token) for token in tokens)
        return bytes(self.masks.tokenizer.decode_bytes(tokens)).decode("utf-8")

    def write(
        self,
        shape: Constraint | None,
        sampling: Sampling,
        logits: Callable[[list[int]], np.ndarray] | None = None,
    ) -> Decoder:
        """Write as the engine does: what it has computed before must stay a beginning of the text."""
        decoder = Decoder(self.chat, None if shape is None else self.masks.matcher(shape), sampling)
        decoder.begin()
        computed: list[int] = []
        while not decoder.done:
            computed = list(decoder.tokens)
            decoder.write((logits or self.logits)(computed))
            kept = decoder.kept
            assert 0 <= kept <= len(computed) and decoder.tokens[:kept] == computed[:kept]
            assert len(decoder.tokens) > kept or decoder.finished
        return decoder

    def least(self, shape: Constraint) -> int:
        """The smallest budget that is accepted; all larger ones are."""
        for budget in range(1, 200):
            decoder = Decoder(self.chat, self.masks.matcher(shape), Sampling(budget))
            try:
                decoder.begin()
            except ConstraintError:
                assert decoder.tokens == []  # nothing was written
            else:
                return budget
        raise AssertionError("no budget is accepted")
