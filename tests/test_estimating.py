"""What a run will take is known before it begins, and it never takes more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from magistrate.api.estimate import Estimate, Rate, earlier_rates, estimate
from magistrate.datasets import load
from magistrate.engines.base import Engine
from magistrate.engines.embedded.engine import LocalEngine
from magistrate.engines.prices import Price
from magistrate.engines.scripted import ScriptedEngine
from magistrate.errors import EngineGone, SpecError
from magistrate.judges import registry
from magistrate.judges.base import Call, JudgeInfo
from magistrate.report.estimate import dollars, render
from magistrate.runs.execute import judge_one
from magistrate.store import Store
from magistrate.types import Outcome, Prompt, Recipe, Sample, Usage, Verdict

ENGINE = ScriptedEngine([])  # has no answer to anything: to ask it is an error


@dataclass(frozen=True)
class Asks:
    """Asks its sample's output, as often as `times`, with an answer of ten tokens."""

    name: str = "asks"
    times: int = 1
    extra: int = 0
    own: Engine | None = None

    @property
    def info(self) -> JudgeInfo:
        return JudgeInfo(self.name, requires=("context", "output"))

    def plan(self, sample: Sample) -> list[Call]:
        return [Call(Prompt.of(sample.output or ""), 10, self.extra, self.own, self.times)]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        raise EngineGone("an estimate asks nothing")


class Broken(Asks):
    def plan(self, sample: Sample) -> list[Call]:
        raise KeyError("odd")


def without_plan() -> Any:
    judge = type("Silent", (), {"info": JudgeInfo("silent"), "judge": Asks.judge})
    return judge()


def samples(*words: int) -> list[Sample]:
    return [Sample(f"s{n}", " ".join(["word"] * each), ("context",)) for n, each in enumerate(words)]


def estimated(data: Any, judges: Sequence[Any], engine: Engine = ENGINE, **options: Any) -> Estimate:
    return asyncio.run(estimate(data, judges, engine, **options))


def printed(found: Estimate, width: int = 80) -> str:
    page = StringIO()
    render(found, Console(file=page, width=width, markup=False, emoji=False, highlight=False))
    return page.getvalue()


# --- counts --------------------------------------------------------------------------------------


def test_calls_and_tokens_are_those_of_the_plan() -> None:
    (found,) = estimated(samples(1, 2, 3), [Asks(times=2, extra=5)]).judges
    assert (found.samples, found.asked, found.calls) == (3, 3, 6)
    assert found.prompt_tokens == 2 * (1 + 2 + 3) + 6 * 5
    assert found.answer_tokens == 60
    assert (found.seconds, found.cost, found.counted) == (None, None, None)


def test_nothing_is_asked_of_the_model() -> None:
    engine = ScriptedEngine([])
    estimated(load("quickstart"), [registry.judge("rubric"), registry.judge("candidates")], engine)
    assert engine.prompts == []


def test_what_will_not_be_asked_is_counted_by_its_reason() -> None:
    data = [
        *samples(1, 1),
        Sample("none", "words", ()),
        Sample("blank", "words", (" ",)),
        Sample("silent", " ", ("context",)),
        Sample("later", None, ("context",)),
        *samples(90),
    ]
    (found,) = estimated(data, [Asks()], ScriptedEngine([], context_window=80)).judges
    assert found.abstains == {"no_context": 2, "no_output": 1, "over_length": 1}
    assert (found.samples, found.asked, found.calls, found.no_output) == (7, 2, 2, 1)
    (other,) = estimated([Sample("s", "x", ("c",))], [registry.judge("relevance")]).judges
    assert other.abstains == {"missing_input": 1} and other.calls == 0


def test_a_judge_that_says_nothing_is_unknown_and_not_free() -> None:
    found = estimated(samples(1), [Asks(), without_plan()], price=Price(1, 1), rates={"asks": Rate(1.0)})
    asks, silent = found.judges
    assert (asks.calls, silent.calls, silent.prompt_tokens, silent.answer_tokens) == (1, None, None, None)
    assert silent.cost is None is found.cost is found.calls is found.prompt_tokens is found.seconds
    assert "silent does not plan its calls" in printed(found)


