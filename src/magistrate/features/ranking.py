"""Which texts are about the same things as another."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from magistrate._deadline import check, checked
from magistrate.features.overlap import words


class Ranking:
    """Texts in the order of what they share with another (BM25, Robertson & Zaragoza 2009)."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._words = [words(text) for text in checked(texts, 64)]
        self._known = {word for each in self._words for word in each}

    def order(self, query: str) -> list[int]:
        """The numbers of the texts, most alike first; equal ones in the order that they had."""
        import numpy as np

        check()

        asked = sorted(set(words(query)) & self._known)
        if not asked:
            return list(range(len(self._words)))
        return [int(number) for number in np.argsort(-self._index.get_scores(asked), kind="stable")]

    @cached_property
    def _index(self) -> Any:
        import bm25s  # type: ignore[import-untyped]

        index = bm25s.BM25()
        index.index(self._words, show_progress=False)
        return index
