"""Logging of named events with fields: quiet by default, without keys and without documents.

Built on the standard library's `logging`, because that is where an application that embeds Magistrate
already says what it wants to see: no handler but a null one is set, and the root logger is never touched.
Every field is cleaned before a record is made, so that foreign handlers see no more than ours.

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
LONGEST = 200  # characters of a field
HIDDEN = "[hidden]"
CUT = "…"
SEARCHED = 4096  # characters in which patterns look for secrets: hostile text must not cost seconds

Field = str | int | float | bool | None

_root = logging.getLogger(NAME)
_root.addHandler(logging.NullHandler())


class Log:
    """Emits events below `magistrate`: a name such as `run.started`, and fields by keyword."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{NAME}.{name}" if name else NAME)

    def debug(self, event: str, /, **fields: Any) -> None:
        """For whoever looks into one run closely."""
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """The course of things."""
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """It went on, but not as it was meant to."""
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        """Something that was asked for was not done."""
        self._emit(logging.ERROR, event, fields)

    def _emit(self, level: int, event: str, fields: Mapping[str, Any]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        secrets = secrets_of(os.environ)
        clean = {name: cleaned(value, secrets, name) for name, value in fields.items()}
        name = str(cleaned(event, secrets))
        # The message says everything in words, for handlers that know nothing of fields.
        told = " ".join([name, *(f"{key}={_word(value)}" for key, value in clean.items())])
        extra = {"magistrate_event": name, "magistrate_fields": clean}
        self._logger.log(level, "%s", told, extra=extra)


def get(name: str = "") -> Log:
    """The log of a part of Magistrate, such as `cache`."""
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

    Lines for people on a terminal, a JSON object a line elsewhere; `json` or `MAGISTRATE_LOG=json` (or
    `text`) decides otherwise. Called again it replaces what it had set. For programs, not for libraries.
    """
    for handler in [each for each in _root.handlers if isinstance(each, _Handler)]:
        _root.removeHandler(handler)
    chosen = environment.get(VARIABLE, "").strip().lower()
    if json is None and chosen in ("json", "text"):
        json = chosen == "json"
    handler = _Handler(stream, json)
    _root.addHandler(handler)
    _root.setLevel(logging.DEBUG if verbose else logging.WARNING)


# --- how events look -----------------------------------------------------------------------------


class _Handler(logging.Handler):
    """Writes to standard error as it is at that moment, which a progress bar or a test may have replaced."""

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
            return  # nobody reads it any more; what the logging package would print is not cleaned


def json_line(record: logging.LogRecord) -> str:
    """One JSON object in ASCII: time (UTC), level, log, event, then the fields; none may pose as these."""
    head = {
        "time": _time(record).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "log": record.name,
        "event": _event(record),
    }
    fields = {f"field_{name}" if name in head else name: value for name, value in _fields(record).items()}
    return json.dumps(head | fields)


def text_line(record: logging.LogRecord) -> str:
    """`14:03:09 info  run.started  run=… samples=72`."""
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
    """A value on one line; quoted where it would not be seen to be one word."""
    if isinstance(value, str):
        return value if re.fullmatch(r"[^\s\"'=]+", value) else json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


# --- what must not be seen -----------------------------------------------------------------------

_SECRET_ENDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "PASS", "PWD", "CREDENTIAL")
_SECRET_PARTS = ("AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "DSN")
_NO_SECRETS = frozenset({"true", "false", "none", "null", "auto", "disabled", "enabled"})
_PASSWORD = re.compile(r"://[^\s/@:]*:((?:(?!://)[^\s@])+)@")  # in an address
SHORTEST_KEY = 8  # characters of a key that is hidden in a reply
_SHORTEST = 4  # characters: what is shorter is no key, and hiding it would hide half of every line

_NAMES = r"(?:api[_\-]?key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization|cookie)"
_PATTERNS = (
    # An Authorization value has a scheme before the secret, so it is taken up to the end of the line.
    (re.compile(r"(?i)(authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?)[^\r\n\"'}]+"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)\b(bearer\s+)[^\s\"',;]+"), rf"\1{HIDDEN}"),
    (re.compile(r"\b([Bb]asic\s+)(?![a-z]+\b)[A-Za-z0-9+/]{6,}={0,2}"), rf"\1{HIDDEN}"),
    # Also where the password holds `/` or `@`: up to the last `@` before a blank.
    # Up to the next address at most, so that the time grows with the text and not with its square.
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
    """A field as it may be shown: without secrets, at most `LONGEST` characters, on one line.

    Numbers, truth values and None stay; anything else is a text. `secrets` are hidden wherever they stand,
    and the whole value where `name` looks like a key's.
    """
    if value is None or isinstance(value, bool) or (isinstance(value, float) and isfinite(value)):
        return value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return int(value)
    if name and _is_secret_name(name):
        return HIDDEN
    # Secrets go first: the cut could leave half of one, and escapes would keep it from being found.
    text = hidden(_text(value), secrets)
    line = "".join(map(_printable, text[: LONGEST + 1]))
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + CUT


def hidden(text: str, secrets: tuple[str, ...]) -> str:
    """The beginning of `text` with `[hidden]` for every one of `secrets`, and for what looks like one."""
    for secret in secrets:
        if secret in text:
            text = text.replace(secret, HIDDEN)
    text = text[:SEARCHED]
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def without_keys(text: str, given: Iterable[str] = ()) -> str:
    """The whole of `text` with `[hidden]` for every key of the environment, and for every one `given`.

    For texts that are read again, such as a model's reply: plain words stay, also where a variable has one
    for a password, because hiding them would change what is said. A key is found as JSON escapes it, too.
    """
    for key in (*_keys_of(tuple(os.environ.items())), *filter(_is_key, given)):
        if key in text:
            text = text.replace(key, HIDDEN)
    if "\\" in text:
        for key in (*_keys_of(tuple(os.environ.items())), *filter(_is_key, given)):
            text = _escaped(key).sub(HIDDEN, text)
    return text


def keys_pattern(given: Iterable[str]) -> re.Pattern[str]:
    """A pattern that finds what `without_keys` hides, with the keys that the environment has now."""
    keys = {*_keys_of(tuple(os.environ.items())), *filter(_is_key, given)}
    longest_first = sorted(keys, key=lambda key: (-len(key), key))
    return re.compile("|".join(_escaped(key).pattern for key in longest_first) or r"(?!)")


def error_text(error: BaseException) -> str:
    """What went wrong as it may be stored and shown: the error's class and its words, without keys."""
    return without_keys(f"{type(error).__name__}: {error}")


@lru_cache(maxsize=8)
def _keys_of(environment: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(filter(_is_key, secrets_of(dict(environment))))


def _is_key(secret: str) -> bool:
    """Whether a secret is no word that a text may well have without telling it."""
    return len(secret) >= SHORTEST_KEY and not secret.isalpha()


@lru_cache(maxsize=256)
def _escaped(key: str) -> re.Pattern[str]:
    """A key of which any character may be written as JSON may write it."""
    return re.compile(
        "".join(
            rf"(?:\\?{re.escape(each)}|\\u(?i:{ord(each):04x}))" if ord(each) < 0x10000 else re.escape(each)
            for each in key
        )
    )


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of all variables whose names look like a key's, and the passwords in addresses, the longest
    first; lines one by one, too."""
    from urllib.parse import quote

    found: set[str] = set()
    for name, value in environment.items():
        if "://" in value:
            found.update(filter(_is_secret, _PASSWORD.findall(value)))
        if _is_secret_name(name) and name not in ("PWD", "OLDPWD"):
            for secret in (value, value.strip(), *value.splitlines()):
                if _is_secret(secret):
                    # As it is, as a URL has it, and as `repr` does.
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
    except Exception as error:  # somebody else's __str__
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    """A record as it may be shown, also one that was made without a `Log`.

    No traceback: its last line says what was judged. Other handlers have the record as it is.
    """
    if hasattr(record, "magistrate_fields"):
        return record
    message = record.getMessage()
    if record.exc_info and record.exc_info[1] is not None:
        message += f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
    shown = copy(record)
    shown.msg, shown.args = str(cleaned(message, secrets_of(os.environ))), ()
    return shown
