"""The thoughts that a reasoning model writes before its answer, told apart from it."""

from __future__ import annotations

import re

OPENING = re.compile(r"\s*(?:<(think|thinking|thought|reasoning)>|\[(THINK)\])")


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str]:
    """Thoughts and answer of what a model wrote.

    Thoughts count only where the text begins with them; a tag further on is part of the answer, which may
    quote what is judged. `opened` says that the prompt has already begun the thoughts, so that the text only
    ends them. Thoughts that are never ended leave no answer.

    >>> split_thinking("<think>Rain is wet.</think> Yes")
    ('Rain is wet.', 'Yes')
    >>> split_thinking('{"quote": "<think>"}')
    ('', '{"quote": "<think>"}')
    """
    match = OPENING.match(text)
    if match is None and not opened:
        return "", text
    start = 0 if match is None else match.end()
    name = "think" if match is None else match[1] or match[2]
    closing = "[/THINK]" if name == "THINK" else f"</{name}>"
    thoughts, ended, answer = text[start:].partition(closing)
    if not ended and match is None:
        return "", text  # it was not begun after all: a template may leave thoughts out
    return thoughts.strip(), answer.lstrip()
