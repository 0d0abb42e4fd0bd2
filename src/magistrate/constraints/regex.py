"""Regular expressions: parsed by Python, translated for the mask engine, searched within limits.

- `FORMATS`: the JSON Schema string formats that can be enforced, each as a pattern.
- `compiled` and `searched`: the only way to match an untrusted pattern against a text. A pattern of 22
  characters such as `((a{1000}){1000}){1000}` compiles to a billion parts, and `(a+)+$` searches forever. So
  a pattern's parts are counted before it is compiled, and a search has a time limit.
- `translate`: from Python's syntax to the mask engine's Rust syntax. The two disagree about `\\d`, `\\w`,
  `\\s` and a trailing `$`. The narrower meaning is used, so `re` accepts everything that the masks accept.
- `ecma` and `python`: the same pattern for the package `regex`, as ECMA 262 or Python's `re` reads it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from magistrate._work import check
from magistrate.errors import ConstraintError, InputError

_YEAR = r"(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"  # multiples of four from 04 to 96
_LEAP_YEAR = rf"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR = r"(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
_N = r"[0-9]{1,4}"
_SPAN = rf"T(?:{_N}H(?:{_N}M(?:{_N}S)?)?|{_N}M(?:{_N}S)?|{_N}S)"
_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": rf"P(?:{_N}D(?:{_SPAN})?|{_SPAN}|{_N}W)",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
}


LONGEST_PATTERN = 100_000  # characters
MOST_PARTS = 50_000  # in a compiled pattern with repetitions written out; 0.3 to 1.3 kB each
GRAPHEME = 10  # the number of parts of \\X
PARTS_KEPT = 2_000  # the largest compiled pattern, in parts, that is cached
LONGEST_TEXT = 2_000_000  # characters; a search can take some 100 bytes per character
PATTERN_SECONDS = 0.5  # computing time of one search


class PatternTooSlow(InputError):
    """A search took longer than `PATTERN_SECONDS`, had too long a text, or ran out of memory."""


def compiled(pattern: str, flags: int = 0) -> Any:
    """Compile a pattern in the syntax of the package `regex`, for `searched`; `flags` are that package's.

    Raises `ConstraintError` for an invalid pattern, and for one that is too long, too large when its
    repetitions are written out, nested too deeply, or that calls itself.
    """
    if len(pattern) > LONGEST_PATTERN:
        raise ConstraintError(
            f"the pattern {quoted(pattern)} has {len(pattern):,} characters; at most {LONGEST_PATTERN:,}"
        )
    return _compiled(pattern, flags)


def searched(pattern: Any, text: str, *, whole: bool = False) -> Any:
    """Return the match of a compiled pattern in a text (`whole`: of the whole text), or None.

    Raises `PatternTooSlow` after `PATTERN_SECONDS`, and for a text of more than `LONGEST_TEXT` characters.
    """
    if len(text) > LONGEST_TEXT:
        raise PatternTooSlow(
            f"a pattern can be searched in at most {LONGEST_TEXT:,} characters; this text has {len(text):,}"
        )
    check()
    search = pattern.fullmatch if whole else pattern.search
    try:
        return search(text, timeout=PATTERN_SECONDS)
    except TimeoutError:
        raise PatternTooSlow(
            f"the pattern took longer than {PATTERN_SECONDS:g} s on this text: {quoted(pattern.pattern)}"
        ) from None
    except MemoryError:
        raise PatternTooSlow(
            f"the pattern ran out of memory on this text: {quoted(pattern.pattern)}"
        ) from None


def _compiled(pattern: str, flags: int) -> Any:
    kept = _kept(pattern, flags)
    return kept if kept is not None else _compile(pattern, flags)


@lru_cache(maxsize=256)
def _kept(pattern: str, flags: int) -> Any:
    """Return the compiled pattern from the cache, or None if it is too large to be cached."""
    return _compile(pattern, flags) if _checked_parts(pattern, flags) <= PARTS_KEPT else None


def _compile(pattern: str, flags: int) -> Any:
    import regex  # type: ignore[import-untyped]

    try:
        return regex.compile(pattern, flags, cache_pattern=False)  # its own cache holds 500 of any size
    except regex.error as error:
        raise ConstraintError(f"{quoted(pattern)} is not a regular expression: {error}") from None
    except RecursionError:
        raise _too_deep(pattern) from None


def _checked_parts(pattern: str, flags: int) -> int:
    import regex

    try:
        parts = _parts(_parsed(pattern, flags), importlib.import_module("regex._regex_core"))
    except regex.error as error:
        raise ConstraintError(f"{quoted(pattern)} is not a regular expression: {error}") from None
    except RecursionError:
        raise _too_deep(pattern) from None
    if parts > MOST_PARTS:
        shown = f"{parts:,}" if parts < 10**12 else "more than 10^12"
        raise ConstraintError(
            f"the pattern {quoted(pattern)} has {shown} parts after its repetitions are expanded; at most "
            f"{MOST_PARTS:,} are allowed: use smaller counts, or * and +"
        )
    return parts


def _parsed(pattern: str, flags: int) -> Any:
    """Return the parse tree that the package `regex` compiles; there is no public API for it."""
    core = importlib.import_module("regex._regex_core")
    while True:
        source = core.Source(pattern)
        info = core.Info(flags, source.char_type, {})
        info.guess_encoding = core.UNICODE
        source.ignore_space = bool(info.flags & core.VERBOSE)
        try:
            return core._parse_pattern(source, info)
        except core._UnscopedFlagSet:  # an inline flag that applies to the whole pattern: parse again with it
            if info.global_flags == flags:
                raise
            flags = info.global_flags


def _parts(node: Any, core: Any) -> int:
    """Return how many parts a parsed pattern compiles to.

    The compiler writes a part that must occur `n` times `n` times, and once more if it may occur more
    often. A `+` doubles what is inside, and a `+` around that doubles it again.
    """
    if isinstance(node, core.CallGroup):
        raise ConstraintError("recursive patterns with (?R) or (?1) are not supported")
    parts = GRAPHEME if isinstance(node, core.Grapheme) else 1
    for value in vars(node).values():
        if isinstance(value, core.RegexBase):
            parts += _parts(value, core)
        elif isinstance(value, list | tuple):
            parts += sum(_parts(each, core) for each in value if isinstance(each, core.RegexBase))
    if not isinstance(node, core.GreedyRepeat):  # also the base class of lazy and possessive repetitions
        return parts
    least: int = node.min_count
    written: int = least + (node.max_count != least)
    return parts * max(1, written)


def _too_deep(pattern: str) -> ConstraintError:
    return ConstraintError(f"the pattern {quoted(pattern)} is nested too deeply")


def quoted(pattern: str) -> str:
    """Return the beginning of a pattern, for messages."""
    return f"{pattern[:80]!r}{'…' if len(pattern) > 80 else ''}"


# A subset (`narrow`) and a superset (`wide`) of each class that hold in every dialect, inside `[...]`.
# `narrow` is used where a class adds characters, `wide` where it removes them.
_NARROW = {
    "CATEGORY_DIGIT": "0-9",
    "CATEGORY_WORD": r"\p{L}\p{N}_",
    "CATEGORY_SPACE": r"\x{9}-\x{d}\x{20}",
    "CATEGORY_NOT_DIGIT": r"\P{Nd}",
    "CATEGORY_NOT_WORD": r"[^\p{L}\p{N}\p{M}\p{Pc}]",
    "CATEGORY_NOT_SPACE": r"[^\p{Z}\x{9}-\x{d}\x{1c}-\x{1f}\x{85}\x{feff}]",
}
_WIDE = {
    "CATEGORY_DIGIT": r"\p{Nd}",
    "CATEGORY_WORD": r"\p{L}\p{N}\p{M}\p{Pc}",
    "CATEGORY_SPACE": r"\p{Z}\x{9}-\x{d}\x{1c}-\x{1f}\x{85}\x{feff}",
    "CATEGORY_NOT_DIGIT": "[^0-9]",
    "CATEGORY_NOT_WORD": r"[^\p{L}\p{N}_]",
    "CATEGORY_NOT_SPACE": r"[^\x{9}-\x{d}\x{20}]",
}
_ASCII_WORD = {"CATEGORY_WORD": "0-9A-Za-z_"}  # word characters in both Python and ECMA 262
_ASCII_NOT_WORD = {"CATEGORY_NOT_WORD": "[^0-9A-Za-z_]"}

_REFUSED = {
    "ASSERT": "lookarounds",
    "ASSERT_NOT": "lookarounds",
    "GROUPREF": "backreferences",
    "GROUPREF_EXISTS": "conditional groups",
    "GROUPREF_IGNORE": "backreferences",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive repetition",
    "AT": "anchors and word boundaries other than ^ at the beginning and $ at the end",
}
_FLAGS = re.IGNORECASE | re.DOTALL | re.VERBOSE | re.UNICODE
_STARTS, _ENDS = ("AT_BEGINNING", "AT_BEGINNING_STRING"), ("AT_END", "AT_END_STRING")


@dataclass(frozen=True, slots=True)
class Translated:
    """A pattern in Rust syntax without its outer anchors; `bounded` means that no repetition is unlimited."""

    rust: str
    starts: bool
    ends: bool
    bounded: bool


def translate(pattern: str, *, ascii_words: bool = False, pointer: str | None = None) -> Translated:
    """Translate `pattern` to the mask engine's syntax.

    `ascii_words` narrows `\\w` to ASCII, on which Python and ECMA 262 (the dialect of JSON Schema) agree.
    Raises `ConstraintError` for constructs that the mask engine does not support: lookarounds,
    backreferences, inner anchors, atomic groups, possessive repetition.
    """
    tree = parsed(pattern, pointer)
    active = tree.state.flags
    if active & ~_FLAGS & ~re.MULTILINE:
        raise ConstraintError(
            f"{pattern!r} uses flags that cannot be enforced; known: IGNORECASE, DOTALL, VERBOSE", pointer
        )
    items = list(tree)
    starts = bool(items) and _is_anchor(items[0], _STARTS)
    items = items[1:] if starts else items
    ends = bool(items) and _is_anchor(items[-1], _ENDS)
    items = items[:-1] if ends else items
    writer = _Writer(pattern, pointer, ascii_words)
    try:
        rust = writer.sequence(items)
    except RecursionError:
        raise ConstraintError(f"the pattern {quoted(pattern)} is nested too deeply", pointer) from None
    if active & re.DOTALL:
        rust = f"(?s:{rust})"
    if active & re.IGNORECASE:
        rust = f"(?i:{rust})"
    return Translated(rust, starts, ends, writer.bounded)


def parsed(pattern: str, pointer: str | None = None) -> Any:
    """Return Python's own parse tree of a pattern. Raises `ConstraintError` if it is invalid."""
    if len(pattern) > LONGEST_PATTERN:
        raise ConstraintError(
            f"the pattern {quoted(pattern)} has {len(pattern):,} characters; at most {LONGEST_PATTERN:,}",
            pointer,
        )
    parser = importlib.import_module("re._parser")  # the parse tree has had no public API since 3.11
    try:
        return parser.parse(pattern)
    except RecursionError:
        raise ConstraintError(f"the pattern {quoted(pattern)} is nested too deeply", pointer) from None
    except (re.error, OverflowError) as error:
        raise ConstraintError(f"{quoted(pattern)} is not a regular expression: {error}", pointer) from None


