"""A server of ours that speaks OpenAI's and Anthropic's protocols, and breaks on order as servers break.

The first part of a path orders the fault: `http://HOST:PORT/FAULT/v1/chat/completions`. `FAULT@30` breaks
30 % of the calls, `fine` none. It is written on sockets, because what breaks is what HTTP libraries would
not send. Every broken body is made of a whole answer, so that who reads it carelessly reads a verdict.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import random
import re
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

MODEL = "stand-in"
BIG = 10 * 1024 * 1024  # bytes of a body that is too large
LONG = "Yes " * (BIG // 4)
CALLS = ("chat/completions", "completions", "messages")  # what a fault breaks; the rest is answered

Distribution = Mapping[str, float]


@dataclass(frozen=True)
class Answer:
    """What the model says: a text, the probabilities of its first token, thoughts before it."""

    text: str = "Yes"
    first: Distribution | None = None
    thinking: str = ""
    finish: str = "stop"


@dataclass(frozen=True)
class Asked:
    """A call that came: its fault, whether that struck, and the JSON that was sent."""

    fault: str
    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]
    struck: bool = False

    @property
    def is_call(self) -> bool:
        """Whether something was asked of the model, not about the server."""
        return self.path in CALLS

    @property
    def text(self) -> str:
        """All that the messages say."""
        return json.dumps(self.body.get("messages", self.body), ensure_ascii=False)


@dataclass
class FaultServer:
    """What is asked of it, and its address. `answer` says what the model answers to a body, and `spares`
    which calls no fault breaks, such as those that only look what the server can do. What is broken is made
    of `lie`, where there is one."""

    answer: Callable[[Mapping[str, Any]], Answer]
    spares: Callable[[str], bool]
    lie: Answer | None = None
    seed: int = 0
    pace: float = 1.0  # seconds from one byte of a slow loris to the next
    wait: float = 1.0  # seconds that Retry-After says
    gone_after: int | None = None  # calls that are answered before nobody listens any more
    mended: bool = False  # whether no fault breaks anything any more
    asked: list[Asked] = field(default_factory=list)
    address: str = ""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)  # what `/v1/models/NAME` says
    _draw: random.Random = field(init=False)
    _listening: asyncio.Server | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def at(self, fault: str, version: str = "/v1") -> str:
        """The base URL at which every call, or a share (`FAULT@30`), meets `fault`."""
        if fault.partition("@")[0] == "refused":
            return f"http://127.0.0.1:{closed_port()}{version}"
        return f"{self.address}/{fault}{version}"

    def calls(self) -> list[Asked]:
        """What was asked of the model."""
        return [each for each in self.asked if each.is_call]

    async def listen(self, ready: threading.Event) -> None:
        """Be there, at the address of before if there was one."""
        port = int(self.address.rpartition(":")[2] or 0)
        self._listening = await asyncio.start_server(self.serve, "127.0.0.1", port, limit=2**26)
        self.address = f"http://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        self._loop = asyncio.get_running_loop()
        ready.set()

    def leave(self) -> None:
        """Be there no more: connections are refused, and only those that were accepted are answered."""
        if self._listening is None or self._loop is None:
            return
        ended, self._listening = self._listening, None
        # What asyncio has accepted in the turn in which a server is closed gets neither an answer nor an end.
        self._loop.remove_reader(ended.sockets[0].fileno())
        self._loop.call_soon(self._loop.call_soon, ended.close)

    def come_back(self) -> None:
        """Mend all that is broken, and listen again where nobody does."""
        self.mended = True
        if self._listening is None and self._loop is not None:
            asyncio.run_coroutine_threadsafe(self.listen(threading.Event()), self._loop).result(10)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, target, _ = head[0].split(" ", 2)
            headers = {
                name.strip().lower(): value.strip()
                for name, _, value in (line.partition(":") for line in head[1:] if line)
            }
            sent = await reader.readexactly(int(headers.get("content-length", 0)))
            await self._meet(method, target, json.loads(sent) if sent else {}, headers, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # whoever asked has gone, or this server ends
        finally:
            with suppress(ConnectionError, RuntimeError):
                writer.close()

    async def _meet(
        self,
        method: str,
        target: str,
        body: dict[str, Any],
        headers: dict[str, str],
        writer: asyncio.StreamWriter,
    ) -> None:
        _, fault, *rest = target.partition("?")[0].split("/")
        path = "/".join(rest).removeprefix("v1/")
        name, _, share = fault.partition("@")
        asked = Asked(name, path, body, headers)
        breaks = name != "fine" and asked.is_call and not self.mended
        if breaks and not self.spares(asked.text):
            asked = replace(asked, struck=self._draw.random() < float(share or 100) / 100)
        self.asked.append(asked)
        if self.gone_after is not None and not self.mended:
            on_trial = sum(each.is_call and not self.spares(each.text) for each in self.asked)
            if on_trial >= self.gone_after:
                self.leave()
        right = self._right(method, path, body, self.lie if asked.struck else None)
        scene = Scene(writer, path, right, self)
        await (FAULTS[name] if asked.struck else whole)(scene)

    def _right(self, method: str, path: str, body: dict[str, Any], lie: Answer | None) -> Right:
        """What a server that works answers, its model saying a `lie` where there is one."""
        if method == "GET" and path == "models":
            return Right({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0}]})
        if method == "GET" and path.removeprefix("models/") in self.models:
            return Right(self.models[path.removeprefix("models/")])
        if path.endswith("count_tokens"):
            return Right({"input_tokens": len(json.dumps(body).split())})
        if path == "chat/completions":
            answer = lie or self.answer(body)
            return Right(completion(answer, body), completion_events(answer, body))
        if path == "messages":
            answer = lie or self.answer(body)
            return Right(message(answer, body), message_events(answer, body))
        return Right(problem(path, 404, "no such place"), status=404)


@dataclass(frozen=True)
class Right:
    """A right answer: a body, and the events of it where it may be streamed."""

    body: dict[str, Any]
    events: list[tuple[str, str]] | None = None
    status: int = 200

    @property
    def streamed(self) -> bool:
        return self.events is not None and bool(self.body.get("streamed"))

    @property
    def content(self) -> bytes:
        """What is sent."""
        if self.streamed and self.events is not None:
            lines = [
                f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"
                for name, data in self.events
            ]
            return "".join(lines).encode()
        return json.dumps({name: value for name, value in self.body.items() if name != "streamed"}).encode()

    @property
    def kind(self) -> str:
        return "text/event-stream" if self.streamed else "application/json"


# --- what the protocols say --------------------------------------------------------------------------


def completion(answer: Answer, body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion as OpenAI documents it."""
    said: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.thinking:
        said["reasoning_content"] = answer.thinking
    choice = {
        "index": 0,
        "message": said,
        "finish_reason": answer.finish,
        "logprobs": _logprobs(answer, body),
    }
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": body.get("model", MODEL),
        "choices": [choice],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
        "streamed": body.get("stream", False),
    }


