"""The mask engine without a model: how far a text follows a grammar, byte by byte."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, Literal

from magistrate.errors import ConstraintError

Status = Literal["valid", "incomplete", "invalid"]


def follow(grammar: str, text: str) -> Status:
    """Whether `text` is in the language of `grammar`, can still come into it, or cannot any more.

    `grammar` is in llguidance's Lark dialect. Raises `ConstraintError` where it cannot be compiled.
    """
    matcher = compile_grammar(grammar).deep_copy()
    raw = list(text.encode("utf-8", "surrogatepass"))
    if matcher.try_consume_tokens(raw) < len(raw):
        return "invalid"
    return "valid" if matcher.is_accepting() else "incomplete"


@lru_cache(maxsize=16)
def compile_grammar(grammar: str) -> Any:
    """An `LLMatcher` over bytes at the beginning of `grammar`; copy it before use.

    Raises `ConstraintError` with the compiler's message, also where the compiler panics.
    """
    from llguidance import LLMatcher

    try:
        matcher = LLMatcher(
            _byte_tokenizer(), LLMatcher.grammar_from_lark(grammar), log_level=0, limits=limits()
        )
        problem = matcher.get_error() if matcher.is_error() else ""
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the compiler derives from BaseException alone
        problem = f"the compiler failed: {error}"
    if problem:
        lines = problem.split("\n   1 |", 1)[0]  # what follows repeats the grammar
        raise ConstraintError(f"the grammar cannot be compiled: {lines[:500]}")
    return matcher


@cache
def limits() -> Any:
    """How much the mask engine may spend, in its own units: about half a second of compiling, a tenth of a
    second and 250,000 states (up to 2 kB each) of masks. Its messages leave out the text that was written."""
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
