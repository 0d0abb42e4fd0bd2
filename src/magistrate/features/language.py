"""Detect whether a text is the English prose that the shipped detector reads."""

from __future__ import annotations

import re

from magistrate._scratch import once
from magistrate.features.words import STOP, worded
from magistrate.types import Sample

LONGEST = 20_000  # characters read of a text
LEAST_LETTERS = 12
ANOTHER = 0.5  # at most this share of Latin letters means another script
MARKED = 0.04  # above this share of letters with marks, a text without English words is not English
LEAST_FORMS = 10  # words
LEAST_WORDS = 4  # different common words of another language, at least
TIMES = 2.0  # ratio of these to English common words, at least
NAMES = {"de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "pt": "Portuguese", "nl": "Dutch"}
LATIN = re.compile(r"[A-Za-z\u00aa-\u024f\u1e00-\u1eff\ufb00-\ufb06]")
LETTER = re.compile(r"[^\W\d_]")
FENCED = re.compile(r"^```[^\n]*\n.*?^```", re.M | re.S)
CODE_LINE = re.compile(
    r"^\s*(?:def \w+\(|class \w+[(:]|import \w|from \w[\w.]* import|#include\b|(?:const|let|var) \w+ =)"
    r"|^\s*(?:return\b.*;|SELECT .* FROM\b|(?:public|private|static) \w|}|<\w[^>]*>\s*$)"
    r"|[;{]\s*$|^\s*\w[\w.]*(?:\[\w+\])? = \S"
)
LEAST_LINES = 3


def strange(sample: Sample) -> str:
    """Return why a sample is not English prose, or an empty string if it is."""
    context = once(("language", sample.sources), lambda: another_language("\n".join(sample.sources)))
    if context:
        return f"it reads only English, but the context is {context}"
    output = sample.output or ""
    if found := another_language(output):
        return f"it reads only English, but the output is {found}"
    return "it reads only prose, but the output is program code" if is_code(output) else ""


def another_language(text: str) -> str:
    """Return what a text is instead of English; empty if it is English or too short to tell.

    >>> another_language("Die Garantie gilt zwei Jahre und nicht für den Akku, wenn er in Gebrauch war.")
    'in German'
    """
    letters = LETTER.findall(text[:LONGEST])
    latin = sum(LATIN.match(each) is not None for each in letters)
    if len(letters) >= LEAST_LETTERS and latin <= ANOTHER * len(letters):
        return "in another script"
    forms = worded(text[:LONGEST]).forms
    said = {form for form in forms if len(form) > 1}  # single letters also occur in tables
    counts = {name: len(said & common) for name, common in STOP.items()}
    english = counts.pop("en")
    most = max(counts, key=lambda name: counts[name])
    if counts[most] >= max(LEAST_WORDS, TIMES * english):
        return f"in {NAMES[most]}"
    marked = sum(not each.isascii() for each in letters)
    if len(forms) >= LEAST_FORMS and not english and marked > MARKED * len(letters):
        return "not in English"
    return ""


def is_code(text: str) -> bool:
    """Return whether most of a text is program code.

    >>> is_code("It returns 3; see above."), is_code("x = 1\\nfor y in f(x):\\n    y.go();\\nreturn z;")
    (False, True)
    """
    fenced = sum(len(found[0]) for found in FENCED.finditer(text[:LONGEST]))
    if fenced > len(text[:LONGEST]) / 2:
        return True
    lines = [line for line in text[:LONGEST].splitlines() if line.strip()]
    coded = sum(CODE_LINE.search(line) is not None for line in lines)
    return len(lines) >= LEAST_LINES and coded > len(lines) / 2
