"""Convert errors of the official clients to errors of this package, which tell whether a retry would help.

The clients' classes are matched by name, so that none of them is imported here. `openai` and `anthropic`
have the same class tree (`APIStatusError` with a status, `APITimeoutError`, `APIConnectionError`), and the
errors of `httpx` and `httpx2` below them have the same names too.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import ssl
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from magistrate import _logging
from magistrate.errors import (
    EngineBusy,
    EngineError,
    EngineGone,
    EngineRefused,
    EngineTimeout,
    MagistrateError,
    OverLength,
)

BROKEN_CONNECTION = (ConnectionError, ssl.SSLError, socket.gaierror)
SEARCHED = 4_000  # characters of an error that are searched for known phrases
KEY_VARIABLES = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}

# Messages about a prompt that does not fit, from OpenAI, vLLM, SGLang, llama.cpp, Ollama, LM Studio, TGI,
# Anthropic, Gemini, Mistral and the gateways that forward their messages.
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
# Problems of payment or account, which no retry fixes.
UNPAID = re.compile(
    r"insufficient_quota|billing|credit balance|spend_limit|spending limit|exceeded your current quota"
    r"|insufficient (credits?|balance|funds)|payment required|organization_on_hold",
    re.IGNORECASE,
)
FILTERED = re.compile(r"moderation|flagged|content[ _](filter|policy)|safety", re.IGNORECASE)
PER_MINUTE = re.compile(r"rate_limit|per (minute|day)|\b[TR]P[MD]\b", re.IGNORECASE)

# HTTP status for an error type within a stream that began with status 200.
STATUS_OF_TYPE = {
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
    """An answer has a success status, but its `body` reports that the server failed."""

    def __init__(self, body: object, request: object) -> None:
        super().__init__("the server reported a failure")
        self.body, self.request = body, request


def engine_error(error: Exception, who: str, *, now: Callable[[], float] = time.time) -> Exception:
    """Return this package's error for an exception of an official client; others are returned unchanged.

    If the exception was raised from an error of this package, that error is returned. `who` names the
    engine in the message, such as `openai:gpt-4o-mini at http://127.0.0.1:8080/v1`. The message includes a
    limited part of the server's own, without control characters and keys; a key is named only by its
    environment variable. Raise the result `from None`, because a client's error holds its request.
    """
    causes = list(_causes(error))
    if own := next((each for each in causes if isinstance(each, MagistrateError)), None):
        return own
    names = {kind.__name__ for each in causes for kind in type(each).__mro__}
    if (status := _status(error)) is not None:
        return _status_error(error, status, who, now)
    if names & {"APITimeoutError", "TimeoutException"} or isinstance(error, TimeoutError):
        return EngineTimeout(f"{who} did not answer in time; allow more time with --timeout")
    if names & {"APIConnectionError", "RequestError", "InvalidURL"} or isinstance(error, BROKEN_CONNECTION):
        return _connection_error(causes, names, who)
    if isinstance(error, UnicodeEncodeError):
        if error.encoding.lower().startswith("utf"):
            message = f"{who}: the text has characters that cannot be sent (half of a surrogate pair)"
            return EngineRefused(message)
        return EngineGone(
            f"{who}: the request cannot be sent; check whether the key has a character that is not ASCII"
        )
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        message = f"{who} did not answer with JSON; check that this is the address of a model server"
        return EngineError(message, status=200)
    if isinstance(error, ServerSaysError):
        reason = _shown(_message(error.body), error) or "no reason given"
        return EngineError(f"{who} reported a failure: {reason}")
    if names & {"APIResponseValidationError", "APIError", "OpenAIError", "AnthropicError"}:
        message = _message(getattr(error, "body", None)) or getattr(error, "message", str(error))
        return EngineError(f"{who} failed: {_shown(message, error) or type(error).__name__}")
    return error


def _status_error(error: Exception, status: int, who: str, now: Callable[[], float]) -> Exception:
    """Return the error for an answer with an HTTP status other than success."""
    body = getattr(error, "body", None)
    words = _message(body) or str(getattr(error, "message", ""))
    searched = " ".join([words, *(code for code in _codes(body) if isinstance(code, str))])[:SEARCHED]
    message = f"{who}: HTTP {status}: {_shown(words, error) or 'no reason given'}"
    kind: type[EngineError] = EngineRefused
    if status == 402 or (status in (400, 403, 429) and UNPAID.search(searched)):
        kind, message = EngineGone, f"{message}; requests will fail until there are funds or quota again"
    elif status in (400, 413, 422, 500) and TOO_LONG.search(searched):
        return OverLength(message)
    elif status in (401, 403) and not (status == 403 and FILTERED.search(searched)):
        package = type(error).__module__.partition(".")[0]
        variable = KEY_VARIABLES.get(package, "the key's environment variable")
        kind = EngineGone
        message += f"; set {variable} to a key that this server accepts"
    elif status in (404, 405, 410):
        kind = EngineGone
        message += "; the server does not know the model or the address: check --model and --base-url"
    elif status == 413 and not PER_MINUTE.search(searched):
        return OverLength(message)
    elif status in (408, 504, 524):
        kind = EngineTimeout
    elif status in (429, 503, 529):
        headers = getattr(getattr(error, "response", None), "headers", None) or {}
        return EngineBusy(message, retry_after=retry_after(headers, now()), status=status)
    elif status in (409, 425, 499) or (status >= 500 and status != 501):
        kind = EngineError
    return kind(message, status=status)


def _connection_error(causes: list[BaseException], names: set[str], who: str) -> EngineError:
    """Return the error for a missing or incomplete answer."""
    reason = next(
        (f" ({shown(e.strerror)})" for e in causes[::-1] if isinstance(e, OSError) and e.strerror), ""
    )
    if "SSLCertVerificationError" in names or any("CERTIFICATE_VERIFY" in str(each) for each in causes):
        message = (
            "the server's certificate is not trusted; to trust it, set SSL_CERT_FILE to a file with "
            "certificates"
        )
        return EngineGone(f"{who}: {message}")
    if names & {"UnsupportedProtocol", "InvalidURL"}:
        return EngineGone(f"{who}: this is not the address of a server; use --base-url http://HOST:PORT/v1")
    if "LocalProtocolError" in names:  # its message may contain the key
        message = (
            "the request cannot be sent; check whether the key has a line break or another invalid character"
        )
        return EngineGone(f"{who}: {message}")
    if "DecodingError" in names:
        return EngineError(f"{who}: the answer does not have the encoding that the server declares")
    if names & {"ConnectError", "ConnectionRefusedError", "gaierror"}:
        message = f"no connection{reason}; check that the server is running and that this is its address"
        return EngineError(f"{who}: {message}")
    if "SSLError" in names:
        return EngineError(f"{who}: no secure connection{reason}; check that the server supports https")
    return EngineError(f"{who}: the connection broke before the answer was complete{reason}")


# --- contents of the clients' errors -------------------------------------------------------------


def _status(error: Exception) -> int | None:
    """Return the HTTP status of an error, None if no answer came."""
    if type(error).__name__ == "APIResponseValidationError":
        return None
    status = getattr(error, "status_code", None)
    if status is None:  # HTTPStatusError of httpx
        status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int) and status >= 300:
        return status
    codes = list(_codes(getattr(error, "body", None)))
    number = next((code for code in codes if isinstance(code, int) and 400 <= code <= 599), None)
    return number or next((STATUS_OF_TYPE[code] for code in codes if code in STATUS_OF_TYPE), None)


def _message(body: object) -> str:
    """Return the message in an error's body, in the format of OpenAI, Anthropic, FastAPI, or plain text."""
    for _ in range(3):
        if not isinstance(body, Mapping):
            break
        body = next((body[key] for key in ("message", "error", "detail", "title") if body.get(key)), "")
    if isinstance(body, str):
        return body
    return json.dumps(body, ensure_ascii=False, default=str)[:2_000] if isinstance(body, list) else ""


