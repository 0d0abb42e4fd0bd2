"""Logging of named events with fields: quiet by default, without keys and without documents.

Built on the standard library's `logging`, because applications that embed Magistrate already configure it:
only a null handler is set, and the root logger is never touched. Every field is cleaned before a record is
made, so that other handlers see no more than ours.

>>> info("run.started", run="20261122-1", samples=72)
>>> get("cache").info("cache.pruned", entries=12)
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Mapping
from copy import copy
from datetime import UTC, datetime
from functools import lru_cache
from math import isfinite
from typing import Any, TextIO

NAME = "magistrate"
VARIABLE = "MAGISTRATE_LOG"
LONGEST = 200  # characters of a field, at most
HIDDEN = "[hidden]"
CUT = "…"
SEARCHED = 4096  # characters searched for secrets by patterns: hostile text must not cost seconds

Field = str | int | float | bool | None

_root = logging.getLogger(NAME)
_root.addHandler(logging.NullHandler())


class Log:
    """Emits events below `magistrate`: a name such as `run.started`, and fields as keyword arguments."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{NAME}.{name}" if name else NAME)

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log details for debugging a run."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log normal progress."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log a problem that did not stop the work."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Log that a request failed."""
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Mapping[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        secrets = secrets_of(os.environ)
        clean = {name: cleaned(value, secrets, name) for name, value in fields.items()}
        name = str(cleaned(event, secrets))
        # The message contains all fields as text, for handlers that do not know about fields.
        told = " ".join([name, *(f"{key}={_word(value)}" for key, value in clean.items())])
        extra = {"magistrate_event": name, "magistrate_fields": clean}
        self._logger.log(level, "%s", told, extra=extra)


def get(name: str = "") -> Log:
    """Return the log of a part of Magistrate, such as `cache`."""
    return Log(name)


_whole = Log("")
debug, info, warning, error = _whole.debug, _whole.info, _whole.warning, _whole.error


def configure(
    *,
    verbose: bool,
    json: bool | None = None,
    stream: TextIO | None = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Show events on `stream` (default: standard error): all of them with `verbose`, else warnings only.

    Writes text lines on a terminal and one JSON object per line elsewhere; `json` or `MAGISTRATE_LOG=json`
    (or `text`) overrides this. A second call replaces the handler of the first. For programs, not for
    libraries.
    """
    for handler in [each for each in _root.handlers if isinstance(each, _Handler)]:
        _root.removeHandler(handler)
    chosen = environment.get(VARIABLE, "").strip().lower()
    if json is None and chosen in ("json", "text"):
        json = chosen == "json"
    handler = _Handler(stream, json)
    _root.addHandler(handler)
    _root.setLevel(logging.DEBUG if verbose else logging.WARNING)


def verbosity() -> bool | None:
    """Return whether `configure` was called with `verbose`; None if it was not called."""
    if not any(isinstance(each, _Handler) for each in _root.handlers):
        return None
    return _root.level == logging.DEBUG


# --- formatting of events ------------------------------------------------------------------------


class _Handler(logging.Handler):
    """Writes to the current standard error, which a progress bar or a test may have replaced."""

    def __init__(self, stream: TextIO | None, as_json: bool | None) -> None:
        super().__init__()
        self._stream = stream
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        stream = self._stream or sys.stderr
        if stream is None:  # a program without a console
            return
        try:
            record = _without_secrets(record)
            as_json = not stream.isatty() if self._as_json is None else self._as_json
            stream.write((json_line if as_json else text_line)(record) + "\n")
            stream.flush()
        except (OSError, ValueError):
            return  # the stream is closed; the logging package's own error output would not be cleaned


def json_line(record: logging.LogRecord) -> str:
    """Return one JSON object in ASCII: time (UTC), level, log, event, then the fields.

    A field cannot replace the first four.
    """
    head = {
        "time": _time(record).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "log": record.name,
        "event": _event(record),
    }
    fields = {f"field_{name}" if name in head else name: value for name, value in _fields(record).items()}
    return json.dumps(head | fields)


def text_line(record: logging.LogRecord) -> str:
    """Return a line such as `14:03:09 info  run.started  run=… samples=72`."""
    words = [f"{_time(record):%H:%M:%S}", f"{record.levelname.lower():<7}", _event(record)]
    return " ".join([*words, *(f"{name}={_word(value)}" for name, value in _fields(record).items())])


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _event(record: logging.LogRecord) -> str:
    return str(getattr(record, "magistrate_event", None) or record.getMessage())


def _fields(record: logging.LogRecord) -> Mapping[str, Field]:
    found: Mapping[str, Field] = getattr(record, "magistrate_fields", {})
    return found


def _word(value: Field) -> str:
    """Return a value on one line, quoted unless it is a single word."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[^\s\"'=]+", value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


# --- hiding secrets ------------------------------------------------------------------------------

_SECRET_ENDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "PWD", "CREDENTIAL")
_SECRET_PARTS = ("AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "DSN")
_NO_SECRETS = frozenset({"true", "false", "none", "null", "auto", "disabled", "enabled"})
_PASSWORD = re.compile(r"://[^\s/@:]*:((?:(?!://)[^\s@])+)@")  # in an address
SHORTEST_KEY = 8  # characters of a key that is hidden in a reply, at least
_SHORTEST = 4  # characters; a shorter value is no key, and hiding it would hide half of every line

_NAMES = r"(?:api[_\-]?key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization|cookie)"
_PATTERNS = (
    # An Authorization value has a scheme before the secret, so it is hidden up to the end of the line.
    (re.compile(r"(?i)(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?)[^\r\n\"'}]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',;]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b([Bb]asic\s+)(?![a-z]+\b)[A-Za-z0-9+/]{6,}={0,2}"), rf"\1{HIDDEN}"),
    # Also if the password contains `/` or `@`: up to the last `@` before white space. But only up to the
    # next address, so that the time stays linear in the text.
    (re.compile(r"(://)[^\s/@:]*:(?:(?:(?!://)[^\s@])*@)+"), rf"\1{HIDDEN}@"),
    (re.compile(r"(://)[^\s/@]+@"), rf"\1{HIDDEN}@"),
    (re.compile(rf"(?i)({_NAMES}[\"']?\s{{0,4}}[:=]\s{{0,4}}[\"']?)[^\s\"'&,;}}]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)([?&](?:key|sig|signature|auth)=)[^\s\"'&]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_\-]{6,}"), HIDDEN),
    (re.compile(r"\b(?:hf|gh[opsur]|github_pat|glpat|xox[a-z])[-_][A-Za-z0-9_\-]{8,}"), HIDDEN),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}|\bAIza[A-Za-z0-9_\-]{20,}"), HIDDEN),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*"), HIDDEN),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"), HIDDEN),
)