def _is_anchor(item: Any, names: tuple[str, ...]) -> bool:
    return str(item[0]) == "AT" and str(item[1]) in names


class _Writer:
    """Writes a parse tree as Rust syntax and records whether a repetition is unlimited."""

    def __init__(self, pattern: str, pointer: str | None, ascii_words: bool) -> None:
        self.pattern = pattern
        self.pointer = pointer
        self.bounded = True
        self.narrow = _NARROW | (_ASCII_WORD if ascii_words else {})
        self.wide = _WIDE | (_ASCII_NOT_WORD if ascii_words else {})

    def sequence(self, items: Any) -> str:
        return "".join(self.item(str(op), value) for op, value in items)

    def item(self, op: str, value: Any) -> str:
        if op == "LITERAL":
            return _character(value)
        if op == "NOT_LITERAL":
            return f"[^{_character(value)}]"
        if op == "ANY":
            return "."
        if op == "IN":
            return self.character_class(value)
        if op == "BRANCH":
            return "(?:" + "|".join(self.sequence(branch) for branch in value[1]) + ")"
        if op == "SUBPATTERN":
            return self.group(value)
        if op in ("MAX_REPEAT", "MIN_REPEAT"):  # greedy and lazy repetitions match the same whole texts
            return self.repeat(*value)
        reason = _REFUSED.get(op, f"the construct {op.lower()}")
        raise ConstraintError(
            f"the pattern {self.pattern!r} uses {reason}, which cannot be enforced during generation; "
            "describe the allowed texts with classes, groups, | and {m,n}",
            self.pointer,
        )

    def group(self, value: Any) -> str:
        _, added, removed, items = value
        letters = {re.IGNORECASE: "i", re.DOTALL: "s"}
        if added & ~_FLAGS or removed & ~_FLAGS:
            raise ConstraintError(
                f"the pattern {self.pattern!r} changes flags that cannot be enforced", self.pointer
            )
        on = "".join(letter for flag, letter in letters.items() if added & flag)
        off = "".join(letter for flag, letter in letters.items() if removed & flag)
        return f"(?{on}{'-' + off if off else ''}:{self.sequence(items)})"

    def repeat(self, least: int, most: Any, items: Any) -> str:
        endless = str(most) == "MAXREPEAT"
        self.bounded = self.bounded and not endless
        return f"(?:{self.sequence(items)}){{{least},{'' if endless else most}}}"

    def character_class(self, members: Any) -> str:
        negated = str(members[0][0]) == "NEGATE"
        classes = self.wide if negated else self.narrow
        pieces = []
        for op, value in members[1:] if negated else members:
            if str(op) == "LITERAL":
                pieces.append(_character(value))
            elif str(op) == "RANGE":
                pieces.append(f"{_character(value[0])}-{_character(value[1])}")
            else:
                pieces.append(classes[str(value)])
        return f"[{'^' if negated else ''}{''.join(pieces)}]"


