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
_ESCAPED = re.compile(r'[\x00-\x1f"\\\ud800-\udfff]')
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_HEX = "[0-9a-f]"
# One character of a JSON string as it is written here.
_UNIT = rf"(?:[^\\]|\\u{_HEX}{{4}}|\\[^u])"


def escape(text: str) -> str:
    """`text` inside a JSON string, written the one way that quotes are written: short."""
    return _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04x}", text)


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
    lines.append(f"{run}: ({' | '.join(parts)}) & /{_shape(least, most)}/")
    lines.append(f'{name}: "\\"" {run} "\\""')
    return lines


@lru_cache(maxsize=16)
def _chunks(text: str, unit: Unit) -> str:
    return json.dumps({"substring_chunks": list(map(escape, pieces(text, unit)))}, ensure_ascii=False)


def _shape(least: int, most: int | None) -> str:
    """Characters of which neither the first nor the last is white space."""
    edge = _edge()
    inner = f"{{{max(least - 2, 0)},{'' if most is None else max(most - 2, 0)}}}"
    longer = f"{edge}{_UNIT}{inner}{edge}"
    if most == 1:
        return edge
    return longer if least > 1 else f"{edge}(?:{_UNIT}{inner}{edge})?"


@cache
def _edge() -> str:
    """One character that is not white space, as Python's `str.isspace` has it."""
    spaces = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isspace()]
    plain = "".join(f"\\x{{{ord(space):x}}}" for space in spaces if escape(space) == space)
    controls = [f"{code:04x}" for code in range(0x20) if escape(chr(code)).startswith("\\u")]
    hidden = "|".join(code for code in controls if chr(int(code, 16)) not in spaces)
    return rf'(?:[^\\{plain}]|\\["\\b]|\\u(?:{hidden}|d[89a-f]{_HEX}{{2}}))'
