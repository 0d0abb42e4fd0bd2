"""Python regular expressions in the mask engine's Rust syntax: never wider than what `re` accepts.

The two dialects disagree about `\\d`, `\\w`, `\\s` and about what a trailing `$` means, so a pattern is taken
apart with Python's own parser and written again. Where they differ, the narrower reading is written: what
the masks let through, `re` accepts too.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass
from typing import Any

from magistrate.constraints.patterns import LONGEST_PATTERN, quoted
from magistrate.errors import ConstraintError

# What each class must at least leave out (`narrow`) or at least contain (`wide`), inside `[...]`.
# `narrow` is used where a class adds characters, `wide` where it takes characters away.
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
_ASCII_WORD = {"CATEGORY_WORD": "0-9A-Za-z_"}  # what both Python and ECMA 262 take for a word character
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
    """A pattern in Rust syntax without its outer anchors; `bounded` says that no repetition is endless."""

    rust: str
    starts: bool
    ends: bool
    bounded: bool


def translate(
    pattern: str, flags: int = 0, *, ascii_words: bool = False, pointer: str | None = None
) -> Translated:
    """Write `pattern` again for the mask engine.

    `ascii_words` narrows `\\w` to ASCII, on which Python and ECMA 262 (the dialect of JSON Schema) agree.
    Raises `ConstraintError` for what has no bound-state counterpart: lookarounds, backreferences, anchors
    inside, atomic groups, possessive repetition.
    """
    tree = parsed(pattern, flags, pointer)
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


def parsed(pattern: str, flags: int = 0, pointer: str | None = None) -> Any:
    """The tree that Python's own parser makes of a pattern. Raises `ConstraintError` where it is none."""
    if len(pattern) > LONGEST_PATTERN:
        raise ConstraintError(
            f"the pattern {quoted(pattern)} has {len(pattern):,} characters; at most {LONGEST_PATTERN:,}",
            pointer,
        )
    parser = importlib.import_module("re._parser")  # the parse tree has no public door since 3.11
    try:
        return parser.parse(pattern, flags)
    except RecursionError:
        raise ConstraintError(f"the pattern {quoted(pattern)} is nested too deeply", pointer) from None
    except (re.error, OverflowError) as error:
        raise ConstraintError(f"{quoted(pattern)} is not a regular expression: {error}", pointer) from None


def _is_anchor(item: Any, names: tuple[str, ...]) -> bool:
    return str(item[0]) == "AT" and str(item[1]) in names


class _Writer:
    """Writes a parse tree as Rust syntax and notes whether a repetition has no end."""

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
        if op in ("MAX_REPEAT", "MIN_REPEAT"):  # greedy or lazy: the same texts match as a whole
            return self.repeat(*value)
        reason = _REFUSED.get(op, f"the construct {op.lower()}")
        raise ConstraintError(
            f"the pattern {self.pattern!r} uses {reason}, which cannot be enforced while writing; "
            "spell the allowed texts out with classes, groups, | and {m,n}",
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
