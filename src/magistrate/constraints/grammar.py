"""One text in llguidance's Lark dialect for every kind of constraint.

A JSON Schema is rewritten before it becomes a `%json` leaf: annotations go, formats become patterns,
patterns become Rust syntax, numbers get a last decimal, objects are closed. Every step narrows: what the
masks let through is valid under the schema as it was given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from magistrate.constraints.bounds import closes_objects
from magistrate.constraints.formats import FORMATS
from magistrate.constraints.numbers import NUMERIC, on_grid
from magistrate.constraints.pointers import LISTS, MAPS
from magistrate.constraints.regex import Translated, translate
from magistrate.constraints.schema import ANNOTATIONS

COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems")


def json_grammar(schema: Mapping[str, Any]) -> str:
    """Lark text that writes compact JSON, keys in the order declared."""
    written = _rewrite(schema, closes_objects(schema)) | {"x-guidance": COMPACT}
    return f"start: %json {json.dumps(written)}\n"


def choice_grammar(choices: Sequence[str]) -> str:
    """Lark text that writes exactly one of `choices`; a Lark string literal has JSON's escapes."""
    return f"start: {' | '.join(json.dumps(choice) for choice in choices)}\n"


def regex_grammar(pattern: str) -> str:
    """Lark text that writes what `pattern`, a Python regular expression, matches as a whole."""
    return f"start: /{translate(pattern).rust}/\n"


def _rewrite(node: Mapping[str, Any], closes: bool) -> dict[str, Any]:
    written: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in ANNOTATIONS or keyword in NUMERIC or keyword.startswith("x-"):
            continue
        if keyword in MAPS:
            written[keyword] = {name: _rewrite(child, closes) for name, child in value.items()}
        elif keyword in LISTS:
            name = "anyOf" if keyword == "oneOf" else keyword  # the branches are known to exclude each other
            written[name] = [_rewrite(child, closes) for child in value]
        elif keyword == "items" and value is not False:
            written[keyword] = _rewrite(value, closes)
        elif keyword == "pattern":
            written["pattern"] = _anchored(translate(value, ascii_words=True))
        elif keyword == "format":
            written["pattern"] = f"^(?:{translate(FORMATS[value]).rust})$"
        else:
            written[keyword] = int(value) if keyword in _COUNTS else value
    written |= on_grid(node, "")
    types = node.get("type", ())
    if closes and "object" in types and "properties" in node:
        written.setdefault("additionalProperties", False)
    return written


def _anchored(pattern: Translated) -> str:
    """As JSON Schema reads a pattern: it may match anywhere in the string unless it is anchored."""
    return f"{'^' if pattern.starts else ''}(?:{pattern.rust}){'$' if pattern.ends else ''}"