def cleaned(value: Any, secrets: tuple[str, ...] = (), name: str = "") -> Field:
    """Return a field in a form safe to show: without secrets, at most `LONGEST` characters, on one line.

    Numbers, booleans and None are unchanged; anything else becomes text. `secrets` are hidden wherever they
    occur, and the whole value if `name` looks like the name of a key.
    """
    if value is None or isinstance(value, bool) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return int(value)
    if name and _is_secret_name(name):
        return HIDDEN
    # Hide secrets first: truncation could leave half of one, and escapes would prevent a match.
    text = hidden(_text(value), secrets)
    line = "".join(map(_printable, text[: LONGEST + 1]))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + CUT


def hidden(text: str, secrets: tuple[str, ...]) -> str:
    """Return the start of `text` with `[hidden]` for each of `secrets` and for anything like a secret."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    text = text[:SEARCHED]
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def without_keys(text: str, given: Iterable[str] = ()) -> str:
    """Return all of `text` with `[hidden]` in place of every key in the environment or in `given`.

    For texts that are used further, such as a model's reply. Plain words stay, even if a variable uses one
    as a password, because hiding them would change the meaning. JSON-escaped keys are found too.
    """
    for key in (*_keys_of(tuple(os.environ.items())), *filter(_is_key, given)):
        if key in text:
            text = text.replace(key, HIDDEN)
    if "\\" in text:
        for key in (*_keys_of(tuple(os.environ.items())), *filter(_is_key, given)):
            text = _escaped(key).sub(HIDDEN, text)
    return text


def keys_pattern(given: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds what `without_keys` hides, with the current keys of the environment."""
    keys = {*_keys_of(tuple(os.environ.items())), *filter(_is_key, given)}
    longest_first = sorted(keys, key=lambda key: (-len(key), key))
    return re.compile("|".join(_escaped(key).pattern for key in longest_first) or r"(?!)")


def error_text(error: BaseException) -> str:
    """Return an error's class and message without keys, safe to store and show."""
    return without_keys(f"{type(error).__name__}: {error}")


@lru_cache(maxsize=8)
def _keys_of(environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(filter(_is_key, secrets_of(dict(environment))))


def _is_key(secret: str) -> bool:
    """Return whether a secret is long enough, and not a plain word that may occur in a text by chance."""
    return len(secret) >= SHORTEST_KEY and not secret.isalpha()


@lru_cache(maxsize=256)
def _escaped(key: str) -> re.Pattern[str]:
    """Return a pattern for a key in which any character may be JSON-escaped."""
    return re.compile(
        "".join(
            rf"(?:\\?{re.escape(each)}|\\u(?i:{ord(each):04x}))" if ord(each) < 0x10000 else re.escape(each)
            for each in key
        )
    )


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of variables named like keys, and the passwords in addresses, the longest first.

    Values of several lines are also included line by line.
    """
    from urllib.parse import quote

    found: set[str] = set()
    for name, value in environment.items():
        if "://" in value:
            found.update(filter(_is_secret, _PASSWORD.findall(value)))
        if _is_secret_name(name) and name not in ("PWD", "OLDPWD"):
            for secret in (value, value.strip(), *value.splitlines()):
                if _is_secret(secret):
                    # As is, in URL encoding, and as in `repr`.
                    found.update((secret, quote(secret, safe="", errors="replace"), repr(secret)[1:-1]))
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def _is_secret_name(name: str) -> bool:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    for part in re.split(r"[^A-Z0-9]+", spaced.upper()):
        if (
            part in _SECRET_PARTS
            or part.endswith(_SECRET_ENDS)
            or part.removesuffix("S").endswith(_SECRET_ENDS)
        ):
            return True
    return False


def _is_secret(value: str) -> bool:
    if len(value) < _SHORTEST or value.lower() in _NO_SECRETS:
        return False
    return not (value.isdecimal() and len(value) < 8)  # MAX_TOKENS=2048


def _text(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    try:
        return str(value)
    except Exception as error:  # any error of a foreign __str__
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    """Return a record in a form safe to show, also one not made by a `Log`.

    Without a traceback, whose last line may contain judged text. Other handlers get the original record.
    """
    if hasattr(record, "magistrate_fields"):
        return record
    message = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        message += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    shown = copy(record)
    shown.msg, shown.args = str(cleaned(message, secrets_of(os.environ))), ()
    return shown
