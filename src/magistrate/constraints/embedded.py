"""A Lark grammar as the text of a JSON string: its rules under names of their own, its letters escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from magistrate.constraints.bytewise import follow
from magistrate.constraints.verbatim import escape
from magistrate.errors import ConstraintError

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*)
      | (?P<text>"(?:[^"\\\n]|\\.)*")(?P<flag>i?)
      | (?P<regex>/(?:[^/\\\n]|\\.)+/[a-z]*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_-]*)
      | (?P<number>[0-9]+)
      | (?P<sign>[:|()?*+~{},.&!])
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN = r'/[^"\\\x00-\x1f\x7f]*/'  # what stands in a JSON string as it is


class _Token(NamedTuple):
    kind: str
    text: str


def embedded(grammar: str, prefix: str) -> tuple[str, list[str]]:
    """The name of the start rule and the lines of `grammar`, all names begun with `prefix`.

    Literals are escaped as JSON is; a regular expression matches only what needs no escape. Raises
    `ConstraintError` for what has no place in a string: directives, special tokens, options of rules.
    """
    tokens = list(_tokens(grammar))
    starts = [
        index
        for index in range(len(tokens) - 1)
        if tokens[index].kind == "name" and tokens[index + 1].text == ":"
    ]
    if not starts or starts[0] != 0:
        raise ConstraintError("a Lark grammar begins with a rule: start: ...")
    lines = [f"{prefix.upper()}PLAIN: {_PLAIN}"]
    hoisted: dict[str, str] = {}
    for begin, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        parts = [_written(token, prefix, hoisted) for token in tokens[begin + 2 : end]]
        lines.append(f"{_renamed(tokens[begin].text, prefix)}: {' '.join(parts)}")
    lines += [f"{name}: {regex} & {prefix.upper()}PLAIN" for regex, name in hoisted.items()]
    if not any(tokens[index].text == "start" for index in starts):
        raise ConstraintError("a Lark grammar needs a rule named start")
    return f"{prefix}start", lines


def holds(grammar: str, text: str) -> bool:
    """Whether `text` is what `grammar` lets a JSON string hold."""
    start, lines = embedded(grammar, "in_")
    return follow("\n".join([f"start: {start}", *lines, ""]), escape(text)) == "valid"


def _tokens(grammar: str) -> Iterator[_Token]:
    place = 0
    while place < len(grammar):
        match = _TOKEN.match(grammar, place)
        if match is None:
            line = grammar[place:].split("\n", 1)[0]
            raise ConstraintError(
                f"{line[:60]!r} has no place in a Lark grammar inside an object, "
                "only rules, terminals, texts and regular expressions"
            )
        place = match.end()
        if match["text"] is not None:
            yield _Token("text", match["text"] + match["flag"])
        elif match.lastgroup != "space":
            yield _Token(str(match.lastgroup), match[0])


def _written(token: _Token, prefix: str, hoisted: dict[str, str]) -> str:
    if token.kind == "name":
        return _renamed(token.text, prefix)
    if token.kind == "regex":
        return hoisted.setdefault(token.text, f"{prefix.upper()}REGEX_{len(hoisted)}")
    if token.kind == "text":
        body, flag = (token.text[:-1], "i") if token.text.endswith("i") else (token.text, "")
        try:
            plain = json.loads(body)
        except ValueError:
            raise ConstraintError(
                f"the text {body} of a Lark grammar has escapes other than JSON's"
            ) from None
        return json.dumps(escape(plain), ensure_ascii=False) + flag
    return token.text


def _renamed(name: str, prefix: str) -> str:
    return f"{prefix.upper()}{name}" if name.isupper() else f"{prefix}{name}"
