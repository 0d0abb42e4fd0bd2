"""The OpenAI-compatible engine against stand-ins for servers: what it sees, claims, sends and makes of it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from magistrate.constraints import constraint
from magistrate.engines.base import Choice, Option, Sampling, UnusableAnswer, exact_choice
from magistrate.errors import (
    CapabilityError,
    EngineError,
    EngineRefused,
    InvalidOutput,
    MagistrateError,
    OverLength,
)
from magistrate.types import Data, Message, Prompt, Trusted, Usage
from standins import (
    VLLM,
    Standin,
    bare,
    encode,
    engine,
    logprob,
    ollama_like,
    openai_like,
    running,
    sglang_like,
    vllm_like,
)

YES_NO = (Option("supported", ("Yes", "yes")), Option("hallucinated", ("No", "no")))
LABEL = constraint(
    {
        "type": "object",
        "properties": {"label": {"enum": ["yes", "no"]}, "note": {"type": "string", "maxLength": 9}},
        "required": ["label"],
        "additionalProperties": False,
    }
)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGISTRATE_HOME", str(tmp_path))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def prompt(text: str = "the sky is blue") -> Prompt:
    return Prompt((Message("user", (Trusted("Is it so? "), Data(text), Trusted(" Reply Yes or No."))),))


@pytest.fixture
def vllm() -> Iterator[Standin]:
    with running(vllm_like()) as standin:
        yield standin


# --- generate -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("make", [openai_like, vllm_like, sglang_like, ollama_like])
def test_a_constraint_is_held_by_the_server_and_validated_here(make: Any, stream: str) -> None:
    with running(make()) as standin:
        made = engine(standin, f"model-a,stream={stream}")
        found = asyncio.run(made.generate(prompt(), LABEL))
        assert found.value == {"label": "yes"}
        choice = asyncio.run(made.generate(prompt(), constraint(["yes", "no"])))
        assert choice.value == "yes"
        free = asyncio.run(made.generate(prompt()))
        assert (free.text, free.finish, free.usage.generated) == ("It rains.", "stop", 9)
        assert standin.requests[-1][1].get("stream", False) == (stream == "true")


def test_without_a_constraint_on_the_server_it_is_asked_for_repaired_and_asked_anew() -> None:
    said = iter(["Well, hm.", '```json\n{"label": "no"}\n```'])
    with running(bare()) as standin:
        made = engine(standin)
        standin.says = lambda body: next(said)
        found = asyncio.run(made.generate(prompt(), LABEL))
        assert found.value == {"label": "no"}
        assert [each.text for each in found.attempts] == ["Well, hm."]
        turns = standin.requests[-1][1]["messages"]
        assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
        assert '"enum"' in turns[0]["content"]
        assert turns[1]["content"] == "Well, hm."
        standin.says = lambda body: "Never."
        with pytest.raises(UnusableAnswer) as caught:
            asyncio.run(made.generate(prompt(), LABEL))
    assert caught.value.text == "Never."
    assert len(caught.value.attempts) == 2


def test_a_constraint_that_the_server_does_not_compile_is_sent_in_the_next_best_way(vllm: Standin) -> None:
    made = engine(vllm)
    vllm.strict, vllm.takes = True, VLLM - {"structured_outputs"}
    found = asyncio.run(made.generate(prompt(), LABEL))
    assert found.value == {"label": "yes"}
    assert any("rejected the constraint as structured_outputs" in note for note in found.notes)


@pytest.mark.parametrize("stream", ["true", "false"])
def test_what_did_not_end_in_time_is_asked_anew_under_a_constraint_with_half_the_room(stream: str) -> None:
    reason = {"type": "string", "maxLength": 80}
    asked = {"type": "object", "properties": {"reason": reason}, "required": ["reason"]}
    texts = [json.dumps({"reason": letter * n}) for letter, n in (("l", 70), ("s", 30))]
    with running(ollama_like()) as standin:
        made = engine(standin, f"model-a,stream={stream}")
        standin.answers, standin.room = tuple(texts), 60
        found = asyncio.run(made.generate(prompt(), constraint({**asked, "additionalProperties": False})))
    assert found.text == texts[1]  # the longer one was what the server wrote as long as it was allowed to
    assert [each.text for each in found.attempts] == [texts[0][:60]]
    assert any("limited to half" in note for note in found.notes)


def test_a_stream_that_broke_off_or_says_something_else_beside_it_is_no_answer() -> None:
    def part(text: str | None = None, **choice: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": {} if text is None else {"content": text}, **choice}]}

    def events(*parts: dict[str, Any]) -> bytes:
        return b"".join(b"data: %s\n\n" % json.dumps(each).encode() for each in parts)

    whole = events(part("Yes"), part(finish_reason="stop"))
    streams = {
        whole: "Yes",
        whole + b"data: [DONE]": "Yes",
        whole + b": still there\n\n": "Yes",
        whole + b'data: {"choices": [{"index": 0, "delta": {"content": " is wr': None,
        whole + events(part(" is wrong"))[:-1]: None,
        whole + b'event: error\ndata: {"message": "it failed"}\n\n': None,
        events(part("Yes"), {"choices": [{"message": {"content": "No"}}]}, part(finish_reason="stop")): None,
        events(part("Yes", finish_reason="error")): None,
        events(part("Yes")): None,
    }
    found = {}
    with running(Streaming()) as standin:
        assert isinstance(standin, Streaming)
        made = engine(standin, "model-a,stream=true,choose=label_only")
        for standin.stream in streams:
            try:
                found[standin.stream] = asyncio.run(made.generate(prompt())).text
            except MagistrateError:
                found[standin.stream] = None
    assert found == streams


@dataclass
class Streaming(Standin):
    """Streams exactly these bytes."""

    stream: bytes = b""

    def answer(self, method: str, path: str, body: Any, key: str) -> tuple[int, Any]:
        if self.stream and body and body.get("stream"):
            return 200, bytearray(self.stream)
        return super().answer(method, path, body, key)


def test_what_the_model_hardly_wants_to_say_is_asked_for_in_words() -> None:
    """A label is not read from chances of a millionth where the model begins to say something else."""
    with running(openai_like()) as standin:
        made = engine(standin, "model-a")
        for chance, method in ((0.3, "top_k"), (1e-4, "label_only")):
            standin.first = {"I": 0.99 - chance, "Yes": chance, "No": chance / 9}
            standin.answers, standin.says = ("No",), lambda body: "No"
            found = asyncio.run(made.choose(prompt(), YES_NO))
            assert (found.method, found.best) == (method, "supported" if chance > 0.1 else "hallucinated")


@pytest.mark.parametrize("how", ["reasoning_content", "reasoning", "tags", "closed"])
@pytest.mark.parametrize("stream", ["true", "false"])
def test_thoughts_are_told_apart_and_get_room_of_their_own(how: str, stream: str) -> None:
    with running(ollama_like(thoughts="Clouds are wet.", thinks_in=how)) as standin:
        made = engine(standin, f"model-a,stream={stream},thoughts=100")
        found = asyncio.run(made.generate(prompt(), sampling=Sampling(max_tokens=9)))
        assert (found.text, found.thinking) == ("It rains.", "Clouds are wet.")
        assert standin.requests[-1][1]["max_tokens"] == 109
        standin.says = lambda body: "Yes."
        choice = asyncio.run(made.choose(prompt(), YES_NO))
    assert (choice.best, choice.method, choice.thinking) == ("supported", "label_only", "Clouds are wet.")


def test_models_that_take_no_temperature_are_asked_without() -> None:
    takes = frozenset({"model", "messages", "max_completion_tokens", "stream", "response_format", "seed"})
    with running(Standin(strict=True, takes=takes)) as standin:
        made = engine(standin)
        assert made.capabilities.budget == "max_completion_tokens"
        found = asyncio.run(made.generate(prompt()))
    assert found.text == "It rains."
    assert any("temperature" in note for note in found.notes)


# --- choose ---------------------------------------------------------------------------------------


def test_top_k_tells_how_far_it_may_be_off() -> None:
    with running(openai_like()) as standin:
        made = engine(standin)
        choice = asyncio.run(made.choose(prompt(), YES_NO))
        body = standin.requests[-1][1]
    assert (choice.best, choice.method) == ("supported", "top_k")
    assert choice.probabilities == pytest.approx({"supported": 0.6 / 0.85, "hallucinated": 0.25 / 0.85})
    assert choice.mass == pytest.approx(0.85)
    # `yes` and `no` are not listed: each has at most .02, both together at most the .03 that are left.
    assert choice.bound == pytest.approx(max(0.62 / 0.87 - 0.6 / 0.85, 0.6 / 0.85 - 0.6 / 0.87), abs=1e-6)
    assert (body["top_logprobs"], body["temperature"]) == (4, 1.0)


def test_exact_is_the_sum_over_the_tokens_of_every_surface(vllm: Standin) -> None:
    made = engine(vllm)
    choice = asyncio.run(made.choose(prompt(), YES_NO))

    def chance(text: str) -> float:
        tokens = [*encode("assistant\n"), *encode(text)]
        pairs = list(pairwise(tokens))[-len(text) :]
        return math.exp(sum(logprob(before, token) for before, token in pairs))

    yes, no = chance("Yes") + chance("yes"), chance("No") + chance("no")
    assert choice.method == "exact"
    assert choice.bound == 0
    assert choice.probabilities == pytest.approx(
        {"supported": yes / (yes + no), "hallucinated": no / (yes + no)}
    )
    assert choice.mass == pytest.approx(yes + no)


def test_of_answers_without_any_probability_none_is_chosen() -> None:
    never = -math.inf
    with pytest.raises(InvalidOutput, match="no probability to any"):
        exact_choice(YES_NO, [[never, never], [never]], Usage())
    assert exact_choice(YES_NO, [[never, never], [-900.0]], Usage()).probabilities == {
        "supported": 0.0,
        "hallucinated": 1.0,
    }


def test_draws_are_counted_where_they_are_asked_for() -> None:
    with running(openai_like()) as standin:
        made = engine(standin, "model-a,choose=sampled,draws=10")
        standin.says = lambda body: ("Yes", "Yes.", "No", "Perhaps", "yes")[body["seed"] % 5]
        choice = asyncio.run(made.choose(prompt(), YES_NO))
    assert (choice.method, choice.bound, choice.mass) == ("sampled", None, 0.8)
    assert choice.probabilities == {"supported": 0.75, "hallucinated": 0.25}


def test_a_label_is_asked_anew_and_never_made_up() -> None:
    said = iter(["It depends.", "No."])
    with running(bare()) as standin:
        made = engine(standin)
        standin.says = lambda body: next(said)
        choice = asyncio.run(made.choose(prompt(), YES_NO))
        assert (choice.best, choice.probabilities, choice.method) == ("hallucinated", None, "label_only")
        standin.says = lambda body: "Both Yes and No"
        with pytest.raises(InvalidOutput):
            asyncio.run(made.choose(prompt(), YES_NO))


def test_where_no_answer_is_among_the_likeliest_it_is_asked_for_in_words() -> None:
    with running(openai_like(says=lambda body: "No")) as standin:
        standin.first = {"It": 0.9, "The": 0.05}
        choice = asyncio.run(engine(standin).choose(prompt(), YES_NO))
    assert (choice.best, choice.method, choice.usage.calls) == ("hallucinated", "label_only", 2)


# --- likelihood, data and length ------------------------------------------------------------------


def test_the_likelihood_is_that_of_each_token_with_its_place(vllm: Standin) -> None:
    found = asyncio.run(engine(vllm).likelihood(prompt(), "né"))
    assert found.tokens == tuple("né".encode())
    assert found.offsets == ((0, 1), (1, 2), (1, 2))
    assert found.logprobs[0] == pytest.approx(logprob(ord("\n"), ord("n")))


def test_special_strings_in_a_scored_text_are_no_tokens_and_offsets_are_of_the_raw_text(
    vllm: Standin,
) -> None:
    text = "a</s>b"
    found = asyncio.run(engine(vllm).likelihood(prompt("<|im_end|>"), text))
    assert max(found.tokens) < 256
    assert found.offsets[0] == (0, 1)
    assert found.offsets[-1] == (5, 6)
    sent = vllm.requests[-1][1]["prompt"]
    assert [token for token in sent if token == 257] == [257]  # the template's own end of turn


def test_without_scores_of_prompts_there_is_no_likelihood() -> None:
    with running(openai_like()) as standin, pytest.raises(CapabilityError, match="log-probabilities"):
        asyncio.run(engine(standin).likelihood(prompt(), "x"))


def test_quotes_of_broken_up_data_come_back_as_they_were() -> None:
    raw = "so <|im_end|> it was"
    with running(bare()) as standin:
        made = engine(standin)
        standin.says = lambda body: body["messages"][0]["content"][len("Is it so? ") :]
        found = asyncio.run(made.generate(prompt(raw)))
        assert "<|im_end|>" not in standin.requests[-1][1]["messages"][0]["content"]
    assert found.text.startswith(raw)
    assert "broken up" in found.notes[0]


def test_counts_are_exact_where_the_server_tokenizes(vllm: Standin) -> None:
    made = engine(vllm)
    whole = "<|im_start|>user\nIs it so? x Reply Yes or No.<|im_end|>\n<|im_start|>assistant\n"
    assert asyncio.run(made.count(prompt("x"))) == len(encode(whole))
    with running(bare()) as standin:
        other = engine(standin)
        assert other.info.ways["count"].startswith("estimated")
        assert asyncio.run(other.count(prompt("x"))) > 8


# --- what goes wrong ------------------------------------------------------------------------------


def _bodies() -> dict[str, tuple[int, Any, type[MagistrateError]]]:
    def chat(message: Any, finish: Any = "stop") -> Any:
        return {"choices": [{"message": message, "finish_reason": finish}]}

    return {
        "no choices": (200, {"choices": []}, InvalidOutput),
        "no object": (200, [1, 2], EngineError),
        "no message": (200, {"choices": [{"finish_reason": "stop"}]}, InvalidOutput),
        "no text": (200, chat({"content": None}), InvalidOutput),
        "wrong type": (200, chat({"content": 5}), InvalidOutput),
        "no ending": (200, chat({"content": "yes"}, None), EngineError),
        "filter": (200, chat({"content": "yes"}, "content_filter"), EngineRefused),
        "refusal": (200, chat({"content": None, "refusal": "I will not."}), EngineRefused),
        "tool": (200, chat({"content": "yes"}, "tool_calls"), InvalidOutput),
        "too large": (200, b'{"choices": "' + b"x" * 10_000_000 + b'"}', EngineError),
        "cut off": (200, b'{"choices": [{"mess', EngineError),
        "latin": (200, '{"choices": "é"}'.encode("latin-1"), EngineError),
        "nested": (200, b"[" * 100_000, EngineError),
        "length": (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}, OverLength),
        "moved": (307, {}, MagistrateError),
    }


@pytest.mark.parametrize("name", _bodies())
def test_a_broken_answer_is_an_error_with_a_reason_and_never_a_label(name: str) -> None:
    status, body, kind = _bodies()[name]
    with running(bare()) as standin:
        made = engine(standin)
        standin.answer = lambda *request: (status, body)  # type: ignore[method-assign]
        for call in (lambda: made.generate(prompt(), LABEL), lambda: made.choose(prompt(), YES_NO)):
            with pytest.raises(kind) as caught:
                asyncio.run(call())
            assert str(caught.value)


def test_an_engine_works_in_one_loop_after_the_other_and_in_many_at_once(vllm: Standin) -> None:
    made = engine(vllm)

    async def several() -> list[Choice]:
        return await asyncio.gather(*(made.choose(prompt(), YES_NO) for _ in range(5)))

    assert asyncio.run(several()) == asyncio.run(several())
