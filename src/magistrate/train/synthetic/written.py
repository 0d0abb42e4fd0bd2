"""What a language model that has not read the context would write: ends that it makes up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from magistrate.signals.splitting import sentences
from magistrate.train.synthetic.text import Text, content
from magistrate.types import FAITHFUL, HALLUCINATED, Sample, Span

FEWEST, MOST = 6, 60  # words of an output that is gone on with
KEPT = (0.15, 0.7)  # share of its words that stay, drawn between these
NEW_WORDS = 2  # that an end has to bring, with content and not in the context
KIND = "continued"


def begun(sample: Sample, random: Random) -> tuple[Sample, str] | None:
    """A faithful sample, cut to one sentence where it is long, and the beginning that is gone on with."""
    output = (sample.output or "").strip()
    if len(output.split()) > MOST:
        fitting = [output[a:b] for a, b in sentences(output) if FEWEST <= len(output[a:b].split()) <= MOST]
        output = random.choice(fitting) if fitting else ""
    words = list(re.finditer(r"\S+", output))
    if len(words) < FEWEST:
        return None
    kept = max(2, int(len(words) * random.uniform(*KEPT)))
    return replace(sample, output=output), output[: words[kept - 1].end()]


def continued(sample: Sample, beginning: str, written: str) -> Iterator[Sample]:
    """The sample as it was and, with a made-up end, a hallucinated one of about its length.

    `written` is what a model wrote behind the beginning. It is cut to the length of the original, at the end
    of a sentence where there is one, and marked as wrong. Nothing where it brings too little that is new.
    """
    original = sample.output or ""
    most = len(original.split()) - len(beginning.split()) + 3
    line = written.split("\n")[0]
    words = list(re.finditer(r"\S+", line))[:most]
    stops = [word for word in words if word.group()[-1] in ".!?"]
    if not words:
        return
    end = line[: (stops or words)[-1].end()]
    known = frozenset().union(*(Text(source).vocabulary for source in (*sample.sources, sample.input or "")))
    new = set(content(word.lower for word in Text(end).words)) - known
    if len(new) < NEW_WORDS:
        return
    lead = len(end) - len(end.lstrip())
    span = Span(len(beginning) + lead, len(beginning) + len(end))
    told = {"kind": KIND, "of": sample.id}
    yield replace(sample, id=f"{sample.id}~told", label=FAITHFUL, spans=(), metadata={**told, "kind": "told"})
    yield replace(
        sample,
        id=f"{sample.id}~{KIND}",
        output=beginning + end,
        label=HALLUCINATED,
        spans=(span,),
        metadata=told,
    )