def _logprobs(answer: Answer, body: Mapping[str, Any]) -> dict[str, Any] | None:
    if not body.get("logprobs"):
        return None
    first = answer.first or {answer.text: 0.99, "?": 0.01}
    top = [
        {"token": token, "logprob": math.log(share), "bytes": list(token.encode())}
        for token, share in sorted(first.items(), key=lambda each: -each[1])
        if share > 0
    ][: body.get("top_logprobs") or 1]
    return {"content": [{**top[0], "top_logprobs": top}], "refusal": None}


def completion_events(answer: Answer, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same as a stream."""
    whole_one = completion(answer, body)
    common = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    half = len(answer.text) // 2
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if answer.thinking:
        deltas.append({"reasoning_content": answer.thinking})
    deltas += [{"content": answer.text[:half]}, {"content": answer.text[half:]}]
    chunks = [
        {**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}]}
        for delta in deltas
    ]
    chunks.append({**common, "choices": [{"index": 0, "delta": {}, "finish_reason": answer.finish}]})
    chunks.append({**common, "choices": [], "usage": whole_one["usage"]})
    return [("", json.dumps(each)) for each in chunks] + [("", "[DONE]")]


REASONS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


def message(answer: Answer, body: Mapping[str, Any]) -> dict[str, Any]:
    """A message as Anthropic documents it; a tool that is forced is called with the text's object."""
    content: list[dict[str, Any]] = []
    if answer.thinking:
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": "s"})
    reason = REASONS.get(answer.finish, answer.finish)
    forced = (body.get("tool_choice") or {}).get("name")
    if forced is not None:
        given = json.loads(answer.text) if answer.text.startswith("{") else {}
        content.append({"type": "tool_use", "id": "toolu_1", "name": forced, "input": given})
        reason = "tool_use" if reason == "end_turn" else reason
    elif answer.text:
        content.append({"type": "text", "text": answer.text, "citations": None})
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", MODEL),
        "content": content,
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "cache_read_input_tokens": 2, "output_tokens": 3},
        "streamed": body.get("stream", False),
    }


