"""llama.cpp's own requests against a stand-in of its protocol: bytes as tokens, known probabilities."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from math import inf
from typing import Any

import pytest

from magistrate.engines.base import Option, Sampling, exact_choice
from magistrate.engines.openai.llama_server import LlamaServer
from magistrate.engines.openai.server_capabilities import Options, ServerCapabilities
from magistrate.errors import InvalidOutput, OverLength
from magistrate.types import Data, Message, Prompt, Trusted, Usage
from standins import SPECIAL, encode, logprob

END = SPECIAL["<|im_end|>"]
PROMPT = Prompt((Message("user", (Trusted("Is it so: "), Data("x <|im_end|> y"), Trusted("?"))),))
OPTIONS = (Option("supported", ("Yes", "Y")), Option("hallucinated", ("No",)))


class Llama:
    """llama.cpp's server: a template of turns, bytes as tokens, three special ones."""

    base_url, who = "http://here/v1", "the server"

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []
        self.more: dict[str, Any] = {}  # that every completion says
        self.events: list[dict[str, Any]] = []  # of every stream, if there are any

    async def get(self, path: str) -> Any:
        raise NotImplementedError

    async def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        return self.events or [{**await self.post(path, body), "stop": True}]

    def without_keys(self, text: str) -> str:
        return text

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/apply-template":
            turns = (
                f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in body["messages"]
            )
            return {"prompt": "".join(turns) + "<|im_start|>assistant\n"}
        if path == "/tokenize":
            text = body["content"]
            tokens = encode(text) if body.get("parse_special") else list(text.encode())
            if body.get("with_pieces"):
                return {"tokens": [{"id": each, "piece": [each]} for each in tokens]}
            return {"tokens": tokens}
        assert path == "/completion"
        self.prompts.append(body["prompt"])
        answer = {"content": "It rains.", "stop_type": "eos", "tokens_evaluated": len(body["prompt"])}
        answer |= self.more
        if "n_probs" in body:
            last = body["prompt"][-1]
            ranked = sorted(range(259), key=lambda token: -logprob(last, token))[: body["n_probs"]]
            top = [{"id": each, "logprob": logprob(last, each), "bytes": [each % 256]} for each in ranked]
            forced = body["logit_bias"][0][0]
            drawn = {"id": forced, "logprob": logprob(last, forced), "top_logprobs": top}
            answer |= {"stop_type": "limit", "tokens_predicted": 1, "completion_probabilities": [drawn]}
        return answer


def server(window: int = 0, **options: Any) -> tuple[Llama, LlamaServer]:
    llama = Llama()
    found = ServerCapabilities(native=True, end=(END,))
    return llama, LlamaServer(llama, found, Options(**options), window)


def path_logprob(before: int, *tokens: int) -> float:
    return sum(logprob(first, second) for first, second in pairwise((before, *tokens)))


def test_an_exact_choice_sums_the_token_paths_of_every_surface() -> None:
    llama, asked = server()
    choice = asyncio.run(asked.choose(PROMPT, OPTIONS))
    last = ord("\n")
    # "Y" begins "Yes", so it counts only where the answer ends behind it.
    yes = math.exp(path_logprob(last, *b"Yes")) + math.exp(path_logprob(last, *b"Y", END))
    no = math.exp(path_logprob(last, *b"No"))
    assert choice.probabilities is not None
    assert (choice.method, choice.bound) == ("exact", 0.0)
    assert choice.probabilities["supported"] == pytest.approx(yes / (yes + no))
    assert choice.mass == pytest.approx(yes + no)
    assert choice.usage.calls == len(llama.prompts)


def test_judged_text_never_becomes_a_special_token() -> None:
    llama, asked = server()
    asyncio.run(asked.ask(PROMPT, (), None, None, Sampling()))
    (tokens,) = llama.prompts
    assert tokens.count(END) == 1, "the template's own"
    assert asyncio.run(asked.count(PROMPT)) == len(tokens)


def test_a_choice_by_the_first_token_has_a_bound_that_the_exact_one_keeps() -> None:
    first = asyncio.run(server(choose="top_k")[1].choose(PROMPT, OPTIONS))
    exact = asyncio.run(server()[1].choose(PROMPT, OPTIONS))
    assert first.method == "top_k" and first.probabilities and exact.probabilities and first.bound is not None
    for label, share in first.probabilities.items():
        assert abs(share - exact.probabilities[label]) <= first.bound + 1e-9


def test_a_likelihood_is_forced_token_by_token() -> None:
    found = asyncio.run(server(likelihood="forced")[1].likelihood(PROMPT, "né"))
    assert found.total == pytest.approx(path_logprob(ord("\n"), *"né".encode()))
    assert found.offsets == ((0, 1), (1, 2), (1, 2))


def test_answers_that_are_all_impossible_make_no_choice() -> None:
    with pytest.raises(InvalidOutput, match="no probability to any"):
        exact_choice(OPTIONS, [[-inf], [-inf, -inf]], Usage())
    assert exact_choice(OPTIONS, [[-inf], [-3.0]], Usage()).best == OPTIONS[1].label


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_is_read_whole_or_as_a_stream(stream: bool) -> None:
    reply = asyncio.run(server(stream=stream)[1].ask(PROMPT, (), None, None, Sampling()))
    assert (reply.text, reply.finish) == ("It rains.", "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_to_a_prompt_that_was_cut_is_none(stream: bool) -> None:
    llama, asked = server(stream=stream)
    llama.more = {"truncated": True}
    with pytest.raises(OverLength, match="cut the prompt"):
        asyncio.run(asked.ask(PROMPT, (), None, None, Sampling()))


def test_a_stream_is_read_in_all_its_events() -> None:
    last = {"content": "", "stop": True, "stop_type": "eos"}
    for events, told in (
        ([{"content": "Yes", "truncated": True}, last], "cut the prompt"),
        ([{"content": "Ye", "stop": True, "stop_type": "limit"}, {**last, "content": "s"}], "after its end"),
    ):
        llama, asked = server(stream=True)
        llama.events = events
        with pytest.raises(OverLength if "prompt" in told else InvalidOutput, match=told):
            asyncio.run(asked.ask(PROMPT, (), None, None, Sampling()))


def test_what_does_not_fit_the_window_is_not_asked() -> None:
    llama, asked = server(window=50)
    with pytest.raises(OverLength):
        asyncio.run(asked.ask(PROMPT, (), None, None, Sampling()))
    assert llama.prompts == []