def _character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"


# --- for the package `regex` ---


def ecma_search(pattern: str, text: str) -> Any:
    """Return the first match of `pattern`, as ECMA 262 reads it, or None. Raises `PatternTooSlow`."""
    return searched(compiled(ecma(pattern)), text)


def python_search(pattern: str, text: str) -> Any:
    """Return the first match of `pattern`, as Python reads it, or None. Raises `PatternTooSlow`."""
    return searched(compiled(python(pattern)), text)


def python_match(pattern: str, text: str) -> Any:
    """Match all of `text` with `pattern`, read as in Python, or return None. Raises `PatternTooSlow`."""
    return searched(compiled(python(pattern)), text, whole=True)


_COUNT = re.compile(r"\{\d*,?\d*\}")
_ECMA = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": "\\t-\\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
}
_PYTHON = {
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}_",
    "s": "\\t-\\r\\x1c-\\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000",
}
_PYTHON_ASCII = {"d": "0-9", "w": "0-9A-Za-z_", "s": "\\t-\\r "}


@lru_cache(maxsize=256)
def ecma(pattern: str) -> str:
    """Return `pattern` for the package `regex`, with the character classes and the `$` of ECMA 262.

    Raises `ConstraintError` if it is not a regular expression in Python.
    """
    return _for_regex(pattern, _ECMA, r"\Z", bool(parsed(pattern).state.flags & re.VERBOSE))


