"""What a context adds to an output's probability, a generator's own log-probabilities, and attention."""

from __future__ import annotations

import asyncio
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import magistrate
from magistrate.api.judge import judge_sample
from magistrate.engines.base import Capability, Capture, Captured, Likelihood, require
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.none import NONE
from magistrate.engines.scripted import EVERYTHING, ScriptedEngine
from magistrate.errors import CapabilityError, InputError, SpecError
from magistrate.features.attention import attention_share, lookback_ratio
from magistrate.features.likelihoods import gains, recorded_logprobs
from magistrate.judges.likelihood import Likelihood as LikelihoodJudge
from magistrate.judges.recorded_logprob import RecordedLogprob
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Prompt, Sample, Verdict

OUTPUT = "Bern is in Japan. It rains."
CONTEXT = ("Bern is in Switzerland. It rains there.",)


def likelihood(text: str, logprobs: list[float], offsets: list[tuple[int, int]] | None = None) -> Likelihood:
    """A likelihood of a text with a token a word, unless `offsets` say where they stand."""
    found, end = [], 0
    for word in text.split():
        start = text.index(word, end)
        end = start + len(word)
        found.append((start, end))
    where = found if offsets is None else offsets
    return Likelihood(text, tuple(range(len(where))), np.array(logprobs, np.float64), tuple(where))


def judged(first: list[float], second: list[float], *, output: str = OUTPUT, **options: object) -> Verdict:
    """The verdict of a judge whose engine gives these log-probabilities with the context, and without."""

    def script(prompt: Prompt) -> list[float]:
        return first if CONTEXT[0] in prompt.messages[-1].text else second

    engine = ScriptedEngine(script, name="likely")
    found = magistrate.judge(output=output, context=CONTEXT, judge=LikelihoodJudge(**options), model=engine)  # type: ignore[arg-type]
    assert isinstance(found, Verdict), found
    return found


# --- the signal -----------------------------------------------------------------------------------


def test_sums_over_words_and_sentences_are_those_of_their_tokens() -> None:
    text = "An uncommon word. No other."
    pieces = [(0, 2), (2, 5), (5, 11), (11, 16), (16, 17), (17, 20), (20, 26), (26, 27)]
    found = gains(
        likelihood(text, [-1, -2, -3, -4, -5, -6, -7, -8], pieces), likelihood(text, [-1.5] * 8, pieces)
    )
    words = found.words()
    assert [text[each.start : each.end] for each in words] == ["An", "uncommon", "word.", "No", "other."]
    assert [each.n for each in words] == [1, 2, 2, 1, 2]
    assert [each.with_context for each in words] == [-1, -5, -9, -6, -15]
    assert words[1].gain == -2 and words[1].mean_gain == -1
    first, second = found.sentences()
    assert (first.with_context, second.with_context) == (-15, -21)
    assert first.n + second.n == 8
    signals = found.signals()
    assert signals["gain_mean"] == pytest.approx(-36 / 8 + 1.5)
    assert signals["gain_lowest_word"] == -12
    assert signals["gain_negative_share"] == 7 / 8
    assert signals["logprob_with_context"] == -4.5 and signals["logprob_without"] == -1.5


@given(st.text(min_size=1, max_size=60), st.data())
def test_every_token_counts_once_whatever_the_text_is(text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=12))
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    places = list(itertools.pairwise(edges))
    values = data.draw(st.lists(st.floats(-20, 0), min_size=len(places), max_size=len(places)))
    found = gains(likelihood(text, values, places), likelihood(text, [-1.0] * len(places), places))
    words = found.words()
    if text.strip():
        assert sum(each.n for each in words) == len(places)
        assert sum(each.gain for each in words) == pytest.approx(sum(values) + len(places), abs=1e-6)
    for one, other in itertools.pairwise(words):
        assert one.end <= other.start


def test_words_of_unspaced_scripts_are_characters_and_marks_stay_with_their_word() -> None:
    text = "伯尔尼在“日本”。 (Yes, Bern!) 🙂"
    places = [(at, at + 1) for at in range(len(text))]
    found = gains(likelihood(text, [-1.0] * len(text), places), likelihood(text, [-1.0] * len(text), places))
    words = [text[each.start : each.end] for each in found.words()]
    assert words == ["伯", "尔", "尼", "在“", "日", "本”。", "(Yes,", "Bern!)", "🙂"]


