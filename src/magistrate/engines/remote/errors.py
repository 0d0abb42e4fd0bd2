"""Turns the errors of official clients into this package's: would a retry help, must the run end.

The clients' classes are matched by name, so that none of them is imported here: `openai` and `anthropic` have
the same tree (`APIStatusError` with a status, `APITimeoutError`, `APIConnectionError`), and the errors of
`httpx` and `httpx2` below them have the same names too.
"""

from __future__ import annotations

import json
import math
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from magistrate.engines.remote.redaction import secrets_of, shown
from magistrate.errors import (
    EngineBusy,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    MagistrateError,
    OverLength,
)

BROKEN = (ConnectionError, ssl.SSLError, socket.gaierror)
CODED = 4_000  # characters in which a known spelling is looked for
KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}

# A prompt that does not fit, as servers spell it: OpenAI, vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI,
# Anthropic, Gemini, Mistral and the gateways that pass their words on.
TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|string_above_max_length"
    r"|(maximum|max|available|model'?s|exceeds? (the )?)\s*(model )?context (length|size|window|limit)"
    r"|exceed(s|ed|ing)? (the |its )?[\w' ]*context"
    r"|(prompt|input|request|message)s?( is| are)? (too long|longer than)"
    r"|longer than (the )?(model'?s |maximum )"
    r"|input (tokens? count|token count|length)[^.]{0,40}exceeds?"
    r"|context the overflows|context length of only|tokens to keep from the initial prompt"
    r"|too large for model with|reduce the length of the (messages|input|prompt)"
    r"|`?inputs`? (tokens \+ `?max_new_tokens|must have less than)",
    re.IGNORECASE,
)
# Money or an account, which no retry brings back.
UNPAID = re.compile(
    r"insufficient_quota|billing|credit balance|spend_limit|spending limit|exceeded your current quota"
    r"|insufficient (credits?|balance|funds)|payment required|organization_on_hold",
    re.IGNORECASE,
)
FILTERED = re.compile(r"moderation|flagged|content[ _](filter|policy)|safety", re.IGNORECASE)
PER_MINUTE = re.compile(r"rate_limit|per (minute|day)|\b[TR]P[MD]\b", re.IGNORECASE)

# The status that an error in the middle of a stream stands for, after the status 200 of its beginning.
TYPES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "api_error": 500,
    "server_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class ServerSaysError(Exception):
    """An answer with the status of success whose `body` says that the server failed."""

    def __init__(self, body: object, request: object) -> None:
        super().__init__("the server says that it failed")
        self.body, self.request = body, request


def engine_error(error: Exception, who: str, *, now: Callable[[], float] = time.time) -> Exception:
    """This package's error for an exception of an official client; other exceptions are returned as they are.

    `who` names the engine in the message, such as `openai:gpt-4o-mini at http://127.0.0.1:8080/v1`. A bounded
    part of the server's words is shown, without control characters and keys; a key is only named by the
    environment variable that it comes from. Raise the result `from None`: a client's error holds its request.
    """
    if isinstance(error, MagistrateError):
        return error
    names = {kind.__name__ for each in _chain(error) for kind in type(each).__mro__}
    status = _status(error)
    if status is not None:
        return _of_status(error, status, who, now)
    if names & {"APITimeoutError", "TimeoutException"} or isinstance(error, TimeoutError):
        return EngineTimeout(f"{who} did not answer in time; a longer time is given with --timeout")
    if names & {"APIConnectionError", "RequestError", "InvalidURL"} or isinstance(error, BROKEN):
        return _of_connection(error, names, who)
    if isinstance(error, UnicodeEncodeError):
        return _unsendable(error, who)
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        message = f"{who} answered what is no JSON; is this the address of a model's server?"
        return EngineError(message, status=200)
    if isinstance(error, ServerSaysError):
        return EngineError(
            f"{who} says that it failed: {_shown(_message(error.body), error) or 'no reason given'}"
        )
    if names & {"APIResponseValidationError", "APIError", "OpenAIError", "AnthropicError"}:
        message = _message(getattr(error, "body", None)) or getattr(error, "message", str(error))
        return EngineError(f"{who} failed: {_shown(message, error) or type(error).__name__}")
    return error


