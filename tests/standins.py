"""Stand-ins for servers that cannot run here: real HTTP on a port, the documented protocol, no model.

They answer with the first of their `answers` that a request's constraint allows, so that it can be seen from
what comes back whether one was sent. Tokens are bytes, and three special strings have tokens of their own.
What passes against a stand-in is tested against a protocol, not against the server that it is named after.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import jsonschema

from magistrate.constraints import Lark, check, constraint
from magistrate.engines.openai.engine import OpenAIEngine, read_options
from magistrate.engines.remote.client import run_on_io_loop
from magistrate.errors import ConstraintError

SPECIAL = {"<|im_start|>": 256, "<|im_end|>": 257, "</s>": 258}
ANSWERS = ("k7-amber", "yes", '{"code":"k7-amber"}', '{"label":"yes"}', '{"answer":"yes"}')
ANSWERS += ('{"label": "yes", "note": null}',)
CHAT = {"model", "messages", "max_tokens", "temperature", "top_p", "seed", "stream", "stream_options"}
CHAT |= {"logprobs", "top_logprobs", "response_format"}

Answered = tuple[int, Any]


class Refused(Exception):
    """A request that the server answers with a status and an error of its own."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Standin:
    """A server's behaviour. `takes` are the parameters it knows, and it refuses others if `strict`;
    `first` are the likeliest first tokens of every answer with their probabilities, of which it lists
    `most_top`. `says` is asked for the text where nothing constrains it. `breaks` answers the status that a
    request meets instead of its answer, 0 where the connection is closed, None where nothing is wrong.
    `room` is how many characters a text may have before it is cut off, 0 for any number."""

    says: Callable[[Mapping[str, Any]], str] = lambda body: "It rains."
    breaks: Callable[[str, Any], int | None] = lambda path, body: None
    room: int = 0
    models: tuple[str, ...] = ("model-a", "model-b")
    any_name: bool = False  # whether it answers for models that it does not list
    owner: str = "someone"
    window: int = 0
    takes: frozenset[str] = frozenset(CHAT)
    strict: bool = False
    strict_schemas: bool = False
    key: str = ""
    first: Mapping[str, float] = field(default_factory=dict)
    most_top: int = 0
    pages: Mapping[str, Any] = field(default_factory=dict)
    thoughts: str = ""
    thinks_in: str = ""
    scores: bool = False
    continues: str = ""
    answers: tuple[str, ...] = ANSWERS
    requests: list[tuple[str, Any]] = field(default_factory=list)
    url: str = ""

    def got(self, path: str) -> list[Any]:
        """The bodies that came for a path."""
        return [body for where, body in self.requests if where == path]

    def answer(self, method: str, path: str, body: Any, key: str) -> Answered:
        """Status and JSON for a request; a list is streamed."""
        self.requests.append((path, body))
        if self.key and key != f"Bearer {self.key}":
            return 401, _error(f"Incorrect API key provided: {key[7:]}", "invalid_api_key")
        if (status := self.breaks(path, body)) is not None:
            return status, _error("The worker has a problem.")
        if method == "GET":
            if path == "/v1/models":
                return 200, {"object": "list", "data": [self._entry(each) for each in self.models]}
            return (200, self.pages[path]) if path in self.pages else (404, _error("Not Found"))
        try:
            if path == "/v1/chat/completions":
                return 200, self._chat(body)
            if path == "/tokenize" and self.scores:
                return 200, {"tokens": self._tokens(body), "count": 1, "max_model_len": self.window}
            if path == "/v1/completions" and self.scores:
                return 200, _scored(body)
        except Refused as refused:
            return refused.status, _error(str(refused))
        return 404, _error("Not Found")

    def _entry(self, name: str) -> dict[str, Any]:
        more = {"max_model_len": self.window} if self.window else {}
        return {"id": name, "object": "model", "created": 1, "owned_by": self.owner, **more}

    def _chat(self, body: Any) -> Any:
        if unknown := set(body) - self.takes - {"model", "messages"}:
            if self.strict:
                raise Refused(f"Unsupported parameter: {sorted(unknown)[0]}")
            body = {name: value for name, value in body.items() if name not in unknown}
        if body["model"] not in self.models and not self.any_name:
            raise Refused(f"The model {body['model']} does not exist", 404)
        if body.get("top_logprobs", 0) > self.most_top:
            if self.strict:
                raise Refused(f"top_logprobs must be at most {self.most_top}")
            body = {**body, "logprobs": False}
        whole = self._text(body)
        text = whole[: self.room] if self.room else whole
        usage = {
            "prompt_tokens": sum(len(each["content"]) for each in body["messages"]),
            "completion_tokens": len(text),
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.thinks_in in ("reasoning_content", "reasoning"):
            message[self.thinks_in] = self.thoughts
        finish = "stop" if text == whole else "length"
        if body.get("stream"):
            return _events(message, usage, finish)
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
        if body.get("logprobs"):
            top = [{"token": token, "logprob": math.log(p)} for token, p in self.first.items()]
            top = sorted(top, key=lambda each: -float(each["logprob"]))[: body["top_logprobs"]]
            choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}]}
        return {"object": "chat.completion", "choices": [choice], "usage": usage}

    def _text(self, body: Any) -> str:
        allowed = self._allowed(body)
        text = self.says(body) if allowed is None else next(filter(allowed, self.answers), "?")
        last = body["messages"][-1]
        going_on = self.continues == "as is" or body.get("continue_final_message")
        if last["role"] == "assistant" and self.continues and going_on and "violet" in last["content"]:
            text = "garoo-green"
        opening = {"tags": f"<think>{self.thoughts}</think>\n", "closed": f"{self.thoughts}</think>\n"}
        return opening.get(self.thinks_in, "") + text

    def _allowed(self, body: Any) -> Callable[[str], bool] | None:
        """What the request's constraint lets through; None where there is none."""
        wrapped = body.get("structured_outputs", {})
        grammar = body.get("ebnf") or body.get("grammar") or wrapped.get("grammar")
        if grammar is not None:
            return _by_grammar(grammar)
        if (pattern := body.get("regex") or wrapped.get("regex")) is not None:
            return lambda text: re.fullmatch(pattern, text) is not None
        schema = wrapped.get("json")
        if (form := body.get("response_format")) is not None:
            schema = form["json_schema"]["schema"]
            if self.strict_schemas:
                _check_strict(schema)
        return None if schema is None else lambda text: _fits(text, schema)

    def _tokens(self, body: Any) -> list[int]:
        if "messages" not in body:
            return encode(body["prompt"])
        turns = "".join(
            f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in body["messages"]
        )
        if body.get("continue_final_message"):
            return encode(turns.removesuffix("<|im_end|>\n"))
        return encode(turns + "<|im_start|>assistant\n")


