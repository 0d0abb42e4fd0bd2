"""The judge `tool_arguments`: checks whether every value in a tool call comes from the conversation."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from magistrate._work import checked
from magistrate.constraints.schema import resolve
from magistrate.engines.base import Engine
from magistrate.features.facts import Amounts, Calendar, Quantity, dates, quantities
from magistrate.judges.base import LABELS, NO_LIMIT, Call, JudgeInfo
from magistrate.judges.composite import gather_or_cancel
from magistrate.judges.question import Answers, Label, LabelProbabilities, choose_label
from magistrate.judges.template import builtin_prompt
from magistrate.judges.tool_calls import (
    THE_READ,
    Event,
    Result,
    Said,
    ToolCall,
    UnreadableMessages,
    calls_of,
    events_of,
    tools_of,
)
from magistrate.judges.tool_schema import NO_CALLS
from magistrate.types import FAITHFUL, HALLUCINATED, Abstention, Claim, Outcome, Prompt, Sample, Span, Verdict

MOST_LEAVES = 1000
DEEPEST = 32  # nesting depth
TOLD = (Label(FAITHFUL, 0.0, answers=("Yes",)), Label(HALLUCINATED, 1.0, answers=("No",)))
NO_LEAVES = "no call has an argument that can be traced; only texts and numbers can"
TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d):(\d\d)(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?")
MOST_DIGITS = 15
DIGITS = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?")
WORD = re.compile(r"[^\W_]+")
UNSPACED = re.compile("[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\u0e00-\u0eff]")  # no spaces between words


@dataclass(frozen=True, slots=True)
class Leaf:
    """A text or a number among the arguments of a call; `path` is its place, as in `to[0].name`."""

    call: int
    tool: str
    path: str
    value: str | int | float

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value if isinstance(self.value, str) else json.dumps(self.value)


@dataclass(frozen=True)
class ToolArguments:
    """Traces every text and number in the arguments of a tool call to a source before the call.

    Sources are the context, user and system messages, and earlier tool results, but not the application's
    own messages. A value is found if a source contains it, ignoring letter case, punctuation and the format
    of numbers and dates, or if the tool's declared schema contains it (`enum`, `const`, `default`).
    Booleans, null and empty texts are skipped.

    With `ask` the run's engine decides for every other value whether it follows from the sources. The score
    is the share of values without a source. The label is `hallucinated` if there are any, and each of them
    is a claim.
    """

    name: str = "tool_arguments"
    ask: bool = False

    @property
    def info(self) -> JudgeInfo:
        prompt = builtin_prompt("tool_arguments")
        return JudgeInfo(
            name=self.name,
            version=prompt.version,
            summary="every argument value of a tool call occurs earlier in the conversation"
            + ("; a model checks the rest" if self.ask else ""),
            labels=LABELS,
            reads=("context", *THE_READ, "tools", "tool_calls"),
            requires=(),
            needs=frozenset({"choose"}) if self.ask else frozenset(),
            kind="llm" if self.ask else "code",
            long="refuse" if self.ask else NO_LIMIT,
            prompt=prompt.digest if self.ask else "",
        )

    def plan(self, sample: Sample) -> list[Call]:
        """Return one call for each value that code does not find."""
        if not self.ask:
            return []
        try:
            events, tools = events_of(sample), tools_of(sample)
        except UnreadableMessages:
            return []  # `judge` reports it
        if _too_many(events):
            return []
        rest = [(leaf, said) for leaf, how, said in _traced(sample, events, tools) if how is None]
        return [Call(_question(leaf, said, Answers(TOLD))) for leaf, said in rest]

    async def judge(self, sample: Sample, engine: Engine) -> Outcome:
        try:
            events, tools = events_of(sample), tools_of(sample)
        except UnreadableMessages as error:
            return Abstention(sample.id, self.name, "missing_input", str(error))
        calls = calls_of(events)
        if not calls:
            return Abstention(sample.id, self.name, "missing_input", NO_CALLS)
        if broken := [call for call in calls if call.problem]:
            told = f"call {broken[0].number}: {broken[0].problem}, so nothing can be traced"
            return Abstention(sample.id, self.name, "uncertain", told)
        if _too_many(events):
            told = f"the calls have more than {MOST_LEAVES:,} values"
            return Abstention(sample.id, self.name, "uncertain", told)
        traced = list(_traced(sample, events, tools))
        if not traced:
            return Abstention(sample.id, self.name, "uncertain", NO_LEAVES)
        shares = await self._asked([(leaf, said) for leaf, how, said in traced if how is None], engine)
        leaves: list[dict[str, Any]] = []
        claims: list[Claim] = []
        for leaf, how, _ in traced:
            share = None if how is not None or not self.ask else shares.pop(0)
            source = "model" if how is None and share is not None and share < 0.5 else how
            leaves.append(
                {
                    "call": leaf.call,
                    "tool": leaf.tool,
                    "path": leaf.path,
                    "value": leaf.value,
                    "found": source,
                    **({} if share is None else {"probability": share}),
                }
            )
            if source is None:
                claims.append(_claim(leaf, share, sample.output or ""))
        first = f"; the first: {claims[0].reasoning.partition(': ')[0]}" if claims else ""
        told = f"{len(claims)} of {len(leaves)} values of {len(calls)} calls occur nowhere before{first}"
        return Verdict(
            sample_id=sample.id,
            judge=self.name,
            label=HALLUCINATED if claims else FAITHFUL,
            score=len(claims) / len(leaves),
            explanation=told,
            claims=tuple(claims),
            details={"values": leaves},
        )

    async def _asked(self, rest: Sequence[tuple[Leaf, tuple[str, ...]]], engine: Engine) -> list[float]:
        """Return for each value the probability that it does not follow from the sources."""
        if not self.ask:
            return []

        def asked(leaf: Leaf, said: tuple[str, ...]) -> Coroutine[Any, Any, LabelProbabilities]:
            return choose_label(engine, TOLD, lambda answers: _question(leaf, said, answers))

        found = await gather_or_cancel(asked(*each) for each in rest)
        return [each.probability(HALLUCINATED) for each in found]


def _claim(leaf: Leaf, share: float | None, output: str) -> Claim:
    start = output.find(leaf.text)
    place = Span(start, start + len(leaf.text)) if start >= 0 else Span(0, 0)
    told = f"call {leaf.call}, {leaf.tool}, {leaf.path}: not in any source"
    return Claim("unsupported", place, reasoning=told, probability=share, output_text=leaf.text)


def _question(leaf: Leaf, said: tuple[str, ...], answers: Answers) -> Prompt:
    fields = {"said": said, "tool": leaf.tool, "argument": leaf.path, "value": leaf.text}
    return builtin_prompt("tool_arguments").prompt(fields, {"reply": answers.reply()})


# --- tracing values to sources ----------------------------------------------------------------------


def _traced(
    sample: Sample, events: Sequence[Event], tools: Mapping[str, Any]
) -> Iterator[tuple[Leaf, str | None, tuple[str, ...]]]:
    """Yield every value, how it was found (None if it was not), and the sources up to its call."""
    texts = [*sample.context]
    sources = Sources(texts)
    for event in checked(events, 1):
        if isinstance(event, Result) or (isinstance(event, Said) and not event.by_assistant):
            texts.append(event.text)
            sources = Sources(texts)
        elif isinstance(event, ToolCall):
            for path, keys, value in _leaves(event.arguments):
                leaf = Leaf(event.number, event.name, path, value)
                named = _in_schema(tools.get(event.name), keys, value)
                yield leaf, "schema" if named else sources.say(value), tuple(texts)


def _too_many(events: Sequence[Event]) -> bool:
    return sum(1 for event in calls_of(events) for _ in _leaves(event.arguments)) > MOST_LEAVES


def _leaves(arguments: Any) -> Iterator[tuple[str, tuple[str | int, ...], str | int | float]]:
    """Yield the texts and numbers in a value, each with its path as text and as keys."""
    pending: list[tuple[str, tuple[str | int, ...], Any]] = [("", (), arguments)]
    found = 0
    while pending and found <= MOST_LEAVES:
        path, keys, value = pending.pop()
        if isinstance(value, Mapping):
            pending += reversed(
                [
                    (f"{path}.{key}" if path else str(key), (*keys, str(key)), each)
                    for key, each in value.items()
                ]
            )
        elif isinstance(value, list | tuple):
            pending += reversed([(f"{path}[{at}]", (*keys, at), each) for at, each in enumerate(value)])
        elif _is_leaf(value):
            found += 1
            yield path, keys, value


def _is_leaf(value: Any) -> bool:
    """Return whether a value is a number or a text that is not blank."""
    if isinstance(value, str):
        return bool(value.strip())
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_schema(schema: Any, keys: Sequence[str | int], value: Any) -> bool:
    """Return whether a schema names a value as a possible one at a place."""
    if not isinstance(schema, Mapping):
        return False
    nodes = _spread(schema, [schema])
    for key in keys:
        inner: list[Any] = []
        for node in nodes:
            if isinstance(key, str) and isinstance(named := node.get("properties"), Mapping):
                inner.append(named.get(key))
            if isinstance(key, int):
                inner.append(node.get("items"))
        nodes = _spread(schema, inner)
    return any(
        value == each and isinstance(each, bool) is isinstance(value, bool)  # 1 is 1.0, but it is not true
        for node in nodes
        for listed in (
            node["enum"] if isinstance(node.get("enum"), list) else [],
            [node[name] for name in ("const", "default") if name in node],
        )
        for each in listed
    )


def _spread(root: Mapping[str, Any], nodes: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the schemas with all that they reference or combine."""
    found: list[Mapping[str, Any]] = []
    pending = list(nodes)
    while pending and len(found) < MOST_LEAVES:
        node = pending.pop()
        if not isinstance(node, Mapping) or any(node is each for each in found):
            continue
        found.append(node)
        for name in ("anyOf", "oneOf", "allOf"):
            if isinstance(node.get(name), list):
                pending += node[name]
        if isinstance(reference := node.get("$ref"), str):
            try:
                pending.append(resolve(root, reference))
            except (KeyError, IndexError, TypeError, ValueError):
                continue
    return found


