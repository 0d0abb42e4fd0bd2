"""The engines on servers against a server that breaks: what a fault becomes, and that none is a verdict."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fault_server import FAULTS, MODEL, Answer, FaultServer, fault_server
from magistrate.engines.anthropic import open_engine as open_anthropic
from magistrate.engines.base import Engine, EngineSettings
from magistrate.engines.openai import open_engine as open_openai
from magistrate.engines.remote.retry import BUSY_RETRIES, RETRIES
from magistrate.errors import EngineGone
from magistrate.judges import registry
from magistrate.runs.execute import judge_one
from magistrate.types import Abstention, Failure, Sample, Verdict

TIMEOUT = 30.0  # seconds for a call with its retries
SHORT = 3.7  # the same where a fault takes all of it; not a multiple of what Retry-After says
SAMPLE = Sample("s", "The zebra sleeps soundly.", ("The zebra is asleep.",))
OPENERS: Mapping[str, Callable[[str, EngineSettings], Engine]] = {
    "openai": open_openai,
    "anthropic": open_anthropic,
}
JUDGES = ["faithfulness", "hallucination"]
# Which engine meets every fault, and how many of the judges ask it then.
MATRIX = [
    ("openai", 1),
    ("anthropic", 1),
    *(
        pytest.param(kind, len(JUDGES), marks=pytest.mark.full)
        for kind in ("openai", "anthropic", "openai,stream=true", "anthropic,stream=true")
    ),
]

ONCE = range(1, 2)
AGAIN = range(1 + RETRIES, 2 + RETRIES)
WHILE_THERE_IS_TIME = range(2, 2 + BUSY_RETRIES)

# What becomes of a fault, and how often it is asked.
EXPECTED: Mapping[str, tuple[str, range]] = {
    "reset-at-once": ("engine_error", AGAIN),
    "reset": ("engine_error", AGAIN),
    "closed": ("engine_error", AGAIN),
    "loris": ("timeout", ONCE),
    "hang": ("timeout", ONCE),
    "400": ("refused", ONCE),
    "400-context": ("over_length", ONCE),
    "401": ("gone", ONCE),
    "403": ("gone", ONCE),
    "404": ("gone", ONCE),
    "408": ("timeout", AGAIN),
    "413": ("over_length", ONCE),
    "429": ("rate_limited", WHILE_THERE_IS_TIME),
    "429-after": ("rate_limited", range(2, 6)),
    "quota": ("gone", ONCE),
    "500": ("engine_error", AGAIN),
    "503": ("rate_limited", WHILE_THERE_IS_TIME),
    "invalid-json": ("engine_error", AGAIN),
    "truncated-json": ("engine_error", AGAIN),
    "no-json": ("engine_error", AGAIN),
    "wrong-schema": ("invalid_output", ONCE),
    # Where no probabilities are listed, an engine may ask for the answer in words.
    "other-schema": ("invalid_output", range(1, 3)),
    "empty-choices": ("invalid_output", range(1, 3)),
    "content-filter": ("refused", ONCE),
    "big": ("engine_error", AGAIN),
    "not-gzip": ("engine_error", AGAIN),
    "gzip-bomb": ("engine_error", AGAIN),
    "not-utf8": ("engine_error", AGAIN),
}
SLOW = {"loris", "hang", "429", "429-after", "503"}
# A body that is no stream has no events: whether it was JSON, nobody looks.
NO_STREAM = {"invalid-json", "truncated-json", "no-json", "wrong-schema", "other-schema", "empty-choices"}


def right(body: Mapping[str, Any]) -> Answer:
    """What reads as faithful, in every form that is asked for."""
    asked = json.dumps(body)
    if '"output_config"' in asked and "reasons" not in asked:
        return Answer('{"answer": "Yes"}')
    if "reasons" in asked:
        return Answer(json.dumps({"reasons": ["It says so."], "score": 0.0}))
    return Answer("Yes", first={"Yes": 0.99, "No": 0.01})


@dataclass(frozen=True)
class Met:
    """What a fault became, how often it was asked, and how long it took."""

    outcome: Any
    asked: int
    seconds: float

    @property
    def became(self) -> str:
        """The kind of outcome in one word."""
        if isinstance(self.outcome, EngineGone):
            return "gone"
        if isinstance(self.outcome, Failure):
            return self.outcome.code
        return self.outcome.reason if isinstance(self.outcome, Abstention) else type(self.outcome).__name__


async def meet(server: FaultServer, engine: Engine, fault: str, judge: str) -> Met:
    begun = time.monotonic()
    try:
        outcome: Any = await judge_one(SAMPLE, registry.judge(judge), engine)
    except Exception as error:
        outcome = error
    taken = time.monotonic() - begun
    return Met(outcome, sum(each.struck for each in server.calls() if each.fault == fault), taken)


def all_faults(kind: str, judges: int) -> dict[tuple[str, str], Met]:
    """Every fault met by so many judges, whose turn it is; those that take all their time come first."""
    name, comma, options = kind.partition(",")
    asking = {
        fault: [JUDGES[(at + n) % len(JUDGES)] for n in range(judges)] for at, fault in enumerate(FAULTS)
    }
    asking["fine"] = JUDGES

    async def work() -> dict[tuple[str, str], Met]:
        found: dict[tuple[str, str], Met] = {}
        for some in (sorted(SLOW), ["fine", *FAULTS.keys() - SLOW]):
            pairs = [(fault, judge) for fault in some for judge in asking[fault]]
            met = await asyncio.gather(*(meet(servers[j], engines[f, j], f, j) for f, j in pairs))
            found.update(zip(pairs, met, strict=True))
        return found

    with served() as first, served() as second:
        servers = dict(zip(JUDGES, (first, second), strict=True))
        engines = {
            (fault, judge): OPENERS[name](
                f"{MODEL}{comma}{options}",
                EngineSettings(base_url=server.at(fault), timeout=SHORT if fault in SLOW else TIMEOUT),
            )
            for judge, server in servers.items()
            for fault in asking
            if judge in asking[fault]
        }
        return asyncio.run(work())


def served() -> Any:
    return fault_server(right, spares=lambda text: "zebra" not in text, pace=0.2)


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    """A home and keys of one's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MAGISTRATE_HOME", str(tmp_path_factory.mktemp("home")))
        for name in ("OPENAI", "ANTHROPIC"):
            patch.setenv(f"{name}_API_KEY", "sk-of-a-test-0123456789")
            patch.delenv(f"{name}_BASE_URL", raising=False)
        yield patch