def encode(text: str) -> list[int]:
    """Bytes as tokens; special strings as theirs, wherever they stand."""
    parts = re.split(f"({'|'.join(map(re.escape, SPECIAL))})", text)
    return [token for part in parts for token in ([SPECIAL[part]] if part in SPECIAL else part.encode())]


def logprob(before: int, token: int) -> float:
    """How probable the stand-in's model finds `token` after `before`: a distribution over 259 tokens."""
    weights = [(17 * before + 31 * each) % 97 + 1 for each in range(259)]
    return math.log(weights[token] / sum(weights))


def _scored(body: Any) -> Any:
    tokens = body["prompt"]
    if "prompt_logprobs" not in body or not all(isinstance(each, int) for each in tokens):
        raise Refused("this stand-in scores prompts of tokens")
    listed: list[Any] = [None]
    for before, token in pairwise(tokens):
        shown = bytes([token]).decode("utf-8", "replace") if token < 256 else ""
        listed.append({str(token): {"logprob": logprob(before, token), "rank": 1, "decoded_token": shown}})
    choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": listed}
    usage = {"prompt_tokens": len(tokens), "completion_tokens": 1}
    return {"object": "text_completion", "choices": [choice], "usage": usage}


def _by_grammar(grammar: str) -> Callable[[str], bool]:
    if "root ::=" in grammar:
        # Not installed beside the frameworks of tests/adapters.
        from llguidance.gbnf_to_lark import gbnf_to_lark

        grammar = gbnf_to_lark(grammar)
    try:
        made = constraint(Lark(grammar))
        return lambda text: check(text, made) == "valid"
    except ConstraintError as error:
        raise Refused(f"cannot compile the grammar: {error}") from None