def message_events(answer: Answer, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same as a stream."""
    made = message(answer, body)
    made.pop("streamed")
    start = {**made, "content": [], "stop_reason": None, "usage": {**made["usage"], "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(made["content"]):
        empty, deltas = _opened(block)
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": made["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 3}})
    events.append({"type": "message_stop"})
    return [(each["type"], json.dumps(each)) for each in events]


def _opened(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and the pieces that follow."""
    if block["type"] == "text":
        half = len(block["text"]) // 2
        pieces = [block["text"][:half], block["text"][half:]]
        return {**block, "text": ""}, [{"type": "text_delta", "text": each} for each in pieces]
    if block["type"] == "thinking":
        thought = {"type": "thinking_delta", "thinking": block["thinking"]}
        return {**block, "thinking": "", "signature": ""}, [
            thought,
            {"type": "signature_delta", "signature": "s"},
        ]
    given = json.dumps(block["input"])
    half = len(given) // 2
    parts = [{"type": "input_json_delta", "partial_json": each} for each in (given[:half], given[half:])]
    return {**block, "input": {}}, parts


KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def problem(path: str, status: int, said: str) -> dict[str, Any]:
    """The body of an error, as the protocol of this path has it."""
    kind = KINDS.get(status, "api_error")
    if path.startswith("messages"):
        return {"type": "error", "error": {"type": kind, "message": said}, "request_id": "req_1"}
    return {"error": {"message": said, "type": kind, "param": None, "code": None}}


# --- what breaks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """A connection that waits for an answer, and the right one."""

    writer: asyncio.StreamWriter
    path: str
    right: Right
    server: FaultServer

    async def send(
        self,
        content: bytes,
        status: int = 200,
        kind: str | None = None,
        length: int | None = None,
        **headers: str,
    ) -> None:
        """A whole answer, or one that is shorter than it says."""
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {kind or self.right.kind}"]
        lines += [f"Content-Length: {len(content) if length is None else length}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await self.writer.drain()

    def reset(self) -> None:
        """End the connection as a server that crashes does."""
        held = self.writer.get_extra_info("socket")
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def changed(self, **change: Any) -> bytes:
        """The right body with some of it replaced."""
        body = {name: value for name, value in self.right.body.items() if name != "streamed"}
        return json.dumps({**body, **change}).encode()


Fault = Callable[[Scene], Awaitable[None]]


async def whole(scene: Scene) -> None:
    await scene.send(scene.right.content, scene.right.status)


def status(code: int, said: str = "Yes, faithful", **headers: str) -> Fault:
    async def answered(scene: Scene) -> None:
        await scene.send(
            json.dumps(problem(scene.path, code, said)).encode(), code, "application/json", **headers
        )

    return answered


async def busy(scene: Scene) -> None:
    body = json.dumps(problem(scene.path, 429, "Yes, faithful")).encode()
    await scene.send(body, 429, "application/json", Retry_After=f"{scene.server.wait:g}")


async def reset_at_once(scene: Scene) -> None:
    scene.reset()


async def reset_in_the_body(scene: Scene) -> None:
    content = scene.right.content
    await scene.send(content[: len(content) // 2], length=len(content))
    await asyncio.sleep(0.02)
    scene.reset()


async def closed_in_the_body(scene: Scene) -> None:
    content = scene.right.content
    await scene.send(content[: len(content) // 2], length=len(content))


async def loris(scene: Scene) -> None:
    await scene.send(b"", length=100_000)
    while True:
        scene.writer.write(b" ")
        await scene.writer.drain()
        await asyncio.sleep(scene.server.pace)


async def hang(scene: Scene) -> None:
    await asyncio.sleep(3600)


async def invalid_json(scene: Scene) -> None:
    await scene.send(b'{"choices": [{"message": Yes, faithful}]', kind="application/json")


async def truncated_json(scene: Scene) -> None:
    content = json.dumps(scene.right.body).encode()
    await scene.send(content[: content.rfind(b"usage")], kind="application/json")


async def no_json(scene: Scene) -> None:
    await scene.send(b"<html><title>Sign in</title>Yes</html>", kind="text/html")


async def wrong_schema(scene: Scene) -> None:
    wrong = [{"message": "Yes"}] if scene.path != "messages" else {"text": "Yes"}
    await scene.send(scene.changed(choices=wrong, content=wrong, usage="Yes"), kind="application/json")


async def other_schema(scene: Scene) -> None:
    await scene.send(b'{"answer": "Yes", "verdict": "faithful"}', kind="application/json")


async def empty_choices(scene: Scene) -> None:
    await scene.send(scene.changed(choices=[], content=[]), kind="application/json")


async def content_filter(scene: Scene) -> None:
    held_back = rb'"\1": "content_filter"'
    content = re.sub(rb'"(finish_reason)": "\w+"', held_back, scene.right.content)
    await scene.send(re.sub(rb'"(stop_reason)": "\w+"', rb'"\1": "refusal"', content))


async def big(scene: Scene) -> None:
    text = LONG
    said = [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]
    content = scene.changed(choices=said, content=[{"type": "text", "text": text}])
    await scene.send(content, kind="application/json")


async def not_gzip(scene: Scene) -> None:
    await scene.send(scene.right.content, Content_Encoding="gzip")


async def gzip_bomb(scene: Scene) -> None:
    await scene.send(gzip.compress(scene.changed(padding=" " * BIG)), Content_Encoding="gzip")


async def not_utf8(scene: Scene) -> None:
    content = json.dumps(scene.right.body).encode()
    broken = re.sub(rb'"(text|content)": "', rb"\g<0>" + b"\xff\xfe", content)
    await scene.send(broken, kind="application/json; charset=utf-8")


FAULTS: dict[str, Fault] = {
    "reset-at-once": reset_at_once,
    "reset": reset_in_the_body,
    "closed": closed_in_the_body,
    "loris": loris,
    "hang": hang,
    "400": status(400),
    "400-context": status(400, "prompt is too long: 9000 tokens > 2048, the maximum context length"),
    "401": status(401),
    "403": status(403),
    "404": status(404),
    "408": status(408),
    "413": status(413),
    "429": status(429),
    "429-after": busy,
    "quota": status(429, "You exceeded your current quota: insufficient_quota"),
    "500": status(500),
    "503": status(503),
    "invalid-json": invalid_json,
    "truncated-json": truncated_json,
    "no-json": no_json,
    "wrong-schema": wrong_schema,
    "other-schema": other_schema,
    "empty-choices": empty_choices,
    "content-filter": content_filter,
    "big": big,
    "not-gzip": not_gzip,
    "gzip-bomb": gzip_bomb,
    "not-utf8": not_utf8,
}


# --- the server itself -------------------------------------------------------------------------------


def closed_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


def always(_: Mapping[str, Any]) -> Answer:
    return Answer()


@contextmanager
def fault_server(
    answer: Callable[[Mapping[str, Any]], Answer] = always,
    *,
    spares: Callable[[str], bool] = lambda text: False,
    **how: Any,
) -> Iterator[FaultServer]:
    """The server at work, in a thread of its own; `how` are its other fields."""
    server = FaultServer(answer, spares, **how)
    ready, stops = threading.Event(), list[Callable[[], object]]()

    async def listen() -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        stops.append(lambda: loop.call_soon_threadsafe(stopped.set))
        await server.listen(ready)
        await stopped.wait()
        server.leave()

    # What still hangs is cancelled by `run`.
    thread = threading.Thread(target=lambda: asyncio.run(listen()), name="fault-server", daemon=True)
    thread.start()
    assert ready.wait(10), "the server did not start"
    try:
        yield server
    finally:
        stops[0]()
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"