def test_a_judge_of_code_asks_nothing() -> None:
    judge = type("Code", (), {"info": JudgeInfo("code", kind="code"), "judge": Asks.judge})()
    (found,) = estimated(samples(1, 2), [judge], price=Price(1, 1)).judges
    assert (found.asked, found.calls, found.prompt_tokens, found.cost) == (2, 0, 0, 0.0)


def test_a_plan_that_fails_is_counted_and_no_end_of_the_estimate() -> None:
    found = estimated(samples(1, 2), [Broken()])
    assert (found.judges[0].failing, found.judges[0].asked, found.calls) == (2, 0, 0)
    assert "cannot plan its calls for 2 samples" in printed(found)


def test_an_engine_that_is_gone_is_said() -> None:
    class Gone(ScriptedEngine):
        async def count(self, prompt: Prompt) -> int:
            raise EngineGone("gone")

    with pytest.raises(EngineGone):
        estimated(samples(1), [Asks()], Gone([]))


# --- time and money ------------------------------------------------------------------------------


def test_time_is_known_from_earlier_runs_and_cost_from_a_price() -> None:
    found = estimated(
        samples(*[4] * 10), [Asks()], rates={"asks": Rate(2.0, "run-1")}, price=Price(1_000_000, 2_000_000)
    )
    assert found.seconds == 5.0
    assert found.cost == 40 + 2 * 100
    assert estimated(samples(1), [Asks()], rates={"asks": None, "other": Rate(1)}).seconds is None
    shown = printed(found)
    assert "5.0 s" in shown and "$240.00" in shown and "based on the speed of run-1" in shown


def test_what_another_engine_is_asked_costs_nothing_of_this_ones_price() -> None:
    judge = Asks(own=ScriptedEngine([]))
    found = estimated(samples(5), [judge], price=Price(1, 1))
    assert (found.calls, found.judges[0].elsewhere, found.cost) == (1, 1, 0.0)
    assert "1 calls of asks go to its own engine; their cost is not included" in printed(found)


# --- many samples --------------------------------------------------------------------------------


@given(st.integers(0, 200), st.integers(2, 40), st.integers(1, 3))
def test_more_samples_than_are_counted_are_scaled(n: int, most: int, times: int) -> None:
    (found,) = estimated(samples(*[3] * n), [Asks(times=times)], most=most).judges
    assert (found.samples, found.asked) == (n, n)
    assert (found.calls, found.prompt_tokens) == (n * times, 3 * n * times)
    if n <= most:
        assert found.counted is None
    else:
        assert found.counted is not None and most // 2 <= found.counted <= most


def test_the_counted_ones_are_spread_over_the_whole() -> None:
    (found,) = estimated(samples(*range(1, 1001)), [Asks()], most=100).judges
    assert found.prompt_tokens == pytest.approx(sum(range(1, 1001)), rel=0.02)


def test_what_is_scaled_says_so() -> None:
    found = estimated(samples(*[1] * 30), [Asks()], most=10)
    assert found.estimated_from in range(5, 11)
    assert f"Extrapolated from {found.estimated_from} evenly spaced samples" in printed(found)
    assert "upper bounds" not in printed(found)
    assert "upper bounds" in printed(estimated(samples(1), [Asks()]))


def test_a_stream_is_read_once() -> None:
    def once() -> Iterator[Sample]:
        yield from samples(*[2] * 50)

    assert estimated(once(), [Asks(), Asks("other")], most=10).calls == 100


def test_counting_none_is_refused() -> None:
    with pytest.raises(SpecError, match="at least 2"):
        estimated([], [Asks()], most=1)


# --- no run takes more ---------------------------------------------------------------------------

SPECS = [
    "faithfulness",
    "faithfulness:permute=true,prior=empty_context",
    "faithfulness:explain=before,permute=true",
    "faithfulness:explain=after,prior=empty_context",
    "hallucination",
    "candidates:permute=true",
    "rubric:reasoning_tokens=32,most=2",
    "rubric:free_stage=false,most=2",
    "sentences",
    "moderation",
]
EXACT = SPECS[:2] + SPECS[-2:]


