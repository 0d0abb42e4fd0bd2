"""The engine calls on the way to an outcome, as a page shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from magistrate._text import percent
from magistrate.report.formatting import duration
from magistrate.report.html.outcomes import json_text, source_title
from magistrate.types import Sample, Step

STEPS_AT_ONCE = 100
LONGEST = 20_000  # characters of a prompt's or an answer's text that are shown
OF_THE_SAMPLE = 800  # characters of a sample's text within a prompt; all of it stands above
RECOGNISED = 24  # characters that a text needs to be told from the prompt's own words in the middle of a line
OPTIONS = 50
TEXTS_KNOWN = 50  # of the sample's, the longest ones, that are looked for in a prompt
TEXT_KEYS = ("thinking", "text", "error")


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a prompt; `name` says which text of the sample it is, None for the judge's own words.

    `left_out` characters follow `text` before `rest`.
    """

    text: str
    name: str | None = None
    left_out: int = 0
    rest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One engine call. `summary` is what came out, in a few words; `options` are what could be chosen, each
    with its probability in [0, 1], the likeliest first; `texts` what was written or went wrong, by name."""

    number: int
    verb: str
    summary: str
    facts: tuple[tuple[str, str], ...]
    prompt: tuple[tuple[str, tuple[Part, ...]], ...]
    options: tuple[tuple[str, float], ...]
    texts: tuple[tuple[str, Part], ...]
    rest: str | None


def steps_of(sample: Sample, steps: Iterable[Step]) -> tuple[StepView, ...]:
    """At most `STEPS_AT_ONCE` of the steps, numbered from 1."""
    known = _Known(sample)
    shown = zip(range(1, STEPS_AT_ONCE + 1), steps, strict=False)
    return tuple(_step(number, step, known) for number, step in shown)


def _step(number: int, step: Step, known: _Known) -> StepView:
    result = dict(step.result)
    options = _options(result.get("probabilities"))
    texts = tuple(
        (name, _cut(text, LONGEST)) for name in TEXT_KEYS if isinstance(text := result.get(name), str)
    )
    used = {name for name, _ in texts} | ({"probabilities"} if options else set())
    rest = {name: value for name, value in result.items() if name not in used and value is not None}
    usage = step.usage
    facts = [("time", duration(step.seconds)), ("read", f"{usage.prompt:,} tokens")]
    facts += [("from cache", f"{usage.cached:,}")] if usage.cached else []
    facts += [("written", f"{usage.generated:,}")] if usage.generated else []
    facts += [("forced", f"{usage.forced:,}")] if usage.forced else []
    return StepView(
        number=number,
        verb=step.verb,
        summary=_summary(result, options),
        facts=tuple(facts),
        prompt=tuple((role, tuple(known.parts(text))) for role, text in step.prompt),
        options=options[:OPTIONS],
        texts=texts,
        rest=json_text(rest) if rest else None,
    )


def _options(shares: Any) -> tuple[tuple[str, float], ...]:
    if not isinstance(shares, Mapping):
        return ()
    known = [(str(label), float(share)) for label, share in shares.items() if isinstance(share, int | float)]
    return tuple(sorted(known, key=lambda each: -each[1]))


def _summary(result: Mapping[str, Any], options: tuple[tuple[str, float], ...]) -> str:
    if isinstance(error := result.get("error"), str):
        return f"went wrong: {error}"[:200]
    if "best" in result:
        share = dict(options).get(str(result["best"]))
        return f"{result['best']}"[:100] + ("" if share is None else f", {percent(share)}")
    if isinstance(numbers := result.get("logprobs"), list) and numbers:
        return f"{len(numbers):,} tokens, {sum(numbers) / len(numbers):.2f} nats each"
    if isinstance(thoughts := result.get("thinking"), str):
        return f"thought: {thoughts}"[:200]
    return str(result.get("text", ""))[:200]


def _cut(text: str, longest: int, name: str | None = None) -> Part:
    """A text with its middle left out where it is longer."""
    if len(text) <= longest:
        return Part(text, name)
    kept = longest // 4
    return Part(text[: longest - kept], name, len(text) - longest, text[-kept:])


class _Known:
    """Finds a sample's texts within prompts, where they are data and not the judge's own words.

    A step keeps no more of a prompt than its words, so a text is recognised only as it stands in the sample,
    and a short one only at the end of a line.
    """

    def __init__(self, sample: Sample) -> None:
        named = [("output", sample.output), ("input", sample.input), ("expected", sample.expected)]
        named += [(source_title(sample, at).lower(), text) for at, text in enumerate(sample.sources)]
        named += [(f"alternative {at}", text) for at, text in enumerate(sample.alternatives, 1)]
        names = {text.strip(): name for name, text in reversed(named) if text and text.strip()}
        longest_first = sorted(names.items(), key=lambda each: -len(each[0]))
        self._texts = longest_first[:TEXTS_KNOWN]
        self._found: dict[str, tuple[Part, ...]] = {}

    def parts(self, prompt: str) -> tuple[Part, ...]:
        """A message of a prompt in order, nothing of it missing that `left_out` does not count."""
        if prompt not in self._found:
            self._found[prompt] = tuple(self._parts(prompt))
        return self._found[prompt]

    def _parts(self, prompt: str) -> Iterator[Part]:
        at = 0
        for start, end, name in self._places(prompt):
            if start > at:
                yield _cut(prompt[at:start], LONGEST)
            yield _cut(prompt[start:end], OF_THE_SAMPLE, name)
            at = end
        if at < len(prompt):
            yield _cut(prompt[at:], LONGEST)

    def _places(self, prompt: str) -> list[tuple[int, int, str]]:
        """Where the texts stand, in order and apart from each other; of two that overlap the longer one."""
        taken = bytearray(len(prompt))
        places = []
        for text, name in self._texts:
            start = prompt.find(text)
            while start >= 0:
                end = start + len(text)
                if taken.find(1, start, end) < 0 and (
                    len(text) >= RECOGNISED or _ends_a_line(prompt, start, end)
                ):
                    taken[start:end] = b"\1" * len(text)
                    places.append((start, end, name))
                start = prompt.find(text, end)
        return sorted(places)


def _ends_a_line(prompt: str, start: int, end: int) -> bool:
    before, behind = prompt[start - 1 : start], prompt[end : end + 1]
    return (not before or before.isspace()) and behind in ("", "\n")