def _of_status(error: Exception, status: int, who: str, now: Callable[[], float]) -> Exception:
    """The error for an answer with an HTTP status other than success."""
    body = getattr(error, "body", None)
    words = _message(body) or str(getattr(error, "message", ""))
    coded = f"{words} {' '.join(_codes(body))}"[:CODED]
    message = f"{who}: HTTP {status}: {_shown(words, error) or 'no reason given'}"
    headers: Mapping[str, str] = getattr(getattr(error, "response", None), "headers", None) or {}
    variable = KEY_VARIABLES.get(type(error).__module__.partition(".")[0], "the key's environment variable")
    if status == 402 or (status in (400, 403, 429) and UNPAID.search(coded)):
        return EngineGone(
            f"{message}; nothing is answered until there are funds or quota again", status=status
        )
    if status in (400, 413, 422, 500) and TOO_LONG.search(coded):
        return OverLength(message)
    if status == 403 and FILTERED.search(coded):
        return EngineRefused(message, status=status)
    if status in (401, 403):
        return EngineGone(
            f"{message}; the key is taken from {variable}: set it to one that this server accepts",
            status=status,
        )
    if status in (404, 405, 410):
        return EngineGone(
            f"{message}; the server does not know the model or the address: check --model and --base-url",
            status=status,
        )
    if status == 413:
        return EngineRefused(message, status=status) if PER_MINUTE.search(coded) else OverLength(message)
    if status in (408, 504, 524):
        return EngineTimeout(message, status=status)
    if status in (429, 503, 529):
        return EngineBusy(message, retry_after=retry_after(headers, now()), status=status)
    if status in (409, 425, 499) or (status >= 500 and status != 501):
        return EngineError(message, status=status)
    return EngineRefused(message, status=status)


