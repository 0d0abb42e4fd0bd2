"""The judge `novelty`, the base rate that it assumes, and `--base-rate`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magistrate.api.base_rate import assuming
from magistrate.engines.none import NONE
from magistrate.errors import InputError, SpecError
from magistrate.judges import registry
from magistrate.judges.novelty import Novelty, weights
from magistrate.metrics.calibration import estimated_base_rate, log_odds, shifted_odds
from magistrate.runs.execute import judge_one
from magistrate.types import Abstention, Outcome, Sample, Turn, Verdict
from terminal import Call

CONTEXT = "The contract was signed on 2 June 2017. Notice is 14 days, and the office is 12 km from Bern."
COPIED = "Notice is 14 days."
MADE_UP = "Ann Hill bought 30 tall green ladders in Vienna on 5 May 1999."


def judged(output: str, context: str = CONTEXT, judge: Novelty | None = None, **fields: object) -> Outcome:
    sample = Sample("s", output, (context,) if context else (), **fields)  # type: ignore[arg-type]
    return asyncio.run(judge_one(sample, judge or Novelty(), NONE))


def verdict(output: str, context: str = CONTEXT, judge: Novelty | None = None) -> Verdict:
    found = judged(output, context, judge)
    assert isinstance(found, Verdict)
    return found


# --- verdicts ------------------------------------------------------------------------------------


def test_what_is_copied_is_faithful_and_what_is_made_up_is_not() -> None:
    copied, made_up = verdict(COPIED), verdict(MADE_UP)
    assert (copied.label, made_up.label) == ("faithful", "hallucinated")
    assert copied.score < 0.25 and made_up.score > 0.9
    assert copied.probability == pytest.approx(1 - copied.score)
    assert made_up.probability == made_up.score


def test_a_verdict_shows_where_and_says_why() -> None:
    found = verdict(f"{COPIED} {MADE_UP}")
    assert found.explanation is not None
    assert "not in the context: 5 May 1999" in found.explanation
    quotes = [claim.output_text for claim in found.claims]
    assert {"30", "5 May 1999", "Vienna"} <= set(quotes)
    assert COPIED.rstrip(".") not in quotes
    for claim in found.claims:
        span = claim.output_quote
        assert f"{COPIED} {MADE_UP}"[span.start : span.end] == claim.output_text
        assert claim.kind == "unsupported" and claim.reasoning
    heat = found.details["heat"]
    assert heat["text"] == f"{COPIED} {MADE_UP}"
    assert [low < high for low, high, _ in heat["pieces"]] == [True, True]
    assert heat["pieces"][0][2] < heat["pieces"][1][2]
    json.dumps(dict(found.details))


def test_every_flagged_output_has_a_claim() -> None:
    found = verdict(
        "The office of the contract was signed in notice of Bern by days near it.", CONTEXT, Novelty(0.9)
    )
    assert found.label == "hallucinated" and found.claims


def test_a_faithful_output_has_no_claims() -> None:
    assert verdict(COPIED).claims == ()


@pytest.mark.parametrize(
    ("same", "context"),
    [
        ("Notice is two weeks.", CONTEXT),
        ("The office is 12,000 metres from Bern.", CONTEXT),
        ("Notice is half an hour.", "Notice is 30 minutes."),
        ("The contract was signed on June 2nd, 2017.", CONTEXT),
    ],
)
def test_a_number_in_other_words_is_no_new_wording(same: str, context: str) -> None:
    found = verdict(same, context)
    assert found.label == "faithful" and found.details["signals"]["rouge_l"] < 0.4


def test_a_number_of_something_else_is_new_wording() -> None:
    context = "The pool opens at ten. It is shut on Sundays. Entry costs 7 euros."
    found = verdict("Entry costs 10 euros.", context)
    assert found.label == "hallucinated" and "10 euros" in {claim.output_text for claim in found.claims}


ABSENT = [
    "The contract does not say who signed it.",
    "The text doesn’t explicitly mention any fee for cancelling.",
    "There is no information about parking.",
    "The price of a licence is not mentioned in the provided context.",
    "I don't know.",
    "It does not say whether pets are allowed; the document is silent on children.",
]


@pytest.mark.parametrize("said", ABSENT)
def test_what_the_context_is_said_not_to_tell_is_no_new_wording(said: str) -> None:
    alone = judged(said)
    assert isinstance(alone, Abstention) and "does not tell" in alone.message
    assert verdict(f"{COPIED} {said}").score == verdict(COPIED).score
    added = verdict(f"{said.rstrip('.')}, but {MADE_UP}")
    assert added.label == "hallucinated" and "5 May 1999" in {claim.output_text for claim in added.claims}


@pytest.mark.parametrize(
    "framed",
    [
        f"According to the text, {COPIED}",
        f"Based on the information provided, {COPIED}",
        f"The document states that {COPIED}",
        f"As mentioned in the contract, {COPIED}",
        f"Sure! Here is the answer: {COPIED} I hope this helps!",
        f"Thank you for your question. {COPIED} Let me know if you have any other questions.",
        f"In summary, {COPIED}",
        f"{COPIED} Is there anything else I can assist you with?",
    ],
)
def test_what_is_said_to_the_reader_is_no_new_wording(framed: str) -> None:
    found = verdict(framed)
    assert found.score == verdict(COPIED).score
    assert found.details["heat"]["text"] == framed


def test_what_people_did_not_do_is_read_and_so_are_facts_in_what_is_not_told() -> None:
    for denied in (
        "Ann Hill does not provide tall green ladders and has no children.",
        "I don't have green ladders, and I don't know what Ann Hill bought in Vienna.",
        "While there is no definitive answer, Ann Hill bought tall green ladders in Vienna.",
    ):
        assert verdict(denied).label == "hallucinated"
    told = verdict(f"{COPIED} The text does not say that Ann Hill paid 500 francs.")
    assert told.score > verdict(COPIED).score + 0.3


def test_the_score_is_the_sum_of_what_signals_add_and_none_speaks_for_faithfulness() -> None:
    found = verdict(MADE_UP)
    odds = weights().intercept + sum(found.details["contributions"].values())
    assert log_odds(found.score) == pytest.approx(odds)
    assert min(weights().of.values()) >= 0
    assert not [name for name in weights().of if "length" in name]


def test_it_abstains_where_nothing_can_be_looked_up() -> None:
    for outcome, reason in (
        (judged(MADE_UP, ""), "no_context"),
        (judged("  "), "no_output"),
        (judged("👍"), "uncertain"),
        (judged("So it is."), "uncertain"),
    ):
        assert isinstance(outcome, Abstention)
        assert outcome.reason == reason


def test_what_was_said_before_is_a_context() -> None:
    outcome = judged(COPIED, "", messages=(Turn("user", CONTEXT),))
    assert isinstance(outcome, Verdict) and outcome.label == "faithful"


def test_info_says_that_no_model_is_asked_and_what_was_learnt_from() -> None:
    info = Novelty().info
    assert info.kind == "code" and not info.needs and info.prompt
    assert info.trained_on == {"summedits", "begin", "halueval-dialogue", "halueval-summarization"}
    assert isinstance(registry.judge("novelty"), Novelty)


@pytest.mark.alone
def test_500_tokens_take_no_longer_than_a_short_loop() -> None:
    sample = Sample("s", f"{COPIED} {MADE_UP} " * 5, (CONTEXT * 20,))
    judging = loop = float("inf")
    for _ in range(20):  # in turn, so that both are slower where others compute, too
        start = time.thread_time()
        asyncio.run(Novelty().judge(sample, NONE))
        between = time.thread_time()
        sum(n % 7 for n in range(100_000))
        judging, loop = min(judging, between - start), min(loop, time.thread_time() - between)
    assert judging < 2 * loop, "0.7 to 0.8 times as long; up to 1.2 times on a busy machine"


# --- base rates ----------------------------------------------------------------------------------


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_odds_are_multiplied_by_those_of_the_base_rate(score: float, rate: float) -> None:
    moved = shifted_odds(log_odds(score), rate)
    assert moved == pytest.approx(log_odds(score) + log_odds(rate), abs=1e-9)
    assert shifted_odds(moved, 0.5, rate) == pytest.approx(log_odds(score), abs=1e-9)


def test_a_base_rate_moves_scores_but_not_their_order() -> None:
    outputs = [COPIED, "Notice is 30 days.", "The office is in Rome.", MADE_UP]
    scores = {
        rate: [verdict(each, judge=Novelty(rate)).score for each in outputs] for rate in (0.1, 0.5, 0.9)
    }
    assert all(
        low < even < high for low, even, high in zip(scores[0.1], scores[0.5], scores[0.9], strict=True)
    )
    ranks = {tuple(sorted(range(4), key=each.__getitem__)) for each in scores.values()}
    assert len(ranks) == 1


@pytest.mark.parametrize("rate", [0, 1, -0.1, 2, float("nan")])
def test_a_base_rate_is_a_share(rate: float) -> None:
    with pytest.raises(SpecError, match=r"in \(0, 1\)"):
        Novelty(base_rate=rate)


@pytest.mark.full
@pytest.mark.parametrize("true", [0.05, 0.2, 0.5, 0.8])
def test_calibrated_probabilities_give_the_share_back(true: float) -> None:
    """Scores of two classes with the densities 2s and 2(1 - s) are probabilities at even chances."""
    n = 4_000
    grid = [(at + 0.5) / n for at in range(n)]
    hallucinated = [u**0.5 for at, u in enumerate(grid) if at % 100 < true * 100]
    faithful = [1 - u**0.5 for at, u in enumerate(grid) if at % 100 >= true * 100]
    assert estimated_base_rate(hallucinated + faithful) == pytest.approx(true, abs=0.02)


def test_an_estimate_is_held_and_needs_scores() -> None:
    assert estimated_base_rate([0.001] * 10) == 0.01
    assert estimated_base_rate([0.999] * 10) == 0.99
    with pytest.raises(InputError, match="there are no verdicts"):
        estimated_base_rate([])


# --- words of judges -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("novelty", "novelty:base_rate=0.2"),
        ("sentences:of=novelty,aggregate=mean", "sentences:of=(novelty:base_rate=0.2),aggregate=mean"),
        ("auto:of=novelty", "auto:of=(novelty:base_rate=0.2)"),
        ("exact", None),
    ],
)
def test_the_option_is_set_on_judges_that_have_it(words: str, told: str | None) -> None:
    found = assuming([words, "novelty"], 0.2)[0]
    assert (None if found is None else found.words) == told
    if told is not None:
        assert registry.judge(told).info.name == told


def test_an_option_of_that_name_that_is_no_judge_is_left_alone() -> None:
    rouge, novelty = assuming(["rouge", "novelty"], 0.2)
    assert rouge is None and novelty is not None


def test_a_base_rate_is_written_as_it_was_given() -> None:
    [found] = assuming(["novelty"], 0.9999999)
    assert found is not None and found.words == "novelty:base_rate=0.9999999"
    assert registry.judge(found.words).info.name == found.words


def test_a_base_rate_for_nobody_or_said_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="none of the judges exact, contains uses a base rate"):
        assuming(["exact", "contains"], 0.2)
    with pytest.raises(SpecError, match="already sets base_rate"):
        assuming(["novelty:base_rate=.3"], 0.2)


def test_an_estimate_is_of_the_scores_at_even_chances_and_counts_what_had_no_verdict() -> None:
    samples = [Sample(str(n), text, (CONTEXT,)) for n, text in enumerate([COPIED, MADE_UP, MADE_UP, "👍"])]
    [found] = assuming(["novelty"], None, samples=lambda: samples)
    assert found is not None
    scores = [verdict(each.output or "").score for each in samples[:3]]
    assert found.base_rate == pytest.approx(estimated_base_rate(scores), abs=1e-3)
    assert (found.n_verdicts, found.n_without) == (3, 1)
    with pytest.raises(SpecError, match="no verdict on any of 1 outputs"):
        assuming(["novelty"], None, samples=lambda: samples[3:])


def test_estimating_asks_no_model() -> None:
    with pytest.raises(SpecError, match="asks a model; give a share"):
        assuming(["auto:of=novelty,explain=always"], None, samples=list)


# --- the command line ----------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    texts = [COPIED, MADE_UP, "The office is 12 km from Bern.", "Bob likes 3 dogs."]
    path.write_text("\n".join(json.dumps({"output": each, "context": CONTEXT}) for each in texts))
    return path


def test_run_writes_the_estimate_into_the_recipe(call: Call, rows: Path) -> None:
    done = call(
        "run", rows, "--judge", "novelty", "--judge", "json_valid", "--base-rate", "estimate", "--json"
    )
    assert done.code == 0, done.err
    assert "json_valid uses no base rate" in done.err
    rate = done.err.partition("novelty: base rate ")[2].partition(",")[0]
    assert 0 < float(rate) < 1
    assert f"novelty:base_rate={rate}@3" in done.out


def test_run_and_judge_take_a_share(call: Call, rows: Path) -> None:
    assert (
        "novelty:base_rate=0.2@3"
        in call("run", rows, "--judge", "novelty", "--base-rate", ".2", "--json").out
    )
    words = ("judge", "--output", "Bern is big.", "--context", CONTEXT, "--judge", "novelty", "--json")
    scores = [json.loads(call(*words, "--base-rate", rate).out)["score"] for rate in ("0.1", "0.9")]
    assert scores[0] < scores[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "-", "--base-rate", "estimate"), "can be read only once"),
        (("run", "ROWS", "--judge", "exact", "--base-rate", ".2"), "none of the judges exact uses"),
        (("run", "ROWS", "--base-rate", "20"), "a share between 0 and 1"),
        (("judge", "--output", "x", "--base-rate", "estimate"), "cannot be estimated from one output"),
    ],
)
def test_what_cannot_be_is_told(call: Call, rows: Path, words: tuple[str, ...], says: str) -> None:
    done = call(*(str(rows) if word == "ROWS" else word for word in words), stdin='{"output": "x"}\n')
    assert done.code == 2
    assert says in " ".join(done.err.split())


def test_weights_without_a_family_have_not_seen_it() -> None:
    every = registry.judge("novelty").info
    for family in ("summedits", "begin", "halueval"):
        info = registry.judge(f"novelty:without={family}").info
        assert info.trained_on < every.trained_on
        assert not [name for name in info.trained_on if name.startswith(family)]
        assert info.prompt != every.prompt, "another recipe"
    with pytest.raises(SpecError, match="begin"):
        registry.judge("novelty:without=ragtruth")


def test_values_of_csv_are_read_one_by_one() -> None:
    rows = "date,open,close\n2026-01-05,101.2,103.4\n2026-01-06,103.4,99.8\n"
    found = [
        asyncio.run(Novelty().judge(Sample("s", said, context=(rows,)), NONE))
        for said in ("The close on 5 January 2026: 103.4.", "The close on 7 January 2026: 107.3.")
    ]
    right, wrong = (each for each in found if isinstance(each, Verdict))
    assert right.score < 0.6 < 0.9 < wrong.score
    assert {claim.output_text for claim in wrong.claims} >= {"7 January 2026", "107.3"}
