"""Tokens of texts on OpenAI-compatible servers: where each stands, and how many there are about."""

from __future__ import annotations

import pytest

from magistrate.engines.openai.chat_completions import estimate_tokens, offsets_of
from magistrate.errors import InvalidOutput


def test_tokens_have_their_places_also_where_they_are_parts_of_a_character() -> None:
    assert offsets_of(["Né", " ", "�", "�", "本", "!"], "Né 日本!") == [
        (0, 2),
        (2, 3),
        (3, 4),
        (3, 4),
        (4, 5),
        (5, 6),
    ]
    assert offsets_of(["a", "�", "�"], "a🙂") == [(0, 1), (1, 2), (1, 2)]
    with pytest.raises(InvalidOutput):
        offsets_of(["other", "x"], "text")


def test_an_estimate_is_rather_too_high() -> None:
    assert estimate_tokens("The museum opens at nine.") >= 6
    assert estimate_tokens("日本語") >= 3
    assert estimate_tokens("") == 0