def _fits(text: str, schema: Any) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def _check_strict(schema: Any) -> None:
    """OpenAI's rules for strict schemas."""
    if isinstance(schema, list):
        for each in schema:
            _check_strict(each)
    if not isinstance(schema, dict):
        return
    if bad := {"maxLength", "minLength", "oneOf", "allOf", "patternProperties"} & set(schema):
        raise Refused(f"Invalid schema for response_format 'answer': {sorted(bad)[0]} is not permitted.")
    if schema.get("type") == "object":
        if schema.get("additionalProperties") is not False:
            raise Refused(
                "Invalid schema: 'additionalProperties' is required to be supplied and to be false."
            )
        if set(schema.get("required", ())) != set(schema.get("properties", {})):
            raise Refused("Invalid schema: 'required' is to include every key in properties.")
    for each in schema.values():
        _check_strict(each)


def _events(message: Mapping[str, Any], usage: Any, finish: str) -> list[Any]:
    """A message in pieces of three characters, thoughts first, and what it took."""
    deltas = []
    for name in ("reasoning_content", "reasoning", "content"):
        text = message.get(name) or ""
        deltas += [{name: text[at : at + 3]} for at in range(0, len(text), 3)]
    ends: list[str | None] = [None] * len(deltas)
    choices = [{"delta": delta, "finish_reason": end} for delta, end in zip(deltas, ends, strict=True)]
    choices.append({"delta": {}, "finish_reason": finish})
    return [*({"choices": [choice]} for choice in choices), {"choices": [], "usage": usage}]


def _error(message: str, code: str = "invalid_request_error") -> Any:
    return {"error": {"message": message, "type": code, "code": code}}


@contextmanager
def running(standin: Standin) -> Iterator[Standin]:
    """`standin` on a free port of this machine, at `standin.url`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or an answer waits 40 ms for the acknowledgement of its headers

        def do_GET(self) -> None:
            self._answer("GET", None)

        def do_POST(self) -> None:
            self._answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, method: str, body: Any) -> None:
            status, said = standin.answer(method, self.path, body, self.headers.get("Authorization", ""))
            if status == 0:
                self.close_connection = True
                return
            kind = "application/json"
            content = said if isinstance(said, bytes | bytearray) else json.dumps(said).encode()
            if isinstance(said, bytearray):  # a stream as it is
                kind, content = "text/event-stream", bytes(said)
            if isinstance(said, list):
                kind = "text/event-stream"
                lines = [f"data: {json.dumps(each)}\n\n" for each in said]
                content = "".join([*lines, "data: [DONE]\n\n"]).encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: Any) -> None:
            """Nothing is told to the terminal."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    standin.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield standin
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# --- servers by their kind --------------------------------------------------------------------------

FIRST = {"Yes": 0.6, "No": 0.25, "It": 0.1, "The": 0.02}
VLLM = frozenset(
    {*CHAT, "structured_outputs", "prompt_logprobs", "continue_final_message", "add_generation_prompt"}
)


def openai_like(**more: Any) -> Standin:
    """OpenAI's own server: refuses what it does not know, strict schemas, twenty likeliest tokens."""
    return Standin(strict=True, strict_schemas=True, first=FIRST, most_top=20, **more)


def vllm_like(**more: Any) -> Standin:
    """vLLM with the backend guidance: Lark grammars, tokenization, log-probabilities of prompts."""
    return Standin(
        owner="vllm",
        window=4096,
        pages={"/version": {"version": "0.18.2"}},
        takes=VLLM,
        first=FIRST,
        most_top=20,
        scores=True,
        continues="continue_final_message",
        **more,
    )


def sglang_like(**more: Any) -> Standin:
    """SGLang: `ebnf` and `regex` beside schemas."""
    pages = {"/get_server_info": {"model_path": "m", "version": "0.5", "context_length": 8192}}
    return Standin(pages=pages, takes=frozenset({*CHAT, "ebnf", "regex"}), first=FIRST, most_top=20, **more)


def ollama_like(**more: Any) -> Standin:
    """Ollama: schemas, no log-probabilities, a window that it tells of a loaded model only."""
    loaded = {"models": [{"name": "model-a", "context_length": 4096}]}
    return Standin(pages={"/api/version": {"version": "0.40.12"}, "/api/ps": loaded}, **more)


def bare(**more: Any) -> Standin:
    """A gateway that takes messages and ignores everything else."""
    return Standin(takes=frozenset({"model", "messages", "max_tokens", "temperature", "stream"}), **more)


def engine(standin: Standin, words: str = "model-a") -> OpenAIEngine:
    """An engine connected to the stand-in; `words` name the model, with options behind it."""
    name, options = read_options(words)
    made = OpenAIEngine(name, base_url=standin.url, key=standin.key or "none", timeout=20, options=options)
    run_on_io_loop(made.connect())
    return made
