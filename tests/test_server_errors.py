"""What servers refuse becomes one of our errors: does a retry help, does a run end; no key is in it."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from magistrate._logging import HIDDEN
from magistrate.engines.remote.errors import LONGEST, engine_error, retry_after, shown
from magistrate.errors import (
    EngineBusy,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    OverLength,
)

KEY = "very-private-0123"
NOW = 1_795_000_000.0
ASKED: list[Any] = [{"role": "user", "content": "hello"}]


def raised(
    client: str, status: int, body: object = None, headers: Mapping[str, str] | None = None
) -> Exception:
    """What the official client raises where a server answers so."""
    content = body if isinstance(body, str) else json.dumps(body)
    kind = "text/plain" if isinstance(body, str) else "application/json"

    def answer(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind, **(headers or {})}, content=content)

    return failed(client, answer)


def failed(client: str, answer: Any) -> Exception:
    """What the official client raises where its transport does `answer`."""

    async def ask() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
            options: dict[str, Any] = {"api_key": KEY, "max_retries": 0, "http_client": http}
            if client == "openai":
                asked = openai.AsyncOpenAI(base_url="http://test/v1", **options)
                await asked.chat.completions.create(model="m", messages=ASKED)
            else:
                other = anthropic.AsyncAnthropic(base_url="http://test", **options)
                await other.messages.create(model="m", messages=ASKED, max_tokens=5)

    with pytest.raises(Exception) as caught:
        asyncio.run(ask())
    return caught.value


def translated(client: str, status: int, body: object = None, **headers: str) -> Exception:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return engine_error(raised(client, status, body, named), "the engine", now=lambda: NOW)


def of_openai(message: str, code: str | None = None, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def of_anthropic(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


STATUSES = [
    (400, EngineRefused),
    (401, EngineGone),
    (402, EngineGone),
    (403, EngineGone),
    (404, EngineGone),
    (405, EngineGone),
    (408, EngineTimeout),
    (409, EngineError),
    (413, OverLength),
    (422, EngineRefused),
    (429, EngineBusy),
    (431, EngineRefused),
    (451, EngineRefused),
    (500, EngineError),
    (501, EngineRefused),
    (502, EngineError),
    (503, EngineBusy),
    (504, EngineTimeout),
    (529, EngineBusy),
]


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_a_status_has_one_meaning(client: str) -> None:
    body = of_openai("no") if client == "openai" else of_anthropic("no")
    for status, kind in STATUSES:
        found = translated(client, status, body)
        assert type(found) is kind, status
        assert str(status) in str(found) and "the engine" in str(found)
        assert not isinstance(found, EngineError) or found.status == status
        assert not isinstance(found, EngineBusy) or found.retry_after is None, status


@pytest.mark.parametrize(
    ("client", "variable"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")]
)
@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_is_refused_is_named_by_where_it_comes_from_and_never_shown(
    client: str, variable: str, status: int
) -> None:
    said = f"Incorrect API key provided: {KEY}. Masked: very****0123. Header: Bearer {KEY}"
    found = translated(client, status, of_openai(said))
    assert variable in str(found)
    assert "private" not in str(found) and "0123" not in str(found)
    assert HIDDEN in str(found)


SPELLINGS = [
    (400, of_openai("no", "context_length_exceeded")),
    (
        400,
        of_openai("This model's maximum context length is 8192 tokens. However, you requested 9000 tokens"),
    ),
    (400, of_openai("Your input exceeds the context window of this model. Please adjust your input")),
    (400, of_openai("The decoder prompt (length 9000) is longer than the maximum model length of 2048.")),
    (400, {"error": {"code": 400, "message": "the request exceeds the available context size", "type": "x"}}),
    (400, {"error": {"code": 400, "message": "no", "type": "exceed_context_size_error"}}),
    (500, {"error": {"code": 500, "message": "input is larger than the max context size. skipped"}}),
    (400, of_openai("Input length (9000 tokens) exceeds the maximum allowed length (2048 tokens).")),
    (400, of_openai("The input (9000 tokens) is longer than the model's context length (2048 tokens).")),
    (422, {"error": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096"}),
    (400, {"error": "the input length exceeds the context length"}),
    (400, {"error": "Trying to keep the first 9000 tokens when context the overflows."}),
    (400, {"message": "Prompt contains 9000 tokens, too large for model with 2048 maximum context length"}),
    (
        400,
        {"error": {"message": "The input token count (9000) exceeds the maximum number of tokens allowed"}},
    ),
    (400, {"detail": "Please reduce the length of the messages or completion."}),
    (400, of_anthropic("prompt is too long: 208310 tokens > 200000 maximum")),
    (400, of_anthropic("input length and `max_tokens` exceed context limit: 197202 + 21333 > 200000")),
    (413, of_anthropic("Request exceeds the maximum size", "request_too_large")),
    (413, "<html><head><title>413 Request Entity Too Large</title></head></html>"),
]


@pytest.mark.parametrize(("status", "body"), SPELLINGS)
def test_a_prompt_that_does_not_fit_is_over_length_however_it_is_spelled(status: int, body: object) -> None:
    for client in ("openai", "anthropic"):
        assert type(translated(client, status, body)) is OverLength


@pytest.mark.parametrize(
    "body",
    [
        of_openai("Invalid schema for response_format: context is not of type object"),
        of_openai("max_tokens must be at least 1"),
        of_openai("The response was filtered due to the prompt triggering our content management policy"),
        {"detail": [{"loc": ["body", "messages"], "msg": "Field required"}]},
    ],
)
def test_other_bad_requests_are_refused_and_not_tried_again(body: object) -> None:
    found = translated("openai", 400, body)
    assert type(found) is EngineRefused and not found.retryable


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, of_openai("You exceeded your current quota, please check your plan", "insufficient_quota")),
        (403, of_openai("Your account has insufficient funds")),
        (400, of_anthropic("Your credit balance is too low to access the API")),
        (402, of_anthropic("pay first", "billing_error")),
    ],
)
def test_a_spent_account_ends_the_run(status: int, body: object) -> None:
    for client in ("openai", "anthropic"):
        found = translated(client, status, body)
        assert type(found) is EngineGone and "quota" in str(found)


def test_a_filter_of_one_text_does_not_end_the_run() -> None:
    found = translated("openai", 403, of_openai("the input was flagged by moderation"))
    assert type(found) is EngineRefused


def test_more_tokens_than_fit_a_minute_are_refused() -> None:
    found = translated("openai", 413, of_openai("Request too large: tokens per minute (TPM): Limit 6000"))
    assert type(found) is EngineRefused


WAITS = [
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": "0.5"}, 0.5),
    ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
    ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
    ({"retry-after": "-3"}, 0.0),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "nan"}, None),
    ({"retry-after": "inf"}, None),
    ({"retry-after": ""}, None),
    ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "6m0s"}, 1.0),
    (
        {
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-reset-tokens": "6m0s",
            "x-ratelimit-remaining-tokens": "0",
        },
        360.0,
    ),
    ({"x-ratelimit-reset-requests": "20ms"}, 0.02),
    ({"x-ratelimit-reset": str(int((NOW + 12) * 1000))}, 12.0),
    ({"x-ratelimit-reset": str(int(NOW + 12))}, 12.0),
    ({"ratelimit-reset": "5"}, 5.0),
    ({"anthropic-ratelimit-tokens-reset": "2026-11-18T10:27:20Z"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "wait"), WAITS)
def test_a_server_says_how_long_to_wait(headers: dict[str, str], wait: float | None) -> None:
    found = retry_after(headers, NOW)
    if "anthropic-ratelimit-tokens-reset" in headers:
        assert found is not None and found >= 0
    else:
        assert found == (None if wait is None else pytest.approx(wait, abs=1e-3))


def test_anthropic_says_when_in_a_date() -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW + 40))
    assert retry_after({"anthropic-ratelimit-requests-reset": moment}, NOW) == pytest.approx(40, abs=1)


@pytest.mark.parametrize("client", ["openai", "anthropic"])
@pytest.mark.parametrize("status", [429, 503, 529])
def test_the_wait_reaches_the_error(client: str, status: int) -> None:
    found = translated(client, status, of_openai("slow down"), retry_after="7")
    assert isinstance(found, EngineBusy) and found.retry_after == 7


BROKEN = [
    (httpx2.ConnectError("[Errno 111] Connection refused"), EngineError, "check that the server is running"),
    (httpx2.ReadError("reset"), EngineError, "broke"),
    (httpx2.RemoteProtocolError("peer closed connection"), EngineError, "broke"),
    (httpx2.DecodingError("not gzip"), EngineError, "encoding"),
    (httpx2.ReadTimeout("slow"), EngineTimeout, "in time"),
    (httpx2.UnsupportedProtocol("no http://"), EngineGone, "--base-url"),
    (httpx2.LocalProtocolError(f"Illegal header value b'Bearer {KEY}'"), EngineGone, "cannot be sent"),
    (ssl.SSLCertVerificationError("CERTIFICATE_VERIFY_FAILED"), EngineGone, "SSL_CERT_FILE"),
    (ssl.SSLError("wrong version number"), EngineError, "https"),
]


@pytest.mark.parametrize("client", ["openai", "anthropic"])
@pytest.mark.parametrize(("error", "kind", "advice"), BROKEN)
def test_a_broken_connection_is_told_with_advice(
    client: str, error: Exception, kind: type[Exception], advice: str
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise error

    found = engine_error(failed(client, answer), "the engine")
    assert isinstance(found, EngineError) and type(found) is kind
    assert found.status is None  # no answer came
    assert advice in str(found) and KEY not in str(found)


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_a_body_that_is_no_json_is_an_error_to_try_again(client: str) -> None:
    for content in (b'{"id": ', b'{"id": "\xff\xfe"}'):

        def answer(_: httpx2.Request, content: bytes = content) -> httpx2.Response:
            return httpx2.Response(200, headers={"content-type": "application/json"}, content=content)

        found = engine_error(failed(client, answer), "the engine")
        assert type(found) is EngineError and found.retryable
        assert found.status == 200


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.ConnectError("no"), EngineError),
        (httpx.ConnectTimeout("no"), EngineTimeout),
        (TimeoutError(), EngineTimeout),
        (ConnectionResetError(104, "Connection reset by peer"), EngineError),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), EngineRefused),
        (UnicodeEncodeError("ascii", "\u20ac", 0, 1, "ordinal not in range"), EngineGone),
    ],
)
def test_errors_below_the_clients_are_known_too(error: Exception, kind: type[Exception]) -> None:
    assert type(engine_error(error, "the engine")) is kind


def test_an_error_in_the_middle_of_a_stream_keeps_its_meaning() -> None:
    body = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    response = httpx2.Response(200, request=httpx2.Request("POST", "http://test"))
    found = engine_error(anthropic.APIStatusError("x", response=response, body=body), "the engine")
    assert type(found) is EngineBusy and found.status == 529
    limited = openai.APIError("x", response.request, body={"message": "slow", "type": "rate_limit_exceeded"})
    assert type(engine_error(limited, "the engine")) is EngineBusy
    unknown = openai.APIError("x", response.request, body={"message": "the worker died"})
    found = engine_error(unknown, "the engine")
    assert type(found) is EngineError and "worker died" in str(found)


def test_what_is_no_error_of_a_client_stays_what_it_is() -> None:
    ours, bug = OverLength("too long"), KeyError("choices")
    assert engine_error(ours, "the engine") is ours
    assert engine_error(bug, "the engine") is bug


# --- what is shown of a server's words -------------------------------------------------------------


def test_a_server_cannot_write_into_a_terminal_or_without_end() -> None:
    hostile = "\x1b[31mred\x1b[0m\r\n\x00\u202eevil\u2028" + "<script>alert(1)</script>" + "x" * 100_000
    found = str(translated("openai", 400, of_openai(hostile)))
    assert found.isprintable() and "alert" not in found
    assert len(found) < LONGEST + 100


@pytest.mark.parametrize(
    ("said", "hidden"),
    [
        ("the key sk-proj-abcdefgh12345678 is wrong", "abcdefgh"),
        ("Authorization: Bearer abc.def.ghi", "abc.def"),
        ("api_key=topsecret", "topsecret"),
        ('{"x-api-key": "topsecret"}', "topsecret"),
        ("http://user:pass@host/v1 is down", "pass"),
        ("AIzaSyA1234567890abcdefghijklmnop", "1234567890"),
        ("token 0123456789abcdef0123456789abcdef", "abcdef"),
    ],
)
def test_what_looks_like_a_key_is_hidden(said: str, hidden: str) -> None:
    assert hidden not in shown(said) and HIDDEN in shown(said)


def test_a_key_of_the_environment_is_hidden_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_GATEWAY_TOKEN", "plainword")
    found = translated("openai", 400, of_openai("we do not like plainword at all"))
    assert "plainword" not in str(found)


def test_ordinary_words_are_shown_as_they_are() -> None:
    said = "Invalid value for 'temperature': 3 is more than 2 (see the key points of our pages)."
    assert shown(said) == said
    assert shown(None) == shown({}) == ""