class Sources:
    """Texts with indices in which values can be looked up."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._plain: str | None = None
        self._amounts: Amounts | None = None
        self._calendar: Calendar | None = None

    def say(self, value: str | int | float) -> str | None:
        """Return how the texts contain a value (`said`, `number`, `date`), None if they do not."""
        text = (value if isinstance(value, str) else json.dumps(value)).strip()
        if DIGITS.fullmatch(text):  # 5,000 or 2.5 do not contain 5
            if (number := _number(text)) is not None and self._number(number):
                return "number"
            # Nor does -5, whose sign begins a word, while the one in 10-5 does not.
            alone = re.compile(rf"(?<![\d.,])(?<!\B[-−]){re.escape(text)}(?![\d]|[.,]\d)")
            return "said" if any(alone.search(each) for each in self._texts) else None
        if self._holds(text):
            return "said"
        return "date" if self._date(text) else None

    def _holds(self, text: str) -> bool:
        wanted = _normal(text)
        if not wanted.strip():
            return any(text.strip() in each for each in self._texts)
        if self._plain is None:
            self._plain = "".join(map(_normal, self._texts))
        return (wanted.strip() if UNSPACED.search(text) else wanted) in self._plain

    def _number(self, value: float) -> bool:
        if self._amounts is None:
            self._amounts = Amounts(each for text in self._texts for each in quantities(text))
        return self._amounts.say(Quantity(Span(0, 0), value))

    def _date(self, text: str) -> bool:
        if self._calendar is None:
            self._calendar = Calendar(each for source in self._texts for each in dates(source))
        timed = TIME.fullmatch(text)
        day = timed[1] if timed else text
        found = dates(day)
        if len(found) != 1 or found[0].span != Span(0, len(day)) or not self._calendar.says(found[0]):
            return False
        return timed is None or self._time(int(timed[2]), int(timed[3]))

    def _time(self, hour: int, minute: int) -> bool:
        """Return whether a time of day is in the texts. Midnight always is, since a date alone becomes it."""
        if hour == minute == 0:
            return True
        half, short = "am" if hour < 12 else "pm", hour % 12 or 12
        written = [f"{hour:02}:{minute:02}", f"{hour}:{minute:02}", f"{short}:{minute:02} {half}"]
        written += [f"{short}:{minute:02}{half}"]
        written += [] if minute else [f"{short} {half}", f"{short}{half}"]
        return any(self._holds(each) for each in written)


def _normal(text: str) -> str:
    """Return the words of a text in lower case, separated and surrounded by single spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return f" {' '.join(WORD.findall(folded))} "


def _number(text: str) -> float | None:
    """Parse a number; None if it is an identifier, such as 007, has too many digits to be exact, or is
    beyond all floats."""
    whole = text.lstrip("-")
    if len(text) > MOST_DIGITS or (len(whole) > 1 and whole[0] == "0" and whole[1] != "."):
        return None
    value = float(text)
    return value if isfinite(value) else None