def _of_connection(error: Exception, names: set[str], who: str) -> EngineError:
    """The error where no answer came, or none that could be read to its end."""
    causes = list(_chain(error))
    if any(
        isinstance(each, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY" in str(each) for each in causes
    ):
        message = "the server's certificate is not trusted; SSL_CERT_FILE names a file of those that are"
        return EngineGone(f"{who}: {message}")
    if names & {"UnsupportedProtocol", "InvalidURL"}:
        return EngineGone(f"{who}: this is no address of a server; write --base-url http://HOST:PORT/v1")
    if "LocalProtocolError" in names:  # its words may hold the key
        return EngineGone(
            f"{who}: the request cannot be sent; has the key a line break or another odd character?"
        )
    if "DecodingError" in names:
        return EngineError(f"{who}: the answer is not encoded as the server says it is")
    if names & {"ConnectError", "ConnectionRefusedError", "gaierror"}:
        return EngineError(
            f"{who}: no connection{_reason(causes)}; is the server running, and is this its address?"
        )
    if any(isinstance(each, ssl.SSLError) for each in causes):
        return EngineError(f"{who}: no secure connection{_reason(causes)}; does the server speak https?")
    return EngineError(f"{who}: the connection broke before the answer was whole{_reason(causes)}")


def _unsendable(error: UnicodeEncodeError, who: str) -> EngineError:
    if error.encoding.lower().startswith("utf"):
        return EngineRefused(f"{who}: the text has characters that cannot be sent (half of a surrogate pair)")
    return EngineGone(f"{who}: the request cannot be sent; has the key a character that is not ASCII?")


# --- what the clients' errors hold ---------------------------------------------------------------


def _status(error: Exception) -> int | None:
    """The HTTP status that an error stands for, None if no answer came."""
    if type(error).__name__ == "APIResponseValidationError":
        return None
    status = getattr(error, "status_code", None)
    if status is None:  # HTTPStatusError of httpx
        status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and status >= 300:
        return status
    body = getattr(error, "body", None)
    number = next((code for code in _numbers(body) if 400 <= code <= 599), None)
    return number or next((TYPES[code] for code in _codes(body) if code in TYPES), None)


def _message(body: object) -> str:
    """The message in an error's body, in the shape of OpenAI, Anthropic, FastAPI, or plain text."""
    for _ in range(3):
        if not isinstance(body, Mapping):
            break
        body = next((body[key] for key in ("message", "error", "detail", "title") if body.get(key)), "")
    if isinstance(body, str):
        return body
    return json.dumps(body, ensure_ascii=False, default=str)[:2_000] if isinstance(body, list) else ""


def _codes(body: object) -> Iterator[str]:
    """The kinds of error that a body names, the outermost first."""
    while isinstance(body, Mapping):
        for key in ("code", "error_code", "type"):
            if isinstance(code := body.get(key), str):
                yield code
        body = body.get("error") or body.get("details")


def _numbers(body: object) -> Iterator[int]:
    """The statuses that a body names, the outermost first."""
    while isinstance(body, Mapping):
        for key in ("code", "status"):
            if isinstance(code := body.get(key), int):
                yield code
        body = body.get("error") or body.get("details")


def _shown(words: object, error: Exception) -> str:
    return shown(words, secrets_of(_request_headers(error)))


def _request_headers(error: Exception) -> Mapping[str, str] | None:
    try:
        request: Any = getattr(error, "request", None)
    except RuntimeError:  # httpx, where there is none
        return None
    return getattr(request, "headers", None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what caused it, the outermost first."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _reason(causes: list[BaseException]) -> str:
    """The operating system's words for a broken connection, in parentheses."""
    for each in reversed(causes):
        if isinstance(each, OSError) and each.strerror:
            return f" ({shown(each.strerror)})"
    return ""


# --- how long to wait ----------------------------------------------------------------------------

SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MOMENT = 1_000_000_000  # more seconds than any server asks for: a moment since 1970, not a time from now
LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that a server asks to wait, None if it does not say.

    `now` is the time in seconds since 1970. Reads `retry-after-ms`, `Retry-After` (seconds or a date), and
    otherwise when the limit that is used up is reset, as OpenAI (`x-ratelimit-reset-…`), Anthropic
    (`anthropic-ratelimit-…-reset`) and gateways (`ratelimit-reset`) tell it.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    asked = _seconds(headers.get("retry-after"), now)
    return asked if asked is not None else _reset(headers, now)


def _reset(headers: Mapping[str, str], now: float) -> float | None:
    """When the last of the used-up limits is reset; if none is used up, the first reset of all."""
    used, others = list[float](), list[float]()
    for name in LIMITS:
        for pattern in ("x-ratelimit-{}-" + name, f"anthropic-ratelimit-{name}-{{}}"):
            wait = _seconds(headers.get(pattern.format("reset")), now)
            if wait is not None:
                remaining = _number(headers.get(pattern.format("remaining")))
                (used if remaining == 0 else others).append(wait)
    for name in ("x-ratelimit-reset", "ratelimit-reset"):
        if (wait := _seconds(headers.get(name), now)) is not None:
            others.append(wait)
    return max(used) if used else min(others, default=None)


def _seconds(value: str | None, now: float) -> float | None:
    """A number of seconds, a span such as `1m30s`, a moment or a date, as seconds from now."""
    if value is None:
        return None
    number = _number(value)
    if number is not None:
        if number >= MOMENT * 1000:
            number /= 1000
        return max(0.0, number - now if number >= MOMENT else number)
    text = value.strip()
    if SPAN.sub("", text) == "" and text:
        return sum(float(amount) * SECONDS[unit] for amount, unit in SPAN.findall(text))
    moment = _moment(text)
    return None if moment is None else max(0.0, moment - now)


def _moment(text: str) -> float | None:
    """A date of HTTP or of RFC 3339, in seconds since 1970."""
    for read in (parsedate_to_datetime, datetime.fromisoformat):
        try:
            found = read(text)
            return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
        except (TypeError, ValueError, OverflowError, OSError):
            continue
    return None


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