def test_likelihoods_of_different_texts_are_not_compared() -> None:
    with pytest.raises(InputError, match="different texts"):
        gains(likelihood("a b", [-1, -1]), likelihood("a c", [-1, -1]))


# --- the judge ------------------------------------------------------------------------------------


def test_the_score_is_the_stated_map_of_the_mean_gain() -> None:
    found = judged([-1, -1, -1, -4, -1, -1], [-2, -2, -2, -2, -2, -2])
    mean = (5 - 2) / 6
    assert found.score == pytest.approx(1 / (1 + math.exp(mean)))
    assert found.details["signals"]["gain_mean"] == pytest.approx(mean)
    assert found.probability is None  # it is no probability of anything


def test_an_output_without_gain_has_a_score_of_a_half() -> None:
    assert judged([-2.0] * 6, [-2.0] * 6).score == 0.5


def test_what_the_context_speaks_against_is_claimed_with_its_place_and_in_numbers() -> None:
    found = judged([-3, -2, -2, -4, -2, -2], [-2, -1, -2, -1.5, -2, -2])
    assert found.label == HALLUCINATED
    first, second = found.claims
    assert [first.output_text, second.output_text] == ["Bern", "Japan."]  # "is" loses as much and is common
    assert OUTPUT[second.output_quote.start : second.output_quote.end] == "Japan."
    assert second.kind == "unsupported" and second.context_quote is None
    assert "factor of 12.2 (-2.50 nats)" in second.reasoning


def test_a_faithful_output_has_no_claims_and_a_hallucinated_one_has_one_at_least() -> None:
    assert judged([-0.1] * 6, [-5.0] * 6).label == FAITHFUL
    assert judged([-0.1] * 6, [-5.0] * 6).claims == ()
    found = judged([-2.0, -2, -2, -2, -2, -1.5], [-2.0] * 6)  # no word loses
    assert found.label == HALLUCINATED and len(found.claims) == 1
    assert "only more probable by a factor of 1.0" in found.claims[0].reasoning


def test_claims_can_be_sentences() -> None:
    (claim,) = judged([-1, -1, -1, -9, -1, -1], [-2.0] * 6, unit="sentences").claims
    assert claim.output_text == "Bern is in Japan."
    assert "its average token" in claim.reasoning


def test_both_prompts_are_the_same_but_for_the_context_and_what_was_said() -> None:
    engine = ScriptedEngine([[-1.0] * 6] * 2, name="likely")
    messages = [{"role": "user", "content": "Tell me."}]
    magistrate.judge(
        output=OUTPUT,
        context=CONTEXT,
        input="Where is Bern?",
        messages=messages,
        judge=LikelihoodJudge(),
        model=engine,
    )
    first, second = (prompt.messages[-1].text for prompt in engine.prompts)
    assert CONTEXT[0] in first and "Tell me." in first and "Where is Bern?" in first
    assert CONTEXT[0] not in second and "Tell me." not in second and "Where is Bern?" in second
    assert second.startswith("Context:")
    assert next(part.text for part in engine.prompts[0].data()) == CONTEXT[0]  # data, never template


def test_the_heat_map_is_of_the_words_within_its_scale() -> None:
    heat = judged([-30, -2, -2, -1, -2, -2.5], [-2.0] * 6).details["heat"]
    assert (heat["low"], heat["high"], heat["unit"]) == (0.0, 3.0, "nats")
    assert [OUTPUT[start:end] for start, end, _ in heat["pieces"]] == OUTPUT.split()
    assert [value for *_, value in heat["pieces"]] == [3.0, 0.0, 0.0, 0.0, 0.0, 0.5]


def test_without_context_it_abstains_and_too_long_a_sample_is_told_before_anything_is_asked() -> None:
    engine = ScriptedEngine([], name="likely")
    bare = magistrate.judge(output=OUTPUT, judge=LikelihoodJudge(), model=engine)
    assert isinstance(bare, Abstention) and bare.reason == "no_context"
    small = ScriptedEngine([], name="likely", context_window=40)
    long = magistrate.judge(output="word " * 50, context=CONTEXT, judge=LikelihoodJudge(), model=small)
    assert isinstance(long, Abstention) and long.reason == "over_length"
    assert engine.prompts == small.prompts == []


