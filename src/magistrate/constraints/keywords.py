"""Keywords of ours, which a JSON Schema may have beside those of the standard."""

from __future__ import annotations

QUOTE = "x-quote"  # {"type": "string", "x-quote": {"of": "context", "unit": "words"}}
LARK = "x-lark"  # {"type": "string", "x-lark": "start: ..."}