def test_every_fault_has_an_expected_end() -> None:
    assert set(EXPECTED) == set(FAULTS)


@pytest.mark.full
@pytest.mark.parametrize(("kind", "judges"), MATRIX)
def test_a_fault_has_its_end_in_time_and_is_never_a_verdict(
    apart: pytest.MonkeyPatch, kind: str, judges: int
) -> None:
    found = all_faults(kind, judges)
    for judge in JUDGES:
        outcome = found.pop(("fine", judge)).outcome
        assert isinstance(outcome, Verdict) and outcome.label == "faithful", outcome
    wrong = {name: one for name, one in found.items() if not is_as_expected(one, kind, name[0])}
    assert (wrong, len(found)) == ({}, judges * len(FAULTS))


def is_as_expected(one: Met, kind: str, fault: str) -> bool:
    """Whether a fault became what it should, in time, with no more questions, and shows no key."""
    became, times = EXPECTED[fault]
    ends: tuple[str, ...] = (became,)
    if "stream" in kind and fault in NO_STREAM:
        ends, times = ("engine_error", "invalid_output"), range(1, 2 + RETRIES)
    in_time = one.seconds < (SHORT if fault in SLOW else TIMEOUT) + 5
    said = not isinstance(one.outcome, Verdict) and "sk-of-a-test" not in str(one.outcome)
    return said and in_time and one.became in ends and one.asked in times


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_a_server_that_is_gone_refuses_the_connection(apart: pytest.MonkeyPatch, kind: str) -> None:
    with served() as server:
        engine = OPENERS[kind](MODEL, EngineSettings(base_url=server.at("fine"), timeout=TIMEOUT))
    outcome = asyncio.run(judge_one(SAMPLE, registry.judge("faithfulness"), engine))
    assert isinstance(outcome, Failure) and outcome.code == "engine_error"
    assert "check that the server is running" in outcome.message
    counters = engine.counters  # type: ignore[attr-defined]
    assert (counters.attempts, counters.failures) == (1 + RETRIES, 1)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_who_never_was_there_is_told_when_the_engine_is_made(apart: pytest.MonkeyPatch, kind: str) -> None:
    with served() as server:
        place = server.at("refused")
    with pytest.raises(Exception, match="check that the server is running"):
        OPENERS[kind](MODEL, EngineSettings(base_url=place, timeout=TIMEOUT))


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", ["reset", "500", "429-after", "truncated-json"])
def test_what_breaks_now_and_then_costs_nothing_but_time(
    apart: pytest.MonkeyPatch, kind: str, fault: str
) -> None:
    samples = [Sample(f"s{n}", f"The zebra sleeps {n}.", ("The zebra is asleep.",)) for n in range(12)]

    async def judged(engine: Engine) -> list[Any]:
        judge = registry.judge("faithfulness")
        return await asyncio.gather(*(judge_one(each, judge, engine) for each in samples))

    with served() as server:
        server.wait = 0.1
        settings = EngineSettings(base_url=server.at(f"{fault}@40"), concurrency=4)
        engine = OPENERS[kind](MODEL, settings)
        outcomes = asyncio.run(judged(engine))
        struck = sum(each.struck for each in server.calls())
    assert [each.label for each in outcomes] == ["faithful"] * len(samples)
    assert struck > 0
    assert sum(each.usage.calls for each in outcomes) == len(samples) + struck
    assert engine.counters.retries == struck  # type: ignore[attr-defined]
    assert engine.counters.under_way == 0  # type: ignore[attr-defined]


def test_a_place_for_what_was_seen_of_servers_holds_no_key(apart: pytest.MonkeyPatch, tmp_path: Path) -> None:
    apart.setenv("MAGISTRATE_HOME", str(tmp_path))
    with served() as server:
        for opener in OPENERS.values():
            opener(MODEL, EngineSettings(base_url=server.at("fine")))
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or b"sk-of-a-test" not in file.read_bytes()
