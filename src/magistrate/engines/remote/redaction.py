"""Makes a server's words safe to show: one line of bounded length, without anything that could be a key."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from magistrate import _logging
from magistrate._logging import HIDDEN

LONGEST = 300  # characters of a server's words that are shown
READ = 2_000  # characters that are looked at, so that a hostile message costs no time

SECRET_HEADERS = ("authorization", "proxy-authorization", "x-api-key", "api-key", "cookie")
SHORTEST = 6  # characters of a secret; what is shorter could be any word

MARKUP = re.compile(r"<(script|style)\b.*?</\1>|<[^<>]*>", re.DOTALL | re.IGNORECASE)

# What looks like a key wherever it stands: by its beginning, by the word before it, or half masked.
KEYS = (
    re.compile(
        r"\b(?:sk|pk|rk|key|gsk|xai|nvapi|hf|AIza|eyJ)[-_][\w.*\-]{6,}|\bAIza[\w\-]{10,}|\beyJ[\w.\-]{10,}"
    ),
    re.compile(r"(?i)(?<=bearer )\s*[^\s,;\"']+"),
    re.compile(r"(?i)(?<=key provided: )\s*[^\s,;\"']+"),
    re.compile(
        r"(?i)\b((?:x-)?api[-_ ]?key|access[-_ ]?token|authorization)(\"?'?\s*[:=]\s*\"?'?)[^\s,;\"']{4,}"
    ),
    re.compile(r"[^\s\"']*\*{3,}[^\s\"']*"),
    re.compile(r"(?<=://)[^/\s@]+(?=@)"),
    re.compile(r"\b(?=[\w\-]*\d)(?=[\w\-]*[A-Za-z])[A-Za-z0-9_\-]{32,}"),
)


def shown(words: object, secrets: Iterable[str] = ()) -> str:
    """A server's words as one line of at most `LONGEST` characters; empty for anything but text.

    Markup and control characters are removed, `secrets` and whatever looks like a key are hidden.
    """
    if not isinstance(words, str):
        return ""
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= SHORTEST:
            words = words.replace(secret, HIDDEN)
    text = MARKUP.sub(" ", words[:READ])
    text = "".join(" " if unicodedata.category(each)[0] in "CZ" else each for each in text)
    for key in KEYS:
        text = key.sub(_hide, text)
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1].rstrip() + "…"


def secrets_of(headers: Mapping[str, str] | None) -> list[str]:
    """The keys in a request's headers and in the environment, which must not be shown."""
    found = list(_logging.secrets_of(os.environ))
    for name in SECRET_HEADERS:
        value = headers.get(name) if headers is not None else None
        if value:
            found += [value, value.rpartition(" ")[2]]
    return [each.strip() for each in found if len(each.strip()) >= SHORTEST]


def without_keys(body: Any, given: Iterable[str]) -> Any:
    """JSON values with `[hidden]` for every known key in their texts, names of members among them."""
    if isinstance(body, str):
        return _logging.without_keys(body, given)
    if isinstance(body, list):
        return [without_keys(each, given) for each in body]
    if isinstance(body, dict):
        return {without_keys(name, given): without_keys(each, given) for name, each in body.items()}
    return body


def _hide(found: re.Match[str]) -> str:
    """The replacement of a key; the word before it stays."""
    return f"{found[1]}{found[2]}{HIDDEN}" if found.re.groups == 2 else HIDDEN