def test_options_and_engines_that_cannot_do_it_are_refused() -> None:
    for options in ({"threshold": 0}, {"threshold": 1}, {"most": 0}, {"unit": "letters"}):
        with pytest.raises(SpecError):
            LikelihoodJudge(**options)
    engine = ScriptedEngine([], name="mute", can=frozenset({"choose"}))
    with pytest.raises(CapabilityError, match="likelihood"):
        magistrate.judge(output=OUTPUT, context=CONTEXT, judge="likelihood", model=engine)


# --- what a generator recorded --------------------------------------------------------------------

TOKENS = [{"token": "Bern", "logprob": -0.5}, {"token": " is", "logprob": -1.5}]


@pytest.mark.parametrize(
    "given",
    [
        [-0.5, -1.5],
        TOKENS,
        {"content": TOKENS},
        {"tokens": ["Bern", " is"], "token_logprobs": [-0.5, -1.5]},
        {"tokens": ["<s>", "Bern", " is"], "token_logprobs": [None, -0.5, -1.5]},
        "[-0.5, -1.5]",
        '{"content": [{"token": "Bern", "logprob": -0.5}, {"token": " is", "logprob": -1.5}]}',
    ],
)
def test_recorded_log_probabilities_are_read_as_their_makers_write_them(given: object) -> None:
    found = recorded_logprobs(Sample("a", "Bern is", metadata={"logprobs": given}))
    assert found.logprobs == (-0.5, -1.5)
    assert (found.mean, found.least) == (-1.0, -1.5)
    assert found.perplexity == pytest.approx(math.e)
    assert found.doubt == pytest.approx(1 - math.exp(-1))


def test_tokens_have_places_only_where_they_are_the_output() -> None:
    placed = recorded_logprobs(Sample("a", " Bern is\n", metadata={"logprobs": TOKENS}))
    assert placed.offsets == ((1, 5), (5, 8))
    first = {"tokens": ["Be", "rn"], "token_logprobs": [None, -3.0]}
    assert recorded_logprobs(Sample("a", "Bern", metadata={"logprobs": first})).placed() == [(2, 4, -3.0)]
    assert recorded_logprobs(Sample("a", "Rome is", metadata={"logprobs": TOKENS})).offsets is None
    assert recorded_logprobs(Sample("a", "Bern is", metadata={"logprobs": [-1]})).offsets is None


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "empty"),
        ("-1", "got str"),
        ("certain", "got str"),
        ("[" * 100_000, "got str"),
        ([-1e308, -1e308], r"\[0\] is below -1,000,000"),
        ([-(10**400)], r"\[0\] is below"),
        ([1], "these may be probabilities"),
        ({"tokens": ["a"], "token_logprobs": [None]}, "empty"),
        (7, "got int"),
        ([-1, None], "must be a finite number, got None"),
        ([float("nan")], "finite"),
        ([float("-inf")], "finite"),
        ([True], "finite"),
        ([0.9], "these may be probabilities"),
        ([{"token": "a"}], "has no 'logprob'"),
        ([{"token": "a", "logprob": -1}, -2], r"\[1\] has no"),
        ({"tokens": ["a"], "token_logprobs": [-1, -2]}, "1 tokens and 2"),
        ({"other": 1}, "got dict"),
    ],
)
def test_what_is_no_list_of_log_probabilities_is_refused_with_its_place(given: object, told: str) -> None:
    with pytest.raises(InputError, match=told):
        recorded_logprobs(Sample("a", "Bern", metadata={"logprobs": given}))


def test_nothing_recorded_is_said() -> None:
    with pytest.raises(InputError, match="is missing"):
        recorded_logprobs(Sample("a", "Bern"))


def test_the_tokens_that_the_generator_doubted_are_found() -> None:
    recorded = recorded_logprobs(Sample("a", "Bern is", metadata={"logprobs": TOKENS}))
    assert recorded.doubt == pytest.approx(1 - math.exp(-1))
    assert [(start, end) for start, end, _ in recorded.least_probable("Bern is")] == [(4, 7)]


