"""Texts on trial for servers that take nothing but text: what looks like a special token is broken up.

A server tokenizes the whole prompt, so `<|im_end|>` in a judged text would close its turn. A mark that no
text of the prompt contains is put behind the first character of whatever looks so, and taken out of what
comes back, so that quotes and offsets are those of the raw text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

MARKS = "¦‖†‡§¶⁞※⸗⁑◊⟊⌇⍿"
# Tags of one word, with bars or without, of any script; bracketed capitals; doubled angle brackets.
SPECIAL = re.compile(
    r"<(?=[|｜/]?[^<>\s]{1,64}>)|<(?=[|｜])|[|｜](?=>)|<(?=</?[A-Z]+>>)"
    r"|\[(?=/?[a-z]{0,2}[A-Z][A-Z0-9_ ]{1,40}\])"
)
NOTE = "what looks like special tokens in judged texts was broken up by {mark!r}, and mended in the answer"


@dataclass(frozen=True, slots=True)
class Escaping:
    """How the texts of one prompt are broken up: by `mark`, or not at all where nothing looks special."""

    mark: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the answer must know."""
        return (NOTE.format(mark=self.mark),) if self.mark else ()

    def escaped(self, text: str) -> str:
        """`text` without anything that looks like a special token."""
        return SPECIAL.sub(lambda match: match[0] + self.mark, text) if self.mark else text

    def undone(self, text: str) -> str:
        """What came back, as it would read had nothing been broken up; also inside JSON's escapes."""
        if not self.mark:
            return text
        code = f"{ord(self.mark):04x}"
        return re.sub(rf"\\u{code}", "", text.replace(self.mark, ""), flags=re.IGNORECASE)

    def place(self, raw: str, at: int) -> int:
        """The offset into `raw` of the offset `at` into `escaped(raw)`."""
        return at - self.escaped(raw)[:at].count(self.mark) if self.mark else at


def escaping_for(untrusted: Iterable[str], others: Iterable[str] = ()) -> Escaping:
    """How to break up `untrusted` texts, by a mark that neither they nor `others` contain."""
    texts = list(untrusted)
    if not any(SPECIAL.search(text) for text in texts):
        return Escaping()
    everything = [*texts, *others]
    for mark in (*MARKS, *map(chr, range(0x2800, 0x2900)), *map(chr, range(0xE000, 0xF8FF))):
        if not any(mark in text for text in everything):
            return Escaping(mark)
    raise ValueError("no mark is left that these texts do not contain")
