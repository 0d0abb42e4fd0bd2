"""The grammar of a quote: a JSON string that holds a run of a text's pieces, in llguidance's Lark dialect.

The text is cut first and each piece escaped for JSON then, so that what follows a line's end and part of a
Chinese sentence can be quoted. A suffix automaton of pieces says what is a run; regular expressions beside
it say that the quote is not empty, has no white space at its ends, and is as long as it must be.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from functools import cache, lru_cache

from magistrate.constraints.pieces import Unit, has_run, pieces

LONGEST_TEXTS = 1_000_000  # characters that one constraint may quote from
# Nothing is assigned in planes 4 to 11, so byte vocabularies may lack what their UTF-8 begins with.
_RARE = re.compile("[\U00040000-\U000bffff]")
_ESCAPED = re.compile(r'[\x00-\x1f"\\\ud800-\udfff\U00040000-\U000bffff]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_HEX = "[0-9a-f]"
# One character of a JSON string as it is written here: with surrogates that stand alone, or in pairs.
_LONE = rf"(?:[^\\]|\\u{_HEX}{{4}}|\\[^u])"
_PAIR = rf"\\ud[89ab]{_HEX}{{2}}\\ud[c-f]{_HEX}{{2}}"
_PAIRED = rf"(?:[^\\]|\\u(?:[0-9a-ce-f]{_HEX}{{3}}|d[0-7]{_HEX}{{2}})|{_PAIR}|\\[^u])"


def escape(text: str) -> str:
    """`text` inside a JSON string, written the one way that quotes are written: short."""
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or json.dumps(match[0])[1:-1], text)


def verbatim_rule(name: str, texts: Sequence[str], unit: Unit, least: int, most: int | None) -> list[str]:
    """Lark lines that define the rule `name`: a quoted run of at least `least` and at most `most` characters
    of one of `texts`. No lines where there is no such run.

    The marks around it stand by themselves: the mask engine prepares a terminal of many texts when it is
    compiled only if the terminal begins with them.
    """
    different = [text for text in dict.fromkeys(texts) if has_run(text, unit, least, most)]
    if not different:
        return []
    run = f"{name.upper()}_RUN"
    parts = [f"{run}_{index}" for index in range(len(different))]
    lines = [f"{part}: %regex {_chunks(text, unit)}" for part, text in zip(parts, different, strict=True)]
    # Two halves written one after the other are one character, so texts have either kind, never both.
    paired = any(_RARE.search(text) for text in different)
    lines.append(f"{run}: ({' | '.join(parts)}) & /{_shape(least, most, paired)}/")
    lines.append(f'{name}: "\\"" {run} "\\""')
    return lines


@lru_cache(maxsize=16)
def _chunks(text: str, unit: Unit) -> str:
    return json.dumps({"substring_chunks": list(map(escape, pieces(text, unit)))}, ensure_ascii=False)


def _shape(least: int, most: int | None, paired: bool) -> str:
    """Characters of which neither the first nor the last is white space."""
    edge, unit = _edge(paired), _PAIRED if paired else _LONE
    inner = f"{{{max(least - 2, 0)},{'' if most is None else max(most - 2, 0)}}}"
    longer = f"{edge}{unit}{inner}{edge}"
    if most == 1:
        return edge
    return longer if least > 1 else f"{edge}(?:{unit}{inner}{edge})?"


@cache
def _edge(paired: bool) -> str:
    """One character that is not white space, as Python's `str.isspace` has it."""
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    plain = "".join(f"\\x{{{ord(space):x}}}" for space in spaces if escape(space) == space)
    controls = [f"{code:04x}" for code in range(0x20) if escape(chr(code)).startswith("\\u")]
    hidden = "|".join(code for code in controls if chr(int(code, 16)) not in spaces)
    halves = _PAIR if paired else rf"\\ud[89a-f]{_HEX}{{2}}"
    return rf'(?:[^\\{plain}]|\\["\\b]|\\u(?:{hidden})|{halves})'