def test_the_judge_of_recorded_log_probabilities_asks_no_model() -> None:
    sample = Sample("a", "Bern is", metadata={"logprobs": TOKENS})
    found = judge_sample(sample, judge="recorded_logprob", model=NONE)
    assert isinstance(found, Verdict) and found.label == HALLUCINATED
    assert found.score == pytest.approx(1 - math.exp(-1))
    assert [claim.output_text for claim in found.claims] == [" is"]
    assert found.details["heat"]["pieces"] == [[0, 4, 0.5], [4, 7, 1.5]]
    assert not RecordedLogprob().info.asks
    doubtful = judge_sample(
        replace(sample, metadata={"logprobs": [-50.0]}), judge="recorded_logprob", model=NONE
    )
    assert isinstance(doubtful, Verdict) and "perplexity 5.18e+21." in str(doubtful.explanation)
    for metadata in ({}, {"logprobs": [0.5]}):
        other = judge_sample(replace(sample, metadata=metadata), judge="recorded_logprob", model=NONE)
        assert isinstance(other, Abstention) and other.reason == "missing_input"
    bare = judge_sample(replace(sample, metadata={"logprobs": [-0.1]}), judge="recorded_logprob", model=NONE)
    assert isinstance(bare, Verdict) and bare.label == FAITHFUL and "heat" not in bare.details


# --- where a model looks --------------------------------------------------------------------------


def looking() -> np.ndarray:
    """One layer, two heads, two positions over two tokens of context, one of question and the output."""
    first = [[0.5, 0.3, 0.2, 0, 0], [0.2, 0.2, 0.2, 0.4, 0]]
    second = [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]]
    return np.array([[first, second]], np.float32)


def test_the_share_on_the_context_is_a_mean_over_the_output() -> None:
    share = attention_share(looking(), [(0, 2)])
    assert share == pytest.approx(np.array([[0.6, 0.0]]))
    assert attention_share(looking(), [(0, 1), (1, 2)]) == pytest.approx(share)


def test_the_lookback_ratio_compares_means_over_tokens() -> None:
    found = lookback_ratio(looking(), [(0, 2)], begin=3)
    assert found.shape == (1, 2, 2)
    assert found[0, 0, 0] == 1  # no output was read yet
    assert found[0, 0, 1] == pytest.approx(0.2 / (0.2 + 0.4))  # .4 over two tokens, .4 over one
    assert found[0, 1].tolist() == [0, 0]


def test_shapes_and_places_that_cannot_be_are_refused() -> None:
    for array, places in ((looking()[0], [(0, 1)]), (looking(), []), (looking(), [(0, 9)])):
        with pytest.raises(InputError):
            attention_share(array, places)
    with pytest.raises(InputError, match="must start"):
        lookback_ratio(looking(), [(0, 2)], begin=0)


def test_an_engine_that_shows_its_attention_can_be_asked_and_another_says_that_it_cannot() -> None:
    def state(prompt: Prompt, text: str) -> Captured:
        return Captured(
            np.empty((3, 0)), np.empty((3, 0)), np.zeros(3), None, looking(), {"context": ((0, 2),)}
        )

    wish = Capture(attention=True)
    can: frozenset[Capability] = EVERYTHING.union({"capture", "attention"})
    engine = ScriptedEngine([[-1.0, -1.0]], name="open", can=can, state=state)
    captured = asyncio.run(engine.likelihood(Prompt.of("x"), "a b", capture=wish)).captured
    assert captured is not None and captured.attention is not None
    assert attention_share(captured.attention, captured.places["context"]).shape == (1, 2)
    closed = ScriptedEngine([[-1.0, -1.0]], name="shut", can=can - {"attention"}, state=state)
    with pytest.raises(CapabilityError, match="needs attention"):
        asyncio.run(closed.likelihood(Prompt.of("x"), "a b", capture=wish))
    with pytest.raises(CapabilityError, match="attention"):
        require(closed.info, frozenset({"attention"}), "a lookback lens")


def test_the_embedded_engine_says_that_it_cannot_show_where_it_looks(engine: LocalEngine) -> None:
    with pytest.raises(CapabilityError, match="paged attention"):
        asyncio.run(engine.likelihood(Prompt.of("x"), "a", capture=Capture(attention=True)))
    assert "attention" not in engine.info.can
