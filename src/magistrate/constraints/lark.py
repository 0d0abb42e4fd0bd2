"""Lark grammars in the mask engine's dialect: compile them, match bytes, embed them in a JSON string."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Literal, NamedTuple

from magistrate.errors import ConstraintError, require_extra

Status = Literal["valid", "incomplete", "invalid"]


def follow(grammar: str, text: str) -> Status:
    """Return whether `text` is in the language of `grammar`, can still become so, or cannot.

    `grammar` is in llguidance's Lark dialect. Raises `ConstraintError` if it cannot be compiled.
    """
    matcher = compile_grammar(grammar).deep_copy()
    raw = list(text.encode("utf-8", "surrogatepass"))
    if matcher.try_consume_tokens(raw) < len(raw):
        return "invalid"
    return "valid" if matcher.is_accepting() else "incomplete"


@lru_cache(maxsize=16)
def compile_grammar(grammar: str) -> Any:
    """Return an `LLMatcher` over bytes at the start of `grammar`. It is cached: copy it before use.

    Raises `ConstraintError` with the compiler's message, also if the compiler panics, and `MissingExtra` if
    llguidance is not installed.
    """
    require_extra("local", "llguidance")
    return new_matcher(_byte_tokenizer(), grammar)


def new_matcher(tokenizer: Any, grammar: str) -> Any:
    """Return an `LLMatcher` over the tokens of an `LLTokenizer`, at the start of `grammar`.

    Raises `ConstraintError` with the compiler's message, also if the compiler panics.
    """
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0, limits=_limits())
        problem = matcher.get_error() if matcher.is_error() else ""
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the compiler derives only from BaseException
        problem = f"the compiler failed: {error}"
    if problem:
        lines = problem.split("\n   1 |", 1)[0]  # the rest repeats the grammar
        raise ConstraintError(f"the grammar cannot be compiled: {lines[:500]}")
    return matcher


@cache
def _limits() -> Any:
    """Return the limits of the mask engine, in its own units: about half a second to compile, and for masks
    a tenth of a second and 250,000 states (up to 2 kB each). Its messages omit the text that was written."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=20_000_000,
        step_lexer_fuel=2_000_000,
        max_lexer_states=250_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


@cache
def _byte_tokenizer() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


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
_JSON_PLAIN = r'/[^"\\\x00-\x1f\x7f]*/'  # characters that need no escape in a JSON string
_ESCAPED = re.compile(r'[\x00-\x1f"\\\ud800-\udfff\U00040000-\U000bffff]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


class _Token(NamedTuple):
    kind: str
    text: str


def escape(text: str) -> str:
    """Return `text` as the inside of a JSON string, with the short escapes that quotes are written with."""
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or json.dumps(match[0])[1:-1], text)


def embedded(grammar: str, prefix: str) -> tuple[str, list[str]]:
    """Return the start rule's name and the lines of `grammar`, with `prefix` added to all names.

    Literals are escaped as in JSON. A regular expression matches only characters that need no escape.
    Raises `ConstraintError` for what cannot occur in a string: directives, special tokens, rule options.
    """
    tokens = list(_tokens(grammar))
    starts = [
        index
        for index in range(len(tokens) - 1)
        if tokens[index].kind == "name" and tokens[index + 1].text == ":"
    ]
    if not starts or starts[0] != 0:
        raise ConstraintError("a Lark grammar must start with a rule: start: ...")
    lines = [f"{prefix.upper()}PLAIN: {_JSON_PLAIN}"]
    hoisted: dict[str, str] = {}
    for begin, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        parts = [_written(token, prefix, hoisted) for token in tokens[begin + 2 : end]]
        lines.append(f"{_renamed(tokens[begin].text, prefix)}: {' '.join(parts)}")
    lines += [f"{name}: {regex} & {prefix.upper()}PLAIN" for regex, name in hoisted.items()]
    if not any(tokens[index].text == "start" for index in starts):
        raise ConstraintError("a Lark grammar needs a rule named start")
    return f"{prefix}start", lines


def is_in_language(grammar: str, text: str) -> bool:
    """Return whether `grammar` allows `text` as the content of a JSON string."""
    start, lines = embedded(grammar, "in_")
    return follow("\n".join([f"start: {start}", *lines, ""]), escape(text)) == "valid"


def _tokens(grammar: str) -> Iterator[_Token]:
    place = 0
    while place < len(grammar):
        match = _TOKEN.match(grammar, place)
        if match is None:
            line = grammar[place:].split("\n", 1)[0]
            raise ConstraintError(
                f"{line[:60]!r} is not allowed in a Lark grammar inside an object, only rules, terminals, "
                "texts and regular expressions"
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
                f"the text {body} of a Lark grammar has escapes that JSON does not have"
            ) from None
        return json.dumps(escape(plain), ensure_ascii=False) + flag
    return token.text


def _renamed(name: str, prefix: str) -> str:
    return f"{prefix.upper()}{name}" if name.isupper() else f"{prefix}{name}"
