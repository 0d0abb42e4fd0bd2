"""A key that a server or an error repeats is hidden before anything keeps it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from magistrate import _logging
from magistrate.engines.none import NoEngine
from magistrate.judges import Hallucination
from magistrate.runs.execute import judge_one
from magistrate.types import Failure, Sample, Verdict
from standins import ANSWERS, Standin, engine, ollama_like, running
from terminal import Call

KEY = "sk-echo-0123456789/abcdefgh"
SAMPLE = Sample("1", "It closes at six.", ("It closes at five.",), input="When does it close?")
FORMS = (KEY, KEY.replace("-", "\\u002d"), KEY.replace("/", "\\/"), KEY.replace("o", "\\u006F"))


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running(ollama_like()) as found:
        yield found


def reasons(said: str) -> str:
    return '{"reasons": ["The key is ' + said + '."], "score": 1}'


@pytest.mark.parametrize("stream", ["false", "true"])
def test_a_key_that_a_reply_echoes_is_kept_nowhere(standin: Standin, stream: str) -> None:
    """In an answer, in one that is refused, in thoughts, and where it comes in pieces of a stream."""
    asked = engine(standin, f"model-a,stream={stream},anew=1")
    texts = [(reasons(form), True) for form in FORMS] + [
        (f"Not JSON, but {form}", False) for form in FORMS[:1]
    ]
    for text, whole in texts:
        standin.answers = (text,)
        standin.says = lambda body, text=text: text  # type: ignore[misc]
        standin.thoughts, standin.thinks_in = f"I know {KEY}.", "reasoning_content"
        outcome = asyncio.run(judge_one(SAMPLE, Hallucination(), asked))
        assert isinstance(outcome, Verdict if whole else Failure), outcome
        kept = repr(outcome) + json.dumps([step.result for step in outcome.steps])
        if isinstance(outcome, Verdict):
            kept += f"{outcome.explanation} {outcome.details}"
        assert outcome.steps and "[hidden]" in kept
        assert not [form for form in (KEY, *FORMS) if form in kept or json.dumps(form)[1:-1] in kept], kept


def test_a_key_that_was_only_given_is_hidden_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with running(ollama_like(key=KEY)) as standin:
        asked = engine(standin)
        standin.answers = (reasons(KEY),)
        outcome = asyncio.run(judge_one(SAMPLE, Hallucination(), asked))
    assert isinstance(outcome, Verdict) and KEY not in repr(outcome.steps) + repr(outcome.details)


def test_a_key_in_the_words_of_an_error_is_hidden(standin: Standin) -> None:
    asked = engine(standin)
    for status, body in ((400, {"error": {"message": f"bad: {KEY}"}}), (200, {"choices": [], "error": KEY})):

        def answer(method: str, path: str, *_: Any, status: int = status, body: Any = body) -> Any:
            return status, body

        standin.answer = answer  # type: ignore[method-assign]
        outcome = asyncio.run(judge_one(SAMPLE, Hallucination(), asked))
        assert isinstance(outcome, Failure) and KEY not in repr(outcome) + repr(outcome.steps)


@dataclass(frozen=True)
class Telling(Hallucination):
    """A judge whose error repeats a key."""

    name: str = "telling"

    async def judge(self, sample: Sample, engine: Any) -> Any:
        raise RuntimeError(f"401 for {KEY}")


def test_a_key_in_any_error_of_a_judge_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SERVICE_TOKEN", KEY)
    outcome = asyncio.run(judge_one(SAMPLE, Telling(), NoEngine()))
    assert isinstance(outcome, Failure) and "[hidden]" in outcome.message and KEY not in outcome.message


def test_a_run_and_its_page_hold_no_key(standin: Standin, tmp_path: Path, call: Call) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(json.dumps({"output": SAMPLE.output, "context": SAMPLE.context[0]}) + "\n")
    standin.answers = (*ANSWERS, reasons(KEY))
    store = tmp_path / "runs.db"
    made = call(
        *("run", data, "--judge", "hallucination", "--model", "openai:model-a", "--base-url", standin.url),
        *("--store", store),
    )
    assert made.code == 0, made.err
    shown = call("export", "last", "--store", store, "--to", tmp_path / "page.html")
    assert shown.code == 0, shown.err
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"[hidden]" in text for text in texts)
    assert not [text for text in texts if KEY.encode() in text]
    assert KEY not in made.out + made.err


def test_words_and_short_values_stay_and_passwords_in_addresses_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DB_PASSWORD", "faithful"), ("MAX_TOKENS", "100000"), ("A_KEY", "abc123")):
        monkeypatch.setenv(name, value)
    assert _logging.without_keys("faithful, 100000, abc123") == "faithful, 100000, abc123"
    monkeypatch.setenv("DATABASE", "postgresql://me:pass-w0rd@host/db")
    assert _logging.without_keys("it was pass-w0rd") == "it was [hidden]"
    begun = time.perf_counter()
    _logging.without_keys("\\u00" * 200_000)
    assert time.perf_counter() - begun < 5