@pytest.mark.parametrize(
    "spec", [SPECS[0], *(pytest.param(spec, marks=pytest.mark.full) for spec in SPECS[1:])]
)
def test_no_judge_takes_more_than_was_said(spec: str, engine: LocalEngine) -> None:
    judge = registry.judge(spec)
    data = list(load("quickstart", limit=1))
    said = estimated(data, [judge], engine)
    outcomes = [asyncio.run(judge_one(sample, judge, engine)) for sample in data]
    assert all(isinstance(outcome, Verdict) for outcome in outcomes)
    took = sum((outcome.usage for outcome in outcomes), Usage())
    assert said.calls is not None and said.prompt_tokens is not None and said.answer_tokens is not None
    assert took.calls <= said.calls and took.prompt <= said.prompt_tokens
    assert took.generated <= said.answer_tokens
    if spec in EXACT:
        assert (took.calls, took.prompt) == (said.calls, said.prompt_tokens)


# --- earlier runs --------------------------------------------------------------------------------

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
TWO_JUDGES = {
    name: Recipe(f"{name}@1", "tiny", "f" * 64, "", "", 0, 4, "0.1.0") for name in ("faithfulness", "other")
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    moments = (NOON + timedelta(seconds=second) for second in count(0, 10))
    with Store.open(tmp_path / "runs.db", clock=lambda: next(moments)) as opened:
        yield opened


def stored(store: Store, outcomes: Sequence[Outcome], **given: Any) -> str:
    words: dict[str, Any] = {"dataset": "d", "dataset_digest": "d" * 64, "model": "tiny"}
    words |= {"engine_fingerprint": "f" * 64, "recipes": TWO_JUDGES}
    run = store.create_run(**(words | given))
    store.add_samples(run, samples(1, 1, 1, 1))
    for outcome in outcomes:
        store.add_outcome(run, outcome)
    return run


def verdicts(judge: str, seconds: float, usage: Usage, n: int = 4) -> list[Outcome]:
    return [Verdict(f"s{i}", judge, "faithful", 0.1, usage=usage, seconds=seconds) for i in range(n)]


def test_the_speed_is_that_of_the_newest_finished_run(store: Store) -> None:
    asked = Usage(calls=1, prompt=5)
    run = stored(store, [*verdicts("faithfulness", 1.0, asked), *verdicts("other", 3.0, asked)])
    assert earlier_rates(store, "faithfulness@1", "f" * 64) is None  # not finished
    store.finish_run(run, "done")
    rate = earlier_rates(store, "faithfulness@1", "f" * 64)
    assert rate is not None and rate.run == run
    record = store.find_run(run)
    assert record.finished_at is not None
    seconds = (record.finished_at - record.created_at).total_seconds()
    assert rate.samples_per_second == pytest.approx(4 / (seconds * 1 / 4))  # a quarter of the time was its
    for judge, fingerprint in (
        ("faithfulness@2", "f" * 64),
        ("faithfulness@1", "e" * 64),
        ("third@1", "f" * 64),
    ):
        assert earlier_rates(store, judge, fingerprint) is None


def test_runs_that_reused_answers_or_asked_nothing_say_nothing_of_speed(store: Store) -> None:
    good = stored(store, verdicts("faithfulness", 1.0, Usage(calls=1)))
    store.finish_run(good, "done")
    for usage in (Usage(reused=1), Usage()):
        store.finish_run(stored(store, verdicts("faithfulness", 1.0, usage)), "done")
    rate = earlier_rates(store, "faithfulness@1", "f" * 64)
    assert rate is not None and rate.run == good


# --- how it reads --------------------------------------------------------------------------------


def test_it_is_readable_in_80_columns_and_is_plain_data() -> None:
    hostile = replace(Asks(), name="a\x1b[2Jlong" + "-name" * 12)
    found = estimated(load("quickstart"), [hostile, Asks(times=10**6)], price=Price(3, 15), rates={})
    shown = printed(found)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b[2J" not in shown and "unknown" in shown and "together" in shown
    data = json.loads(json.dumps(found.to_dict()))
    assert data["samples"] == 72 and data["calls"] == 72 * (10**6 + 1)
    assert data["judges"]["asks"]["prompt_tokens"] > 0 and data["estimated_from"] is None
    assert data["seconds"] is None and data["cost"] > 0


def test_dollars_have_the_decimals_that_say_something() -> None:
    assert [dollars(each) for each in (0, 0.00012, 0.5, 1234.5)] == [
        "$0.00",
        "$0.0001",
        "$0.5000",
        "$1,234.50",
    ]
