"""What all adapters share, without any framework: which way a value goes, what passes, what is told."""

from __future__ import annotations

from typing import Any

import pytest
from given import CONTEXT, FALSE, QUESTION, SECRET

from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import DatasetError, ModelError, SpecError
from magistrate.integrations.judged import Adapted, told, verdict_of
from magistrate.testing import NoVerdict
from magistrate.types import Verdict
from standins import Standin

WHICH = [  # a judge, the probabilities of its labels, its own score, whether it passes
    ("faithfulness", {"faithful": 0.6, "hallucinated": 0.4}, 0.4, True),
    ("faithfulness", {"faithful": 0.5, "hallucinated": 0.5}, 0.5, False),
    ("faithfulness:threshold=.3", {"faithful": 0.6, "hallucinated": 0.4}, 0.4, False),
    ("relevance", {"relevant": 0.8, "irrelevant": 0.2}, 0.8, True),
    ("relevance", {"relevant": 0.5, "irrelevant": 0.5}, 0.5, True),
    ("relevance:threshold=.9", {"relevant": 0.8, "irrelevant": 0.2}, 0.8, False),
]


def judged(judge: str, chances: dict[str, float]) -> tuple[Adapted, Verdict]:
    adapted = Adapted(judge, ScriptedEngine(lambda prompt: chances))
    values = {"output": FALSE, "context": CONTEXT, "input": QUESTION}
    return adapted, verdict_of(adapted.outcome(adapted.sample(values)))


@pytest.mark.parametrize(("judge", "chances", "score", "passes"), WHICH)
def test_what_passes_is_what_the_judge_says_and_higher_is_better_where_it_is_turned(
    judge: str, chances: dict[str, float], score: float, passes: bool
) -> None:
    adapted, verdict = judged(judge, chances)
    assert verdict.score == pytest.approx(score)
    assert adapted.passes(verdict) is passes
    assert adapted.passes(verdict) == (verdict.label in ("faithful", "relevant"))
    good = next(iter(chances.values()))
    assert adapted.value(verdict, "maximize") == pytest.approx(good)
    assert adapted.value(verdict, "minimize") == pytest.approx(1 - good)


@pytest.mark.parametrize(("flagged", "passes"), [(0.1, True), (0.4, False)])
def test_a_judge_of_what_should_not_be_passes_below_its_threshold(flagged: float, passes: bool) -> None:
    adapted = Adapted("moderation", None)
    (low, high) = adapted.info.labels
    verdict = Verdict("sample", "moderation", high if flagged >= 0.3 else low, flagged)
    lenient = Adapted("moderation", None)
    assert lenient.passes(verdict) is True
    strict = Adapted("moderation:threshold=.3", None)
    assert strict.passes(verdict) is passes
    assert strict.value(verdict, "maximize") == 1 - flagged


def test_names_say_what_one_means() -> None:
    def names(judge: str) -> tuple[str, str]:
        return Adapted(judge, None).name("minimize"), Adapted(judge, None).name("maximize")

    assert names("faithfulness") == ("faithfulness_hallucination", "faithfulness")
    assert names("hallucination") == ("hallucination", "hallucination_faithfulness")
    assert names("relevance") == ("relevance", "relevance")


def test_a_failure_is_told_in_full_and_is_no_verdict() -> None:
    adapted = Adapted("faithfulness", ScriptedEngine([]))
    outcome = adapted.outcome(adapted.sample({"output": FALSE, "context": CONTEXT}))
    assert told(outcome).startswith("faithfulness has no verdict: failed (engine_error): ")
    with pytest.raises(NoVerdict) as raised:
        verdict_of(outcome)
    assert raised.value.outcome is outcome


def test_what_is_wrong_with_the_judge_its_model_or_the_row_is_raised() -> None:
    with pytest.raises(SpecError, match="unknown judge 'faithfulnes'"):
        Adapted("faithfulnes", None)
    row: dict[str, Any] = {"output": FALSE, "context": 3}
    with pytest.raises(DatasetError, match="context must be text or a list of texts, got a number"):
        Adapted("novelty", None).sample(row)
    lost = Adapted("faithfulness", "no/such/model.gguf")
    with pytest.raises((ModelError, SpecError), match=r"model\.gguf"):
        lost.outcome(lost.sample({"output": FALSE, "context": CONTEXT}))


def test_the_address_of_a_server_goes_with_the_name_of_its_model(served: Standin) -> None:
    adapted = Adapted("hallucination", "openai:model-a", served.url)
    verdict = verdict_of(adapted.outcome(adapted.sample({"output": FALSE, "context": CONTEXT})))
    assert verdict.score == 0.75
    assert SECRET not in str(adapted.evidence(verdict))


BELOW = [  # a model, an address that does not go with it, what is said
    (None, "http://127.0.0.1:1/v1", "needs a model on that server"),
    (ScriptedEngine([]), "http://127.0.0.1:1/v1", "ScriptedEngine is an engine with its own address"),
    ("openai:model-a", "127.0.0.1:8080", r"not the address of a server; use http://HOST:PORT/v1"),
    ("openai:model-a", "", "not the address of a server"),
    ("openai:model-a", f"http://me:{SECRET}@127.0.0.1:1/v1", "must not contain a user or a password"),
    ("openai:model-a", f"http://127.0.0.1:1/v1?key={SECRET}", "put a key into an environment variable"),
]


@pytest.mark.parametrize(("model", "base_url", "told"), BELOW)
def test_an_address_that_cannot_be_asked_is_refused_at_once_and_not_repeated(
    model: Any, base_url: str, told: str
) -> None:
    with pytest.raises(SpecError, match=told) as raised:
        Adapted("faithfulness", model, base_url)
    assert SECRET not in str(raised.value)


def test_a_model_in_this_process_has_no_address() -> None:
    adapted = Adapted("faithfulness", "smollm2-135m-instruct", "http://127.0.0.1:1/v1")
    with pytest.raises(SpecError, match="address of a server; add its model"):
        adapted.outcome(adapted.sample({"output": FALSE, "context": CONTEXT}))


def test_a_model_that_a_judge_of_code_does_not_ask_is_warned_of_once() -> None:
    with pytest.warns(UserWarning, match="needs no model"):
        adapted = Adapted("novelty", "smollm2-135m-instruct")
    verdict_of(adapted.outcome(adapted.sample({"output": FALSE, "context": CONTEXT})))
