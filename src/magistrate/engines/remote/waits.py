"""How long a server asks to wait, in the headers that servers say it with."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MOMENT = 1_000_000_000  # more seconds than any server asks for: a moment since 1970, not a time from now
LIMITS = ("requests", "tokens", "input-tokens", "output-tokens")


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that a server asks to wait, None where it does not say.

    `now` is the time in seconds since 1970. Read are `retry-after-ms`, `Retry-After` (seconds or a date), and
    else when the limit that is used up is there again, as OpenAI (`x-ratelimit-reset-…`), Anthropic
    (`anthropic-ratelimit-…-reset`) and gateways (`ratelimit-reset`) say it.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return max(0.0, milliseconds / 1000)
    asked = _seconds(headers.get("retry-after"), now)
    return asked if asked is not None else _reset(headers, now)


def _reset(headers: Mapping[str, str], now: float) -> float | None:
    """When the last of the limits that are used up is there again; the first, where none is said to be."""
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


def _seconds(said: str | None, now: float) -> float | None:
    """A number of seconds, a span such as `1m30s`, a moment or a date, as seconds from now."""
    if said is None:
        return None
    number = _number(said)
    if number is not None:
        if number >= MOMENT * 1000:
            number /= 1000
        return max(0.0, number - now if number >= MOMENT else number)
    text = said.strip()
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


def _number(said: str | None) -> float | None:
    try:
        number = float(said) if said is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
