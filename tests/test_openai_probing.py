"""What an OpenAI-compatible engine sees of its server, claims of it and keeps."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magistrate._paths import home
from magistrate.engines.base import EngineSettings, Option
from magistrate.engines.openai import open_engine
from magistrate.engines.openai.engine import OpenAIEngine
from magistrate.engines.openai.server_capabilities import ServerCapabilities, recall, remember
from magistrate.errors import EngineBusy, EngineError, EngineGone, OverLength, SpecError
from magistrate.types import Prompt
from standins import CHAT, Standin, bare, engine, ollama_like, openai_like, running, sglang_like, vllm_like

YES_NO = (Option("supported", ("Yes", "yes")), Option("hallucinated", ("No", "no")))
LONG = Prompt.of("word " * 5000)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def vllm() -> Iterator[Standin]:
    with running(vllm_like()) as standin:
        yield standin


@pytest.mark.parametrize(
    ("standin", "server", "ways", "choose"),
    [
        (openai_like(), "unknown, owned by someone", ("response_format json_schema, strict",), "top_k of 4"),
        (
            vllm_like(),
            "vLLM 0.18.2",
            (
                "structured_outputs.grammar, Lark",
                "structured_outputs.grammar",
                "response_format json_schema",
            ),
            "exact",
        ),
        (sglang_like(), "SGLang 0.5", ("ebnf", "response_format json_schema"), "top_k of 4"),
        (ollama_like(), "Ollama 0.40.12", ("response_format json_schema",), "label_only"),
        (bare(), "unknown, owned by someone", (), "label_only"),
    ],
    ids=["openai", "vllm", "sglang", "ollama", "bare"],
)
def test_what_a_server_shows_is_claimed_and_nothing_else(
    standin: Standin, server: str, ways: tuple[str, ...], choose: str
) -> None:
    with running(standin):
        made = engine(standin)
        made.close()
    assert made.info.ways["server"] == server
    assert made.capabilities.ways == ways
    assert made.info.ways["choose"] == choose
    assert ("constraints" in made.info.can) == bool(ways)
    assert ("likelihood" in made.info.can) == standin.scores
    assert ("exact_probability" in made.info.can) == standin.scores
    assert "data_isolation" not in made.info.can
    assert made.info.ways["data"].startswith("escaped")


def test_what_was_seen_is_kept_and_asked_again_when_the_server_is_another(vllm: Standin) -> None:
    first = engine(vllm)
    asked = len(vllm.requests)
    assert engine(vllm).capabilities == first.capabilities
    assert len(vllm.got("/v1/chat/completions")) == len([p for p, _ in vllm.requests[:asked] if "chat" in p])
    vllm.pages = {"/version": {"version": "0.19"}}
    vllm.takes = CHAT
    assert engine(vllm).capabilities.ways == ("response_format json_schema",)
    vllm.most_top = 0
    assert engine(vllm).capabilities.top == 4  # as it is kept
    assert engine(vllm, "model-a,probe=anew").capabilities.top == 0


def test_an_engine_asks_nothing_until_it_connects_or_is_called() -> None:
    with running(openai_like()) as standin:
        made = OpenAIEngine("model-a", base_url=standin.url, key="none", timeout=20)
        assert standin.requests == []
        with pytest.raises(EngineError, match="not connected yet"):
            print(made.info)
        assert asyncio.run(made.choose(Prompt.of("Is it so?"), YES_NO)).best == "supported"
        found, asked = made.capabilities, len(standin.requests)
        asyncio.run(made.connect())
        assert (made.capabilities, len(standin.requests)) == (found, asked), "it connects once"


def test_calls_that_come_together_connect_once() -> None:
    async def several(made: OpenAIEngine) -> None:
        await asyncio.gather(*(made.connect() for _ in range(5)))

    with running(vllm_like()) as standin:
        made = OpenAIEngine("model-a", base_url=standin.url, key="none", timeout=20)
        asyncio.run(several(made))
        assert len([path for path, _ in standin.requests if path == "/v1/models"]) == 1


def test_windows_are_those_that_the_server_tells() -> None:
    with running(vllm_like()) as one, running(ollama_like()) as two, running(bare()) as three:
        assert engine(one).info.context_window == 4096
        assert engine(two).info.context_window == 4096
        assert engine(three).info.ways["window"].startswith("unknown")
        assert engine(three, "model-a,window=2000").info.context_window == 2000


def test_a_server_that_cuts_long_prompts_is_not_given_any() -> None:
    with running(ollama_like()) as standin, running(bare()) as other:
        for call in ("generate", "choose"):
            made = engine(standin)
            asked = (LONG, YES_NO) if call == "choose" else (LONG,)
            with pytest.raises(OverLength, match="silently cuts"):
                asyncio.run(getattr(made, call)(*asked))
        assert asyncio.run(engine(other).generate(LONG)).text


def test_answers_are_kept_only_where_a_seed_was_seen_to_repeat_a_draw() -> None:
    def drawn(body: Any) -> str:
        return f"draw {body['seed']}" if body.get("temperature") else "It rains."

    with running(openai_like(says=drawn)) as one, running(openai_like()) as two:
        assert "repeatable" in engine(one).info.can
        assert "repeatable" not in engine(two).info.can


def test_a_model_that_is_not_there_is_told_with_those_that_are(vllm: Standin) -> None:
    with pytest.raises(SpecError, match="no model 'nothing'; it has: model-a, model-b"):
        engine(vllm, "nothing")


def test_a_wrong_key_ends_it_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-wrong-1234567890")
    with running(openai_like(key="right")) as standin, pytest.raises(EngineGone) as caught:
        open_engine("model-a", EngineSettings(base_url=standin.url))
    assert "OPENAI_API_KEY" in str(caught.value)
    assert "1234567890" not in str(caught.value)


def test_nobody_there_is_said_so() -> None:
    with running(bare()) as standin:
        pass
    with pytest.raises(EngineError, match="no connection"):
        engine(standin)


def test_options_of_other_engines_are_refused() -> None:
    with pytest.raises(SpecError, match="--device"):
        open_engine("m", EngineSettings(base_url="http://127.0.0.1:9/v1", device="GPU"))


def test_what_was_found_is_kept_until_the_server_is_another(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path))
    assert recall("http://a/v1", "m", "one") is None
    remember("http://a/v1", "m", "one", ServerCapabilities(top=5))
    remember("http://b/v1", "m", "one", ServerCapabilities(top=7))
    assert recall("http://a/v1", "m", "one") == ServerCapabilities(top=5)
    assert recall("http://a/v1", "m", "two") is None
    assert recall("http://a/v1", "other", "one") is None
    for port in range(300):
        remember(f"http://127.0.0.1:{port}/v1", "m", "one", ServerCapabilities())
    assert recall("http://a/v1", "m", "one") is None  # only the newest are kept
    assert recall("http://127.0.0.1:299/v1", "m", "one") == ServerCapabilities()


# --- where the server breaks while it is looked at ------------------------------------------------


def broken_at(place: int, status: int) -> Callable[[str, Any], int | None]:
    """Breaks at the request of that place, counted from 0, and at no other."""
    counted = itertools.count()
    return lambda path, body: status if next(counted) == place else None


def breaking_at(*parameters: str) -> Callable[[str, Any], int | None]:
    """Breaks at every request with one of these parameters."""
    return lambda path, body: 500 if set(parameters) & set(body or ()) else None


def kept() -> Any:
    """What is kept of all servers."""
    path = home() / "servers.json"
    return json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize("statuses", [(500,), (503, 0, 502, 504, 429)], ids=["500", "others"])
def test_what_breaks_once_is_asked_again_and_hides_nothing(statuses: tuple[int, ...], vllm: Standin) -> None:
    right, seen = engine(vllm).capabilities, kept()
    for place, status in zip(range(len(vllm.requests)), itertools.cycle(statuses)):
        vllm.breaks = broken_at(place, status)
        made = engine(vllm, "model-a,probe=anew")
        assert (made.capabilities, kept()) == (right, seen), f"HTTP {status} at request {place}"
        assert "probing" not in made.info.ways


def test_a_server_that_breaks_at_a_parameter_works_without_it_and_is_asked_anew_each_time() -> None:
    with running(openai_like()) as standin:
        standin.breaks = breaking_at("logprobs")
        made = engine(standin)
        assert (made.capabilities.top, made.info.ways["choose"]) == (0, "label_only")
        assert made.capabilities.ways == ("response_format json_schema, strict",)
        assert "HTTP 500 at chat/completions with logprobs, top_logprobs" in made.info.ways["probing"]
        standin.says = lambda body: "Yes"
        assert asyncio.run(made.choose(Prompt.of("Is it so?"), YES_NO)).best == "supported"
        assert kept() == {}
        standin.requests.clear()
        assert engine(standin).capabilities == made.capabilities
        assert len([body for body in standin.got("/v1/chat/completions") if "logprobs" in body]) == 4
        standin.breaks = lambda path, body: None
        assert engine(standin).capabilities.top == 4
        assert [each["findings"]["top"] for each in kept().values()] == [4]


def test_what_was_kept_before_is_not_lost_to_a_bad_moment() -> None:
    with running(openai_like()) as standin:
        right, seen = engine(standin).capabilities, kept()
        standin.breaks = breaking_at("logprobs")
        assert engine(standin, "model-a,probe=anew").capabilities.top == 0
        assert kept() == seen
        assert engine(standin).capabilities == right


def test_a_server_that_breaks_at_whatever_it_does_not_know_costs_little_more_than_one_that_refuses() -> None:
    with running(openai_like()) as standin, running(openai_like()) as other:
        refusing = engine(standin).capabilities
        other.breaks = lambda path, body: 500 if set(body or ()) - CHAT - {"model"} else None
        start = time.monotonic()
        breaking = engine(other)
        assert time.monotonic() - start < 10
        assert replace(breaking.capabilities, broken=()) == refusing
        assert breaking.capabilities.broken
        assert 0 < len(other.requests) - len(standin.requests) <= 8
        assert other.url not in " ".join(kept())


@pytest.mark.parametrize(("status", "kind"), [(429, EngineBusy), (503, EngineBusy), (0, EngineError)])
def test_who_cannot_be_asked_now_is_not_taken_for_one_who_cannot(
    status: int, kind: type[EngineError]
) -> None:
    with running(openai_like()) as standin:
        standin.breaks = lambda path, body: status if "response_format" in (body or ()) else None
        with pytest.raises(kind) as caught:
            engine(standin)
        assert caught.value.status == (status or None)
        assert kept() == {}


@pytest.mark.parametrize("path", ["/version", "/tokenize", "/v1/completions", "/v1/models"])
def test_a_place_that_breaks_is_not_remembered_as_missing(vllm: Standin, path: str) -> None:
    vllm.breaks = lambda where, body: 500 if where == path else None
    made = engine(vllm)
    assert "exact_probability" not in made.info.can or path in ("/version", "/v1/models")
    assert f"HTTP 500 at {path.removeprefix('/v1/')}" in made.info.ways["probing"]
    assert kept() == {}


def test_a_page_for_people_where_others_tell_of_themselves_says_nothing_and_breaks_nothing() -> None:
    pages = dict.fromkeys(("/props", "/version", "/api/version", "/get_server_info"), b"<html>Welcome</html>")
    with running(bare(pages=pages)) as standin:
        assert engine(standin).capabilities.broken == ()
        assert len(kept()) == 1


def test_the_doctor_tells_what_broke(call: Callable[..., Any]) -> None:
    with running(openai_like()) as standin:
        words = ("doctor", "--quick", "--model", "openai:model-a", "--base-url", standin.url, "--json")
        assert "probing" not in {each["what"] for each in call(*words).data}
        standin.breaks = breaking_at("logprobs")
        words = tuple("openai:model-a,probe=anew" if each == "openai:model-a" else each for each in words)
        (found,) = [each for each in call(*words).data if each["what"] == "probing"]
    assert found["state"] == "note"
    assert "HTTP 500 at chat/completions with logprobs" in found["detail"]
    assert "tested again" in found["detail"]