def _codes(body: object) -> Iterator[str | int]:
    """Yield the error types and statuses in a body, the outermost first."""
    while isinstance(body, Mapping):
        codes = (body.get(key) for key in ("code", "error_code", "status", "type"))
        yield from (code for code in codes if isinstance(code, str | int))
        body = body.get("error") or body.get("details")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the outermost first."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


# --- a server's message, safe to show ------------------------------------------------------------

LONGEST = 300  # characters of a server's message that are shown
READ = 2_000  # characters that are examined, so that a hostile message costs no time
SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")
SHORTEST_SECRET = 6  # characters; a shorter one could be any word
MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^<>]*>", re.DOTALL | re.IGNORECASE)
# Forms in which servers repeat a key, besides those in `_logging`: verbatim, half masked, or a long token.
REPEATED_KEY = re.compile(
    r"(?i:(?<=key provided: ))\s*[^\s,;\"']+|\b(?:key|gsk|xai|nvapi)[-_][\w.*\-]{6,}|[^\s\"']*\*{3,}[^\s\"']*"
    r"|\b(?=[\w\-]*\d)(?=[\w\-]*[A-Za-z])[A-Za-z0-9_\-]{32,}"
)


def shown(words: object, secrets: Iterable[str] = ()) -> str:
    """Return a server's message as one line of at most `LONGEST` characters; empty for anything but text.

    Markup and control characters are removed. `secrets` and anything that looks like a key are hidden.
    """
    if not isinstance(words, str):
        return ""
    for secret in sorted(set(secrets), key=len, reverse=True):
        words = words.replace(secret, _logging.HIDDEN)
    text = MARKUP.sub(" ", words[:READ])
    text = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in text)
    text = " ".join(REPEATED_KEY.sub(_logging.HIDDEN, _logging.hidden(text, ())).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"


def _shown(words: object, error: Exception) -> str:
    """Return `words` without the keys in the environment and in the request that caused `error`."""
    try:
        headers = getattr(getattr(error, "request", None), "headers", {})
    except RuntimeError:  # httpx raises this if there is no request
        headers = {}
    sent = [headers[name] for name in SECRET_HEADERS if headers.get(name)]
    secrets = [*_logging.secrets_of(os.environ), *sent, *(value.rpartition(" ")[2] for value in sent)]
    return shown(words, [each for each in map(str.strip, secrets) if len(each) >= SHORTEST_SECRET])


# --- how long to wait ----------------------------------------------------------------------------

DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
FIRST_DATE = 1_000_000_000  # more seconds than any server asks for: from here on, a date since 1970
LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that a server asks to wait, or None.

    `now` is the time in seconds since 1970. Reads `retry-after-ms`, `Retry-After` (seconds or a date), and
    otherwise the reset time of the exhausted limit, in the headers of OpenAI (`x-ratelimit-reset-…`),
    Anthropic (`anthropic-ratelimit-…-reset`) and gateways (`ratelimit-reset`).
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return max(0.0, milliseconds / 1000)
    seconds = _seconds(headers.get("retry-after"), now)
    return seconds if seconds is not None else _reset(headers, now)


def _reset(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds until the last exhausted limit is reset, or until the first reset if none is."""
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
    """Convert a number of seconds, a duration such as `1m30s`, or a date to seconds from now."""
    text = (value or "").strip()
    number = _number(text)
    if number is not None:
        if number >= FIRST_DATE * 1000:
            number /= 1000
        return max(0.0, number - now if number >= FIRST_DATE else number)
    if text and DURATION.sub("", text) == "":
        return sum(float(amount) * SECONDS_PER_UNIT[unit] for amount, unit in DURATION.findall(text))
    for read in (parsedate_to_datetime, datetime.fromisoformat):  # dates in HTTP and RFC 3339 format
        try:
            date = read(text)
            return max(0.0, (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp() - now)
        except (TypeError, ValueError, OverflowError, OSError):
            continue
    return None


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
