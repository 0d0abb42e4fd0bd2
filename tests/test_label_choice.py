"""Which of several answers: bounds from the likeliest first tokens, and replies in words."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magistrate.engines.base import Option
from magistrate.engines.remote.replies import TopToken, label_named, label_probabilities
from magistrate.errors import InvalidOutput
from tiers import tries

YES_NO = (Option("supported", ("Yes", "yes", " yes")), Option("hallucinated", ("No", "no", " no")))
WORDS = (Option("f", ("faithful",)), Option("h", ("hallucinated",)), Option("u", ("unknown",)))


# --- probabilities from the likeliest tokens ------------------------------------------------------


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[tuple[Option, ...], dict[str, float], dict[str, float], int]:
    """Options, a distribution over first tokens, the true probability of every surface, a list's length.

    A surface is one token, or it has a first token that begins it and goes on with a probability of its own.
    """
    options = draw(st.sampled_from([YES_NO, WORDS, (*WORDS, YES_NO[1])]))
    surfaces = [surface for option in options for surface in option.surfaces]
    first = {
        surface: surface[: draw(st.integers(1, len(surface)))] if draw(st.booleans()) else surface
        for surface in surfaces
    }
    vocabulary = sorted({*first.values(), "the", "It", "\n", "maybe"})
    weights = [math.exp(draw(st.floats(-12, 4))) for _ in vocabulary]
    chances = {token: weight / sum(weights) for token, weight in zip(vocabulary, weights, strict=True)}
    truth: dict[str, float] = {}
    left = dict(chances)
    for surface in surfaces:
        share = 1.0 if first[surface] == surface else draw(st.floats(0, 1))
        truth[surface] = left[first[surface]] * share
        left[first[surface]] -= truth[surface]
    return options, chances, truth, draw(st.integers(1, len(vocabulary)))


@given(_worlds())
@settings(max_examples=tries(400))
def test_no_share_is_further_from_the_truth_than_the_bound(
    world: tuple[tuple[Option, ...], dict[str, float], dict[str, float], int],
) -> None:
    options, chances, truth, length = world
    top = sorted(chances.items(), key=lambda item: -item[1])[:length]
    weights = label_probabilities(options, [TopToken(t.encode(), math.log(p)) for t, p in top])
    true = [sum(truth[surface] for surface in option.surfaces) for option in options]
    if weights is None or sum(true) < 1e-9:
        return
    assert sum(weights.shares) == pytest.approx(1)
    for share, exact in zip(weights.shares, true, strict=True):
        assert abs(share - exact / sum(true)) <= weights.bound + 1e-9


def test_a_complete_list_of_whole_answers_leaves_no_doubt() -> None:
    chances = {"Yes": 0.5, "yes": 0.1, " yes": 0.1, "No": 0.2, "no": 0.05, " no": 0.05}
    weights = label_probabilities(YES_NO, [TopToken(t.encode(), math.log(p)) for t, p in chances.items()])
    assert weights is not None
    assert weights.shares == pytest.approx((0.7, 0.3))
    assert weights.bound == pytest.approx(0, abs=1e-9)


def test_options_that_are_not_listed_have_no_probability() -> None:
    assert label_probabilities(YES_NO, [TopToken(b"The", -0.1), TopToken(b"It", -3.0)]) is None
    assert label_probabilities(YES_NO, ()) is None


def test_a_first_token_that_begins_two_options_speaks_for_neither() -> None:
    options = (Option("a", ("unsupported",)), Option("b", ("unrelated",)), Option("c", ("agrees",)))
    weights = label_probabilities(
        options, [TopToken(b"un", math.log(0.9)), TopToken(b"agrees", math.log(0.1))]
    )
    assert weights is not None
    assert weights.shares[2] == 1.0
    assert weights.bound >= 0.9


# --- an answer in words ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Yes", "supported"),
        (" yes.\n", "supported"),
        ('"No"', "hallucinated"),
        ("“yes”\n", "supported"),
        ("hallucinated", "hallucinated"),
        ('{"answer": "No"}', "hallucinated"),
        (' {"verdict" : "yes"}\n', "supported"),
    ],
)
def test_a_reply_that_is_one_answer_is_that_answer(text: str, label: str) -> None:
    assert label_named(text, YES_NO) == label


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Maybe",
        "There is no doubt: it is.",
        "not hallucinated",
        "Yes or no",
        "It is true",
        "yes\nno",
        "Nope",
        "**No**",
        "Answer: no",
        "Yes\nActually No.",
        "Yes, the context does not support it",
        "No, because the context says five.",
        "Yes..",
        '"Yes',
        '{"faithful": false}',
        '{"faithful": "Yes"}',
        '{"answer": "Yes", "answer": "No"}',
        '{"answer": "Yes", "note": "or no"}',
        '{"answer": "Ye',
    ],
)
def test_a_reply_that_says_anything_else_is_no_answer(text: str) -> None:
    with pytest.raises(InvalidOutput):
        label_named(text, YES_NO)


def test_an_article_is_not_the_letter_a() -> None:
    letters = (Option("good", ("A", " A")), Option("bad", ("B", " B")))
    assert label_named("A", letters) == "good"
    assert label_named(" b. ", letters) == "bad"
    for text in ("A good answer would say so", "B. It is wrong."):
        with pytest.raises(InvalidOutput):
            label_named(text, letters)