@lru_cache(maxsize=256)
def python(pattern: str) -> str:
    """Return `pattern` for the package `regex`, so that it matches as with `re`. Raises as `ecma` does."""
    flags = parsed(pattern).state.flags
    classes = _PYTHON_ASCII if flags & re.ASCII else _PYTHON
    return _for_regex(pattern, classes, "$", bool(flags & re.VERBOSE))


def _for_regex(pattern: str, classes: Mapping[str, str], end: str, verbose: bool) -> str:
    """Return a pattern with its classes written out and with syntax escaped that only `regex` knows."""
    written, place = "", 0
    while place < len(pattern):
        letter, width = pattern[place], 1
        if letter == "\\" and place + 1 < len(pattern):
            width, name = 2, pattern[place + 1]
            body = classes.get(name.lower())
            written += f"\\{name}" if body is None else f"[{'^' if name.isupper() else ''}{body}]"
        elif letter == "[":
            text, width = _set_for_regex(pattern, place, classes)
            written += text
        elif letter == "#" and verbose:
            line = pattern.find("\n", place)
            width = (len(pattern) if line < 0 else line) - place
            written += pattern[place : place + width]
        elif verbose and letter.isspace() and letter not in " \t\n\r\f\v":  # only `regex` would skip it
            written += f"\\u{ord(letter):04x}"
        elif letter == "{" and not _COUNT.match(pattern, place):
            written += "\\{"
        else:
            written += end if letter == "$" else letter
        place += width
    return written


def _set_for_regex(pattern: str, begun: int, classes: Mapping[str, str]) -> tuple[str, int]:
    """Return the set `[...]` that begins at `begun`, rewritten, and its length in `pattern`.

    Negated classes such as \\W cannot be written out inside a set, so they become branches next to it.
    """
    negated = pattern.startswith("^", begun + 1)
    first = place = begun + 1 + negated
    members, branches = "", []
    while place == first or pattern[place] != "]":
        letter = pattern[place]
        if letter == "\\":
            name = pattern[place + 1]
            body = classes.get(name.lower())
            if body is None:
                members += letter + name
            elif name.isupper():
                branches.append(f"[^{body}]")
            else:
                members += body
            place += 2
            continue
        members += f"\\{letter}" if letter in "[]" else letter
        place += 1
    width = place + 1 - begun
    if not branches:
        return f"[{'^' if negated else ''}{members}]", width
    either = "|".join([*([f"[{members}]"] if members else []), *branches])
    return (f"(?:(?!{either})(?s:.))" if negated else f"(?:{either})"), width
